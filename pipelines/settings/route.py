"""How external sites get a model: from the sites' trained models and their own unlabelled images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from personalize.adaptation_baselines import Tent
from personalize.adaptation_turns import TestTimeTraining
from personalize.routing_outside import Routing
from pipelines.loader.names import label_problems
from privacy.settings_error import refuse

FORBID: dict[str, Any] = {"extra": "forbid"}
SHARED, PERSONAL = "shared", "personal"


@dataclass(frozen=True, kw_only=True)
class AsTrained:
    """The federation's shared model, not adapted."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["as_trained"] = "as_trained"


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of the scores of the sites' single models (IOP-FL, table II)."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["average"] = "average"


@dataclass(frozen=True, kw_only=True)
class OfAll:
    """The mean of the logits of the sites' models (IOP-FL, table II)."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["ensemble"] = "ensemble"


How: TypeAlias = Annotated[AsTrained | Average | OfAll | Tent | TestTimeTraining | Routing, Field(discriminator="name")]
NEEDS: Mapping[str, tuple[str, ...]] = {
    "as_trained": (SHARED,),
    "average": (PERSONAL,),
    "ensemble": (PERSONAL,),
    "tent": (SHARED,),
    "ttt": (SHARED,),
    "routing": (PERSONAL, SHARED),
}
"""Which models a way needs: of the method with one shared model, or of the method with one model per site."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. how: the way. shared, personal: labels of methods; null = those of `route`.

    ttt needs as `shared` a method fedavg_turns, whose network has a head for turns.
    """

    __pydantic_config__: ClassVar = FORBID

    how: How
    shared: str | None = None
    personal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Route:
    """shared: the method whose one model is the last expert; personal: the method whose sites' models are the others.

    With IOP-FL inside, its global model is that of a FedAvg with the same weights: name both.
    """

    __pydantic_config__: ClassVar = FORBID

    shared: str
    personal: str
    lines: Mapping[str, Line] = field(default_factory=lambda: {"routing": Line(how=Routing())})

    def __post_init__(self) -> None:
        refuse(label_problems(self.lines, "lines"))

    def methods(self, line: Line) -> dict[str, str]:
        """What a line needs (`shared`, `personal`) -> the label of the method that gives it."""
        labels = {SHARED: line.shared or self.shared, PERSONAL: line.personal or self.personal}
        return {part: labels[part] for part in NEEDS[line.how.name]}
