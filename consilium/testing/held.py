"""How a law says that it is broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

Models = Mapping[str, Mapping[str, Tensor]]
"""Site -> its model."""


def hold(condition: bool, words: str) -> None:
    """Go on if a law holds. Raises: AssertionError: it does not, in words."""
    if not condition:
        raise AssertionError(words)


def hold_equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor], words: str) -> None:
    """Hold that two sets of tensors are equal bit for bit. Raises: AssertionError: with the names that differ."""
    odd = sorted(left.keys() ^ right.keys()) or sorted(n for n in left if not torch.equal(left[n], right[n]))
    hold(not odd, f"{words}: {', '.join(odd[:5])}{', ...' if len(odd) > 5 else ''} differ")


def hold_same(left: Models, right: Models, words: str) -> None:
    """Hold that all sites have the same models. Raises: AssertionError."""
    hold(left.keys() == right.keys(), f"{words}: at other sites")
    for site in left:
        hold_equal(left[site], right[site], f"{words}, site {site}")


@contextmanager
def in_doubles() -> Iterator[None]:
    """Numbers of 64 bits by default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
