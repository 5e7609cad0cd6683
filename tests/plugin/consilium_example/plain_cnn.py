"""Convolutions and nothing else: a network with the parts that methods ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.task import Output, cross_entropy
from privacy.settings_error import out_of_range, refuse


@dataclass(frozen=True, kw_only=True)
class PlainCnn:
    """width: of each layer. depth: layers after the first."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["plain_cnn"] = "plain_cnn"
    width: int = 8
    depth: int = 1

    def __post_init__(self) -> None:
        refuse(out_of_range(self, width=(1, 512), depth=(1, 20)))

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        if len(inputs) != 3:
            raise ValueError(f"plain_cnn is for images (C, H, W), found {inputs}; choose another network")
        return PlainCnnModule(inputs[0], classes, self)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        return cross_entropy(output, y)


class PlainCnnModule(nn.Module):
    """Parts `stem`, `blocks.k` and `head`; features are the means over the image."""

    def __init__(self, channels: int, classes: int, settings: PlainCnn) -> None:
        super().__init__()
        width = settings.width
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU()) for _ in range(settings.depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        features = h.flatten(2).mean(dim=2)
        return Output(self.head(features), features)
