"""Figures of a run: scores with intervals, gains, ROC curves, learning curves, notes of methods by round.

Each takes numbers and returns a `Picture` whose alternative text has the same numbers in words. Sites are panels,
methods are named rows, or colours with a marker or dash of their own, always in the given order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.choice import interval_sign
from evaluation.drawing import INK, Picture, render_svg
from evaluation.findings import Findings
from evaluation.histograms import Counts, Floats, Ints
from evaluation.metrics import auc, roc_curve
from evaluation.panels import (
    draw_legend,
    line_style,
    make_panels,
    make_row_panels,
    mark_style,
    panels_size,
    row_panels_size,
)
from evaluation.rows import PRIVATE, PRIVATE_MEAN, ScoreRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#8c8c8c"
LOSS = "validation loss"
SPIKE = 2.0
"""A line whose maximum exceeds the others' by this factor is cut off at the edge of its panel, and marked there."""
SCALES = "Each panel has its own scale."


@dataclass(frozen=True)
class Curve:
    """A value per round; rounds may be skipped."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]


def draw_score_dots(scores: Sequence[ScoreRow], measure: str) -> Picture:
    """Private scores with their intervals, a panel for each site; not assessable ones are hollow."""
    shown = [row for row in scores if row.measure == measure and row.protocol in (PRIVATE, PRIVATE_MEAN)]
    values = {(_panel_name(row), row.method): (row.value, *row.widest, row.assessable) for row in shown}
    order = _list_methods(scores)
    alt = f"{measure} by hospital and method. " + _values_text(values)

    def draw(figure: Figure) -> None:
        for axes, y, method, (value, low, high, fine) in _list_marks(figure, values):
            look = mark_style(order.index(method))
            axes.hlines(y, low, high, color=look["color"], linewidth=1.6, alpha=1 if fine else 0.45)
            axes.plot(value, y, markersize=6, markerfacecolor=look["color"] if fine else "none", **look)
        figure.supxlabel(measure, fontsize=9)

    repeated = any(row.trainings > 1 for row in shown)
    over = "patients or trainings, whichever are wider" if repeated else "patients"
    caption = f"Each hospital's own model on its own test patients; bars are 95 % intervals over {over}, hollow marks "
    return Picture(
        measure,
        caption + f"have too few patients. {SCALES}",
        render_svg(row_panels_size(*_groups_and_methods(values)), alt, draw),
    )


def draw_gain_bars(scores: Sequence[ScoreRow], measure: str, reference: str) -> Picture:
    """Gains over the reference method with their intervals, a panel for each site; not assessable ones are pale."""
    shown = [
        r for r in scores if r.measure == measure and r.protocol in (PRIVATE, PRIVATE_MEAN) and r.method != reference
    ]
    values = {(_panel_name(row), row.method): (row.gain, *row.widest_gain, row.assessable) for row in shown}
    order = _list_methods(scores)
    alt = f"Gain in {measure} over {reference} by hospital and method. " + _values_text(values)

    def draw(figure: Figure) -> None:
        for axes, y, method, (value, low, high, fine) in _list_marks(figure, values):
            decided = fine and interval_sign(low, high) != 0
            colour = mark_style(order.index(method))["color"] if decided else GREY
            axes.barh(y, value, height=0.7, color=colour, alpha=0.9 if fine else 0.35, linewidth=0)
            axes.hlines(y, low, high, color=INK, linewidth=1.0)
            axes.axvline(0, color=INK, linewidth=0.9)
        figure.supxlabel(f"gain in {measure} over {reference}", fontsize=9)

    caption = (
        f"Same patients, same bootstrap copies: an interval without 0 is a difference from {reference} that "
        f"chance alone would rarely make. Grey bars: the interval contains 0, so the method is not distinguishable "
        f"from {reference}. Pale bars have too few patients. {SCALES}"
    )
    return Picture(
        f"Gain over {reference}", caption, render_svg(row_panels_size(*_groups_and_methods(values)), alt, draw)
    )


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

    def draw(figure: Figure) -> None:
        for axes, (site, lines) in make_panels(figure, scores, share_y=True):
            axes.plot([0, 1], [0, 1], color=INK, linewidth=0.7, alpha=0.4, linestyle=(0, (2, 2)))
            for method, counts in lines.items():
                axes.plot(*_bend_points(*roc_curve(counts)), **looks[method])
            if not any(math.isfinite(area) for area in areas[site].values()):
                axes.text(0.5, 0.5, "no curve:\none class only", ha="center", va="center")
            axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            axes.set_box_aspect(1)
            axes.set_title(site)
            axes.set_xlabel("false positive rate")
        figure.axes[0].set_ylabel("true positive rate")
        draw_legend(figure, looks)

    caption = "Each hospital's own model on its own test patients, from histograms of predicted probability."
    return Picture(f"ROC curves{part}", caption, render_svg(panels_size(len(scores), list(looks)), alt, draw))


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
    shown = {name: {m: model_counts.scores[0, c] for m, model_counts in counts.items()} for c, name in enumerate(names)}
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
    from matplotlib.ticker import MaxNLocator  # slow to import

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

    def draw(figure: Figure) -> None:
        for axes, (site, lines) in make_panels(figure, curves, share_y=False):
            top = tops[site]
            for method, curve in lines.items():
                marker = "." if len(curve.rounds) == 1 else ""
                axes.plot(curve.rounds, curve.values, **looks[method], marker=marker)
                over = [number for number, v in zip(curve.rounds, curve.values, strict=True) if v > top]
                axes.plot(over, [top] * len(over), marker="^", markersize=5, linewidth=0, color=looks[method]["color"])
            if cut[site]:
                low = min(min(curve.values) for curve in lines.values() if curve.values)
                room = top - low or abs(top) or 1.0  # one round: all the others may have one value
                axes.set_ylim(low - 0.05 * room, top + 0.03 * room)
            axes.grid(axis="y")
            axes.set_title(site)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        figure.axes[0].set_ylabel(value)
        draw_legend(figure, looks)

    caption = f"{named} on each hospital's validation patients, of the model that it would use."
    if cut_texts := [
        f"{m} at {site} {_format_value(v)}" for site, cut_lines in cut.items() for m, v in cut_lines.items()
    ]:
        caption += f" Triangles: above the scale, which follows the other methods; highest: {', '.join(cut_texts)}."
    title = "Learning curves" if value == LOSS else f"{named} by round"
    return Picture(f"{title}{part}", caption, render_svg(panels_size(len(curves), list(looks)), alt, draw))


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
    from matplotlib.ticker import MaxNLocator  # slow to import

    looks = _line_styles({"": {method: None for method, _ in curves}}, order)
    words = [
        f"{method}, {note}: {_format_value(c.values[0])} after round {c.rounds[0]}, "
        f"{_format_value(c.values[-1])} after {c.rounds[-1]}"
        for (method, note), c in curves.items()
    ]
    shown = {f"{method}\n{note}": (method, curve) for (method, note), curve in curves.items()}

    def draw(figure: Figure) -> None:
        for axes, (title, (method, curve)) in make_panels(figure, shown, share_y=False):
            axes.plot(curve.rounds, curve.values, **looks[method], marker="." if len(curve.rounds) == 1 else "")
            axes.grid(axis="y")
            axes.set_title(title)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))

    alt = "Notes of methods by round. " + "; ".join(words) + "."
    caption = (
        "Averages over a round's steps, or the value after the last one, in rounds that this hospital took part in."
    )
    return Picture(
        "Notes by round",
        caption,
        render_svg((panels_size(len(shown), ())[0], 2.1 * math.ceil(len(shown) / 4)), alt, draw),
    )


Values = Mapping[tuple[str, str], tuple[float, float, float, bool]]
"""(group, method) -> value, low, high, assessable."""


def _panel_name(row: ScoreRow) -> str:
    """The title of the panel in which a row is drawn: its hospital, or "mean"."""
    return row.sites[0] if row.protocol == PRIVATE else "mean"


def _values_text(values: Values) -> str:
    """All values with their intervals, for the alternative text."""
    words = [
        f"{group}, {method}: {_format_value(value)} ({_format_value(low)} to {_format_value(high)})"
        f"{'' if fine else ', not assessable'}"
        for (group, method), (value, low, high, fine) in values.items()
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


def _list_marks(figure: Figure, values: Values) -> Iterator[tuple[Axes, int, str, tuple[float, float, float, bool]]]:
    """(panel, row, method, value) of everything to draw: a panel for each group, a row for each method."""
    groups, methods = _groups_and_methods(values)
    drawn = dict(zip(groups, make_row_panels(figure, groups, methods), strict=True)) if groups else {}
    for (group, method), value in values.items():
        yield drawn[group], methods.index(method), method, value


def _line_styles(shown: Mapping[str, Mapping[str, object]], order: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The line style of every method that is shown."""
    methods = {method for lines in shown.values() for method in lines}
    everything = dict.fromkeys([*order, *(method for lines in shown.values() for method in lines)])
    return {method: line_style(place) for place, method in enumerate(everything) if method in methods}


def _bend_points(fpr: Floats, tpr: Floats) -> tuple[Floats, Floats]:
    """The points where the line bends."""
    moved = np.r_[True, (np.diff(fpr) != 0) | (np.diff(tpr) != 0)]
    return fpr[moved], tpr[moved]
