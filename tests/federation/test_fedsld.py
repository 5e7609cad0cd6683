"""FedSLD: where it is plain training, equation 3 by hand and in a slow loop, what is released, and what is private."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.test_oracles import NAMES, PARTICIPATION, ROUNDS, SITES, TASK, WORK, agree, asked, averaged, start

import reference
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.fedsld import FedSld, label_weights
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_events
from federation.task import Task
from privacy.dp.access import Batch, Rows, open_access
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call

ADAM = Work(optimizer="adam", lr=0.02, batch=5)


def run(algorithm, sites, task=None, work=ADAM, rounds=3, **options):
    return reference.trained(algorithm, sites, task, work, rounds=rounds, **options)[0]


def model_of(outcome):
    return section(outcome.state.tensors, "model")


@pytest.mark.parametrize("normalize", [False, True])
def test_one_site_with_its_full_batch_is_plain_training(normalize):
    one, work = {"a": reference.TABLES["a"]}, replace(ADAM, batch=24)
    assert testbed.are_close(
        model_of(run(FedSld(normalize=normalize), one, work=work)), model_of(run(FedAvg(), one, work=work)), 1e-6
    )
    parts = run(FedSld(), one, work=replace(work, batch=6))
    assert not testbed.are_close(model_of(parts), model_of(run(FedAvg(), one, work=replace(work, batch=6))), 1e-4)


def test_sites_with_the_same_label_shares_weighed_by_them_are_fedavg():
    """Whatever the batches: the weights are 1."""
    alike = {}
    for name, rows in reference.TABLES.items():
        n = len(rows["train"].y) // 2 * 2
        train = Rows(rows["train"].x[:n], torch.arange(n) % 2, torch.arange(n))
        alike[name] = {**rows, "train": train}
    assert testbed.are_close(model_of(run(FedSld(share="site"), alike)), model_of(run(FedAvg(), alike)), 1e-6)
    different = model_of(run(FedSld(share="site"), reference.TABLES))
    assert not testbed.are_close(different, model_of(run(FedAvg(), reference.TABLES)), 1e-4)


def test_a_sum_over_the_batch_is_a_learning_rate_times_its_size():
    work = Work(optimizer="sgd", lr=0.01, batch=6)
    even = {"a": testbed.make_table(1)}  # 24 examples: every batch has 6
    mean = run(FedSld(), even, work=replace(work, lr=0.06))
    total = run(FedSld(reduction="sum"), even, work=work)
    assert testbed.are_close(model_of(mean), model_of(total), 1e-5)


def test_a_step_of_two_sites_by_hand():
    """Labels 0 0 1 at site a and 1 at site b: P = (2/4, 2/4); a's batch has (2/3, 1/3), b's has (0, 1)."""
    task = Task(testbed.Linear(), (1,), 2)
    x, y = {"a": [1.0, 2.0, 3.0], "b": [2.0]}, {"a": [0, 0, 1], "b": [1]}
    weight = {"a": [0.5 / (2 / 3), 0.5 / (2 / 3), 0.5 / (1 / 3)], "b": [0.5 / 1]}
    sites = {}
    for s in x:
        rows = Rows(torch.tensor(x[s])[:, None], torch.tensor(y[s]), torch.arange(len(y[s])))
        sites[s] = {"train": rows, "validation": rows}
    outcome = run(FedSld(), sites, task, Work(optimizer="sgd", lr=0.1, batch=8), rounds=1)
    initial = initial_parameters(FedSld(), task, seed=1)
    w, b, expected = float(initial["head.weight"][0]), float(initial["head.bias"][0]), 0.0
    for s, n in (("a", 3), ("b", 1)):
        residuals = [w * v + b - t for v, t in zip(x[s], y[s], strict=True)]
        slope = sum(k * r * v for k, r, v in zip(weight[s], residuals, x[s], strict=True)) / n
        expected += n / 4 * (w - 0.1 * slope)
    assert float(model_of(outcome)["head.weight"][0]) == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_batchs_loss_is_the_common_mean_of_its_classes_mean_losses(labels, chance):
    """Equation 3 as a mean, without a weight in sight: sum over the classes present of P(c) times their mean loss."""
    y, losses = torch.tensor(labels), torch.tensor([chance.uniform(0, 5) for _ in labels], dtype=torch.float64)
    prior = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    p = torch.bincount(y, minlength=4).double() / len(y)
    expected = sum(prior[c] * losses[y == c].mean() for c in set(labels))
    assert float((label_weights(prior, p, normalize=False)[y] * losses).mean()) == pytest.approx(float(expected))
    present = sum(float(prior[c]) for c in set(labels))
    normal = label_weights(prior, p, normalize=True)[y]
    assert float((normal * losses).mean()) == pytest.approx(float(expected) / present)
    assert float(normal.mean()) == pytest.approx(1.0)


@pytest.mark.repeats(3)
@pytest.mark.parametrize("share", ["batch", "site"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_OF_ALL], ids=["", "lost replies"])
def test_rounds_on_a_network_with_batch_norm(share, normalize, lost):
    counts = {site: [int((SITES[site]["train"].y == c).sum()) for c in (0, 1)] for site in NAMES}
    n = sum(map(sum, counts.values()))
    prior = [sum(counts[site][c] for site in NAMES) / n for c in (0, 1)]
    model = start()
    for r in range(1, ROUNDS + 1):
        present = [site for site in asked(r) if (r, site) not in lost]
        locals_ = []
        for site in present:
            rows, own = SITES[site]["train"], copy.deepcopy(model).train()
            for x, labels in reference.batches(rows, r, site, WORK):
                y = labels.tolist()
                among = y if share == "batch" else rows.y.tolist()
                weights = [prior[c] / (among.count(c) / len(among)) for c in y]
                if normalize:
                    weights = [w / sum(prior[c] for c in set(among)) for w in weights]
                logs = own(x).logits.log_softmax(dim=1)
                loss = -sum(w * logs[i, c] for i, (w, c) in enumerate(zip(weights, y, strict=True))) / len(y)
                grads = torch.autograd.grad(loss, list(own.parameters()))
                with torch.no_grad():
                    for p, g in zip(own.parameters(), grads, strict=True):
                        p -= 0.05 * g
            locals_.append(own)
        model = averaged(locals_, [sum(counts[site]) for site in present])
    algorithm = FedSld(share=share, normalize=normalize)
    outcome = run(algorithm, SITES, TASK, WORK, lost=lost, rounds=ROUNDS, participation=PARTICIPATION)
    agree(model_of(outcome), model)


def test_label_counts_leave_in_the_introduction_and_a_site_gets_its_own_back():
    algorithm = FedSld()
    introductions = {}
    for name, rows in reference.TABLES.items():
        site = Site(name, testbed.make_task(), ADAM, open_access(rows, batch=5, seed=0))
        introductions[name] = algorithm.introduce(site)
        assert introductions[name].facts["n"] == len(rows["train"].y)
    state = algorithm.start(initial_parameters(algorithm, testbed.make_task(), seed=1), introductions)
    y = torch.cat([rows["train"].y for rows in reference.TABLES.values()])
    ones = int(y.sum()) / len(y)
    assert state.facts["prior"] == pytest.approx([1 - ones, ones])
    message = algorithm.send(state, "b", Call("law", 1, "train", {}))
    assert set(message.facts) == {"prior", "shares"}
    assert message.facts["shares"] == pytest.approx(
        [float((reference.TABLES["b"]["train"].y == c).double().mean()) for c in (0, 1)]
    )


def test_a_label_that_a_site_does_not_have_needs_no_division():
    only = {s: {k: replace(r, y=torch.ones_like(r.y)) for k, r in reference.TABLES[s].items()} for s in "a"}
    both = {"b": reference.TABLES["b"], **only}
    for share in ("batch", "site"):
        outcome = run(FedSld(share=share), both)
        assert all(torch.isfinite(t).all() for t in outcome.state.tensors.values())


def test_private_training_refuses_the_batchs_shares_by_name():
    network = testbed.make_task().network()
    assert FedSld().complaints(network, ADAM, False) == []
    assert FedSld(share="site").complaints(network, ADAM, True) == []
    first, second = FedSld(reduction="sum").complaints(network, ADAM, True)
    assert "share: site" in first and "reduction: mean" in second
    (text,) = FedSld(share="site").complaints(network, replace(ADAM, balance=True), False)
    assert "balance" in text


def test_privately_label_shares_are_paid_for_once_and_rounds_as_in_fedavg():
    noised = Protection(sampling=0.5, noise=1.3, counts_noise=7.0, cut="c")
    initial = initial_parameters(FedSld(), testbed.make_task(), seed=0)
    seen = rehearse_events(FedSld(share="site"), testbed.make_task(), ADAM, initial, noised)
    assert seen.introduction == Part("c", "train", Gaussian(7.0))
    assert seen.training == SelfComposed(Part("c", "train", PoissonSampled(0.5, Gaussian(1.3))), 2)


def test_privately_nobodys_gradient_hangs_on_others():
    """One patient's part of a private gradient is the same with and without another patient in the sample."""
    rows = replace(testbed.make_table(1)["train"], patient=torch.arange(24))
    prior, shares = torch.tensor([0.3, 0.7], dtype=torch.float64), torch.tensor([0.6, 0.4], dtype=torch.float64)
    objective = FedSld(share="site")._objective(testbed.make_task(), prior, shares)
    module = testbed.make_task().network()
    quiet = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0)

    def total(index):
        part = {"train": Rows(rows.x[index], rows.y[index], rows.patient[index])}
        access = open_private(part, quiet, source=random.Random(0).randbytes)
        gradient = access.gradient(module, objective, access.draw(full=True)).gradient
        return {n: g * len(index) for n, g in gradient.items()}

    whole, without, alone = total(list(range(24))), total(list(range(23))), total([23])
    assert testbed.are_close({n: whole[n] - without[n] for n in whole}, alone, 1e-4)
    loss = objective(module, Batch(rows.x, rows.y)) / testbed.make_task().objective(module, Batch(rows.x, rows.y))
    assert torch.allclose(loss.double(), torch.where(rows.y == 1, 0.7 / 0.4, 0.3 / 0.6).double(), atol=1e-5)
