"""Whether predictions agree with what is true: numbers image by image, for the hospital's own page only; probabilities,
as a curve for each hospital with intervals over its patients; and which class a model takes for which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from evaluation.axes import Axis, Image, Label, Panel, Shape
from evaluation.drawing import Picture, png_uri
from evaluation.histograms import Floats, Ints
from evaluation.metrics import ratio
from evaluation.numbers import Number
from evaluation.panels import (
    CHARACTER,
    DOTTED,
    SHARES,
    WIDTH,
    draw_bars,
    draw_diagonal,
    draw_level,
    draw_panels,
    line_style,
    mark_style,
)
from evaluation.wording import format_figures, format_whole


class Pairs(NamedTuple):
    """Given and predicted numbers of images (n,), as places in the range."""

    true: Floats
    predicted: Floats


def draw_agreement(
    shown: Mapping[str, Pairs], number: Number, *, order: Sequence[str] = (), examples: str = "images"
) -> Picture:
    """Differences against means, a panel for each method, with bias and limits of agreement (Bland and Altman, Lancet
    327, 1986).

    order: all methods of the run, so that each looks as in the other figures. examples: their name.
    """
    places = {name: place for place, name in enumerate(dict.fromkeys([*order, *shown]))}
    width, unit = number.high - number.low, f" ({number.unit})" if number.unit else ""
    points = {
        name: (number.low + width * (pairs.true + pairs.predicted) / 2, width * (pairs.predicted - pairs.true))
        for name, pairs in shown.items()
    }
    limits = {name: _find_limits(off) for name, (_, off) in points.items()}
    words = [
        f"{name}: bias {bias}, limits {low} to {high}"
        for name, (low, bias, high) in ((name, map(format_figures, each)) for name, each in limits.items())
    ]
    alt = f"Predicted minus given {number.what}{unit} against their mean. {'; '.join(words)}."

    def draw(name: str, pairs: tuple[Floats, Floats]) -> Panel:
        mean, off = pairs
        halves = zip(mean - off / 2, mean + off / 2, strict=True)
        texts = [
            f"{name}: {format_figures(true)} given, {format_figures(predicted)} predicted" for true, predicted in halves
        ]
        marks = Shape(
            x=mean, y=off, size=3, hollow=True, alpha=0.7, method=name, texts=texts, **mark_style(places[name])
        )
        lines = zip(limits[name], (DOTTED, "-", DOTTED), strict=True)
        return Panel(shapes=[marks, *(draw_level(value, dashes) for value, dashes in lines)], method=name)

    caption = (
        f"One mark for each of the test {examples}: predicted minus given {number.what} against the mean of both. The "
        "lines are the bias and its limits of agreement, ± 1.96 standard deviations. A slope says that a model pulls "
        "towards the middle."
    )
    labels = (f"mean of both{unit}", f"predicted − given{unit}")
    return Picture("Agreement", caption, draw_panels(points, draw, alt=alt, labels=labels, share_y=True))


def _find_limits(off: Floats) -> tuple[float, float, float]:
    """The lower limit of agreement, the bias, and the upper limit; all the bias for a single image."""
    bias = float(off.mean())
    reach = 1.96 * float(off.std(ddof=1)) if len(off) > 1 else 0.0
    return bias - reach, bias, bias + reach


GROUPS = 8
"""Of predicted probability, equally wide."""


def group_probabilities(scores: Ints) -> tuple[Floats, Floats, Ints]:
    """Mean predicted probability and observed share of this class in each group, both (..., GROUPS), NaN in empty
    groups; and examples, (..., GROUPS).

    Args:
        scores: (..., 2, bins) examples of (other, this) class; every probability is replaced by its bin's centre.

    Raises:
        ValueError: the bins cannot be grouped evenly.
    """
    bins = scores.shape[-1]
    if bins % GROUPS:
        raise ValueError(f"{bins} bins cannot form {GROUPS} equal groups; give a multiple of {GROUPS}")
    grouped_scores = scores.reshape(*scores.shape[:-1], GROUPS, bins // GROUPS)
    centres = ((np.arange(bins) + 0.5) / bins).reshape(GROUPS, -1)
    each = grouped_scores.sum(axis=-3)  # both classes: (..., GROUPS, bins / GROUPS)
    examples = each.sum(axis=-1)
    return (
        ratio((each * centres).sum(axis=-1), examples),
        ratio(grouped_scores.sum(axis=-1)[..., 1, :], examples),
        examples,
    )


def calibration_curves(
    shown: Mapping[str, Mapping[str, Ints]], *, order: Sequence[str] = (), examples: str = "images"
) -> Picture:
    """Observed share against predicted probability, a panel for each hospital and a line for each method.

    Args:
        shown: site -> method -> (1 + B, 2, bins) counts, the sample first and then its bootstrap copies.
        order: all methods of the run, so that each looks as in the other figures.
        examples: their name.
    """
    methods = dict.fromkeys(method for by_method in shown.values() for method in by_method)
    places = {name: place for place, name in enumerate(dict.fromkeys([*order, *methods]))}
    looks = {name: line_style(places[name]) for name in methods}
    curves = {
        site: {m: group_probabilities(counts) for m, counts in by_method.items()} for site, by_method in shown.items()
    }
    words = [
        f"{site}, {m}: {_calibration_text(*curve)}"
        for site, by_method in curves.items()
        for m, curve in by_method.items()
    ]
    alt = "Calibration by hospital. " + "; ".join(words) + "."

    def draw(site: str, by_method: Mapping[str, tuple[Floats, Floats, Ints]]) -> Panel:
        shapes = [draw_diagonal()]
        for method, (predicted, observed, number) in by_method.items():
            low, high = _copy_interval(observed)
            look = {"color": looks[method]["color"], "linewidth": 1.0, "alpha": 0.6, "method": method}
            shapes.append(draw_bars(predicted[0].tolist(), low.tolist(), high.tolist(), **look))
            texts = [
                f"{predicted[0, g]:.2f} predicted, {observed[0, g]:.2f} observed "
                f"({low[g]:.2f} to {high[g]:.2f}), {number[0, g]} {examples}"
                for g in range(GROUPS)
            ]
            line = Shape(x=predicted[0], y=observed[0], marker="o", size=3.5, method=method, **looks[method])
            shapes.append(replace(line, lead=f"{site}, {method}: ", texts=texts))
        return Panel(shapes=shapes, x=SHARES, y=SHARES, square=True)

    caption = (
        f"Of the {examples} that a model gives about the same probability of a class (positive, where there are two), "
        "the share that is of it; bars are 95 % intervals over patients. On the diagonal probabilities are calibrated; "
        "below it they are too high."
    )
    labels = ("predicted probability", "observed share")
    return Picture("Calibration", caption, draw_panels(curves, draw, alt=alt, labels=labels, looks=looks))


def _copy_interval(observed: Floats) -> tuple[Floats, Floats]:
    """Percentiles over bootstrap copies, of each group of the sample; zero width without copies."""
    low, high = observed[0].copy(), observed[0].copy()
    for group in range(observed.shape[-1]):
        usable = observed[1:, group][np.isfinite(observed[1:, group])]
        if len(usable) > 1 and np.isfinite(observed[0, group]):
            low[group], high[group] = np.quantile(usable, [0.025, 0.975])
    return low, high


def _calibration_text(predicted: Floats, observed: Floats, examples: Ints) -> str:
    """The filled groups of a curve in words."""
    filled = zip(predicted[0], observed[0], examples[0], strict=True)
    return ", ".join(f"{p:.2f} predicted, {share:.2f} observed of {number}" for p, share, number in filled if number)


MOST = 20  # classes of a matrix that can be read
CELL, EDGE = 0.42, 0.9  # inches; a cell where there is room, and the margin around a matrix
FITS = 0.3  # inches; the width of a cell that can hold a number


def confusion_matrices(
    shown: Mapping[str, Mapping[str, Ints]], names: Sequence[str], *, examples: str = "images", noised: bool = False
) -> list[Picture]:
    """A matrix for each (site, method): rows are true classes, columns predicted ones. None for more than `MOST`.

    Args:
        shown: site -> method -> (C, C) counts.
        names: of the classes.
        examples: their name.
        noised: whether the counts were sent with noise.
    """
    matrices = {(site, m): counts for site, by_method in shown.items() for m, counts in by_method.items()}
    if not matrices or len(names) > MOST:
        return []
    titles = {key: f"{key[0]}: {key[1]}" if len(shown) > 1 else key[1] for key in matrices}
    each = (f"{titles[key]}: {_describe_matrix(matrix, names)}" for key, matrix in matrices.items())
    alt = f"Confusion matrices. {'; '.join(each)}."
    label_width = CHARACTER * max(map(len, names))
    side = min(CELL * len(names), WIDTH - EDGE - label_width)
    size = (side + EDGE + label_width, side + EDGE + label_width)

    def draw(_: str, matrix: tuple[str, Ints]) -> Panel:
        method, counts = matrix
        return replace(_draw_matrix(counts, names, side / len(names) >= FITS), method=method)

    caption = (
        f"How many {examples} of each class (row) each model took for which (column); the darker, the larger the share "
        "of the row. Right answers are on the diagonal."
    )
    caption += " Counts were told with noise, and rounded." if noised else ""
    shown_matrices = {titles[key]: (key[1], matrix) for key, matrix in matrices.items()}
    drawing = draw_panels(shown_matrices, draw, alt=alt, labels=("predicted", "true"), size=size)
    return [Picture("Confusion matrices", caption, drawing)]


def _draw_matrix(counts: Ints, names: Sequence[str], numbers: bool) -> Panel:
    """One matrix, shaded by the share of each row. numbers: whether its cells hold the counts."""
    import matplotlib  # slow to import

    shares = np.nan_to_num(ratio(counts, counts.sum(axis=-1, keepdims=True)))
    colours = np.round(255 * matplotlib.colormaps["Blues"](shares)[..., :3]).astype(np.uint8)
    shapes: list[Shape | Label | Image] = [Image(uri=png_uri(colours), columns=len(names), rows=len(names))]
    for i, j in np.ndindex(counts.shape):
        if numbers and counts[i, j]:
            ink = "#ffffff" if shares[i, j] > 0.5 else "#111111"
            shapes.append(Label(x=j, y=i, text=format_whole(int(counts[i, j])), color=ink))
    axis = Axis(ticks=range(len(names)), names=names, line=False, low=-0.5, high=len(names) - 0.5)
    x = replace(axis, turned=max(map(len, names)) > 4)
    return Panel(shapes=shapes, x=x, y=replace(axis, low=axis.high, high=axis.low), square=True)


def _describe_matrix(counts: Ints, names: Sequence[str]) -> str:
    """How often each true class was predicted as which class."""
    parts = []
    for name, row in zip(names, counts, strict=True):
        taken = zip(names, row.tolist(), strict=True)
        predictions = ", ".join(f"{number} {other}" for other, number in taken if number)
        parts.append(f"of {name} {predictions or 'none'}")
    return "; ".join(parts)
