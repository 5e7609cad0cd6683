"""A U-Net: predicts a class for each pixel or voxel.

Ronneberger, Fischer, Brox: U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015, figure 1.
Blocks are MONAI's (those of its BasicUNet). Differences from the figure: convolutions are padded, so that a mask
is as large as its image, and normalized.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import gcd
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.models.cnn import Norm
from federation.task import Kind, Output, overlap_loss
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class UNet:
    """width: channels at full resolution, doubled by each of `levels` halvings. dropout: after every norm.

    norm: `group` has no running statistics, so it can be trained privately and averages cleanly; 8 groups, or fewer, so
    that none is a single channel (whose mean a bias before it could not move).
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    kind: ClassVar[Kind] = "segmentation"

    name: Literal["unet"] = "unet"
    width: int = 8
    levels: int = 4
    norm: Norm = "batch"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                width=(self.width >= 4 and self.width % 4 == 0, "a multiple of 4"),
                levels=(1 <= self.levels <= 8, "in [1, 8]"),
                dropout=(0 <= self.dropout < 1, "in [0, 1)"),
            )
        )

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (C, H, W) or volumes (C, D, H, W).

        Raises:
            ValueError: another number of axes, or a side that cannot be halved `levels` times.
        """
        sides, step = inputs[1:], 2**self.levels
        if len(sides) not in (2, 3):
            raise ValueError(f"unet needs images (C, H, W) or volumes (C, D, H, W), found shape {list(inputs)}")
        if any(side < 1 or side % step for side in sides):
            raise ValueError(
                f"unet with levels {self.levels} needs sides divisible by 2^{self.levels} = {step}, found "
                f"{list(sides)}: change images.size, or model.levels"
            )
        return UNetModule(inputs, classes, self)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Soft Dice loss plus cross-entropy, per example: see `overlap_loss`."""
        return overlap_loss(output, y)


class UNetModule(nn.Module):
    """See `UNet`. Input (b, C, H, W) or (b, C, D, H, W); `blocks` are the downward path, then the upward path.

    Output: logits (b, classes, *spatial), features (b, width, *spatial), which are the head's input.
    """

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, inputs: tuple[int, ...], classes: int, settings: UNet) -> None:
        from monai.networks.nets.basic_unet import Down, TwoConv, UpCat  # MONAI takes seconds to import

        super().__init__()
        spatial, dropout = len(inputs) - 1, settings.dropout
        widths = [settings.width * 2**level for level in range(settings.levels + 1)]
        bias = settings.norm == "group"

        def norm_settings(width: int) -> str | tuple[str, dict[str, int]]:
            return ("group", {"num_groups": gcd(8, width // 2)}) if settings.norm == "group" else "batch"

        steps = list(itertools.pairwise(widths))
        self.stem = TwoConv(spatial, inputs[0], widths[0], "relu", norm_settings(widths[0]), bias, dropout)
        downs = [Down(spatial, high, low, "relu", norm_settings(low), bias, dropout) for high, low in steps]
        ups = [
            UpCat(spatial, low, high, high, "relu", norm_settings(high), bias, dropout, is_pad=False)
            for high, low in reversed(steps)
        ]
        self.blocks = nn.ModuleList([*downs, *ups])
        self.levels = settings.levels
        self.head = (nn.Conv3d if spatial == 3 else nn.Conv2d)(widths[0], classes, kernel_size=1)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        skips: list[Tensor] = []
        for place, block in enumerate(self.blocks):  # a method may remove the last blocks
            if place < self.levels:
                skips.append(h)
                h = block(h)
            else:
                h = block(h, skips.pop())
        return Output(self.head(h), h)
