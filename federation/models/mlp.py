"""A multi-layer perceptron for tables; with no hidden layer it is logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from federation.task import Output, label_loss
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Linear layers with ReLU and dropout between; `hidden: []` is logistic regression.

    logits: `all` = one for each class; `one` = a single one, compared with 0 for class 0, as often in binary models:
    the same family of functions with half the parameters in the head, and different optimizer steps.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    numbers: ClassVar = True

    name: Literal["mlp"] = "mlp"
    hidden: tuple[int, ...] = (10,)
    dropout: float = 0.0
    logits: Literal["all", "one"] = "all"

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                hidden=(all(width >= 1 for width in self.hidden), "positive widths"),
                dropout=(0 <= self.dropout < 1, "in [0, 1)"),
            )
        )

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for examples of any shape; they are flattened."""
        if self.logits == "one" and classes != 2:
            raise ValueError(f"model.logits: one needs two classes, found {classes}; say all")
        has_one_logit = self.logits == "one"
        return MlpModule(
            prod(inputs), 1 if has_one_logit else classes, self.hidden, self.dropout, versus_zero=has_one_logit
        )

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, or Huber loss of a number, per example."""
        return label_loss(output, y)


class MlpModule(nn.Module):
    """See `Mlp`. Features are the last hidden layer (b, hidden[-1]), or the input if there is none. versus_zero:
    whether the one output is compared with 0 for class 0.
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: tuple[int, ...], dropout: float, *, versus_zero: bool = False
    ) -> None:
        super().__init__()
        self.versus_zero = versus_zero
        widths = (inputs, *hidden)
        layers = [
            nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for a, b in zip(widths, hidden, strict=False)
        ]
        self.stem = layers[0] if layers else nn.Identity()
        self.blocks = nn.ModuleList(layers[1:])
        self.head = nn.Linear(widths[-1], outputs)

    def forward(self, x: Tensor) -> Output:
        h = self.stem(x.flatten(1))
        for block in self.blocks:
            h = block(h)
        logits = self.head(h)
        return Output(functional.pad(logits, (1, 0)) if self.versus_zero else logits, h)
