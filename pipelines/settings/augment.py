"""Settings of generative augmentation: synthetic images that join a hospital's training split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from federation.features.inception import Inception
from harmonize.fitted_prior import FittedPrior
from harmonize.scale import Scale
from pipelines.loader.names import is_name
from pipelines.settings.harmonization import RAW, AnyShared, select_prior
from privacy.settings_error import Problem, out_of_range, refuse

FORBID: dict[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Augment:
    """synthesis: how each hospital imitates its training images, or pictures of a prior in their place; no synthetic
    image leaves the hospital. until: balanced = as many synthetic images of the smaller class as the larger has more.
    balanced_at: the share of the larger class from which a hospital counts as balanced and gets none. space: the name
    of these images, for `train.method_images`. copies: non-rigidly deformed copies of each image, from which networks
    learn.
    near_copies: the largest share of synthetic images that may be near copies of training images; beyond it they are
    not used; null = any. scale: the values of images that become -1 and 1 for networks; null = by the kind of images.
    fid: Inception's weights, brought by you, for distances; null = features of a public prior.
    """

    __pydantic_config__: ClassVar = FORBID

    synthesis: AnyShared = FittedPrior()
    until: Literal["balanced"] = "balanced"
    balanced_at: float = 0.75
    space: str = "augmented"
    copies: int = 4
    near_copies: float | None = 0.05
    scale: Scale | None = None
    fid: Inception | None = None

    def __post_init__(self) -> None:
        problems = out_of_range(self, balanced_at=(0.0, 1.0), copies=(1, 64), near_copies=(0.0, 1.0))
        if self.space == RAW or not is_name(self.space):
            text = f"must be made of a-z 0-9 _ - (at most 80), and {RAW} is taken; found {self.space!r}"
            problems.append(Problem(("space",), text))
        refuse(problems)

    def public_prior(self, images: object) -> str:
        """The prior that gives the features for distances between real and synthetic images."""
        return select_prior(self.synthesis, images)
