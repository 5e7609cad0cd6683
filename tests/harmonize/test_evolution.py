"""Private evolution."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harmonize import evolution
from harmonize.distances import frechet
from harmonize.embedding import compute_basis, project_images
from harmonize.evolution import PrivateEvolution, draw_images, evolve_population, noise_per_round, reflect_into_unit
from harmonize.prior import PRIORS, draw_pictures
from privacy.dp.access import Rows, open_access
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Gaussian
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

INPUTS = (1, 16, 16)
PRIOR = PRIORS["prostate_adc"]
SMALL = PrivateEvolution(candidates=60, rounds=4, public=200, components=20)


def _patients(n=40, each=3):
    """A hospital in one corner of what the prior can draw."""
    generator = torch.Generator().manual_seed(11)
    theta = torch.rand(n * each, PRIOR.latent, generator=generator) * 0.3 + 0.6
    y = torch.arange(n * each) % 2
    x = PRIOR.render(theta, y, torch.randint(2**62, (n * each,), generator=generator), INPUTS)
    return Rows(x, y, torch.arange(n).repeat_interleave(each))


def _private(rows, noise, seed=0, dry=False):
    return open_private(
        {"train": rows}, Protection(votes_noise=noise, cut="c"), source=random.Random(seed).randbytes, dry=dry
    )


def _distance(images, rows):
    public = compute_basis(draw_pictures(PRIOR, torch.arange(200) % 2, INPUTS, 99), 20)
    return frechet(project_images(public, images), project_images(public, rows.x))


Y = torch.arange(120) % 2


@pytest.mark.parametrize("epsilon", [None, 100.0])
def test_the_population_moves_towards_the_patients(epsilon):
    rows, settings = _patients(), replace(SMALL, epsilon=epsilon)
    noise = 0.0 if epsilon is None else noise_per_round(epsilon, settings.delta, settings.rounds)
    params = evolve_population(settings, _private(rows, noise), INPUTS, seed=0)
    before = _distance(draw_pictures(PRIOR, Y, INPUTS, 5), rows)
    after = _distance(draw_images(settings, INPUTS, params, Y, seed=5), rows)
    assert after < 0.7 * before


def test_both_accesses_give_the_same_where_there_is_no_noise():
    rows, settings = _patients(), replace(SMALL, rounds=2, epsilon=None)
    plain = evolve_population(settings, open_access({"train": rows}, batch=8, seed=0), INPUTS, seed=3)
    private = evolve_population(settings, _private(rows, 0.0), INPUTS, seed=3)
    assert sorted(plain) == ["noise_seed", "theta", "weight", "y"]
    assert all(torch.equal(plain[name], private[name]) for name in ("theta", "y", "noise_seed"))
    assert torch.allclose(plain["weight"], private["weight"])


def test_with_next_to_no_budget_there_are_still_pictures_of_both_classes():
    settings = replace(SMALL, epsilon=1e-3, rounds=2)
    access = _private(_patients(6), noise_per_round(1e-3, settings.delta, 2))
    params = evolve_population(settings, access, INPUTS, seed=0)
    x = draw_images(settings, INPUTS, params, Y, seed=0)
    assert x.shape == (120, *INPUTS) and bool(x.isfinite().all())
    assert all(float(params["weight"][params["y"] == label].sum()) == pytest.approx(1) for label in (0, 1))


@given(st.floats(0.05, 30), st.sampled_from([1e-6, 1e-5, 1e-3]), st.integers(1, 20))
def test_rounds_cost_together_what_was_asked(epsilon, delta, rounds):
    spent = compute_cost([Gaussian(noise_per_round(epsilon, delta, rounds))] * rounds, delta).epsilon
    assert 0.99 * epsilon < spent <= epsilon * (1 + 1e-3)


def test_what_is_booked_costs_what_was_asked_and_a_dry_run_books_the_same():
    settings = replace(SMALL, epsilon=3.0, rounds=3)
    noise = noise_per_round(3.0, settings.delta, 3)
    wet, dry = (_private(_patients(6), noise, dry=dry) for dry in (False, True))
    for access in (wet, dry):
        evolve_population(settings, access, INPUTS, seed=0)
    assert compute_cost(wet.events, settings.delta).epsilon == pytest.approx(3.0, rel=0.01)
    assert wet.events == dry.events


def test_a_patient_with_many_images_has_no_more_votes_than_one_with_few():
    rows = _patients(2, 1)
    one = torch.zeros(1, dtype=torch.long)
    many = Rows(
        torch.cat([rows.x[:1].repeat(50, 1, 1, 1), rows.x[1:]]),
        torch.cat([one.expand(50), rows.y[1:]]),
        torch.cat([one.expand(50), rows.patient[1:]]),
    )
    access = _private(many, 0.0)
    said = []
    asked = access.votes

    class Listening:
        def votes(self, assign, bins):
            said.append(asked(assign, bins))
            return said[-1]

    evolve_population(replace(SMALL, epsilon=None, rounds=2), Listening(), INPUTS, seed=0)
    for votes in said:
        assert float(votes.sum()) == pytest.approx(2) and float(votes.max()) == pytest.approx(1)


def test_an_image_votes_for_the_nearest_candidate_of_its_own_class():
    settings = replace(SMALL, rounds=1, candidates=12, epsilon=None)
    heard = {}

    class Asking:
        def votes(self, assign, bins):
            heard["assign"] = assign
            return torch.ones(bins, dtype=torch.float64)

    params = evolve_population(settings, Asking(), INPUTS, seed=0)
    images = PRIOR.render(params["theta"], params["y"], params["noise_seed"], INPUTS)
    assert torch.equal(heard["assign"](images, params["y"]), torch.arange(12))  # each finds itself
    crossed = heard["assign"](images, 1 - params["y"])
    assert torch.equal(params["y"][crossed], 1 - params["y"])


def test_only_noised_votes_reach_the_model():
    """Two hospitals that say the same get the same model, whoever their patients are."""
    settings = replace(SMALL, rounds=3)

    class Saying:
        def votes(self, assign, bins):
            return torch.linspace(-2, 2, bins, dtype=torch.float64)

    first, second = (evolve_population(settings, Saying(), INPUTS, seed=1) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_candidates_without_votes_have_no_weight_and_parents_that_stay_are_kept():
    settings = replace(SMALL, rounds=1, candidates=10, epsilon=None)

    class Saying:
        def votes(self, assign, bins):
            return torch.tensor([3.0, 1.0, -5.0, 1.0] + [0.0] * 6, dtype=torch.float64)

    first = evolve_population(settings, Saying(), INPUTS, seed=1)
    assert torch.allclose(first["weight"], torch.tensor([1.0, 0.5, 0.0, 0.5] + [0.0] * 6, dtype=torch.float64))
    now = evolution._Candidates(first["theta"], first["y"], first["noise_seed"])
    following = evolution._next_generation(settings, now, first["weight"], 0.1, torch.Generator().manual_seed(0))
    assert torch.equal(following.y, now.y)
    kept = [bool((following.theta == row).all(dim=1).any()) for row in now.theta]
    assert kept == [True, True, False, True] + [False] * 6
    assert len(following.theta.unique(dim=0)) == 10  # all others are children


def test_samples_are_pure_distinct_and_of_the_asked_class():
    params = evolve_population(replace(SMALL, rounds=1, epsilon=None), _private(_patients(6), 0.0), INPUTS, seed=0)
    y = torch.tensor([1] * 150 + [0])
    once, again, other = (draw_images(SMALL, INPUTS, params, y, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(once, again) and not torch.equal(once, other)
    assert len(once.flatten(1).unique(dim=0)) == 151
    assert draw_images(SMALL, INPUTS, params, y[:0], seed=0).shape == (0, *INPUTS)


def test_colour_pictures_larger_than_the_view_evolve_too():
    settings = replace(SMALL, prior="skin_lesion", rounds=2, candidates=8, public=40, epsilon=None)
    x = draw_pictures(PRIORS["skin_lesion"], torch.tensor([0, 1]), (3, 56, 64), 0)
    params = evolve_population(
        settings, _private(Rows(x, torch.tensor([0, 1]), torch.tensor([0, 1])), 0.0), (3, 56, 64), seed=0
    )
    assert draw_images(settings, (3, 56, 64), params, torch.tensor([1]), seed=0).shape == (1, 3, 56, 64)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5))
def test_reflection_stays_inside_and_leaves_what_is_inside(values):
    theta = torch.tensor(values)
    seen = reflect_into_unit(theta)
    assert bool(((seen >= 0) & (seen <= 1)).all())
    inside = (theta >= 0) & (theta <= 1)
    assert torch.allclose(seen[inside], theta[inside], atol=1e-6)
    assert torch.allclose(reflect_into_unit(-theta), seen, atol=1e-5) and torch.allclose(
        reflect_into_unit(2 - theta), seen, atol=1e-5
    )


def test_progress_is_told_and_settings_name_all_problems():
    told = []
    evolve_population(
        replace(SMALL, rounds=2, epsilon=None),
        _private(_patients(6), 0.0),
        INPUTS,
        seed=0,
        progress=lambda *a: told.append(a),
    )
    assert [(done, total) for done, total, _ in told] == [(0, 2), (1, 2), (2, 2)]
    with pytest.raises(ValueError, match=r"epsilon must be .*candidates must be .*prior must be one of .*'liver'"):
        PrivateEvolution(epsilon=-1.0, candidates=1, prior="liver")
