"""Error recovery: after a wrong setting the check continues without it, so that all errors are reported at once.

A wrong setting is removed, and the rest is checked again. Some problems of the rest may only follow from the removal
(shares that no longer sum to one, a method that is no longer defined): `follows` recognizes them by their place and by
the names in them, and they are not reported. In doubt a problem is not reported: the next check finds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pipelines.loader.keys import kinds_at, literals_of

if TYPE_CHECKING:
    from privacy.message import Json
    from privacy.settings_error import Path, Problem


def remove_settings(kind: Any, data: Json, paths: Iterable[Path], gone: Sequence[Path]) -> tuple[Json, list[Path]]:
    """The data without the values at these paths, and the paths removed now.

    A list is removed as a whole, since the indices of its other members would change. A missing required number or text
    is replaced by a value of its type once; for any other missing value the enclosing group is removed.

    kind: the class of the whole settings. gone: the paths removed before.
    """
    now: list[Path] = []
    for path in paths:
        existing = _existing_prefix(data, path)
        missing = path != () and existing == path[:-1] and not isinstance(path[-1], int)
        if missing and [*gone, *now].count(path) < 2 and (value := stand_in(kind, data, path)) is not None:
            data = _put_value(data, path, value)
            now += [path, path]  # twice, so that it is not replaced again
        elif existing:
            data = _put_value(data, existing, None)
            now.append(existing)
    return data, now


def stand_in(kind: Any, data: Json, path: Path) -> str | int | float | bool | None:
    """Some value of the type at a path; None if it is not a number, text, truth value or literal, or if it
    distinguishes the members of a union.
    """
    if len(kinds_at(kind, data, path[:-1])) > 1:
        return None
    kinds = kinds_at(kind, data, path)
    if literals := [value for each in kinds for value in literals_of(each)]:
        return cast("str | int | float | bool", literals[0])
    simple: tuple[tuple[type, str | int | float | bool], ...] = ((bool, False), (int, 1), (float, 1.0), (str, "x"))
    return next((value for kind_of_value, value in simple if kind_of_value in kinds), None)


def _existing_prefix(data: Json, path: Path) -> Path:
    """The longest prefix of a path that exists in the data."""
    prefix: Path = ()
    for length, part in enumerate(path, start=1):
        if not isinstance(data, dict) or part not in data:
            break
        prefix, data = path[:length], data[str(part)]
    return prefix


def _put_value(data: Json, path: Path, value: Json) -> Json:
    """The data with a value at a path of keys; None removes the key."""
    if not isinstance(data, dict):
        return data
    first, rest = str(path[0]), path[1:]
    if rest:
        return {**data, first: _put_value(data[first], rest, value)} if first in data else data
    return {**{key: each for key, each in data.items() if key != first}, **({} if value is None else {first: value})}


def may_follow(problem: Problem, gone: Sequence[Path]) -> bool:
    """Whether a problem may only follow from removed settings: its place is theirs or that of an enclosing group, it
    needs them or names them, or a whole hospital was removed and the problem concerns the run as a whole.
    """
    text = f"{problem.path} {problem.message}"
    of_run = len(problem.where) < 2
    return any(
        is_beside(problem, path)
        or any(_paths_overlap(need, path) for need in problem.needs)
        or _names_key(text, str(path[-1]))
        or (of_run and path[0] == "sites" and len(path) == 2)
        for path in gone
    )


def select_causes(problems: Sequence[Problem]) -> list[Problem]:
    """The problems that need no place of which another problem is told; all, where each needs another's place."""
    causes = [problem for problem in problems if not _needs_place_of_any(problem, problems)]
    return [problem for problem in problems if problem in causes or not _needs_place_of_any(problem, causes)]


def _needs_place_of_any(problem: Problem, problems: Sequence[Problem]) -> bool:
    return any(
        _paths_overlap(need, other.where)
        for need in problem.needs
        for other in problems
        if other.where != problem.where
    )


def is_beside(problem: Problem, path: Path) -> bool:
    """Whether a problem's place is a path, a part of it, or an enclosing group."""
    return _paths_overlap(problem.where, path)


def _paths_overlap(first: Path, second: Path) -> bool:
    return first[: len(second)] == second or second[: len(first)] == first


def _names_key(text: str, key: str) -> bool:
    """Whether a sentence names a key: in quotes, as part of a path, with its value after a colon, or as a method."""
    word = re.escape(key)
    forms = (f"['\"]{word}['\"]", f"\\.{word}(?![\\w-])", f"(?<![\\w-]){word}(\\.\\w|: )", f"method {word}(?![\\w-])")
    return any(re.search(form, text) for form in forms)
