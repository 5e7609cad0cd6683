"""The share of the oracle gap that a harmonization closes, with an interval over seeds or over patients.

With a = line - raw and b = oracle - raw, the share is a / b: 0 = as good as untranslated images, 1 = as good as the
same patients on one scanner.

Over seeds i it is mean(a) / mean(b), and its interval is Fieller's (J R Stat Soc B 1954): all shares s for which
Student's interval of the mean of a_i - s b_i holds 0. Unlike a mean of ratios it is honest where the gap itself is
uncertain: it then has no end.

Over patients of one run it is that of the sample, and its interval is read off the paired bootstrap copies: all shares
s for which the percentile interval of a_i - s b_i holds 0. Where the interval of the gap b is above 0, its ends are
percentiles of a_i / b_i; else the share is not known, and neither is it where the oracle is worse than untranslated
images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evaluation.histograms import Floats
from evaluation.intervals import ENDS, percentile_interval
from evaluation.metrics import Measure
from evaluation.protocols import Score, Table, compute_gain, own_model_table
from evaluation.rows import GapRow
from evaluation.scoring import compute_scores, select_common_sites

OPEN = "the gap's own interval holds 0"
NONE = "the oracle is worse than untranslated images"
UNSURE = "without an interval"
"""Why a share is not known."""
FEWEST_COPIES = 3
"""Of two copies the lower percentile, taken from above, is the larger one."""


class Share(NamedTuple):
    """share: 1 = all of the gap. low, high: of its interval; infinite where the gap may be 0."""

    share: float
    low: float
    high: float


def share_of_gap(line: Sequence[float], raw: Sequence[float], oracle: Sequence[float]) -> Share | None:
    """The share of the gap that is closed, from the scores of the same seeds; None with fewer than two seeds.

    Raises:
        ValueError: they are not equally many.
    """
    if not len(line) == len(raw) == len(oracle):
        raise ValueError(f"scores of the same seeds are needed, found {len(line)}, {len(raw)} and {len(oracle)}")
    from scipy import stats  # slow to import

    n = len(line)
    if n < 2:
        return None
    a, b = np.subtract(line, raw), np.subtract(oracle, raw)
    far = stats.t.ppf(ENDS[1], n - 1) ** 2 / n
    (aa, ab), (_, bb) = np.cov(a, b)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    share = mean_a / mean_b if mean_b else math.nan
    # (mean_a - s mean_b)^2 = far (aa - 2 s ab + s^2 bb)
    square, middle, rest = mean_b**2 - far * bb, mean_a * mean_b - far * ab, mean_a**2 - far * aa
    if square <= 0:
        return Share(share, -math.inf, math.inf)
    root = math.sqrt(max(middle**2 - square * rest, 0.0))
    return Share(share, float((middle - root) / square), float((middle + root) / square))


def share_in_copies(gained: Floats, gap: Floats) -> tuple[Share, str]:
    """The share of the gap that is closed, from paired copies (1 + B,) of a and b, the sample first; and why it is not
    known, if it is not: then all its numbers are NaN.
    """
    unknown = Share(math.nan, math.nan, math.nan)
    gap_interval = percentile_interval(gap)
    if not math.isfinite(gap_interval.low) or not math.isfinite(gained[0]):
        return unknown, UNSURE
    if gap_interval.high < 0:
        return unknown, NONE
    if gap_interval.low <= 0 or gap_interval.value <= 0:
        return unknown, OPEN
    both = np.isfinite(gained) & np.isfinite(gap)
    a, b = gained[1:][both[1:]], gap[1:][both[1:]]
    if len(a) < FEWEST_COPIES:
        return unknown, UNSURE
    closed = b > 0  # the few other copies say nothing of the share, so they count on both sides
    ratio = np.divide(a, b, out=np.zeros_like(a), where=closed)
    low = np.quantile(np.where(closed, ratio, -math.inf), ENDS[0], method="higher")
    high = np.quantile(np.where(closed, ratio, math.inf), ENDS[1], method="lower")
    return Share(float(gained[0] / gap[0]), float(low), float(high)), ""


class Compared(NamedTuple):
    """Lines of one method and network. untranslated: the line that learns from images as they were read. oracle: the
    line that learns from the same patients on one scanner; nothing else differs. others: lines that differ in images,
    start, work or calibration.
    """

    untranslated: str
    oracle: str
    others: tuple[str, ...]


def gap_rows(tables: Mapping[str, Table], compared: Sequence[Compared], measure: Measure) -> tuple[GapRow, ...]:
    """Every line's share of the oracle gap, by every protocol but the public one. There is no share at hospitals that
    did not score all three: the line, its untranslated line and the oracle.
    """
    return tuple(
        row
        for comparison in compared
        if comparison.untranslated in tables and comparison.oracle in tables
        for label in comparison.others
        if label in tables
        for row in _line_gap_rows(label, comparison, tables, measure)
    )


def _line_gap_rows(label: str, comparison: Compared, tables: Mapping[str, Table], measure: Measure) -> Iterator[GapRow]:
    """The gap rows of one line, one for each protocol and set of hospitals."""
    common_tables = select_common_sites(
        [own_model_table(tables[name]) for name in (label, comparison.untranslated, comparison.oracle)]
    )
    if not common_tables[0]:
        return
    ours, raw, best = (dict(_scores_by_key(table, measure)) for table in common_tables)
    for key, score in ours.items():
        gained, gap = (compute_gain(each, raw[key], measure) for each in (score, best[key]))
        share, why = share_in_copies(gained.copies, gap.copies)
        lines = (label, comparison.untranslated, comparison.oracle)
        numbers = (*gap.estimate.numbers, *gained.estimate.numbers, *share)
        yield GapRow(*lines, key[0], score.sites, measure.name, *numbers, why)


def _scores_by_key(table: Table, measure: Measure) -> Iterator[tuple[tuple[str, tuple[str, ...]], Score]]:
    """Scores of hospitals' own models on their own patients."""
    private_table = {pair: evidence for pair, evidence in table.items() if pair[0] == pair[1]}
    return (((protocol, score.sites), score) for protocol, score in compute_scores(private_table, measure))
