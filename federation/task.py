"""What all sites learn: the kind of label, the network, and the loss of one example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from privacy.access import Batch, Forward


class Output(NamedTuple):
    """What every network returns. logits: (b, classes); features: (b, d); maps: class activation maps or None."""

    logits: Tensor
    features: Tensor
    maps: Tensor | None = None


class Model(Protocol):
    """Settings that make a network. Its parts are named `stem`, `blocks.k`, `head`, so that methods can split it."""

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A new network for inputs of shape (C, H, W) or (features,)."""
        ...

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Per-example training losses (b,)."""
        ...


@dataclass(frozen=True)
class Task:
    """inputs: shape of one example, without the batch; classes: number of label values, which are 0 .. classes-1."""

    model: Model
    inputs: tuple[int, ...]
    classes: int

    def network(self) -> nn.Module:
        """A new network, initialized from torch's generator."""
        return self.model.build(inputs=self.inputs, classes=self.classes)

    def objective(self, forward: Forward, batch: Batch) -> Tensor:
        """The model's own training loss for each example (b,)."""
        output = forward(batch.x)
        if not isinstance(output, Output) or batch.y is None:
            raise TypeError(f"a network returns Output and training needs labels, found {type(output).__name__}")
        return self.model.losses(output, batch.y)

    def validation(self, forward: Forward, batch: Batch) -> Tensor:
        """Cross-entropy of each example (b,): the same yardstick for every method and model."""
        output = forward(batch.x)
        if not isinstance(output, Output) or batch.y is None:
            raise TypeError(f"a network returns Output and validation needs labels, found {type(output).__name__}")
        return cross_entropy(output, batch.y)

    def probabilities(self, module: nn.Module, x: Tensor, *, chunk: int = 256) -> Tensor:
        """Predicted probabilities (n, classes) float32, in evaluation mode."""
        module.eval()
        with torch.no_grad():
            parts = [module(part).logits.softmax(dim=1) for part in torch.split(x, chunk)]
        return torch.cat(parts) if parts else x.new_zeros(0, self.classes)


def cross_entropy(output: Output, y: Tensor) -> Tensor:
    """Cross-entropy of the logits, per example (b,)."""
    return functional.cross_entropy(output.logits, y, reduction="none")
