"""What left the hospitals, by request, with its privacy loss; and the same in a few sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from evaluation.wording import Words
from privacy.release.meaning import UNBOUNDED, loss
from privacy.release.statement import Statement

Records: TypeAlias = Literal["none", "left", "unknown"]
"""unknown: the hospital does not remember what it sent."""


@dataclass(frozen=True)
class Left:
    """What left a hospital in response to one request. content: what it is; brief: in a few words, empty for counts and
    digests. epsilon: a text, because ∞ is explained in words; without a statement there is no guarantee. records:
    whether patients' own images, labels or records left, and `of_patients`, in words, which would.
    """

    site: str
    request: str
    messages: int
    bytes: int
    epsilon: str = UNBOUNDED
    content: str = ""
    brief: str = ""
    records: Records = "none"
    of_patients: str = ""


@dataclass(frozen=True)
class Total:
    """What left one hospital over all requests. epsilons: the total of its statement; without one they are listed,
    because only the accountant can add them up.
    """

    site: str
    messages: int
    bytes: int
    epsilons: tuple[str, ...]


def spent(statement: Statement) -> str:
    """The privacy loss of one patient of a hospital, in one line."""
    if math.isinf(statement.epsilon):
        return UNBOUNDED
    return f"{loss(statement.epsilon)} at δ = {statement.delta:g}"


def totals(left: Sequence[Left], statements: Sequence[Statement]) -> list[Total]:
    """The total of each hospital, in order of appearance."""
    whole, by_site = {one.site: (spent(one),) for one in statements}, _by_site(left)
    return [
        Total(
            site,
            sum(e.messages for e in own),
            sum(e.bytes for e in own),
            whole.get(site) or tuple(dict.fromkeys(e.epsilon for e in own)),
        )
        for site, own in by_site.items()
    ]


def _by_site(left: Iterable[Left]) -> dict[str, list[Left]]:
    found = dict[str, list[Left]]()
    for entry in left:
        found.setdefault(entry.site, []).append(entry)
    return found


class OfPatients(NamedTuple):
    """Patients' own images, labels or records that left in answer to one request, or may have. what: in words."""

    request: str
    what: str
    records: Records
    sites: tuple[str, ...]


def of_patients(left: Iterable[Left]) -> tuple[OfPatients, ...]:
    """Read from the ledgers' entries, because the settings of this run would not show what an earlier run released."""
    found = dict[tuple[str, str, Records], dict[str, None]]()
    for entry in left:
        if entry.messages and entry.records != "none":
            found.setdefault((entry.request, entry.of_patients, entry.records), {})[entry.site] = None
    return tuple(OfPatients(*what, tuple(sites)) for what, sites in found.items())


@dataclass(frozen=True)
class Departure:
    """What left several hospitals alike. epsilon: in a few words. said: sentences."""

    sites: tuple[str, ...]
    epsilon: str
    said: tuple[str, ...]


def departures(left: Sequence[Left], statements: Sequence[Statement], words: Words) -> tuple[Departure, ...]:
    """Hospitals with equal sentences are grouped, in order of appearance."""
    stated, found = {one.site: one for one in statements}, dict[tuple[str, tuple[str, ...]], list[str]]()
    for site, entries in _by_site(left).items():
        own = [entry for entry in entries if entry.messages]
        what = _what(own, words)
        key = (_epsilon(stated.get(site), own), (what, *_guarantee(stated.get(site))))
        found.setdefault(key, []).append(site)
    return tuple(Departure(tuple(sites), epsilon, said) for (epsilon, said), sites in found.items())


def _what(own: Sequence[Left], words: Words) -> str:
    patients = of_patients(own)
    kinds = list(dict.fromkeys(entry.brief for entry in own if entry.brief and entry.records != "left"))
    kinds += [one.what.replace("examples", words.examples) for one in patients if one.records == "left"]
    if not own:
        return "Nothing."
    listed = ", ".join([*kinds, "counts and digests"])
    end = "" if patients else "; no patient's image, label or record"
    return f"{listed[0].upper()}{listed[1:]}{end}."


def _epsilon(statement: Statement | None, own: Sequence[Left]) -> str:
    if not own:
        return "nothing left"
    return UNBOUNDED if statement is None else spent(statement)


def _guarantee(statement: Statement | None) -> tuple[str, ...]:
    """The guarantee for one patient, and the replies that it covers."""
    if statement is None:
        return ("No privacy statement was made.",)
    if not math.isinf(statement.epsilon):
        return (f"{statement.meaning.split('. ')[0].rstrip('.')}.",) if statement.epsilon == 0 else ()
    bound = f"Nothing is proved about what all of this reveals about one {statement.unit}."
    if 0 < statement.noised < math.inf:
        part = f"Replies with noise alone have ε = {statement.noised:g} at δ = {statement.delta:g}."
        return (bound, part)
    return (bound,)
