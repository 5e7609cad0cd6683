"""Which model a hospital should use: one record, which every place that names a model reads.

A hospital makes it, from exact scores of its own patients and of every model that it holds, and writes it into
`recommended.json`. Its page, `predict --recommended` and `Results.recommended` read that one; the coordinator's page
shows it where the hospital told it, and elsewhere says that the hospital's page decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from evaluation.recommendation import Recommendation

By = Literal["recommended", "validation", "test", ""]


@dataclass(frozen=True)
class Decision:
    """A hospital's model. method: empty = none should be used. by: the criterion, empty = none. withdrawn: models that
    the criterion named before and that do no better than guessing. recommendation: what was expected, before any
    withdrawal; None = nothing. final: False = the hospital did not tell, and this is the coordinator's view of what
    was sent.
    """

    site: str
    method: str = ""
    by: By = ""
    withdrawn: tuple[str, ...] = ()
    recommendation: Recommendation | None = None
    final: bool = True


_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)


def to_facts(decision: Decision) -> dict[str, Any]:
    """A decision as plain JSON."""
    return {**asdict(decision), "withdrawn": [*decision.withdrawn]}


def from_facts(said: Mapping[str, Any]) -> Decision:
    """The decision that facts hold. Raises: ValueError: they hold none."""
    return _DECISION.validate_python(dict(said))
