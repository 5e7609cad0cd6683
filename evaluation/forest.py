"""A forest plot: a row for each hospital, the worst first, and below them the numbers that would hide it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluation.drawing import COLOURS, INK, Picture, belong_to, point_at
from evaluation.panels import draw_row_panels
from evaluation.rows import ScoreRow
from evaluation.wording import format_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HIDING = "#8c8c8c"


def draw_forest_plot(
    scores: Mapping[str, Mapping[str, ScoreRow]],
    names: Sequence[str],
    over: Sequence[str],
    *,
    measure: str,
    least: float | None,
) -> Picture:
    """Scores with their intervals.

    Args:
        scores: model -> name of a row -> score; a hospital without one has no mark.
        names: hospitals, in the order of the page.
        over: names of the rows over several hospitals, which stand below and are grey.
        measure: what is shown.
        least: drawn as a line, if there is one.
    """
    row_names = [*names, *over]
    words = [
        f"{model}, {name}: {_format_score(model_rows.get(name))}"
        for model, model_rows in scores.items()
        for name in row_names
    ]
    alt = f"{measure} by hospital, the worst first. {'; '.join(words)}."

    def draw(axes: Axes, model: str) -> None:
        model_rows = scores[model]
        if over:
            axes.axhline(len(names) - 0.5, color=INK, linewidth=0.6, alpha=0.5)
        if least is not None:
            axes.axvline(least, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        worst = next((name for name in names if name in model_rows), None)
        for y, name in enumerate(row_names):
            row = model_rows.get(name)
            if row is None or not math.isfinite(row.value):
                axes.text(0.02, y, "no score", transform=axes.get_yaxis_transform(), va="center", fontsize=8)
                continue
            colour = HIDING if name in over else COLOURS[3] if name == worst else COLOURS[0]
            alpha = 1 if row.assessable else 0.45
            belong_to(axes.hlines(y, row.low, row.high, color=colour, linewidth=1.8, alpha=alpha), model)
            face = colour if row.assessable and name not in over else "none"
            look: dict[str, Any] = {
                "marker": "D" if name in over else "o",
                "color": colour,
                "markersize": 6,
                "markerfacecolor": face,
            }
            (mark,) = axes.plot(row.value, y, **look)
            point_at(mark, model, [f"{name}, {model}: {measure} {_format_score(row)}, {row.patients} patients"])

    caption = (
        "Bars are 95 % intervals over patients, hollow marks have too few patients to judge by. Hospitals stand by the "
        "lower end of the interval of the first model, the lowest at the top; those without a score before all others. "
        "Grey, below the line: what hides the worst hospital."
    )
    caption += "" if least is None else f" Dashed: {least:g}, which every hospital should reach."
    drawing = draw_row_panels(list(scores), row_names, draw, alt=alt, label=measure)
    return Picture(f"{measure} by hospital, worst first", caption, drawing)


def _format_score(row: ScoreRow | None) -> str:
    """A score with its interval; "no score" where there is no row."""
    if row is None:
        return "no score"
    return f"{format_number(row.value)} ({format_number(row.low)} to {format_number(row.high)})"
