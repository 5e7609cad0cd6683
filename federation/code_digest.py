"""The identity of code that is not ours: equal digests mean that the same would be computed.

What counts is what would run: bytecode with its constants, default arguments, values in closures, attributes of a class
and of its bases, and the functions, classes and values that it uses, of its own and of other own modules, followed to
the end. What does not count is where it stands: file, line, name of the class, comments. Code of a library counts by
name and version and is not followed; what an object of a library's class holds counts. The file is not read: an edited
file, whose old code still runs, does not change what a run was made with. Bytecode is of one version of Python: another
one has other digests. What cannot be compared, or would be another after a call, is refused.
"""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import re
import sys
import types
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from federation.code_origin import Undigestible, edition, library_name, of_library
from federation.code_state import arrays_of, parts_of
from federation.code_uses import OF_THE_PLACE, content_of, refuse_changes, uses_of

__all__ = ["Undigestible", "code_digest"]

SIMPLE = {type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)}
SIMPLE |= {torch.dtype, torch.device, torch.layout, torch.memory_format}
MADE_BY_PYTHON = {
    *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"),
    *("__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__", "_abc_impl"),
    *("__abstractmethods__", "__dataclass_params__", "__match_args__", "__parameters__", "__protocol_attrs__"),
    *("__non_callable_proto_members__", "_autograd_function_id", "_backward_cls"),
}
PYDANTIC = ("__pydantic_config__", "__pydantic_fields__")
FIELD = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")


def code_digest(code: object) -> str:
    """SHA-256 of a function, a class or a callable object: see the head of this file.

    Raises:
        Undigestible: it holds a value of a kind that cannot be compared, as an open file, or does what is another after
            a call: where, and what to do.
    """
    where = str(getattr(code, "__qualname__", type(code).__qualname__))
    walk = _Walk(draws=callable(getattr(code, "set_random_state", None)))
    try:
        walk.take(code, where)
        return walk.end()
    except RecursionError as error:
        raise Undigestible(f"{where}: holds values inside of values, too deep to be compared") from error


@dataclass(frozen=True)
class _Walk:
    """A hash, fed with values one after another. draws: whether generators are set anew before each call. seen: ids of
    objects that may hold themselves, with the object, which must live on. later: functions, classes and modules, whose
    content follows at the end, so that long chains of them need no deep stack.
    """

    draws: bool = False
    sum: Any = field(default_factory=hashlib.sha256)
    seen: dict[int, tuple[int, object]] = field(default_factory=dict)
    later: deque[tuple[Any, str]] = field(default_factory=deque)

    def end(self) -> str:
        while self.later:
            value, where = self.later.popleft()
            if isinstance(value, types.FunctionType):
                self._function(value, where)
            elif isinstance(value, type):
                self._class(value, where)
            else:
                self._module(value, where)
        return str(self.sum.hexdigest())

    def say(self, *words: object) -> None:
        for word in words:
            text = repr(word).encode(errors="backslashreplace")
            self.sum.update(len(text).to_bytes(8, "little") + text)

    def take(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind in SIMPLE:
            self.say(kind.__name__, value)
        elif id(value) in self.seen:
            self.say("again", self.seen[id(value)][0])
        elif isinstance(value, types.ModuleType) and (version := edition(value.__name__)) is not None:
            self.say("module", value.__name__, version)
        elif kind is not types.CodeType and (name := library_name(value)) is not None:
            self.say("of a library", name)
        else:
            self._content(value, where)

    def _content(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind not in (tuple, frozenset, types.CodeType, types.MethodType):
            self.seen[id(value)] = len(self.seen), value
        if isinstance(value, types.FunctionType | type | types.ModuleType):
            self.say("later", len(self.later))
            self.later.append((value, where))
        elif kind is types.CodeType:
            self._code(value, where)
        elif kind is re.Pattern:
            self.say("pattern", value.pattern, value.flags)
        elif kind in (tuple, list):
            self.row(kind.__name__, value, where)
        elif kind in (dict, types.MappingProxyType):
            self.row("mapping", [part for pair in value.items() for part in pair], where)
        elif kind in (set, frozenset):
            self.alike(kind.__name__, value, where)
        elif kind in (staticmethod, classmethod, types.MethodType):
            self.row(kind.__name__, (value.__func__, getattr(value, "__self__", None)), where)
        elif kind is property:
            self.row("property", (value.fget, value.fset, value.fdel), where)
        elif kind is functools.partial:
            self.row("partial", (value.func, value.args, value.keywords, vars(value)), where)
        elif isinstance(value, enum.Enum):
            self.row("member", (kind, value.name, value.value, _named(_own_of_member(value))), where)
        elif (said := arrays_of(value, where)) is not None:
            self.say(*said[0])
            self.row("array", said[1], where)
        else:
            name, parts = parts_of(value, where, draws=self.draws)
            self.row(name, parts, where)

    def row(self, kind: str, values: Iterable[Any], where: str) -> None:
        parts = list(values)
        self.say(kind, len(parts))
        for part in parts:
            self.take(part, where)

    def alike(self, kind: str, values: Iterable[Any], where: str) -> None:
        """Values without an order, each by a digest of its own."""
        found = []
        for value in values:
            apart = _Walk(self.draws, hashlib.sha256(), copy.copy(self.seen))
            apart.take(value, where)
            found.append(apart.end())
        self.say(kind, sorted(found))

    def _function(self, function: types.FunctionType, where: str) -> None:
        self.say("function")
        if of_library(function):
            self._made_by_a_library(function, where)
            return
        if function.__name__ != "__init_subclass__":  # which runs where a class is defined
            refuse_changes(function, where)
        self.take(function.__code__, where)
        self._held(function, where)
        for name, value in uses_of(function, where):
            self.say(name)
            self.take(value, f"{where}, {name} of its module")

    def _made_by_a_library(self, function: types.FunctionType, where: str) -> None:
        """A function that a call to a library made, as a decorator's: its name, and what it holds."""
        code, module = function.__code__, str(function.__globals__["__name__"])
        self.say(module, code.co_qualname, edition(module))
        if (inner := vars(function).get("_torchdynamo_orig_callable")) is not None:
            self.take(inner, where)  # of torch.compile, which computes the same
        elif module == "functools" and isinstance(chosen := vars(function).get("registry"), types.MappingProxyType):
            self.alike("chosen by type", chosen.items(), where)  # singledispatch; what it remembers is left out
        else:
            self._held(function, where)

    def _held(self, function: types.FunctionType, where: str) -> None:
        self.take(function.__defaults__, f"{where}, default arguments")
        self.take(function.__kwdefaults__, f"{where}, default arguments")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = content_of(cell)
            if not isinstance(value, types.ModuleType) or of_library(function):
                self.take(value, f"{where}, {name} around it")
        if kept := vars(function):
            self.row("attributes", _named(kept), f"{where}, its attributes")

    def _code(self, code: types.CodeType, where: str) -> None:
        self.say("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.say(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.say(getattr(code, "co_exceptiontable", b""))
        self.row("constants", code.co_consts, where)

    def _class(self, kind: type, where: str) -> None:
        self.say("class")
        self.row("bases", (type(kind), *kind.__bases__), f"{where}, its bases")
        members: Mapping[str, Any] = kind.__members__ if isinstance(kind, enum.EnumMeta) else {}
        self.row("members", [part for pair in members.items() for part in pair], where)
        for name, value in sorted(vars(kind).items()):
            if name in members or _is_made_by_python(kind, name, value):
                continue
            self.say(name)
            if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                continue  # of a slot, which has a name and nothing else
            if name == "__annotations__":
                self._annotations(kind, value, where)
            elif name == "__dataclass_fields__":
                told = [getattr(one, part) for one in value.values() for part in FIELD]
                self.row("fields", told, f"{where}, its fields")
            else:
                self.take(value, f"{where}.{name}")

    def _annotations(self, kind: type, told: dict[str, Any], where: str) -> None:
        """Those that are text are followed to what they name."""
        space = _space_of(kind)
        for name, value in told.items():
            self.say(name)
            self.take(value, f"{where}, annotation of {name}")
            for used in _names_in(value) if isinstance(value, str) else ():
                if used in space and used not in OF_THE_PLACE:
                    self.take(space[used], f"{where}, annotation of {name}")

    def _module(self, module: types.ModuleType, where: str) -> None:
        """An own module that is used as a value: everything in it."""
        if hasattr(module, "__path__"):
            raise Undigestible(
                f"{where}: uses the package {module.__name__} as a value, so nobody can tell which of its modules; "
                "import what you need of it by name"
            )
        self.row("module", _named(vars(module), leave=OF_THE_PLACE), f"{where}, all of it")


def _named(values: Any, leave: Iterable[str] = ()) -> list[Any]:
    """Attributes, in the order of their names."""
    return [part for name in sorted(values) if name not in leave for part in (name, values[name])]


def _own_of_member(member: enum.Enum) -> dict[str, Any]:
    return {name: value for name, value in vars(member).items() if not name.startswith("_")}


def _is_made_by_python(kind: type, name: str, value: Any) -> bool:
    if name in MADE_BY_PYTHON or (name.startswith("__pydantic") and name not in PYDANTIC):
        return True
    if name == "__hash__" and value is None:
        return True  # follows from __eq__
    if name == "__init__" and any(getattr(base, "_is_protocol", False) for base in kind.__mro__):
        inherited = any(vars(base).get(name) is value for base in kind.__mro__[1:])
        return inherited or library_name(value) is not None  # a Protocol's, which its first object replaces
    kept = isinstance(value, types.FunctionType | staticmethod | classmethod | property)
    return isinstance(kind, enum.EnumMeta) and re.fullmatch(r"_[a-z0-9_]+_", name) is not None and not kept


def _space_of(kind: type) -> dict[str, Any]:
    """The names that a class's annotations mean."""
    for value in vars(kind).values():
        if isinstance(value, types.FunctionType) and not of_library(value):
            return value.__globals__
    module = sys.modules.get(kind.__module__)
    return {} if module is None or edition(kind.__module__) is not None else vars(module)


@functools.cache
def _names_in(annotation: str) -> tuple[str, ...]:
    try:
        return compile(annotation, "<annotation>", "eval").co_names
    except SyntaxError:
        return ()
