"""What left the hospitals, in answer to which request, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.statement_page import NO_GUARANTEE, SiteStatement, spent


@dataclass(frozen=True)
class Left:
    """What left a hospital in answer to one request. content: what it is. epsilon: a text, since ∞ needs its words;
    who says nothing of the cost has given no guarantee."""

    site: str
    request: str
    messages: int
    bytes: int
    epsilon: str = NO_GUARANTEE
    content: str = ""


@dataclass(frozen=True)
class Total:
    """What left one hospital over all requests. epsilons: the total of its statement; without one they are listed,
    since adding them up is the accountant's work."""

    site: str
    messages: int
    bytes: int
    epsilons: tuple[str, ...]


def totals(left: Sequence[Left], statements: Sequence[SiteStatement]) -> list[Total]:
    """Of each hospital, in the order in which they come."""
    whole = {one.site: (spent(one),) for one in statements}
    return [
        Total(
            site,
            sum(e.messages for e in own),
            sum(e.bytes for e in own),
            whole.get(site) or tuple(dict.fromkeys(e.epsilon for e in own)),
        )
        for site in dict.fromkeys(e.site for e in left)
        for own in [[e for e in left if e.site == site]]
    ]
