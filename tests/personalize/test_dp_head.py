"""Noisy full-batch descent of a head: a slow loop, one round or many, weights, the price, and what noise leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fixed_bytes import bytes_of

from consilium.testing import testbed
from federation.descent import Site, Work
from federation.models.cam import Cam
from federation.models.mlp import Mlp
from federation.parameters import loaded
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import Schedule
from federation.task import Task
from personalize.dp_head import DpHead
from privacy.dp.access import Rows, open_access
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Gaussian, SelfComposed
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message
from privacy.settings_error import SettingsError

WIDTH, WORK = 4, Work()
FINISH = Call("r", 9, "finish", {})


def hospital(seed: int, n: int, classes: int = 3) -> Rows:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=g)
    return Rows(torch.eye(classes, WIDTH)[y] * 2 + torch.randn(n, WIDTH, generator=g), y, torch.arange(n))


def heads(how: DpHead, task: Task, rows: dict[str, Rows], protection: Protection | None = None):
    """Each hospital's weight and bias (classes, d + 1) after all rounds."""
    source = bytes_of(0)
    state, memories = how.start(initial_parameters(how, task, seed=0), {}), dict.fromkeys(rows, Message())
    sites = {
        name: Site(name, task, WORK, open_access({"train": own}, batch=2, seed=0))
        if protection is None
        else Site(name, task, WORK, open_private({"train": own}, protection, source=source))
        for name, own in rows.items()
    }
    for round_ in range(1, how.rounds + 1):
        replies, call = {}, Call("r", round_, "train", {})
        for name, site in sites.items():
            replies[name], memories[name] = how.train(site, how.send(state, name, call), memories[name], call)
        state = how.merge(state, replies)
    models = {name: how.model(site, how.send(state, name, FINISH), memories[name]) for name, site in sites.items()}
    return {name: torch.cat([m["head.weight"], m["head.bias"][:, None]], dim=1) for name, m in models.items()}


def by_hand(rows: list[Rows], weights: list[float], steps: int, lr: float, classes: int) -> torch.Tensor:
    """Descent on the weighted mean of mean losses, and the mean of iterates w_t with weights t."""
    w, iterates = torch.zeros(classes, WIDTH + 1), []
    for _ in range(steps):
        total = torch.zeros_like(w)
        for own, weight in zip(rows, weights, strict=True):
            z = torch.cat([own.x, torch.ones(len(own.x), 1)], dim=1)
            off = (z @ w.T).softmax(dim=1) - torch.nn.functional.one_hot(own.y, classes)
            total += weight / sum(weights) * off.T @ z / len(z)
        w = w - lr * total
        iterates.append(w)
    return sum(t * one for t, one in enumerate(iterates, 1)) / sum(range(1, steps + 1))


@pytest.mark.parametrize("classes", [2, 3])
def test_alone_it_is_the_mean_of_the_iterates_of_plain_descent(classes):
    task, rows = Task(Mlp(hidden=()), (WIDTH,), classes), {"a": hospital(0, 30, classes), "b": hospital(1, 50, classes)}
    found = heads(DpHead(steps=7, lr=0.5, others=0.0), task, rows)
    for name, own in rows.items():
        assert torch.allclose(found[name], by_hand([own], [1.0], 7, 0.5, classes), atol=1e-5)


def test_one_step_a_round_is_federated_descent():
    task, rows = Task(Mlp(hidden=()), (WIDTH,), 3), {"a": hospital(0, 30), "b": hospital(1, 90)}
    found = heads(DpHead(rounds=6, steps=1, lr=0.5, others=1.0), task, rows)
    expected = by_hand(list(rows.values()), [30, 90], 6, 0.5, 3)
    assert all(torch.allclose(one, expected, atol=1e-5) for one in found.values())


def test_a_hospital_weighs_its_own_patients_more():
    task, rows = Task(Mlp(hidden=()), (WIDTH,), 3), {"a": hospital(0, 30), "b": hospital(1, 90)}
    one, two = (by_hand([own], [1.0], 30, 2.0, 3) for own in rows.values())
    found = heads(DpHead(others=0.25), task, rows)
    assert torch.allclose(found["a"], (30 * one + 22.5 * two) / 52.5, atol=1e-5)
    assert torch.allclose(found["b"], (7.5 * one + 90 * two) / 97.5, atol=1e-5)


def test_others_weigh_what_noise_asks_for_and_without_noise_nothing():
    task, how, loud = Task(Mlp(hidden=()), (WIDTH,), 3), DpHead(steps=4), Protection(clip=0.5, noise=20.0)
    rows = {"a": hospital(0, 30), "b": hospital(1, 90), "c": hospital(2, 50)}
    assert how.others is None
    quiet, alone = heads(how, task, rows), heads(replace(how, others=0.0), task, rows)
    assert all(torch.allclose(quiet[name], alone[name], atol=1e-6) for name in rows)

    sites = {name: Site(name, task, WORK, open_private({"train": own}, loud)) for name, own in rows.items()}
    state, call = how.start(initial_parameters(how, task, seed=0), {}), Call("r", 1, "train", {})
    replies = {name: how.train(site, how.send(state, name, call), Message(), call)[0] for name, site in sites.items()}
    state = how.merge(state, replies)
    u = {name: (20.0 * 0.5 / len(own.y)) ** 2 / 4 for name, own in rows.items()}
    for name, site in sites.items():
        others = [other for other in rows if other != name]
        n = sum(len(rows[other].y) for other in others)
        v = sum(len(rows[other].y) ** 2 * u[other] for other in others) / n**2
        s = u[name] / (u[name] + v + 0.01**2)
        sent = {other: reply.tensors["mean/head.weight"] for other, reply in replies.items()}
        expected = (1 - s) * sent[name] + s * sum(len(rows[other].y) * sent[other] for other in others) / n
        found = how.model(site, how.send(state, name, FINISH), replies[name])
        assert torch.allclose(found["head.weight"], expected, atol=1e-4)


def test_a_patient_with_many_rows_weighs_as_one_in_private_training():
    task, own = Task(Mlp(hidden=()), (WIDTH,), 3), hospital(0, 20)
    own = replace(own, x=own.x.double())
    again = [*range(20), *[3] * 9]
    more = Rows(own.x[again], own.y[again], own.patient[again])
    quiet = Protection(clip=1e2, noise=0.0)
    torch.set_default_dtype(torch.float64)
    try:
        once, often = (heads(DpHead(), task, {"a": one}, quiet)["a"] for one in (own, more))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.allclose(once, often, atol=1e-9)


@pytest.mark.parametrize("begin", ["zero", "given"])
def test_it_begins_at_zero_or_with_what_the_network_came_with(begin):
    task = Task(Mlp(hidden=()), (WIDTH,), 3)
    initial = initial_parameters(DpHead(), task, seed=0)
    state = DpHead(begin=begin).start(initial, {})
    expected = initial["head.weight"] if begin == "given" else torch.zeros(3, WIDTH)
    assert torch.equal(state.tensors["model/head.weight"], expected)
    assert torch.equal(state.tensors["mean/head.weight"], expected)


def test_a_hospital_that_never_answered_gets_the_mean_of_the_others():
    task, how = Task(Mlp(hidden=()), (WIDTH,), 3), DpHead(others=0.0)
    site = Site("a", task, WORK, open_access({"train": hospital(0, 30)}, batch=2, seed=0))
    state = how.start(initial_parameters(how, task, seed=0), {})
    reply, _ = how.train(site, how.send(state, "a", FINISH), Message(), Call("r", 1, "train", {}))
    got = how.model(replace(site, name="c"), how.send(how.merge(state, {"a": reply}), "c", FINISH), Message())
    assert torch.allclose(got["head.weight"], reply.tensors["mean/head.weight"])


def test_what_is_before_the_head_stays_as_it_was():
    how, task, rows = DpHead(), testbed.make_task(), {"a": testbed.make_table(1), "b": testbed.make_table(2)}
    crew = testbed.make_federation(how, rows, task=task, work=WORK)
    testbed.train(how, crew, task=task, work=WORK, schedule=Schedule(rounds=5))
    began = testbed.initial_parameters(how, task, seed=1)
    for one in crew.values():
        same = [name for name, value in testbed.newest_model(one).items() if torch.equal(value, began[name])]
        assert sorted(same) == sorted(name for name in began if not name.startswith("head."))


def test_all_steps_cost_as_much_as_one_of_less_noise():
    """T steps of noise s sqrt(T) are one of noise s: nothing is sampled, and nothing is lost."""
    how, task = DpHead(steps=16), testbed.make_task()
    protection = Protection(noise=8.0, sampling=0.3)
    seen = rehearse_events(how, task, WORK, initial_parameters(how, task, seed=0), protection)
    assert compute_cost([seen.training], 1e-5).epsilon == pytest.approx(
        compute_cost([Gaussian(2.0)], 1e-5).epsilon, rel=1e-6
    )
    assert compute_cost([SelfComposed(seen.training, 4)], 1e-5).epsilon == pytest.approx(
        compute_cost([Gaussian(1.0)], 1e-5).epsilon
    )


@pytest.mark.slow  # a smaller case: the noise and the bounds themselves, above
def test_noise_costs_less_the_more_patients_there_are():
    task, fresh = Task(Mlp(hidden=()), (WIDTH,), 3), hospital(9, 1000)

    def right(n: int) -> float:
        rows = {"a": hospital(0, n), "b": hospital(1, n)}
        found = heads(DpHead(), task, rows, Protection(noise=15.0, clip=1.0))
        z = torch.cat([fresh.x, torch.ones(1000, 1)], dim=1)
        return float(torch.stack([(z @ w.T).argmax(dim=1).eq(fresh.y).double().mean() for w in found.values()]).mean())

    few, many = right(20), right(700)
    assert (few < 0.7, many > 0.75) == (True, True), (few, many)


def test_a_network_without_a_linear_head_and_settings_out_of_range_are_refused_in_words():
    assert "linear layer" in DpHead().complaints(Task(Cam(), (1, 16, 16), 2).network(), WORK, True)[0]
    with pytest.raises(SettingsError) as refused:
        DpHead(steps=0, rounds=0, lr=0.0, others=1.5)
    assert all(name in str(refused.value) for name in ("steps", "rounds", "lr", "others"))


def test_a_head_with_one_logit_learns_too():
    task, rows = Task(Mlp(hidden=(), logits="one"), (WIDTH,), 2), {"a": hospital(0, 200, 2)}
    head = heads(DpHead(), task, rows)["a"]
    network = loaded(task.network(), {"head.weight": head[:, :-1], "head.bias": head[:, -1]})
    assert network(rows["a"].x).logits.argmax(dim=1).eq(rows["a"].y).double().mean() > 0.85
