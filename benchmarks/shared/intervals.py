"""Means over splits or seeds, with half of Student's 95 % interval, as tables have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evaluation.intervals import t_interval

Values = Sequence[float] | np.ndarray


def half_width(values: Values) -> float:
    """Half of the 95 % interval of the mean; NaN of one value."""
    estimate = t_interval([float(value) for value in values])
    return (estimate.high - estimate.low) / 2


def format_interval(values: Values, *, digits: int = 3, sign: str = "") -> str:
    """`.8 ± .1`; a value alone has no interval. sign: `+` shows it always."""
    mean = f"{np.mean(values):{sign}.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {half_width(values):.{digits}f}"


def format_change(values: Mapping[str, float], other: Mapping[str, float]) -> str:
    """The mean difference on the same splits, with a sign."""
    return format_interval([values[split] - other[split] for split in values], sign="+")


def format_spread(values: Values, *, digits: int = 3) -> str:
    """Mean ± standard deviation; a dash where there is nothing."""
    if not len(values):
        return "–"
    return f"{np.mean(values):.{digits}f}" + (f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else "")
