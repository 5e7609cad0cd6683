"""The test patients on whom a hospital's model is wrong most, for the hospital's own page: a person looks at them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from evaluation.drawing import Picture

MOST_CASES = 20
"""Patients on a page."""


@dataclass(frozen=True)
class Case:
    """A patient. code: the pseudonym. label: the given one, in words, as what is predicted. picture: the images; None =
    there are none. facts: of a line of a table, its values in words.
    """

    code: str
    label: str
    predicted: str
    picture: Picture | None = None
    facts: str = ""


@dataclass(frozen=True)
class Cases:
    """The patients on whom a model is wrong most, the worst first.

    run: whose models these are. method: the model. order: by what they are ordered, in words. patients: that were
    tested. keys: what outlines and colours mean; None = there are no images. command: with which they are marked.
    """

    run: str
    method: str
    order: str
    patients: int
    shown: Sequence[Case]
    keys: Picture | None = None
    command: str = ""

    @property
    def digest(self) -> str:
        """SHA-256 of what is said of them: marks of other cases, or of another run, have another one."""
        shown = [[case.code, case.label, case.predicted] for case in self.shown]
        return hashlib.sha256(json.dumps([self.run, self.method, shown]).encode()).hexdigest()
