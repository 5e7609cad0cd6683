"""FedBABU: a head that nobody trains, and a body that everybody does."""

from __future__ import annotations

import copy

import pytest
import torch

import rig
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.parameters import section
from federation.randomness import derived, seeded
from federation.rehearsal import initial_parameters, rehearse
from federation.rounds import Schedule, sampled
from federation.task import Task
from personalize.fedbabu import FedBabu
from privacy.access import Batch, Rows, batches_per_epoch, minibatches

TASK = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
SGD = Work(optimizer="sgd", lr=0.05, batch=4)
HEAD = {"head.weight", "head.bias"}


def images(seed: int, n: int, side: int = 8) -> dict[str, Rows]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.rand(n, 1, side, side, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(n)), "validation": Rows(x[:4], y[:4], torch.arange(4))}


SITES = {"a": images(1, 9), "b": images(2, 14), "c": images(3, 6)}


def run(work, task=TASK, sites=SITES, lost=frozenset(), weights="size", **options):
    algorithm = FedBabu(weights=weights)
    crew = rig.federation(algorithm, sites, task=task, work=work)
    schedule = Schedule(**{"rounds": 3, "quorum": 0.3, **options})
    rig.train(algorithm, crew, task=task, work=work, schedule=schedule, engine=rig.Lossy(InProcess(crew), lost))
    return {name: rig.final(hospital) for name, hospital in crew.items()}


@pytest.mark.parametrize("model", [Cnn(widths=(8, 8), norm="batch"), Cam(widths=(8, 8, 8, 8))], ids=["cnn", "cam"])
def test_the_head_stays_at_its_common_start_bit_for_bit_and_bodies_agree(model):
    """Weight decay and momentum move what has no gradient too; not this head."""
    task, sites = Task(model, (1, 16, 16), 2), {"a": images(1, 6, 16), "b": images(2, 8, 16)}
    start = initial_parameters(FedAvg(), task, seed=1)
    for work in (
        Work(optimizer="adamw", lr=0.02, batch=4, weight_decay=0.5),
        Work(optimizer="sgd", lr=0.02, batch=4, weight_decay=0.5, momentum=0.9),
    ):
        found = run(work, task, sites)
        assert rig.equal(found["a"], found["b"])
        assert all(torch.equal(found["a"][n], start[n]) for n in HEAD)
        assert not any(torch.equal(found["a"][n], start[n]) for n in start if n.endswith("weight") and n not in HEAD)


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_a_plain_loop_with_sites_away_and_replies_lost_finds_the_same(weights):
    lost = frozenset({(1, "a"), (3, "a")})
    server = dict(initial_parameters(FedAvg(), TASK, seed=1))
    for r in range(1, 5):
        locals_, sizes = [], []
        for site in sampled(tuple(SITES), 0.67, derived(0, "participation", r)):
            if (r, site) in lost:
                continue
            model, rows, seed = TASK.network(), SITES[site]["train"], derived(0, site, r, "train")
            model.load_state_dict(server)
            model.train()
            moved = [p for n, p in model.named_parameters() if n not in HEAD]
            stream = minibatches(rows.y, batch=4, balance=False, generator=torch.Generator().manual_seed(seed))
            with seeded(seed):
                for _ in range(batches_per_epoch(len(rows.y), 4)):
                    index = next(stream)
                    loss = TASK.objective(model, Batch(rows.x[index], rows.y[index])).mean()
                    for p, g in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                        p.data -= 0.05 * g
            locals_.append(copy.deepcopy(model.state_dict()))
            sizes.append(len(rows.y) if weights == "size" else 1)
        for n in server:
            stack = torch.stack([m[n] for m in locals_])
            if stack.is_floating_point():
                share = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
                server[n] = torch.tensordot(share, stack.double(), dims=1).float()
            else:
                server[n] = stack.amax(0)
    found = run(SGD, lost=lost, weights=weights, rounds=4, participation=0.67)
    assert all(rig.close(found[site], server, 2e-5) for site in SITES)


def test_only_the_body_leaves():
    reply = rehearse(FedBabu(), TASK, SGD, initial_parameters(FedBabu(), TASK, seed=1))
    assert set(section(reply.tensors, "model")) == set(TASK.network().state_dict()) - HEAD


def test_a_network_that_is_all_head_is_refused():
    (text,) = FedBabu().complaints(rig.task(hidden=()).network(), SGD, True)
    assert "fedbabu" in text and "no parameter" in text
    assert FedBabu().complaints(TASK.network(), SGD, True) == []
