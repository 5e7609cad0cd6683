"""The state of an object, as parts that can be compared: its class and its content."""

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

from federation.code_origin import HEAP, Undigestible, find_edition, find_library_name

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
"""Built-in class -> the content that an object of a subclass inherits from it."""


def describe_array(value: Any, where: str) -> tuple[tuple[object, ...], list[Any]] | None:
    """For a tensor or array: values that identify it, and its further attributes; None for other objects."""
    if isinstance(value, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise _build_refusal(value, where, "take what torch.jit is given, or a function that loads its file")
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value, where)
    if isinstance(value, np.dtype):
        return ("dtype", repr(value)), []
    if not isinstance(value, np.ndarray | np.generic):
        return None
    attributes = [type(value), getattr(value, "__dict__", None)]
    plain = np.asarray(value).view(np.ndarray) if isinstance(value, np.ndarray) else np.asarray(value)
    if plain.dtype.hasobject or plain.dtype.kind == "T":
        return ("objects", repr(plain.dtype), plain.shape), [*attributes, plain.tolist()]
    return ("array", repr(plain.dtype), plain.shape, plain.tobytes()), attributes


def _describe_tensor(value: torch.Tensor, where: str) -> tuple[tuple[object, ...], list[Any]]:
    """As `describe_array`, for a tensor: type, shape, layout and bytes; then its class and attributes."""
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        words = ("tensor", value.dtype, tuple(value.shape), value.layout, value.requires_grad)
        try:
            dense = value.detach().cpu()
            dense = dense if dense.layout == torch.strided else dense.to_dense()
            flat = dense.resolve_conj().resolve_neg().contiguous().flatten()
            data = flat.view(torch.uint8).as_subclass(torch.Tensor).numpy().tobytes()
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise _build_refusal(value, where, "take a dense tensor with values") from error
    return (*words, data), [type(value), dict(vars(value))]


def list_parts(value: Any, where: str, *, draws: bool) -> Parts:
    """A name for the kind of object, and the values of which it consists.

    Raises:
        Undigestible: the values cannot be read, or change with each use, as those of an iterator.
    """
    kind = type(value)
    for find in (_find_descriptor_parts, _find_wrapper_parts, _find_typing_parts):
        if (parts := find(value)) is not None:
            return parts
    if isinstance(value, GENERATORS):
        return _generator_parts(value, where, draws=draws)
    if isinstance(value, collections.abc.Iterator):
        raise _build_refusal(value, where, "it is another after each step; make it where it is used")
    if isinstance(value, np.ufunc):
        return _ufunc_parts(value, where)
    if isinstance(value, nn.Module):
        return "network", [kind, *_network_parts(value)]
    if isinstance(value, weakref.ref):
        return "weak", [value()]
    if find_library_name(kind) is None and find_edition(kind.__module__) is None:
        return "object", [kind, *_list_object_parts(value, where)]
    return f"{kind.__module__}.{kind.__qualname__}", [kind, *_list_reduced_parts(value, where)]


def _find_descriptor_parts(value: Any) -> Parts | None:
    """The parts of a compiled function or method, with the object that it is bound to; None for other objects."""
    if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
        return "bound", [value.__name__, value.__self__]
    method_types = types.MethodDescriptorType | types.WrapperDescriptorType | types.ClassMethodDescriptorType
    if isinstance(value, method_types | types.GetSetDescriptorType | types.MemberDescriptorType):
        return "descriptor", [value.__name__, value.__objclass__]
    return None


def _find_wrapper_parts(value: Any) -> Parts | None:
    """The wrapped function of a caching wrapper, without the cache; None for other objects."""
    if isinstance(value, functools._lru_cache_wrapper):
        attributes = {name: attribute for name, attribute in vars(value).items() if name != "__wrapped__"}
        return "cached", [value.__wrapped__, value.cache_parameters(), _sort_by_name(attributes)]
    if isinstance(value, functools.cached_property):
        return "cached property", [value.func, value.attrname]
    if isinstance(value, functools.singledispatchmethod):
        return "chosen by type", [value.func, value.dispatcher]
    if type(value).__name__ == "OptimizedModule" and isinstance(value, nn.Module):
        return "compiled", [value._orig_mod]
    return None


def _find_typing_parts(value: Any) -> Parts | None:
    """The parts of a type annotation; None for other objects."""
    kind = type(value)
    if kind.__module__ != "typing" and not isinstance(value, types.GenericAlias | types.UnionType):
        return None
    names = ("__origin__", "__args__", "__metadata__", "__name__", "__bound__", "__constraints__", "__forward_arg__")
    return f"{kind.__module__}.{kind.__qualname__}", [_plain_attribute(getattr(value, name, None)) for name in names]


def _plain_attribute(value: Any) -> Any:
    """The value, or None if a class gave a descriptor in its place."""
    return value if not isinstance(value, property | types.MemberDescriptorType) else None


def _generator_parts(value: Any, where: str, *, draws: bool) -> Parts:
    """Class and state of a random generator. Raises: Undigestible: its state would change with each draw."""
    if isinstance(value, random.SystemRandom):
        return "generator of the system", []
    if not draws:
        raise _build_refusal(
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


def _ufunc_parts(value: np.ufunc, where: str) -> Parts:
    """The name under which numpy or scipy has a universal function. Raises: Undigestible: neither has it."""
    import scipy.special

    for module in (np, scipy.special):
        if getattr(module, value.__name__, None) is value:
            return "ufunc", [f"{module.__name__}.{value.__name__}"]
    raise _build_refusal(value, where, "take the function that it calls")


def _network_parts(value: nn.Module) -> list[Any]:
    """All attributes of a network, sorted by name. Hooks lose their numbers, which count all hooks of the process."""
    attributes = dict(vars(value))
    for name in [
        name for name, attribute in attributes.items() if name.endswith("_hooks") and isinstance(attribute, dict)
    ]:
        attributes[name] = list(attributes[name].values())
    for name in [name for name in attributes if "_hooks_" in name]:
        first = vars(value).get(name.partition("_hooks_")[0] + "_hooks", {})
        attributes[name] = [number in attributes[name] for number in first]
    if isinstance(value, torch.fx.GraphModule):
        attributes = {
            name: attribute
            for name, attribute in attributes.items()
            if name not in ("_graph", "_code", "_tracer_cls", "meta")
        }
    return [_sort_by_name(attributes), *_list_slots(value)]


def _list_object_parts(value: Any, where: str) -> Iterator[Any]:
    """The content of an object of a user's class, without the values of cached properties."""
    attributes = getattr(value, "__dict__", {})
    known = {name: attribute for base in type(value).__mro__ for name, attribute in vars(base).items()}
    cached = {name for name, attribute in known.items() if isinstance(attribute, functools.cached_property)}
    yield _sort_by_name({name: attribute for name, attribute in attributes.items() if name not in cached})
    yield from _list_slots(value)
    base = next(base for base in type(value).__mro__ if not base.__flags__ & HEAP)
    if isinstance(value, collections.defaultdict):
        yield value.default_factory
    content = next((give for known, give in CONTENT.items() if isinstance(value, known)), None)
    if content is not None:
        yield content(value)
    elif base is not object:
        yield from _list_reduced_parts(value, where)


def _list_slots(value: Any) -> Iterator[Any]:
    """(name, value) of each slot of an object."""
    for base in type(value).__mro__:
        for name, attribute in sorted(vars(base).items()) if base.__flags__ & HEAP else ():
            if isinstance(attribute, types.MemberDescriptorType) and (base.__module__, name) != (
                "builtins",
                "__dict__",
            ):
                try:
                    yield name, attribute.__get__(value)
                except AttributeError:
                    yield name, "not set"


def _sort_by_name(values: dict[str, Any]) -> list[tuple[Any, Any]]:
    """The items of a mapping, sorted by name."""
    return sorted(values.items(), key=lambda pair: str(pair[0]))


def _list_reduced_parts(value: Any, where: str) -> list[Any]:
    """What pickle would rebuild a library's object from. Raises: Undigestible: it cannot be pickled."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise _build_refusal(value, where, "take what it gives, as numbers, tensors or text") from error
    if isinstance(reduced, str):
        return [reduced]
    return [part if place < 3 or part is None else list(part) for place, part in enumerate(reduced)]


def _build_refusal(value: object, where: str, remedy: str) -> Undigestible:
    """The error for an object that cannot be compared."""
    return Undigestible(
        f"{where}: holds a {type(value).__module__}.{type(value).__qualname__}, of which nobody can tell whether it is "
        f"the same another time; {remedy}"
    )
