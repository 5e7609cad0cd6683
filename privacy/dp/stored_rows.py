"""Rows of a tensor in a file, read when they are asked for: memory follows a batch, not the number of patients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map_only

MOST_BYTES = 2**28
"""Bytes of the rows of one split that are held in memory: 256 MiB. What is larger is read row by row."""

LARGE = 2**20
"""Bytes of a row from which a mini-batch is not copied before it is augmented: a patch takes a part of each."""

UNCHANGED = "rows of a file cannot be changed in place: give changed rows back, as by x = x.clone()"


def select_rows(stored: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The rows (n,) of a tensor (m, ...), of this type: (n, ...). A copy in memory, or `StoredRows` of more than
    `MOST_BYTES` bytes. Both have the same numbers.
    """
    if len(rows) * math.prod(stored.shape[1:]) * dtype.itemsize <= MOST_BYTES:
        return stored[rows].to(dtype)
    return StoredRows(stored, rows, dtype)


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """The rows (n,) of x (m, ...), of `StoredRows` without reading them."""
    return StoredRows(x.stored, x.rows[rows], x.dtype) if isinstance(x, StoredRows) else x[rows]


def defer_rows(x: Tensor, rows: Tensor) -> Tensor:
    """The rows (n,) of x (m, ...), as `take_rows`; large ones in a processor's memory are not copied either, but read
    when they are used.
    """
    if isinstance(x, StoredRows) or x.device.type != "cpu" or math.prod(x.shape[1:]) * x.itemsize < LARGE:
        return take_rows(x, rows)
    return StoredRows(x, rows, x.dtype)


def view_rows(x: Tensor) -> list[Tensor]:
    """Each row of x (n, ...), of `StoredRows` as it lies in the file: nothing is read, and its type is the file's."""
    return [x.stored[row] for row in x.rows.tolist()] if isinstance(x, StoredRows) else [*x]


def split_rows(x: Tensor, size: int) -> list[slice]:
    """The places of parts of x (n, ...) of so many rows; one, empty, of no rows."""
    return [slice(start, start + size) for start in range(0, max(1, len(x)), size)]


class StoredRows(Tensor):
    """Rows of a memory-mapped tensor, of another type perhaps. An index along the first axis reads the rows that it
    names; every other operation reads all rows, and gives what it gives for a copy. It cannot be changed in place.
    """

    stored: Tensor
    rows: Tensor

    @staticmethod
    def __new__(cls, stored: Tensor, rows: Tensor, dtype: torch.dtype) -> StoredRows:
        """A tensor without memory of its own."""
        shape = (len(rows), *stored.shape[1:])
        made: StoredRows = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=stored.device)
        made.stored, made.rows = stored, rows
        return made

    def __init__(self, stored: Tensor, rows: Tensor, dtype: torch.dtype) -> None:
        super().__init__()

    def read(self, rows: Tensor) -> Tensor:
        """Some of the rows, by their numbers here."""
        return self.stored[self.rows[rows]].to(self.dtype)

    def numpy(self, *, force: bool = False) -> NDArray[Any]:
        """All rows, in memory."""
        values: NDArray[Any] = np.asarray(self.read(torch.arange(len(self.rows))).numpy(force=force))
        return values

    def __setitem__(self, index: Any, value: Any) -> None:
        """Raises: TypeError: what was read would be changed, and not the rows."""
        raise TypeError(UNCHANGED)

    def __iter__(self) -> Iterator[Tensor]:
        """Row by row."""
        return (self[row] for row in range(len(self.rows)))

    def tolist(self) -> Any:
        """All rows, as lists."""
        return self.numpy().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StoredRows{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[Any, Any] | None = None,
    ) -> Any:
        """Reads the rows that an index names; all rows for every other operation.

        Raises:
            TypeError: the operation would change the rows.
        """
        first = args[0] if args else None
        if isinstance(first, StoredRows) and func._schema.is_mutable:
            raise TypeError(UNCHANGED)
        chosen = _find_rows(func, args) if isinstance(first, StoredRows) and not kwargs else None
        if chosen is not None and isinstance(first, StoredRows):
            rows_read = first.read(chosen)
            return rows_read[0] if func is torch.ops.aten.select.int else rows_read
        read_all: Callable[[StoredRows], Tensor] = lambda each: each.read(torch.arange(len(each.rows)))  # noqa: E731
        read_args, read_kwargs = tree_map_only(StoredRows, read_all, (tuple(args), dict(kwargs or {})))
        return func(*read_args, **read_kwargs)


def _find_rows(func: Any, args: Sequence[Any]) -> Tensor | None:
    """The rows that an operation on the first axis names; None for other operations."""
    aten, every = torch.ops.aten, torch.arange(len(args[0].rows))
    if func is aten.index.Tensor and len(args[1]) == 1 and args[1][0] is not None and args[1][0].dim() == 1:
        return every[args[1][0]]
    if func is aten.slice.Tensor and (len(args) < 2 or args[1] == 0):
        return aten.slice.Tensor(every, 0, *args[2:])  # type: ignore[no-any-return]
    if func is aten.select.int and args[1] == 0:
        return every[args[2]][None]
    return every[args[2]] if func is aten.index_select.default and args[1] == 0 else None
