"""Mini-batches of training without differential privacy: which rows, and how many batches make an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def iterate_minibatches(y: Tensor, *, batch: int, balance: bool, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield index tensors (b,) without end: epoch after epoch of a fresh shuffle, the last batch of an epoch partial.
    They lie where y lies, and go there once an epoch.

    A last batch of a single row joins the one before it, because batch norm has no variance of one value. With
    `balance`, an epoch is n draws with replacement in which every class present is equally likely.
    """
    n = len(y)
    if n == 0:
        raise ValueError("the training split has no rows: check the split fractions and the number of patients")
    device, here = y.device, y.cpu()  # where the random generator is
    weight = (1.0 / torch.bincount(here).clamp(min=1).double())[here] if balance else None
    while True:
        order = (
            torch.randperm(n, generator=generator)
            if weight is None
            else torch.multinomial(weight, n, replacement=True, generator=generator)
        )
        parts = list(torch.split(order.to(device), batch))
        if batch > 1 and len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        yield from parts


def batches_per_epoch(n: int, batch: int) -> int:
    """How many mini-batches `minibatches` makes of n rows."""
    full_batches, rest = divmod(n, batch)
    return full_batches + int(rest > 1 or n == 1 < batch)
