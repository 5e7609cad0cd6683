"""Whether predicted probabilities are calibrated: a curve for each hospital, with intervals over its patients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evaluation.axes import Panel, Shape
from evaluation.drawing import Picture
from evaluation.histograms import Floats, Ints
from evaluation.metrics import ratio
from evaluation.panels import SHARES, draw_bars, draw_diagonal, draw_panels, line_style

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
    places = {
        name: place
        for place, name in enumerate(dict.fromkeys([*order, *(m for by_method in shown.values() for m in by_method)]))
    }
    looks = {
        name: line_style(places[name]) for name in dict.fromkeys(m for by_method in shown.values() for m in by_method)
    }
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
    filled_groups = [g for g in range(GROUPS) if examples[0, g]]
    return ", ".join(
        f"{predicted[0, g]:.2f} predicted, {observed[0, g]:.2f} observed of {examples[0, g]}" for g in filled_groups
    )
