"""Scores as sections of the coordinator's page: in short, by hospital, any two methods, by class, and outside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from evaluation.choice import primary_measure
from evaluation.grid import (
    ColumnPatients,
    column_patients,
    count_decided_gains,
    list_further_measures,
    list_leading_measures,
    list_whole_measures,
    pairs_by_column,
    rank_hospitals,
    rows_by_column,
    weak_columns,
)
from evaluation.harmony import find_unadapted_lines, select_overall_rows
from evaluation.notices import row_notes
from evaluation.page import (
    Block,
    Cell,
    Column,
    Fields,
    Fold,
    Paragraph,
    Row,
    Section,
    Span,
    Table,
    Text,
    compose_text,
    make_table,
    number_column,
)
from evaluation.records import RunPage
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN, PUBLIC, ScoreRow
from evaluation.score_tables import (
    DASH,
    NOT_ASSESSABLE,
    Grid,
    build_further_table,
    build_noise_notes,
    build_pair_folds,
    build_part_tables,
    build_score_notes,
    describe_adaptation,
    gain_texts,
    method_column,
    named_method,
    patients_lines,
    score_cell,
    share_text,
    value_texts,
)
from evaluation.wording import READABLE

MEAN = f"/{PRIVATE_MEAN}"


@dataclass(frozen=True)
class RunScores:
    """The scores of a run, arranged once. tested: hospitals with scores of their own models. methods: with scores.
    measures: those over all classes; leading: of the first table. grid: (measure, method, column) -> row.
    weak_columns: of hospitals that are not assessable. by: the measure that compares methods. notes: of methods.
    """

    page: RunPage
    tested: Sequence[str]
    methods: Sequence[str]
    measures: Sequence[str]
    leading: Sequence[str]
    grid: Grid
    patients: Mapping[tuple[str, str], ColumnPatients]
    weak_columns: set[str]
    by: str
    notes: Mapping[str, str]

    @property
    def is_many(self) -> bool:
        """Whether there are more hospitals than fit beside each other."""
        return max(len(self.tested), len(self.page.sites)) > READABLE

    @property
    def trainings(self) -> int:
        """How often each method was trained."""
        return max((row.trainings for row in self.page.scores), default=1)


def arrange_scores(page: RunPage) -> RunScores:
    """All that tables of scores are made of."""
    return RunScores(
        page=page,
        tested=sorted({site for row in page.scores if row.protocol == PRIVATE for site in row.sites}),
        methods=list(dict.fromkeys(row.method for row in page.scores)),
        measures=list_whole_measures(page.scores, page.scored_parts),
        leading=list_leading_measures(page.scores, page.structures, page.scored_parts),
        grid=rows_by_column(page.scores),
        patients=column_patients(page.scores),
        weak_columns=weak_columns(page.scores),
        by=primary_measure(page.scores),
        notes=row_notes(page.scores, page.harmony, page.spaces),
    )


def build_leading_section(scores: RunScores) -> list[Section]:
    """The first table: each method over all hospitals."""
    page = scores.page
    shares = {row.method: row for row in select_overall_rows(page.shares)}
    decided = count_decided_gains(page.scores, scores.by)
    fields: Fields = [("method", lambda method: named_method(method, scores.notes))]
    for measure in scores.leading:
        fields.append((number_column(measure), partial(_say_value, scores, measure)))
        if scores.page.gains:
            fields.append((number_column("gain"), partial(_say_gain, scores, measure)))
    if shares:
        fields.append((number_column("oracle gap"), lambda method: share_text(shares.get(method))))
    if scores.page.gains:
        title = number_column(f"hospitals, by {scores.by}")
        fields.append((title, lambda method: _say_decided(decided.get(method))))
    table = make_table(
        "How good, by method",
        _explain_leading(scores),
        scores.methods,
        fields,
        method=str,
        empty="No method was scored in this run.",
        look="lead",
    )
    blocks: list[Block] = [table, *build_score_notes(page)]
    if scores.trainings > 1:
        blocks.append(Paragraph(_describe_trainings(scores.trainings), "note"))
    return [Section("How good", blocks, "good", "How good", width="wide")]


def _find_row(scores: RunScores, measure: str, method: str) -> ScoreRow | None:
    """The score over hospitals, or of the only one."""
    row = scores.grid.get((measure, method, MEAN))
    return row or (scores.grid.get((measure, method, scores.tested[0])) if scores.tested else None)


def _say_value(scores: RunScores, measure: str, method: str) -> Cell:
    """A method's score."""
    row = _find_row(scores, measure, method)
    if row is None:
        return Cell(Span(DASH, "value"), "weak")
    return Cell(tuple(value_texts(row)), "" if row.assessable else "weak")


def _say_gain(scores: RunScores, measure: str, method: str) -> Cell:
    """Its gain over the reference."""
    row, reference = _find_row(scores, measure, method), scores.page.reference
    if row is None or method == reference or math.isnan(row.gain):
        return Cell(Span("reference" if method == reference else DASH, "note"), "gain")
    return Cell(tuple(gain_texts(row)), "gain")


def _say_decided(counts: tuple[int, int, int] | None) -> Text:
    """At how many hospitals a method is better, and worse."""
    if counts is None:
        return DASH
    better, worse, total = counts
    return (f"{better} better", Span(f"{worse} worse, of {total}", "sub"))


def _explain_leading(scores: RunScores) -> Text:
    """What the first table shows."""
    page = scores.page
    pattern = "The model on the hospital's own test patients"
    if len(scores.tested) > 1:
        pattern = "Each hospital's model on its own test patients, mean over hospitals"
    pattern += f", with 95 % intervals over patients{', and over trainings' if scores.trainings > 1 else ''}."
    if scores.page.gains:
        pattern += (
            " Gain: over {reference}, with its interval; grey if that contains 0, so that the method is not "
            "distinguishable from {reference}."
        )
    if not page.shares:
        return compose_text(pattern, reference=page.reference)
    pattern += (
        " Oracle gap: the share that a line closes of what {oracle} gains over {raw}, in {measure}; see [what "
        "harmonization is worth](#worth)."
    )
    first = page.shares[0]
    return compose_text(
        pattern, reference=page.reference, oracle=first.oracle, raw=first.untranslated, measure=first.measure
    )


def _describe_trainings(trainings: int) -> str:
    """What several trainings mean."""
    return (
        f"Each method was trained {trainings} times, with other seeds on the same patients. Values and gains are "
        "means over trainings; of both intervals, over patients and over trainings (Student's), the wider one "
        "decides what is said. Figures of single models, and hospitals' own pages, are of the first training."
    )


def build_further_section(scores: RunScores) -> list[Section]:
    """Scores at the threshold, and of the probabilities."""
    page, measures = scores.page, list_further_measures(scores.page.scores)
    if not measures or not scores.tested:
        return []
    title = f"{'The' if page.scored_parts else 'At the threshold, and the'} probabilities themselves"
    if page.number:
        title = "Agreement with the given numbers"
    column = MEAN if len(scores.tested) > 1 else scores.tested[0]
    return [Section(title, build_further_table(page, scores.grid, column), "threshold")]


def build_scores_section(scores: RunScores) -> list[Section]:
    """Each measure by hospital."""
    build = _build_tall_table if scores.is_many else _build_wide_table
    blocks: list[Block] = [
        Fold(measure, [build(scores, measure)], is_open=not place) for place, measure in enumerate(scores.measures)
    ]
    page = scores.page
    overall = "the same over all patients of all hospitals, every patient weighing the same."
    if not page.structures:
        overall = (
            "the same scores pooled into one sample; this mixes the offset between hospitals' scores into the result, "
            "which can lie outside the range of the single hospitals."
        )
    protocols = compose_text(
        "*private mean*: each hospital's model on its own patients, every hospital weighing the same. *overall*^†^: "
        "{overall} *public*: every hospital's model on all test patients, mean over models. Intervals show how the "
        "score would vary with other patients of the same hospitals, not with other hospitals or another training run.",
        overall=overall,
    )
    blocks = blocks or [Paragraph("No method was scored.", "note")]
    blocks += [Paragraph(protocols, "note"), *build_noise_notes(page)]
    return [Section("Scores by hospital", blocks, "scores", "Scores")]


def _list_protocols(scores: RunScores) -> list[str]:
    """The protocols over hospitals that have rows."""
    known = {row.protocol for row in scores.page.scores}
    return [protocol for protocol in (PRIVATE_MEAN, OVERALL, PUBLIC) if protocol in known]


def _name_protocol(protocol: str) -> Text:
    """A protocol; the dagger leads to a note."""
    return (protocol, Span("†", "sup")) if protocol == OVERALL else protocol


def _explain_gain(scores: RunScores) -> str:
    """The end of a caption: over what gains are."""
    reference = scores.page.reference
    return f", and gain over {reference} on the same patients with its interval" if reference in scores.methods else ""


def _name_site(scores: RunScores, measure: str, site: str) -> Text:
    """A hospital with its test patients."""
    patients = patients_lines(scores.patients.get((measure, site)), has_classes=bool(scores.page.bands))
    return (site, patients)


def _build_tall_table(scores: RunScores, measure: str) -> Table:
    """A row for each of many hospitals, a column for each method."""
    caption = (
        f"{measure} by method: value, 95 % interval over patients{_explain_gain(scores)}. Hospitals from the lowest "
        f"to the highest {scores.by}, mean over methods without baselines."
    )

    def make_row(title: Text, column: str) -> Row:
        cells = (score_cell(scores.grid.get((measure, m, column)), scores.page.reference) for m in scores.methods)
        return Row([title, *cells])

    rows = [make_row(_name_protocol(name), f"/{name}") for name in _list_protocols(scores)]
    rows += [make_row(_name_site(scores, measure, site), site) for site in rank_hospitals(scores.page.scores)]
    columns = [Column("hospital"), *(method_column(method, scores.notes) for method in scores.methods)]
    return Table(f"{measure} by hospital", caption, columns, rows, look="grid", is_tall=True)


def _build_wide_table(scores: RunScores, measure: str) -> Table:
    """A row for each method, a column for each hospital."""
    page, protocols = scores.page, _list_protocols(scores)
    signs = (
        f" + and −: positive and negative test {page.words.examples}." if not page.structures and not page.bands else ""
    )
    caption = f"{measure} by hospital: value, 95 % interval over patients{_explain_gain(scores)}.{signs}"
    heads = {site: _name_site(scores, measure, site) for site in scores.tested}
    heads |= {f"/{protocol}": _name_protocol(protocol) for protocol in protocols}

    def say_score(column: str, method: str) -> Cell:
        is_marked = column not in scores.weak_columns
        return score_cell(scores.grid.get((measure, method, column)), page.reference, is_marked=is_marked)

    fields: Fields = [("method", lambda method: named_method(method, scores.notes))]
    for column, title in heads.items():
        look = "sep" if protocols and column == f"/{protocols[0]}" else ""
        marked = (title, NOT_ASSESSABLE) if column in scores.weak_columns else title
        fields.append((Column(marked, is_number=True, look=look), partial(say_score, column)))
    return make_table(f"{measure} by hospital", caption, scores.methods, fields, method=str, look="grid")


def build_pairs_section(scores: RunScores) -> list[Section]:
    """Any two methods, where there are more than two."""
    pairs = scores.page.pairs
    compared = list(dict.fromkeys(name for row in pairs for name in (row.method, row.other)))
    folds = build_pair_folds(pairs_by_column(pairs), compared, scores.by, scores.trainings)
    return [Section("Any two methods", folds, "two", "Any two")] if len(compared) > 2 else []


def build_parts_section(scores: RunScores) -> list[Section]:
    """Scores of single classes, cuts or findings."""
    page = scores.page
    if not page.scored_parts or not scores.methods:
        return []
    columns = {MEAN: "Mean over hospitals"} if len(scores.tested) > 1 else {}
    columns |= {site: site for site in scores.tested}
    folds = [
        Fold(title, build_part_tables(page, scores.grid, scores.patients, column), is_open=not place)
        for place, (column, title) in enumerate(columns.items())
    ]
    title = f"By {page.part_word}"
    return [Section(title, folds, "classes", title)]


def build_outside_section(scores: RunScores) -> list[Section]:
    """Hospitals outside the federation, by line."""
    page, rows = scores.page, scores.page.outside
    if not rows:
        return []
    text = (
        "They took no part in training and got the hospitals' models. ",
        describe_adaptation(page.structures, page.field),
        " How adaptation went, and its outlines, are on each hospital's own page.",
    )
    caption = "Value and 95 % interval over patients."
    if page.untreated:
        trained = "a model as it was trained on images as they were read, on the same patients"
        caption += f" Gain: over {page.untreated}, {trained}."
    grid, patients = rows_by_column(rows), column_patients(rows)
    unadapted = find_unadapted_lines(rows, page.untreated)
    sites = sorted({row.sites[0] for row in rows if row.protocol == OUTSIDE})

    def name_line(line: str) -> Text:
        if line not in unadapted:
            return line
        where = ", ".join(unadapted[line])
        same = f"= {page.untreated} at {where}: not adapted, the shared model serves"
        return (line, Span(same, "sub"))

    def say_score(measure: str, column: str, line: str) -> Cell:
        return score_cell(grid.get((measure, line, column)), page.untreated)

    fields: Fields = [("line", name_line)]
    for measure in scores.leading:
        for site in sites:
            test_patients = patients_lines(patients.get((measure, site)), has_classes=bool(page.classes))
            fields.append((number_column((f"{measure}, {site}", test_patients)), partial(say_score, measure, site)))
        if len(sites) > 1:
            mean = Column(f"{measure}, mean", is_number=True, look="sep")
            fields.append((mean, partial(say_score, measure, f"/{OUTSIDE_MEAN}")))
    lines = list(dict.fromkeys(row.method for row in rows))
    table = make_table("Hospitals outside", caption, lines, fields, look="grid")
    return [Section("Hospitals outside the federation", [Paragraph(text), table], "beyond", "Outside")]
