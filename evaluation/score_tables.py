"""Tables of scores: their cells, by measure, by class, any two methods, and the notes below: what measures mean, what
scores rest on, and which of them are too weak to judge by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from evaluation.classes import KINDS, list_mean_classes
from evaluation.grid import ColumnPatients, list_further_measures, select_whole_rows, weak_rows
from evaluation.numbers import Number
from evaluation.page import (
    Block,
    Cell,
    Column,
    Fields,
    Fold,
    Paragraph,
    Span,
    Text,
    compose_text,
    join_texts,
    make_subline,
    make_table,
    number_column,
)
from evaluation.records import RunPage, SitePage, Withdrawn
from evaluation.rows import FLOORS, GapRow, PairRow, ScoreRow
from evaluation.wording import (
    LISTED,
    READABLE,
    Words,
    format_count,
    format_hundredths,
    format_number,
    format_signed,
    format_span,
    format_value,
    format_whole,
)

Named = TypeVar("Named")
Grid = Mapping[tuple[str, str, str], ScoreRow]
"""(measure, method, column) -> row."""
AGREEMENT_CAPTION = compose_text(
    "*bias*: the mean of predicted minus given; *lower* and *upper limit*: the limits of agreement, bias ± 1.96 "
    "standard deviations of these differences, between which about 95 % of them lie if they are normal (Bland and "
    "Altman)."
)


def spread_fields(
    names: Iterable[Named], name_column: Callable[[Named], Column], describe: Callable[[Named, Any], Text | Cell]
) -> Fields:
    """A column for each of several, with what it says of one of them and a record."""
    return [(name_column(name), partial(describe, name)) for name in names]


def build_further_table(page: RunPage | SitePage, grid: Grid, column: str) -> list[Block]:
    """The measures at the threshold, and of the probabilities: a row for each method. column: of the grid."""
    measures = list_further_measures(page.scores)
    if not measures:
        return []

    def say_score(measure: str, method: str) -> Cell:
        return score_cell(grid.get((measure, method, column)), page.reference, is_marked=False)

    methods = dict.fromkeys(row.method for row in page.scores)
    fields: Fields = [("method", str), *spread_fields(measures, number_column, say_score)]
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
            *spread_fields(methods, method_column, partial(say_score, kind)),
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
        fields: Fields = [("method", str), *spread_fields(methods, method_column, partial(say_gain, gains))]
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


def share_text(row: GapRow | None) -> Text:
    """A share of the oracle gap with its interval."""
    if row is None:
        return DASH
    if row.why:
        return Span("not known", "note")
    interval = f"{format_hundredths(row.share_low)} – {format_hundredths(row.share_high)}"
    return (Span(format_hundredths(row.share), "value"), make_subline(interval))


NOT_ASSESSABLE = Span("not assessable", "mark")
VETOED = Span("vetoed", "mark")
OUTSIDE_MARK = Span("outside", "sub")
DASH = "–"


def change_span(value: float, low: float, high: float) -> Span:
    """A change; it is coloured only if its interval does not contain 0."""
    return Span(format_signed(value), "up" if low > 0 else "down" if high < 0 else "even")


def range_line(low: float, high: float) -> Span:
    """The interval of a change."""
    return make_subline(f"{format_signed(low)} to {format_signed(high)}")


def estimate_texts(
    value: float, low: float, high: float, write: Callable[[float], str] = format_number, between: str = " – "
) -> list[Text]:
    """A value, and its interval if it has one."""
    interval: list[Text] = [] if math.isnan(low) else [" ", make_subline(f"{write(low)}{between}{write(high)}")]
    return [Span(write(value), "value"), *interval]


def value_texts(row: ScoreRow) -> list[Text]:
    """A value with its intervals; for masks also how many patients have one."""
    parts = estimate_texts(row.value, row.low, row.high)
    if not math.isnan(row.trained_low):
        parts += [" ", make_subline(f"trainings {format_number(row.trained_low)} – {format_number(row.trained_high)}")]
    if row.defined is not None and row.defined < row.positive_patients:
        of = format_count(row.positive_patients, "patient", "patients")
        parts += [" ", make_subline(f"{row.defined} of {of}")]
    return parts


def gain_texts(row: ScoreRow) -> list[Text]:
    """A gain with the wider of its intervals."""
    parts: list[Text] = [change_span(row.gain, *row.widest_gain)]
    return parts if math.isnan(row.gain_low) else [*parts, " ", range_line(*row.widest_gain)]


def score_cell(row: ScoreRow | None, reference: str, *, is_marked: bool = True) -> Cell:
    """A score. is_marked: whether the cell itself says that it is not assessable, and not the head of its column."""
    if row is None:
        return Cell(DASH)
    parts = value_texts(row)
    if row.method != reference and not math.isnan(row.gain):
        change, *rest = gain_texts(row)
        parts += [" ", Span(change, "sub gain"), *rest]
    if is_marked and not row.assessable:
        parts += [" ", NOT_ASSESSABLE]
    return Cell(tuple(parts), "" if row.assessable else "weak")


def named_method(method: str, notes: Mapping[str, str]) -> Text:
    """A method with its note."""
    return (method, " ", Span(notes[method], "sub why")) if method in notes else method


def method_column(method: str, notes: Mapping[str, str] | None = None) -> Column:
    """A column of a method, which goes when a reader leaves the method out."""
    return Column(named_method(method, notes or {}), is_number=True, method=method)


def build_score_notes(page: RunPage | SitePage) -> list[Block]:
    """All notes that a page's scores need."""
    methods = {row.method for row in page.scores}
    floor = next((name for name in FLOORS if name in methods), "")
    over = list_mean_classes(page.scores, page.scored_parts, ordered=page.part_word != "class")
    parts = [_describe_parts(page, over)] if over else []
    kinds = [_describe_masks(page, floor)] if page.structures else []
    kinds += [_describe_number(page.number, floor)] if page.number else []
    notes = [*_list_keys(page.scores, page.reference), *_list_noise(page), *kinds, *_list_weak(page), *parts]
    return [Paragraph(text, "note") for text in notes]


def _list_keys(rows: Sequence[ScoreRow], reference: str) -> list[Text]:
    """What the numbers of a cell are, for the first table of scores."""
    text = "**Bold**: the score; below it, as *a – b*, its 95 % interval over patients"
    text += "; *trainings a – b*: over trainings." if any(row.trainings > 1 for row in rows) else "."
    if any(not math.isnan(row.gain) for row in rows if row.method != reference):
        text += (
            " With a sign: the gain over {reference}, and as *a to b* its interval; coloured where that does not hold "
            "0, grey where it does."
        )
    return [compose_text(text, reference=reference)] if rows else []


def build_noise_notes(page: RunPage) -> list[Block]:
    """That scores are of noised counts, and which of them rest on too little."""
    return [Paragraph(text, "note") for text in (*_list_noise(page), *_list_weak(page))]


def _list_noise(page: RunPage | SitePage) -> list[Text]:
    """That scores are of noised counts, if they are."""
    noise = max((row.noise for row in page.scores), default=0.0)
    text = compose_text(
        "**These scores come from noised counts**: before they left, each hospital added noise to its histograms of "
        "scores (standard deviation over all: up to {noise} patients in a bin). Every patient weighs the same, and the "
        "intervals include the noise.",
        noise=f"{noise:.3g}",
    )
    return [text] if noise else []


def _describe_number(number: Number, floor: str) -> Text:
    """What is predicted, and how numbers are compared."""
    end = " *{floor}*: the median of the hospital's own training labels for every example." if floor else ""
    return compose_text(
        "Predicted is the **{what}**, between {low} and {high}. *MAE*: mean absolute error, and *RMSE*: root of the "
        "mean squared error, both in that unit; lower is better, and a gain is positive if it fell. *correlation*: "
        "Pearson's, of predicted and given; it is not known of noised scores." + end,
        what=f"{number.what}, in {number.unit}" if number.unit else number.what,
        low=format_value(number.low, "g"),
        high=format_value(number.high, "g"),
        floor=floor,
    )


def _describe_masks(page: RunPage | SitePage, floor: str) -> Text:
    """How masks are compared."""
    several = f" Both are means over {', '.join(page.structures)}." if len(page.structures) > 1 else ""
    end = " *{floor}*: one mask for every image, where most of the hospital's own training masks are." if floor else ""
    return compose_text(
        "*Dice*: twice the overlap of the method's and the given mask over the sum of both, of all {examples} of a "
        "patient together; 1 is equal, 0 nothing in common. A patient with neither mask does not count. *HD95*: 95th "
        "percentile of the distances between their outlines in {length}, of each {example}, mean over a patient's "
        "{examples}; lower is better, and a gain is positive if it fell. It has no value for a patient in whom the "
        "method found nothing, so read it together with Dice: “5 of 6 patients” are those who have one.{several}" + end,
        examples=page.words.examples,
        example=page.words.example,
        length=page.words.length,
        several=several,
        floor=floor,
    )


def _list_weak(page: RunPage | SitePage) -> list[Text]:
    """Which hospitals' scores rest on too little, if any do."""
    weak = weak_rows(select_whole_rows(page.scores, page.scored_parts))
    if not weak:
        return []
    noise = ", or too much noise," if any(row.noise for row in weak) else ""
    shown = weak if len(weak) <= READABLE else weak[:LISTED]
    sites = "; ".join(f"{row.sites[0]} ({_describe_support(page, row)})" for row in shown)
    rest = f"; and {len(weak) - LISTED} others" if len(weak) > READABLE else ""
    text = (
        f" too few{noise} to judge by: {sites}{rest}. Such scores are printed, in italics, and left out of means over "
        "hospitals where others can be assessed."
    )
    return [(NOT_ASSESSABLE, text)]


def _describe_support(page: RunPage | SitePage, row: ScoreRow) -> str:
    """How little a score rests on."""
    with_it = format_count(row.positive_patients, "patient", "patients")
    if row.defined is not None:
        return f"{with_it} with {'the rarest of the structures' if len(page.structures) > 1 else 'the structure'}"
    if page.number:
        return format_count(row.patients, "patient", "patients")
    if page.scored_parts:
        return f"{with_it} {'with the rarest finding' if page.part_word == 'finding' else 'of the rarest class'}"
    counts = f"{format_whole(row.positives)} positive and {format_whole(row.negatives)} negative"
    positive = format_count(row.positive_patients, "positive patient", "positive patients")
    return f"{counts} {'patients' if row.noise else page.words.examples}, {positive}"


CUTS_NOTE = (
    "*AUC*: of the probability that the grade reaches a cut, grades from the cut on against those below; the mean "
    "over the cuts that can be assessed: at least 20 {examples} on either side, those above of 5 patients; if none "
    "can, over all that have both sides. {parts} *quadratic kappa*: agreement of grades beyond chance, by the squared "
    "distance. *MAE in grades*: how many grades a prediction, the median of its distribution, is off; lower is "
    "better. *balanced accuracy*: the mean over grades of the share that is recognised."
)
FINDINGS_NOTE = (
    "Each finding is scored on the {examples} where it is known. AUC, balanced accuracy and the other scores of a "
    "whole model are means over the findings that can be assessed: at least 20 {examples} with and 20 without it, "
    "those with it of 5 patients; if none can, over all that have both. {parts}"
)
CLASSES_NOTE = (
    "AUC (each class against the rest) and balanced accuracy are means over the classes that can be assessed: at "
    "least 20 {examples} of 5 patients, and 20 {examples} of other classes; if fewer than two can, over all that a "
    "hospital has. {parts}"
)
PART_NOTES = {"cut": CUTS_NOTE, "finding": FINDINGS_NOTE, "class": CLASSES_NOTE}


def _describe_parts(page: RunPage | SitePage, over: Mapping[str, Sequence[str]]) -> Text:
    """Over which classes, cuts or findings means are taken, by hospital."""
    several = len(over) > 1
    parts = join_texts(
        ((Span(site, "b") if several else "", ": " * several, ", ".join(over[site])) for site in over), "; "
    )
    return compose_text(PART_NOTES[page.part_word], examples=page.words.examples, parts=(parts, "."))


def describe_adaptation(structures: Sequence[str], field: str) -> Text:
    """What adaptation at an external site sees. field: the setting that crops images around their masks."""
    start = "Each line is a way to get a model for this purpose; a model is adapted on the images that it is scored on"
    end = "All patients are scored, or test patients alone where a line is `fine_tuned`, which trains with labels."
    if not field:
        return compose_text(f"{start}, without their {'masks' if structures else 'labels'}. {end}")
    saw = "no mask" if structures else "neither mask nor label"
    cropped = "**Images were cropped around their masks** (`{field}`); adaptation itself saw"
    return compose_text(f"{start}. {cropped} {saw}. {end}", field=field)


def describe_withdrawal(withdrawn: Withdrawn, words: Words) -> str:
    """How many studies are left out."""
    text = f"{format_count(withdrawn.studies, words.study, words.studies)} left out"
    if withdrawn.unmatched:
        names = format_count(withdrawn.unmatched, "excluded name matches", "excluded names match")
        text += f"; {names} no patient"
    return text
