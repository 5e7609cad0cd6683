"""Settings of harmonization: how the target hospital is chosen, what it shares, and the image spaces.

An image space names the images of all hospitals after one kind of translation. `train.method_images` chooses the space
in which a method trains; the default is the images as they were read (`raw`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from harmonize.complexity import Score
from harmonize.fitted_prior import FittedPrior
from harmonize.prior import PriorName
from harmonize.sampling import Sampling
from harmonize.scale import Scale
from harmonize.synthesis import AnySynthesis
from harmonize.translation import TRANSLATORS, Translators
from harmonize.veto import Limits
from privacy.settings_error import Problem, out_of_range, refuse

FORBID: dict[str, Any] = {"extra": "forbid"}
RAW = "raw"
"""The space of images as they were read, which always exists."""


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """The same simulated patients, imaged by the target's scanner: the perfect translation."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["oracle"] = "oracle"
    learns: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The raw export of a phantom's scanner, with window and tone curve: grey values, not ADC."""

    __pydantic_config__: ClassVar = FORBID

    name: Literal["exported"] = "exported"
    learns: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Public:
    """Pictures of a public prior instead of images that imitate a hospital's: no hospital shares images, and no patient
    influences them. prior: null = by the kind of images.
    """

    __pydantic_config__: ClassVar = FORBID
    private: ClassVar[bool] = False

    name: Literal["public"] = "public"
    prior: PriorName | None = None


AnyShared: TypeAlias = Annotated[AnySynthesis | Public, Field(discriminator="name")]
"""How hospitals synthesize the images that they share, or the public pictures that are used instead."""
Simulated: TypeAlias = Oracle | Exported
"""Spaces that only phantom hospitals can make."""
AnySpace: TypeAlias = Annotated[Translators | Simulated, TRANSLATORS]


@dataclass(frozen=True, kw_only=True)
class Harmonize:
    """scale: the values of images that become -1 and 1 for the networks; null = by the kind of images. score: how the
    target is chosen. synthesis: how images like the target's are synthesized. sampling: which are shared. shared:
    the number of shared images of each class. copies: non-rigidly deformed copies of each image, from which networks
    learn.
    translate: space -> translator. veto: limits beyond which a hospital does not use its translation.
    """

    __pydantic_config__: ClassVar = FORBID

    scale: Scale | None = None
    score: Score = Score()
    synthesis: AnyShared = FittedPrior()
    sampling: Sampling = Sampling()
    shared: int = 100
    copies: int = 4
    translate: Mapping[str, AnySpace] = field(default_factory=dict)
    veto: Limits = Limits()

    def __post_init__(self) -> None:
        problems = out_of_range(self, shared=(8, 2000), copies=(1, 64))
        if RAW in self.translate:
            text = f"{RAW} is the space of images as they were read; give this one another name"
            problems.append(Problem(("translate",), text))
        refuse(problems)

    def public_prior(self, images: object) -> str:
        """The prior of public images for the score: that of the synthesis, or the default of the kind of images."""
        return select_prior(self.synthesis, images)


def select_prior(how: AnyShared, images: object) -> str:
    """The prior that a synthesis names, or the default of the kind of images."""
    prior_name = getattr(how, "prior", None)
    if getattr(images, "kind", "") == "pictures":
        return str(prior_name or "skin_lesion")
    return str(prior_name or ("prostate_adc" if getattr(images, "values", "adc") == "adc" else "prostate_t2w"))


def default_scale(images: object) -> Scale:
    """The default values that become -1 and 1: ADC from 0 to 3.5e-3 mm²/s; pictures as they are; four standard
    deviations of standardized studies.
    """
    if getattr(images, "kind", "") == "pictures":
        return Scale(low=-1.0, high=1.0)
    if getattr(images, "values", "") == "adc":
        return Scale(low=0.0, high=3.5)
    return Scale(low=-4.0, high=4.0)
