"""WGAN-GP through private data access: its gradients, its price, its memory, and that it learns."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from harmonize import ppwgan
from harmonize.game import add_noise, copy_players, load_module, make_critic_losses, make_fakes, make_players
from harmonize.networks import Critic, Generator
from harmonize.prior import PRIORS
from harmonize.wgan import WganGp, compute_true_cost, draw_images, list_events, pretrain_networks, train
from privacy.dp.access import Batch, Rows, open_access
from privacy.dp.accounting import compute_cost
from privacy.dp.events import NON_PRIVATE, Declared, compose_events
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Params

INPUTS = (1, 16, 16)
CPU = torch.device("cpu")
SMALL = WganGp(steps=6, critic_steps=2, batch=8, latent=4, width=2, prior_steps=4, prior_images=20, views=2, prior=None)
OPEN = replace(SMALL, name="wgan_gp", epsilon=None)
PAPER = WganGp(name="wgan_gp", variant="paper", epsilon=None, steps=6, latent=4, width=2)


def bars(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes of images: a bright bar that lies or stands somewhere."""
    g = torch.Generator().manual_seed(seed)
    y, place = torch.arange(n) % 2, torch.randint(4, 10, (n,), generator=g)
    x = torch.full((n, *INPUTS), -0.8) + 0.05 * torch.randn(n, *INPUTS, generator=g)
    for image, label, at in zip(x, y, place, strict=True):
        (image[0] if label else image[0].T)[at : at + 3] = 0.7
    return x.clamp(-1, 1), y


def table(patients: int = 6, each: int = 2) -> dict:
    x, y = bars(patients * each, 0)
    return {"train": Rows(x, y, torch.arange(patients * each) // each)}


def by_hand(critic: Critic, batch: Batch) -> torch.Tensor:
    """Equation 1, view by view, with the fake of the view's own class."""
    found = []
    for x, y, aux in zip(batch.x, batch.y, batch.aux, strict=True):
        both, alpha = aux[:-1].reshape(2, *INPUTS), aux[-1]
        fake = both[int(y)]
        between = (alpha * x + (1 - alpha) * fake)[None].requires_grad_()
        slope = torch.autograd.grad(critic(between, y[None]).sum(), between, create_graph=True)[0].norm()
        found.append(critic(fake[None], y[None])[0] - critic(x[None], y[None])[0] + 10 * (slope - 1) ** 2)
    return torch.stack(found)


@pytest.mark.parametrize("wrong", [{"clip": 1e-5}, {"clip": math.inf}, {"sampling": 1e-7}, {"gp_weight": math.inf}])
def test_what_private_access_would_refuse_is_refused_with_the_settings(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be in"):
        replace(SMALL, **wrong)


def test_a_start_needs_two_public_images():
    with pytest.raises(ValueError, match="prior_images must be above 1"):
        replace(SMALL, prior_images=1)


def game() -> tuple[Critic, torch.Tensor]:
    """A critic and aux (3 sets, 2 views) in float64."""
    own = make_players(4, INPUTS, 2, ema=0.9, start=None, seed=1, device=CPU)
    aux = make_fakes(own.generator, torch.Generator().manual_seed(2), batch=6, views=2, device=CPU)
    return own.critic.double(), aux.double()


def flat(gradient: Params) -> torch.Tensor:
    return torch.cat([part.flatten() for part in gradient.values()])


def test_each_patients_gradient_of_the_objective_is_that_of_a_loop_in_float64():
    critic, aux = game()
    x, y = torch.rand(3, 2, *INPUTS, dtype=torch.float64) * 2 - 1, torch.tensor([[0, 1], [1, 1], [0, 0]])
    views = [Batch(x[u], y[u], aux[u]) for u in range(3)]
    for patient, batch in zip(patient_gradients(critic, make_critic_losses(INPUTS, 10.0), views), views, strict=True):
        loss = by_hand(critic, batch).mean()
        slow = torch.autograd.grad(loss, list(critic.parameters()))
        for gradient, wanted in zip(patient.values(), slow, strict=True):
            assert float((gradient - wanted).abs().max()) < 1e-10


def test_a_private_gradient_without_noise_and_clip_is_the_mean_of_the_patients_and_both_accesses_take_one_aux():
    critic, aux = game()
    aux = aux[:1].expand(3, -1, -1)  # sets are drawn in secret; equal ones leave nothing to chance
    x, y = bars(6, 3)
    rows = Rows(x.double(), y, torch.arange(6) // 2)
    objective = make_critic_losses(INPUTS, 10.0)
    quiet = open_private({"train": rows}, Protection(clip=1e2, noise=0.0, sampling=1.0))
    plain = open_access({"train": rows}, batch=6, seed=0)
    private = quiet.gradient(critic, objective, quiet.draw(full=True), aux).gradient
    public = plain.gradient(critic, objective, plain.draw(full=True), aux).gradient
    assert float((flat(private) - flat(public)).abs().max()) < 1e-10, "patients with two rows each"
    wanted = torch.autograd.grad(
        by_hand(critic, Batch(rows.x, rows.y, aux.flatten(0, 1))).mean(), list(critic.parameters())
    )
    assert float((flat(public) - torch.cat([g.flatten() for g in wanted])).abs().max()) < 1e-10


def test_aux_has_a_fake_of_either_class_from_the_same_z_and_covers_a_batch():
    generator = Generator(4, INPUTS, 2)
    aux = make_fakes(generator, torch.Generator().manual_seed(7), batch=7, views=3, device=CPU)
    assert aux.shape == (3, 3, 2 * 256 + 1)
    rng = torch.Generator().manual_seed(7)
    z, alpha = torch.randn(9, 4, generator=rng), torch.rand(9, 1, generator=rng)
    one = generator(z, torch.ones(9, dtype=torch.long)).detach().flatten(1)
    assert torch.equal(aux.flatten(0, 1)[:, 256:512], one) and torch.equal(aux.flatten(0, 1)[:, 512:], alpha)
    assert bool(((alpha >= 0) & (alpha <= 1)).all())


def test_a_critic_with_a_buffer_is_refused_by_private_access():
    critic, aux = game()
    critic.register_buffer("memory", torch.zeros(1))
    access = open_private(table(), Protection(views=2))
    with pytest.raises(ValueError, match="keeps memory"):
        access.gradient(critic, make_critic_losses(INPUTS, 10.0), access.draw(), aux.float())


def test_the_generator_keeps_a_running_mean_of_itself():
    """The second implementation: e_1 = g_1, e_k = 0.7 e_(k-1) + 0.3 g_k, where ema 0 shows each g_k itself."""

    def made(steps: int, ema: float) -> Params:
        settings = replace(OPEN, steps=steps, ema=ema)
        return train(settings, open_access(table(), batch=4, seed=0), INPUTS, seed=3)

    mean = None
    for turn in range(1, 4):
        now = made(2 * turn, 0.0)
        mean = now if mean is None else {name: 0.7 * mean[name] + 0.3 * now[name] for name in now}
        found = made(2 * turn, 0.7)
        for name in found:
            if name.startswith("generator/"):
                assert torch.allclose(found[name], mean[name], atol=1e-6), name
            else:
                assert torch.equal(found[name], now[name]), "the mean is not what the critic plays against"


def test_at_plain_access_a_seed_decides_all_and_the_generator_starts_where_it_was_told_to():
    def made(seed: int, start: Params | None = None, steps: int = 6) -> Params:
        settings = replace(OPEN, steps=steps)
        return train(settings, open_access(table(), batch=4, seed=0), INPUTS, start=start, seed=seed)

    one = made(1)
    assert all(torch.equal(one[name], value) for name, value in made(1).items())
    assert not torch.equal(one["critic/score.weight"], made(2)["critic/score.weight"])
    first = made(1, one, 1)  # the generator has not moved after one step of the critic
    assert all(torch.equal(first[name], one[name]) for name in one if name.startswith("generator/"))
    assert not torch.equal(first["critic/score.weight"], one["critic/score.weight"])


def test_what_is_sampled_follows_from_the_arguments_alone_and_one_image_does_not_know_the_others():
    params = pretrain_networks(SMALL, INPUTS, seed=0)
    y = torch.arange(40) % 2
    torch.manual_seed(0)
    one = draw_images(SMALL, INPUTS, params, y, seed=5)
    torch.manual_seed(1)
    assert torch.equal(one, draw_images(SMALL, INPUTS, params, y, seed=5))
    assert not torch.equal(one, draw_images(SMALL, INPUTS, params, y, seed=6))
    other = y.clone()
    other[:20] = 1 - other[:20]
    assert torch.allclose(one[20:], draw_images(SMALL, INPUTS, params, other, seed=5)[20:], atol=1e-6)
    assert one.shape == (40, *INPUTS) and float(one.abs().max()) <= 1


def test_a_public_start_follows_from_its_arguments_and_saw_the_prior():
    settings = replace(SMALL, prior="prostate_adc")
    inputs = (1, 32, 32)
    told = []
    one = pretrain_networks(settings, inputs, seed=4, progress=lambda *what: told.append(what))
    two = pretrain_networks(settings, inputs, seed=4)
    raw = pretrain_networks(replace(settings, prior=None), inputs, seed=4)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert {name for name in one if not name.startswith("moments/")} == raw.keys()
    assert not any(
        torch.equal(one[f"{name}.weight"], raw[f"{name}.weight"]) for name in ("critic/score", "generator/read")
    )
    assert told == [(0, 4, "prior"), (4, 4, "prior"), (0, 1, "prior's critic"), (1, 1, "prior's critic")]


def test_the_generator_of_a_public_start_draws_the_picture_that_belongs_to_z():
    """As far as 200 steps go: nearer to its own picture than to another one, for most pictures it has not seen."""
    settings = replace(
        SMALL, prior="prostate_adc", latent=48, width=4, prior_steps=200, prior_images=400, prior_lr=4e-3
    )
    prior, y = PRIORS["prostate_adc"], torch.arange(40) % 2
    params = pretrain_networks(settings, INPUTS, seed=0)
    theta = torch.rand(40, prior.latent, generator=torch.Generator().manual_seed(9))
    z = torch.cat([torch.special.ndtri(theta), torch.zeros(40, 48 - prior.latent)], dim=1)
    made = load_module(Generator(48, INPUTS, 4), params, "generator")(z, y).detach().flatten(1)
    far = torch.cdist(made, prior.render(theta, y, torch.arange(40), INPUTS).flatten(1))
    rank = (far < far.diagonal()[:, None]).sum(dim=1)
    assert float(rank.float().median()) <= 5


def test_which_critic_learns_follows_from_what_is_promised():
    assert WganGp().head and WganGp(name="wgan_gp", epsilon=None, learns="head").head
    paper = WganGp(variant="paper")
    assert not any(one.head for one in (paper, WganGp(prior=None), WganGp(learns="whole"), OPEN))
    with pytest.raises(ValueError, match="head needs a prior for its features"):
        WganGp(learns="head", prior=None)


def test_what_is_told_may_stop_it():
    class Stopped(Exception): ...

    def told(done: int, total: int, what: str) -> None:
        if done:
            raise Stopped

    access = open_access(table(), batch=4, seed=0)
    with pytest.raises(Stopped):
        train(OPEN, access, INPUTS, seed=0, progress=told)
    assert len(access.events) < 2 * OPEN.steps


def test_what_private_access_books_is_what_was_planned_whatever_it_computes():
    noise = 1.3
    settings = replace(SMALL, steps=5, sampling=0.4)
    protection = Protection(sampling=0.4, views=2, clip=0.5, noise=noise, cut="c")
    for dry in (False, True):
        access = open_private(table(), protection, counts=Declared("counts"), dry=dry)
        params = train(settings, access, INPUTS, seed=0)
        assert compose_events(access.events) == compose_events(
            [Declared("counts"), *list_events(settings, noise, cut="c")]
        )
        assert compute_cost(access.events, 1e-5).epsilon == pytest.approx(compute_true_cost(settings, noise).epsilon)
        assert all(bool(value.isfinite().all()) for value in params.values())


def test_a_sample_without_any_patient_is_a_step_like_any_other():
    settings = replace(SMALL, steps=2)
    access = open_private(table(2), Protection(sampling=1e-6, views=2), source=random.Random(0).randbytes)
    before = copy_players(make_players(4, INPUTS, 2, ema=0.9, start=None, seed=0, device=CPU))
    after = train(settings, access, INPUTS, seed=0)
    assert not torch.equal(before["critic/score.weight"], after["critic/score.weight"])


def test_the_papers_variant_is_its_own_training_and_what_it_fixes_cannot_be_set():
    """Section III.C, equation 1: no public start or running mean, lr 1e-4, batch 24, n_d = 5, lambda = 10, c_g = 1."""
    for one in (WganGp(variant="paper"), WganGp(name="wgan_gp", variant="paper", epsilon=None)):
        assert (one.lr, one.batch, one.critic_steps, one.gp_weight, one.clip) == (1e-4, 24, 5, 10.0, 1.0)
        assert (one.prior, one.ema, one.learns, one.classes) == (None, 0.0, "whole", 0)
        assert replace(one, steps=7, width=4, latent=3) == replace(replace(one, latent=3, width=4), steps=7)
    assert WganGp(variant="paper", critic_steps=5, prior=None) == WganGp(variant="paper")
    with pytest.raises(ValueError, match=r"paper has learns whole, ema 0\.0, found head, 0\.5: remove learns, ema"):
        WganGp(variant="paper", learns="head", ema=0.5)
    assert WganGp(variant="paper", lr=0.5).lr == 0.5, "the paper's rate goes with the paper's steps"


def test_the_papers_networks_know_no_classes():
    settings = replace(PAPER, steps=5)
    x, y = bars(12, 0)
    of = {"train": Rows(x, y, torch.arange(12))}, {"train": Rows(x, 1 - y, torch.arange(12))}
    one, other = (train(settings, open_access(rows, batch=24, seed=0), INPUTS, seed=3) for rows in of)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert not any("of_class" in name for name in one) and one["generator/read.weight"].shape[1] == settings.latent
    y = torch.arange(6) % 2
    assert torch.equal(*(draw_images(settings, INPUTS, one, labels, seed=1) for labels in (y, 1 - y)))


def test_the_papers_steps_are_algorithm_1_of_gulrajani_by_hand():
    """Two steps of the critic and one of the generator, Adam with betas 0 and 0.9, in a loop of its own."""
    own = make_players(4, INPUTS, 2, ema=0.0, start=None, seed=3, device=CPU, classes=0)
    x, _ = bars(24, 0)
    rng = torch.Generator().manual_seed(3)
    rule = torch.optim.Adam(own.critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    making = torch.optim.Adam(own.generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    nothing = torch.zeros(24, dtype=torch.long)
    for _ in range(5):
        z, alpha = torch.randn(24, 4, generator=rng), torch.rand(24, 1, generator=rng).view(-1, 1, 1, 1)
        fake = own.generator(z, nothing).detach()
        between = (alpha * x + (1 - alpha) * fake).requires_grad_()
        slope = torch.autograd.grad(own.critic(between, nothing).sum(), between, create_graph=True)[0]
        penalty = (slope.flatten(1).norm(dim=1) - 1).square()
        rule.zero_grad()
        (own.critic(fake, nothing) - own.critic(x, nothing) + 10 * penalty).mean().backward()
        rule.step()
    making.zero_grad()
    z = torch.randn(24, 4, generator=rng)
    (-own.critic(own.generator(z, nothing), nothing).mean()).backward()
    making.step()

    class All:
        """Data access that draws every image, in order."""

        def __init__(self):
            self.inner = open_access({"train": Rows(x, nothing, nothing)}, batch=24, seed=0)
            self.device = CPU

        def draw(self):
            return self.inner.draw(full=True)

        def gradient(self, *asked):
            return self.inner.gradient(*asked)

    found = train(replace(PAPER, steps=5), All(), INPUTS, seed=3)
    for name, value in {**own.generator.state_dict(prefix="generator/")}.items():
        assert torch.allclose(found[name], value, atol=2e-6), name
    for name, value in own.critic.state_dict(prefix="critic/").items():
        assert torch.allclose(found[name], value, atol=2e-6), name


def test_noise_as_printed_is_added_to_every_coordinate_of_the_mean_gradient_and_is_no_guarantee():
    settings = replace(PAPER, epsilon=10.0)
    access = open_access(table(), batch=24, seed=0)
    assert settings.noise_on(access) == pytest.approx(2 * math.sqrt(5 * math.log(1e5)) / 10), "q = 1: 12 images"
    assert PAPER.noise_on(access) == WganGp(variant="paper").noise_on(access) == 0.0
    zero = {"a": torch.zeros(20000), "b": torch.zeros(3, 5)}
    made = add_noise(zero, 0.5, torch.Generator().manual_seed(0))
    assert made["b"].shape == (3, 5) and float(made["a"].std()) == pytest.approx(0.5, rel=0.02)
    assert not settings.private and compose_events(access.events) == NON_PRIVATE
    plain, loud = (
        train(replace(one, steps=5), open_access(table(), batch=24, seed=0), INPUTS, seed=3)
        for one in (PAPER, settings)
    )
    assert not torch.allclose(plain["critic/score.weight"], loud["critic/score.weight"], atol=1e-5)


def test_the_papers_noise_is_equation_2_and_what_it_buys_is_another_number():
    """The figures of one record = one image, 24 of 1008 a step, 100 epochs: claimed is epsilon 10."""
    settings = replace(WganGp(variant="paper"), sampling=24 / 1008, steps=4200)
    claimed = {"epsilon": 10.0, "delta": 1e-5}
    assert ppwgan.noise_sigma(24 / 1008, **claimed) == pytest.approx(
        2 * (24 / 1008) * math.sqrt(5 * math.log(1e5)) / 10
    )
    assert ppwgan.noise_sigma(24 / 1008, **claimed) == pytest.approx(0.0361, abs=1e-4)
    noise = ppwgan.noise_multiplier(24 / 1008, 24, **claimed)
    assert noise == pytest.approx(0.867, abs=1e-3)
    assert compute_true_cost(settings, noise).epsilon == pytest.approx(14.1, abs=0.15)
    assert compute_true_cost(replace(settings, steps=5), noise).epsilon == pytest.approx(1.22, abs=0.02)
    with pytest.raises(ValueError, match=r"q must be in \(0, 1\] and batch above 0, found 1.5"):
        ppwgan.noise_multiplier(1.5, 9, **claimed)


@pytest.mark.parametrize(("patients", "images"), [(1, 24), (10, 20), (24, 24), (48, 24), (500, 24)])
def test_a_step_of_the_papers_takes_about_24_images_however_many_patients_there_are(patients, images):
    sampling, views = ppwgan.plan_draws(patients)
    assert sampling * patients * views == pytest.approx(images) and 0 < sampling <= 1


def test_settings_that_promise_what_they_do_not_keep_are_refused_together():
    with pytest.raises(
        ValueError, match=r"steps must be .*0; delta must .*2.0; epsilon must be a number above 0 .*None"
    ):
        WganGp(steps=0, delta=2.0, epsilon=None)
    with pytest.raises(ValueError, match=r"epsilon must be null for wgan_gp, found 10\.0: it adds no noise"):
        WganGp(name="wgan_gp")
    with pytest.raises(ValueError, match=r"epsilon must be a number above 0 .*found -1"):
        WganGp(name="wgan_gp", variant="paper", epsilon=-1.0)
    with pytest.raises(ValueError, match=r"prior must be null or one of .*found moon"):
        WganGp(prior="moon")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="Unexpected keyword argument"):
        TypeAdapter(WganGp).validate_python({"name": "dp_wgan_gp", "epsilom": 3})
    assert WganGp().private and not OPEN.private


def test_parameters_of_other_networks_are_refused_by_name():
    params = {
        **pretrain_networks(SMALL, INPUTS, seed=0),
        "critic/score.weight": torch.zeros(1, 3),
        "critic/spare": torch.ones(1),
    }
    del params["critic/score.bias"]
    with pytest.raises(
        ValueError, match=r"another critic: score.bias is missing; spare has no place; score.weight has"
    ):
        train(replace(SMALL), open_access(table(), batch=4, seed=0), INPUTS, start=params, seed=0)
    with pytest.raises(ValueError, match="needs classes and fakes"):
        make_critic_losses(INPUTS, 10.0)(
            nn.Identity(), Batch(torch.zeros(1, *INPUTS), torch.zeros(1, dtype=torch.long))
        )
    assert isinstance(load_module(Generator(4, INPUTS, 2), params, "generator"), Generator)


def sliced(a: torch.Tensor, b: torch.Tensor) -> float:
    """Sliced Wasserstein distance of equally many images."""
    directions = torch.nn.functional.normalize(torch.randn(256, 64, generator=torch.Generator().manual_seed(0)), dim=0)
    one, two = ((images.flatten(1) @ directions).sort(dim=0).values for images in (a, b))
    return float((one - two).abs().mean())


def test_it_learns_what_each_class_looks_like():
    settings = replace(OPEN, steps=160, critic_steps=2, batch=16, latent=8, width=8, lr=2e-3, ema=0.8)
    x, y = bars(128, 1)
    access = open_access({"train": Rows(x, y, torch.arange(128))}, batch=16, seed=0)
    start = pretrain_networks(settings, INPUTS, seed=0)
    params = train(settings, access, INPUTS, start=start, seed=0)
    real, labels = bars(256, 2)
    far, near = (sliced(draw_images(settings, INPUTS, each, labels, seed=1), real) for each in (start, params))
    assert near < 0.45 * far
    made = draw_images(settings, INPUTS, params, labels, seed=1)
    for label in (0, 1):
        own, other = (sliced(made[labels == label], real[labels == which]) for which in (label, 1 - label))
        assert own < 0.7 * other
