"""Figures of a run: scores with intervals, gains, ROC curves, learning curves, notes of methods by round.

Each takes numbers and returns a `Picture` whose alternative text has the same numbers in words. Sites are panels,
methods are named rows, or colours with a marker or dash of their own, always in the given order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from evaluation.choice import interval_sign
from evaluation.drawing import INK, Picture, belong_to, point_at
from evaluation.findings import Findings
from evaluation.floors import drop_floors
from evaluation.histograms import Counts, Floats, Ints
from evaluation.metrics import auc, roc_curve
from evaluation.panels import PANEL, draw_panels, draw_row_panels, line_style, mark_style
from evaluation.rows import FLOORS, PRIVATE, PRIVATE_MEAN, ScoreRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#8c8c8c"
LOSS = "validation loss"
SPIKE = 2.0
"""A line whose maximum exceeds the others' by this factor is cut off at the edge of its panel, and marked there."""
ANSWERING = 16  # points of a line that say what they are
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
    values = {
        place: Score(row.value, row.low, row.high, row.assessable, row.patients) for place, row in by_place.items()
    }
    repeated, picked = any(row.trainings > 1 for row in shown), {*(chosen or {}).items()} & by_place.keys()
    alt = f"{measure} by hospital and method. {_values_text(values)}" + "".join(
        f" {group}, {row.method}: {_format_value(row.value)}." for group, row in floors.items()
    )
    alt += "".join(f" Use at {site}: {method}." for site, method in sorted(picked))

    def draw(axes: Axes, group: str) -> None:
        for y, method, _ in _list_marks(values, group):
            if (group, method) in picked:
                belong_to(axes.axhspan(y - 0.45, y + 0.45, color=INK, alpha=0.12, linewidth=0), method)
            _draw_score(axes, y, by_place[group, method], mark_style(order.index(method)))
        if (floor := floors.get(group)) is not None:
            line = axes.axvline(floor.value, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
            point_at(line, floor.method, 2 * [f"{group}, {floor.method}: {measure} {_format_value(floor.value)}"])

    caption = "Each hospital's own model on its own test patients; thick bars are 95 % intervals over patients, "
    caption += "thin ones over trainings, " if repeated else ""
    caption += "hollow marks have too few patients. "
    caption += "Shaded: the model to use. " if picked else ""
    caption += f"Dashed: the {next(iter(floors.values())).method}. " if floors else ""
    drawing = draw_row_panels(*_groups_and_methods(values), draw, alt=alt, label=measure)
    return Picture(measure, f"{caption}{SCALES}", drawing)


def _draw_score(axes: Axes, y: int, row: ScoreRow, look: Mapping[str, Any]) -> None:
    """A score with its interval over patients, and beside it a thin one over trainings where there are several."""
    alpha, fill = (1, look["color"]) if row.assessable else (0.45, "none")
    belong_to(axes.hlines(y, row.low, row.high, color=look["color"], linewidth=2.2, alpha=alpha), row.method)
    text = Score(row.value, row.low, row.high, row.assessable, row.patients).in_words
    if math.isfinite(row.trained_low):
        beside = axes.hlines(y + 0.3, row.trained_low, row.trained_high, color=look["color"], linewidth=0.9)
        belong_to(beside, row.method)
        interval = f"{_format_value(row.trained_low)} to {_format_value(row.trained_high)}"
        text += f"; over {row.trainings} trainings {interval}"
    (mark,) = axes.plot(row.value, y, markersize=6, markerfacecolor=fill, **look)
    point_at(mark, row.method, [f"{_panel_name(row)}, {row.method}: {row.measure} {text}"])


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

    def draw(axes: Axes, group: str) -> None:
        for y, method, score in _list_marks(values, group):
            decided = score.fine and interval_sign(score.low, score.high) != 0
            colour = mark_style(order.index(method))["color"] if decided else GREY
            alpha = 0.9 if score.fine else 0.35
            belong_to(axes.barh(y, score.value, height=0.7, color=colour, alpha=alpha, linewidth=0), method)
            belong_to(axes.hlines(y, score.low, score.high, color=INK, linewidth=1.0), method)
            (mark,) = axes.plot(score.value, y)
            point_at(mark, method, [f"{group}, {method}: {score.in_words} in {measure} over {reference}"])
        axes.axvline(0, color=INK, linewidth=0.9)

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
        f"{site}: " + ", ".join(f"{m} {_format_value(a)}" for m, a in lines.items()) for site, lines in areas.items()
    ]
    alt = "ROC curves by hospital. Areas under the curve: " + "; ".join(words) + "."

    def draw(axes: Axes, site: str, lines: Mapping[str, Ints]) -> None:
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.7, alpha=0.4, linestyle=(0, (2, 2)))
        for method, counts in lines.items():
            fpr, tpr = _bend_points(*roc_curve(counts))
            (line,) = axes.plot(fpr, tpr, **looks[method])
            texts = [f"{y:.0%} found, {x:.0%} false alarms" for x, y in zip(fpr, tpr, strict=True)]
            area = f"{site}, {method}: AUC {_format_value(areas[site][method])}; "
            point_at(line, method, texts, lead=area, most=ANSWERING)
        if not any(math.isfinite(area) for area in areas[site].values()):
            axes.text(0.5, 0.5, "no curve:\none class only", ha="center", va="center")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        axes.set_box_aspect(1)

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
    shown = {name: {m: one.each[k].scores[0, 0] for m, one in findings.items()} for k, name in enumerate(names)}
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
            f"{m} {_format_value(c.values[-1])} after round {c.rounds[-1]}" for m, c in lines.items() if c.values
        )
        for site, lines in curves.items()
    ]
    tops = {site: panel_top(lines) for site, lines in curves.items()}
    cut = {site: cut_off(lines, tops[site]) for site, lines in curves.items()}
    words += [
        f"{site}: {m} reaches {_format_value(v)}, above the scale"
        for site, cut_lines in cut.items()
        for m, v in cut_lines.items()
    ]
    named = f"{value[:1].upper()}{value[1:]}"
    alt = f"{named} by round and hospital. Last values: " + "; ".join(words) + "."

    def draw(axes: Axes, site: str, lines: Mapping[str, Curve]) -> None:
        top = tops[site]
        for method, curve in lines.items():
            _draw_curve(axes, f"{site}, {method}", method, curve, looks[method])
            over = [number for number, v in zip(curve.rounds, curve.values, strict=True) if v > top]
            look = {"marker": "^", "markersize": 5, "linewidth": 0, "color": looks[method]["color"]}
            belong_to(axes.plot(over, [top] * len(over), **look) if over else [], method)
        if cut[site]:
            low = min(min(curve.values) for curve in lines.values() if curve.values)
            room = top - low or abs(top) or 1.0  # one round: all the others may have one value
            axes.set_ylim(low - 0.05 * room, top + 0.03 * room)

    caption = f"{named} on each hospital's validation patients, of the model that it would use."
    if cut_texts := [
        f"{m} at {site} {_format_value(v)}" for site, cut_lines in cut.items() for m, v in cut_lines.items()
    ]:
        caption += f" Triangles: above the scale, which follows the other methods; highest: {', '.join(cut_texts)}."
    title = "Learning curves" if value == LOSS else f"{named} by round"
    drawing = draw_panels(curves, draw, alt=alt, labels=("round", value), looks=looks)
    return Picture(f"{title}{part}", caption, drawing)


def _draw_curve(axes: Axes, lead: str, method: str, curve: Curve, look: Mapping[str, Any]) -> None:
    """One line by round, each point of which says its value. lead: what it is."""
    from matplotlib.ticker import MaxNLocator  # slow to import

    (line,) = axes.plot(curve.rounds, curve.values, **look, marker="." if len(curve.rounds) == 1 else "")
    at = zip(curve.rounds, curve.values, strict=True)
    texts = [f"round {number}: {_format_value(value)}" for number, value in at]
    point_at(line, method, texts, lead=f"{lead}, ", most=ANSWERING)
    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))


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
        f"{method}, {note}: {_format_value(c.values[0])} after round {c.rounds[0]}, "
        f"{_format_value(c.values[-1])} after {c.rounds[-1]}"
        for (method, note), c in curves.items()
    ]
    shown = {f"{method}\n{note}": (method, curve) for (method, note), curve in curves.items()}

    def draw(axes: Axes, title: str, noted: tuple[str, Curve]) -> None:
        method, curve = noted
        _draw_curve(axes, ", ".join(title.split("\n")), method, curve, looks[method])

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
        interval = f" ({_format_value(self.low)} to {_format_value(self.high)})"
        return f"{_format_value(self.value)}{interval}, {self.patients} patients{'' if self.fine else ', too few'}"


Values = Mapping[tuple[str, str], Score]
"""By (group, method)."""


def _panel_name(row: ScoreRow) -> str:
    """The title of the panel in which a row is drawn: its hospital, or "mean"."""
    return row.sites[0] if row.protocol == PRIVATE else "mean"


def _values_text(values: Values) -> str:
    """All values with their intervals, for the alternative text."""
    words = [
        f"{group}, {method}: {_format_value(value)} ({_format_value(low)} to {_format_value(high)})"
        f"{'' if fine else ', not assessable'}"
        for (group, method), (value, low, high, fine, _) in values.items()
    ]
    return "; ".join(words) + "."


def _list_methods(rows: Sequence[ScoreRow]) -> list[str]:
    """All methods, so that a method looks the same in every figure."""
    return list(dict.fromkeys(row.method for row in rows))


def _format_value(value: float) -> str:
    """Three decimals; an en dash for a value that is not finite."""
    return f"{value:.3f}" if math.isfinite(value) else "–"


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
