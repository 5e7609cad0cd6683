"""MoE: a gate held at its ends is FedAvg and local training, and a slow implementation of CusFL's equation 1."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.cam import Cam
from federation.models.mlp import Mlp
from federation.parameters import section
from federation.task import Task
from personalize.moe import MoE

DROPOUT = Task(Mlp(hidden=(6,), dropout=0.4), (4,), 2)


def shared(outcome):
    return reference.part(section(outcome.state.tensors, "model"), "shared")


@pytest.mark.repeats(4)
@pytest.mark.parametrize("gate", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", reference.KINDS)
def test_the_federated_expert_is_fedavgs_whatever_the_gate_does(kind, gate):
    ours, _ = reference.run(MoE(gate=gate), kind, reference.ADAM)
    average, _ = reference.run(FedAvg(), kind, reference.ADAM)
    assert testbed.are_equal(shared(ours), section(average.state.tensors, "model"))


@pytest.mark.parametrize("task", [None, DROPOUT], ids=["", "dropout"])
def test_a_gate_held_at_0_is_local_training(task):
    _, ours = reference.run(MoE(gate=0.0), "mlp", task=task)
    _, local = reference.run(Local(), "mlp", task=task)
    for site in reference.NAMES:
        reference.agree(
            reference.part(testbed.newest_model(ours[site]), "personal"), testbed.newest_model(local[site]), 1e-5
        )


def test_a_gate_held_at_0_is_local_training_with_batch_norm_too():
    _, ours = reference.run(MoE(gate=0.0), "batch norm")
    _, local = reference.run(Local(), "batch norm")
    for site in reference.NAMES:
        reference.agree(reference.part(testbed.newest_model(ours[site]), "personal"), testbed.newest_model(local[site]))


@pytest.mark.parametrize(("gate", "other"), [(1.0, FedAvg()), (0.0, Local())])
def test_a_gate_held_at_an_end_answers_with_that_expert(gate, other):
    task, sites = reference.KINDS["mlp"]
    _, ours = reference.run(MoE(gate=gate), "mlp")
    _, theirs = reference.run(other, "mlp")
    for site in reference.NAMES:
        mixture, one = MoE(gate=gate).network(task), task.network()
        mixture.load_state_dict(testbed.newest_model(ours[site]))
        one.load_state_dict(testbed.newest_model(theirs[site]))
        x = sites[site]["validation"].x
        assert torch.allclose(task.probabilities(mixture, x), task.probabilities(one, x), atol=1e-5)


def equation_1(one, own, gate, x):
    """Mixed probabilities, and how much of C_G; the gate sees features and gives them no slope."""
    features = torch.cat([one.features, own.features], dim=1).detach()
    trust = torch.sigmoid(gate(features))
    return trust * one.logits.softmax(dim=1) + (1 - trust) * own.logits.softmax(dim=1)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("kind", reference.KINDS)
def test_it_is_equation_1(kind, joint):
    task, sites = reference.KINDS[kind]
    c_g = reference.network(task)
    c_i = {site: reference.network(task) for site in sites}
    width = task.network()(torch.zeros(2, *task.inputs)).features.shape[1]
    gates = {site: torch.nn.Linear(2 * width, 1) for site in sites}
    for gate in gates.values():
        for p in gate.parameters():
            torch.nn.init.zeros_(p)
    for r in range(1, reference.ROUNDS + 1):
        locals_ = []
        for site in reference.present(r):
            mine = copy.deepcopy(c_g)
            for x, y in reference.batches(sites[site]["train"], r, site):
                one, own = mine(x), c_i[site](x)
                heard = one if joint else type(one)(one.logits.detach(), one.features.detach())
                p = equation_1(heard, own, gates[site], x)
                mixture = -p.gather(1, y[:, None]).log().mean()
                learners = [*c_i[site].parameters(), *gates[site].parameters()]
                slopes = list(torch.autograd.grad(mixture, learners, retain_graph=True))
                alone = mixture if joint else functional.cross_entropy(one.logits, y)
                slopes += torch.autograd.grad(alone, list(mine.parameters()))
                with torch.no_grad():
                    for q, g in zip([*learners, *mine.parameters()], slopes, strict=True):
                        q -= 0.05 * g
            locals_.append(mine)
        c_g = reference.averaged(locals_, [len(sites[s]["train"].y) for s in reference.present(r)])
    outcome, crew = reference.run(MoE(joint=joint), kind)
    reference.agree(shared(outcome), c_g.state_dict())
    for site in reference.NAMES:
        final = testbed.newest_model(crew[site])
        reference.agree(reference.part(final, "personal"), c_i[site].state_dict())
        reference.agree(reference.part(final, "gate"), gates[site].state_dict())
        assert float(final["gate.weight"].abs().max()) > 1e-4


def test_what_the_network_answers_are_mixed_probabilities():
    task, sites = reference.KINDS["batch norm"]
    module = MoE(gate=0.3).network(task).eval()
    with torch.no_grad():
        for p in module.shared.parameters():
            p.mul_(1.7)
    x = sites["a"]["train"].x
    p, q = module.shared(x).logits.softmax(dim=1), module.personal(x).logits.softmax(dim=1)
    assert torch.allclose(module(x).logits.exp(), 0.3 * p + 0.7 * q, atol=1e-6)


@pytest.mark.parametrize("gate", [0.0, 1.0])
def test_a_network_with_maps_is_mixed_too(gate):
    module = MoE(gate=gate).network(Task(Cam(widths=(8, 8, 8, 8)), (1, 16, 16), 2)).eval()
    with torch.no_grad():
        for p in module.shared.parameters():
            p.add_(0.5)
    x = torch.rand(3, 1, 16, 16)
    one = (module.shared if gate else module.personal)(x)
    assert torch.allclose(module(x).maps, one.maps) and torch.allclose(module(x).logits, one.logits, atol=1e-6)


def test_a_fresh_network_trusts_both_alike_and_draws_no_more_random_numbers_than_an_expert():
    task, sites = reference.KINDS["mlp"]
    torch.manual_seed(4)
    task.network()
    alone = torch.get_rng_state()
    torch.manual_seed(4)
    module = MoE().network(task)
    assert torch.equal(torch.get_rng_state(), alone)
    held = MoE(gate=0.5).network(task)
    held.load_state_dict(module.state_dict())
    x = sites["a"]["train"].x
    assert torch.allclose(module(x).logits, held(x).logits, atol=1e-6)


def test_settings_that_make_no_sense_are_refused_by_name():
    with pytest.raises(ValueError, match=r"gate must be in \[0, 1\] or null, found 1.5"):
        MoE(gate=1.5)
    with pytest.raises(ValueError, match="never train the federated expert"):
        MoE(gate=0.0, joint=True)
