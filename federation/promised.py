"""Checks of a class from another author: does it have what settings and a Protocol require?"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Collection, Mapping
from typing import Literal, get_args, get_origin, get_type_hints


def list_names(kind: type, tag: str = "name") -> tuple[str, ...]:
    """The names by which settings choose a class: the values of its literal field `tag`; () if that is no literal."""
    hint = get_type_hints(kind).get(tag)
    return get_args(hint) if get_origin(hint) is Literal else ()


def resolve_name(method: object, names: Collection[str]) -> str:
    """The name, one of `names`, by which a method computes: its own name, or that of its nearest base class.

    Raises:
        KeyError: no name of the method or of a base is among them.
    """
    candidates = [getattr(method, "name", ""), *(vars(base).get("name") for base in type(method).__mro__)]
    for name in candidates:
        if name in names:
            return str(name)
    raise KeyError(
        f"{candidates[0]!r} is none of {', '.join(sorted(names))}, and nor is a base of {type(method).__name__}"
    )


def find_class_problems(kind: object, needs: type, tag: str) -> list[str]:
    """Everything that a class lacks to be chosen by settings and used by a Protocol; empty = nothing.

    needs: the Protocol. tag: the field by which settings choose.
    """
    if not isinstance(kind, type) or not dataclasses.is_dataclass(kind):
        return ["it must be a frozen dataclass, whose fields are the keys in YAML"]
    problems = []
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        problems.append("its dataclass must be frozen: @dataclass(frozen=True, kw_only=True)")
    config = getattr(kind, "__pydantic_config__", {})
    if not isinstance(config, Mapping) or config.get("extra") != "forbid":
        problems.append('it needs __pydantic_config__: ClassVar = {"extra": "forbid"}, so that unknown keys are told')
    try:
        names = list_names(kind, tag)
    except Exception as error:  # annotations run code of the class's author
        return [*problems, f"its annotations cannot be read ({type(error).__name__}: {error})"]
    if not names or not all(isinstance(name, str) for name in names):
        problems.append(f'it needs a field {tag}: Literal["..."] = "...", its name in YAML')
    return problems + _find_member_problems(needs, kind)


def _find_member_problems(protocol: type, kind: type) -> list[str]:
    """Members of the Protocol that a class lacks, or has with other arguments."""
    problems = []
    fields = {field.name for field in dataclasses.fields(kind)}
    members = {name: member for base in reversed(protocol.__mro__) for name, member in vars(base).items()}
    for name, member in members.items():
        if name.startswith("_"):
            continue
        if not hasattr(kind, name) and name not in fields:
            problems.append(f"{name} is missing")
        elif inspect.isfunction(member) and not _accepts_arguments(getattr(kind, name, None), member):
            problems.append(f"{name} must take {inspect.signature(member)}".replace("(self, ", "("))
    return problems


def _accepts_arguments(function: object, like: types.FunctionType) -> bool:
    """Whether a function can be called with the arguments of another one."""
    if not callable(function):
        return False
    parameters = inspect.signature(like).parameters.values()
    placed = [None for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    named = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    try:
        inspect.signature(function).bind(*placed, **named)
    except (TypeError, ValueError):
        return False
    return True
