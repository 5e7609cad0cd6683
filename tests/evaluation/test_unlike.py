"""A study is like the training studies or not: distances, how rare they are, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.covariance import ledoit_wolf

from evaluation import unlike
from evaluation.unlike import FEWEST, MOST, Floats, average_by_study, compute_features, reference_of


def normal(seed: int, n: int, d: int = 6) -> Floats:
    """Correlated numbers of very different size."""
    g = np.random.default_rng(seed)
    mixed = np.random.default_rng(99).normal(size=(d, d))
    return (g.normal(size=(n, d)) @ mixed) * 10.0 ** np.arange(-2, d - 2)


def test_distances_are_those_of_a_slow_second_way():
    known, new = normal(0, 30), normal(1, 4)
    found = reference_of(known, range(30))
    assert found is not None
    scaled = (known - known.mean(axis=0)) / known.std(axis=0, ddof=1)
    # Small deviations have a floor of a tenth of the median one; here the floor is reached by the smallest.
    floor = 0.1 * np.median(known.std(axis=0, ddof=1))
    scaled *= known.std(axis=0, ddof=1) / np.maximum(known.std(axis=0, ddof=1), floor)
    covariance, _ = ledoit_wolf(scaled, assume_centered=True)
    for row, distance in zip(new, found.distances(new), strict=True):
        z = (row - known.mean(axis=0)) / np.maximum(known.std(axis=0, ddof=1), floor)
        assert distance == pytest.approx(np.sqrt(z @ np.linalg.inv(covariance) @ z / len(z)))


def test_centre_and_spread_come_from_patients_who_were_left_out():
    known = normal(0, 20)
    found = reference_of(known, np.arange(20))
    logarithms = []
    for patient in range(20):
        others = [other for other in range(20) if other % 10 != patient % 10]
        part = reference_of(known[others], others)
        logarithms.append(np.log(part.distances(known[[patient]])[0]))
    assert found.centre == pytest.approx(np.mean(logarithms))
    assert found.spread == pytest.approx(np.std(logarithms, ddof=1))


@pytest.mark.parametrize("patients", [8, 20, 100])
def test_so_many_of_the_same_hospital_are_marked_as_was_said_and_far_ones_all(patients):
    marked, far = [], []
    for seed in range(60):
        found = reference_of(normal(seed, patients), range(patients))
        new = normal(1000 + seed, 50)
        marked.append((found.p_values(found.distances(new)) < 0.05).mean())
        far.append((found.distances(new + 40 * new.std(axis=0)) > found.limit(0.05)).mean())
    assert 0.02 < np.mean(marked) < 0.08
    assert np.mean(far) > (0.9 if patients == 8 else 0.99)


def test_a_p_value_is_the_alarm_at_its_limit_and_falls_with_the_distance():
    found = reference_of(normal(0, 12), range(12))
    for alarm in (0.5, 0.05, 0.001):
        assert found.p_values(np.array([found.limit(alarm)]))[0] == pytest.approx(alarm)
    assert found.p_values(np.array([0.0, np.inf, np.nan])).tolist() == [1.0, 0.0, 0.0]
    rising = found.p_values(np.linspace(0.1, 50, 40))
    assert (np.diff(rising) < 0).all()
    t = (np.log(2.0) - found.centre) / (found.spread * np.sqrt(13 / 12))
    assert found.p_values(np.array([2.0]))[0] == pytest.approx(1 - stats.t(11).cdf(t))


def test_several_studies_of_one_patient_are_left_out_together():
    own = np.repeat(np.arange(12), 3)
    same = np.repeat(normal(0, 12), 3, axis=0)
    once = reference_of(normal(0, 12), np.arange(12))
    found = reference_of(same, own)
    assert found.patients == 12
    assert found.centre > 0.6 * once.centre, "a study left out alone would have had its twins in the reference"


def test_without_enough_patients_or_numbers_there_is_no_reference():
    assert reference_of(normal(0, FEWEST - 1), range(FEWEST - 1)) is None
    assert reference_of(normal(0, 40), [0, 1] * 20) is None
    broken = normal(0, 20)
    broken[3, 1] = np.nan
    assert reference_of(broken, range(20)) is None


def test_of_very_many_numbers_only_variances_are_taken():
    wide = np.random.default_rng(0).normal(size=(12, MOST + 1))
    found = reference_of(wide, range(12))
    assert found.precision.shape == (MOST + 1,)
    assert found.distances(wide + 9)[0] > found.limit(0.01)


def test_a_number_that_never_varied_counts_but_does_not_decide_alone():
    known = np.random.default_rng(0).normal(size=(30, 8))
    known[:, 3] = 1.0
    found = reference_of(known, range(30))
    new = np.zeros((2, 8))
    new[0, 3], new[1, 3] = 1.01, 7.0
    near, far = found.distances(new)
    assert near < found.limit(0.01) < far


@pytest.mark.parametrize("shape", [(3, 1, 8, 8), (2, 3, 17, 12), (2, 1, 6, 16, 16)])
def test_images_are_described_by_their_own_pixels_alone(shape):
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = compute_features(images)
    assert found.shape[0] == shape[0] and np.isfinite(found).all()
    assert np.allclose(compute_features(images[1:2])[0], found[1])
    assert np.isfinite(compute_features(np.zeros(shape, np.float32))).all()


def test_scale_noise_and_blur_each_change_a_description():
    images = np.random.default_rng(0).normal(1, 0.2, size=(1, 1, 32, 32)).astype(np.float32)
    blurred = (images + np.roll(images, 1, axis=2) + np.roll(images, 1, axis=3)) / 3
    for other in (2 * images, blurred, images + 0.5):
        assert np.abs(compute_features(other) - compute_features(images)).max() > 0.3


def test_lines_of_a_table_describe_themselves_and_studies_are_means():
    lines = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(compute_features(lines), lines)
    assert average_by_study(compute_features(lines), np.array([0, 0, 1, 2])).tolist() == [
        [1.5, 2.5, 3.5],
        [6, 7, 8],
        [9, 10, 11],
    ]


def test_planes_that_are_transformed_a_few_at_a_time_have_the_same_powers(monkeypatch):
    volumes = np.random.default_rng(0).normal(size=(2, 1, 5, 8, 12)).astype(np.float32)
    together = compute_features(volumes)
    monkeypatch.setattr(unlike, "AT_ONCE", 2 * 8 * 12)
    assert np.allclose(compute_features(volumes), together, rtol=1e-12, atol=0)
