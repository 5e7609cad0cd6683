"""A prior fitted to noised means: it comes nearer to patients, stays as it is without them, and costs its epsilon."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harmonize import fitted_prior
from harmonize.distances import frechet
from harmonize.embedding import compute_basis, project_images
from harmonize.fitted_prior import LOOKS, FittedPrior, Looked, draw_images, features_with_products, fit, noise_of
from harmonize.prior import PRIORS, Prior, draw_pictures
from harmonize.public_features import compute_features, make_view
from privacy.dp.access import Gradient, Rows, Sample, open_access
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Declared, Gaussian
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

INPUTS = (1, 16, 16)
PRIOR = PRIORS["prostate_adc"]
SMALL = FittedPrior(pictures=300, squared=6)
Y = torch.arange(120) % 2


@pytest.fixture(autouse=True)
def few_public_pictures(monkeypatch):
    monkeypatch.setattr(fitted_prior, "PUBLIC", 200)


def _patients(n=40, each=3):
    """A hospital in one corner of what the prior can draw."""
    generator = torch.Generator().manual_seed(11)
    theta = torch.rand(n * each, PRIOR.latent, generator=generator) * 0.3 + 0.6
    y = torch.arange(n * each) % 2
    x = PRIOR.render(theta, y, torch.randint(2**62, (n * each,), generator=generator), INPUTS)
    return Rows(x, y, torch.arange(n).repeat_interleave(each))


def _private(rows, noise, seed=0, dry=False):
    protection = Protection(clip=1.0, sampling=1.0, noise=noise, cut="c")
    counts = Declared("counts")
    return open_private({"train": rows}, protection, counts=counts, source=random.Random(seed).randbytes, dry=dry)


def _distance(images, rows):
    public = compute_basis(draw_pictures(PRIOR, torch.arange(200) % 2, INPUTS, 99), 20)
    return frechet(project_images(public, images), project_images(public, rows.x))


@pytest.mark.parametrize("epsilon", [None, 10.0])
def test_the_prior_moves_towards_the_patients(epsilon):
    rows, noise = _patients(), 0.0 if epsilon is None else noise_of(epsilon, 1e-5)
    params = fit(replace(SMALL, epsilon=epsilon), _private(rows, noise), INPUTS, seed=0)
    before = _distance(draw_pictures(PRIOR, Y, INPUTS, 5), rows)
    after = _distance(draw_images(SMALL, INPUTS, params, Y, seed=5), rows)
    assert after < 0.5 * before
    assert float(params["mean"].mean()) > 0.1, "the corner is above the middle of every range"
    assert float(params["spread"].mean()) < 0, "and narrower than the prior"


def test_both_accesses_tell_the_mean_over_patients_where_nothing_is_cut_and_there_is_no_noise():
    rows, view = _patients(), make_view(PRIOR, INPUTS, 60, 10, 1.0, seed=0)
    features = features_with_products(view, 3, rows.x).double()
    centre = features[0]
    module = Looked(view, 3, centre.float(), 100.0).eval()
    for access in (open_access({"train": rows}, batch=8, seed=0), _private(rows, 0.0)):
        mean, deviation = fitted_prior._noised_mean(access, module, 2)
        assert deviation == 0
        assert torch.allclose(centre + 100 * mean, features.mean(dim=0), atol=1e-4)


def test_no_patient_says_more_than_one_whatever_their_images_are():
    """A patient far from the centre, with many images, moves the mean by one over the number of patients at most."""
    rows, view = _patients(10, 1), make_view(PRIOR, INPUTS, 60, 10, 1.0, seed=0)
    module = Looked(view, 3, features_with_products(view, 3, rows.x).mean(dim=0), 1e-3).eval()
    mean, _ = fitted_prior._noised_mean(_private(rows, 0.0), module, 1)
    away = rows.x[:1].repeat(30, 1, 1, 1).fill_(1.0)
    more = Rows(
        torch.cat([rows.x[1:], away]),
        torch.cat([rows.y[1:], rows.y[:1].repeat(30)]),
        torch.cat([rows.patient[1:], rows.patient[:1].repeat(30)]),
    )
    changed, _ = fitted_prior._noised_mean(_private(more, 0.0), module, 1)
    assert float((changed - mean).norm()) <= 2 / 10 + 1e-6
    assert float(mean.norm()) <= 1 + 1e-6


def test_patients_who_are_hardly_heard_leave_the_prior_nearly_as_it_is():
    access = _private(_patients(12), noise_of(1e-2, 1e-5))
    params = fit(replace(SMALL, epsilon=1e-2, pictures=1000), access, INPUTS, seed=0)
    assert float(params["mean"].abs().mean()) < 0.1 and float(params["spread"].abs().mean()) < 0.1
    x = draw_images(SMALL, INPUTS, params, Y, seed=0)
    assert x.shape == (120, *INPUTS) and bool(x.isfinite().all()) and float(x.abs().max()) <= 1


@given(st.floats(0.05, 30), st.sampled_from([1e-6, 1e-5, 1e-3]))
def test_looks_cost_together_what_was_asked(epsilon, delta):
    spent = compute_cost([Gaussian(noise_of(epsilon, delta))] * sum(LOOKS), delta).epsilon
    assert 0.99 * epsilon < spent <= epsilon * (1 + 1e-3)


def test_what_is_booked_costs_what_was_asked_and_a_dry_run_books_the_same():
    settings, noise = replace(SMALL, epsilon=3.0, pictures=16), noise_of(3.0, 1e-5)
    wet, dry = (_private(_patients(6), noise, dry=dry) for dry in (False, True))
    for access in (wet, dry):
        fit(settings, access, INPUTS, seed=0)
    assert compute_cost(wet.events, settings.delta).epsilon == pytest.approx(3.0, rel=0.01)
    assert wet.events == dry.events


def test_only_noised_means_reach_the_model():
    """Two hospitals that say the same get the same prior, whoever their patients are."""

    class Saying:
        device = torch.device("cpu")

        def size(self, split):
            return 20

        def draw(self, *, full=False):
            assert full
            return Sample(0)

        def gradient(self, module, objective, draw):
            weight = module.weight.weight
            return Gradient({"weight.weight": torch.linspace(-0.1, 0.1, weight.numel())[None]}, torch.zeros(1), 0.05)

    first, second = (fit(replace(SMALL, pictures=50), Saying(), INPUTS, seed=1) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_products_have_the_norm_of_their_whole_matrix():
    view = make_view(PRIOR, INPUTS, 60, 10, 1.0, seed=0)
    x = draw_pictures(PRIOR, torch.arange(8) % 2, INPUTS, 1)
    first = compute_features(view, x)[:, :4]
    found = features_with_products(view, 4, x)[:, compute_features(view, x).shape[1] :]
    outer = torch.einsum("ni,nj->nij", first, first)
    assert torch.allclose(found.norm(dim=1), outer.flatten(1).norm(dim=1), atol=1e-6)
    assert features_with_products(view, 0, x).shape == compute_features(view, x).shape


def test_a_step_of_gauss_newton_solves_a_linear_drawing_at_once():
    """Where pictures are linear in e, derivatives by Stein's identity are those of calculus, up to chance."""
    a = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -0.5], [0.3, 0.0, 1.0], [0.2, 0.2, 0.2]])
    true, settings = torch.tensor([0.3, -0.2, 0.1]), FittedPrior(pictures=40_000, of_mean=10.0, of_spread=1e-3)

    def render(theta, y, seeds, inputs):
        return torch.special.ndtri(theta.double().clamp(1e-9, 1 - 1e-9)).float()[:, :, None, None]

    def features(images):
        return (images[:, :, 0, 0] @ a.T).double()

    prior, told = Prior("prostate_adc", 3, render, render, 1, {}), fitted_prior._NoisedMean((a @ true).double(), 1e-6)
    start = fitted_prior._Family(torch.zeros(3), torch.zeros(3))
    random = torch.Generator().manual_seed(0)
    here = fitted_prior._describe_family(prior, features, start, settings, INPUTS, random)
    assert torch.allclose(here.slope[:, :3].float(), a, atol=0.03)
    found = fitted_prior._gauss_newton_step(settings, here, told, 0.0)
    assert torch.allclose(found.mean, true, atol=0.03) and float(found.spread.abs().max()) < 0.01
    there = fitted_prior._describe_family(prior, features, found, settings, INPUTS, random)
    before, after = (fitted_prior._objective_value(settings, one, told) for one in (here, there))
    assert after < 0.05 * before


@pytest.mark.parametrize("pictures", [30, 300])
def test_it_ends_no_farther_from_what_was_told_than_it_began(pictures, monkeypatch):
    """Steps that go uphill are taken back, however few pictures the derivatives are from."""
    ends = []
    judged = fitted_prior._objective_value

    def heard(settings, at, told):
        ends.append((told, judged(settings, at, told)))
        return ends[-1][1]

    monkeypatch.setattr(fitted_prior, "_objective_value", heard)
    fit(replace(SMALL, pictures=pictures), open_access({"train": _patients()}, batch=8, seed=0), INPUTS, seed=0)
    last = [value for who, value in ends if who is ends[-1][0]]
    kept = last[1::2]  # of what was tried, then of what is kept, in turn
    assert len(kept) == fitted_prior.STEPS[-1] and kept == sorted(kept, reverse=True)
