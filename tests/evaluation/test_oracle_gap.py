"""The share of the oracle gap that is closed, with Fieller's interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.oracle_gap import share_of_gap

RAW = [0.60, 0.64, 0.66, 0.62, 0.63]
ORACLE = [0.80, 0.83, 0.87, 0.81, 0.82]


def test_nothing_is_0_and_the_oracle_is_1_for_certain():
    assert share_of_gap(RAW, RAW, ORACLE) == (0, 0, 0)
    assert share_of_gap(ORACLE, RAW, ORACLE) == pytest.approx((1, 1, 1))


def test_the_ends_are_where_students_interval_of_the_rest_begins_to_hold_0():
    from scipy.stats import ttest_1samp

    line = [0.70, 0.71, 0.79, 0.74, 0.70]
    found = share_of_gap(line, RAW, ORACLE)
    assert found is not None and found.low < found.share < found.high
    for end in (found.low, found.high):
        rest = np.subtract(line, RAW) - end * np.subtract(ORACLE, RAW)
        assert ttest_1samp(rest, 0).pvalue == pytest.approx(0.05)


def test_without_a_gap_nothing_is_known():
    found = share_of_gap([0.7, 0.6, 0.8], [0.6, 0.7, 0.6], [0.7, 0.6, 0.65])
    assert found is not None and (found.low, found.high) == (-math.inf, math.inf)
    assert share_of_gap([0.7], [0.6], [0.8]) is None
    with pytest.raises(ValueError, match="found 1, 2 and 2"):
        share_of_gap([0.7], [0.6, 0.6], [0.8, 0.8])
