"""How an exception crosses processes: as its class, its words and its fields, without its constructor.

Python calls an exception's class again with its words alone. One whose constructor takes other things, as a code and a
sentence, then fails where it arrives, and the real error is lost. Such a class says `__reduce__ = pickled`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Restored = tuple[Callable[..., BaseException], tuple[type[BaseException], tuple[Any, ...], Mapping[str, Any]]]


def reduce_error(error: BaseException) -> Restored:
    """What pickle and copy need to make an equal exception: the value of `__reduce__`."""
    return restore_error, (type(error), error.args, dict(vars(error)))


def restore_error(kind: type[BaseException], words: tuple[Any, ...], fields: Mapping[str, Any]) -> BaseException:
    """The exception of this class with these words and fields."""
    error = kind.__new__(kind, *words)
    vars(error).update(fields)
    return error
