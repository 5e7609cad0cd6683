"""Whether predicted numbers agree with the given ones, image by image: a figure for the hospital's own page only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evaluation.axes import Panel, Shape
from evaluation.drawing import Picture
from evaluation.histograms import Floats
from evaluation.numbers import Number
from evaluation.panels import DOTTED, draw_level, draw_panels, mark_style
from evaluation.wording import format_figures


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
