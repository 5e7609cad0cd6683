"""The page of a benchmark: finished models at hospitals that never trained, the worst hospital first.

A mean over hospitals hides the one at which a model fails (Karargyris et al., Nature Machine Intelligence 5, 2023, for
the idea of evaluating where the data are). So hospitals stand in the order of the *lower end* of their intervals, the
lowest first: a hospital about which little is known may be one that fails, and stands before one that is known to be
fair. Before all of them stand hospitals that gave no score, each with its reason; none is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from evaluation.axes import Label, Shape
from evaluation.choice import primary_measure
from evaluation.classes import KINDS, Classes, class_measure_name
from evaluation.common_sections import SIMULATION, build_commands_section, settings_fold
from evaluation.drawing import COLOURS, Picture
from evaluation.metrics import SENSITIVITY, SPECIFICITY
from evaluation.page import (
    Block,
    Cell,
    Fields,
    Page,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.panels import DASHED, draw_level, draw_row_panels, draw_span, draw_upright
from evaluation.records import Command
from evaluation.rendering import render_page
from evaluation.rows import OVERALL, PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.score_tables import score_cell, spread_fields
from evaluation.wording import (
    Words,
    format_count,
    format_estimate,
    format_figures,
    format_moment,
    format_number,
    format_size,
    format_whole,
)

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
    each = ((site.site, site_rows.get(site.site)) for site in page.sites)
    return tuple(sorted((Standing(site, _target_status(row, page.least), row) for site, row in each), key=_sort_key))


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
    known = [(each.site, each.row) for each in order if each.row is not None and math.isfinite(each.row.low)]
    for site, row in known[:1]:
        sentences.append(f"Worst: {site}, {measure} {format_number(row.value)}{_format_interval(row)}.")
        if not row.assessable:
            sentences.append(_describe_worst_assessable(order, measure))
        names = {PRIVATE_MEAN: "their mean", OVERALL: "all patients as one sample"}
        pooled_text = ", ".join(f"{names[r.protocol]} {format_number(r.value)}" for r in over)
        sentences += [f"What hides it: {pooled_text}."] if pooled_text else []
    if page.least is not None:
        short = [each.site for each in order if each.verdict in ("below", "not shown", "unknown", "no score")]
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


POOLED = {PRIVATE_MEAN: "mean over hospitals", OVERALL: "all patients as one sample"}
STATUS: Mapping[TargetStatus, Text] = {
    "no score": Span("no score", "state-failed"),
    "unknown": "no interval",
    "below": Span("below", "state-failed"),
    "not shown": "not shown to reach it",
    "reached": "reached",
    "scored": "",
}
"""Whether a hospital reaches the wanted score, in words."""


def render_benchmark_page(page: BenchmarkPage) -> str:
    """The page."""
    models, sites = len(page.models), len(page.sites)
    trained = (
        format_count(sites, "hospital that never trained it", "hospitals that never trained it")
        if models == 1
        else format_count(sites, "hospital that trained none of them", "hospitals that trained none of them")
    )
    facts = compose_text(
        "Benchmark **{run}** · {moment} · {models} at {trained}",
        run=page.run,
        moment=format_moment(page.date),
        models=format_count(models, "signed model", "signed models"),
        trained=trained,
    )
    head = [Paragraph((Span("Simulation.", "strong"), f" {SIMULATION}"), "banner")] if page.simulation else []
    order, title = rank_standings(page), "Worst hospital first"
    findings = [Paragraph(text, "" if place else "lead") for place, text in enumerate(list_findings(page))]
    sections = [
        Section(title, [*findings, _build_worst_table(page, order), *page.pictures], "worst", title),
        Section("Other measures", _build_other_tables(page, order), "more", "Other measures"),
        Section("Models", [_build_models_table(page, order)], "models", "Models"),
        Section("How to read it", _explain_page(page), "how", "How to read it"),
        build_commands_section(page.commands),
    ]
    return render_page(Page(f"{page.title} – benchmark", page.title, facts, sections, head))


def _build_worst_table(page: BenchmarkPage, order: Sequence[Standing]) -> Table:
    """A row for each hospital, and below them the numbers that would hide the worst."""
    measure, labels = primary_measure(page.scores), [model.label for model in page.models]
    several = f" of {page.first}" if len(labels) > 1 else ""
    unpaired = " (not paired where counts are noised)" if any(row.noise for row in page.scores) else ""
    difference = f"; below, the difference from {page.first} on the same patients{unpaired}" if several else ""
    caption = (
        f"{measure or 'No measure'}: value and 95 % interval over patients{difference}. Hospitals stand by the lower "
        f"end of the interval{several}."
    )
    sites, grid = {site.site: site for site in page.sites}, _rows_at_sites(page)

    def say_score(label: str, standing: Standing) -> Text | Cell:
        row = grid.get((label, measure, standing.site))
        return score_cell(row, page.first) if row else _describe_silence(sites[standing.site], label)

    target = f"{measure} ≥ {page.least:g}" if page.least is not None else ""
    fields: Fields = [
        ("hospital", lambda standing: standing.site),
        *spread_fields(labels, number_column, say_score),
        *([(target, lambda standing: STATUS[standing.verdict])] if target else []),
        ("patients and scanners", lambda standing: _describe_patients(page, standing, sites[standing.site])),
    ]
    foot = _build_foot(page, measure, labels)
    return make_table("Hospitals, the worst first", caption, order, fields, foot=foot, look="lead")


def _build_foot(page: BenchmarkPage, measure: str, labels: Sequence[str]) -> list[Row]:
    """The scores over several hospitals."""
    over = {(r.method, r.protocol): r for r in page.scores if r.measure == measure and r.protocol in POOLED}
    target = [] if page.least is None else [""]
    rows = []
    for protocol in (name for name in POOLED if any(row.protocol == name for row in page.scores)):
        first = over.get((page.first, protocol))
        of = f"of {format_count(len(first.sites), 'hospital', 'hospitals')}: {', '.join(first.sites)}" if first else ""
        title = (POOLED[protocol], Span("hides the worst hospital", "sub why"))
        scores = (score_cell(over.get((label, protocol)), page.first) for label in labels)
        rows.append(Row((title, *scores, *target, make_subline(of) if of else ""), look="weak"))
    return rows


def _describe_silence(visited: Visited, label: str) -> Text:
    """Why a hospital has no score of a model."""
    why = visited.reasons.get(label)
    words = Span("no score", "value state-failed")
    if why is None:
        return words
    question = make_subline(Span(why.code, "code"), f" to {why.request}")
    return (words, " ", question, Span(why.meaning, "sub why"))


def _describe_patients(page: BenchmarkPage, standing: Standing, visited: Visited) -> Text:
    """A hospital's patients, scanners and studies that could not be used."""
    lines: list[Text] = []
    if (row := standing.row) is not None:
        lines.append(format_count(row.patients, "patient", "patients"))
        if row.defined is None:
            positives, negatives = format_whole(row.positives), format_whole(row.negatives)
            lines.append(make_subline(f"{positives} positive, {negatives} negative"))
        if row.noise:
            lines.append(make_subline(f"counts noised, σ {format_figures(row.noise)} patients"))
    for scanner, studies in visited.scanners.items():
        if scanner != "unknown":
            lines.append(make_subline(f"{scanner}: {format_count(studies, page.words.study, page.words.studies)}"))
    if visited.rejected:
        unused = format_count(visited.rejected, page.words.study, page.words.studies)
        lines.append(make_subline(f"{unused} could not be used"))
    return tuple(lines)


def _build_other_tables(page: BenchmarkPage, order: Sequence[Standing]) -> list[Block]:
    """The further measures, a table for each model."""
    parts = Classes(page.classes, page.ordered).scored_parts
    of_parts = {class_measure_name(kind, name) for kind in KINDS for name in parts}
    of_parts |= {
        class_measure_name(kind, name) for kind in (SENSITIVITY.name, SPECIFICITY.name) for name in page.findings
    }
    hidden = {*of_parts, primary_measure(page.scores)}
    measures = [name for name in dict.fromkeys(row.measure for row in page.scores) if name not in hidden]
    grid = _rows_at_sites(page)
    tables: list[Block] = []
    for label in (model.label for model in page.models):
        caption = (
            f"{label}: value and 95 % interval over patients, hospitals in the same order. Lower is better for the "
            "Brier and the ranked probability score, the error in grades and the calibration error."
        )

        def say_score(measure: str, standing: Standing, label: str = label) -> Cell:
            return score_cell(grid.get((label, measure, standing.site)), page.first, is_marked=False)

        fields: Fields = [
            ("hospital", lambda standing: standing.site),
            *spread_fields(measures, number_column, say_score),
        ]
        tables.append(make_table(f"Other measures of {label}", caption, order, fields, look="grid"))
    return tables


def _rows_at_sites(page: BenchmarkPage) -> dict[tuple[str, str, str], ScoreRow]:
    """(model, measure, hospital) -> its row."""
    return {(r.method, r.measure, r.sites[0]): r for r in page.scores if r.protocol == PRIVATE}


def _build_models_table(page: BenchmarkPage, order: Sequence[Standing]) -> Table:
    """The models, and who evaluated them."""
    caption = (
        "As their owner signed them. Each hospital checked the signature against its own list of keys before it read "
        "the file, and names in its reply and in its ledger the digest of the file that it evaluated."
    )
    digests = {site.site: site.digests for site in page.sites}

    def list_sites(model: SignedModel) -> str:
        return ", ".join(s.site for s in order if digests[s.site].get(model.label) == model.sha256) or "no hospital"

    fields: Fields = [
        ("model", lambda model: (model.label, make_subline(model.title))),
        ("SHA-256 of the file", lambda m: (Span(m.sha256, "code"), make_subline(format_size(m.bytes)))),
        ("signed by", lambda model: Span(model.key, "code")),
        ("holds", lambda model: f"{model.signed} to {model.expires}"),
        ("evaluated, unchanged, at", list_sites),
    ]
    return make_table("Models", caption, page.models, fields)


def _explain_page(page: BenchmarkPage) -> list[Block]:
    """What the numbers mean, and the settings."""
    noised = any(row.noise for row in page.scores)
    parametric = "; of hospitals that promise privacy a parametric one, from noised counts" if noised else ""
    text = compose_text(
        "All patients of a hospital are scored; none of them trained a model. Intervals are the 2.5th and 97.5th "
        "percentiles of a bootstrap over patients{parametric}. A hospital of which little is known has a wide "
        "interval, and stands early: that is meant. *Not assessable* are scores on fewer than 20 positive or negative "
        "{examples} or 5 positive patients. Scanners are counts that a hospital tells of its studies; scores are not "
        "split by them. No test of significance is made, and the worst of many hospitals looks worse than it is by "
        "chance alone.",
        parametric=parametric,
        examples=page.words.examples,
    )
    return [Paragraph(text), settings_fold(page.settings, "Settings", "Settings")]


HIDING = "#8c8c8c"


def draw_forest_plot(
    scores: Mapping[str, Mapping[str, ScoreRow]],
    names: Sequence[str],
    over: Sequence[str],
    *,
    measure: str,
    least: float | None,
) -> Picture:
    """Scores with their intervals.

    Args:
        scores: model -> name of a row -> score; a hospital without one has no mark.
        names: hospitals, in the order of the page.
        over: names of the rows over several hospitals, which stand below and are grey.
        measure: what is shown.
        least: drawn as a line, if there is one.
    """
    row_names = [*names, *over]
    words = [
        f"{model}, {name}: {_format_score(model_rows.get(name))}"
        for model, model_rows in scores.items()
        for name in row_names
    ]
    alt = f"{measure} by hospital, the worst first. {'; '.join(words)}."

    def draw(model: str) -> list[Shape | Label]:
        model_rows = scores[model]
        shapes: list[Shape | Label] = [replace(draw_level(len(names) - 0.5), linewidth=0.6, alpha=0.5)] if over else []
        shapes += [] if least is None else [draw_upright(least, DASHED)]
        worst = next((name for name in names if name in model_rows), None)
        for y, name in enumerate(row_names):
            row = model_rows.get(name)
            if row is None or not math.isfinite(row.value):
                shapes.append(Label(x=0.02, y=y, text="no score", across="x", anchor="start"))
                continue
            colour = HIDING if name in over else COLOURS[3] if name == worst else COLOURS[0]
            alpha = 1 if row.assessable else 0.45
            shapes.append(draw_span((row.low, row.high), y, color=colour, linewidth=1.8, alpha=alpha, method=model))
            mark = Shape(x=row.value, y=y, color=colour, marker="D" if name in over else "o", method=model)
            texts = [f"{name}, {model}: {measure} {_format_score(row)}, {row.patients} patients"]
            shapes.append(replace(mark, hollow=not row.assessable or name in over, texts=texts))
        return shapes

    caption = (
        "Bars are 95 % intervals over patients, hollow marks have too few patients to judge by. Hospitals stand by the "
        "lower end of the interval of the first model, the lowest at the top; those without a score before all others. "
        "Grey, below the line: what hides the worst hospital."
    )
    caption += "" if least is None else f" Dashed: {least:g}, which every hospital should reach."
    drawing = draw_row_panels(list(scores), row_names, draw, alt=alt, label=measure, has_method_panels=True)
    return Picture(f"{measure} by hospital, worst first", caption, drawing)


def _format_score(row: ScoreRow | None) -> str:
    """A score with its interval; "no score" where there is no row."""
    return "no score" if row is None else format_estimate(row.value, row.low, row.high)
