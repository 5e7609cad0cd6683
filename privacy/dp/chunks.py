"""How many rows go through a network at once, and what is given to them beside."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS = 256  # of a pass without gradient
DENSE = 2**20  # numbers of the images of one pass, where features are as large as the image


def at_once(x: Tensor, *, dense: bool) -> int:
    """How many rows of x (n, ...) go through a network together, where nothing depends on their being together.

    dense: the network has a class a pixel.
    """
    return max(1, min(ROWS, DENSE // max(1, math.prod(x.shape[1:])))) if dense else ROWS


def in_turn(aux: Tensor, rows: int) -> Tensor:
    """Of aux (A, K, ...) one thing a row, (rows, ...): one after the other, and from the start again.

    Raises:
        ValueError: aux has fewer than two axes, or nothing in it.
    """
    if aux.dim() < 2 or 0 in aux.shape[:2]:
        raise ValueError(f"aux must be (A, K, ...) with A and K at least 1, found {tuple(aux.shape)}")
    flat = aux.flatten(0, 1)
    return flat[torch.arange(rows, device=aux.device) % len(flat)]
