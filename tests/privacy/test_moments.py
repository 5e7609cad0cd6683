"""Moments in one release: what a patient can change, the noise, the price, and that sums are exact."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privacy.dp import moments
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Gaussian
from privacy.dp.moments import Moments, Patients, centre_sum, exact_moments, noised_moments, sums_about

WIDTH, CLASSES = 3, 3
NUMBERS = st.one_of(
    st.floats(-5, 5), st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e300, -1e300, 1e-300, 3e38])
)
ROW = st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH)
PATIENT = st.lists(st.tuples(ROW, st.integers(-1, CLASSES)), min_size=1, max_size=4)


def same(x):
    return x


def patients(found) -> Patients:
    """From a list of patients, each a list of (row, label)."""
    x = torch.tensor([row for one in found for row, _ in one], dtype=torch.float64).reshape(-1, WIDTH)
    y = torch.tensor([label for one in found for _, label in one], dtype=torch.int64)
    whose = list(torch.split(torch.arange(len(y)), [len(one) for one in found])) if found else []
    return Patients(x, y, whose)


@given(st.lists(PATIENT, max_size=4), PATIENT, st.floats(1e-3, 1e3), ROW)
def test_a_patient_changes_each_part_by_one_at_most(others, one, radius, centre):
    """Sensitivity 1 to adding or removing a patient, whatever the others, the rows, their labels and the centre."""
    about = torch.tensor(centre, dtype=torch.float64).nan_to_num(0.0, 1.0, -1.0).clamp(-10, 10)
    how = {"classes": CLASSES, "radius": radius}
    with_one, without = patients([*others, one]), patients(others)
    first = centre_sum(with_one, same, width=WIDTH, **how) - centre_sum(without, same, width=WIDTH, **how)
    parts = zip(sums_about(about, with_one, same, **how), sums_about(about, without, same, **how), strict=True)
    for change in (first, *(a - b for a, b in parts)):
        assert float((change.double() / moments.UNIT).norm()) <= moments.SLACK


def test_sums_do_not_depend_on_the_order_of_patients():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, WIDTH, generator=g).double(), torch.randint(CLASSES, (60,), generator=g)
    whose = list(torch.split(torch.arange(60), 2))
    about = torch.zeros(WIDTH).double()
    forward, backward = Patients(x, y, whose), Patients(x, y, whose[::-1])
    for a, b in zip(
        sums_about(about, forward, same, CLASSES, radius=2.0),
        sums_about(about, backward, same, CLASSES, radius=2.0),
        strict=True,
    ):
        assert torch.equal(a, b)


def noised(noise: float, found: Patients, radius: float = 3.0) -> Moments:
    how = {"width": WIDTH, "radius": radius, "count": len(found.whose), "noise": noise}
    return noised_moments(found, same, CLASSES, **how)


def a_few() -> Patients:
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, WIDTH, generator=g).double(), torch.randint(CLASSES, (40,), generator=g)
    return Patients(x, y, list(torch.split(torch.arange(40), 2)))


def test_without_noise_and_within_the_radius_it_is_the_exact_release():
    found = a_few()
    for ours, exact in zip(noised(0.0, found, radius=50.0), exact_moments(found, same, CLASSES), strict=True):
        assert torch.allclose(torch.as_tensor(ours), torch.as_tensor(exact), atol=1e-7)


def test_exact_moments_are_what_their_definition_says():
    found = a_few()
    rows = [(found.x[own], torch.nn.functional.one_hot(found.y[own], CLASSES).double()) for own in found.whose]
    centre = torch.stack([z.mean(0) for z, _ in rows]).mean(0)
    ours = exact_moments(found, same, CLASSES)
    assert torch.allclose(ours.centre, centre)
    assert torch.allclose(ours.sizes, sum(y.mean(0) for _, y in rows))
    assert torch.allclose(ours.sums, sum(y.T @ (z - centre) / len(z) for z, y in rows))
    assert torch.allclose(ours.gram, sum((z - centre).T @ (z - centre) / len(z) for z, _ in rows))


@pytest.mark.chance(1e-8, "a deviation over 1,800 numbers is 10 % off: 2.2e-9, five times at most")
def test_the_noise_of_each_part_is_what_its_share_pays_for():
    """Of no patients all is noise. 600 draws know a standard deviation to 3 %, and these are means over several."""
    radius, noise = 2.0, 1.5
    nobody = Patients(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64), [])
    how = {"width": WIDTH, "radius": radius, "count": 1, "noise": noise}
    drawn = [noised_moments(nobody, same, CLASSES, **how) for _ in range(600)]
    stacked = [torch.stack([getattr(one, part) for one in drawn]) for part in ("centre", "sizes", "sums", "gram")]
    centre, sizes, sums, gram = stacked
    diagonal = torch.eye(WIDTH).bool()
    expected = {
        "centre": (centre, moments.CENTRE, radius),
        "sizes": (sizes, moments.SIZES, 1.0),
        "sums": (sums, moments.SUMS, radius),
        "gram": (gram[:, diagonal], moments.GRAM, radius**2),
        "gram off its diagonal": (gram[:, ~diagonal], moments.GRAM * 2, radius**2),
    }
    for part, (values, share, unit) in expected.items():
        assert float(values.std()) == pytest.approx(noise / math.sqrt(share) * unit, rel=0.1), part
    assert torch.equal(gram, gram.transpose(1, 2))
    assert drawn[0].deviation == pytest.approx(noise / math.sqrt(moments.GRAM) * radius**2, rel=1e-6)


@pytest.mark.parametrize("noise", [0.7, 2.0, 10.0])
def test_four_parts_cost_as_much_as_the_one_event_that_is_recorded(noise):
    """Priced by dp-accounting, which composes privacy loss distributions and knows nothing of our shares."""
    shares = (moments.CENTRE, moments.GRAM, moments.SUMS, moments.SIZES)
    assert sum(shares) == pytest.approx(1.0)
    four = compute_cost([Gaussian(noise / math.sqrt(share)) for share in shares], 1e-5).epsilon
    assert four == pytest.approx(compute_cost([Gaussian(noise)], 1e-5).epsilon, rel=2e-3)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf])
def test_a_radius_that_bounds_nothing_is_refused(radius):
    with pytest.raises(ValueError, match="radius must be a positive number"):
        noised(1.0, a_few(), radius)
