"""Whether a class of others has what settings and a Protocol ask of it."""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Collection, Mapping
from typing import Literal, get_args, get_origin, get_type_hints


def names_of(kind: type, tag: str = "name") -> tuple[str, ...]:
    """The values of a class's field by which settings choose it; () if it is no literal."""
    hint = get_type_hints(kind).get(tag)
    return get_args(hint) if get_origin(hint) is Literal else ()


def name_among(method: object, names: Collection[str]) -> str:
    """Which of these names a method computes as: its own, or that of the nearest base, where a subclass has another.

    Raises:
        KeyError: none of them.
    """
    given = [getattr(method, "name", ""), *(vars(base).get("name") for base in type(method).__mro__)]
    for name in given:
        if name in names:
            return str(name)
    raise KeyError(f"{given[0]!r} is none of {', '.join(sorted(names))}, and nor is a base of {type(method).__name__}")


def lacking(kind: object, needs: type, tag: str) -> list[str]:
    """What a class lacks to be chosen by settings and used by a Protocol; all of it, empty = nothing.

    needs: the Protocol. tag: the field by which settings choose.
    """
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return ["it must be a frozen dataclass, whose fields are the keys in YAML"]
    found = []
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        found.append("its dataclass must be frozen: @dataclass(frozen=True, kw_only=True)")
    config = getattr(kind, "__pydantic_config__", {})
    if not isinstance(config, Mapping) or config.get("extra") != "forbid":
        found.append('it needs __pydantic_config__: ClassVar = {"extra": "forbid"}, so that unknown keys are told')
    try:
        names = names_of(kind, tag)
    except Exception as error:  # hints are its own code
        return [*found, f"its annotations cannot be read ({type(error).__name__}: {error})"]
    if not names or not all(isinstance(name, str) for name in names):
        found.append(f'it needs a field {tag}: Literal["..."] = "...", its name in YAML')
    return found + _unlike(needs, kind)


def _unlike(protocol: type, kind: type) -> list[str]:
    """Members of the Protocol that a class lacks, or has with other arguments."""
    found = []
    fields = {one.name for one in dataclasses.fields(kind)}
    members = {name: member for base in reversed(protocol.__mro__) for name, member in vars(base).items()}
    for name, member in members.items():
        if name.startswith("_"):
            continue
        if not hasattr(kind, name) and name not in fields:
            found.append(f"{name} is missing")
        elif inspect.isfunction(member) and not _takes(getattr(kind, name, None), member):
            found.append(f"{name} must take {inspect.signature(member)}".replace("(self, ", "("))
    return found


def _takes(function: object, like: types.FunctionType) -> bool:
    if not callable(function):
        return False
    wanted = inspect.signature(like).parameters.values()
    placed = [None for one in wanted if one.kind is one.POSITIONAL_OR_KEYWORD]
    named = {one.name: None for one in wanted if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(function).bind(*placed, **named)
    except (TypeError, ValueError):
        return False
    return True
