"""The settings loader: turn plain data into a frozen dataclass, or report every problem with its line and remedy.

Types are strict: text is never converted to a number. Two conversions are allowed because YAML has no such types: a
whole number where a float is expected, and a list where a tuple is. Ranges are stated once, in `__post_init__` of the
dataclass, which raises a `SettingsError` with a `Problem` for each field.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from federation.registry import permit_packages
from pipelines.loader.document import ConfigError, Document, FilesMissing, problem_at
from pipelines.loader.first_fields import FIRST
from pipelines.loader.keys import keys_at, tags_at
from pipelines.loader.names import FILL_IN
from pipelines.loader.numbers import find_absurd_numbers
from pipelines.loader.recovery import is_beside, may_follow, remove_settings
from privacy.settings_error import Path, Problem, problems_of, shorten_value

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from privacy.message import Json

T = TypeVar("T")

# The allowed values, by pydantic's error type; {..} is filled from the error's context.
ALLOWED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "none_required": "null",
    "dict_type": "a group of keys",
    "mapping_type": "a group of keys",
    "dataclass_type": "a group of keys",
    "model_attributes_type": "a group of keys",
    "tuple_type": "a list",
    "list_type": "a list",
    "frozen_set_type": "a list",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than_equal": ">= {ge}",
    "greater_than": "> {gt}",
    "less_than_equal": "<= {le}",
    "less_than": "< {lt}",
    "too_short": "a list of at least {min_length} values",
    "too_long": "a list of at most {max_length} values",
    "unexpected_positional_argument": "left out",
}
PATIENTS = frozenset(("exclude", "test", "where", "select"))  # keys of a site whose values may name patients
ROOMS = frozenset(("federation", "harmonize", "personalize", "pipelines", "privacy"))
MISSING = "missing; add it"
MISSING_TYPES = ("missing", "missing_argument", "missing_keyword_only_argument")
PASSES = 6
"""The greatest number of checks, each without the wrong values of the one before."""


@lru_cache(maxsize=128)
def adapter_of(kind: Hashable) -> TypeAdapter[Any]:
    """Pydantic's adapter of a type, made once per type: that of a run's settings takes 60 ms."""
    return TypeAdapter(cast("type[Any]", kind))


def validate_settings(
    document: Document, kind: type[T], missing: Callable[[Json], Sequence[Problem]] | None = None
) -> T:
    """Settings of a frozen dataclass, from plain data. The class carries `__pydantic_config__ = {"extra": "forbid"}`.

    missing: finds folders and files in the plain data that do not exist.

    Raises:
        ConfigError: with every problem of the text (`Document.problems`), of numbers (`pipelines.loader.numbers`), of
            pydantic, of a `__post_init__`, or of `missing`. One problem hides others only if these may follow from it.
            `FilesMissing` if only files are missing.
    """
    with permit_packages("all", unless_set=True):  # a person wrote these settings here, and chose what they name
        settings, problems_found = _check_document(document, kind)
        problems = _without_second(problems_found)
        problems += _find_unfilled(document, problems)
        absent = [] if missing is None else missing(document.data)
    known_places = {problem.where for problem in problems}
    files = [problem_at(document, problem) for problem in absent if problem.where not in known_places]
    if problems or settings is None:
        raise ConfigError([*problems, *files])
    if files:
        raise FilesMissing(files)
    return settings


def _without_second(problems: Sequence[Problem]) -> list[Problem]:
    """The problems without a missing key that is there, misspelt."""
    meant = _guess_meant_places(problems)
    return [problem for problem in problems if not (problem.where in meant and problem.message == MISSING)]


def _guess_meant_places(problems: Sequence[Problem]) -> list[Path]:
    """The places of the keys that unknown ones were probably meant for."""
    guesses = [(problem, re.match(r"unknown key \(did you mean '([^']*)'", problem.message)) for problem in problems]
    return [(*problem.where[:-1], guess[1]) for problem, guess in guesses if guess]


def _find_unfilled(document: Document, problems: Sequence[Problem]) -> list[Problem]:
    """Texts that a draft marks to be filled in, and of which no problem is told."""
    places = [
        where
        for where in _find_texts(document.data, FILL_IN)
        if not any(is_beside(problem, where) for problem in problems)
    ]
    text = f"{FILL_IN} is what a draft writes where it does not know; replace it as the comments beside it say"
    return [problem_at(document, Problem(where, text)) for where in places]


def _find_texts(data: Json, text: str, where: Path = ()) -> Iterator[Path]:
    """The places of a text."""
    if isinstance(data, str) and data.strip() == text:
        yield where
    parts: Iterable[tuple[str | int, Json]] = (
        data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    )
    for key, value in parts:
        yield from _find_texts(value, text, (*where, key))


def _check_document(document: Document, kind: type[T]) -> tuple[T | None, list[Problem]]:
    """The settings; or None, and all problems."""
    absurd_numbers = [
        problem_at(document, problem) for problem in find_absurd_numbers(document.data, PATIENTS)
    ]  # before anything is built
    adapter, all_problems = adapter_of(cast(Hashable, kind)), [*document.problems, *absurd_numbers]
    problems = list(all_problems)
    data, gone = remove_settings(kind, document.data, [problem.where for problem in problems if problem.where], ())
    for _ in range(PASSES):
        try:
            # Strict JSON is the only mode that accepts a list for a tuple and a group for a dataclass, but not text for
            # a number.
            settings = adapter.validate_json(json.dumps(data), strict=True)
            return (None if problems else settings), problems
        except ValidationError as error:
            all_problems = problems_in(error, Document(data, document.lines), kind)
        new = [problem for problem in all_problems if not may_follow(problem, gone)]
        around = [problem for problem in all_problems if any(is_beside(problem, path) for path in gone)]
        problems += new
        data, more = remove_settings(kind, data, [problem.where for problem in (*new, *around)], gone)
        if not more:
            break
        gone += [*more, *_guess_meant_places(new)]
    return None, problems or all_problems


def to_plain(settings: object) -> Json:
    """Canonical plain form of settings, for digests and manifests.

    Dataclasses and mappings become groups, tuples and lists become lists, an enum becomes its value, an infinite float
    the text "inf" or "-inf". Equal settings give equal plain forms. A field that was added later is left out while it
    has its default (`pipelines.loader.first_fields`), so that settings keep their digest.

    Raises:
        TypeError: a set (its order is not fixed), a path (it belongs to one machine) or another type, with its place.
        ValueError: not a number (NaN).
    """
    return _convert_plain(settings, "settings")


def _convert_plain(value: object, where: str) -> Json:
    if isinstance(value, enum.Enum):
        return _convert_plain(value.value, where)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isnan(value):
            raise ValueError(f"{where} must be a number, found NaN; use null for 'none'")
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        added = _later_defaults(type(value))
        values = {
            f.name: _convert_plain(getattr(value, f.name), f"{where}.{f.name}") for f in dataclasses.fields(value)
        }
        return {name: each for name, each in values.items() if name not in added or each != added[name]}
    if isinstance(value, Mapping):
        strange = [key for key in value if type(key) is not str]
        if strange:
            raise TypeError(f"{where}: keys must be text, found {strange[0]!r}")
        return {key: _convert_plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_plain(inner, f"{where}[{index}]") for index, inner in enumerate(value)]
    raise TypeError(
        f"{where} must be made of dataclasses, mappings, tuples, lists, text, numbers, truth values and None, "
        f"found {type(value).__name__}; turn a set into a sorted tuple and a path into text"
    )


@lru_cache(maxsize=1024)
def _later_defaults(kind: type) -> Mapping[str, Json]:
    """Our own fields that are younger than `first_fields`, with their defaults; never a `name` or `kind`."""
    if kind.__module__.partition(".")[0] not in ROOMS:
        return {}  # what a package adds changes the package's digest
    first = FIRST.get(kind.__name__, "").split()
    defaults: dict[str, Json] = {}
    for field in dataclasses.fields(kind):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        if field.name not in (*first, "name", "kind") and default is not dataclasses.MISSING:
            defaults[field.name] = _convert_plain(default, field.name)
    return defaults


def problems_in(error_details: ValidationError, document: Document, kind: type) -> list[Problem]:
    """Pydantic's errors as problems, in our words and with paths and lines in the document."""
    problems: list[Problem] = []
    allowed: dict[Path, tuple[list[str], object]] = {}  # alternatives of a union are one problem
    errors = error_details.errors(include_url=False)
    for path, (length, found_list) in _find_short_lists(errors, document.data).items():
        allowed[path] = ([f"a list of {length} values"], found_list)
    for error in errors:
        if _is_of_short_list(error):
            continue
        allowed_words = ALLOWED.get(error["type"])
        if allowed_words is not None:
            path = locate_error(document.data, error["loc"])
            phrases, _ = allowed.setdefault(path, ([], error["input"]))
            phrases.append(allowed_words.format(**error.get("ctx", {})))
        else:
            problems += _problems_of_error(error, document, kind)
    for path, (phrases, value) in allowed.items():
        deeper = any(_lies_below(other, path) for other in allowed)
        if isinstance(value, dict) and (deeper or any(_lies_below(problem.where, path) for problem in problems)):
            continue  # one of several forms was meant, and the problem inside it is reported
        value_text = (
            f"a {type(value).__name__}"
            if _is_private(path)
            else f"{shorten_value(value)}{_describe_hint(phrases, value)}"
        )
        message = f"must be {' or '.join(dict.fromkeys(phrases))}, found {value_text}"
        problems.append(problem_at(document, Problem(path, message)))
    return problems


def _find_short_lists(errors: Sequence[ErrorDetails], data: Json) -> dict[Path, tuple[int, object]]:
    """Place of a list of a fixed length that has too few values -> the length, and the list that was found."""
    short = [error for error in errors if _is_of_short_list(error)]
    return {locate_error(data, error["loc"][:-1]): (int(error["loc"][-1]) + 1, error["input"]) for error in short}


def _is_of_short_list(error: ErrorDetails) -> bool:
    """Whether an error says that a value is missing in a list; there is one for each, in order."""
    return error["type"] in MISSING_TYPES and isinstance(error["loc"][-1], int)


def _lies_below(place: Path, path: Path) -> bool:
    return len(place) > len(path) and place[: len(path)] == path


def _is_private(path: Path) -> bool:
    """Whether a value may name a patient: it must not appear in messages, which machines keep in their journals."""
    return len(path) > 1 and path[0] == "sites" and not PATIENTS.isdisjoint(map(str, path))


def _describe_hint(phrases: Sequence[str], value: object) -> str:
    if isinstance(value, list) and len(value) == 4 and all(isinstance(number, int) for number in value):
        return "; corners have names: {top: .., left: .., bottom: .., right: ..}, in the rectangles of a layout"
    if not isinstance(value, str):
        return ""
    if value == FILL_IN:
        return "; replace it as the comments beside it say"
    choices = [choice for phrase in phrases for choice in re.findall(r"'([^']*)'", phrase)]
    if "true or false" in phrases and value.lower() in ("yes", "on", "true"):
        return "; write true"
    if "true or false" in phrases and value.lower() in ("no", "off", "false"):
        return "; write false"
    if any("number" in phrase for phrase in phrases) and re.fullmatch(r"[-+]?[0-9][0-9_,.]*", value):
        return "; write it without quotes, leading zeros and separators"
    return _guess_word(value, choices)


def _guess_word(word: str, choices: Sequence[str]) -> str:
    close = difflib.get_close_matches(word[:80], choices, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _problems_of_error(error: ErrorDetails, document: Document, kind: type) -> list[Problem]:
    match error["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            path = locate_error(document.data, error["loc"])
            allowed = keys_at(kind, document.data, path[:-1])
            message = f"unknown key{_guess_word(str(path[-1]), allowed)}; allowed: {_join_names(allowed)}"
        case missing if missing in MISSING_TYPES:
            path, message = (*locate_error(document.data, error["loc"][:-1]), error["loc"][-1]), MISSING
        case "union_tag_invalid":
            tag = error["ctx"]["discriminator"].strip("'")
            path = (*locate_error(document.data, error["loc"]), tag)
            choices = re.findall(r"'([^']*)'", error["ctx"]["expected_tags"])
            word = str(error["ctx"]["tag"])
            message = f"unknown {shorten_value(word)}{_guess_word(word, choices)}; allowed: {_join_names(choices)}"
        case "union_tag_not_found":
            tag = error["ctx"]["discriminator"].strip("'")
            base = locate_error(document.data, error["loc"])
            path = (*base, tag)
            message = (
                f"missing; it says which one is meant; allowed: {_join_names(tags_at(kind, document.data, base, tag))}"
            )
        case "value_error":
            base = locate_error(document.data, error["loc"])
            return [problem_at(document, each.within(*base)) for each in problems_of(error["ctx"]["error"])]
        case _:
            path = locate_error(document.data, error["loc"])
            message = f"{error['msg']}, found {shorten_value(error['input'])}"
    return [problem_at(document, Problem(path, message))]


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:40]) + (", ..." if len(names) > 40 else "") if names else "(none)"


def locate_error(data: Json, loc: Sequence[str | int]) -> Path:
    """Pydantic's location of an error as a path in the data, without the labels of union members."""
    path: list[str | int] = []
    labelled = True  # whether the label of the group at hand was passed; the whole file has none, only a name
    for index, part in enumerate(loc):
        rest = loc[index + 1 :]
        if isinstance(data, dict) and part in data:
            tagged = part in (data.get("name"), data.get("kind")) and not labelled
            if tagged and not (rest and _has_part(data[str(part)], rest[0])):
                labelled = True
                continue  # the label of a tagged union that is also a key in it
            data, labelled = data[str(part)], False
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def _has_part(data: Any, part: str | int) -> bool:
    return (isinstance(data, dict) and part in data) or (isinstance(data, list) and isinstance(part, int))
