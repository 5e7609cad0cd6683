"""Channel moments in one release: what a patient can change, the noise, the price, and who passes with whom."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from privacy.dp import channels
from privacy.dp.accounting import compute_cost
from privacy.dp.channels import NoisedMean, noised_mean, plan_bounds, sum_about
from privacy.dp.events import Gaussian
from privacy.dp.moments import SLACK, UNIT

WIDTH = 6
NUMBERS = st.one_of(st.floats(-5, 5), st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e300, -1e300, 3e38]))
PATIENT = st.lists(st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=4)


def mean_of(x: Tensor) -> Tensor:
    return x.mean(dim=0)


def rows_of(patients: list[list[list[float]]]) -> tuple[Tensor, list[Tensor]]:
    x = torch.tensor([row for rows in patients for row in rows], dtype=torch.float64).reshape(-1, WIDTH)
    return x, list(torch.split(torch.arange(len(x)), [len(rows) for rows in patients])) if patients else []


@given(st.lists(PATIENT, max_size=4), PATIENT, st.floats(1e-3, 1e3), st.floats(-2, 2))
def test_a_patient_changes_the_sum_by_one_at_most(others, patient, bound, centre):
    """Sensitivity 1, in units of the bound, to adding or removing a patient, whoever the others are."""
    about = torch.full((WIDTH,), centre, dtype=torch.float64)
    with_patient = sum_about(about, mean_of, *rows_of([*others, patient]), bound)
    without = sum_about(about, mean_of, *rows_of(others), bound)
    assert float(((with_patient - without).double() / UNIT).norm()) <= SLACK


def many(patients: int = 400) -> tuple[Tensor, list[Tensor]]:
    """Patients of two images each, near one another and not near 0."""
    g = torch.Generator().manual_seed(1)
    x = 0.3 + 0.05 * torch.randn(2 * patients, WIDTH, generator=g).double()
    return x, list(torch.split(torch.arange(2 * patients), 2))


def noised(x: Tensor, whose: list[Tensor], noise: float, **how: float) -> NoisedMean:
    return noised_mean(mean_of, x, whose, width=WIDTH, channels=WIDTH // 2, count=len(whose), noise=noise, **how)


def test_without_noise_and_within_the_bound_it_is_the_mean():
    x, whose = many(7)
    assert torch.allclose(noised(x, whose, 0.0, radius=50.0).mean, x.mean(dim=0), atol=1e-7)


def test_each_patient_passes_alone():
    x, whose = many(5)
    seen: list[int] = []

    def look(rows: Tensor) -> Tensor:
        seen.append(len(rows))
        return rows.mean(dim=0)

    noised_mean(look, x, whose, width=WIDTH, channels=3, count=5, noise=100.0)
    assert seen == [2] * 5


def test_the_number_that_divides_is_the_released_one_and_not_the_true_one():
    x, whose = 0.1 * many(7)[0], many(7)[1]
    found = noised_mean(mean_of, x, whose, width=WIDTH, channels=3, count=14, noise=0.0, radius=50.0)
    first = x.mean(dim=0) / 2
    # The second look is about the first result.
    assert torch.allclose(found.mean, first + (x.mean(dim=0) - first) / 2, atol=1e-7)


def test_bounds_follow_from_public_numbers_and_two_looks_are_taken_where_they_leave_less_noise():
    few, enough = plan_bounds(WIDTH, 3, 5, 3.7, 0.75), plan_bounds(WIDTH, 3, 400, 3.7, 0.75)
    assert few == (0.75 * math.sqrt(3),)
    assert enough[0] == few[0] and enough[1] < few[0] / math.sqrt(2)


@pytest.mark.chance(1e-11, "a deviation over 2,400 numbers is 10 % off: 5e-12, twice")
@pytest.mark.parametrize("patients", [5, 40])
def test_the_noise_has_the_deviation_that_is_told(patients):
    """With one look and with two: what differs between releases of the same patients is noise."""
    x, whose = many(patients)
    drawn = [noised(x, whose, 3.7) for _ in range(400)]
    values = torch.stack([release.mean for release in drawn])
    assert len(plan_bounds(WIDTH, 3, patients, 3.7, channels.RADIUS)) == (1 if patients == 5 else 2)
    # A second look takes the first one's noise away, but for what is cut.
    assert float((values - values.mean(dim=0)).std()) == pytest.approx(drawn[0].deviation, rel=0.1)


@pytest.mark.parametrize("noise", [0.7, 3.7])
def test_two_looks_cost_as_much_as_the_one_event_that_is_recorded(noise):
    two = compute_cost([Gaussian(noise * math.sqrt(2))] * 2, 1e-5).epsilon
    assert two == pytest.approx(compute_cost([Gaussian(noise)], 1e-5).epsilon, rel=2e-3)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_radius_that_bounds_nothing_is_refused(radius):
    with pytest.raises(ValueError, match="radius must be a positive number"):
        noised(*many(3), 1.0, radius=radius)
