"""Read studies: labels and positions stay in memory, examples and masks are written to disk."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from pipelines.data.intake import WaitingStudy, read_studies
from pipelines.data.study import Rejected

LARGE = 2**26
"""Bytes of selected rows from which on they stay on the disk."""


@dataclass(frozen=True)
class Taken:
    """A study that was read, without its images. evidence: with its percentiles, as in `Study`."""

    patient: str
    labels: Sequence[int]
    position: Sequence[float]
    scanner: str
    evidence: tuple[str, tuple[float, float, float] | None] = ("", None)


def take_studies(
    waiting: Sequence[WaitingStudy], inputs: tuple[int, ...], readers: int, scratch: Path | None, *, masks: bool = False
) -> tuple[list[Taken], list[Rejected], dict[str, Tensor]]:
    """Read the waiting studies; examples and masks are written to disk. masks: whether there are label maps."""
    taken: list[Taken] = []
    rejected: list[Rejected] = []
    kinds = {
        "images": (inputs, np.float32),
        "lesion": (inputs[1:] or (0,), np.uint8),
        "gland": (inputs[1:] or (0,), np.uint8),
        "mask": (inputs[1:] if masks else (0,), np.uint8),
    }
    spools = {name: Spool(shape, dtype, scratch) for name, (shape, dtype) in kinds.items()}
    for result in read_studies(waiting, readers=readers):
        if isinstance(result, Rejected):
            rejected.append(result)
            continue
        for name, spool in spools.items():
            spool.append(getattr(result.examples, name))
        position = result.examples.position.tolist()
        evidence = (result.evidence, result.percentiles)
        taken.append(Taken(result.patient, tuple(result.labels), position, result.scanner, evidence))
    return taken, rejected, {name: spool.tensor() for name, spool in spools.items()}


def select_patients(
    taken: Sequence[Taken], parts: Mapping[str, Tensor], patients: Collection[str], scratch: Path | None = None
) -> tuple[list[Taken], dict[str, Tensor]]:
    """The studies and rows of these patients only, in the same order; large parts stay on the disk."""
    chosen = [study.patient in patients for study in taken]
    lengths = torch.tensor([len(study.labels) for study in taken], dtype=torch.int64)
    rows = torch.repeat_interleave(torch.tensor(chosen, dtype=torch.bool), lengths)
    return [study for study, is_chosen in zip(taken, chosen, strict=True) if is_chosen], {
        name: copy_rows_to_disk(part, rows.nonzero()[:, 0], scratch) for name, part in parts.items()
    }


def copy_rows_to_disk(values: Tensor, index: Tensor, scratch: Path | None) -> Tensor:
    """These rows of values (n, ...), as `values[index]`; of `LARGE` bytes or more in an unnamed file, which is read
    where it is needed and lives as long as the rows do: so patients' images need not fit into memory.

    scratch: where the file is made; None = all in memory.

    Raises:
        OSError: the file cannot be written.
    """
    row = math.prod(values.shape[1:]) * values.element_size()
    if scratch is None or len(index) * row < LARGE:
        return values[index]
    spool = Spool(tuple(values.shape[1:]), values.numpy().dtype, scratch)
    for part in torch.split(index, max(1, LARGE // 16 // row)):
        spool.append(values[part].numpy())
    return spool.tensor()


def natural_key(study: str) -> tuple[object, ...]:
    """A sort key by which line 10 comes after line 9."""
    return tuple((part.isdigit(), int(part) if part.isdigit() else part) for part in re.split(r"(\d+)", study))


class Spool:
    """Rows of one shape and type, appended to an unnamed temporary file. Foreign state: the file."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, folder: Path | None) -> None:
        """shape: of a row, until the first is appended. folder: where the file is made; None = the system's default."""
        self._shape, self._dtype, self._rows = shape, np.dtype(dtype), 0
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as its rows are in use

    def append(self, rows: NDArray[np.generic]) -> None:
        """Add (n, *shape).

        Raises:
            ValueError: the shape differs from that of earlier rows.
            OSError: the file cannot be written.
        """
        if self._rows and rows.shape[1:] != self._shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} after rows of shape {self._shape}; one shape is needed")
        self._shape, self._rows = rows.shape[1:], self._rows + len(rows)
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)

    def tensor(self) -> Tensor:
        """All rows (n, *shape), read from the file on access; the file lives as long as they do."""
        shape = (self._rows, *self._shape)
        if 0 in shape:
            return torch.from_numpy(np.zeros(shape, self._dtype))
        self._file.flush()
        return torch.from_numpy(np.memmap(self._file, self._dtype, mode="r+", shape=shape))
