"""The keys and tags that a settings class allows at a path, which error messages suggest instead of a wrong one."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from federation.registry import Deferred, Group, NotPermitted, find_class, other_names

if TYPE_CHECKING:
    from privacy.message import Json
    from privacy.settings_error import Path

TAGS = ("name", "kind")
"""Fields by which YAML chooses a member of a union."""


def keys_at(kind: Any, data: Json, path: Path) -> tuple[str, ...]:
    """Names of the fields that a group at `path` may have; empty if it is not a dataclass."""
    return tuple(dict.fromkeys(name for each in kinds_at(kind, data, path) for name in _type_hints(each)))


def tags_at(kind: Any, data: Json, path: Path, key: str) -> tuple[str, ...]:
    """Values that the field `key` of a group at `path` may have, if that field is a literal."""
    hints = [_type_hints(each).get(key) for each in kinds_at(kind, data, path)]
    return tuple(dict.fromkeys(str(value) for hint in hints for value in literals_of(hint)))


def kinds_at(kind: Any, data: Json, path: Path) -> list[Any]:
    """The types that a value at `path` may have: the members of unions, narrowed by the tags in the data."""
    kinds = _narrow_kinds(_union_members(kind), data)
    for part in path:
        if isinstance(data, dict):
            data = data.get(str(part))
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
        kinds = _narrow_kinds([member for each in kinds for member in _inner_kinds(each, part)], data)
    return kinds


@dataclasses.dataclass(frozen=True)
class Other:
    """A class of a group that is not of its union, by its name; it is imported where the settings name it."""

    group: Group
    name: str


def _union_members(kind: Any) -> list[Any]:
    if get_origin(kind) is Annotated:
        union, *marks = get_args(kind)
        union = next((mark.find_union() for mark in marks if isinstance(mark, Deferred)), union)
        other_members = [Other(mark, name) for mark in marks if isinstance(mark, Group) for name in other_names(mark)]
        return [*_union_members(union), *other_members]
    if get_origin(kind) in (Union, types.UnionType):
        return [member for each in get_args(kind) for member in _union_members(each)]
    return [kind]


def _inner_kinds(kind: Any, part: str | int) -> list[Any]:
    """The kinds of the value at `part` in a group or a list of this kind."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = _type_hints(kind)
        return _union_members(hints[part]) if part in hints else []
    if not isinstance(origin, type) or not arguments:
        return []
    if issubclass(origin, Mapping):
        return _union_members(arguments[1])
    if origin is tuple and isinstance(part, int) and Ellipsis not in arguments:
        return _union_members(arguments[part]) if part < len(arguments) else []
    return _union_members(arguments[0]) if issubclass(origin, Sequence) else []


def _narrow_kinds(kinds: list[Any], data: Json) -> list[Any]:
    """Those whose tags agree with the data; all of them if none does."""
    if not isinstance(data, dict):
        return kinds
    agreeing = [
        kind for kind in kinds if all(data.get(key, tags[0]) in tags for key, tags in _tag_fields(kind).items())
    ]
    return [_import_class(kind) if isinstance(kind, Other) else kind for kind in agreeing] or kinds


def _import_class(other: Other) -> Any:
    """The class; what stands for it if it cannot be imported here, which validation tells."""
    try:
        return find_class(other.group, other.name) or other
    except (NotPermitted, ValueError):
        return other


def _tag_fields(kind: Any) -> dict[str, tuple[Any, ...]]:
    """The fields that distinguish the members of a union, with their values: literals of one value, and the `name` or
    `kind` of a class with several.
    """
    if isinstance(kind, Other):
        return {kind.group.tag: (kind.name,)}
    literals = {key: literals_of(hint) for key, hint in _type_hints(kind).items()}
    return {key: values for key, values in literals.items() if len(values) == 1 or (values and key in TAGS)}


def literals_of(hint: Any) -> tuple[Any, ...]:
    """The values of a literal type; none of another."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else ()


def _type_hints(kind: Any) -> dict[Any, Any]:
    if isinstance(kind, Other):
        return {kind.group.tag: Literal[kind.name]}
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return {}
    names = [f.name for f in dataclasses.fields(kind) if f.init]
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:  # a class defined inside a function: its field names are known, their types are not
        hints = {}
    return {name: hints.get(name, object) for name in names}
