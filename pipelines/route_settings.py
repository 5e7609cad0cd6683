"""How hospitals outside the federation come to a model: from what sites trained, and their own unlabelled images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from personalize.adaptation_baselines import Tent
from personalize.adaptation_turns import TestTimeTraining
from personalize.routing_outside import Routing
from pipelines.harmonize_settings import RAW
from pipelines.names import unfit_labels
from privacy.policy import OUTSIDE

if TYPE_CHECKING:
    from pipelines.config import Config

FORBID: dict[str, Any] = {"extra": "forbid"}
SHARED, PERSONAL = "shared", "personal"


@dataclass(frozen=True, kw_only=True)
class AsTrained:
    """The federation's one model, as it is."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["as_trained"] = "as_trained"


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of the scores that the sites' models reach, each by itself (IOP-FL, table II)."""

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
"""Whose models a way asks for: of the method with one model for all, or of that with one a site."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. how: the way. shared, personal: labels of methods, where not those of `route`.

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
        if problems := unfit_labels(self.lines):
            raise ValueError("; ".join(problems))

    def methods(self, line: Line) -> dict[str, str]:
        """What a line needs (`shared`, `personal`) -> the label of the method that gives it."""
        labels = {SHARED: line.shared or self.shared, PERSONAL: line.personal or self.personal}
        return {part: labels[part] for part in NEEDS[line.how.name]}


def unfit_route(config: Config) -> list[str]:
    """What keeps hospitals outside from getting a model: all of it at once."""
    known = [name for name in config.outside if name in config.sites]
    problems = [
        f"outside: {name!r} is no site; sites are {', '.join(config.sites)}"
        for name in config.outside
        if name not in config.sites
    ]
    if config.outside and len(known) == len(config.sites):
        problems.append("outside: names every site; somebody must be in the federation")
    if len(set(config.outside)) < len(config.outside):
        problems.append("outside: names a site twice; name each once")
    if config.route is None:
        return problems
    if not config.outside:
        problems.append("outside: missing; route is for hospitals outside the federation, name at least one site")
    if config.evaluate.checkpoint == "local":
        problems.append("route: models of each site's own best round are no common one; say checkpoint: global")
    if config.privacy != "none":
        problems.append("route: its scores are not released with noise yet; say privacy: none, or remove it")
    for label, line in config.route.lines.items():
        problems += [f"route.lines.{label}: {said}" for said in _unfit_line(config, config.route, line)]
    return problems + [
        f"sites.{name}.policy.recipients: route hands this site's models to hospitals outside the federation, and its "
        f"policy does not let it; say recipients: [coordinator, {OUTSIDE}], or remove route"
        for name, site in config.sites.items()
        if name not in config.outside and OUTSIDE not in site.policy.recipients
    ]


def _unfit_line(config: Config, route: Route, line: Line) -> list[str]:
    problems = []
    if line.how.name == "average" and config.task.kind == "classification":
        problems.append("how: average is of the scores of masks; say ensemble, the mean of the models' logits")
    for part, label in route.methods(line).items():
        method = config.train.methods.get(label)
        if method is None:
            problems.append(f"{part}: {label!r} is no method; methods are {', '.join(config.train.methods)}")
        elif method.name == "central":
            problems.append(f"{part}: {label} is the pooled baseline of a simulation, which no hospital can be given")
        elif config.train.method_images.get(label, RAW) != RAW:
            problems.append(f"{part}: {label} learns from translated images, which a hospital outside does not have")
        elif (line.how.name == "ttt") != (method.name == "fedavg_turns"):
            problems.append(f"{part}: {label} is {method.name}; ttt goes with fedavg_turns, and nothing else does")
    return problems
