"""VAFL's classifier with class activation maps.

Yan, Wicaksana, Wang, Yang, Cheng: Variation-Aware Federated Learning with Multi-Source Decentralized Medical Image
Data, IEEE JBHI 2021, section III.B, equations 8 and 9. Its figure 6 (the network) is described in Wicaksana et al.
(CusFL), section IV.C: four convolution-pooling blocks, two residual blocks, fully connected heads.

What the papers leave open, and our readings. The two heads are 1x1 convolutions to one map per class: head 1 takes the
mean of its maps as logits, head 2 their maximum, so that the drawn maps decide. M_c is the mean of both heads' maps of
class c, |.| the mean over pixels (a sum would weigh by image size), and the union is the maximum. `normalized`, `first`
and `index` are the readings of the rest, `stride` the size of the maps; the defaults follow the printed equation, with
maps that may be empty. docs/results/maps.md compares them.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from math import log, log2
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.models.cnn import Norm, build_conv_pool, build_convolution
from federation.models.maps import Normalized, normalized_maps
from federation.task import Output, cross_entropy
from privacy.settings_error import refuse, unmet

First: TypeAlias = Literal["union", "intersection"]
Index: TypeAlias = Literal["class", "other"]


@dataclass(frozen=True, kw_only=True)
class Cam:
    """VAFL's CAM classifier. head_weight: 0.1 in eq. 8; map_weight: 1 in eq. 8.

    normalized: CAM_c of M_c, see `normalized_maps`. first: the first term of eq. 9, |CAM_0 u CAM_1| or |CAM_0 n CAM_1|.
    index: `class`: CAM_c is the map of class c, so that y |CAM_0| + (1 - y) |CAM_1| is the map of the wrong class;
    `other`: CAM_c is the map of class 1 - c, so that it is the map of the right class, which then gets small. stride:
    pixels from one value of a map to the next; 16 has a pooling after each of the four convolutions, as in the paper, 8
    and 4 leave out the last ones.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    needs_maps: ClassVar = True

    name: Literal["cam"] = "cam"
    widths: tuple[int, int, int, int] = (16, 24, 32, 48)
    norm: Norm = "batch"
    head_weight: float = 0.1
    map_weight: float = 1.0
    normalized: Normalized = "joint"
    first: First = "union"
    index: Index = "class"
    stride: Literal[4, 8, 16] = 16

    def __post_init__(self) -> None:
        fits = len(self.widths) == 4 and all(width >= 8 and width % 8 == 0 for width in self.widths)
        refuse(
            unmet(
                self,
                head_weight=(self.head_weight >= 0, ">= 0"),
                map_weight=(self.map_weight >= 0, ">= 0"),
                widths=(fits, "four multiples of 8"),
            )
        )

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (C, H, W) whose sides are at least 16."""
        return CamModule(inputs, classes, self.widths, self.norm, self.stride)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Equation 8, per example (b,)."""
        if output.maps is None:
            raise ValueError("the CAM loss needs the network's maps, found none: use the network that Cam builds")
        mean_logits, maximum_logits = head_logits(output.maps)
        heads = functional.cross_entropy(mean_logits, y, reduction="none") + functional.cross_entropy(
            maximum_logits, y, reduction="none"
        )
        maps = map_loss(output.maps, y, self.normalized, self.first, self.index)
        return cross_entropy(output, y) + self.head_weight * heads + self.map_weight * maps


class Residual(nn.Module):
    """A residual block of two convolutions, (b, width, h, w): MONAI's `ResidualUnit`, by name and number."""

    def __init__(self, width: int, norm: Norm) -> None:
        super().__init__()
        units = {f"unit{place}": build_convolution(width, width, norm, bias=True) for place in range(2)}
        self.conv = nn.Sequential(OrderedDict(units))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x)
        return h + x


class CamModule(nn.Module):
    """See `Cam`. Input (b, C, H, W); maps (b, 2 heads, classes, H/stride, W/stride); logits are log((p1 + p2) / 2)."""

    def __init__(
        self, inputs: tuple[int, ...], classes: int, widths: tuple[int, ...], norm: Norm, stride: int = 16
    ) -> None:
        super().__init__()
        w = widths
        self.stem = build_conv_pool(inputs[0], w[0], norm)
        pools = [build_conv_pool(a, b, norm) for a, b in itertools.pairwise(w)]
        for block in pools[int(log2(stride)) - 1 :]:
            block[1] = nn.Identity()
        residuals = [Residual(w[-1], norm) for _ in range(2)]
        self.blocks = nn.ModuleList([*pools, *residuals])
        self.head = nn.Conv2d(w[-1], 2 * classes, kernel_size=1)
        self.classes = classes

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        maps = self.head(h).unflatten(1, (2, self.classes))
        mean_logits, maximum_logits = head_logits(maps)
        logits = torch.logaddexp(mean_logits.log_softmax(dim=1), maximum_logits.log_softmax(dim=1)) - log(2)
        return Output(logits, h.mean(dim=(2, 3)), maps)


def head_logits(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (b, classes) of head 1 (mean of its maps) and head 2 (their maximum), from maps (b, 2, classes, h, w)."""
    return maps[:, 0].mean(dim=(2, 3)), maps[:, 1].amax(dim=(2, 3))


def map_loss(
    maps: Tensor, y: Tensor, normalized: Normalized = "joint", first: First = "union", index: Index = "class"
) -> Tensor:
    """Equation 9, per example: |CAM_0 u CAM_1| and the maps of the classes that are not y. See `Cam`."""
    cams = normalized_maps(maps, normalized)
    both = (cams.amax(dim=1) if first == "union" else cams.amin(dim=1)).mean(dim=(1, 2))
    class_numbers = torch.arange(cams.shape[1], device=y.device)
    punished = ((class_numbers != y[:, None]) if index == "class" else (class_numbers == y[:, None])).to(cams.dtype)
    return both + (punished * cams.mean(dim=(2, 3))).sum(dim=1)
