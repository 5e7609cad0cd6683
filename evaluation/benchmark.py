"""The page of a benchmark: finished models at hospitals that never trained, the worst hospital first.

A mean over hospitals hides the one at which a model fails (Karargyris et al., Nature Machine Intelligence 5, 2023, for
the idea of evaluating where the data are). So hospitals stand in the order of the *lower end* of their intervals, the
lowest first: a hospital about which little is known may be one that fails, and stands before one that is known to be
fair. Before all of them stand hospitals that gave no score, each with its reason; none is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from evaluation.choice import primary
from evaluation.classes import KINDS, of_class
from evaluation.drawing import Picture
from evaluation.records import Command
from evaluation.rendering import rendered
from evaluation.rows import OVERALL, PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.wording import Words, counted, number

Verdict: TypeAlias = Literal["no score", "unknown", "below", "not shown", "reached", "scored"]
"""no score: no model was evaluated there. unknown: no interval. Beside `least`: the whole interval is below it, it lies
in the interval, or the interval is not below it. scored: no `least` was named."""


@dataclass(frozen=True)
class SignedModel:
    """A model as it was signed. sha256: of its file. key: the signer's public key. signed, expires: dates."""

    label: str
    title: str
    sha256: str
    bytes: int
    key: str
    signed: str
    expires: str


@dataclass(frozen=True)
class Reason:
    """Why a hospital gave no score. request: what was asked. code: its answer, in words `meaning`."""

    request: str
    code: str
    meaning: str


@dataclass(frozen=True)
class Visited:
    """A hospital as the coordinator knows it. scanners: vendor and field strength -> studies, where it tells them.
    rejected: studies that could not be used; None = not told. digests: model -> SHA-256 of the file that it says it
    evaluated. reasons: model -> why there is no score.
    """

    site: str
    scanners: Mapping[str, int] = field(default_factory=dict)
    rejected: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchmarkPage:
    """first: the model by which hospitals are ordered, and with which the others are compared. least: the score that
    every hospital should reach; None = none is named. settings: as JSON, without files.
    """

    title: str
    run: str
    date: str
    simulation: bool
    first: str
    least: float | None
    models: tuple[SignedModel, ...]
    sites: tuple[Visited, ...]
    scores: tuple[ScoreRow, ...]
    words: Words
    settings: str
    commands: tuple[Command, ...] = ()
    classes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Standing:
    """A hospital's place on the page. row: its score by the first model; None = it has none."""

    site: str
    verdict: Verdict
    row: ScoreRow | None


def standings(page: BenchmarkPage) -> tuple[Standing, ...]:
    """All hospitals, in the order of the page."""
    own = {row.sites[0]: row for row in _rows(page.scores, page.first) if row.protocol == PRIVATE}
    found = [Standing(one.site, _verdict(own.get(one.site), page.least), own.get(one.site)) for one in page.sites]
    return tuple(sorted(found, key=_place))


def hiding(page: BenchmarkPage) -> tuple[ScoreRow, ...]:
    """The first model's scores over several hospitals: their mean, and all patients as one sample."""
    return tuple(row for row in _rows(page.scores, page.first) if row.protocol in (PRIVATE_MEAN, OVERALL))


def findings(page: BenchmarkPage) -> tuple[str, ...]:
    """What the page says, in sentences: of the worst hospital first, then of what would hide it."""
    order, over, measure = standings(page), hiding(page), primary(page.scores)
    silent = [one.site for one in order if one.verdict == "no score"]
    said = []
    if silent:
        who = counted(len(silent), "hospital gave", "hospitals gave")
        said.append(f"{who} no score: {', '.join(silent)}. What a model does there is not known.")
    if worst := next((one for one in order if one.row is not None and math.isfinite(one.row.low)), None):
        row = worst.row
        said += [] if row is None else [f"Worst: {worst.site}, {measure} {number(row.value)}{_between(row)}."]
        if row is not None and not row.assessable:
            said.append(_judged(order, measure))
        names = {PRIVATE_MEAN: "their mean", OVERALL: "all patients as one sample"}
        told = ", ".join(f"{names[r.protocol]} {number(r.value)}" for r in over)
        said += [f"What hides it: {told}."] if told else []
    if page.least is not None:
        short = [one.site for one in order if one.verdict in ("below", "not shown", "unknown", "no score")]
        text = f"At {', '.join(short)} {measure} {page.least:g} is not shown to be reached."
        said.append(text if short else f"Every hospital reaches {measure} {page.least:g} with its whole interval.")
    return tuple(said)


def benchmark_page(page: BenchmarkPage) -> str:
    """The page, from messages only."""
    order, labels = standings(page), [model.label for model in page.models]
    single = {of_class(kind, name) for kind in KINDS for name in page.classes}
    measures = [name for name in dict.fromkeys(row.measure for row in page.scores) if name not in single]
    return rendered(
        "benchmark.html",
        page=page,
        order=order,
        findings=findings(page),
        labels=labels,
        measure=primary(page.scores),
        measures=measures,
        sites={one.site: one for one in page.sites},
        grid={(r.method, r.measure, r.sites[0]): r for r in page.scores if r.protocol == PRIVATE},
        over={(r.method, r.measure, r.protocol): r for r in page.scores if r.protocol in (PRIVATE_MEAN, OVERALL)},
        protocols=[p for p in (PRIVATE_MEAN, OVERALL) if any(r.protocol == p for r in page.scores)],
        noise=max((row.noise for row in page.scores), default=0.0),
    )


def as_facts(page: BenchmarkPage) -> dict[str, object]:
    """The page for machines: what it says, in its order."""
    sites = {one.site: one for one in page.sites}
    return {
        "title": page.title,
        "run": page.run,
        "date": page.date,
        "simulation": page.simulation,
        "measure": primary(page.scores),
        "least": page.least,
        "first": page.first,
        "findings": findings(page),
        "models": page.models,
        "hospitals": [{"verdict": one.verdict, "by": one.row, **vars(sites[one.site])} for one in standings(page)],
        "hiding": hiding(page),
        "scores": page.scores,
    }


def _rows(rows: Sequence[ScoreRow], model: str) -> list[ScoreRow]:
    """The rows of a model by the primary measure."""
    measure = primary(rows)
    return [row for row in rows if row.method == model and row.measure == measure]


def _verdict(row: ScoreRow | None, least: float | None) -> Verdict:
    if row is None:
        return "no score"
    if not math.isfinite(row.low):
        return "unknown"
    if least is None:
        return "scored"
    return "below" if row.high < least else "reached" if row.low >= least else "not shown"


def _place(one: Standing) -> tuple[int, float, float, str]:
    if one.row is None:
        return (0, 0.0, 0.0, one.site)
    if not math.isfinite(one.row.low):
        return (1, 0.0, 0.0, one.site)
    return (2, one.row.low, one.row.value, one.site)


def _judged(order: Sequence[Standing], measure: str) -> str:
    """Where the first hospital has too few patients, the first that has enough."""
    few = "It has too few patients, or too much noise, to judge by"
    for one in order:
        if one.row is not None and one.row.assessable and math.isfinite(one.row.low):
            value = f"{number(one.row.value)}{_between(one.row)}"
            return f"{few}; of those that can be judged the worst is {one.site}, {value}."
    return f"{few}, as all others have by {measure}."


def _between(row: ScoreRow) -> str:
    patients = counted(row.patients, "patient", "patients")
    return f" (95 % interval {number(row.low)} to {number(row.high)}, {patients})"
