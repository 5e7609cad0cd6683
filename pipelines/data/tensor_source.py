"""Settings of a source whose examples are tensors already: one safetensors file. No reader is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True, kw_only=True)
class TensorSource:
    """A safetensors file of examples that are ready for a network: no unit, grid or header is looked at.

    It holds `x` (n, *inputs) float32, and `y` (n,) int64, the class of each example, 0 = the first, or `mask`
    (n, *spatial) uint8, the class of each pixel, 0 = background, or `findings` (n, K) int8, 1 = there, 0 = not, -1 =
    nobody knows. Its header's metadata hold JSON texts: `patient`, n
    names, one an example; `split`, n of train, validation, test, where a hospital has its own division, which then
    takes the place of the run's `split`; `classes`, the names of the task's classes or findings, if the file is to be
    refused where a run names others. An example that is not finite, whose class does not exist, whose patient is
    unnamed or in two splits, or of which no finding is known, is not used.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["tensors"] = "tensors"
    file: str
