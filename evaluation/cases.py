"""The test patients on whom a hospital's model is wrong, or right and unsure, for the hospital's own page: a person
looks at them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluation.drawing import Picture

MOST_CASES = 20
"""Patients on a page on whom the model is wrong; of numbers and masks, which are neither right nor wrong, of all."""
MOST_UNSURE = 10
"""Patients on a page on whom it is right, but unsure."""


class View(NamedTuple):
    """An example of a patient. name: "slice 3"."""

    name: str
    picture: Picture


@dataclass(frozen=True)
class Case:
    """A patient. code: the pseudonym. label: the given one, in words, as what is predicted. views: of the patient's
    examples in their order, or of slices of a volume; empty = there are no images. worst: the place of the one that
    label and prediction are of. examples: the number of all. called: what they are, in the plural. facts: of a line of
    a table, its values in words. is_wrong: None = the answer is neither right nor wrong.
    """

    code: str
    label: str
    predicted: str
    views: Sequence[View] = ()
    worst: int = 0
    examples: int = 0
    called: str = "images"
    facts: str = ""
    is_wrong: bool | None = None


@dataclass(frozen=True)
class Cases:
    """The patients on whom a model is wrong, the worst first; then those on whom it is right, but unsure.

    run: whose models these are. method: the model. order: by what they are ordered, in words. patients: that were
    tested. shown: the cases. keys: what outlines and colours mean; None = there are no images. command: with which they
    are marked. wrong, unsure: numbers of patients, shown or not; None = answers are neither right nor wrong. sure: the
    probability from which on an answer is not unsure. example: what an image is called.
    """

    run: str
    method: str
    order: str
    patients: int
    shown: Sequence[Case]
    keys: Picture | None = None
    command: str = ""
    wrong: int | None = None
    unsure: int = 0
    sure: float = 1.0
    example: str = "image"

    @property
    def digest(self) -> str:
        """SHA-256 of what is said of them: marks of other cases, or of another run, have another one."""
        shown = [[case.code, case.label, case.predicted] for case in self.shown]
        return hashlib.sha256(json.dumps([self.run, self.method, shown]).encode()).hexdigest()

    @property
    def groups(self) -> list[tuple[str, str, list[Case]]]:
        """(name, heading, cases) in order; one without a heading, where answers are neither right nor wrong."""
        if self.wrong is None:
            return [("all", "", [*self.shown])] if self.shown else []
        wrong, unsure = ([case for case in self.shown if case.is_wrong is which] for which in (True, False))
        named = [("wrong", "Wrong", wrong), ("unsure", "Right, but unsure", unsure)]
        return [(name, heading, cases) for name, heading, cases in named if cases]
