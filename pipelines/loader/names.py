"""Names that can stand in a path, a message and a table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from privacy.settings_error import Problem

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


def named(text: str) -> bool:
    """Whether this is such a name."""
    return NAME.fullmatch(text) is not None


def name_problems(name: str) -> list[Problem]:
    """What is wrong with a setting `name`."""
    return [] if named(name) else [Problem(("name",), f"made of a-z 0-9 _ -, at most 80, found {name!r}")]


def label_problems(labels: Iterable[str], *where: str) -> list[Problem]:
    """Which labels of methods or variants cannot be file names and parts of names of conversations."""
    text = "is not made of a-z 0-9 _ - (at most 60), or is the reserved 'manifest'"
    return [
        Problem(where, f"the label {label!r} {text}")
        for label in labels
        if not named(label) or len(label) > 60 or label == "manifest"
    ]


FILL_IN = "FILL IN"
"""Stands in a draft where a person must write a setting."""
RESERVED = ("central", "overall", "public")
"""Columns of the tables of results, which no site may be called."""
