"""What a run's federated lines gain over the best that hospitals keep to themselves, for the coordinator's page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from evaluation.at_home import Chosen, Contribution, HomeComparison, Validation, choose_line
from evaluation.findings import MEAN_AUC
from evaluation.metrics import AUC, Measure
from evaluation.numbers import list_number_measures
from evaluation.overlap import DICE
from evaluation.protocols import Table
from evaluation.rows import PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.scoring import score_rows
from federation.models.features import Features
from pipelines.coordinator.artifacts import Counts
from pipelines.hospital.home_floors import RIDGE, SVM
from pipelines.hospital.numbers import describe_number
from pipelines.settings.config import Config
from pipelines.settings.home_lines import pair_home_lines, split_lines

Repeats = Mapping[str, Sequence[Table]]


def compare_with_home(
    config: Config,
    tables: Mapping[str, Table],
    cohorts: Mapping[str, Counts],
    scores: Mapping[str, Mapping[str, float]],
    repeats: Repeats = MappingProxyType({}),
) -> HomeComparison:
    """The best line at home and the federated line to compare with it, chosen by validation patients, and every
    federated line's gain on test patients.

    Args:
        tables, repeats: evidence of test patients, which has a part only where there are no validation scores.
        scores: on validation patients by hospital and line, as hospitals told it: the AUC, or of a number as in
            `evaluation.recommendation.score_models`.
    """
    lines = split_lines(config)
    home, federated = ([label for label in group if label in tables] for group in lines)
    labels = config.task.number
    primary = _choose_primary(config)
    count_telling = _count_less_common if labels is None else lambda counts: counts.splits["validation"]["images"]
    validated = {site: Validation(each, count_telling(cohorts[site])) for site, each in scores.items()}
    chosen = choose_line(home, validated)
    reference = chosen.line or next(iter(home), "")
    gains = compute_gains_over(reference, federated, tables, repeats, primary) if reference else ()
    first = choose_line(federated, validated) if chosen.line else Chosen()
    contributions = [
        Contribution(home, row)
        for label, home in pair_home_lines(config).items()
        if {label, home} <= {*tables}
        for row in compute_gains_over(home, [label], tables, repeats, primary)
    ]
    return HomeComparison(
        lines=tuple(home),
        reference=reference,
        federated=first.line or _find_largest_gain(gains),
        hospitals=min(chosen.hospitals, first.hospitals) if federated else chosen.hospitals,
        gains=gains,
        private=config.privacy != "none",
        home_floors=list_home_floors(config),
        contributions=tuple(contributions),
    )


def _choose_primary(config: Config) -> Measure:
    """The measure by which lines are compared."""
    if config.task.kind == "segmentation":
        return DICE
    if config.task.number is not None:
        return list_number_measures(describe_number(config.task.number))[0]
    return MEAN_AUC if config.task.findings else AUC


def list_home_floors(config: Config) -> tuple[str, ...]:
    """What each hospital of a private run learns without noise for its own page: see `pipelines.hospital.home_floors`.

    None where no method is on fixed features.
    """
    on_features = any(isinstance(config.model_of(label), Features) for label in config.train.methods)
    return (SVM, RIDGE) if config.privacy != "none" and on_features and config.task.target is None else ()


def compute_gains_over(
    reference: str, lines: Sequence[str], tables: Mapping[str, Table], repeats: Repeats, primary: Measure = AUC
) -> tuple[ScoreRow, ...]:
    """The rows of lines by the primary measure with their gain over the reference, mean over hospitals or of the only
    one.
    """
    compared = {label: tables[label] for label in (reference, *lines)}
    further = {label: each for label, each in repeats.items() if label in compared}
    rows = score_rows(compared, reference=reference, measures=(primary,), repeats=further)
    over_all = [row for row in rows if row.protocol == PRIVATE_MEAN] or [row for row in rows if row.protocol == PRIVATE]
    return tuple(row for row in over_all if row.method != reference)


def _find_largest_gain(gains: Sequence[ScoreRow]) -> str:
    """The line with the largest gain on test patients; empty if none has any."""
    finite = [row for row in gains if math.isfinite(row.gain)]
    return max(finite, key=lambda row: row.gain).method if finite else ""


def _count_less_common(counts: Counts) -> int:
    """A hospital's validation images outside their most common class: how much they can tell of an AUC."""
    split = counts.splits["validation"]
    each: list[int] = [*split.get("classes", ())] or [split["positives"], split["images"] - split["positives"]]
    return sum(each) - max(each)
