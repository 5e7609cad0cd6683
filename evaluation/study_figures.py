"""Figures of a study: gains over the reference, against the share in training and by hospital (VAFL, Figs 9 and 11).

Every seed is a small mark, so that all seeds are visible; the mean is a large one, and a line spans one
standard deviation to either side of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from evaluation.axes import Axis, Label, Panel, Shape
from evaluation.drawing import Picture
from evaluation.panels import (
    draw_level,
    draw_panels,
    draw_row_panels,
    draw_upright,
    line_style,
    mark_style,
    split_names,
)
from evaluation.rows import group_by
from evaluation.study import MEAN, POOLED, Cell, Key, StudyCase, StudyPage
from evaluation.wording import format_signed

Values: TypeAlias = tuple[float, ...]
"""One gain per seed."""


class Gain(NamedTuple):
    """The gains of one method at one place. fine: whether the score is assessable with every seed."""

    values: Values
    fine: bool


Gains: TypeAlias = dict[str, dict[str, dict[float, Gain]]]
"""Panel -> method -> share in training -> gains."""
HOW = (
    "Small marks are single seeds, large ones their mean, bars one standard deviation over seeds. Below 0 {} is "
    "better. Hollow means have too few patients in some seed."
)


def draw_gains_by_share(
    gains: Gains, *, measure: str, reference: str, order: Sequence[str], sites: Sequence[str], part: str = ""
) -> Picture:
    """Gains against the share of patients in training, a panel for each hospital and a line for each method."""
    words = [
        f"{panel}, {method} at {100 * share:.0f} %: {describe_gain(gain)}"
        for panel, methods in gains.items()
        for method, points in methods.items()
        for share, gain in points.items()
    ]
    alt = f"Gain in {measure} over {reference} by share of patients in training. {'; '.join(words)}."
    methods = [name for name in order if any(name in method_points for method_points in gains.values())]

    def draw(panel: str, method_points: Mapping[str, Mapping[float, Gain]]) -> Panel:
        shapes = list[Shape]()
        for place, method in enumerate(m for m in methods if m in method_points):
            shift, look = (place - (len(method_points) - 1) / 2) * 1.2, order.index(method)
            shares = np.array([100 * share for share in method_points[method]]) + shift
            means = [float(np.mean(gain.values)) for gain in method_points[method].values()]
            shapes.append(Shape(x=shares, y=means, alpha=0.7, method=method, **line_style(look)))
            for x, (share, gain) in zip(shares, method_points[method].items(), strict=True):
                place_text = f"{panel}, {method} at {100 * share:.0f} %"
                shapes += _mark_gain(float(x), gain, look, (method, place_text), lying=False)
        ticks = sorted({100 * share for points in method_points.values() for share in points})
        x_axis = Axis(ticks=ticks, names=[f"{tick:g}" for tick in ticks])
        return Panel(shapes=[*shapes, draw_level(0)], x=x_axis, y=Axis(grid=True))

    title = f"{measure}: gain over {reference} by share in training, {len(sites)} hospitals{part}"
    looks = {method: {**mark_style(order.index(method)), **line_style(order.index(method))} for method in methods}
    labels = ("% of patients in training", f"gain in {measure}")
    drawing = draw_panels(gains, draw, alt=alt, labels=labels, looks=looks, share_y=True)
    return Picture(title, HOW.format(reference), drawing)


def draw_gains_by_site(
    gains: Mapping[str, Mapping[str, Gain]], *, case: str, measure: str, reference: str, order: Sequence[str]
) -> Picture:
    """Gains of one case: column of the table -> method -> a gain for each seed."""
    methods = [name for name in order if any(name in method_gains for method_gains in gains.values())]
    words = [
        f"{name}, {method}: {describe_gain(gain)}"
        for name, method_gains in gains.items()
        for method, gain in method_gains.items()
    ]
    alt = f"Gain in {measure} over {reference} by hospital in {case}. {'; '.join(words)}."

    def draw(name: str) -> list[Shape | Label]:
        shapes = list[Shape | Label]()
        for method, gain in gains[name].items():
            name_and_place = (method, f"{name}, {method}")
            shapes += _mark_gain(methods.index(method), gain, order.index(method), name_and_place, lying=True)
        return [*shapes, draw_upright(0)]

    caption = f"{HOW.format(reference)} Each panel has its own scale."
    drawing = draw_row_panels(list(gains), methods, draw, alt=alt, label=f"gain in {measure}")
    return Picture(f"{measure}: gain over {reference}", caption, drawing)


def describe_gain(gain: Gain) -> str:
    """Gains in words, for the alternative text."""
    values, warning = gain.values, "" if gain.fine else ", not assessable with every seed"
    if not values:
        return "no value"
    between = " (one seed)"
    if len(values) > 1:
        between = f" ({format_signed(min(values))} to {format_signed(max(values))}, {len(values)} seeds)"
    return f"{format_signed(float(np.mean(values)))}{between}{warning}"


def _mark_gain(at: float, gain: Gain, look: int, name_and_place: tuple[str, str], *, lying: bool) -> list[Shape]:
    """One method at one place: its seeds, their mean, and one standard deviation to either side.

    name_and_place: the method, and where it is in words. lying: along x.
    """
    values, looks, (method, where) = gain.values, mark_style(look), name_and_place
    if not values:
        return []

    def place(along: Sequence[float]) -> dict[str, Any]:
        steady = [at] * len(along)
        return {"x": along, "y": steady} if lying else {"x": steady, "y": along}

    mean, std = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    shapes = []
    if math.isfinite(std):
        alpha, ends = 1 if gain.fine else 0.45, (mean - std, mean + std)
        shapes.append(Shape(**place(ends), color=looks["color"], linewidth=1.6, alpha=alpha, method=method))
        shapes.append(Shape(**place(values), size=3, hollow=True, method=method, **looks))
    texts = [f"{where}: {describe_gain(gain)}"]
    return [*shapes, Shape(**place((mean,)), hollow=not gain.fine, method=method, texts=texts, **looks)]


def _column_titles(case: StudyCase) -> dict[str, str]:
    """Column -> its name, for a case with its hospitals."""
    return {POOLED: "overall", MEAN: "mean", **{site: site for site in case.sites}}


def draw_share_figures(page: StudyPage, cell_by_key: Mapping[Key, Cell], order: Sequence[str]) -> list[Picture]:
    """Gains against the share of patients in training, for hospitals that occur with several shares."""
    pictures = []
    for (sites, reference), group_cases in group_by(page.cases, lambda case: (case.sites, case.reference)).items():
        group_cases = sorted(group_cases, key=lambda case: case.share)
        if not reference or len({case.share for case in group_cases}) < max(2, len(group_cases)):
            continue  # one share, or two cases with the same one: a line would join cases that differ in something else
        for measure in page.measures:
            points: Gains = {}
            for case in group_cases:
                for column, name in _column_titles(case).items():
                    for method in (m for m in case.methods if m != reference):
                        cell = cell_by_key.get((case.name, method, measure, column))
                        if cell and cell.gain.n:
                            points.setdefault(name, {}).setdefault(method, {})[case.share] = _cell_gain(cell)
            for part, names in split_names(
                [name for name in order if any(name in method_points for method_points in points.values())]
            ):
                shown = {
                    panel: {m: method_points[m] for m in names if m in method_points}
                    for panel, method_points in points.items()
                }
                about = {"measure": measure, "reference": reference, "part": part}
                pictures.append(draw_gains_by_share(shown, **about, order=order, sites=sites))
    return pictures


def draw_site_figures(
    case: StudyCase, cell_by_key: Mapping[Key, Cell], order: Sequence[str], measures: Sequence[str]
) -> dict[str, Picture]:
    """Measure -> gains of one case, by hospital."""
    pictures = {}
    for measure in measures:
        gains = {
            name: {
                method: _cell_gain(cell_by_key[key])
                for method in case.methods
                if method != case.reference and (key := (case.name, method, measure, column)) in cell_by_key
            }
            for column, name in _column_titles(case).items()
        }
        shown = {
            name: method_gains
            for name, method_gains in gains.items()
            if any(gain.values for gain in method_gains.values())
        }
        if case.reference and shown:
            picture = draw_gains_by_site(shown, case=case.name, measure=measure, reference=case.reference, order=order)
            pictures[measure] = picture
    return pictures


def _cell_gain(cell: Cell) -> Gain:
    """The gains of a cell as a figure draws them."""
    return Gain(cell.gain.values, cell.assessable == cell.value.n)
