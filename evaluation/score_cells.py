"""Scores as cells of a table: the value, its intervals, the gain over the reference, and what should be known of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from evaluation.page import Cell, Column, Span, Text, make_subline
from evaluation.rows import ScoreRow
from evaluation.wording import format_count, format_number, format_signed

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


def value_texts(row: ScoreRow) -> list[Text]:
    """A value with its intervals; for masks also how many patients have one."""
    parts: list[Text] = [Span(format_number(row.value), "value")]
    if not math.isnan(row.low):
        parts += [" ", make_subline(f"{format_number(row.low)} – {format_number(row.high)}")]
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
