"""Chunk sizes of forward passes, passes of single rows, and auxiliary inputs per row."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or torch's products on a GPU are not deterministic
NONE_KNOWN = "does not have a deterministic implementation"  # words of torch's error
ROWS = 256  # of a pass without gradient
NUMBERS = 2**20  # in the images of one pass: 256 of 64 x 64 pixels, for a network's first features are as large


def at_once(x: Tensor) -> int:
    """Number of rows of x (n, ...) per forward pass, if rows do not influence each other but by rounding."""
    return max(1, min(ROWS, NUMBERS // max(1, math.prod(x.shape[1:]))))


def copy_rows(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows of x (n, ...), by their numbers (m,), in memory of their own: (m, ...).

    A copy begins at an address that torch's allocator aligns. A slice begins somewhere in the middle of all rows, and
    libraries of linear algebra may round by the address of what they multiply.
    """
    return x.index_select(0, rows.to(x.device)).contiguous()


_REPEATABLY: ContextVar[bool] = ContextVar("repeatably", default=False)


def is_repeatable() -> bool:
    """Whether the running computation must not depend on earlier ones: see `compute_repeatably`."""
    return _REPEATABLY.get()


@contextmanager
def compute_repeatably() -> Iterator[None]:
    """Compute the same bits from the same numbers, whatever was computed before or is computed at the same time.
    Inside, a network of other people's code passes through a copy of itself (`is_repeatable`), because it may keep what
    it sees.

    On one thread: with several, how work is shared out changes from one call to the next, and so do last bits (seen
    once with gradients of a ResNet-18 on two threads). On a GPU by torch's deterministic algorithms, without trials of
    which is fastest: the others add in the order in which threads end (seen with gradients of every convolution).

    Raises:
        ValueError: torch has no deterministic algorithm for an operation within, on a GPU.
    """
    threads, trials = torch.get_num_threads(), torch.backends.cudnn.benchmark
    strict, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_num_threads(1)
    mark = _REPEATABLY.set(True)
    if torch.cuda.is_available():
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if NONE_KNOWN not in str(error):
            raise
        what = str(error).partition(NONE_KNOWN)[0].strip()
        raise ValueError(
            f"on a GPU, torch has no deterministic algorithm for {what}, and what is computed of one patient would "
            "hang on others; say device: cpu, or take a network without it"
        ) from error
    finally:
        _REPEATABLY.reset(mark)
        torch.set_num_threads(threads)
        if torch.cuda.is_available():
            torch.backends.cudnn.benchmark = trials
            torch.use_deterministic_algorithms(strict, warn_only=warn)


def apply_to_each_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x) for rows x (n, ...), computed for one row (1, ...) at a time: (n, ...).

    What is computed of a row is then the same, bit for bit, whatever the other rows are and however many (on a CPU;
    `docs/explanation/privacy.md`).
    """
    if not len(x):
        return function(x)
    with compute_repeatably():
        return torch.cat([function(copy_rows(x, torch.tensor([row]))) for row in range(len(x))])


def in_turn(aux: Tensor, rows: int) -> Tensor:
    """One entry of aux (A, K, ...) per row, (rows, ...): in order, starting again at the end.

    Raises:
        ValueError: aux has fewer than two axes, or is empty.
    """
    if aux.dim() < 2 or 0 in aux.shape[:2]:
        raise ValueError(f"aux must be (A, K, ...) with A and K at least 1, found {tuple(aux.shape)}")
    flat = aux.flatten(0, 1)
    return flat[torch.arange(rows, device=aux.device) % len(flat)]
