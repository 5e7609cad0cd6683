"""Digests of code from outside this project: equal digests mean that both versions compute the same.

The digest covers what would run: bytecode with its constants, default arguments, closure values, the attributes of a
class and of its bases, and, recursively, the functions, classes and values that the code uses, in its own module and in
other modules of the same author. It does not cover file, line, name of the class and comments. Library code enters by
name and version, and is not followed; attributes of an object of a library's class do enter. The file is not read: if
it is edited while its old code still runs, the digest does not change. Bytecode depends on the version of Python, so
digests do too. Values that cannot be compared, or that change with each call, are refused.
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

from federation.code_origin import Undigestible, find_edition, find_library_name, is_library_function
from federation.code_state import describe_array, list_parts
from federation.code_uses import OF_THE_PLACE, cell_content, list_uses, refuse_changes

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
    """SHA-256 of a function, a class or a callable object: see the top of this file.

    Raises:
        Undigestible: it holds a value that cannot be compared, such as an open file, or changes its own state when it
            is called. The message says where, and what to do.
    """
    where = str(getattr(code, "__qualname__", type(code).__qualname__))
    walk = _Walk(draws=callable(getattr(code, "set_random_state", None)))
    try:
        walk.hash_value(code, where)
        return walk.finish_digest()
    except RecursionError as error:
        raise Undigestible(f"{where}: holds values inside of values, too deep to be compared") from error


@dataclass(frozen=True)
class _Walk:
    """A hash that takes values one after another. draws: whether random generators are seeded before each call. seen:
    id -> (number, object) of objects that may contain themselves; the reference keeps them alive. later: functions,
    classes and modules, whose content is hashed at the end, so that long chains of them need no deep stack.
    """

    draws: bool = False
    sum: Any = field(default_factory=hashlib.sha256)
    seen: dict[int, tuple[int, object]] = field(default_factory=dict)
    later: deque[tuple[Any, str]] = field(default_factory=deque)

    def finish_digest(self) -> str:
        while self.later:
            value, where = self.later.popleft()
            if isinstance(value, types.FunctionType):
                self._hash_function(value, where)
            elif isinstance(value, type):
                self._hash_class(value, where)
            else:
                self._hash_module(value, where)
        return str(self.sum.hexdigest())

    def hash_words(self, *words: object) -> None:
        for word in words:
            text = repr(word).encode(errors="backslashreplace")
            self.sum.update(len(text).to_bytes(8, "little") + text)

    def hash_value(self, value: Any, where: str) -> None:
        kind = type(value)
        if kind in SIMPLE:
            self.hash_words(kind.__name__, value)
        elif id(value) in self.seen:
            self.hash_words("again", self.seen[id(value)][0])
        elif isinstance(value, types.ModuleType) and (version := find_edition(value.__name__)) is not None:
            self.hash_words("module", value.__name__, version)
        elif kind is not types.CodeType and (name := find_library_name(value)) is not None:
            self.hash_words("of a library", name)
        else:
            self._hash_content(value, where)

    def _hash_content(self, value: Any, where: str) -> None:
        """Hash an object that is no simple value, no module of a library and has no name in a library."""
        kind = type(value)
        if kind not in (tuple, frozenset, types.CodeType, types.MethodType):
            self.seen[id(value)] = len(self.seen), value
        if isinstance(value, types.FunctionType | type | types.ModuleType):
            self.hash_words("later", len(self.later))
            self.later.append((value, where))
        elif kind is types.CodeType:
            self._hash_bytecode(value, where)
        elif kind is re.Pattern:
            self.hash_words("pattern", value.pattern, value.flags)
        elif kind in (tuple, list):
            self.hash_sequence(kind.__name__, value, where)
        elif kind in (dict, types.MappingProxyType):
            self.hash_sequence("mapping", [part for pair in value.items() for part in pair], where)
        elif kind in (set, frozenset):
            self.hash_unordered(kind.__name__, value, where)
        elif kind in (staticmethod, classmethod, types.MethodType):
            self.hash_sequence(kind.__name__, (value.__func__, getattr(value, "__self__", None)), where)
        elif kind is property:
            self.hash_sequence("property", (value.fget, value.fset, value.fdel), where)
        elif kind is functools.partial:
            self.hash_sequence("partial", (value.func, value.args, value.keywords, vars(value)), where)
        elif isinstance(value, enum.Enum):
            self.hash_sequence(
                "member", (kind, value.name, value.value, _list_attributes(_member_attributes(value))), where
            )
        elif (array := describe_array(value, where)) is not None:
            self.hash_words(*array[0])
            self.hash_sequence("array", array[1], where)
        else:
            name, parts = list_parts(value, where, draws=self.draws)
            self.hash_sequence(name, parts, where)

    def hash_sequence(self, kind: str, values: Iterable[Any], where: str) -> None:
        parts = list(values)
        self.hash_words(kind, len(parts))
        for part in parts:
            self.hash_value(part, where)

    def hash_unordered(self, kind: str, values: Iterable[Any], where: str) -> None:
        """Hash values that have no order, by the sorted digests of each."""
        digests = []
        for value in values:
            inner_walk = _Walk(self.draws, hashlib.sha256(), copy.copy(self.seen))
            inner_walk.hash_value(value, where)
            digests.append(inner_walk.finish_digest())
        self.hash_words(kind, sorted(digests))

    def _hash_function(self, function: types.FunctionType, where: str) -> None:
        """Hash a function: its bytecode, the values it holds, and what it uses of its module."""
        self.hash_words("function")
        if is_library_function(function):
            self._hash_library_function(function, where)
            return
        if function.__name__ != "__init_subclass__":  # which runs where a class is defined
            refuse_changes(function, where)
        self.hash_value(function.__code__, where)
        self._hash_function_values(function, where)
        for name, value in list_uses(function, where):
            self.hash_words(name)
            self.hash_value(value, f"{where}, {name} of its module")

    def _hash_library_function(self, function: types.FunctionType, where: str) -> None:
        """Hash a function that a library created, such as a decorator's wrapper: its name, and the values it holds."""
        code, module = function.__code__, str(function.__globals__["__name__"])
        self.hash_words(module, code.co_qualname, find_edition(module))
        if (inner := vars(function).get("_torchdynamo_orig_callable")) is not None:
            self.hash_value(inner, where)  # torch.compile: the inner function computes the same
        elif module == "functools" and isinstance(chosen := vars(function).get("registry"), types.MappingProxyType):
            self.hash_unordered("chosen by type", chosen.items(), where)  # singledispatch, without its cache
        else:
            self._hash_function_values(function, where)

    def _hash_function_values(self, function: types.FunctionType, where: str) -> None:
        """Hash the default arguments, closure values and attributes of a function."""
        self.hash_value(function.__defaults__, f"{where}, default arguments")
        self.hash_value(function.__kwdefaults__, f"{where}, default arguments")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = cell_content(cell)
            if not isinstance(value, types.ModuleType) or is_library_function(function):
                self.hash_value(value, f"{where}, {name} around it")
        if attributes := vars(function):
            self.hash_sequence("attributes", _list_attributes(attributes), f"{where}, its attributes")

    def _hash_bytecode(self, code: types.CodeType, where: str) -> None:
        """Hash bytecode with its names, flags, exception table and constants."""
        self.hash_words("code", code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        self.hash_words(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.hash_words(getattr(code, "co_exceptiontable", b""))
        self.hash_sequence("constants", code.co_consts, where)

    def _hash_class(self, kind: type, where: str) -> None:
        """Hash a class: its bases, enum members and attributes."""
        self.hash_words("class")
        self.hash_sequence("bases", (type(kind), *kind.__bases__), f"{where}, its bases")
        members: Mapping[str, Any] = kind.__members__ if isinstance(kind, enum.EnumMeta) else {}
        self.hash_sequence("members", [part for pair in members.items() for part in pair], where)
        for name, value in sorted(vars(kind).items()):
            if name in members or _is_made_by_python(kind, name, value):
                continue
            self.hash_words(name)
            if isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                continue  # a slot, which has a name and no value
            if name == "__annotations__":
                self._hash_annotations(kind, value, where)
            elif name == "__dataclass_fields__":
                values = [getattr(entry, part) for entry in value.values() for part in FIELD]
                self.hash_sequence("fields", values, f"{where}, its fields")
            else:
                self.hash_value(value, f"{where}.{name}")

    def _hash_annotations(self, kind: type, annotations: dict[str, Any], where: str) -> None:
        """Hash annotations; in those that are text, the objects that they name too."""
        space = _annotation_namespace(kind)
        for name, value in annotations.items():
            self.hash_words(name)
            self.hash_value(value, f"{where}, annotation of {name}")
            for used in _names_in_annotation(value) if isinstance(value, str) else ():
                if used in space and used not in OF_THE_PLACE:
                    self.hash_value(space[used], f"{where}, annotation of {name}")

    def _hash_module(self, module: types.ModuleType, where: str) -> None:
        """Hash everything in a module of the author that is used as a value."""
        if hasattr(module, "__path__"):
            raise Undigestible(
                f"{where}: uses the package {module.__name__} as a value, so nobody can tell which of its modules; "
                "import what you need of it by name"
            )
        self.hash_sequence("module", _list_attributes(vars(module), leave=OF_THE_PLACE), f"{where}, all of it")


def _list_attributes(values: Any, leave: Iterable[str] = ()) -> list[Any]:
    """Names and values of attributes in one list, sorted by name."""
    return [part for name in sorted(values) if name not in leave for part in (name, values[name])]


def _member_attributes(member: enum.Enum) -> dict[str, Any]:
    """The public attributes of an enum member."""
    return {name: value for name, value in vars(member).items() if not name.startswith("_")}


def _is_made_by_python(kind: type, name: str, value: Any) -> bool:
    """Whether Python, pydantic or enum made this attribute of a class, and not its author."""
    if name in MADE_BY_PYTHON or (name.startswith("__pydantic") and name not in PYDANTIC):
        return True
    if name == "__hash__" and value is None:
        return True  # follows from __eq__
    if name == "__init__" and any(getattr(base, "_is_protocol", False) for base in kind.__mro__):
        inherited = any(vars(base).get(name) is value for base in kind.__mro__[1:])
        return inherited or find_library_name(value) is not None  # the one of Protocol, which its first object replaces
    is_code = isinstance(value, types.FunctionType | staticmethod | classmethod | property)
    return isinstance(kind, enum.EnumMeta) and re.fullmatch(r"_[a-z0-9_]+_", name) is not None and not is_code


def _annotation_namespace(kind: type) -> dict[str, Any]:
    """The namespace in which a class's annotations are evaluated."""
    for value in vars(kind).values():
        if isinstance(value, types.FunctionType) and not is_library_function(value):
            return value.__globals__
    module = sys.modules.get(kind.__module__)
    return {} if module is None or find_edition(kind.__module__) is not None else vars(module)


@functools.cache
def _names_in_annotation(annotation: str) -> tuple[str, ...]:
    """The names in an annotation that is text; () if it is no expression."""
    try:
        return compile(annotation, "<annotation>", "eval").co_names
    except SyntaxError:
        return ()
