"""PerFCL: FENDA with two contrasts."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.models.mlp import Mlp
from federation.moon import contrastive_loss
from federation.rehearsal import initial_parameters, rehearse_events, rehearse_reply
from federation.task import Task
from personalize.fenda import Fenda
from personalize.perfcl import PerFCL
from privacy.dp.events import compose_events
from privacy.dp.protection import Protection

ADAM = Work(optimizer="adam", lr=0.02, batch=5)
ROUNDS = 4


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize(
    ("task", "sites"),
    [(Task(Mlp(hidden=(6, 5), dropout=0.4), (4,), 2), reference.TABLES), (reference.CNN, reference.IMAGES)],
)
def test_without_its_contrasts_it_is_fenda(task, sites, weights):
    schedule = {"participation": reference.PARTICIPATION, "rounds": 5}
    perfcl, ours = reference.trained(
        PerFCL(mu=0.0, gamma=0.0, weights=weights), sites, task, ADAM, reference.LOST_OF_ALL, **schedule
    )
    fenda, theirs = reference.trained(Fenda(weights=weights), sites, task, ADAM, reference.LOST_OF_ALL, **schedule)
    assert perfcl.losses == fenda.losses and testbed.are_equal(perfcl.state.tensors, fenda.state.tensors)
    assert all(
        testbed.are_equal(testbed.newest_model(ours[site]), testbed.newest_model(theirs[site])) for site in sites
    )


def test_the_contrast_by_hand():
    z, right, up = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert float(contrastive_loss(z, right, up, 0.5)) == pytest.approx(-math.log(math.e**2 / (math.e**2 + 1)))
    assert float(contrastive_loss(z, up, right, 1.0)) == pytest.approx(-math.log(1 / (math.e + 1)))
    assert float(contrastive_loss(z, up, up, 0.1)) == pytest.approx(math.log(2))


def test_features_that_are_all_zero_have_finite_gradients():
    """Dropout and ReLU make such features on small networks."""
    weight = torch.zeros(3, 2, requires_grad=True)
    z = torch.relu(torch.ones(4, 2) @ weight.T)
    (gradient,) = torch.autograd.grad(contrastive_loss(z, torch.ones(4, 3), torch.zeros(4, 3), 0.5).sum(), weight)
    assert bool(gradient.isfinite().all())


def slow_contrast(z, positive, negative, temperature):
    unit = [v / v.norm(dim=1, keepdim=True) for v in (z, positive, negative)]
    near = torch.exp((unit[0] * unit[1]).sum(1) / temperature)
    far = torch.exp((unit[0] * unit[2]).sum(1) / temperature)
    return -torch.log(near / (near + far))


@pytest.mark.parametrize(
    ("mu", "gamma", "temperature", "lost"),
    [
        (0.7, 2.0, 0.5, frozenset()),
        (0.7, 2.0, 0.5, reference.LOST_OF_ALL),
        (3.0, 0.0, 0.3, reference.LOST_OF_ALL),
        (0.0, 4.0, 1.0, reference.LOST_OF_ALL),
    ],
)
def test_it_is_a_slow_loop_with_absent_sites_and_lost_replies(mu, gamma, temperature, lost):
    algorithm = PerFCL(mu=mu, gamma=gamma, temperature=temperature)
    _, crew = reference.trained(
        algorithm, reference.IMAGES, reference.CNN, reference.SGD, lost, participation=reference.PARTICIPATION
    )
    initial = initial_parameters(algorithm, reference.CNN, seed=1)

    def fresh(side):
        net = reference.CNN.network()
        net.load_state_dict(reference.part(initial, side), strict=False)
        return net

    shared, head = fresh("shared"), torch.nn.Linear(32, 2)
    head.load_state_dict(reference.part(initial, "head"))
    local = {site: fresh("local") for site in reference.IMAGES}
    heads = {site: copy.deepcopy(head) for site in reference.IMAGES}
    own: dict[str, torch.nn.Module] = {}
    for r in range(1, ROUNDS + 1):
        came, sizes = [], []
        for site in reference.present(r, lost):
            rows = reference.IMAGES[site]["train"]
            nets = w, w_i, theta = tuple(copy.deepcopy(net).train() for net in (shared, local[site], heads[site]))
            params = [p for net in nets for p in net.parameters()]
            for x, y in reference.batches(rows, r, site):
                z, z_i = w(x).features, w_i(x).features
                loss = functional.cross_entropy(theta(torch.cat([z, z_i], dim=1)), y)
                if site in own:
                    frozen = [copy.deepcopy(n).eval()(x).features.detach() for n in (shared, own[site], local[site])]
                    loss = loss + mu * slow_contrast(z, frozen[0], frozen[1], temperature).mean()
                    loss = loss + gamma * slow_contrast(z_i, frozen[2], frozen[0], temperature).mean()
                grads = torch.autograd.grad(loss, params, allow_unused=True)
                with torch.no_grad():
                    for p, g in zip(params, grads, strict=True):
                        p -= torch.zeros_like(p) if g is None else 0.05 * g
            local[site], heads[site], own[site] = w_i, theta, w
            came.append(w)
            sizes.append(len(rows.y))
        shared = reference.averaged(came, sizes)
    for site in reference.IMAGES:
        final = testbed.newest_model(crew[site])
        for name, net in (("shared", shared), ("local", local[site]), ("head", heads[site])):
            for key, value in reference.part(final, name).items():
                assert torch.allclose(value.float(), net.state_dict()[key].float(), atol=5e-5), (site, name, key)


def test_the_contrasts_change_what_is_learnt_from_the_second_round_on():
    for rounds, same in ((1, True), (2, False)):
        _, plain = reference.trained(Fenda(), reference.TABLES, testbed.make_task(), ADAM, rounds=rounds)
        _, drawn = reference.trained(PerFCL(), reference.TABLES, testbed.make_task(), ADAM, rounds=rounds)
        assert all(
            testbed.are_equal(testbed.newest_model(plain[s]), testbed.newest_model(drawn[s])) == same
            for s in reference.TABLES
        )


def test_a_site_sees_its_contrasts_round_by_round_and_nobody_else_does():
    outcome, crew = reference.trained(PerFCL(), reference.TABLES, testbed.make_task(), ADAM)
    notes = load_newest_memory(crew["a"].disk).facts["notes"]
    assert notes["1"] == {} and set(notes["4"]) == {"global_contrast", "local_contrast"}
    assert all(0 < value < 5 for value in notes["4"].values())
    reply = rehearse_reply(
        PerFCL(), testbed.make_task(), ADAM, initial_parameters(PerFCL(), testbed.make_task(), seed=1)
    )
    assert set(reply.facts["algorithm"]) == {"n"} and all(
        ".".join(n.split(".")[:1]) == "model/shared" for n in reply.tensors
    )
    assert "previous" not in {name.split("/")[0] for name in outcome.state.tensors}


@pytest.mark.usefixtures("doubles")
def test_private_training_without_noise_and_clipping_is_plain_training():
    sites = {"a": reference.alone(1), "b": reference.alone(2, 0.7)}
    quiet = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, cut="c")
    work = Work(optimizer="adam", lr=0.02, batch=24, epochs=2)
    _, plain = reference.trained(PerFCL(), sites, testbed.make_task(), work)
    _, private = reference.trained(PerFCL(), sites, testbed.make_task(), work, protection=quiet)
    assert all(testbed.are_close(testbed.newest_model(plain[s]), testbed.newest_model(private[s]), 1e-9) for s in sites)
    assert load_newest_memory(private["a"].disk).facts["notes"]["4"] == {}, (
        "the loss is not told, and so is nothing beside it"
    )


@pytest.mark.usefixtures("doubles")
def test_what_privacy_costs_is_the_same_every_round():
    noised = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, cut="c")
    work = Work(optimizer="adam", lr=0.02, batch=24, epochs=2)
    _, crew = reference.trained(
        PerFCL(), {"a": reference.alone(1), "b": reference.alone(2)}, testbed.make_task(), work, protection=noised
    )
    initial = initial_parameters(PerFCL(), testbed.make_task(), seed=0)
    seen = rehearse_events(PerFCL(), testbed.make_task(), work, initial, noised)
    wanted = [seen.introduction, *[seen.training] * ROUNDS, *[seen.validation] * ROUNDS]
    assert all(compose_events(hospital.events) == compose_events(wanted) for hospital in crew.values())


def test_wrong_settings_are_refused_all_at_once():
    with pytest.raises(ValueError, match=r"mu must be >= 0, found -1; gamma .* -2; temperature must be > 0, found 0"):
        PerFCL(mu=-1, gamma=-2, temperature=0)
    task = testbed.make_task(hidden=())
    (text,) = PerFCL().complaints(PerFCL().network(task), ADAM, False)
    assert "perfcl" in text and "no parameter" in text
