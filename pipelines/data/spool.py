"""Examples go to the disk as they are made, so that memory does not grow with the cohort.

The file has no name, so that nothing is left of patients when a run is killed; the system drops it with its last user.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor


class Spool:
    """Rows of one shape and type, appended to a nameless file. Foreign state: the file."""

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, folder: Path | None) -> None:
        """shape: of a row, as long as none has come. folder: on whose disk the file lies; None = the system's own."""
        self._shape, self._dtype, self._rows = shape, np.dtype(dtype), 0
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as its rows are in use

    def append(self, rows: NDArray[np.generic]) -> None:
        """Add (n, *shape).

        Raises:
            ValueError: another shape than that of the rows before.
            OSError: the disk.
        """
        if self._rows and rows.shape[1:] != self._shape:
            raise ValueError(f"rows of shape {rows.shape[1:]} after rows of shape {self._shape}; one shape is needed")
        self._shape, self._rows = rows.shape[1:], self._rows + len(rows)
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)

    def tensor(self) -> Tensor:
        """All rows (n, *shape), read from the file when they are looked at; it lives as long as they do."""
        shape = (self._rows, *self._shape)
        if 0 in shape:
            return torch.from_numpy(np.zeros(shape, self._dtype))
        self._file.flush()
        return torch.from_numpy(np.memmap(self._file, self._dtype, mode="r+", shape=shape))
