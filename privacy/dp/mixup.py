"""Mixup: each row of a batch is blended with another row of it, and so are their losses.

Zhang, Cisse, Dauphin, Lopez-Paz: mixup: Beyond empirical risk minimization, ICLR 2018, section 2: lambda is drawn from
Beta(alpha, alpha) once a batch, and partners are a permutation of the batch. The loss is blended in place of the
labels, lambda L(y) + (1 - lambda) L(y of the partner), which is the same for cross-entropy and needs nothing of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

Forward: TypeAlias = Callable[..., object]


class Blend(NamedTuple):
    """y: the labels of each row's partner (b,). share: lambda, of the row itself, in [0, 1]."""

    y: Tensor
    share: float


def blend_rows(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Blend]:
    """Rows x (b, ...), each blended with that of its partner, and what is needed for their losses. y: (b,)."""
    partner = torch.randperm(len(x), generator=generator).to(x.device)
    seed = int(torch.randint(2**62, (), generator=generator))
    share = float(np.random.default_rng(seed).beta(alpha, alpha))
    return share * x + (1 - share) * x[partner], Blend(y[partner], share)


def blend_losses(
    compute_losses: Callable[[Forward, Tensor], Tensor], forward: Forward, y: Tensor, blend: Blend
) -> Tensor:
    """The blended loss of each row (b,). The network passes over the rows once, so that dropout and batch norms are
    those of one step.

    compute_losses: (forward, labels (b,)) -> losses (b,). forward: the network.
    """
    outputs: list[object] = []

    def record_pass(*inputs: object) -> object:
        outputs.append(forward(*inputs))
        return outputs[-1]

    losses = compute_losses(record_pass, y)
    passes = iter(outputs)
    partner_losses = compute_losses(lambda *_: next(passes), blend.y)
    return blend.share * losses + (1 - blend.share) * partner_losses
