"""MOON: FedAvg at mu = 0, equation 3 in a slow loop over several rounds, and when there is nothing to contrast with."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import replace

import pytest
import torch
from laws.test_oracles import PARTICIPATION, ROUNDS, SITES, TASK, WORK, agree, asked, averaged, start

import reference
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.moon import Moon, copy_frozen, feature_cosine
from federation.parameters import prefixed, read_parameters, section
from federation.task import Output, Task
from privacy.dp.access import Batch, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message

ADAM = Work(optimizer="adam", lr=0.02, batch=5, epochs=2)


def run(algorithm, sites, task, work, lost=frozenset()):
    return reference.trained(algorithm, sites, task, work, lost, rounds=ROUNDS, participation=PARTICIPATION)


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("model", [Mlp(hidden=(6, 5), dropout=0.4), TASK.model], ids=["dropout", "batch norm"])
def test_without_contrast_it_is_fedavg_bit_for_bit(model, weights):
    images = model is TASK.model
    task, sites = (TASK, SITES) if images else (Task(model, (4,), 2), reference.TABLES)
    plain, _ = run(FedAvg(weights=weights), sites, task, ADAM)
    moon, _ = run(Moon(mu=0.0, weights=weights), sites, task, ADAM)
    assert testbed.are_equal(plain.state.tensors, moon.state.tensors)
    other, _ = run(Moon(mu=5.0, weights=weights), sites, task, ADAM)
    assert not testbed.are_close(plain.state.tensors, other.state.tensors, 1e-4)


def contrasted(own, glob, previous, x, y, mu, temperature):
    """Equation 3 as a cross-entropy over one positive and one negative, with cosines written out."""

    def cos(a, b):
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    output = own(x)
    loss = torch.nn.functional.cross_entropy(output.logits, y)
    if previous is None:
        return loss
    logits = torch.stack([cos(output.features, m(x).features) for m in (glob, previous)], dim=1) / temperature
    return loss + mu * torch.nn.functional.cross_entropy(logits, torch.zeros(len(y), dtype=torch.long))


@pytest.mark.parametrize("lost", [frozenset(), frozenset({(1, "a"), (2, "b"), (3, "c")})], ids=["", "lost replies"])
def test_several_rounds_on_a_network_with_batch_norm(lost):
    """The negative is the model that this site sent last and that was merged; both frozen networks stay in eval."""
    mu, temperature, lr = 2.0, 0.5, 0.05
    model, previous, contrasts = start(), {}, 0
    for r in range(1, ROUNDS + 1):
        present = [site for site in asked(r) if (r, site) not in lost]
        locals_ = []
        for site in present:
            own, glob = copy.deepcopy(model).train(), copy.deepcopy(model).eval()
            for x, y in reference.batches(SITES[site]["train"], r, site, WORK):
                loss = contrasted(own, glob, previous.get(site), x, y, mu, temperature)
                grads = torch.autograd.grad(loss, list(own.parameters()))
                with torch.no_grad():
                    for p, g in zip(own.parameters(), grads, strict=True):
                        p -= lr * g
            contrasts += site in previous
            previous[site] = copy.deepcopy(own).eval()
            locals_.append(own)
        model = averaged(locals_, [len(SITES[site]["train"].y) for site in present])
    assert contrasts >= 2, "or this proves nothing"
    outcome, _ = run(Moon(mu=mu, temperature=temperature), SITES, TASK, WORK, lost=lost)
    agree(section(outcome.state.tensors, "model"), model)


def trained(algorithm, memory, round_=1):
    """One round at site a from the common start, with this memory."""
    site = Site("a", testbed.make_task(), ADAM, open_access(reference.TABLES["a"], batch=5, seed=7))
    initial = testbed.initial_parameters(algorithm, testbed.make_task(), seed=1)
    received = Message(prefixed("model", initial))
    return algorithm.train(site, received, memory, Call("law", round_, "train", {}))


def test_a_sites_first_round_has_no_contrast_whatever_the_round():
    """So it is when its earlier replies were lost, or when it joins late."""
    free, _ = trained(FedAvg(), Message())
    for round_ in (1, 9):
        first, memory = trained(Moon(mu=9.0), Message(), round_)
        assert testbed.are_equal(first.tensors, free.tensors)
    assert testbed.are_equal(section(memory.tensors, "previous"), section(first.tensors, "model"))


def test_a_previous_model_equal_to_the_global_one_has_no_effect():
    """Positive and negative are the same: the loss is log 2 and has no gradient. The paper's round 1, if it had one."""
    initial = testbed.initial_parameters(FedAvg(), testbed.make_task(), seed=1)
    free, _ = trained(FedAvg(), Message())
    same, _ = trained(Moon(mu=9.0), Message(prefixed("previous", initial)))
    assert testbed.are_close(free.tensors, same.tensors, 1e-5)


def test_the_contrast_draws_features_toward_the_global_model_and_away_from_the_previous():
    initial = testbed.initial_parameters(FedAvg(), testbed.make_task(), seed=1)
    previous = {
        n: v + 0.5 * torch.randn(v.shape, generator=torch.Generator().manual_seed(3)) for n, v in initial.items()
    }
    margins = []
    for mu in (0.0, 20.0):
        reply, _ = trained(Moon(mu=mu), Message(prefixed("previous", previous)))
        networks = []
        for params in (section(reply.tensors, "model"), initial, previous):
            networks.append(testbed.make_task().network())
            networks[-1].load_state_dict(dict(params))
        x = reference.TABLES["a"]["train"].x
        z, toward, away = (network(x).features for network in networks)
        margins.append((feature_cosine(z, toward) - feature_cosine(z, away)).mean().item())
    assert margins[1] > margins[0] + 0.02


def test_one_example_by_hand():
    """Features (3, 4) against (4, 3) and (0, 5): cosines 0.96 and 0.8; the loss is log(1 + e^((0.8 - 0.96) / 0.5))."""
    z, toward, away = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]]), torch.tensor([[0.0, 5.0]])

    class Fixed(torch.nn.Module):
        def __init__(self, features):
            super().__init__()
            self.features = features

        def forward(self, x):
            return Output(torch.zeros(1, 2), self.features)

    objective = Moon(mu=10.0)._objective(testbed.make_task(), Fixed(toward), Fixed(away))
    found = objective(Fixed(z), Batch(torch.zeros(1, 4), torch.tensor([1])))
    assert float(found) == pytest.approx(math.log(2) + 10 * math.log(1 + math.exp((0.8 - 0.96) / 0.5)), rel=1e-5)


def test_privately_a_patients_contrast_is_the_same_and_rounds_cost_the_same():
    """Patients one at a time, unclipped and without noise, give the gradient of the batch of all of them."""
    work = replace(ADAM, optimizer="sgd", batch=99, epochs=None, steps=3)
    initial = testbed.initial_parameters(FedAvg(), testbed.make_task(), seed=1)
    table = reference.TABLES["a"]["train"]
    rows = {"train": replace(table, patient=torch.arange(len(table.y)))}
    quiet = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0)
    found, events = [], []
    for memory in (Message(prefixed("previous", {n: v + 0.3 for n, v in initial.items()})), Message()):
        plain = open_access(rows, batch=99, seed=0)
        private = open_private(rows, quiet, source=random.Random(0).randbytes)
        for access in (plain, private):
            site = Site("a", testbed.make_task(), work, access)
            reply, _ = Moon(mu=3.0).train(site, Message(prefixed("model", initial)), memory, Call("l", 1, "train", {}))
            found.append(reply.tensors)
        events.append(private.events)
    assert testbed.are_close(found[0], found[1], 1e-5) and testbed.are_close(found[2], found[3], 1e-5)
    assert not testbed.are_close(found[0], found[2], 1e-3), "the contrast did something"
    assert events[0] == events[1], "and costs nothing"


def test_a_network_whose_features_nobody_trains_is_refused_by_name():
    (text,) = Moon().complaints(testbed.make_task(hidden=()).network(), ADAM, False)
    assert "fedavg" in text and "hidden layer" in text
    assert Moon().complaints(testbed.make_task().network(), ADAM, True) == []
    with pytest.raises(ValueError, match="mu must be >= 0, found -1; temperature must be > 0, found 0"):
        Moon(mu=-1, temperature=0)


def test_what_is_compared_with_stays_as_it_is():
    """Running statistics and parameters of the frozen networks do not follow the site's batches."""
    module = TASK.network()
    params = read_parameters(module)
    still = copy_frozen(module, params)
    module.train()
    still(SITES["a"]["train"].x)
    assert testbed.are_equal(read_parameters(still), params)
    assert not any(p.requires_grad for p in still.parameters()) and not still.training
