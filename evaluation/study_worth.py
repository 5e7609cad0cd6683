"""What harmonization is worth over the seeds of a study: shares of the oracle gap, and gains at hospitals outside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evaluation.gap_rows import Compared
from evaluation.oracle_gap import Share, share_of_gap
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, PUBLIC
from evaluation.study_numbers import Key, Spread, StudyRow, add_mean_rows, compute_spread

FOREIGN_PROTOCOLS = (PUBLIC, OUTSIDE, OUTSIDE_MEAN)


@dataclass(frozen=True)
class Worth:
    """A line in one column of a case's table, over the seeds in which it, its untranslated line and the oracle have a
    value. share: NaN where the gap's own interval holds 0, or where the oracle is worse, or with one seed.
    """

    case: str
    method: str
    untranslated: str
    oracle: str
    measure: str
    column: str
    gap: Spread
    gain: Spread
    share: Share


Worths: TypeAlias = Mapping[Key, Worth]
"""(case, method, measure, column) -> its worth."""


def compute_worths(rows: Sequence[StudyRow], compared: Mapping[str, Sequence[Compared]]) -> dict[Key, Worth]:
    """The worth of every compared line of the cases. compared: case -> lines that are compared with an oracle."""
    values: dict[Key, dict[int, float]] = {}
    for row in add_mean_rows(rows):
        if row.protocol not in FOREIGN_PROTOCOLS and math.isfinite(row.value):
            values.setdefault((row.case, row.method, row.measure, row.column), {})[row.seed] = row.value
    worth_by_key = {}
    for case, comparisons in compared.items():
        for comparison in comparisons:
            for key in (key for key in values if key[0] == case and key[1] in comparison.others):
                worth = _compute_worth(key, comparison, values)
                if worth is not None:
                    worth_by_key[key] = worth
    return worth_by_key


def _compute_worth(key: Key, comparison: Compared, values: Mapping[Key, Mapping[int, float]]) -> Worth | None:
    """The worth of one line in one column, over the seeds that all three lines have; None without such seeds."""
    case, method, measure, column = key
    three = [
        values.get((case, name, measure, column), {}) for name in (method, comparison.untranslated, comparison.oracle)
    ]
    seeds = sorted(set.intersection(*map(set, three)))
    if not seeds:
        return None
    line, raw, oracle = ([each[seed] for seed in seeds] for each in three)
    gap, gain = _difference_spread(oracle, raw), _difference_spread(line, raw)
    share = share_of_gap(line, raw, oracle)
    known = share is not None and math.isfinite(share.low) and math.isfinite(share.high) and gap.mean > 0
    numbers = share if share is not None and known else Share(math.nan, math.nan, math.nan)
    return Worth(case, method, comparison.untranslated, comparison.oracle, measure, column, gap, gain, numbers)


def _difference_spread(ours: Iterable[float], theirs: Iterable[float]) -> Spread:
    """Mean and deviation of the differences, seed by seed."""
    return compute_spread(a - b for a, b in zip(ours, theirs, strict=True))


def outside_gains(rows: Sequence[StudyRow]) -> dict[tuple[str, str], dict[str, dict[str, Spread]]]:
    """(case, measure) -> line of `route` -> column (an external hospital, or their mean) -> its gain over the untreated
    line. Only lines with a gain are listed; the untreated line has 0 everywhere and is left out.
    """
    gains: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        if row.protocol in (OUTSIDE, OUTSIDE_MEAN) and math.isfinite(row.gain):
            lines = gains.setdefault((row.case, row.measure), {})
            lines.setdefault(row.method, {}).setdefault(row.column, []).append(row.gain)
    return {
        key: {
            line: {column: compute_spread(values) for column, values in column_gains.items()}
            for line, column_gains in lines.items()
            if any(value for values in column_gains.values() for value in values)
        }
        for key, lines in gains.items()
    }
