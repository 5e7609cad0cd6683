"""What a federation adds to the best that each hospital keeps to itself, and how the two lines were chosen.

The highest of several scores on test patients is that of a lucky line. So the line at home, over which gains are
computed, and the federated line that is compared with it first are those with the highest mean AUC on hospitals'
*validation* patients; a gain between them on test patients is then that of two lines that these patients did not
choose. One line is chosen for all hospitals: a choice by each hospital's few patients would be wrong more often, and
a weaker floor flatters every gain over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluation.rows import ScoreRow


class Chosen(NamedTuple):
    """A line, empty = none, and how many hospitals' validation scores chose it."""

    line: str = ""
    hospitals: int = 0


class Contribution(NamedTuple):
    """What other hospitals add to a method. gain: of the federated line over the line of the same method at each
    hospital alone.
    """

    line_at_home: str
    gain: ScoreRow


class Validation(NamedTuple):
    """Scores on a hospital's validation patients by line, more is better. weight: its images outside their most common
    class; of a number all its images.
    """

    scores: Mapping[str, float]
    weight: int


@dataclass(frozen=True)
class HomeComparison:
    """lines: in which no other hospital has a part. reference: the best of them. federated: the line that is compared
    with it; empty = there is none. hospitals: whose validation scores chose both; 0 = there were none, so that
    `reference` is the first of `lines`, and `federated` the best on test patients. gains: a row over `reference` of
    each federated line, mean over hospitals, or of the only one. private: whether scores of validation patients may not
    leave. home_floors: further lines of each hospital, of which nothing is told. contributions: to methods that run at
    home too.
    """

    lines: tuple[str, ...] = ()
    reference: str = ""
    federated: str = ""
    hospitals: int = 0
    gains: tuple[ScoreRow, ...] = ()
    private: bool = False
    home_floors: tuple[str, ...] = ()
    contributions: tuple[Contribution, ...] = ()


def choose_line(lines: Sequence[str], validated: Mapping[str, Validation]) -> Chosen:
    """The line with the highest mean AUC over hospitals, by their weights; of equal ones the first.

    Args:
        lines: in the order of the settings. validated: by hospital; one that scored nothing, or whose validation
        images are of one class, has no say, and a line that another hospital lacks is not chosen.
    """
    telling = [scored for scored in validated.values() if scored.weight > 0 and {*scored.scores} & {*lines}]
    common = [line for line in lines if all(line in scored.scores for scored in telling)]
    if not telling or not common:
        return Chosen()
    sums = {line: sum(scored.weight * scored.scores[line] for scored in telling) for line in common}
    return Chosen(max(common, key=lambda line: (sums[line], -common.index(line))), len(telling))
