"""A multi-layer perceptron for tables; with no hidden layer it is logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.task import Output, cross_entropy


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Linear layers with ReLU and dropout between; `hidden: []` is logistic regression."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["mlp"] = "mlp"
    hidden: tuple[int, ...] = (10,)
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if any(width < 1 for width in self.hidden):
            raise ValueError(f"model.hidden must be positive widths, found {list(self.hidden)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), found {self.dropout}")

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for examples of any shape; they are flattened."""
        return MlpModule(prod(inputs), classes, self.hidden, self.dropout)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, per example."""
        return cross_entropy(output, y)


class MlpModule(nn.Module):
    """See `Mlp`. Features are the last hidden layer (b, hidden[-1]), or the input where there is none."""

    def __init__(self, inputs: int, classes: int, hidden: tuple[int, ...], dropout: float) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        layers = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in zip(widths, hidden, strict=False)
        ]
        self.stem = layers[0] if layers else nn.Identity()
        self.blocks = nn.ModuleList(layers[1:])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        return Output(self.head(h), h)
