"""ComBat, which docs/results/without-a-patient.md compares: location and scale match, the class stays, and a slow
second implementation, feature by feature, says the same.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.studies import combat as method

Rows = NDArray[np.float64]
Labels = NDArray[np.int64]
SIZES = {"east": 60, "north": 90, "west": 35}
FEATURES = 12


def hospitals(seed: int, *, times: int = 1, apart: bool = True) -> tuple[dict[str, Rows], dict[str, Labels]]:
    """Features with an effect of the class, and with a shift and scale of each hospital's own; shares of 1 differ."""
    draw = np.random.default_rng(seed)
    effect, base = draw.normal(0, 1, FEATURES), draw.normal(5, 3, FEATURES)
    x, y = {}, {}
    for number, (name, size) in enumerate(SIZES.items()):
        n = size * times
        y[name] = (np.arange(n) % (number + 2) == 0).astype(np.int64)
        shift = draw.normal(number, 0.5, FEATURES) if apart else 0.0
        scale = np.sqrt(1 / draw.gamma(8, 1 / 8, FEATURES)) if apart else 1.0
        x[name] = base + y[name][:, None] * effect + shift + scale * draw.standard_normal((n, FEATURES))
    return x, y


def slow(x: dict[str, Rows], y: dict[str, Labels]) -> dict[str, Rows]:
    """The same of Johnson et al. by their words: one regression and one iteration a feature, in loops."""
    names, everything = list(x), np.concatenate(list(x.values()))
    total = len(everything)
    design = np.zeros((total, len(names) + 1))
    begin, own = 0, {}
    for column, name in enumerate(names):
        own[name] = range(begin, begin + len(x[name]))
        for row in own[name]:
            design[row, column], design[row, -1] = 1.0, float(y[name][row - begin])
        begin += len(x[name])
    z, class_part = np.zeros_like(everything), np.zeros_like(everything)
    for feature in range(everything.shape[1]):
        found = np.linalg.lstsq(design, everything[:, feature], rcond=None)[0]
        alpha = sum(len(x[name]) / total * found[column] for column, name in enumerate(names))
        residuals = [everything[row, feature] - design[row] @ found for row in range(total)]
        sigma = (sum(value**2 for value in residuals) / total) ** 0.5
        share = sum(design[row, -1] for row in range(total)) / total
        for row in range(total):
            class_part[row, feature] = (design[row, -1] - share) * found[-1] / sigma
            z[row, feature] = (everything[row, feature] - alpha - share * found[-1]) / sigma - class_part[row, feature]
    out = {}
    for name in names:
        mine = z[own[name]]
        gammas = [float(np.mean(mine[:, f])) for f in range(FEATURES)]
        deltas = [float(np.sum((mine[:, f] - gammas[f]) ** 2) / (len(mine) - 1)) for f in range(FEATURES)]
        bar, tau = float(np.mean(gammas)), float(np.var(gammas, ddof=1))
        m, s = float(np.mean(deltas)), float(np.var(deltas, ddof=1))
        shape, rate = (m**2 + 2 * s) / s, (m**3 + m * s) / s
        result = np.zeros_like(mine)
        for f in range(FEATURES):
            gamma, delta = gammas[f], deltas[f]
            for _ in range(2000):
                gamma = (len(mine) * tau * gammas[f] + delta * bar) / (len(mine) * tau + delta)
                delta = (rate + 0.5 * float(np.sum((mine[:, f] - gamma) ** 2))) / (len(mine) / 2 + shape - 1)
            result[:, f] = (mine[:, f] - gamma) / delta**0.5 + class_part[own[name], f]
        out[name] = result
    return out


@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_a_slow_second_implementation_says(seed: int) -> None:
    x, y = hospitals(seed)
    known, second = method.common(x, y), slow(x, y)
    for name in x:
        np.testing.assert_allclose(method.combat(x[name], known, y[name]), second[name], atol=1e-5)


def test_location_and_scale_match_and_the_class_stays() -> None:
    x, y = hospitals(7, times=200)
    known = method.common(x, y)
    made = {name: method.combat(x[name], known, y[name]) for name in x}
    raw = {name: (x[name] - known.mean) / known.deviation for name in x}
    for label in (0, 1):
        means = np.stack([made[name][y[name] == label].mean(axis=0) for name in x])
        scales = np.stack([made[name][y[name] == label].std(axis=0) for name in x])
        before = np.stack([raw[name][y[name] == label].mean(axis=0) for name in x])
        assert np.ptp(before, axis=0).min() > 0.3, "else there was nothing to match"
        assert np.ptp(means, axis=0).max() < 0.1 and np.abs(scales - 1).max() < 0.05
    for name in x:
        contrast = made[name][y[name] == 1].mean(axis=0) - made[name][y[name] == 0].mean(axis=0)
        np.testing.assert_allclose(contrast, known.effect / known.deviation, atol=0.06)


def test_hospitals_that_are_alike_stay_as_they_are() -> None:
    x, y = hospitals(3, times=200, apart=False)
    known = method.common(x, y)
    for name in x:
        made = method.combat(x[name], known, y[name])
        assert np.abs(made - (x[name] - known.mean) / known.deviation).max() < 0.12


def test_units_and_an_offset_of_a_hospital_change_nothing() -> None:
    """What a feature is measured in, and what one camera adds to all standardized features, is taken away again."""
    x, y = hospitals(5)
    known = method.common(x, y)
    units, zero = np.linspace(0.1, 30, FEATURES), np.linspace(-100, 100, FEATURES)
    other = {name: one * units + zero for name, one in x.items()}
    for name in x:
        made = method.combat(x[name], known, y[name])
        np.testing.assert_allclose(method.combat(other[name], method.common(other, y), y[name]), made, atol=1e-8)
        offset = x[name] + 2.5 * known.deviation
        np.testing.assert_allclose(method.combat(offset, known, y[name]), made, atol=1e-4)


def test_rows_without_labels_get_the_shift_and_scale_of_those_that_have_some() -> None:
    x, y = hospitals(9)
    known, name = method.common(x, y), "north"
    fit = np.arange(0, len(x[name]), 2)
    made = method.combat(x[name], known, y[name][fit], fit)
    shift, variance = method.shift_and_scale(
        ((x[name] - known.mean) / known.deviation)[fit]
        - (y[name][fit] - known.share)[:, None] * known.effect / known.deviation
    )
    rest = np.setdiff1d(np.arange(len(x[name])), fit)
    expected = ((x[name] - known.mean) / known.deviation - shift) / np.sqrt(variance)
    np.testing.assert_allclose(made[rest], expected[rest], atol=1e-12)
    alone = method.combat(x[name][fit], known, y[name][fit])
    np.testing.assert_allclose(made[fit], alone, atol=1e-12)
