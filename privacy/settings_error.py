"""Problems of settings: a `Problem` for each mistake, with its place, and all of them at once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from privacy.pickled import reduce_error

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One mistake in settings.

    where: keys and indices, from the group that was checked; () = the group itself. message: what is wrong, what was
    found, what is allowed, what to do. line: in the text, from 1; None = not known. needs: places of other settings,
    from the same group, on which it depends: if one of them is wrong, only that one is reported.
    """

    where: Path
    message: str
    line: int | None = None
    needs: tuple[Path, ...] = ()

    @property
    def path(self) -> str:
        """The place in YAML notation, as in `train.methods[2].mu`; empty for the whole."""
        return format_yaml_path(self.where)

    def within(self, *group: str | int) -> Problem:
        """The same problem, with its paths extended by the enclosing group."""
        return replace(self, where=(*group, *self.where), needs=tuple((*group, *need) for need in self.needs))

    def __str__(self) -> str:
        between = " " if self.message.startswith("must ") else ": "
        return f"{self.path}{between}{self.message}" if self.where else self.message


class SettingsError(ValueError):
    """Settings that cannot be used. problems: all of them, each with its place in the group that was checked."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)

    __reduce__ = reduce_error


def refuse(problems: Sequence[Problem]) -> None:
    """Accept settings without a problem. Raises: SettingsError: there is one."""
    if problems:
        raise SettingsError(problems)


def words_of(error: BaseException) -> str:
    """An error in words; for one of pydantic's, each problem with its place, on one line and without a link."""
    if type(error).__name__ != "ValidationError" or not hasattr(error, "errors"):
        return str(error)
    details = [(format_yaml_path(tuple(detail["loc"])), detail["msg"]) for detail in error.errors(include_url=False)]
    return "; ".join(f"{where}: {text}" if where else text for where, text in details)


def problems_of(error: Exception) -> tuple[Problem, ...]:
    """The problems in an error; an error other than `SettingsError` gives one, for the whole group."""
    return error.problems if isinstance(error, SettingsError) else (Problem((), str(error)),)


def unmet(settings: object, **rules: tuple[bool, str]) -> list[Problem]:
    """The fields whose rule does not hold. rules: field -> whether it holds, and what is allowed (`>= 0`)."""
    return [_must_be(settings, name, allowed) for name, (holds, allowed) in rules.items() if not holds]


def wrong_lengths(settings: object, **lengths: int) -> list[Problem]:
    """The fields whose lists have another number of values. lengths: field -> how many; told before any is unpacked."""
    return [
        _must_be(settings, name, f"a list of {length} values")
        for name, length in lengths.items()
        if len(getattr(settings, name)) != length
    ]


def out_of_range(settings: object, **ranges: tuple[float, float]) -> list[Problem]:
    """The fields outside of their range. ranges: field -> lowest and highest value; None is always allowed."""
    values = {name: getattr(settings, name) for name in ranges}
    return [
        _must_be(settings, name, f"in [{low:g}, {high:g}]")
        for name, (low, high) in ranges.items()
        if values[name] is not None and not low <= values[name] <= high
    ]


def _must_be(settings: object, name: str, allowed: str) -> Problem:
    """The problem of a field that has another value than is allowed."""
    value = getattr(settings, name)
    return Problem((name,), f"must be {allowed}, found {list(value) if isinstance(value, tuple) else value}")


def format_yaml_path(where: Path) -> str:
    """A place in YAML notation: `sites.north.methods[2].mu`. Keys that are not plain names are quoted and shortened."""
    text = ""
    for part in where:
        if isinstance(part, int):
            text += f"[{part}]"
        elif re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part):
            text += f".{part}" if text else part
        else:
            text += f"[{shorten_value(part)}]"
    return text


def shorten_value(value: object) -> str:
    """A value as a message shows it: as JSON, at most 60 characters."""
    text = json.dumps(value[:80] if isinstance(value, str) else value, ensure_ascii=True, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
