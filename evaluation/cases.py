"""The test patients on whom a hospital's model is wrong, or right and unsure, for the hospital's own page: a person
looks at them, and may mark them, see `pipelines/reviews`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from evaluation.drawing import Picture
from evaluation.page import (
    Block,
    Drawing,
    Group,
    Heading,
    ImageSlider,
    MarkedCase,
    MarkSummary,
    Options,
    Paragraph,
    Section,
    Span,
    Text,
    compose_text,
)
from evaluation.wording import format_count, format_hundredths, format_whole

MOST_CASES = 20
"""Patients on a page on whom the model is wrong; of numbers and masks, which are neither right nor wrong, of all."""
MOST_UNSURE = 10
"""Patients on a page on whom it is right, but unsure."""

ORDER = " This order is by the reference standard, which may be wrong itself."


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


def build_cases_section(cases: Cases | None) -> list[Section]:
    """The patients on whom a model is wrong, or right and unsure; nothing where these are not known."""
    if cases is None:
        return []
    blocks: list[Block] = [Paragraph(_describe_cases(cases))]
    if cases.shown:
        text = compose_text(
            "To mark them with *agree*, *disagree* or *unsure* and a note: `{command}`. Marks stay in this hospital's "
            "folder.",
            command=cases.command,
        )
        blocks += [MarkSummary(cases.digest, cases.run), Paragraph(text, "note")]
    if cases.shown and cases.keys:
        blocks += [Drawing(replace(cases.keys, caption="")), Paragraph(cases.keys.caption, "note")]
    if len(cases.groups) > 1:
        options = [(name, f"{heading.lower()}: {len(shown)}") for name, heading, shown in cases.groups]
        blocks.append(Options("Cases shown", "cases-shown", [("all", f"all {len(cases.shown)}"), *options]))
    number = 0
    for name, heading, shown in cases.groups:
        articles = [_build_case(case, number + place, 4 if heading else 3) for place, case in enumerate(shown, 1)]
        blocks.append(Group([*([Heading(heading)] if heading else []), *articles], f"group {name}"))
        number += len(shown)
    return [Section("Cases to look at", blocks, "cases", "Cases")]


def _describe_cases(cases: Cases) -> Text:
    """How many there are, and which of them are shown."""
    method, patients = Span(cases.method, "strong"), format_count(cases.patients, "test patient", "test patients")
    if cases.wrong is None:
        shown = format_count(len(cases.shown), "test patient", "test patients")
        start = f"{shown} of {format_whole(cases.patients)} on whom "
        limit = " is farthest off, the worst first: {order}. No limit says from where on that is wrong."
        return (start, method, limit.format(order=cases.order), ORDER)
    text = (
        f" is wrong on {format_whole(cases.wrong)} of {patients}, in at least one {cases.example} of each, and right "
        f"but unsure on {format_whole(cases.unsure)}: it gives the class of the reference standard a probability below "
        f"{format_hundredths(cases.sure)}."
    )
    if cases.wrong + cases.unsure < cases.patients:
        text += " On the others it is right and sure."
    if cases.groups:
        counts = [f"{len(shown)} on whom it is {name}" for name, _, shown in cases.groups]
        text += f" Shown: {', and '.join(counts)}, the worst first: {cases.order}.{ORDER}"
    return (method, text)


def _build_case(case: Case, number: int, level: int) -> MarkedCase:
    """A patient. level: of the heading."""
    start = "" if case.is_wrong is None else "Wrong. " if case.is_wrong else "Right, but unsure. "
    text = compose_text(
        "{start}Reference standard: **{label}** · model: **{predicted}**",
        start=start,
        label=case.label,
        predicted=case.predicted,
    )
    blocks: list[Block] = [Paragraph(text)]
    if case.facts:
        blocks.append(Paragraph(case.facts, "note"))
    if case.views:
        rest = f"{len(case.views) - 1} other {case.called} of {case.examples}"
        blocks.append(ImageSlider(f"case {number}", case.views, case.worst, rest))
    title = (f"{number}. ", Span(case.code[:8], "code"))
    return MarkedCase(title, f"case-{number}", level, blocks, case.code, case.label, case.predicted)
