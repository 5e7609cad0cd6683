"""ResNet-18, as CusFL uses it for skin lesions (section IV.C): He, Zhang, Ren, Sun, Deep Residual Learning for Image
Recognition, CVPR 2016, table 1. Layers are MONAI's; weights are not pretrained (the paper does not say whether its own
were).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.models.cnn import Norm
from federation.task import Output, label_loss
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class ResNet18:
    """Four stages of two residual blocks. width: channels of the first stage (64 in the paper), doubled by each next.

    small: a first convolution of 3x3 without stride and pooling, for pictures of 32 to 64 pixels; without it 7x7 with
    stride 2 and 3x3 pooling, which leave a 32-pixel picture 1x1.
    norm: `group` (8 groups) has no running statistics, so it can be trained privately.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["resnet18"] = "resnet18"
    width: int = 64
    small: bool = False
    norm: Norm = "batch"

    def __post_init__(self) -> None:
        refuse(unmet(self, width=(self.width >= 8 and self.width % 8 == 0, "a multiple of 8")))

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (C, H, W) or volumes (C, D, H, W)."""
        return ResNet18Module(inputs, classes, self)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example."""
        return label_loss(output, y)


class ResNet18Module(nn.Module):
    """See `ResNet18`. Input (b, C, H, W); `blocks.k` is stage k + 1; features (b, 8 width) are means over places."""

    def __init__(self, inputs: tuple[int, ...], classes: int, settings: ResNet18) -> None:
        from monai.networks.blocks import Convolution  # MONAI takes seconds to import
        from monai.networks.nets.resnet import ResNetBlock

        super().__init__()
        spatial, act = len(inputs) - 1, ("relu", {"inplace": False})  # in place, per-patient gradients would be wrong
        kind = ("group", {"num_groups": 8}) if settings.norm == "group" else "batch"
        widths = [settings.width * 2**build_stage for build_stage in range(4)]
        side, stride = (3, 1) if settings.small else (7, 2)
        first = [
            Convolution(
                spatial, inputs[0], widths[0], kernel_size=side, strides=stride, norm=kind, act=act,
                adn_ordering="NA", bias=False,
            )
        ]  # fmt: skip
        pool = nn.MaxPool3d if spatial == 3 else nn.MaxPool2d
        self.stem = nn.Sequential(*first, *([] if settings.small else [pool(3, stride=2, padding=1)]))

        def build_stage(before: int, width: int, stride: int) -> nn.Sequential:
            shortcut = None
            if before != width:
                shortcut = Convolution(
                    spatial, before, width, kernel_size=1, strides=stride, padding=0, norm=kind, act=None,
                    adn_ordering="N", bias=False,
                )  # fmt: skip
            first_block = ResNetBlock(before, width, spatial, stride, downsample=shortcut, act=act, norm=kind)
            return nn.Sequential(first_block, ResNetBlock(width, width, spatial, act=act, norm=kind))

        self.blocks = nn.ModuleList(
            build_stage(before, width, 1 if before == width else 2)
            for before, width in zip([widths[0], *widths], widths, strict=False)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        features = h.flatten(2).mean(dim=2)
        return Output(self.head(features), features)
