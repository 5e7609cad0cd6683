"""The audit: its statistics against their definition, and faults that it must find."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from privacy.attacks import audit
from privacy.attacks.audit import (
    LOUDNESS,
    Audit,
    audit_gradients,
    canary_rows,
    lower_bound,
    p_value,
    through_moments,
    through_private_access,
)
from privacy.dp import moments
from privacy.dp.accounting import compute_cost
from privacy.dp.entropy import draw_choices, draw_gaussian
from privacy.dp.events import Gaussian
from privacy.dp.protection import Protection

DELTA = 1e-5
SLICES = 7
CLEAR = {"claimed": 1.0, "delta": DELTA, "canaries": 2000, "steps": 50}
SAMPLING, NOISE = 0.1, 2.95  # what CLEAR claims, as the test of private data access says
KNOWN = {"claimed": 1.0, "delta": DELTA, "canaries": 2000, "steps": 200}
KNOWN_SAMPLING, KNOWN_NOISE = 1 / 3, 17.68  # here missing subsampling costs little, and is hardly found


def slow_p_value(m, guesses, right, epsilon, delta):
    accuracy = 1 / (1 + math.exp(-epsilon))
    chance = [math.comb(guesses, j) * accuracy**j * (1 - accuracy) ** (guesses - j) for j in range(guesses + 1)]
    steepest = max((sum(chance[right - i : right]) / i for i in range(1, right + 1)), default=0.0)
    return min(1.0, sum(chance[right:]) + 2 * m * delta * steepest)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10), st.floats(0, 4), st.floats(0, 0.1))
def test_the_p_value_is_its_definition(right, wrong, abstained, epsilon, delta):
    guesses = right + wrong
    found = p_value(guesses + abstained, guesses, right, epsilon, delta)
    assert found == pytest.approx(slow_p_value(guesses + abstained, guesses, right, epsilon, delta), abs=1e-9)


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0, 3), st.floats(0, 1), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_a_larger_epsilon_makes_guesses_less_surprising(right, wrong, epsilon, more, delta):
    m = right + wrong
    assert p_value(m, m, right, epsilon + more, delta) >= p_value(m, m, right, epsilon, delta) - 1e-12


@pytest.mark.parametrize("delta", [1e-3, 1e-2])
def test_the_p_value_covers_code_that_tells_each_canary_with_probability_delta(delta):
    # This is (0, delta)-private, and its guesses are right with probability 1/2 + delta/2.
    m = 200
    tails = [float(stats.binom.sf(v - 1, m, 0.5 + delta / 2)) for v in range(m + 1)]
    assert all(tail <= p_value(m, m, v, 0.0, delta) + 1e-12 for v, tail in enumerate(tails))
    assert any(tail > p_value(m, m, v, 0.0, 0.0) for v, tail in enumerate(tails)), "the term of delta is needed"


@pytest.mark.parametrize(("m", "ceiling"), [(20, 1.82), (50, 2.78), (100, 3.49), (300, 4.59), (1000, 5.78)])
def test_perfect_guesses_refute_as_much_as_theory_allows_and_no_more(m, ceiling):
    assert p_value(m, m, m, ceiling - 0.02, DELTA) < 0.05 < p_value(m, m, m, ceiling + 0.02, DELTA)
    included = draw_choices(m, 0.5, random.Random(m).randbytes)
    assert lower_bound(included.double(), included, delta=DELTA) <= ceiling


def test_randomized_response_is_refuted_no_more_often_than_the_confidence_allows():
    epsilon, m, runs, draw = 1.0, 300, 60, random.Random(0).randbytes
    accuracy = math.exp(epsilon) / (1 + math.exp(epsilon))
    bounds = []
    for _ in range(runs):
        included = draw_choices(m, 0.5, draw)
        answer = torch.where(draw_choices(m, accuracy, draw), included, ~included)
        bounds.append(lower_bound(answer.double(), included, delta=0.0, confidence=0.8))
    refuted = sum(bound > epsilon for bound in bounds)
    assert refuted <= stats.binom.ppf(0.999, runs, 0.2)
    assert sum(bounds) / runs > 0.5, "a bound that says nothing would pass the line above"


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_only_the_order_of_scores_counts_and_in_and_out_are_alike(seed):
    draw = random.Random(seed).randbytes
    included = draw_choices(100, 0.5, draw)
    scores = included + draw_gaussian((100,), 0.7, draw)
    bound = lower_bound(scores, included, delta=DELTA)
    assert lower_bound(scores.exp() * 3, included, delta=DELTA) == bound
    assert lower_bound(-scores, ~included, delta=DELTA) == bound
    assert lower_bound(-scores, included, delta=DELTA) <= bound or bound == 0
    assert lower_bound(scores, included, delta=DELTA, confidence=0.99) <= bound


def test_scores_that_know_nothing_refute_nothing():
    draw = random.Random(1).randbytes
    assert lower_bound(draw_gaussian((1000,), 1.0, draw), draw_choices(1000, 0.5, draw), delta=DELTA) < 0.2
    assert lower_bound(torch.zeros(1000), draw_choices(1000, 0.5, draw), delta=DELTA) < 0.2


def slowly(*, noise=NOISE, sampling=SAMPLING, clips=True, per_slice=False, seed=0):
    """Clip, sample, noise, written out patient by patient: the second implementation of what is audited."""
    draw = random.Random(seed).randbytes

    def make(included):
        rows = canary_rows(included, 1.0, SLICES)
        units = torch.arange(len(rows.patient)) if per_slice else rows.patient
        shares = torch.zeros(len(units.unique()), len(included))
        for place, unit in enumerate(units.unique().tolist()):
            share = rows.x[units == unit].mean(dim=0)
            shares[place] = share * min(1.0, 1.0 / float(share.norm())) if clips else share
        return lambda: (
            shares[draw_choices(len(shares), sampling, draw)].sum(dim=0) + draw_gaussian((len(included),), noise, draw)
        )

    return make


def audited(make, seed=0, setting=CLEAR):
    return audit_gradients(make, source=random.Random(100 + seed).randbytes, **setting)


@pytest.mark.parametrize("seed", range(3))
def test_correct_code_passes(seed):
    found = audited(slowly(seed=seed), seed)
    assert found == Audit(1.0, found.bound, 2000, 50, DELTA, 0.95)
    assert found.bound <= 1
    assert not found.is_refuted


@pytest.mark.parametrize(
    "fault",
    [{"noise": NOISE / 4}, {"per_slice": True}, {"sampling": 1.0}, {"clips": False}],
    ids=["a quarter of the noise", "every slice for itself", "no subsampling", "no clipping"],
)
def test_code_with_a_fault_is_refuted(fault):
    found = audited(slowly(**fault))
    assert found.bound > 1
    assert found.is_refuted


def test_a_sampling_of_a_third_over_200_steps_passes_and_is_refuted_with_a_quarter_of_the_noise():
    assert audited(slowly(noise=KNOWN_NOISE, sampling=KNOWN_SAMPLING), setting=KNOWN).bound <= 1
    assert audited(slowly(noise=KNOWN_NOISE / 4, sampling=KNOWN_SAMPLING), setting=KNOWN).bound > 1


def of_access(monkeypatch, *, patients=None, **changed):
    """An audit of private data access, and the access. patients: rows -> whose the access believes each row is."""
    accesses, opens = [], audit.open_private

    def opened(splits, *args, **kwargs):
        rows = splits["train"]
        whose = rows.patient if patients is None else patients(rows)
        accesses.append(opens({"train": replace(rows, patient=whose)}, *args, **kwargs))
        return accesses[-1]

    monkeypatch.setattr(audit, "open_private", opened)
    protection = Protection(**{"sampling": SAMPLING, "noise": NOISE, "chunk": 256, **changed})
    make = through_private_access(protection, slices=SLICES, source=random.Random(7).randbytes)
    return audited(make, setting={**CLEAR, "canaries": 400}), accesses[0]


def test_private_access_passes_at_what_its_own_events_cost(monkeypatch):
    found, access = of_access(monkeypatch)
    assert 0.97 < compute_cost(access.events, DELTA).epsilon <= found.claimed
    assert found.bound <= 1


@pytest.mark.parametrize(
    "fault",
    [{"noise": NOISE / 4}, {"sampling": 1.0}, {"patients": lambda rows: torch.arange(len(rows.y))}],
    ids=["a quarter of the noise", "no subsampling", "every slice for itself"],
)
def test_private_access_with_a_fault_is_refuted(monkeypatch, fault):
    found, _ = of_access(monkeypatch, **fault)
    assert found.bound > 1


def of_moments(noise):
    made = through_moments(Protection(noise=noise), source=random.Random(7).randbytes)
    return audit_gradients(made, claimed=1.0, delta=DELTA, canaries=300, steps=1, source=random.Random(8).randbytes)


def test_a_release_of_moments_passes_at_what_its_own_events_cost():
    noise = 3.75  # 3.731 is what epsilon 1 needs
    assert compute_cost([Gaussian(noise)], DELTA).epsilon <= 1.0
    assert of_moments(noise).bound <= 1.0


def by_row(u, y):
    """As if each row were a patient."""
    return y.sum(dim=0), y.T @ u, u.T @ u


FAULTS_OF_MOMENTS = {"by row": ("_patient_parts", by_row), "rows as long as they are": ("cut_rows", lambda z: z)}


@pytest.mark.parametrize("fault", FAULTS_OF_MOMENTS)
def test_a_release_of_moments_with_a_fault_is_refuted(monkeypatch, fault):
    monkeypatch.setattr(moments, *FAULTS_OF_MOMENTS[fault])
    assert of_moments(3.75).bound > 1.0


def test_a_canary_is_louder_than_the_clipping_norm_in_a_coordinate_of_its_own():
    rows = canary_rows(torch.tensor([True, False, True]), 0.5, 2)
    assert rows.patient.tolist() == [0, 0, 2, 2]
    assert torch.equal(rows.x, LOUDNESS * 0.5 * torch.eye(3)[rows.patient])


def test_every_wrong_argument_is_named_at_once():
    with pytest.raises(ValueError, match=r"delta is 1(?s:.*)confidence is 0(?s:.*)shape \(5,\)(?s:.*)float32"):
        lower_bound(torch.zeros(5), torch.zeros(5), delta=1, confidence=0)
    with pytest.raises(ValueError, match="1 of 30 scores are not finite"):
        lower_bound(torch.tensor([math.nan] + [0.0] * 29), torch.ones(30).bool(), delta=DELTA)
    with pytest.raises(ValueError, match=r"claimed is 0(?s:.*)canaries is 3(?s:.*)steps is 0"):
        audit_gradients(lambda _: None, claimed=0, delta=DELTA, canaries=3, steps=0)
    with pytest.raises(ValueError, match=r"shape \(3,\), needed is \(30,\)"):
        audit_gradients(lambda _: lambda: torch.zeros(3), claimed=1, delta=DELTA, canaries=30, steps=1)
