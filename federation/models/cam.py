"""VAFL's classifier with class activation maps.

Yan, Wicaksana, Wang, Yang, Cheng: Variation-Aware Federated Learning with Multi-Source Decentralized Medical Image
Data, IEEE JBHI 2021, section III.B, equations 8 and 9. Its figure 6 (the network) is described in Wicaksana et al.
(CusFL), section IV.C: four convolution-pooling blocks, two residual blocks, fully connected heads.

What the papers leave open, and how it is read here. The two heads are 1x1 convolutions to one map per class: head 1
takes the mean of its maps as logits, head 2 their maximum, so that what is drawn is what decides. CAM_c is the ReLU of
the mean of both heads' maps of class c, divided by the larger of the two classes' maxima (dividing each map by its own
maximum would make an empty map impossible). The union is the maximum, |.| the mean over pixels (a sum would weigh by
image size).
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from math import log
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.models.cnn import Norm, conv_pool, convolution
from federation.task import Output, cross_entropy
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Cam:
    """VAFL's CAM classifier. head_weight: 0.1 in eq. 8; map_weight: 1 in eq. 8."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["cam"] = "cam"
    widths: tuple[int, int, int, int] = (16, 24, 32, 48)
    norm: Norm = "batch"
    head_weight: float = 0.1
    map_weight: float = 1.0

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                head_weight=(self.head_weight >= 0, ">= 0"),
                map_weight=(self.map_weight >= 0, ">= 0"),
                widths=(all(width >= 8 and width % 8 == 0 for width in self.widths), "four multiples of 8"),
            )
        )

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (C, H, W) whose sides are at least 16."""
        return CamModule(inputs, classes, self.widths, self.norm)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Equation 8, per example (b,)."""
        if output.maps is None:
            raise ValueError("the CAM loss needs the network's maps, found none: use the network that Cam builds")
        one, two = head_logits(output.maps)
        heads = functional.cross_entropy(one, y, reduction="none") + functional.cross_entropy(two, y, reduction="none")
        return cross_entropy(output, y) + self.head_weight * heads + self.map_weight * map_loss(output.maps, y)


class Residual(nn.Module):
    """A residual block of two convolutions, (b, width, h, w): MONAI's `ResidualUnit`, by name and number."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        units = {f"unit{place}": convolution(width, width, norm, bias=True) for place in range(2)}
        self.conv = nn.Sequential(OrderedDict(units))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x)
        return h + x


class CamModule(nn.Module):
    """See `Cam`. Input (b, C, H, W); maps (b, 2 heads, classes, H/16, W/16); logits are log((p1 + p2) / 2)."""

    def __init__(self, inputs: tuple[int, ...], classes: int, widths: tuple[int, ...], norm: Norm) -> None:
        super().__init__()
        w = widths
        self.stem = conv_pool(inputs[0], w[0], norm)
        pools = [conv_pool(a, b, norm) for a, b in itertools.pairwise(w)]
        residuals = [Residual(w[-1], norm) for _ in range(2)]
        self.blocks = nn.ModuleList([*pools, *residuals])
        self.head = nn.Conv2d(w[-1], 2 * classes, kernel_size=1)
        self.classes = classes

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        maps = self.head(h).unflatten(1, (2, self.classes))
        one, two = head_logits(maps)
        logits = torch.logaddexp(one.log_softmax(dim=1), two.log_softmax(dim=1)) - log(2)
        return Output(logits, h.mean(dim=(2, 3)), maps)


def head_logits(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (b, classes) of head 1 (mean of its maps) and head 2 (their maximum), from maps (b, 2, classes, h, w)."""
    return maps[:, 0].mean(dim=(2, 3)), maps[:, 1].amax(dim=(2, 3))


def activation_maps(maps: Tensor) -> Tensor:
    """CAM_c in [0, 1], (b, classes, h, w): the largest value over both classes is 1, unless all are zero."""
    cams = functional.relu(maps.mean(dim=1))
    return cams / cams.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-6)


def local_probabilities(maps: Tensor) -> Tensor:
    """Class probabilities of the maps at each place: softmax over classes of the mean of both heads' maps, (b, classes,
    h, w).

    For pictures. Equation 9 rewards empty CAMs, and a network that decides by negative evidence alone reaches them, so
    the normalized CAMs of a trained network are often blank; the difference between its classes' maps is not.
    """
    return maps.mean(dim=1).softmax(dim=1)


def map_loss(maps: Tensor, y: Tensor) -> Tensor:
    """Equation 9, per example: |CAM_0 u CAM_1| and the maps of the classes that are not y."""
    cams = activation_maps(maps)
    union = cams.amax(dim=1).mean(dim=(1, 2))
    wrong = (torch.arange(cams.shape[1], device=y.device) != y[:, None]).to(cams.dtype)
    return union + (wrong * cams.mean(dim=(2, 3))).sum(dim=1)
