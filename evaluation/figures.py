"""Figures of a run: scores with intervals, gains, ROC curves, learning curves, the cross-site matrix.

Each takes numbers and returns a `Picture` whose alternative text tells the same numbers in words. Sites are panels or
groups of rows, methods are colours with a marker or dash of their own, and always in the order given.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evaluation.drawing import INK, Picture, svg
from evaluation.histograms import Floats, Ints
from evaluation.metrics import auc, roc
from evaluation.panels import WIDTH, legend, line, mark, panels, wide
from evaluation.rows import PRIVATE, PRIVATE_MEAN, ScoreRow


@dataclass(frozen=True)
class Curve:
    """A value per round; rounds may be skipped."""

    rounds: tuple[int, ...]
    values: tuple[float, ...]


def dots(rows: Sequence[ScoreRow], measure: str) -> Picture:
    """Private scores with their intervals, grouped by site; not assessable ones are hollow."""
    shown = [row for row in rows if row.measure == measure and row.protocol in (PRIVATE, PRIVATE_MEAN)]
    values = {(_group(row), row.method): (row.value, row.low, row.high, row.assessable) for row in shown}
    order = _ordered(rows)
    alt = f"{measure} by hospital and method. " + _told(values)

    def draw(figure: Figure) -> None:
        axes = _grouped(figure, values, order)
        for y, method, (value, low, high, fine) in _places(values):
            look = mark(order.index(method))
            axes.hlines(y, low, high, color=look["color"], linewidth=1.6, alpha=1 if fine else 0.45)
            axes.plot(value, y, markersize=6, markerfacecolor=look["color"] if fine else "none", **look)
        axes.set_xlabel(measure)
        axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), alpha=0.5)

    caption = (
        "Each hospital's own model on its own test patients; bars are 95 % intervals over patients, the dashed line "
    )
    return Picture(
        measure, caption + "is chance, hollow marks rest on too few patients.", svg(_tall(values), alt, draw)
    )


def gain_bars(rows: Sequence[ScoreRow], measure: str, reference: str) -> Picture:
    """Gains over the reference method with their intervals, grouped by site; not assessable ones are pale."""
    shown = [
        r for r in rows if r.measure == measure and r.protocol in (PRIVATE, PRIVATE_MEAN) and r.method != reference
    ]
    values = {(_group(row), row.method): (row.gain, row.gain_low, row.gain_high, row.assessable) for row in shown}
    order = _ordered(rows)
    alt = f"Gain in {measure} over {reference} by hospital and method. " + _told(values)

    def draw(figure: Figure) -> None:
        axes = _grouped(figure, values, order)
        for y, method, (value, low, high, fine) in _places(values):
            colour = mark(order.index(method))["color"]
            axes.barh(y, value, height=_step(values) * 0.82, color=colour, alpha=0.9 if fine else 0.35, linewidth=0)
            axes.hlines(y, low, high, color=INK, linewidth=1.0)
        axes.axvline(0, color=INK, linewidth=0.9)
        axes.set_xlabel(f"gain in {measure} over {reference}")

    caption = (
        f"Same patients, same bootstrap copies: an interval that leaves out 0 is a difference to {reference} that "
    )
    end = "chance alone would rarely make. Pale bars rest on too few patients."
    return Picture(f"Gain over {reference}", caption + end, svg(_tall(values), alt, draw))


def roc_curves(scores: Mapping[str, Mapping[str, Ints]], *, order: Sequence[str] = ()) -> Picture:
    """ROC curves, a panel per site and a line per method.

    Args:
        scores: site -> method -> (2, bins) counts of examples.
        order: all methods of the run, so that each looks as in the other figures.
    """
    looks = _looks(scores, order)
    areas = {site: {m: float(auc(s)) for m, s in lines.items()} for site, lines in scores.items()}
    words = [f"{site}: " + ", ".join(f"{m} {_said(a)}" for m, a in lines.items()) for site, lines in areas.items()]
    alt = "ROC curves by hospital. Areas under the curve: " + "; ".join(words) + "."

    def draw(figure: Figure) -> None:
        for axes, (site, lines) in panels(figure, scores, share_y=True):
            axes.plot([0, 1], [0, 1], color=INK, linewidth=0.7, alpha=0.4, linestyle=(0, (2, 2)))
            for method, counts in lines.items():
                axes.plot(*_corners(*roc(counts)), **looks[method])
            if not any(math.isfinite(area) for area in areas[site].values()):
                axes.text(0.5, 0.5, "no curve:\none class only", ha="center", va="center")
            axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
            axes.set_box_aspect(1)
            axes.set_title(site)
            axes.set_xlabel("false positive rate")
        figure.axes[0].set_ylabel("true positive rate")
        legend(figure, looks)

    caption = "Each hospital's own model on its own test patients, from histograms of predicted probability."
    return Picture("ROC curves", caption, svg(wide(len(scores), len(looks)), alt, draw))


def learning_curves(
    curves: Mapping[str, Mapping[str, Curve]], *, value: str = "validation loss", order: Sequence[str] = ()
) -> Picture:
    """A value per round, a panel per site and a line per method. curves: site -> method -> curve. order: as above."""
    looks = _looks(curves, order)
    words = [
        f"{site}: "
        + ", ".join(f"{m} {_said(c.values[-1])} after round {c.rounds[-1]}" for m, c in lines.items() if c.values)
        for site, lines in curves.items()
    ]
    alt = f"{value.capitalize()} by round and hospital. Last values: " + "; ".join(words) + "."

    def draw(figure: Figure) -> None:
        for axes, (site, lines) in panels(figure, curves, share_y=False):
            for method, curve in lines.items():
                marker = "." if len(curve.rounds) == 1 else ""
                axes.plot(curve.rounds, curve.values, **looks[method], marker=marker)
            axes.grid(axis="y")
            axes.set_title(site)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        figure.axes[0].set_ylabel(value)
        legend(figure, looks)

    caption = f"{value.capitalize()} on each hospital's validation patients, of the model that it would use."
    return Picture("Learning curves", caption, svg(wide(len(curves), len(looks)), alt, draw))


def cross_site(models: Sequence[str], tests: Sequence[str], values: Floats, measure: str, method: str) -> Picture:
    """Heat map of `protocols.matrix`: the model of each site (rows) on the patients of each site (columns)."""
    told = [f"{m} on {t} {_said(float(values[i, j]))}" for i, m in enumerate(models) for j, t in enumerate(tests)]
    alt = f"{measure} of {method}: " + "; ".join(told) + "."

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        low, high = (
            (0.5, 1.0) if np.isnan(values).all() or np.nanmin(values) >= 0.5 else (float(np.nanmin(values)), 1.0)
        )
        drawn = axes.imshow(values, cmap="cividis", vmin=low, vmax=high, aspect="auto")
        for i, j in np.ndindex(values.shape):
            light = values[i, j] > (low + high) / 2
            axes.text(
                j, i, _said(float(values[i, j])), ha="center", va="center", color="#111111" if light else "#ffffff"
            )
        axes.set_xticks(range(len(tests)), tests, rotation=0 if len(tests) < 7 else 60)
        axes.set_yticks(range(len(models)), models)
        axes.set(xlabel="tested on the patients of", ylabel="model of")
        axes.spines[:].set_visible(False)
        figure.colorbar(drawn, ax=axes, label=measure, shrink=0.9).outline.set_visible(False)

    size = (min(WIDTH, 2.6 + 0.85 * len(tests)), 1.3 + 0.45 * len(models))
    caption = "The diagonal is private testing; a column shows which hospitals' models suit these patients."
    return Picture(f"Cross-site generalization: {method}", caption, svg(size, alt, draw))


Values = Mapping[tuple[str, str], tuple[float, float, float, bool]]
"""(group, method) -> value, low, high, assessable."""


def _group(row: ScoreRow) -> str:
    return row.sites[0] if row.protocol == PRIVATE else "mean"


def _told(values: Values) -> str:
    words = [
        f"{group}, {method}: {_said(value)} ({_said(low)} to {_said(high)}){'' if fine else ', not assessable'}"
        for (group, method), (value, low, high, fine) in values.items()
    ]
    return "; ".join(words) + "."


def _ordered(rows: Sequence[ScoreRow]) -> list[str]:
    """All methods, so that a method looks the same in every figure."""
    return list(dict.fromkeys(row.method for row in rows))


def _said(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "–"


def _axes_of(values: Values) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(group for group, _ in values)), list(dict.fromkeys(method for _, method in values))


def _step(values: Values) -> float:
    return 0.8 / max(1, len(_axes_of(values)[1]))


def _tall(values: Values) -> tuple[float, float]:
    groups, methods = _axes_of(values)
    return WIDTH, 1.05 + len(groups) * (0.22 + 0.17 * len(methods))


def _grouped(figure: Figure, values: Values, order: Sequence[str]) -> Axes:
    """Axes with a band of rows per group; the key of the methods shown lies below."""
    groups, methods = _axes_of(values)
    axes = figure.subplots()
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    for place, _ in enumerate(pairwise(groups)):
        axes.axhline(place + 0.5, color=INK, alpha=0.14, linewidth=0.6)
    marks = {method: {**mark(order.index(method)), "linestyle": "none"} for method in methods}
    legend(figure, marks)
    return axes


def _places(values: Values) -> Iterator[tuple[float, str, tuple[float, float, float, bool]]]:
    """(y, method, value) of everything to be drawn."""
    groups, methods = _axes_of(values)
    step = _step(values)
    for (group, method), value in values.items():
        yield groups.index(group) - 0.4 + (methods.index(method) + 0.5) * step, method, value


def _looks(shown: Mapping[str, Mapping[str, object]], order: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How the line of every method that is shown looks."""
    methods = {method for lines in shown.values() for method in lines}
    everything = dict.fromkeys([*order, *(method for lines in shown.values() for method in lines)])
    return {method: line(place) for place, method in enumerate(everything) if method in methods}


def _corners(fpr: Floats, tpr: Floats) -> tuple[Floats, Floats]:
    """The points at which the line bends."""
    moved = np.r_[True, (np.diff(fpr) != 0) | (np.diff(tpr) != 0)]
    return fpr[moved], tpr[moved]
