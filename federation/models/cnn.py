"""A small convolutional network, which two CPU cores can train in minutes."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from federation.task import Output, label_loss
from privacy.settings_error import refuse, unmet

Norm: TypeAlias = Literal["batch", "group"]


@dataclass(frozen=True, kw_only=True)
class Cnn:
    """Convolution, norm, ReLU and 2x2 pooling per width; then average and maximum over all places, and a linear head.

    norm: `group` has no running statistics, so it can be trained privately and averages cleanly; `batch` learns faster
    on few images.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["cnn"] = "cnn"
    widths: tuple[int, ...] = (16, 24, 32, 48)
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        good = len(self.widths) >= 2 and all(width >= 8 and width % 8 == 0 for width in self.widths)
        refuse(unmet(self, widths=(good, "at least two multiples of 8")))

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (C, H, W) or volumes (C, D, H, W) whose sides are at least 2^len(widths)."""
        return CnnModule(inputs, classes, self.widths, self.norm)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example."""
        return label_loss(output, y)


class CnnModule(nn.Module):
    """See `Cnn`. Input (b, C, H, W) or (b, C, D, H, W), Output features (b, 2 * widths[-1])."""

    def __init__(self, inputs: tuple[int, ...], classes: int, widths: tuple[int, ...], norm: Norm) -> None:
        super().__init__()
        spatial = len(inputs) - 1
        self.stem = build_conv_pool(inputs[0], widths[0], norm, spatial)
        self.blocks = nn.ModuleList(build_conv_pool(a, b, norm, spatial) for a, b in itertools.pairwise(widths))
        self.head = nn.Linear(2 * widths[-1], classes)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        features = torch.cat([h.flatten(2).mean(dim=2), h.flatten(2).amax(dim=2)], dim=1)
        return Output(self.head(features), features)


def build_conv_pool(inputs: int, outputs: int, norm: Norm, spatial: int = 2) -> nn.Sequential:
    """3x3 convolution, norm, ReLU, 2x2 maximum: (b, inputs, h, w) -> (b, outputs, h/2, w/2); likewise for volumes."""
    pool = nn.MaxPool3d(2) if spatial == 3 else nn.MaxPool2d(2)
    return nn.Sequential(build_convolution(inputs, outputs, norm, spatial, bias=norm == "group"), pool)


def build_convolution(inputs: int, outputs: int, norm: Norm, spatial: int = 2, *, bias: bool) -> nn.Sequential:
    """3x3 convolution, norm (`group` has 8 groups) and ReLU: (b, inputs, h, w) -> (b, outputs, h, w).

    Names and numbers are those of MONAI's `Convolution`, which takes two seconds to import.
    """
    conv = (nn.Conv3d if spatial == 3 else nn.Conv2d)(inputs, outputs, kernel_size=3, padding=1, bias=bias)
    batch = nn.BatchNorm3d if spatial == 3 else nn.BatchNorm2d
    normed = nn.GroupNorm(8, outputs) if norm == "group" else batch(outputs)
    return nn.Sequential(OrderedDict(conv=conv, adn=nn.Sequential(OrderedDict(N=normed, A=nn.ReLU()))))
