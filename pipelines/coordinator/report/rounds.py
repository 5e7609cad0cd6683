"""Curves of the scores by round that hospitals told, beside those of their losses."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.drawing import Picture
from evaluation.figures import Curve, draw_learning_curves
from evaluation.panels import split_names
from pipelines.coordinator.artifacts import RoundFigures


def draw_round_scores(
    figures: Sequence[RoundFigures], methods: Sequence[str], reference: str | None, sites: Sequence[str]
) -> list[Picture]:
    """The first measure of each model by round, in groups of methods. methods: in their order, without further
    trainings. sites: that are drawn.
    """
    measure = next((name for each in figures for name in each.scores), "")
    series = dict[tuple[str, str], dict[int, float]]()
    for each in figures:
        score = each.scores.get(measure)
        if score is not None and each.site in sites and each.training in methods:
            series.setdefault((each.training, each.site), {})[each.round] = score
    names = [name for name in methods if any(name == training for training, _ in series)]
    pictures = []
    for part, group in split_names(names, reference):
        curves = {
            site: {
                name: Curve(tuple(sorted(scores)), tuple(scores[number] for number in sorted(scores)))
                for name in group
                if (scores := series.get((name, site)))
            }
            for site in sites
        }
        shown = {site: lines for site, lines in curves.items() if lines}
        pictures.append(draw_learning_curves(shown, value=f"validation {measure}", order=methods, part=part))
    return pictures
