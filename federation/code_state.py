"""What an object is made of, as parts that can be compared: its class, and what it holds."""

from __future__ import annotations

import collections
import functools
import random
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from federation.code_origin import HEAP, Undigestible, edition, library_name

Parts: TypeAlias = tuple[str, list[Any]]
GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
CONTENT: dict[type, Callable[[Any], Any]] = {
    dict: lambda value: list(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: frozenset(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    str: lambda value: str.__str__(value),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytes(bytearray.__iter__(value)),
    int: lambda value: int.__index__(value),
    float: lambda value: float.__float__(value),
    complex: lambda value: complex.__pos__(value),
    BaseException: lambda value: value.args,
}
"""Built-in class -> what an object of a subclass holds of it."""


def arrays_of(value: Any, where: str) -> tuple[tuple[object, ...], list[Any]] | None:
    """Of a tensor or array: words that tell it, and what else it holds; None for other objects."""
    if isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise _refusal(value, where, "take what torch.jit is given, or a function that loads its file")
    if isinstance(value, torch.Tensor):
        return _tensor(value, where)
    if isinstance(value, np.dtype):
        return ("dtype", repr(value)), []
    if not isinstance(value, np.ndarray | np.generic):
        return None
    held = [type(value), getattr(value, "__dict__", None)]
    plain = np.asarray(value).view(np.ndarray) if isinstance(value, np.ndarray) else np.asarray(value)
    if plain.dtype.hasobject or plain.dtype.kind == "T":
        return ("objects", repr(plain.dtype), plain.shape), [*held, plain.tolist()]
    return ("array", repr(plain.dtype), plain.shape, plain.tobytes()), held


def _tensor(value: torch.Tensor, where: str) -> tuple[tuple[object, ...], list[Any]]:
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        words = ("tensor", value.dtype, tuple(value.shape), value.layout, value.requires_grad)
        try:
            kept = value.detach().cpu()
            kept = kept if kept.layout == torch.strided else kept.to_dense()
            flat = kept.resolve_conj().resolve_neg().contiguous().flatten()
            data = flat.view(torch.uint8).as_subclass(torch.Tensor).numpy().tobytes()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise _refusal(value, where, "take a dense tensor with values") from error
    return (*words, data), [type(value), dict(vars(value))]


def parts_of(value: Any, where: str, *, draws: bool) -> Parts:
    """A name of its kind and the values that an object is made of.

    Raises:
        Undigestible: nobody can tell them, or they are others after each use, as an iterator's.
    """
    kind = type(value)
    for find in (_descriptor, _wrapper, _typing):
        if (found := find(value)) is not None:
            return found
    if isinstance(value, GENERATORS):
        return _generator(value, where, draws=draws)
    if isinstance(value, collections.abc.Iterator):
        raise _refusal(value, where, "it is another after each step; make it where it is used")
    if isinstance(value, np.ufunc):
        return _ufunc(value, where)
    if isinstance(value, nn.Module):
        return "network", [kind, *_network(value)]
    if isinstance(value, weakref.ref):
        return "weak", [value()]
    if library_name(kind) is None and edition(kind.__module__) is None:
        return "object", [kind, *_own(value, where)]
    return f"{kind.__module__}.{kind.__qualname__}", [kind, *_made_again(value, where)]


def _descriptor(value: Any) -> Parts | None:
    """Compiled functions and methods, with what they are bound to."""
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return "bound", [value.__name__, value.__self__]
    found = types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType
    if isinstance(value, found | types.GetSetDescriptorType | types.MemberDescriptorType):
        return "descriptor", [value.__name__, value.__objclass__]
    return None


def _wrapper(value: Any) -> Parts | None:
    """Wrappers that remember what they gave: only what they wrap."""
    if isinstance(value, functools._lru_cache_wrapper):
        kept = {name: one for name, one in vars(value).items() if name != "__wrapped__"}
        return "cached", [value.__wrapped__, value.cache_parameters(), _by_name(kept)]
    if isinstance(value, functools.cached_property):
        return "cached property", [value.func, value.attrname]
    if isinstance(value, functools.singledispatchmethod):
        return "chosen by type", [value.func, value.dispatcher]
    if type(value).__name__ == "OptimizedModule" and isinstance(value, nn.Module):
        return "compiled", [value._orig_mod]
    return None


def _typing(value: Any) -> Parts | None:
    kind = type(value)
    if kind.__module__ != "typing" and not isinstance(value, types.GenericAlias | types.UnionType):
        return None
    names = ("__origin__", "__args__", "__metadata__", "__name__", "__bound__", "__constraints__", "__forward_arg__")
    return f"{kind.__module__}.{kind.__qualname__}", [_plain(getattr(value, name, None)) for name in names]


def _plain(value: Any) -> Any:
    return value if not isinstance(value, property | types.MemberDescriptorType) else None


def _generator(value: Any, where: str, *, draws: bool) -> Parts:
    if isinstance(value, random.SystemRandom):
        return "generator of the system", []
    if not draws:
        raise _refusal(
            value,
            where,
            "it is another after each draw; draw from the global generators, which are seeded, or make it "
            "where it is used",
        )
    if isinstance(value, random.Random):
        state: Any = value.getstate()
    elif isinstance(value, torch.Generator | np.random.RandomState):
        state = value.get_state()
    else:
        state = getattr(value, "bit_generator", value).state
    return "generator", [type(value), state]


def _ufunc(value: np.ufunc, where: str) -> Parts:
    import scipy.special

    for room in (np, scipy.special):
        if getattr(room, value.__name__, None) is value:
            return "ufunc", [f"{room.__name__}.{value.__name__}"]
    raise _refusal(value, where, "take the function that it calls")


def _network(value: nn.Module) -> list[Any]:
    """Everything that a module holds. Hooks have numbers that count how many were ever made."""
    held = dict(vars(value))
    for name in [name for name, one in held.items() if name.endswith("_hooks") and isinstance(one, dict)]:
        held[name] = list(held[name].values())
    for name in [name for name in held if "_hooks_" in name]:
        first = vars(value).get(name.partition("_hooks_")[0] + "_hooks", {})
        held[name] = [number in held[name] for number in first]
    if isinstance(value, torch.fx.GraphModule):
        held = {name: one for name, one in held.items() if name not in ("_graph", "_code", "_tracer_cls", "meta")}
    return [_by_name(held), *_slots(value)]


def _own(value: Any, where: str) -> Iterator[Any]:
    """What an object of one's own class holds; what a cached property gave is none of it."""
    kept = getattr(value, "__dict__", {})
    known = {name: one for base in type(value).__mro__ for name, one in vars(base).items()}
    cached = {name for name, one in known.items() if isinstance(one, functools.cached_property)}
    yield _by_name({name: one for name, one in kept.items() if name not in cached})
    yield from _slots(value)
    base = next(base for base in type(value).__mro__ if not base.__flags__ & HEAP)
    if isinstance(value, collections.defaultdict):
        yield value.default_factory
    content = next((give for known, give in CONTENT.items() if isinstance(value, known)), None)
    if content is not None:
        yield content(value)
    elif base is not object:
        yield from _made_again(value, where)


def _slots(value: Any) -> Iterator[Any]:
    for base in type(value).__mro__:
        for name, one in sorted(vars(base).items()) if base.__flags__ & HEAP else ():
            if isinstance(one, types.MemberDescriptorType) and (base.__module__, name) != ("builtins", "__dict__"):
                try:
                    yield name, one.__get__(value)
                except AttributeError:
                    yield name, "not set"


def _by_name(values: dict[str, Any]) -> list[tuple[Any, Any]]:
    return sorted(values.items(), key=lambda pair: str(pair[0]))


def _made_again(value: Any, where: str) -> list[Any]:
    """What an object of somebody else's class is made of again from. Raises: Undigestible: it cannot be."""
    try:
        made = value.__reduce_ex__(4)
    except Exception as error:
        raise _refusal(value, where, "take what it gives, as numbers, tensors or text") from error
    if isinstance(made, str):
        return [made]
    return [part if place < 3 or part is None else list(part) for place, part in enumerate(made)]


def _refusal(value: object, where: str, remedy: str) -> Undigestible:
    return Undigestible(
        f"{where}: holds a {type(value).__module__}.{type(value).__qualname__}, of which nobody can tell whether it is "
        f"the same another time; {remedy}"
    )
