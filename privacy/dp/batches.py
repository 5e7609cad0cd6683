"""Mini-batches of training without differential privacy: which rows, and how many batches make an epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def iterate_minibatches(
    y: Tensor, *, batch: int, balance: bool, generator: torch.Generator, fixed_size: bool = False
) -> Iterator[Tensor]:
    """Yield index tensors (b,) without end: epoch after epoch of a fresh shuffle, the last batch of an epoch partial.
    They lie where y lies, and go there once an epoch.

    A last batch of a single row joins the one before it, because batch norm has no variance of one value. With
    `balance`, an epoch is n draws with replacement in which every class present is equally likely. With `fixed_size`
    every batch has so many rows, as a plan of memory counts on: within a batch one epoch ends and the next begins, and
    of fewer rows a batch has some several times.
    """
    n = len(y)
    if n == 0:
        raise ValueError("the training split has no rows: check the split fractions and the number of patients")
    device, labels = y.device, y.cpu()  # where the random generator is
    weight = (1.0 / torch.bincount(labels).clamp(min=1).double())[labels] if balance else None
    left = torch.zeros(0, dtype=torch.long, device=device)
    while True:
        order = (
            torch.randperm(n, generator=generator)
            if weight is None
            else torch.multinomial(weight, n, replacement=True, generator=generator)
        )
        parts = list(torch.split(torch.cat([left, order.to(device)]), batch))
        if fixed_size:
            left = left[:0] if len(parts[-1]) == batch else parts.pop()
        elif batch > 1 and len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        yield from parts


def batches_per_epoch(n: int, batch: int, *, fixed_size: bool = False) -> int:
    """How many mini-batches `iterate_minibatches` makes of n rows; with `fixed_size` so many that none is left out."""
    if fixed_size:
        return -(-n // batch)
    full_batches, rest = divmod(n, batch)
    return full_batches + int(rest > 1 or n == 1 < batch)
