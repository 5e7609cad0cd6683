"""Detect which command reads a settings file, so that every other command can name the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from pipelines.loader.document import ConfigError, Document
from privacy.settings_error import Problem

if TYPE_CHECKING:
    from privacy.message import Json

Command: TypeAlias = Literal["run", "study", "site", "night"]


class Sort(NamedTuple):
    """One sort of settings file: the keys that identify it, and the command that reads it."""

    what: str
    keys: tuple[str, ...]
    command: Command


SORTS = (
    Sort("the settings of a study", ("base", "cases"), "study"),
    Sort("a hospital's own settings", ("kit", "site"), "site"),
    Sort("the settings of a night", ("archive", "state"), "night"),
    Sort("the settings of a run", ("sites", "train"), "run"),
    Sort("the settings of a benchmark", ("benchmark", "sites"), "run"),
    Sort("the settings of an external site", ("models",), "run"),
)


def sort_of(data: Json) -> Sort | None:
    """The only sort all of whose keys are present; None if there is none or more than one."""
    if not isinstance(data, dict):
        return None
    sorts = [sort for sort in SORTS if all(key in data for key in sort.keys)]
    return sorts[0] if len(sorts) == 1 else None


def meant_for(document: Document, command: Command, file: str) -> Document:
    """The document, if `command` reads such files or their sort is unknown.

    Raises:
        ConfigError: the file is for another command, which the message names.
    """
    sort = sort_of(document.data)
    if sort is None or sort.command == command:
        return document
    text = f"this file holds {sort.what}; use: python -m pipelines.{sort.command} {file}"
    raise ConfigError([Problem((), text)])


def check_training(document: Document) -> None:
    """Raises: ConfigError: the file is read by the command `run` too, but trains nothing."""
    sort = sort_of(document.data)
    if sort is not None and "train" not in sort.keys:
        text = f"this file holds {sort.what}, and nothing is trained by it; give the settings of a run"
        raise ConfigError([Problem((), text)])
