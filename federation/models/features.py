"""A network on fixed features of an image: `{name: features, of: {name: colour}, public: skin_lesion}`.

A hospital computes the features of each of its images once, and they are the input of networks in place of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.features import AnyExtractor
from federation.models.mlp import MlpModule
from federation.task import Output, label_loss
from privacy.settings_error import out_of_range, refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Features:
    """of: the extractor of features. public: the prior whose synthetic pictures set the scale; pictures: how many.
    components, softness: see `federation.features.whitening`. fourier: the number of random Fourier features of the
    components, which replace these, and bandwidth of their kernel; 0 = the components themselves. hidden: widths of the
    hidden layers of the network on the features; without any it is a linear model.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["features"] = "features"
    of: AnyExtractor
    public: str
    pictures: int = 1200
    components: int = 32
    softness: float = 1.0
    fourier: int = 0
    bandwidth: float = 2.0
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        problems = out_of_range(
            self,
            pictures=(16, 100_000),
            components=(1, 4096),
            softness=(0.0, 1e6),
            fourier=(0, 4096),
            bandwidth=(1e-3, 1e3),
        )
        fits = self.components <= self.pictures
        refuse(
            problems
            + unmet(
                self,
                components=(fits, f"at most the number of pictures, {self.pictures}"),
                hidden=(all(width >= 1 for width in self.hidden), "positive widths"),
            )
        )

    @property
    def width(self) -> int:
        """The number of inputs of the network for an image."""
        return self.fourier or self.components

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for features (width,)."""
        return MlpModule(prod(inputs), classes, self.hidden, 0.0)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example."""
        return label_loss(output, y)
