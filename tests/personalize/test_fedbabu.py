"""FedBABU: a head that nobody trains, and a body that everybody does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_reply
from federation.task import Task
from personalize.fedbabu import FedBabu

SGD = Work(optimizer="sgd", lr=0.05, batch=4)
HEAD = {"head.weight", "head.bias"}


def run(work, task=reference.CNN, sites=reference.IMAGES, lost=frozenset(), weights="size", rounds=3, **options):
    _, crew = reference.trained(FedBabu(weights=weights), sites, task, work, lost, rounds=rounds, **options)
    return {name: testbed.newest_model(hospital) for name, hospital in crew.items()}


@pytest.mark.parametrize("model", [Cnn(widths=(8, 8), norm="batch"), Cam(widths=(8, 8, 8, 8))], ids=["cnn", "cam"])
def test_the_head_stays_at_its_common_start_bit_for_bit_and_bodies_agree(model):
    """Weight decay and momentum move what has no gradient too; not this head."""
    task, sites = Task(model, (1, 16, 16), 2), {"a": reference.images(1, 6, 16), "b": reference.images(2, 8, 16)}
    start = initial_parameters(FedAvg(), task, seed=1)
    for work in (
        Work(optimizer="adamw", lr=0.02, batch=4, weight_decay=0.5),
        Work(optimizer="sgd", lr=0.02, batch=4, weight_decay=0.5, momentum=0.9),
    ):
        found = run(work, task, sites)
        assert testbed.are_equal(found["a"], found["b"])
        assert all(torch.equal(found["a"][n], start[n]) for n in HEAD)
        assert not any(torch.equal(found["a"][n], start[n]) for n in start if n.endswith("weight") and n not in HEAD)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_a_plain_loop_with_sites_away_and_replies_lost_finds_the_same(weights):
    lost = frozenset({(1, "a"), (3, "a")})
    server = dict(initial_parameters(FedAvg(), reference.CNN, seed=1))
    for r in range(1, 5):
        locals_, sizes = [], []
        for site in reference.present(r, lost):
            model, rows = reference.network(reference.CNN, server), reference.IMAGES[site]["train"]
            moved = [p for n, p in model.named_parameters() if n not in HEAD]
            for x, y in reference.batches(rows, r, site, SGD):
                loss = functional.cross_entropy(model(x).logits, y)
                for p, g in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                    p.data -= 0.05 * g
            locals_.append(model.state_dict())
            sizes.append(len(rows.y) if weights == "size" else 1)
        server = reference.mixed(locals_, sizes)
    found = run(SGD, lost=lost, weights=weights, rounds=4, participation=reference.PARTICIPATION)
    assert all(testbed.are_close(found[site], server, 2e-5) for site in reference.IMAGES)


def test_only_the_body_leaves():
    reply = rehearse_reply(FedBabu(), reference.CNN, SGD, initial_parameters(FedBabu(), reference.CNN, seed=1))
    assert set(section(reply.tensors, "model")) == set(reference.CNN.network().state_dict()) - HEAD


def test_a_network_that_is_all_head_is_refused():
    (text,) = FedBabu().complaints(testbed.make_task(hidden=()).network(), SGD, True)
    assert "fedbabu" in text and "no parameter" in text
    assert FedBabu().complaints(reference.CNN.network(), SGD, True) == []
