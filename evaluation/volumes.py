"""Whether a model's masks are as large as the given ones, patient by patient: for the hospital's own page only.

Agreement is told by the mean difference (Bland and Altman, Lancet 327, 1986) and by the ratio of both means, so that a
patient with an empty mask has a part. Calibration groups patients by what was predicted: in each group the mean of the
given sizes should be the mean of the predicted ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from evaluation.axes import Axis, Panel, Shape
from evaluation.drawing import COLOURS, DASHES, Picture
from evaluation.histograms import Floats, Ints
from evaluation.intervals import Estimate, percentile_interval
from evaluation.metrics import ratio
from evaluation.panels import draw_bars, draw_diagonal, draw_panels
from evaluation.wording import format_figures

TRUE, PREDICTED, EXPECTED = 0, 1, 2
GROUPS, LEAST = 4, 5
"""Groups of patients at most; patients in each of them at least."""


class SizeWords(NamedTuple):
    """What the size of a mask is called, its unit, and how many mm², mm³ or pixels one unit has."""

    what: str
    unit: str
    divisor: float


@dataclass(frozen=True)
class SizeRow:
    """Sizes of one structure by one method, in the unit of the page. patients: who have it, or were given it by the
    model. true, predicted: means over them. bias: predicted - true. share: predicted / true, of the means. expected:
    the same share of what probabilities add up to; None where they were not kept.
    """

    method: str
    structure: str
    patients: int
    true: float
    predicted: float
    bias: Estimate
    share: Estimate
    expected: Estimate | None


class SizeSection(NamedTuple):
    """What a page says of sizes: a row for each method and structure, and figures."""

    rows: tuple[SizeRow, ...] = ()
    pictures: tuple[Picture, ...] = ()
    words: SizeWords = SizeWords("size", "pixels", 1.0)


class Sizes(NamedTuple):
    """One structure by one method. values: (P, 3) given, predicted and expected sizes in the unit of the page. weights:
    (1 + B, P), how often each patient is in the sample and in each bootstrap copy. names: of the patients, (P,).
    """

    values: Floats
    weights: Ints
    names: Sequence[str]

    @staticmethod
    def of_sample(values: Floats, copies: Ints, names: Sequence[str]) -> Sizes:
        """Of a sample, in which each patient is once, and its bootstrap copies (B, P)."""
        return Sizes(values, np.vstack([np.ones((1, len(values)), np.int64), copies]), names)

    def with_structure(self) -> Sizes:
        """Of the patients in whom either mask is not empty."""
        shown = np.asarray((self.values[:, :EXPECTED] > 0).any(axis=1), dtype=np.bool_)
        names = [name for name, is_shown in zip(self.names, shown, strict=True) if is_shown]
        return Sizes(self.values[shown], self.weights[:, shown], names)


def compare_sizes(method: str, structure: str, sizes: Sizes) -> SizeRow | None:
    """The agreement of sizes with 95 % intervals over patients; None where nobody has the structure, in either mask."""
    values, weights, _ = sizes.with_structure()
    if not len(values):
        return None
    sums, patients = weights @ np.nan_to_num(values), weights.sum(axis=1)
    expected = percentile_interval(ratio(sums[:, EXPECTED], sums[:, TRUE]))
    return SizeRow(
        method,
        structure,
        len(values),
        float(values[:, TRUE].mean()),
        float(values[:, PREDICTED].mean()),
        percentile_interval(ratio(sums[:, PREDICTED] - sums[:, TRUE], patients)),
        percentile_interval(ratio(sums[:, PREDICTED], sums[:, TRUE])),
        None if np.isnan(values[:, EXPECTED]).any() else expected,
    )


class Group(NamedTuple):
    """Patients of whom about the same was predicted: their number, the mean of it, and the mean of the given sizes."""

    patients: int
    predicted: float
    true: Estimate


def group_sizes(sizes: Sizes, kind: int = PREDICTED) -> list[Group]:
    """Patients by predicted or expected size, in at most `GROUPS` groups of about equally many.

    Returns: none where there are too few patients for two groups, or the sizes are unknown.
    """
    values, weights, _ = sizes.with_structure()
    count = min(GROUPS, len(values) // LEAST)
    if count < 2 or np.isnan(values[:, kind]).any():
        return []
    groups = []
    for rows in np.array_split(np.argsort(values[:, kind], kind="stable"), count):
        means = ratio(weights[:, rows] @ values[rows, TRUE], weights[:, rows].sum(axis=1))
        groups.append(Group(len(rows), float(values[rows, kind].mean()), percentile_interval(means)))
    return groups


def draw_sizes(shown: Mapping[str, tuple[str, Sizes]], words: SizeWords) -> Picture:
    """Given against predicted sizes, a panel for each method and structure: patients, and the means of groups.

    shown: title of a panel -> method and sizes.
    """
    panels = {title: (method, sizes.with_structure()) for title, (method, sizes) in shown.items()}
    texts = [
        f"{title}: " + (_groups_text(group_sizes(sizes)) or f"{len(sizes.values)} patients, too few for groups")
        for title, (_, sizes) in panels.items()
    ]
    alt = f"Given against predicted {words.what} in {words.unit}, by patient. Means of groups: {'; '.join(texts)}."

    caption = (
        f"The {words.what} of each test patient by the given mask against that by the model's (small marks), and means "
        "of patients of whom about as much was predicted, with 95 % intervals (line). On the diagonal both are equal; "
        "below it masks are too large. Dashed: the same by the sum of a structure's probability instead of its mask."
    )
    labels = (f"predicted ({words.unit})", f"given ({words.unit})")
    return Picture(
        f"{words.what[:1].upper()}{words.what[1:]}, given against predicted",
        caption,
        draw_panels(panels, partial(_draw_panel, unit=words.unit), alt=alt, labels=labels, looks=LOOKS),
    )


LOOKS: Mapping[str, Mapping[str, Any]] = {
    "a patient": {"color": COLOURS[0], "marker": "o"},
    "mean by mask": {"color": COLOURS[3], "marker": "s", "linestyle": "-"},
    "mean by probability": {"color": COLOURS[1], "marker": "s", "linestyle": DASHES[1]},
}
"""Of the key: patients, and the means of groups by what was predicted and what was expected."""


def _draw_panel(_: str, shown: tuple[str, Sizes], unit: str) -> Panel:
    """One panel: the diagonal, patients, and the means of groups."""
    method, sizes = shown
    top = 1.05 * float(sizes.values[:, :EXPECTED].max(initial=1e-9))
    patient_look, *mean_looks = LOOKS.items()
    x, y = sizes.values[:, PREDICTED], sizes.values[:, TRUE]
    at = zip(sizes.names, y, x, strict=True)
    texts = [f"{name}: {format_figures(t)} {unit} given, {format_figures(p)} {unit} predicted" for name, t, p in at]
    marks = Shape(x=x, y=y, size=3, alpha=0.6, method=method, texts=texts, **patient_look[1])
    shapes = [draw_diagonal(top), marks]
    for kind, (name, look) in zip((PREDICTED, EXPECTED), mean_looks, strict=True):
        groups = group_sizes(sizes, kind)
        means, lows, highs = ([getattr(g.true, part) for g in groups] for part in ("value", "low", "high"))
        middles = [group.predicted for group in groups]
        shapes.append(draw_bars(middles, lows, highs, color=look["color"], linewidth=1.0))
        texts = [f"{name} of {group.patients} patients: {_groups_text([group])} ({unit})" for group in groups]
        shapes.append(Shape(x=middles, y=means, size=4, linewidth=1.2, method=method, texts=texts, **look))
    axis = Axis(low=0.0, high=top)
    return Panel(shapes=shapes, x=axis, y=axis, square=True, method=method)


def _groups_text(groups: Sequence[Group]) -> str:
    """Groups in words, for the alternative text."""
    return ", ".join(
        f"{format_figures(g.predicted)} predicted, {format_figures(g.true.value)} given of {g.patients}" for g in groups
    )
