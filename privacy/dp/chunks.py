"""Chunk sizes of forward passes, and auxiliary inputs per row."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROWS = 256  # of a pass without gradient
DENSE = 2**20  # numbers in the images of one pass, if features are as large as the image


def at_once(x: Tensor, *, dense: bool) -> int:
    """Number of rows of x (n, ...) per forward pass, if rows do not influence each other.

    dense: the network predicts a class per pixel.
    """
    return max(1, min(ROWS, DENSE // max(1, math.prod(x.shape[1:])))) if dense else ROWS


def in_turn(aux: Tensor, rows: int) -> Tensor:
    """One entry of aux (A, K, ...) per row, (rows, ...): in order, starting again at the end.

    Raises:
        ValueError: aux has fewer than two axes, or is empty.
    """
    if aux.dim() < 2 or 0 in aux.shape[:2]:
        raise ValueError(f"aux must be (A, K, ...) with A and K at least 1, found {tuple(aux.shape)}")
    flat = aux.flatten(0, 1)
    return flat[torch.arange(rows, device=aux.device) % len(flat)]
