"""The share of the oracle gap that a harmonization closes, with an interval over seeds.

Of seeds i, a_i = line_i - raw_i and b_i = oracle_i - raw_i; the share is mean(a) / mean(b). Its interval is Fieller's
(J R Stat Soc B 1954): all shares s for which Student's interval of the mean of a_i - s b_i holds 0. Unlike a mean of
ratios it is honest where the gap itself is uncertain: it then has no end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats


class Share(NamedTuple):
    """share: 1 = all of the gap. low, high: of its interval; infinite where the gap may be 0."""

    share: float
    low: float
    high: float


def share_of_gap(
    line: Sequence[float], raw: Sequence[float], oracle: Sequence[float], level: float = 0.95
) -> Share | None:
    """The share of the gap that is closed, from the scores of the same seeds; None with fewer than two seeds.

    Raises:
        ValueError: they are not equally many.
    """
    if not len(line) == len(raw) == len(oracle):
        raise ValueError(f"scores of the same seeds are needed, found {len(line)}, {len(raw)} and {len(oracle)}")
    n = len(line)
    if n < 2:
        return None
    a, b = np.subtract(line, raw), np.subtract(oracle, raw)
    far = stats.t.ppf((1 + level) / 2, n - 1) ** 2 / n
    (aa, ab), (_, bb) = np.cov(a, b)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    share = mean_a / mean_b if mean_b else math.nan
    # (mean_a - s mean_b)^2 = far (aa - 2 s ab + s^2 bb)
    square, middle, rest = mean_b**2 - far * bb, mean_a * mean_b - far * ab, mean_a**2 - far * aa
    if square <= 0:
        return Share(share, -math.inf, math.inf)
    root = math.sqrt(max(middle**2 - square * rest, 0.0))
    return Share(share, (middle - root) / square, (middle + root) / square)
