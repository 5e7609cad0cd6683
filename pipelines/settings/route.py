"""How external sites get a model: from the sites' trained models and their own unlabelled images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from federation.finetuning import Tuning
from personalize.adaptation_baselines import Tent
from personalize.adaptation_turns import TestTimeTraining
from personalize.routing_outside import Routing
from pipelines.loader.names import label_problems
from privacy.release.policy import MOST_DELTA
from privacy.settings_error import out_of_range, refuse

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


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """The shared model, trained further at the external site with the labels of its training patients, by the optimizer
    of the method's work: clients that were not in training (Luo et al., PGFed, ICCV 2023: 20 epochs). If a `route` has
    such a line, all its lines are adapted to and scored on the site's test patients only.

    lr: null = that of the method's work. trainable: as in `federation.finetuning.Tuning`.
    """

    __pydantic_config__: ClassVar = FORBID

    name: Literal["fine_tuned"] = "fine_tuned"
    epochs: int = 20
    lr: float | None = None
    trainable: Literal["all", "head"] = "all"

    def __post_init__(self) -> None:
        self.tuning()

    def tuning(self) -> Tuning:
        """These settings as `federation.finetuning.Tuning`. Raises: ValueError: a number is out of range."""
        return Tuning(epochs=self.epochs, lr=self.lr, trainable=self.trainable)


@dataclass(frozen=True, kw_only=True)
class Matched:
    """The shared model, whose norms' channels get the moments here that they have on the training hospitals' images
    (`federation.matching`). The moments are the mean of the hospitals', by their numbers of patients.

    release: how each training hospital releases its moments; exact = without noise and with no guarantee, dp = with
    noise for epsilon and delta, spent once on its training patients for each such line. norms: how many of the first
    ones; null = all. Fewer hold fewer numbers, which get less noise.
    """

    __pydantic_config__: ClassVar = FORBID

    name: Literal["matched"] = "matched"
    release: Literal["exact", "dp"] = "exact"
    epsilon: float = 1.0
    delta: float = 1e-5
    norms: int | None = None

    def __post_init__(self) -> None:
        refuse(out_of_range(self, epsilon=(1e-3, 1e3), delta=(1e-15, MOST_DELTA), norms=(1, 1000)))

    @property
    def noise(self) -> float | None:
        """The noise multiplier that spends epsilon and delta on one release; None without noise."""
        if self.release == "exact":
            return None
        from privacy.dp.accounting import mu_of  # an accountant takes seconds to import

        return 1.0 / mu_of(self.epsilon, self.delta)


How: TypeAlias = Annotated[
    AsTrained | Average | OfAll | Tent | TestTimeTraining | Routing | FineTuned | Matched, Field(discriminator="name")
]
NEEDS: Mapping[str, tuple[str, ...]] = {
    "as_trained": (SHARED,),
    "average": (PERSONAL,),
    "ensemble": (PERSONAL,),
    "tent": (SHARED,),
    "ttt": (SHARED,),
    "routing": (PERSONAL, SHARED),
    "fine_tuned": (SHARED,),
    "matched": (SHARED,),
}
"""The models that a way needs: of the method with one shared model, or of the method with one model per site."""
ON_PATCHES = tuple(name for name in NEEDS if name != "ttt")
"""Ways that can use models that are trained on patches."""


def find_patch_problem(how: How) -> str:
    """Why a way cannot use models that are trained on patches; empty = it can. A way that looks at images
    then sees the windows that cover them, each as an image of its own.
    """
    if how.name not in ON_PATCHES:
        return f"{how.name} looks at whole images; say {' or '.join(ON_PATCHES)}"
    if getattr(how, "mode", "all") == "online":
        return f"{how.name} online predicts each image in one piece before its step; say mode: all"
    return ""


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

    The global model of IOP-FL is that of FedAvg with the same weights: name both methods.
    """

    __pydantic_config__: ClassVar = FORBID

    shared: str
    personal: str
    lines: Mapping[str, Line] = field(default_factory=lambda: {"routing": Line(how=Routing())})

    def __post_init__(self) -> None:
        refuse(label_problems(self.lines, "lines"))

    @property
    def scored_patients(self) -> Literal["all", "test"]:
        """Which patients of an external site are scored: all, unless a line trains on some of them."""
        return "test" if any(line.how.name == "fine_tuned" for line in self.lines.values()) else "all"

    @property
    def noises(self) -> tuple[float, ...]:
        """The noise multipliers with which training hospitals release moments of channels, one for each line."""
        each = [line.how.noise for line in self.lines.values() if isinstance(line.how, Matched)]
        return tuple(noise for noise in each if noise is not None)

    @property
    def releases_noised(self) -> bool:
        """Whether training hospitals release something with noise for a line."""
        return any(isinstance(line.how, Matched) and line.how.release == "dp" for line in self.lines.values())

    def methods(self, line: Line) -> dict[str, str]:
        """The models that a line needs (`shared`, `personal`) -> the label of the method that they are of."""
        labels = {SHARED: line.shared or self.shared, PERSONAL: line.personal or self.personal}
        return {part: labels[part] for part in NEEDS[line.how.name]}
