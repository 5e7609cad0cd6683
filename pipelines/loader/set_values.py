"""`--set a.b=c`: values of the command line that replace those of a settings file, read and checked in the same way.
A problem with one of them names the `--set` instead of a line of the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipelines.loader.document import ConfigError, Document, parse_document
from privacy.settings_error import Path, Problem, format_yaml_path, shorten_value

if TYPE_CHECKING:
    from privacy.message import Json

NAME = r"[A-Za-z0-9_-]+(?:\[[0-9]{1,6}\])*"
KEY = re.compile(rf"{NAME}(?:\.{NAME})*")
PART = re.compile(r"([A-Za-z0-9_-]+)|\[([0-9]+)\]")


class SetValue(NamedTuple):
    """One `--set`: its text, the path, and the value."""

    text: str
    path: Path
    value: Json


def apply_set_values(document: Document, texts: Sequence[str]) -> Document:
    """The document with these values; missing groups are created.

    texts: as typed after `--set`, e.g. `train.schedule.rounds=3`, `images.size=32`, `train.methods.own={name: local}`.

    Raises:
        ConfigError: with every text that has no valid path, or whose value is not YAML.
    """
    values, problems = [], list[Problem]()
    for text in texts:
        try:
            values.append(_parse_set_value(text))
        except ConfigError as error:
            problems += error.problems
    paths = [value.path for value in values]
    problems += [
        _build_problem(value.text, "given twice; remove one")
        for index, value in enumerate(values)
        if value.path in paths[:index]
    ]
    data, lines, kept_problems = document.data, dict(document.lines), list(document.problems)
    for value in values:
        try:
            data = _put_value(data, value.path, value.value)
        except LookupError as error:
            problems.append(_build_problem(value.text, str(error)))
        lines = {path: line for path, line in lines.items() if not _is_within(path, value.path)}
        kept_problems = [
            problem for problem in kept_problems if not (problem.where and _is_within(problem.where, value.path))
        ]
    if problems:
        raise ConfigError([*problems, *kept_problems])
    return Document(data, lines, tuple(kept_problems))


def naming_values(error: ConfigError, texts: Sequence[str], lines: Mapping[Path, int]) -> ConfigError:
    """The same error; a problem with the value of a `--set`, or with a group that it created, names the `--set`.

    lines: of the document with the values. If several match, the last is named.
    """
    values = [_parse_set_value(text) for text in texts]

    def name_problem(problem: Problem) -> Problem:
        for value in reversed(values):
            inside = bool(problem.where) and _is_within(problem.where, value.path)
            made = bool(problem.where) and _is_within(value.path, problem.where) and problem.where not in lines
            if inside or made:
                return _build_problem(value.text, f"{format_yaml_path(problem.where)}: {problem.message}")
        return problem

    return type(error)([name_problem(problem) for problem in error.problems])


def _parse_set_value(text: str) -> SetValue:
    """Raises: ConfigError."""
    name, equals, value = text.partition("=")
    path = _parse_path(name)
    if not equals or not path:
        problem = f"must be KEY=VALUE with a key such as train.schedule.rounds, found {shorten_value(text)}"
        raise ConfigError([_build_problem(text, problem)])
    try:
        document = parse_document(value, environment=os.environ)
    except ConfigError as error:
        raise ConfigError([_build_problem(text, problem.message) for problem in error.problems]) from error
    if document.problems:
        raise ConfigError([_build_problem(text, problem.message) for problem in document.problems])
    return SetValue(text, path, document.data)


def _parse_path(name: str) -> Path:
    """`a.b[2].c` as keys and indices; empty if it is not a valid path."""
    if KEY.fullmatch(name) is None:
        return ()
    return tuple(int(part[2]) if part[1] is None else part[1] for part in PART.finditer(name))


def _put_value(data: Json, path: Path, value: Json) -> Json:
    """Raises: LookupError: the path does not exist, because a value on it is neither a group nor a list."""
    if not path:
        return value
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        if not isinstance(data, list) or first >= len(data):
            size = f"a list of {len(data)}" if isinstance(data, list) else "no list"
            raise LookupError(f"[{first}] must be the place of a value that is there, from 0; found {size}")
        return [*data[:first], _put_value(data[first], rest, value), *data[first + 1 :]]
    if data is not None and not isinstance(data, dict):
        raise LookupError(f"{first} must be a key of a group, found {shorten_value(data)} in the group's place")
    group = {} if data is None else data
    return {**group, first: _put_value(group.get(first), rest, value)}


def _is_within(path: Path, outer: Path) -> bool:
    return path[: len(outer)] == outer


def _build_problem(text: str, message: str) -> Problem:
    return Problem((), f"--set {text}: {message}")
