"""Figures of a run: scores with intervals, gains, ROC curves, learning curves, notes of methods by round.

Each takes numbers and returns a `Picture` whose alternative text has the same numbers in words. Sites are panels,
methods are named rows, or colours with a marker or dash of their own, always in the given order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evaluation.axes import FONT, Axis, Label, Panel, Shape
from evaluation.choice import interval_sign
from evaluation.drawing import Picture
from evaluation.findings import Findings
from evaluation.floors import drop_floors
from evaluation.histograms import Counts, Floats, Ints
from evaluation.metrics import auc, roc_curve
from evaluation.panels import (
    DASHED,
    PANEL,
    SHARES,
    draw_diagonal,
    draw_panels,
    draw_row_panels,
    draw_span,
    draw_upright,
    line_style,
    mark_style,
)
from evaluation.rows import FLOORS, PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.wording import format_number

GREY = "#8c8c8c"
LOSS = "validation loss"
SPIKE = 2.0
"""A line whose maximum exceeds the others' by this factor is cut off at the edge of its panel, and marked there."""
ANSWERING = 16  # points of a line that say what they are
ROUNDS = Axis(whole=True, most=5)
SCALES = "Each panel has its own scale."


@dataclass(frozen=True)
class Curve:
    """A value per round; rounds may be skipped."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]


def draw_score_dots(scores: Sequence[ScoreRow], measure: str, chosen: Mapping[str, str] | None = None) -> Picture:
    """Private scores with their intervals, a panel for each site; not assessable ones are hollow, floors lines.

    chosen: site -> the method that it should use, whose row is shaded.
    """
    shown = [row for row in scores if row.measure == measure and row.protocol in (PRIVATE, PRIVATE_MEAN)]
    floors = {_panel_name(row): row for row in shown if row.method in FLOORS and math.isfinite(row.value)}
    shown, order = drop_floors(shown), _list_methods(drop_floors(scores))
    by_place = {(_panel_name(row), row.method): row for row in shown}
    values = {place: _as_score(row) for place, row in by_place.items()}
    repeated, picked = any(row.trainings > 1 for row in shown), {*(chosen or {}).items()} & by_place.keys()
    alt = f"{measure} by hospital and method. {_values_text(values)}" + "".join(
        f" {group}, {row.method}: {format_number(row.value)}." for group, row in floors.items()
    )
    alt += "".join(f" Use at {site}: {method}." for site, method in sorted(picked))

    def draw(group: str) -> list[Shape | Label]:
        shapes = list[Shape | Label]()
        for y, method, _ in _list_marks(values, group):
            if (group, method) in picked:
                shapes.append(_shade_row(y, method))
            shapes += _draw_score(y, by_place[group, method], mark_style(order.index(method)))
        if (floor := floors.get(group)) is not None:
            texts = 2 * [f"{group}, {floor.method}: {measure} {format_number(floor.value)}"]
            shapes.append(replace(draw_upright(floor.value, DASHED), method=floor.method, texts=texts))
        return shapes

    caption = "Each hospital's own model on its own test patients; thick bars are 95 % intervals over patients, "
    caption += "thin ones over trainings, " if repeated else ""
    caption += "hollow marks have too few patients. "
    caption += "Shaded: the model to use. " if picked else ""
    caption += f"Dashed: the {next(iter(floors.values())).method}. " if floors else ""
    drawing = draw_row_panels(*_groups_and_methods(values), draw, alt=alt, label=measure)
    return Picture(measure, f"{caption}{SCALES}", drawing)


def _shade_row(y: int, method: str) -> Shape:
    """The row of the method that should be used."""
    sides = (y - 0.45, y - 0.45, y + 0.45, y + 0.45)
    return Shape(x=(0, 1, 1, 0), y=sides, across="x", filled=True, alpha=0.12, method=method)


def _draw_score(y: int, row: ScoreRow, look: Mapping[str, Any]) -> list[Shape]:
    """A score with its interval over patients, and beside it a thin one over trainings where there are several."""
    colour, alpha, text = look["color"], 1 if row.assessable else 0.45, _as_score(row).in_words
    shapes = [draw_span((row.low, row.high), y, color=colour, linewidth=2.2, alpha=alpha, method=row.method)]
    if math.isfinite(row.trained_low):
        ends = (row.trained_low, row.trained_high)
        shapes.append(draw_span(ends, y + 0.3, color=colour, linewidth=0.9, method=row.method))
        interval = f"{format_number(row.trained_low)} to {format_number(row.trained_high)}"
        text += f"; over {row.trainings} trainings {interval}"
    texts = [f"{_panel_name(row)}, {row.method}: {row.measure} {text}"]
    return [*shapes, Shape(x=row.value, y=y, hollow=not row.assessable, method=row.method, texts=texts, **look)]


def draw_gain_bars(scores: Sequence[ScoreRow], measure: str, reference: str) -> Picture:
    """Gains over the reference method with their intervals, a panel for each site; not assessable ones are pale."""
    shown = [
        r for r in scores if r.measure == measure and r.protocol in (PRIVATE, PRIVATE_MEAN) and r.method != reference
    ]
    values = {
        (_panel_name(row), row.method): Score(row.gain, *row.widest_gain, row.assessable, row.patients) for row in shown
    }
    order = _list_methods(scores)
    alt = f"Gain in {measure} over {reference} by hospital and method. " + _values_text(values)

    def draw(group: str) -> list[Shape | Label]:
        shapes = list[Shape | Label]()
        for y, method, score in _list_marks(values, group):
            decided = score.fine and interval_sign(score.low, score.high) != 0
            colour = mark_style(order.index(method))["color"] if decided else GREY
            sides = (y - 0.35, y - 0.35, y + 0.35, y + 0.35)
            bar = Shape(x=(0, score.value, score.value, 0), y=sides, color=colour, filled=True, method=method)
            shapes.append(replace(bar, alpha=0.9 if score.fine else 0.35))
            shapes.append(draw_span((score.low, score.high), y, linewidth=1.0, method=method))
            texts = [f"{group}, {method}: {score.in_words} in {measure} over {reference}"]
            shapes.append(Shape(x=score.value, y=y, method=method, texts=texts))
        return [*shapes, draw_upright(0)]

    caption = (
        f"Same patients, same bootstrap copies: an interval without 0 is a difference from {reference} that "
        f"chance alone would rarely make. Grey bars: the interval contains 0, so the method is not distinguishable "
        f"from {reference}. Pale bars have too few patients. {SCALES}"
    )
    label = f"gain in {measure} over {reference}"
    drawing = draw_row_panels(*_groups_and_methods(values), draw, alt=alt, label=label)
    return Picture(f"Gain over {reference}", caption, drawing)


def draw_roc_curves(scores: Mapping[str, Mapping[str, Ints]], *, order: Sequence[str] = (), part: str = "") -> Picture:
    """ROC curves, a panel per site and a line per method.

    Args:
        scores: site -> method -> (2, bins) counts of examples.
        order: all methods of the run, so that each looks as in the other figures.
        part: which part of the methods this is, if they do not fit in one picture.
    """
    looks = _line_styles(scores, order)
    areas = {site: {m: float(auc(s)) for m, s in lines.items()} for site, lines in scores.items()}
    words = [
        f"{site}: " + ", ".join(f"{m} {format_number(a)}" for m, a in lines.items()) for site, lines in areas.items()
    ]
    alt = "ROC curves by hospital. Areas under the curve: " + "; ".join(words) + "."

    def draw(site: str, lines: Mapping[str, Ints]) -> Panel:
        shapes: list[Shape | Label] = [draw_diagonal()]
        for method, counts in lines.items():
            fpr, tpr = _bend_points(*roc_curve(counts))
            texts = [f"{y:.0%} found, {x:.0%} false alarms" for x, y in zip(fpr, tpr, strict=True)]
            area = f"{site}, {method}: AUC {format_number(areas[site][method])}; "
            shapes.append(Shape(x=fpr, y=tpr, method=method, lead=area, texts=texts, most=ANSWERING, **looks[method]))
        if not any(math.isfinite(area) for area in areas[site].values()):
            words = zip(("no curve:", "one class only"), (0.54, 0.46), strict=True)
            shapes += [Label(x=0.5, y=y, text=text, size=FONT) for text, y in words]
        return Panel(shapes=shapes, x=SHARES, y=SHARES, square=True)

    caption = "Each hospital's own model on its own test patients, from histograms of predicted probability."
    labels = ("false positive rate", "true positive rate")
    return Picture(f"ROC curves{part}", caption, draw_panels(scores, draw, alt=alt, labels=labels, looks=looks))


def draw_roc_by_class(
    counts: Mapping[str, Counts], names: Sequence[str], *, order: Sequence[str] = (), part: str = ""
) -> Picture:
    """ROC curves of one site's models, a panel per class against the rest, or per cut between grades, and a line per
    method.

    Args:
        counts: method -> counts of more than two classes.
        names: of the classes, or of the cuts.
        order, part: as above.
    """
    has_cuts = any(model_counts.has_cuts for model_counts in counts.values())
    shown = {name: {m: model_counts.sample[c] for m, model_counts in counts.items()} for c, name in enumerate(names)}
    picture = draw_roc_curves(shown, order=order, part=part)
    what = "Grades from each cut on against those below" if has_cuts else "Each class against the rest"
    caption = f"{what}, on the hospital's own test patients, from histograms of probability."
    words = f"ROC curves by {'cut' if has_cuts else 'class'}"
    return Picture(picture.title, caption, picture.html.replace("ROC curves by hospital", words))


def draw_roc_by_finding(
    findings: Mapping[str, Findings], names: Sequence[str], *, order: Sequence[str] = (), part: str = ""
) -> Picture:
    """ROC curves of one site's models, a panel per finding and a line per method. findings: by method. names: of the
    findings. order, part: as above.
    """
    shown = {name: {m: scored.each[k].scores[0, 0] for m, scored in findings.items()} for k, name in enumerate(names)}
    picture = draw_roc_curves(shown, order=order, part=part)
    caption = "Each finding, on the hospital's own test patients of whom it is known, from histograms of probability."
    return Picture(picture.title, caption, picture.html.replace("ROC curves by hospital", "ROC curves by finding"))


def draw_learning_curves(
    curves: Mapping[str, Mapping[str, Curve]],
    *,
    value: str = LOSS,
    order: Sequence[str] = (),
    part: str = "",
) -> Picture:
    """A value per round, a panel per site and a line per method. curves: site -> method -> curve. value: what it is.
    Others: as above.
    """
    looks = _line_styles(curves, order)
    words = [
        f"{site}: "
        + ", ".join(
            f"{m} {format_number(c.values[-1])} after round {c.rounds[-1]}" for m, c in lines.items() if c.values
        )
        for site, lines in curves.items()
    ]
    tops = {site: panel_top(lines) for site, lines in curves.items()}
    cut = {site: cut_off(lines, tops[site]) for site, lines in curves.items()}
    words += [
        f"{site}: {m} reaches {format_number(v)}, above the scale"
        for site, cut_lines in cut.items()
        for m, v in cut_lines.items()
    ]
    named = f"{value[:1].upper()}{value[1:]}"
    alt = f"{named} by round and hospital. Last values: " + "; ".join(words) + "."

    def draw(site: str, lines: Mapping[str, Curve]) -> Panel:
        top, shapes, y = tops[site], list[Shape](), Axis(grid=True)
        for method, curve in lines.items():
            shapes.append(_draw_curve(f"{site}, {method}", method, curve, looks[method]))
            over = [number for number, v in zip(curve.rounds, curve.values, strict=True) if v > top]
            colour = looks[method]["color"]
            if over:
                shapes.append(Shape(x=over, y=[top] * len(over), marker="^", size=5, color=colour, method=method))
        if cut[site]:
            low = min(min(curve.values) for curve in lines.values() if curve.values)
            room = top - low or abs(top) or 1.0  # one round: all the others may have one value
            y = replace(y, low=low - 0.05 * room, high=top + 0.03 * room)
        return Panel(shapes=shapes, x=ROUNDS, y=y)

    caption = f"{named} on each hospital's validation patients, of the model that it would use."
    if cut_texts := [
        f"{m} at {site} {format_number(v)}" for site, cut_lines in cut.items() for m, v in cut_lines.items()
    ]:
        caption += f" Triangles: above the scale, which follows the other methods; highest: {', '.join(cut_texts)}."
    title = "Learning curves" if value == LOSS else f"{named} by round"
    drawing = draw_panels(curves, draw, alt=alt, labels=("round", value), looks=looks)
    return Picture(f"{title}{part}", caption, drawing)


def _draw_curve(lead: str, method: str, curve: Curve, look: Mapping[str, Any]) -> Shape:
    """One line by round, each point of which says its value. lead: what it is."""
    at = zip(curve.rounds, curve.values, strict=True)
    texts = [f"round {number}: {format_number(value)}" for number, value in at]
    line = Shape(x=curve.rounds, y=curve.values, method=method, lead=f"{lead}, ", texts=texts, most=ANSWERING, **look)
    return line if len(curve.rounds) > 1 else replace(line, marker="o", size=3)


def panel_top(lines: Mapping[str, Curve]) -> float:
    """Upper end of a panel's scale: the highest value of the lines whose maximum is at most `SPIKE` times the lower
    median of all maxima, so that one method with large values does not flatten the others. Infinity: nothing is cut
    off.
    """
    maxima = sorted(max(curve.values) for curve in lines.values() if curve.values)
    if len(maxima) < 2 or maxima[0] < 0:
        return math.inf
    fence = SPIKE * maxima[(len(maxima) - 1) // 2]
    return max(value for value in maxima if value <= fence) if maxima[-1] > fence else math.inf


def cut_off(lines: Mapping[str, Curve], top: float) -> dict[str, float]:
    """Method -> its highest value, for lines that exceed the upper end of a panel's scale."""
    return {method: max(c.values) for method, c in lines.items() if c.values and max(c.values) > top}


def draw_note_curves(curves: Mapping[tuple[str, str], Curve], *, order: Sequence[str] = ()) -> Picture:
    """Notes of methods at a site, by round: a panel for each (method, note). order: as above."""
    looks = _line_styles({"": {method: None for method, _ in curves}}, order)
    words = [
        f"{method}, {note}: {format_number(c.values[0])} after round {c.rounds[0]}, "
        f"{format_number(c.values[-1])} after {c.rounds[-1]}"
        for (method, note), c in curves.items()
    ]
    shown = {f"{method}\n{note}": (method, curve) for (method, note), curve in curves.items()}

    def draw(title: str, noted: tuple[str, Curve]) -> Panel:
        method, curve = noted
        line = _draw_curve(", ".join(title.split("\n")), method, curve, looks[method])
        return Panel(shapes=[line], x=ROUNDS, y=Axis(grid=True), method=method)

    alt = "Notes of methods by round. " + "; ".join(words) + "."
    caption = (
        "Averages over a round's steps, or the value after the last one, in rounds that this hospital took part in."
    )
    return Picture(
        "Notes by round", caption, draw_panels(shown, draw, alt=alt, labels=("round", ""), size=(PANEL, 2.0))
    )


class Score(NamedTuple):
    """A value with its interval. fine: whether it can be assessed."""

    value: float
    low: float
    high: float
    fine: bool
    patients: int

    @property
    def in_words(self) -> str:
        """The value, its interval, and on how many patients it rests."""
        interval = f" ({format_number(self.low)} to {format_number(self.high)})"
        return f"{format_number(self.value)}{interval}, {self.patients} patients{'' if self.fine else ', too few'}"


Values = Mapping[tuple[str, str], Score]
"""By (group, method)."""


def _as_score(row: ScoreRow) -> Score:
    """A row's value with its interval over patients."""
    return Score(row.value, row.low, row.high, row.assessable, row.patients)


def _panel_name(row: ScoreRow) -> str:
    """The title of the panel in which a row is drawn: its hospital, or "mean"."""
    return row.sites[0] if row.protocol == PRIVATE else "mean"


def _values_text(values: Values) -> str:
    """All values with their intervals, for the alternative text."""
    words = [
        f"{group}, {method}: {format_number(value)} ({format_number(low)} to {format_number(high)})"
        f"{'' if fine else ', not assessable'}"
        for (group, method), (value, low, high, fine, _) in values.items()
    ]
    return "; ".join(words) + "."


def _list_methods(rows: Sequence[ScoreRow]) -> list[str]:
    """All methods, so that a method looks the same in every figure."""
    return list(dict.fromkeys(row.method for row in rows))


def _groups_and_methods(values: Values) -> tuple[list[str], list[str]]:
    """The groups and the methods that have values, in order of appearance."""
    return list(dict.fromkeys(group for group, _ in values)), list(dict.fromkeys(method for _, method in values))


def _list_marks(values: Values, group: str) -> Iterator[tuple[int, str, Score]]:
    """(row, method, score) of everything to draw of a group, a row for each method."""
    methods = _groups_and_methods(values)[1]
    for (group_of_score, method), score in values.items():
        if group_of_score == group:
            yield methods.index(method), method, score


def _line_styles(shown: Mapping[str, Mapping[str, object]], order: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The line style of every method that is shown."""
    methods = {method for lines in shown.values() for method in lines}
    everything = dict.fromkeys([*order, *(method for lines in shown.values() for method in lines)])
    return {method: line_style(place) for place, method in enumerate(everything) if method in methods}


def _bend_points(fpr: Floats, tpr: Floats) -> tuple[Floats, Floats]:
    """The points where the line bends."""
    moved = np.r_[True, (np.diff(fpr) != 0) | (np.diff(tpr) != 0)]
    return fpr[moved], tpr[moved]
