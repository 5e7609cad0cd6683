"""Parse YAML text to plain data, with the line of every path, and report all problems at once.

Scalars are read more strictly than in YAML 1.1, so that a settings file means what a person reads in it:

* quoted text is text, and so is every key;
* `null`, `~` and an empty value are null; only `true` and `false` are truth values (`yes`, `NO`, `on` stay text);
* whole numbers are decimal without a leading zero (`010`, `0x1f`, `1_000` stay text) and fit 64 bits;
* `1e-4`, `1E5`, `.5`, `5.` are floats; `.inf` and `.nan` are refused, since null says "no limit";
* `12:30` and `2026-01-01` stay text;
* anchors and aliases work, merge keys (`<<`) and tags (`!!python/...`) are refused;
* `${CONSILIUM_DATA}` in a value becomes the data folder; any other `${...}` is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import yaml

from privacy.pickled import reduce_error
from privacy.settings_error import Path, Problem, shorten_value

if TYPE_CHECKING:
    from privacy.message import Json

MAX_CHARACTERS = 200_000  # of the text, and of all keys and values after aliases are followed
MAX_DEPTH = 40
MAX_NODES = 20_000  # after aliases are followed
MAX_SHOWN = 20
DATA_ROOT = "CONSILIUM_DATA"

WHOLE = re.compile(r"[-+]?(0|[1-9][0-9]*)")
DECIMAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
SUBSTITUTION = re.compile(r"\$\{[^}]*\}?")


class ConfigError(ValueError):
    """All problems with a settings file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=lambda p: (p.line or 0, p.path, p.message)))
        super().__init__(render(self, "settings"))

    __reduce__ = reduce_error


class FilesMissing(ConfigError):
    """Folders or files in the settings do not exist; there is no other problem."""


@dataclass(frozen=True)
class Document:
    """Plain data, and the line (from 1) of each path in it. problems: with single values (`parsed`), which `validate`
    reports together with its own.
    """

    data: Json
    lines: Mapping[Path, int]
    problems: tuple[Problem, ...] = ()


def render(error: ConfigError, path: str) -> str:
    """One line per problem, as in `prostate.yaml:12: train.methods[2].mu: must be >= 0, found -1`; at most 20."""
    lines = []
    for problem in error.problems[:MAX_SHOWN]:
        place = path if problem.line is None else f"{path}:{problem.line}"
        lines.append(": ".join(part for part in (place, problem.path, problem.message) if part))
    more = len(error.problems) - MAX_SHOWN
    return "\n".join(lines + ([f"{path}: and {more} more problems"] if more > 0 else []))


def problem_at(document: Document, problem: Problem) -> Problem:
    """The problem with its line, or that of the nearest enclosing group."""
    key = problem.where
    while key and key not in document.lines:
        key = key[:-1]
    return replace(problem, line=document.lines.get(key))


def read_yaml(text: str, *, environment: Mapping[str, str]) -> Document:
    """Plain data of one YAML document. Reads no file and executes no code.

    environment: the variables, of which CONSILIUM_DATA is used.

    Raises:
        ConfigError: with every problem of the text; no text causes another exception.
    """
    document = parse_document(text, environment=environment)
    if document.problems:
        raise ConfigError(document.problems)
    return document


def parse_document(text: str, *, environment: Mapping[str, str]) -> Document:
    """As `read_yaml`, but problems with single values go to `Document.problems`; `validate` reports them together with
    all others.

    Raises:
        ConfigError: the text is not a YAML document, or too large.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError([Problem((), f"the file has {len(text)} characters; at most {MAX_CHARACTERS} are read")])
    seen = _Seen(environment.get(DATA_ROOT) or None)
    data = None
    node = _compose_node(text, seen)
    try:
        data = None if node is None else _convert_node(node, (), seen)
    except _TooLargeError as error:
        seen.problems.append(Problem(error.path, str(error)))
        raise ConfigError(seen.problems) from error
    return Document(data, seen.lines, tuple(seen.problems))


@dataclass(frozen=True)
class _Seen:
    """Results collected while the nodes are read."""

    data_root: str | None
    problems: list[Problem] = field(default_factory=list)
    lines: dict[Path, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=lambda: [0, 0])  # nodes and characters so far

    def grow(self, path: Path, characters: int) -> None:
        self.sizes[0] += 1
        self.sizes[1] += characters
        if self.sizes[0] > MAX_NODES:
            raise _TooLargeError(path, f"more than {MAX_NODES} values once aliases are followed; write fewer")
        if self.sizes[1] > MAX_CHARACTERS:
            raise _TooLargeError(path, f"more than {MAX_CHARACTERS} characters once aliases are followed; write fewer")
        if len(path) >= MAX_DEPTH:
            raise _TooLargeError(
                path[:MAX_DEPTH], f"nested deeper than {MAX_DEPTH} levels; an alias may contain itself"
            )


class _TooLargeError(Exception):
    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path

    __reduce__ = reduce_error


class _Composer(yaml.SafeLoader):
    """PyYAML's parser up to the node tree, with a limit on depth (it recurses) and without tags."""

    def __init__(self, text: str, problems: list[Problem]) -> None:
        super().__init__(text)
        self.level = 0
        self.problems = problems

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self.level >= MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if getattr(event, "tag", None) is not None:
            problem = f"tags are refused, found {shorten_value(event.tag)}; remove it"
            self.problems.append(Problem((), problem, event.start_mark.line + 1))
            event.tag = None  # ignored, so that the rest is checked, too
            event.implicit = (True, False) if isinstance(event, yaml.ScalarEvent) else True
        self.level += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.level -= 1
        return node


def _compose_node(text: str, seen: _Seen) -> yaml.Node | None:
    try:
        composer = _Composer(text, seen.problems)
        node: yaml.Node | None = composer.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        text = f"a character that YAML does not allow: {shorten_value(chr(error.character))}"
        seen.problems.append(Problem((), text, line))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if "'\\t'" in problem:
            problem += "; indent with spaces, not with tabs"
        seen.problems.append(Problem((), f"not valid YAML: {problem}", None if mark is None else mark.line + 1))
    except Exception as error:  # PyYAML leaks errors of chr() and int(): '"\UFFFFFFFF"', '%YAML 1.<5000 digits>'
        seen.problems.append(Problem((), f"not valid YAML: {str(error)[:200] or type(error).__name__}"))
    else:
        return node
    raise ConfigError(seen.problems)


def _convert_node(node: yaml.Node, path: Path, seen: _Seen) -> Json:
    seen.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen.grow(path, 0)
        return _convert_mapping(node, path, seen)
    if isinstance(node, yaml.SequenceNode):
        seen.grow(path, 0)
        return [_convert_node(item, (*path, index), seen) for index, item in enumerate(node.value)]
    value, complaint = _parse_scalar(node.value, getattr(node, "style", None), seen.data_root)
    seen.grow(path, len(value) if isinstance(value, str) else 1)
    if complaint is not None:
        seen.problems.append(Problem(path, complaint, node.start_mark.line + 1))
    return value


def _convert_mapping(node: yaml.MappingNode, path: Path, seen: _Seen) -> Json:
    data: dict[str, Json] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        complaint = _key_complaint(key_node)
        if complaint is not None:
            seen.problems.append(Problem(path, complaint, line))
            continue
        key = key_node.value
        inner = (*path, key)
        seen.grow(path, len(key))
        if key in data:
            problem = f"given twice, first on line {seen.lines[inner]}, again on line {line}; remove one"
            seen.problems.append(Problem(inner, problem, line))
            continue
        seen.lines[inner] = line
        data[key] = _convert_node(value_node, inner, seen)
    return data


def _key_complaint(node: yaml.Node) -> str | None:
    if not isinstance(node, yaml.ScalarNode):
        return "a key must be text, found a group or a list; write a name before the colon"
    if node.style is None and node.value == "<<":
        return "merge keys (<<) are refused; write the keys out, or use an alias for the whole group"
    if not node.value:
        return "a key must not be empty; write a name before the colon"
    if not _is_encodable(node.value):
        return f"the key {shorten_value(node.value)} is not valid Unicode"
    if "${" in node.value:
        return f"nothing is substituted in a key, found {shorten_value(node.value)}"
    return None


def _parse_scalar(text: str, style: str | None, data_root: str | None) -> tuple[Json, str | None]:
    """The value of a scalar, and a complaint or None."""
    if style is None:  # plain; quoted and block scalars are text
        if text in ("", "~", "null"):
            return None, None
        if text in ("true", "false"):
            return text == "true", None
        number = _parse_number(text)
        if number is not None:
            return number
    return _substitute_variables(text, data_root)


def _parse_number(text: str) -> tuple[Json, str | None] | None:
    if WHOLE.fullmatch(text):
        fits = len(text) <= 20 and -(2**63) <= int(text) < 2**63
        return (int(text), None) if fits else (0, f"whole numbers must fit 64 bits, found {shorten_value(text)}")
    if DECIMAL.fullmatch(text) and not LEADING_ZERO.fullmatch(text):
        value = float(text)
        return (value, None) if math.isfinite(value) else (0.0, f"too large for a number, found {shorten_value(text)}")
    if NO_NUMBER.fullmatch(text):
        return None, f"numbers must be finite, found {text}; for 'no limit' use null"
    return None


def _substitute_variables(text: str, data_root: str | None) -> tuple[str, str | None]:
    variables = set(SUBSTITUTION.findall(text))
    unknown = sorted(variables - {f"${{{DATA_ROOT}}}"})
    if unknown:
        return text, f"unknown substitution {shorten_value(unknown[0])}; the only one is ${{{DATA_ROOT}}}"
    if variables and data_root is None:
        return text, f"{DATA_ROOT} is not set; set it to the folder of the data: export {DATA_ROOT}=/path/to/data"
    replaced = text.replace(f"${{{DATA_ROOT}}}", data_root) if variables and data_root else text
    return replaced, None if _is_encodable(replaced) else f"not valid Unicode: {shorten_value(text)}"


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
