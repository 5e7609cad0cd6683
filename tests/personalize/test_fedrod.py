"""Fed-RoD against plain loops: a balanced generic head that travels, a personal head on top that does not."""

from __future__ import annotations

import math

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_events, rehearse_reply
from federation.task import Output, Task
from personalize.fedrod import Apart, FedRod, two_head_losses
from privacy.dp.access import Batch, Rows
from privacy.dp.events import Composed, Gaussian, SelfComposed
from privacy.dp.protection import Protection

TASK = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 3)
SGD = Work(optimizer="sgd", lr=0.05, batch=4)
ADAM = Work(optimizer="adam", lr=0.02, batch=4)


def images(seed: int, labels: list[int]) -> dict[str, Rows]:
    g = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    x = torch.rand(len(y), 1, 8, 8, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(len(y))), "validation": Rows(x[:4], y[:4], torch.arange(4))}


SITES = {
    "a": images(1, [0, 0, 0, 0, 1, 1, 2, 2, 2]),
    "b": images(2, [1] * 9 + [0] * 3 + [2] * 2),
    "c": images(3, [2, 2, 2, 0, 2, 0]),  # class 1 is absent here: its balanced probability is 0
}


def run(algorithm, work=SGD, task=TASK, sites=SITES, rounds=3, **options):
    outcome, crew = reference.trained(algorithm, sites, task, work, rounds=rounds, **options)
    return outcome, {name: testbed.newest_model(hospital) for name, hospital in crew.items()}


@pytest.mark.parametrize("work", [SGD, ADAM], ids=["sgd", "adam"])
def test_without_balance_the_generic_part_is_fedavg_bit_for_bit(work):
    """The personal head sees detached features: whatever it does, what travels does not notice."""
    options = {"lost": frozenset({(2, "b")}), "participation": reference.PARTICIPATION}
    outcome, _ = run(FedRod(gamma=0.0), work, **options)
    average, _ = run(FedAvg(), work, **options)
    shared = reference.part(section(outcome.state.tensors, "model"), "generic")
    assert testbed.are_equal(shared, section(average.state.tensors, "model"))


@pytest.mark.parametrize("gamma", [1.0, 0.5])
@pytest.mark.parametrize("lost", [frozenset(), frozenset({(1, "a"), (3, "a")})], ids=["", "lost replies"])
def test_a_plain_loop_of_fedavg_with_balanced_softmax_finds_the_same(gamma, lost):
    """The loss as the paper prints it, -log(n_y^gamma e^g_y / sum_c n_c^gamma e^g_c), and a head on detached values."""
    server = dict(initial_parameters(FedAvg(), TASK, seed=1))
    heads = {site: (torch.zeros(3, 16), torch.zeros(3)) for site in SITES}
    for r in range(1, 5):
        locals_, sizes = [], []
        for site in reference.present(r, lost):
            model, rows = reference.network(TASK, server), SITES[site]["train"]
            v, c = (part.clone().requires_grad_() for part in heads[site])
            counts = torch.tensor([float((rows.y == label).sum()) for label in range(3)]) ** gamma
            for x, y in reference.batches(rows, r, site, SGD):
                output = model(x)
                weighed = counts * output.logits.exp()
                balanced = -(weighed.gather(1, y[:, None])[:, 0] / weighed.sum(dim=1)).log().mean()
                personal = output.logits.detach() + output.features.detach() @ v.T + c
                own = -personal.log_softmax(dim=1).gather(1, y[:, None]).mean()
                moved = list(model.parameters())
                for p, g in zip(moved, torch.autograd.grad(balanced, moved), strict=True):
                    p.data -= 0.05 * g
                for p, g in zip((v, c), torch.autograd.grad(own, (v, c)), strict=True):
                    p.data -= 0.05 * g
            heads[site] = (v.detach(), c.detach())
            locals_.append(model.state_dict())
            sizes.append(len(rows.y))
        server = reference.mixed(locals_, sizes)
    _, found = run(FedRod(gamma=gamma), lost=lost, rounds=4, participation=reference.PARTICIPATION)
    for site in SITES:
        assert testbed.are_close(reference.part(found[site], "generic"), server, 2e-5)
        assert torch.allclose(found[site]["personal_head.weight"], heads[site][0], atol=2e-5)
        assert torch.allclose(found[site]["personal_head.bias"], heads[site][1], atol=2e-5)


def test_the_balanced_loss_by_hand():
    """Three of class 0 to one of class 1 and equal logits: -log 1/4 for the rare class; plain loss log 2 beside it."""
    task = Task(Mlp(hidden=()), (1,), 2)
    module = FedRod().network(task)
    for p in module.parameters():
        torch.nn.init.zeros_(p)
    prior = torch.tensor([0.75, 0.25], dtype=torch.float64).log()
    losses = two_head_losses(task, prior)(Apart(module), Batch(torch.zeros(2, 1), torch.tensor([0, 1])))
    assert losses.tolist() == pytest.approx([math.log(4 / 3) + math.log(2), math.log(4) + math.log(2)])


def test_a_site_of_one_class_teaches_the_generic_head_nothing_and_its_own_much():
    algorithm, sites = FedRod(), {"a": images(1, [2] * 8)}
    _, found = run(algorithm, sites=sites, work=SGD, task=TASK)
    start = initial_parameters(algorithm, TASK, seed=1)
    moved = {n for n, p in algorithm.network(TASK).named_parameters() if not torch.equal(found["a"][n], start[n])}
    assert moved == {"personal_head.weight", "personal_head.bias"}
    assert all(value.isfinite().all() for value in found["a"].values())


@pytest.mark.parametrize(
    "model",
    [Cnn(widths=(8, 8)), Cam(widths=(8, 8, 8, 8)), Mlp(hidden=(5,), logits="one"), Mlp(hidden=())],
    ids=["cnn", "cam", "one logit", "logistic"],
)
def test_a_site_begins_with_the_generic_diagnosis_and_training_says_both(model):
    task = Task(model, (1, 16, 16), 2)
    plain, ours = task.network(), FedRod().network(task)
    start = initial_parameters(FedRod(), task, seed=3)
    generic = reference.part(start, "generic")
    assert testbed.are_equal(generic, initial_parameters(FedAvg(), task, seed=3)), "the same common start as FedAvg's"
    plain.load_state_dict(generic)
    ours.load_state_dict(dict(start))
    x = torch.rand(3, 1, 16, 16)
    found = ours.eval()(x)
    assert isinstance(found, Output) and torch.equal(found.logits, plain.eval()(x).logits)
    torch.nn.init.normal_(ours.personal_head.weight)
    assert torch.allclose(Apart(ours)(x).personal, ours(x).logits)
    assert [n for n, _ in Apart(ours).named_parameters()] == [n for n, _ in ours.named_parameters()]


def test_only_the_generic_part_leaves():
    reply = rehearse_reply(FedRod(), TASK, SGD, initial_parameters(FedRod(), TASK, seed=1))
    assert set(reference.part(section(reply.tensors, "model"), "generic")) == set(TASK.network().state_dict())
    assert len(reply.tensors) == len(TASK.network().state_dict()) and set(reply.facts["algorithm"]) == {"n"}


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="gamma must be >= 0, found -1"):
        FedRod(gamma=-1.0)
    (text,) = FedRod().complaints(FedRod().network(TASK), Work(balance=True), False)
    assert "balance: false" in text
    assert FedRod().complaints(FedRod().network(TASK), SGD, True) == []


def test_privately_without_noise_it_is_plain_training_and_every_round_asks_for_shares(doubles):
    """Same draws (all patients), huge clip, no noise, also of shares; the accesses are the same in every round."""
    sites = {"a": reference.alone(1), "b": reference.alone(2)}
    work = Work(optimizer="sgd", lr=0.05, batch=24)
    quiet = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0, counts_noise=0.0)
    _, plain = run(FedRod(), work, testbed.make_task(), sites)
    _, private = run(FedRod(), work, testbed.make_task(), sites, protection=quiet)
    assert all(testbed.are_close(plain[name], private[name], 1e-9) for name in sites)


def test_a_private_round_books_its_shares_once():
    protection = Protection(sampling=0.5, noise=1.5, counts_noise=5.0)
    initial = initial_parameters(FedRod(), testbed.make_task(), seed=0)
    seen = rehearse_events(FedRod(), testbed.make_task(), SGD, initial, protection).training
    assert isinstance(seen, Composed)
    shares = [e for e in seen.events if getattr(e, "event", None) == Gaussian(5.0)]
    steps = [e.count for e in seen.events if isinstance(e, SelfComposed)]
    assert len(shares) == 1 and steps == [2] and len(seen.events) == 2
