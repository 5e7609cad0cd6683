"""Tables of scores: by measure, by class, any two methods, image spaces, and shares of the oracle gap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from evaluation.classes import KINDS
from evaluation.gap_figure import draw_gap_shares
from evaluation.grid import ColumnPatients, column_name
from evaluation.harmony import Harmony, SpaceRow
from evaluation.measures import list_further_measures
from evaluation.page import (
    Block,
    Cell,
    Column,
    Fields,
    Fold,
    Heading,
    Items,
    Paragraph,
    Row,
    Span,
    Table,
    Text,
    compose_text,
    make_subline,
    make_table,
    number_column,
)
from evaluation.records import RunPage, SitePage
from evaluation.rows import PRIVATE, GapRow, PairRow, ScoreRow
from evaluation.score_cells import (
    DASH,
    NOT_ASSESSABLE,
    VETOED,
    change_span,
    method_column,
    named_method,
    range_line,
    score_cell,
)
from evaluation.wording import format_hundredths, format_number, format_span

Grid = Mapping[tuple[str, str, str], ScoreRow]
"""(measure, method, column) -> row."""
SPACES = (
    "Effect of each translation on a hospital's images, measured by the hospital, if possible on patients it was not "
    "fitted on. Distance: sliced Wasserstein to the shared images, from −1 to 1. Edges, lesion and patient order: "
    "correlations before and after, 1 = kept. Lesion contrast: after over before. Class drift: AUC of a small "
    "classifier, after minus before. New dark spots: share of negative images that got one."
)
TARGET = (
    "This hospital is the target: the images of the others are translated to look like its own, and its own stay as "
    "they are."
)
AGREEMENT_CAPTION = compose_text(
    "*bias*: the mean of predicted minus given; *lower* and *upper limit*: the limits of agreement, bias ± 1.96 "
    "standard deviations of these differences, between which about 95 % of them lie if they are normal (Bland and "
    "Altman)."
)
WORTH = (
    "what a line gains over untranslated images, divided by what the oracle gains over them. The oracle has the same "
    "patients on the target's scanner, which only a simulation can. 0: as good as untranslated images; 1: as good as "
    "the oracle; below, the line's gain. Intervals (95 %) by the paired bootstrap over patients."
)
WORTH_NOTE = (
    "A share beside others' is fair only on the same patients and the same gap: where the gap is small, a share is "
    "wide, whatever the line does. The intervals show other patients of these hospitals, not another training."
)


def build_further_table(page: RunPage | SitePage, grid: Grid, column: str) -> list[Block]:
    """The measures at the threshold, and of the probabilities: a row for each method. column: of the grid."""
    measures = list_further_measures(page.scores)
    if not measures:
        return []

    def say_score(measure: str, method: str) -> Cell:
        return score_cell(grid.get((measure, method, column)), page.reference, is_marked=False)

    methods = dict.fromkeys(row.method for row in page.scores)
    fields: Fields = [("method", str), *((number_column(measure), partial(say_score, measure)) for measure in measures)]
    label = "At the threshold, and the probabilities themselves"
    return [make_table(label, _explain_further(measures, page.words.examples), methods, fields, method=str)]


def _explain_further(measures: Sequence[str], examples: str) -> Text:
    """What the further measures mean."""
    if "bias" in measures:
        return AGREEMENT_CAPTION
    parts = []
    if "sensitivity" in measures:
        parts.append(
            "At the threshold 0.5: *sensitivity*, the share of positive {examples} that are found, and *specificity*, "
            "the share of negative ones that are left unmarked."
        )
    if len(measures) > 2 or "sensitivity" not in measures:
        squared = "*Brier score*, their mean squared error"
        if "ranked probability score" in measures:
            squared = "*ranked probability score*, their squared error summed over cuts"
        parts.append(
            f"Of the probabilities: {squared}, and *calibration error*, how far they are off on average; lower is "
            "better for both, and few {examples} make the latter look larger. A gain is positive if the method is "
            "better."
        )
    return compose_text(" ".join(parts), examples=examples)


PART_CAPTIONS = {
    "cut": "of each cut between grades",
    "class": "of each class against the rest",
    "finding": "of each finding, where it is known",
}
SPECIFICITY = {
    "cut": "The share of {} below that are taken for one below.",
    "finding": "The share of {} without it that are taken for such.",
    "class": "The share of all other {} that are not taken for it.",
}


def build_part_tables(
    page: RunPage | SitePage, grid: Grid, patients: Mapping[tuple[str, str], ColumnPatients], column: str
) -> list[Block]:
    """A table for each measure of single classes, cuts or findings. column: of the grid."""
    word, methods = page.part_word, dict.fromkeys(row.method for row in page.scores)

    def name_part(kind: str, part: str) -> Text:
        known = patients.get((f"{kind} {part}", column))
        if known is None:
            return part
        count = make_subline(_count_patients(known.positive_patients))
        return (part, count) if known.assessable else (part, count, " ", NOT_ASSESSABLE)

    def say_score(kind: str, method: str, part: str) -> Cell:
        return score_cell(grid.get((f"{kind} {part}", method, column)), page.reference, is_marked=False)

    tables: list[Block] = []
    for place, kind in enumerate(KINDS):
        caption = f"{kind} {PART_CAPTIONS[word]}{'' if place else ': value and 95 % interval over patients'}."
        if kind == "sensitivity":
            grade = ", from this grade on" if word == "cut" else ""
            caption += f" The share of its {page.words.examples} that are recognised{grade}."
        elif kind == "specificity":
            caption += f" {SPECIFICITY[word].format(page.words.examples)}"
        fields: Fields = [
            (word, partial(name_part, kind)),
            *((method_column(method), partial(say_score, kind, method)) for method in methods),
        ]
        tables.append(make_table(f"{kind} by {word}", caption, page.scored_parts, fields, look="grid"))
    return tables


def _count_patients(pair: tuple[int, int]) -> str:
    """Patients of a column, the least and the most."""
    return f"{format_span(pair)} {'patient' if pair[1] == 1 else 'patients'}"


def patients_lines(patients: ColumnPatients | None, *, has_classes: bool) -> Text:
    """The test patients of a column; nothing where no method was scored. has_classes: of more than two."""
    if patients is None:
        return ""
    lines: list[Text] = [make_subline(_count_patients(patients.patients))]
    if has_classes:
        return tuple(lines)
    if not patients.masks:
        lines += [" ", make_subline(f"{format_span(patients.positives)} +, {format_span(patients.negatives)} −")]
    elif patients.positive_patients[0] < patients.patients[1]:
        lines += [" ", make_subline(f"{format_span(patients.positive_patients)} with it")]
    return tuple(lines)


def build_pair_folds(
    columns: Mapping[str, Mapping[tuple[str, str], PairRow]], methods: Sequence[str], measure: str, trainings: int
) -> list[Block]:
    """Every method's gain over every other one. columns: of `pairs_by_column`. methods: in their order."""
    interval = "its 95 % interval over patients"
    if trainings > 1:
        interval = "the wider of its 95 % intervals over patients and over trainings"
    caption = (
        f"By how much the method of a row is better in {measure} than that of a column, on the same patients, with "
        f"{interval}; grey if that contains 0."
    )

    def say_gain(gains: Mapping[tuple[str, str], PairRow], other: str, method: str) -> Cell:
        return _pair_cell(gains.get((method, other)))

    folds: list[Block] = []
    for place, (column, gains) in enumerate(columns.items()):
        name, text = column.lstrip("/"), f"{measure} at {column}: row minus column." if place else caption
        heads = [(method_column(other), partial(say_gain, gains, other)) for other in methods]
        fields: Fields = [("method", str), *heads]
        table = make_table(f"any two methods, {name}", text, methods, fields, method=str, look="grid")
        folds.append(Fold(name, [table], is_open=not place))
    return folds


def _pair_cell(row: PairRow | None) -> Cell:
    """A gain of one method over another."""
    look = "" if row is None or row.assessable else "weak"
    if row is None or math.isnan(row.gain):
        return Cell(DASH, look)
    change = change_span(row.gain, row.low, row.high)
    return Cell(change if math.isnan(row.low) else (change, " ", range_line(row.low, row.high)), look)


def build_space_blocks(harmony: Harmony, *, is_run: bool) -> list[Block]:
    """The effect of each translation, what could not be computed, and what is not used. is_run: whether rows are of
    several hospitals.
    """
    blocks: list[Block] = [_build_space_table(harmony, is_run=is_run)]
    if harmony.absent:
        where = " at any hospital" if is_run else ""
        text = (
            f"Could not be computed{where}, for lack of lesion masks, of enough patients, or of an inverse "
            f"translation: {', '.join(harmony.absent)}."
        )
        blocks.append(Paragraph(text, "note"))
    if reasons := [(Span(row.space, "b"), f": {' '.join(row.sentences)}") for row in harmony.rows if row.sentences]:
        blocks.append(Items(reasons))
    if any(row.vetoed for row in harmony.rows):
        whose, where = ("the", "there") if is_run else ("this", "here")
        text = f" {whose} hospital does not use its translation: {where} methods learn from images as they were read."
        blocks.append(Paragraph((VETOED, text), "note"))
    return blocks


def _build_space_table(harmony: Harmony, *, is_run: bool) -> Table:
    """The effect of each translation."""

    def name_space(row: SpaceRow) -> Text:
        return (row.space, make_subline(row.translator)) if row.translator not in ("", row.space) else row.space

    def say_figure(name: str, row: SpaceRow) -> str:
        return format_number(row.figure(name))

    fields: Fields = [
        ("space", name_space),
        *([("hospital", lambda row: row.site)] if is_run else []),
        ("used", _describe_use),
        *((number_column(head), partial(say_figure, name)) for name, head in harmony.columns.items()),
    ]
    empty = "No translation was asked for." if is_run or not harmony.target else TARGET
    return make_table("Image spaces", SPACES, harmony.rows, fields, empty=empty)


def _describe_use(row: SpaceRow) -> Text:
    """Whether a translation is used."""
    use: Text = (VETOED, make_subline(", ".join(row.reasons))) if row.vetoed else "yes"
    return (use, make_subline(row.note)) if row.note else use


def share_text(row: GapRow | None) -> Text:
    """A share of the oracle gap with its interval."""
    if row is None:
        return DASH
    if row.why:
        return Span("not known", "note")
    interval = f"{format_hundredths(row.share_low)} – {format_hundredths(row.share_high)}"
    return (Span(format_hundredths(row.share), "value"), make_subline(interval))


def build_share_blocks(rows: Sequence[GapRow], notes: Mapping[str, str]) -> list[Block]:
    """Every line's share of the oracle gap, by hospital."""
    if not rows:
        return []
    title = "What harmonization is worth"
    grid = {(row.method, column_name(row)): row for row in rows}
    names = {column_name(row): row.sites[0] if row.protocol == PRIVATE else row.protocol for row in rows}
    table_rows = []
    for raw in dict.fromkeys(row.untranslated for row in rows):
        lines = [row for row in rows if row.untranslated == raw]
        oracle = (lines[0].oracle, make_subline(f"the oracle, over {raw}: the gap"))
        table_rows.append(Row([oracle, *(_gap_text(grid.get((lines[0].method, column))) for column in names)]))
        for method in dict.fromkeys(row.method for row in lines):
            worths = (_worth_text(grid.get((method, column))) for column in names)
            table_rows.append(Row([named_method(method, notes), *worths], method))
    columns = [Column("line"), *map(number_column, names.values())]
    picture = draw_gap_shares(rows)
    return [
        Heading(title, anchor="worth"),
        Table(title, f"Share of the oracle gap, in {rows[0].measure}: {WORTH}", columns, table_rows, look="grid"),
        *([picture] if picture else []),
        *(
            Paragraph(compose_text("*Not known*: {why}.", why=why), "note")
            for why in dict.fromkeys(row.why for row in rows if row.why)
        ),
        Paragraph(WORTH_NOTE, "note"),
    ]


def _gap_text(row: GapRow | None) -> Text:
    """The oracle gap with its interval."""
    if row is None:
        return DASH
    return (change_span(row.gap, row.gap_low, row.gap_high), range_line(row.gap_low, row.gap_high))


def _worth_text(row: GapRow | None) -> Text:
    """A share of the gap, and the gain behind it."""
    if row is None:
        return DASH
    change = Span(change_span(row.gain, row.gain_low, row.gain_high), "sub gain")
    return (share_text(row), " ", change, " ", range_line(row.gain_low, row.gain_high))
