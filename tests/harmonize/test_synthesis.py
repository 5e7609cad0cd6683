"""One setting, three ways: what each makes, and that what it books is what was planned and asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter

from harmonize import evolution, ppwgan, wgan
from harmonize.evolution import PrivateEvolution
from harmonize.fitted_prior import FittedPrior
from harmonize.synthesis import AnySynthesis, Real, draw_candidates, draw_size, list_events, make_protection, synthesize
from harmonize.wgan import WganGp
from privacy.dp.access import Rows, open_access
from privacy.dp.accounting import compute_cost
from privacy.dp.events import NON_PRIVATE, Declared, compose_events
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

INPUTS = (1, 32, 32)
GAN = WganGp(steps=3, critic_steps=1, batch=4, latent=3, width=2, views=2, prior=None, sampling=0.5, epsilon=3.0)
VOTES = PrivateEvolution(epsilon=2.0, candidates=8, rounds=2, public=40, components=4)
FIT = FittedPrior(epsilon=2.0, pictures=16, squared=2)
HEAD = replace(GAN, prior="prostate_adc", prior_steps=4, prior_images=20, prior_components=3, looks=2, learns="head")
WAYS = {"dp_wgan_gp": GAN, "head": HEAD, "private_evolution": VOTES, "fitted_prior": FIT, "real": Real()}


def rows(patients: int = 6) -> Rows:
    g = torch.Generator().manual_seed(0)
    n = 2 * patients
    return Rows(torch.rand(n, *INPUTS, generator=g) * 2 - 1, torch.arange(n) % 2, torch.arange(n) // 2)


@pytest.mark.repeats(4)
@pytest.mark.parametrize("way", ["dp_wgan_gp", "head", "private_evolution", "fitted_prior"])
@pytest.mark.parametrize("dry", [True, False])
def test_what_is_booked_was_planned_and_costs_what_was_asked_for(way, dry):
    settings = WAYS[way]
    noised = make_protection(settings, patients=6, cut="c")
    access = open_private({"train": rows()}, noised, counts=Declared("counts"), dry=dry)
    synthesize(settings, access, INPUTS, seed=0)
    planned = list_events(settings, noised)
    assert {*_parts(compose_events(access.events))} - {Declared("counts")} == {*_parts(compose_events(planned))}
    spent = compute_cost(access.events, settings.delta).epsilon
    assert 0.998 * settings.epsilon <= spent <= settings.epsilon
    assert spent == compute_cost(planned, settings.delta).epsilon


def _parts(event):
    return getattr(event, "events", (event,))


def test_the_epsilon_of_the_default_is_kept_and_its_noise_is_known():
    noised = make_protection(WganGp(), patients=48)
    assert 9.99 <= wgan.compute_true_cost(WganGp(), noised.noise).epsilon <= 10
    assert (noised.clip, noised.sampling) == (1.0, 1.0) and noised.noise == pytest.approx(1.0, abs=0.02)
    assert make_protection(WganGp(epsilon=1.0), patients=48).noise > 4 * noised.noise
    whole = make_protection(WganGp(learns="whole"), patients=48)
    assert (whole.views, whole.sampling) == (4, pytest.approx(1 / 3)) and whole.noise > 3 * noised.noise
    assert 9.99 <= wgan.compute_true_cost(WganGp(learns="whole"), whole.noise).epsilon <= 10


def test_the_papers_noise_hangs_on_how_many_patients_there_are():
    settings = WganGp(variant="paper", steps=100)
    few, many = (make_protection(settings, patients=n) for n in (40, 80))
    assert few.noise == pytest.approx(2 * many.noise), "24 patients a step in either case, so q is half"
    assert few.noise == pytest.approx(ppwgan.noise_multiplier(0.6, 24, epsilon=10, delta=1e-5))
    assert (few.clip, few.sampling, few.views, many.sampling) == (1, 0.6, 1, 0.3)
    assert compute_cost(list_events(settings, few), 1e-5) == wgan.compute_true_cost(settings.at(40), few.noise)


def test_what_the_paper_trains_privately_is_booked_as_planned():
    settings = WganGp(variant="paper", steps=2, latent=3, width=2).at(6)
    noised = make_protection(settings, patients=6, cut="c")
    access = open_private({"train": rows()}, noised, counts=Declared("counts"))
    synthesize(settings, access, INPUTS, seed=0)
    assert compute_cost(access.events, 1e-5).epsilon == pytest.approx(
        wgan.compute_true_cost(settings, noised.noise).epsilon
    )
    assert (noised.sampling, noised.views) == (1.0, 4)


@pytest.mark.parametrize("way", WAYS)
def test_candidates_have_the_asked_classes_and_follow_from_their_arguments(way):
    settings = WAYS[way]
    changed = {"name": "wgan_gp"} if isinstance(settings, WganGp) else {}
    learnt = settings if way == "real" else replace(settings, epsilon=None, **changed)
    access = open_access({"train": rows()}, batch=draw_size(learnt), seed=0)
    params = synthesize(learnt, access, INPUTS, seed=1)
    assert compose_events(access.events) == NON_PRIVATE
    y = torch.tensor([1, 0, 0, 1, 1, 0, 1])
    one, same, other = (draw_candidates(learnt, INPUTS, params, y, seed=seed) for seed in (3, 3, 4))
    assert one.shape == (7, *INPUTS) and float(one.abs().max()) <= 1
    assert torch.equal(one, same) and not torch.equal(one, other)
    if way == "private_evolution":
        assert torch.equal(one, evolution.draw_images(learnt, INPUTS, params, y, seed=3))


def test_real_images_are_those_of_their_class_each_once_before_any_comes_again():
    own = rows()
    params = synthesize(Real(), open_access({"train": own}, batch=1, seed=0), INPUTS, seed=0)
    y = torch.tensor([0, 1] * 12)
    found = draw_candidates(Real(), INPUTS, params, y, seed=0)
    which = [next(i for i in range(12) if torch.equal(image, own.x[i])) for image in found]
    assert torch.equal(own.y[which], y)
    for label in (0, 1):
        mine = [i for i, one in zip(which, y, strict=True) if one == label]
        assert len(set(mine[:6])) == len(set(mine[6:])) == 6
    lonely = {"images": own.x[:1], "labels": own.y[:1]}
    with pytest.raises(ValueError, match="no image of class 1"):
        draw_candidates(Real(), INPUTS, lonely, y, seed=0)


def test_what_has_no_guarantee_has_no_private_access_and_no_price():
    with pytest.raises(ValueError, match="open plain data access"):
        make_protection(WganGp(name="wgan_gp", epsilon=None), patients=5)
    with pytest.raises(ValueError, match="has no private data access"):
        make_protection(Real(), patients=5)
    with pytest.raises(ValueError, match="has no known cost"):
        list_events(Real(), Protection())
    with pytest.raises(ValueError, match="has no known cost"):
        list_events(VOTES, Protection())
    with pytest.raises(ValueError, match="simulations only"):
        synthesize(Real(), open_private({"train": rows()}, Protection()), INPUTS, seed=0)


def test_a_setting_is_told_apart_by_its_name():
    read = TypeAdapter(AnySynthesis)
    for name, kind in {
        "dp_wgan_gp": WganGp,
        "wgan_gp": WganGp,
        "fitted_prior": FittedPrior,
        "private_evolution": PrivateEvolution,
        "real": Real,
    }.items():
        given = {"name": name, "epsilon": None} if name == "wgan_gp" else {"name": name}
        found = read.validate_python(given)
        assert type(found) is kind and found.name == name
        assert found.private == (name in ("dp_wgan_gp", "fitted_prior", "private_evolution"))
