"""Which model a hospital should use: one record, read wherever a model is named.

A hospital makes the decision from exact scores of every model that it has, on its own patients, and writes it into
`recommended.json`. Its page, `predict --recommended` and `Results.recommended` read this file. The coordinator's page
shows the decision if the hospital sent it, and otherwise says that the hospital's page decides.
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
    the criterion named before and that do no better than guessing. recommendation: the recommendation before any
    withdrawal; None = there was none. final: False = the hospital did not send its decision, and this one is the
    coordinator's, from the scores that were sent.
    """

    site: str
    method: str = ""
    by: By = ""
    withdrawn: tuple[str, ...] = ()
    recommendation: Recommendation | None = None
    final: bool = True


@dataclass(frozen=True)
class Rival:
    """A model that test patients show to be better than the one that a hospital should use. gain: in the measure, with
    its interval, positive if it is better. of: how many models were compared at once.
    """

    method: str
    gain: float
    low: float
    high: float
    of: int


_DECISION: TypeAdapter[Decision] = TypeAdapter(Decision)


def to_facts(decision: Decision) -> dict[str, Any]:
    """A decision as plain JSON."""
    return {**asdict(decision), "withdrawn": [*decision.withdrawn]}


def from_facts(facts: Mapping[str, Any]) -> Decision:
    """The decision that facts hold. Raises: ValueError: they hold none."""
    return _DECISION.validate_python(dict(facts))
