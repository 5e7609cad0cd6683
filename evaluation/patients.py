"""Figures of a hospital's patients, for its own page: intensities by split, features by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.axes import Axis, Panel, Shape
from evaluation.drawing import Picture
from evaluation.histograms import Floats
from evaluation.panels import PANEL, draw_panels, line_style
from evaluation.wording import format_figures

CLASSES = ("negative", "positive")
FEW_VALUES = 6  # a feature with at most this many values is drawn value by value
BINS = 12
FINE_BINS = 80  # of intensities, between the 0.1st and the 99.9th percentile
WIDE = (4.6, 2.5)  # inches
FROM_ZERO = Axis(low=0.0, grid=True)


@dataclass(frozen=True)
class Characteristic:
    """A feature by class, as in the first table of a paper: "54.1 ± 9.0", or "31 of 40 (78 %)"."""

    name: str
    negative: str
    positive: str


def draw_intensities(values: Mapping[str, NDArray[np.generic]], *, unit: str) -> Picture:
    """Share of pixels by intensity, a line per split.

    Args:
        values: split -> intensities of any shape, foreground only.
        unit: of the intensities.
    """
    flat = {split: np.asarray(v, dtype=np.float64).ravel() for split, v in values.items()}
    flat = {split: v[np.isfinite(v)] for split, v in flat.items()}
    middles = ", ".join(f"{split} {format_figures(float(np.median(v)))}" for split, v in flat.items() if v.size)
    alt = f"Histogram of intensities by split, {unit}. Medians: {middles}."
    everything = np.concatenate([*flat.values(), np.zeros(0)])
    low, high = np.quantile(everything, [0.001, 0.999]) if everything.size else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1, FINE_BINS + 1)

    def draw(_: str, shown: Mapping[str, Floats]) -> Panel:
        middles = (edges[1:] + edges[:-1]) / 2
        shares = (np.histogram(v, edges)[0] / max(1, v.size) for v in shown.values())
        lines = [Shape(x=middles, y=share, **line_style(place)) for place, share in enumerate(shares)]
        return Panel(shapes=lines, y=FROM_ZERO)

    caption = "Splits with similar curves have similar patients; if a split is shifted, look at its pictures."
    caption = caption if len(flat) > 1 else ""
    looks = {split: line_style(place) for place, split in enumerate(flat)}
    labels = (unit, "share of pixels")
    return Picture(
        "Intensities", caption, draw_panels({"": flat}, draw, alt=alt, labels=labels, looks=looks, size=WIDE)
    )


def compute_characteristics(features: Mapping[str, Floats], positive: NDArray[np.bool_]) -> tuple[Characteristic, ...]:
    """Mean ± standard deviation (ddof = 1) by class; for a feature that is 0 or 1, the number of ones.

    features: name -> (n,). positive: (n,).
    """
    sides = (~positive, positive)
    return tuple(
        Characteristic(name, *(_format_summary(values[side], _is_binary(values)) for side in sides))
        for name, values in features.items()
    )


def draw_features_by_class(
    features: Mapping[str, Floats],
    positive: NDArray[np.bool_],
    *,
    examples: str = "lines",
    classes: tuple[str, str] = CLASSES,
) -> Picture:
    """Share of the positive and of the negative examples by value, a panel per feature with more values than 0 and 1.

    Args:
        features: name -> (n,); features of 0 and 1 are in `compute_characteristics` only.
        positive: (n,).
        examples: their name.
        classes: names of the negative and the positive ones.
    """
    negative_name, positive_name = classes
    shown = {name: values for name, values in features.items() if not _is_binary(values)}
    parts = [
        f"{c.name}: {negative_name} {c.negative}, {positive_name} {c.positive}"
        for c in compute_characteristics(shown, positive)
    ]
    alt = f"Features by class, mean ± standard deviation. {'; '.join(parts) or 'None to be drawn'}."

    def draw(_: str, values: Floats) -> Panel:
        edges, lines = _bin_edges(values), []
        for place, chosen in enumerate((~positive, positive)):
            share = np.histogram(values[chosen], edges)[0] / max(1, int(chosen.sum()))
            heights = np.concatenate([[0.0], np.repeat(share, 2), [0.0]])
            lines.append(Shape(x=np.repeat(edges, 2), y=heights, **line_style(place)))
        return Panel(shapes=lines, y=FROM_ZERO)

    looks = {name: line_style(place) for place, name in enumerate(classes)}
    caption = f"Share of the {negative_name} and of the {positive_name} {examples} at each value, all splits together."
    labels = ("", f"share of {examples}")
    drawing = draw_panels(shown, draw, alt=alt, labels=labels, looks=looks, size=(PANEL, 1.7))
    return Picture("Features by class", caption, drawing)


def _is_binary(values: Floats) -> bool:
    """Whether a feature is 0 or 1 for each example, and 1 for some of them."""
    return bool(np.isin(values, (0, 1)).all() and (values == 1).any())


def _format_summary(values: Floats, counted: bool) -> str:
    """Mean ± standard deviation, or of a binary feature the number of ones."""
    if not len(values):
        return "–"
    if counted:
        return f"{int(values.sum())} of {len(values)} ({round(100 * values.mean())} %)"
    spread = f"{values.std(ddof=1):.3g}" if len(values) > 1 else "–"
    return f"{format_figures(values.mean())} ± {spread}"


def _bin_edges(values: Floats) -> Floats:
    """One bin for each of a few values, otherwise equal ones from the least to the greatest."""
    distinct = np.unique(values)
    if len(distinct) > FEW_VALUES:
        return np.linspace(distinct[0], distinct[-1], BINS + 1, dtype=np.float64)
    if not len(distinct):
        return np.array([-0.5, 0.5])
    between = (distinct[1:] + distinct[:-1]) / 2
    half = float(np.diff(distinct).min()) / 2 if len(distinct) > 1 else 0.5
    return np.concatenate([distinct[:1] - half, between, distinct[-1:] + half])
