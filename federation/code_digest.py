"""The identity of code that is not ours: equal digests mean that the same would be computed.

What counts is what would run: bytecode with its constants, default arguments, values in closures, attributes of a class
and of its bases, and the functions, classes and constants of the same module that it uses, followed to the end. What
does not count is where it stands: file, line, name of the class, comments. Packages count by name and version. The file
is not read: an edited file, whose old code still runs, does not change what a run was made with. Bytecode is of one
version of Python: another one has other digests.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import nn

SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), torch.dtype, torch.device, re.Pattern)
OURS = ("federation", "personalize", "harmonize", "privacy", "evaluation", "pipelines", "consilium")
MADE_BY_PYTHON = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "_abc_impl"),
    *("__abstractmethods__", "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__hash__"),
    *("__parameters__", "__orig_bases__", "__pydantic_config__"),
}


SITE = {"site-packages", "dist-packages"}
"""Folders of installed packages; the files of one that is installed in editable form lie elsewhere."""


class Undigestible(ValueError):
    """Code holds something whose content cannot be compared."""


def code_digest(code: object) -> str:
    """SHA-256 of a function, a class or a callable object: see the head of this file.

    Raises:
        Undigestible: it holds a value of a kind that cannot be compared, as an open file: where.
    """
    walk = _Walk(_root(code))
    walk.take(code, getattr(code, "__qualname__", type(code).__qualname__))
    return str(walk.sum.hexdigest())


def _root(code: object) -> str:
    """The package, or the module, that a person wrote it in; empty if it is of an installed package."""
    kind = code.func if isinstance(code, functools.partial) else code
    module = str(getattr(kind, "__module__", None) or type(kind).__module__)
    place = Path(str(getattr(sys.modules.get(module), "__file__", None) or ""))
    return "" if SITE & set(place.parts) else module.split(".")[0]


@dataclass(frozen=True)
class _Walk:
    """A hash, fed with values one after another. root: what is followed. seen: ids of objects that may hold themselves,
    with the object, which must live on.
    """

    root: str
    sum: Any = field(default_factory=hashlib.sha256)
    seen: dict[int, tuple[int, object]] = field(default_factory=dict)

    def say(self, *words: object) -> None:
        for word in words:
            text = repr(word).encode()
            self.sum.update(len(text).to_bytes(8, "little") + text)

    def take(self, value: Any, where: str) -> None:
        if isinstance(value, SIMPLE):
            self.say(type(value).__name__, value)
            return
        if id(value) in self.seen:
            self.say("again", self.seen[id(value)][0])
            return
        if not isinstance(value, tuple | frozenset | types.CodeType | torch.Tensor | np.ndarray):
            self.seen[id(value)] = len(self.seen), value
        if isinstance(value, types.CodeType):
            self._code(value, where)
        elif isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, type):
            self._class(value, where)
        elif isinstance(value, types.ModuleType):
            self._module(value)
        elif isinstance(value, staticmethod | classmethod | types.MethodType):
            self.say(type(value).__name__)
            self.take(value.__func__, where)
            self.take(getattr(value, "__self__", None), where)
        elif isinstance(value, property):
            self._row("property", (value.fget, value.fset, value.fdel), where)
        elif isinstance(value, functools.partial):
            self._row("partial", (value.func, value.args, value.keywords), where)
        elif isinstance(value, torch.Tensor):
            kept = value.detach().cpu().contiguous()
            self.say("tensor", value.dtype, tuple(value.shape), kept.flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            self.say("array", value.dtype.str, value.shape, value.tobytes())
        elif isinstance(value, enum.Enum | PurePath | range | slice):
            self.say(type(value).__qualname__, str(value))
        elif isinstance(value, Mapping):
            self._row("mapping", [part for key in sorted(value, key=repr) for part in (key, value[key])], where)
        elif isinstance(value, set | frozenset):
            self._row("set", sorted(value, key=repr), where)
        elif isinstance(value, tuple | list):
            self._row(type(value).__name__, value, where)
        else:
            self._object(value, where)

    def _row(self, kind: str, values: Iterable[Any], where: str) -> None:
        parts = list(values)
        self.say(kind, len(parts))
        for part in parts:
            self.take(part, where)

    def _function(self, function: types.FunctionType, where: str) -> None:
        self.say("function")
        self.take(function.__code__, where)
        self.take(function.__defaults__, f"{where}, default arguments")
        self.take(function.__kwdefaults__, f"{where}, default arguments")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":
                continue  # of `super()`: the class itself
            try:
                value = cell.cell_contents
            except ValueError:
                value = None  # not yet set
            self.take(value, f"{where}, {name} around it")
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__ and name not in ("__name__", "__file__", "__doc__"):
                self.say(name)
                self.take(function.__globals__[name], f"{where}, {name} of its module")

    def _code(self, code: types.CodeType, where: str) -> None:
        self.say("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.say(getattr(code, "co_exceptiontable", b""))
        self._row("constants", code.co_consts, where)

    def _class(self, kind: type, where: str) -> None:
        if not self._is_followed(kind.__module__):
            self.say("class", kind.__module__, kind.__qualname__, _version(kind.__module__))
            return
        self.say("class of this module")
        self._row("bases", kind.__bases__, f"{where}, its bases")
        for name, value in sorted(vars(kind).items()):
            generated = name.startswith("__") and not _is_code(value) and name not in ("__annotations__", "__slots__")
            if name in MADE_BY_PYTHON or generated or name.startswith("__pydantic"):
                continue
            self.say(name)
            if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                continue  # of a slot, which has a name and nothing else
            if name == "__annotations__":
                self.say(sorted((key, str(one)) for key, one in value.items()))
            else:
                self.take(value, f"{where}.{name}")

    def _module(self, module: types.ModuleType) -> None:
        self.say("module", module.__name__, _version(module.__name__))
        path = getattr(module, "__file__", None)
        if path and self._is_followed(module.__name__):
            self.say(_bytes_of(path))

    def _object(self, value: Any, where: str) -> None:
        self.say("object")
        if isinstance(value, nn.Module):
            self.take(type(value), where)
            self.say(repr(value))
            for part in value.modules():  # what no `extra_repr` says
                self.say(sorted((name, one) for name, one in vars(part).items() if isinstance(one, SIMPLE)))
            self.take(dict(value.state_dict()), where)
        elif is_dataclass(value):
            self.take(type(value), where)
            self._row("fields", (getattr(value, part.name) for part in fields(value)), where)
        elif isinstance(value, torch.Generator):
            self.take(value.get_state(), where)
        elif isinstance(value, np.random.Generator):
            self.say(value.bit_generator.state)
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
            self.say(getattr(value, "__module__", ""), value.__qualname__)
        elif type(value).__module__ == "typing" or isinstance(value, types.GenericAlias | types.UnionType):
            self.say(str(value))
        elif isinstance(value, np.ufunc):
            self.say("ufunc", value.__name__)
        elif hasattr(value, "__qualname__") and not self._is_followed(str(value.__module__)):
            self.say("callable", value.__module__, value.__qualname__)
        elif self._is_followed(type(value).__module__) and hasattr(value, "__dict__"):
            self.take(type(value), where)
            self.take(vars(value), where)
        elif isinstance(wrapped := getattr(value, "func", getattr(value, "__wrapped__", None)), types.FunctionType):
            self.take(wrapped, where)  # cached_property, cache
        else:
            self._row(f"{type(value).__module__}.{type(value).__qualname__}", _parts_of(value, where), where)

    def _is_followed(self, module: str) -> bool:
        """Whether code is followed to its end: what the person wrote, and not what was installed."""
        top = module.split(".")[0]
        return top == self.root or not (top in OURS or top in sys.stdlib_module_names or top in _installed())


def _parts_of(value: object, where: str) -> list[Any]:
    """What an object of somebody else's class is made of again from. Raises: Undigestible: it cannot be."""
    try:
        made = value.__reduce_ex__(4)
    except Exception as error:
        raise Undigestible(
            f"{where}: holds a {type(value).__module__}.{type(value).__qualname__}, of which nobody can tell "
            "whether it is the same another time; take what it gives, as numbers, tensors or text"
        ) from error
    if isinstance(made, str):
        return [made]
    return [part if place < 3 or part is None else list(part) for place, part in enumerate(made)]


def _is_code(value: object) -> bool:
    return isinstance(value, types.FunctionType | staticmethod | classmethod | property | functools.partial)


def _globals_of(code: types.CodeType) -> set[str]:
    """Names of its module that code reads, also in functions inside of it."""
    read = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [const for const in code.co_consts if inspect.iscode(const)]
    return read.union(*(_globals_of(part) for part in inner))


@functools.cache
def _installed() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


@functools.cache
def _version(module: str) -> str:
    names = _installed().get(module.split(".")[0], ())
    return " and ".join(sorted(f"{name} {metadata.version(name)}" for name in set(names)))


@functools.cache
def _bytes_of(path: str) -> bytes:
    """When it is first asked for: later edits do not run in this process."""
    return hashlib.sha256(Path(path).read_bytes()).digest()
