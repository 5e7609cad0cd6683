"""Names that are valid in a path, a message and a table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from privacy.settings_error import Problem

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")


def is_name(text: str) -> bool:
    """Whether this is a valid name."""
    return NAME.fullmatch(text) is not None


def name_problems(name: str) -> list[Problem]:
    """Problems with a setting `name`."""
    return [] if is_name(name) else [Problem(("name",), f"made of a-z 0-9 _ -, at most 80, found {name!r}")]


def label_problems(labels: Iterable[str], *where: str) -> list[Problem]:
    """Problems with labels of methods or variants that cannot be file names or parts of conversations' names."""
    text = "is not made of a-z 0-9 _ - (at most 60), or is the reserved 'manifest'"
    return [
        Problem(where, f"the label {label!r} {text}")
        for label in labels
        if not is_name(label) or len(label) > 60 or label == "manifest"
    ]


FILL_IN = "FILL IN"
"""Marks a setting in a draft that a person must fill in."""
RESERVED = ("central", "overall", "public")
"""Columns of the tables of results, which are no allowed names of sites."""
