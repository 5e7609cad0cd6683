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

from evaluation.choice import primary_measure
from evaluation.drawing import Picture
from evaluation.records import Command
from evaluation.rows import OVERALL, PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.wording import Words, format_count, format_number

TargetStatus: TypeAlias = Literal["no score", "unknown", "below", "not shown", "reached", "scored"]
"""no score: no model was evaluated there. unknown: no interval. below, not shown, reached: the whole interval is below
`least`, contains it, or is not below it. scored: no `least` was named.
"""


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
    """Why a hospital gave no score. request: what was asked. code: of the hospital's reply. meaning: the code in
    words.
    """

    request: str
    code: str
    meaning: str


@dataclass(frozen=True)
class Visited:
    """A hospital as the coordinator knows it. scanners: vendor and field strength -> studies, if the hospital sends
    them. rejected: studies that could not be used; None = not sent. digests: model -> SHA-256 of the file that the
    hospital says it evaluated. reasons: model -> why there is no score.
    """

    site: str
    scanners: Mapping[str, int] = field(default_factory=dict)
    rejected: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchmarkPage:
    """first: the model by which hospitals are ordered, and with which the other models are compared. least: the score
    that every hospital should reach; None = no score is named. settings: as JSON, without files. findings: names, where
    models predict several; the page has the AUC of each.
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
    ordered: bool = False
    findings: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class Standing:
    """A hospital's place on the page. row: the hospital's score by the first model; None = it has no score."""

    site: str
    verdict: TargetStatus
    row: ScoreRow | None


def rank_standings(page: BenchmarkPage) -> tuple[Standing, ...]:
    """All hospitals, in the order of the page."""
    site_rows = {row.sites[0]: row for row in _primary_rows(page.scores, page.first) if row.protocol == PRIVATE}
    unsorted = [
        Standing(site.site, _target_status(site_rows.get(site.site), page.least), site_rows.get(site.site))
        for site in page.sites
    ]
    return tuple(sorted(unsorted, key=_sort_key))


def pooled_rows(page: BenchmarkPage) -> tuple[ScoreRow, ...]:
    """The first model's scores over several hospitals: their mean, and all patients as one sample."""
    return tuple(row for row in _primary_rows(page.scores, page.first) if row.protocol in (PRIVATE_MEAN, OVERALL))


def list_findings(page: BenchmarkPage) -> tuple[str, ...]:
    """The findings of the page, in sentences: the worst hospital first, then the pooled numbers that would hide it."""
    order, over, measure = rank_standings(page), pooled_rows(page), primary_measure(page.scores)
    silent = [standing.site for standing in order if standing.verdict == "no score"]
    sentences = []
    if silent:
        count_text = format_count(len(silent), "hospital gave", "hospitals gave")
        sentences.append(f"{count_text} no score: {', '.join(silent)}. What a model does there is not known.")
    if worst := next(
        (standing for standing in order if standing.row is not None and math.isfinite(standing.row.low)), None
    ):
        row = worst.row
        sentences += (
            []
            if row is None
            else [f"Worst: {worst.site}, {measure} {format_number(row.value)}{_format_interval(row)}."]
        )
        if row is not None and not row.assessable:
            sentences.append(_describe_worst_assessable(order, measure))
        names = {PRIVATE_MEAN: "their mean", OVERALL: "all patients as one sample"}
        pooled_text = ", ".join(f"{names[r.protocol]} {format_number(r.value)}" for r in over)
        sentences += [f"What hides it: {pooled_text}."] if pooled_text else []
    if page.least is not None:
        short = [
            standing.site for standing in order if standing.verdict in ("below", "not shown", "unknown", "no score")
        ]
        text = f"At {', '.join(short)} {measure} {page.least:g} is not shown to be reached."
        sentences.append(text if short else f"Every hospital reaches {measure} {page.least:g} with its whole interval.")
    return tuple(sentences)


def as_facts(page: BenchmarkPage) -> dict[str, object]:
    """The content of the page as plain facts, in the order of the page."""
    sites = {site.site: site for site in page.sites}
    return {
        "title": page.title,
        "run": page.run,
        "date": page.date,
        "simulation": page.simulation,
        "measure": primary_measure(page.scores),
        "least": page.least,
        "first": page.first,
        "findings": list_findings(page),
        "models": page.models,
        "hospitals": [
            {"verdict": standing.verdict, "by": standing.row, **vars(sites[standing.site])}
            for standing in rank_standings(page)
        ],
        "hiding": pooled_rows(page),
        "scores": page.scores,
    }


def _primary_rows(rows: Sequence[ScoreRow], model: str) -> list[ScoreRow]:
    """The rows of a model by the primary measure."""
    measure = primary_measure(rows)
    return [row for row in rows if row.method == model and row.measure == measure]


def _target_status(row: ScoreRow | None, least: float | None) -> TargetStatus:
    """Where the interval of a score lies with respect to `least`."""
    if row is None:
        return "no score"
    if not math.isfinite(row.low):
        return "unknown"
    if least is None:
        return "scored"
    return "below" if row.high < least else "reached" if row.low >= least else "not shown"


def _sort_key(standing: Standing) -> tuple[int, float, float, str]:
    """Order of the page: hospitals without a score, then without an interval, then by the lower end of the interval."""
    if standing.row is None:
        return (0, 0.0, 0.0, standing.site)
    if not math.isfinite(standing.row.low):
        return (1, 0.0, 0.0, standing.site)
    return (2, standing.row.low, standing.row.value, standing.site)


def _describe_worst_assessable(order: Sequence[Standing], measure: str) -> str:
    """A sentence that names the worst hospital with enough patients, for pages whose worst hospital has too few."""
    opening = "It has too few patients, or too much noise, to judge by"
    for standing in order:
        if standing.row is not None and standing.row.assessable and math.isfinite(standing.row.low):
            value = f"{format_number(standing.row.value)}{_format_interval(standing.row)}"
            return f"{opening}; of those that can be judged the worst is {standing.site}, {value}."
    return f"{opening}, as all others have by {measure}."


def _format_interval(row: ScoreRow) -> str:
    """The interval and the number of patients, in brackets."""
    patients = format_count(row.patients, "patient", "patients")
    return f" (95 % interval {format_number(row.low)} to {format_number(row.high)}, {patients})"
