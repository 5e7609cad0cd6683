"""Test-time routing, the loss: an unsupervised loss of a network's predictions on unlabelled images.

Jiang, Yang, Cheng, Dou: IOP-FL, IEEE Transactions on Medical Imaging 2023, equations 7 to 10: consistency under noise,
and beta times shape and entropy, of softmax probabilities, for each image alone. Equation 7 is a mean over pixels,
equation 9's shape a sum, and its entropy is that of one pixel. The radius of the shape term is not given (code: 10 at
384 pixels). That term assumes that a class is surrounded by itself, which suits elliptical organs and may be wrong for
others (section V): it can be switched off.

variant means: all three are means over pixels. variant paper: shape is the sum as printed, 9,216 times as much at
96 x 96 pixels, where with beta = .01 it outweighs consistency a hundredfold; entropy is a mean, as equation 7 is.

If an image has one label, probabilities are of the whole image: consistency and entropy stay, shape is left out.

variant official: 10 entropy + .1 consistency + 1e-6 shape as in the released code, where consistency is a mean over
classes too, entropy (to the base of the number of classes) a sum over the batch and a mean over classes and pixels, and
shape the Euclidean norm of the foreground's differences in the batch. Its flips and turns of the noisy image, which the
paper does not have, are left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from privacy.settings_error import refuse, unmet

Variant: TypeAlias = Literal["means", "paper", "official"]
Term: TypeAlias = Literal["consistency", "shape", "entropy"]


class ImageLosses(NamedTuple):
    """losses: of each image (b,); logits: (b, classes, *spatial) of the images without noise."""

    losses: Tensor
    logits: Tensor


@dataclass(frozen=True, kw_only=True)
class Unsupervised:
    """Equation 10. noise: standard deviation, for images normalized to mean 0 and variance 1. radius: in pixels.

    A window larger than the image is reduced until it fits. terms: which of the three are used.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    beta: float = 0.01
    noise: float = 0.5
    radius: int = 10
    terms: tuple[Term, ...] = ("consistency", "shape", "entropy")
    variant: Variant = "means"

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                beta=(self.beta >= 0, ">= 0"),
                noise=(self.noise > 0, "> 0"),
                radius=(self.radius >= 1, ">= 1"),
                terms=(0 < len(set(self.terms)) == len(self.terms), "different, and at least one"),
            )
        )

    def __call__(self, module: nn.Module, x: Tensor, generator: torch.Generator) -> ImageLosses:
        """The loss of each image x (b, C, *spatial); the noise comes from `generator`, on the CPU."""
        logits: Tensor = module(x).logits
        p = logits.softmax(dim=1)
        values: dict[Term, Tensor] = {}
        if "consistency" in self.terms:
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
            values["consistency"] = consistency(p, module(x + self.noise * noise).logits.softmax(dim=1))
        if "shape" in self.terms and p.dim() > 2:
            values["shape"] = self._shape(p)
        if "entropy" in self.terms:
            values["entropy"] = entropy(logits)
        if not values:
            raise ValueError("terms: shape alone is no loss where an image has one label: add consistency or entropy")
        weights = self._weights(p)
        return ImageLosses(torch.stack([weights[term] * value for term, value in values.items()]).sum(dim=0), logits)

    def _weights(self, p: Tensor) -> dict[Term, float]:
        if self.variant != "official":
            places = p.shape[2:].numel() if self.variant == "paper" else 1
            return {"consistency": 1.0, "shape": self.beta * places, "entropy": self.beta}
        b, classes = p.shape[:2]
        return {"consistency": 0.1 / classes, "shape": 1e-6, "entropy": 10.0 * b / (classes * math.log(classes))}

    def _shape(self, p: Tensor) -> Tensor:
        if self.variant != "official":
            return shape(p, self.radius)
        norm: Tensor = torch.linalg.vector_norm(spread(p[:, 1:], self.radius))
        return norm.expand(len(p))


def consistency(p: Tensor, noisy: Tensor) -> Tensor:
    """Equation 7: squared distance of two probability maps (b, C, *spatial), mean over pixels, per image (b,)."""
    return _mean_over_places((p - noisy).square().sum(dim=1))


def shape(p: Tensor, radius: int) -> Tensor:
    """Equations 8 and 9: range of a class's probability around a pixel, summed over classes, mean over pixels, per
    image (b,).
    """
    return _mean_over_places(spread(p, radius).sum(dim=1))


def entropy(logits: Tensor) -> Tensor:
    """Equation 9: entropy of the softmax of logits (b, C, *spatial) in nats, mean over pixels, per image (b,)."""
    log = logits.log_softmax(dim=1)
    return _mean_over_places(-(log.exp() * log).sum(dim=1))


def spread(p: Tensor, radius: int) -> Tensor:
    """Largest minus smallest value of p (b, C, *spatial) in a window of side 2 radius + 1 around each place.

    Windows end at the image's border; along a short axis the radius is at most (side - 1) / 2.
    """
    return _window_maximum(p, radius) + _window_maximum(-p, radius)


def _window_maximum(p: Tensor, radius: int) -> Tensor:
    """Maximum over windows, one axis after the other: the same as over the whole window, with far fewer comparisons."""
    sides = p.shape[2:]
    pool = functional.max_pool3d if len(sides) == 3 else functional.max_pool2d
    for axis, side in enumerate(sides):
        around = [min(radius, (side - 1) // 2) if k == axis else 0 for k in range(len(sides))]
        p = pool(p, kernel_size=[2 * r + 1 for r in around], stride=1, padding=around)
    return p


def _mean_over_places(values: Tensor) -> Tensor:
    """(b, *spatial) -> (b,); (b,) is returned as it is."""
    return values.flatten(1).mean(dim=1) if values.dim() > 1 else values
