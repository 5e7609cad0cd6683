"""The test patients on whom a hospital's model misses something, gives a false alarm, takes a class for another, or is
right and unsure, for the hospital's own page: a person looks at them, and may mark them, see `pipelines/reviews`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
MISSED, ALARM, OTHER_CLASS = "Missed", "False alarms", "Taken for another class"
MIXED, UNSURE = "Missed findings and false alarms", "Right, but unsure"
"""Headings below which cases stand."""

FIRST_SCORED = (
    "No model is recommended here, or the recommended one was not scored: these are the cases of the first that was."
)
"""Said where the cases are not those of the model that the hospital should use."""
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
    a table, its values in words. group: the heading below which it stands, outcome: what its answer is, as "Missed";
    both empty = the answer is neither right nor wrong.
    """

    code: str
    label: str
    predicted: str
    views: Sequence[View] = ()
    worst: int = 0
    examples: int = 0
    called: str = "images"
    facts: str = ""
    group: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Cases:
    """The patients on whom a model is wrong, the worst first; then those on whom it is right, but unsure.

    run: whose models these are. method: the model. order: by what they are ordered, in words. patients: that were
    tested. shown: the cases. keys: what outlines and colours mean; None = there are no images. command: with which they
    are marked. counts: by heading, in order, the number of patients, shown or not; none = answers are neither right nor
    wrong. sure: the probability from which on an answer is not unsure. example: what an image is called. is_used:
    whether the hospital should use the model.
    """

    run: str
    method: str
    order: str
    patients: int
    shown: Sequence[Case]
    keys: Picture | None = None
    command: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    sure: float = 1.0
    example: str = "image"
    is_used: bool = True

    @property
    def digest(self) -> str:
        """SHA-256 of what is said of them: marks of other cases, or of another run, have another one."""
        shown = [[case.code, case.label, case.predicted] for case in self.shown]
        return hashlib.sha256(json.dumps([self.run, self.method, shown]).encode()).hexdigest()

    @property
    def groups(self) -> list[tuple[str, list[Case]]]:
        """(heading, cases) in order; one without a heading, where answers are neither right nor wrong."""
        named = [(heading, [case for case in self.shown if case.group == heading]) for heading in self.counts or ("",)]
        return [(heading, cases) for heading, cases in named if cases]


def build_cases_section(cases: Cases | None, lookup: str = "") -> list[Section]:
    """The cases, a group below each heading; nothing where these are not known. All are of one model's answers, so its
    switch hides them all. lookup: the command that says who a code is.
    """
    if cases is None:
        return []
    blocks: list[Block] = [Paragraph(_describe_cases(cases))]
    if not cases.is_used:
        blocks.append(Paragraph(FIRST_SCORED))
    if cases.shown:
        text = compose_text(
            "To mark them with *agree*, *disagree* or *unsure* and a note: `{command}`. Marks stay in this hospital's "
            "folder.{who}",
            command=cases.command,
            who=compose_text(" Who a code is: `{lookup}`.", lookup=lookup) if lookup else "",
        )
        blocks += [MarkSummary(cases.digest, cases.run), Paragraph(text, "note")]
    if cases.shown and cases.keys:
        blocks += [Drawing(replace(cases.keys, caption="")), Paragraph(cases.keys.caption, "note")]
    if len(cases.groups) > 1:
        options = [(f"g{n}", f"{heading.lower()}: {len(shown)}") for n, (heading, shown) in enumerate(cases.groups)]
        blocks.append(Options("Cases shown", "cases-shown", [("all", f"all {len(cases.shown)}"), *options]))
    number = 0
    for place_of_group, (heading, shown) in enumerate(cases.groups):
        articles = [_build_case(case, number + place, 4 if heading else 3) for place, case in enumerate(shown, 1)]
        blocks.append(Group([*([Heading(heading)] if heading else []), *articles], f"group g{place_of_group}"))
        number += len(shown)
    return [Section("Cases to look at", blocks, "cases", "Cases", method=cases.method)]


def _describe_cases(cases: Cases) -> Text:
    """How many there are, and which of them are shown."""
    method, patients = Span(cases.method, "strong"), format_count(cases.patients, "test patient", "test patients")
    if not cases.counts:
        shown = format_count(len(cases.shown), "test patient", "test patients")
        start = f"{shown} of {format_whole(cases.patients)} on whom "
        limit = " is farthest off, the worst first: {order}. No limit says from where on that is wrong."
        return (start, method, limit.format(order=cases.order), ORDER)
    counts = "; ".join(f"{heading.lower()}: {format_whole(count)}" for heading, count in cases.counts.items())
    text = (
        f" on {patients}, by the worst {cases.example} of each – {counts}. *Unsure*: it gives what the reference "
        f"standard says a probability below {format_hundredths(cases.sure)}."
    )
    if (total := sum(cases.counts.values())) < cases.patients:
        text += " On the others it is right and sure."
    if cases.shown:
        share = "all" if len(cases.shown) == total else format_whole(len(cases.shown))
        text += f" Shown are {share} of these, in each group the worst first: {cases.order}.{ORDER}"
    return (method, compose_text(text))


def _build_case(case: Case, number: int, level: int) -> MarkedCase:
    """A patient. level: of the heading."""
    text = compose_text(
        "{start}Reference standard: **{label}** · model: **{predicted}**",
        start=(Span(case.outcome, "strong"), ". ") if case.outcome else "",
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
