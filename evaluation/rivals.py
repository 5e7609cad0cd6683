"""Whether test patients show another model to be better than the one that a hospital should use.

A decision rests on validation patients, and before networks a head goes first (`evaluation.recommendation`). Test
patients have no part in it, so they can speak against it; and they do not change it, because the score of a model that
they had chosen would be that of a winner. Of many models some look better by luck. So all that the hospital can use are
compared at once, by the largest of their studentized differences (Westfall and Young, Resampling-Based Multiple
Testing, 1993):

    d_k          score of model k minus that of the one to use, on the same patients; d_k* of a bootstrap copy
    s_k          standard deviation of d_k* over copies
    c            95 % quantile over copies of max_k |d_k* - d_k| / s_k
    d_k ± c s_k  intervals that hold the true differences of all k at once in 95 of 100 samples
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.decision import Decision, Rival
from evaluation.histograms import Floats
from evaluation.metrics import Measure
from evaluation.protocols import Table, own_model_table
from evaluation.records import Model

LEVEL = 0.95


def find_rivals(
    tables: Mapping[str, Table], decisions: Sequence[Decision], models: Sequence[Model], measure: Measure
) -> dict[str, Rival]:
    """By hospital the usable model that is shown to be better by most; without hospitals where none is."""
    sign, own_tables = (1 if measure.higher_is_better else -1), {m: own_model_table(t) for m, t in tables.items()}
    usable, rivals = {(model.site, model.method) for model in models if model.file and not model.ended}, {}
    for decision in decisions:
        place = (decision.site, decision.site)
        copies = {
            method: sign * measure.of(table[place])
            for method, table in own_tables.items()
            if place in table and (method == decision.method or (decision.site, method) in usable)
        }
        if (best := _compare_at_once(copies, decision.method)) is not None:
            rivals[decision.site] = best
    return rivals


def _compare_at_once(copies: Mapping[str, Floats], used: str) -> Rival | None:
    """The best rival of the model that is used. copies: (1 + B,) of each, the sample first."""
    if used not in copies:
        return None
    gains = {m: c - copies[used] for m, c in copies.items() if m != used and len(c) == len(copies[used])}
    spreads = {m: float(np.nanstd(g[1:])) for m, g in gains.items() if math.isfinite(g[0])}
    names = [method for method, spread in spreads.items() if spread > 0]
    if not names:
        return None
    t = np.stack([np.abs(gains[m][1:] - gains[m][0]) / spreads[m] for m in names])
    reach = float(np.quantile(np.nan_to_num(t).max(axis=0), LEVEL))
    ends = {m: (gains[m][0] - reach * spreads[m], gains[m][0] + reach * spreads[m]) for m in names}
    better = [
        Rival(m, float(gains[m][0]), float(low), float(high), len(names)) for m, (low, high) in ends.items() if low > 0
    ]
    return max(better, key=lambda rival: rival.gain, default=None)
