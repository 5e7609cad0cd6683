"""A forest plot: a row for each hospital, the worst first, and below them the numbers that would hide it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from evaluation.axes import Label, Shape
from evaluation.drawing import COLOURS, Picture
from evaluation.panels import DASHED, draw_level, draw_row_panels, draw_span, draw_upright
from evaluation.rows import ScoreRow
from evaluation.wording import format_estimate

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

    def draw(model: str) -> list[Shape | Label]:
        model_rows = scores[model]
        shapes: list[Shape | Label] = [replace(draw_level(len(names) - 0.5), linewidth=0.6, alpha=0.5)] if over else []
        shapes += [] if least is None else [draw_upright(least, DASHED)]
        worst = next((name for name in names if name in model_rows), None)
        for y, name in enumerate(row_names):
            row = model_rows.get(name)
            if row is None or not math.isfinite(row.value):
                shapes.append(Label(x=0.02, y=y, text="no score", across="x", anchor="start"))
                continue
            colour = HIDING if name in over else COLOURS[3] if name == worst else COLOURS[0]
            alpha = 1 if row.assessable else 0.45
            shapes.append(draw_span((row.low, row.high), y, color=colour, linewidth=1.8, alpha=alpha, method=model))
            mark = Shape(x=row.value, y=y, color=colour, marker="D" if name in over else "o", method=model)
            texts = [f"{name}, {model}: {measure} {_format_score(row)}, {row.patients} patients"]
            shapes.append(replace(mark, hollow=not row.assessable or name in over, texts=texts))
        return shapes

    caption = (
        "Bars are 95 % intervals over patients, hollow marks have too few patients to judge by. Hospitals stand by the "
        "lower end of the interval of the first model, the lowest at the top; those without a score before all others. "
        "Grey, below the line: what hides the worst hospital."
    )
    caption += "" if least is None else f" Dashed: {least:g}, which every hospital should reach."
    drawing = draw_row_panels(list(scores), row_names, draw, alt=alt, label=measure, has_method_panels=True)
    return Picture(f"{measure} by hospital, worst first", caption, drawing)


def _format_score(row: ScoreRow | None) -> str:
    """A score with its interval; "no score" where there is no row."""
    return "no score" if row is None else format_estimate(row.value, row.low, row.high)
