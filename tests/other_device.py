"""A stand-in for a GPU: tensors that lie on a device of their own, refuse to meet those of the CPU, and compute there.

    with other_device() as crossings:
        rows.x.to(OTHER)        # computed by the CPU, but torch says that it lies elsewhere

An operation that mixes both devices is an error, as it is on a GPU; so is an index from the CPU, which a GPU takes by
copying it in silence. `crossings` counts what passes between the devices: `reads` (values that Python reads, copies to
the CPU, results whose shape hangs on values), for which a program waits until the GPU is done, and `uploads` (copies
from the CPU). The device is called "lazy": torch knows the name, allows gradients there, and nobody uses it.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

OTHER = "lazy"
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}
INDEXES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
SUMS = {
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default),
    *(aten.convolution_backward.default, aten.native_group_norm.default, aten.native_batch_norm.default),
}
SHAPED_BY_VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


ROOT = f"{Path(__file__).parents[1]}/"
OURS = re.compile(re.escape(ROOT) + "(consilium|evaluation|federation|harmonize|personalize|pipelines|privacy)/")


@dataclass
class Crossings:
    """How often each line of code has a program wait for the other device, and copies to it."""

    reads: Counter[str] = field(default_factory=Counter)
    uploads: Counter[str] = field(default_factory=Counter)


class Elsewhere(torch.Tensor):
    """A tensor of the other device; `inner` holds its values on the CPU."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.size(), inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=OTHER
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _Refusing(0.0).__torch_dispatch__(func, types, args, kwargs)  # in a thread, which has no modes

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Elsewhere({self.inner!r})"


class _Refusing(TorchDispatchMode):
    def __init__(self, rounding: float) -> None:
        super().__init__()
        self.crossings, self.rounding = Crossings(), rounding
        self.random = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        there = [one for one in tensors if isinstance(one, Elsewhere)]
        here = [one for one in tensors if not isinstance(one, Elsewhere) and one.dim() > 0]
        if there and here and func not in MOVES:
            shapes = [(type(one).__name__, tuple(one.shape)) for one in tensors]
            raise RuntimeError(f"{func}: tensors of two devices meet: {shapes}")
        device = kwargs.get("device")
        asked = None if device is None else torch.device(device).type == OTHER
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        wrapped = bool(there) if asked is None else asked
        if func is aten.copy_.default:
            wrapped = isinstance(args[0], Elsewhere)
        self._count(func, tensors, there, wrapped)
        given, named = tree_map(_inner, (args, kwargs))
        out = func(*given, **named)
        if func is aten._to_copy.default and out is given[0]:
            out = out.clone()
        if wrapped and self.rounding and func in SUMS:
            out = tree_map(self._rounded, out)
        out = tree_map(lambda one: Elsewhere(one) if wrapped and isinstance(one, torch.Tensor) else one, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if there or wrapped else out

    def _count(self, func: Any, tensors: list[torch.Tensor], there: list[torch.Tensor], wrapped: bool) -> None:
        """What passes between the devices in one operation."""
        if func in MOVES and wrapped and len(there) < len(tensors):
            self.crossings.uploads[f"{func} {_place_of_call()}"] += 1
        chooses = _is_choice(tensors) if func in INDEXES else bool(SHAPED_BY_VALUES & set(func.tags))
        if there and (chooses or (func in MOVES and not wrapped)):
            self.crossings.reads[f"{func} {_place_of_call()}"] += 1

    def _rounded(self, value: Any) -> Any:
        """Sums in another order: other last bits."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value * (1 + self.rounding * torch.empty_like(value).uniform_(-1, 1, generator=self.random))


def _is_choice(tensors: list[torch.Tensor]) -> bool:
    """Whether an index chooses rows by a mask: how many there are hangs on values."""
    return any(one.dtype in (torch.bool, torch.uint8) for one in tensors[1:])


def _place_of_call() -> str:
    """The line of our own code that asked."""
    frame: Any = sys._getframe(1)
    while frame is not None and not (OURS.match(frame.f_code.co_filename)):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}"


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


class _Moving(TorchFunctionMode):
    """What no dispatch mode sees: `torch.tensor`, whose result is moved, and whose a random generator is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        generator = (kwargs or {}).get("generator")
        if generator is not None:
            there = any(isinstance(one, Elsewhere) for one in tree_flatten((args, kwargs))[0])
            if getattr(generator, "elsewhere", False) != (there or str(device) == OTHER):
                raise RuntimeError(f"{func}: a random generator of one device, and tensors of the other")
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and isinstance(args[0], Elsewhere):
            _refuse_places_of_the_cpu(args[1])
        if func not in (torch.tensor, torch.as_tensor) or device is None or torch.device(device).type != OTHER:
            return func(*args, **(kwargs or {}))
        return func(*args, **{name: value for name, value in (kwargs or {}).items() if name != "device"}).to(OTHER)


def _refuse_places_of_the_cpu(index: Any) -> None:
    """A GPU takes such an index by copying it first, and waits until it is there."""
    for part in index if isinstance(index, tuple) else (index,):
        is_here = isinstance(part, torch.Tensor) and not isinstance(part, Elsewhere) and part.dim()
        if is_here or isinstance(part, list):
            raise RuntimeError(f"an index of the CPU into a tensor of the other device, copied in silence: {part}")


class _Generator(torch.Generator):
    elsewhere: bool

    def __new__(cls, device: Any = "cpu") -> _Generator:
        made = super().__new__(cls, "cpu" if torch.device(device).type == OTHER else device)
        made.elsewhere = torch.device(device).type == OTHER
        return made

    @property
    def device(self) -> torch.device:
        return torch.device(OTHER if self.elsewhere else "cpu")


class _Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type == OTHER else device_type, *args, **kwargs)


@contextmanager
def other_device(rounding: float = 0.0) -> Iterator[Crossings]:
    """rounding: how far, relatively, products of matrices and convolutions are from those of the CPU."""
    mode = _Refusing(rounding)
    doubles = mock.patch.multiple(torch, Generator=_Generator, autocast=_Autocast)
    with mode, _Moving(), doubles, mock.patch("torch.optim.adam._device_dtype_check_for_fused"):
        yield mode.crossings
