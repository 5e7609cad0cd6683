"""Moments: discriminant analysis by scikit-learn, independence of order, one round, and what noise leaves of it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from fixed_bytes import bytes_of
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from consilium.testing import testbed
from federation.descent import Site, Work
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.parameters import loaded, section
from federation.rehearsal import initial_parameters
from federation.rounds import Schedule
from federation.task import Task
from personalize.moments import Moments, _inverse
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message

WIDTH = 5
TRAIN, FINISH = Call("r", 1, "train", {}), Call("r", 2, "finish", {})


def hospital(seed: int, n: int, classes: int, *, shift: float = 0.0, prevalence: float = 0.5) -> Rows:
    """Normal classes with means 1 apart; one row a patient. shift: of all rows, as another scanner makes it."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.tensor([prevalence, *[1 - prevalence] * (classes - 1)])
    y = torch.multinomial(weights, n, replacement=True, generator=g)
    means = torch.eye(classes, WIDTH) * 1.5
    return Rows(means[y] + torch.randn(n, WIDTH, generator=g) + shift, y, torch.arange(n))


def solved(
    how: Moments, task: Task, rows: dict[str, Rows], *, noise: float | None = None
) -> dict[str, torch.nn.Module]:
    """Each hospital's model after the one round."""
    source = bytes_of(0)
    state = how.start(initial_parameters(how, task, seed=0), {})
    replies, memories, sites = {}, {}, {}
    for name, own in rows.items():
        splits = {"train": own, "validation": own}
        access = (
            open_access(splits, batch=8, seed=0)
            if noise is None
            else open_private(splits, Protection(noise=noise), source=source)
        )
        sites[name] = Site(name, task, Work(), access)
        replies[name], memories[name] = how.train(sites[name], how.send(state, name, TRAIN), Message(), TRAIN)
    state = how.merge(state, replies)
    return {
        name: loaded(task.network(), how.model(site, how.send(state, name, FINISH), memories[name])).eval()
        for name, site in sites.items()
    }


@pytest.mark.parametrize("classes", [2, 4])
def test_alone_it_is_linear_discriminant_analysis(classes):
    task, rows = Task(Mlp(hidden=()), (WIDTH,), classes), hospital(0, 300, classes, prevalence=0.3)
    model = solved(Moments(others_gram=0.0, others_classes=0.0, ridge=0.0), task, {"a": rows})["a"]
    theirs = LinearDiscriminantAnalysis(solver="eigen").fit(rows.x.double().numpy(), rows.y.numpy())
    ours = model(rows.x).logits.softmax(dim=1).detach().numpy()
    assert np.abs(ours - theirs.predict_proba(rows.x.double().numpy())).max() < 1e-3


def test_together_it_is_discriminant_analysis_of_all_rows_about_their_hospitals_means():
    """Whatever shift a scanner adds and however common a disease is, directions are those of all hospitals."""
    task = Task(Mlp(hidden=()), (WIDTH,), 2)
    rows = {"a": hospital(0, 60, 2, shift=0.0), "b": hospital(1, 200, 2, shift=4.0, prevalence=0.8)}
    models = solved(Moments(others_gram=1.0, others_classes=1.0, ridge=0.0), task, rows)
    x = np.concatenate([(one.x - one.x.mean(dim=0)).double().numpy() for one in rows.values()])
    y = np.concatenate([(one.y - one.y.double().mean()).numpy() for one in rows.values()])
    least_squares = np.linalg.lstsq(x, y, rcond=None)[0]
    for model in models.values():
        weight = (model.head.weight[1] - model.head.weight[0]).detach().double().numpy()
        cosine = weight @ least_squares / np.linalg.norm(weight) / np.linalg.norm(least_squares)
        assert cosine == pytest.approx(1.0, abs=1e-6)


def test_one_patient_of_a_rare_class_does_not_spoil_the_means_by_rounding():
    """Centred labels have an eigenvalue 0, which rounding of a large class makes positive."""
    task, own = Task(Mlp(hidden=()), (WIDTH,), 2), hospital(0, 403, 2)
    own = Rows(own.x, (torch.arange(403) >= 401).long(), own.patient)
    model = solved(Moments(others_gram=0.0, others_classes=0.0, ridge=0.0), task, {"a": own})["a"]
    theirs = LinearDiscriminantAnalysis(solver="eigen").fit(own.x.double().numpy(), own.y.numpy())
    ours = model(own.x).logits.softmax(dim=1).detach().numpy()
    assert np.abs(ours - theirs.predict_proba(own.x.double().numpy())).max() < 1e-3


def test_the_intercept_is_the_hospitals_own():
    task = Task(Mlp(hidden=()), (WIDTH,), 2)
    rows = {"a": hospital(0, 400, 2), "b": hospital(1, 400, 2, shift=3.0, prevalence=0.9)}
    for name, model in solved(Moments(others_classes=1.0), task, rows).items():
        said = model(rows[name].x).logits.softmax(dim=1)[:, 1].mean()
        assert said.item() == pytest.approx(float(rows[name].y.double().mean()), abs=0.03)


def test_one_logit_for_two_classes_answers_as_two_do():
    rows = {"a": hospital(0, 100, 2), "b": hospital(1, 100, 2)}
    one, two = (
        solved(Moments(), Task(Mlp(hidden=(), logits=logits), (WIDTH,), 2), rows)["a"] for logits in ("one", "all")
    )
    x = rows["a"].x
    assert torch.allclose(one(x).logits.softmax(dim=1), two(x).logits.softmax(dim=1), atol=1e-5)


def test_what_others_get_depends_on_who_took_part_and_on_no_order():
    """Bit for bit, also where a hospital's sums come later."""
    task, how = Task(Mlp(hidden=()), (WIDTH,), 2), Moments()
    rows = {name: hospital(k, 50, 2, shift=float(k)) for k, name in enumerate("ab")}
    state = how.start(initial_parameters(how, task, seed=0), {})
    replies = {
        name: how.train(
            Site(name, task, Work(), open_access({"train": own}, batch=8, seed=0)),
            how.send(state, name, TRAIN),
            Message(),
            TRAIN,
        )[0]
        for name, own in rows.items()
    }
    together = how.merge(state, replies)
    later = how.merge(how.merge(state, {"b": replies["b"]}), {"a": replies["a"]})
    ours, theirs = (how.send(one, "a", FINISH).tensors for one in (together, later))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_takes_one_round_however_many_the_others_have():
    task, work = testbed.make_task(), Work(lr=0.02, batch=5)
    crew = testbed.make_federation(
        Moments(), {"a": testbed.make_table(1), "b": testbed.make_table(2)}, task=task, work=work
    )
    outcome = testbed.train(Moments(), crew, task=task, work=work, schedule=Schedule(rounds=7))
    assert outcome.round == 2  # one round, and the finish
    assert outcome.best == 1


@pytest.mark.slow  # a smaller case: what little is learnt of 50 patients, below
def test_noise_costs_less_the_more_patients_there_are():
    """At noise 5, 50 patients leave little and 8,000 nearly everything (85 % right without noise)."""
    task, fresh = Task(Mlp(hidden=()), (WIDTH,), 2), hospital(9, 2000, 2)

    def right(n: int) -> float:
        rows = {name: hospital(seed, n, 2) for seed, name in enumerate("ab")}
        models = solved(Moments(), task, rows, noise=5.0)
        found = [(model(fresh.x).logits.argmax(dim=1) == fresh.y).double().mean() for model in models.values()]
        return float(torch.stack(found).mean())

    few, many = right(30), right(8000)
    assert (few < 0.75, many > 0.8) == (True, True), (few, many)


@pytest.mark.repeats(2)
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("noise", [5.0, 50.0, 500.0])
def test_much_noise_gives_doubtful_probabilities_and_not_zeros_and_ones(noise, classes):
    """Of such noise nothing can be learnt from 50 patients; the loss of who says so is ln(classes)."""
    task, rows = (
        Task(Mlp(hidden=()), (WIDTH,), classes),
        {name: hospital(k, 50, classes) for k, name in enumerate("ab")},
    )
    losses = [
        torch.nn.functional.cross_entropy(model(rows[name].x).logits, rows[name].y)
        for _ in range(10)
        for name, model in solved(Moments(), task, rows, noise=noise).items()
    ]
    assert torch.stack(losses).median().item() < 2 * np.log(classes)


def test_a_hospital_that_did_not_answer_gets_what_the_others_sums_give():
    """It came too late for the only round, or its budget was spent: not the network as it began."""
    task, how = Task(Mlp(hidden=()), (WIDTH,), 2), Moments()
    rows = {name: hospital(k, 200, 2) for k, name in enumerate("abc")}
    state, sites = how.start(initial_parameters(how, task, seed=0), {}), {}
    for name, own in rows.items():
        sites[name] = Site(name, task, Work(), open_access({"train": own}, batch=8, seed=0))
    replies = {name: how.train(sites[name], how.send(state, name, TRAIN), Message(), TRAIN)[0] for name in "ab"}
    sent = how.send(how.merge(state, replies), "c", Call("r", 2, "finish", {"a": 1, "b": 1}))
    model = loaded(task.network(), how.model(sites["c"], sent, Message())).eval()
    assert (model(rows["c"].x).logits.argmax(dim=1) == rows["c"].y).double().mean() > 0.8
    nobody = how.model(sites["c"], how.send(state, "c", FINISH), Message())
    assert torch.equal(nobody["head.weight"], section(state.tensors, "model")["head.weight"])


def sent_to(how: Moments, rows: dict[str, Rows], classes: int, noise: float | None) -> dict[str, torch.Tensor]:
    """What the first hospital gets after the only round."""
    task = Task(Mlp(hidden=()), (WIDTH,), classes)
    state, replies = how.start(initial_parameters(how, task, seed=0), {}), {}
    for name, own in rows.items():
        private = open_private({"train": own}, Protection(noise=noise or 0.0), source=Random(name).randbytes)
        plain = open_access({"train": own}, batch=8, seed=0)
        site = Site(name, task, Work(), plain if noise is None else private)
        replies[name] = how.train(site, how.send(state, name, TRAIN), Message(), TRAIN)[0]
    return dict(how.send(how.merge(state, replies), min(rows), FINISH).tensors)


@pytest.mark.repeats(2)
@pytest.mark.parametrize("noise", [None, 2.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_who_exchanged_labels_is_left_out_where_it_was_asked_for_and_nobody_else(classes, noise):
    rows = {name: hospital(k, 500, classes, shift=float(k)) for k, name in enumerate("abc")}
    spoilt = {**rows, "c": Rows(rows["c"].x, (rows["c"].y + classes // 2) % classes, rows["c"].patient)}
    asked = Moments(opposed="left_out")
    honest, all_of_them = sent_to(asked, rows, classes, noise), sent_to(Moments(), rows, classes, noise)
    assert all(torch.equal(honest[name], all_of_them[name]) for name in honest), "bit for bit, as nobody is opposed"
    found, kept = sent_to(asked, spoilt, classes, noise), sent_to(Moments(), spoilt, classes, noise)
    without = sent_to(Moments(), {name: rows[name] for name in "ab"}, classes, noise)
    for part in ("labels", "products"):
        assert torch.equal(found[f"total/{part}"], without[f"total/{part}"])
        assert not torch.equal(kept[f"total/{part}"], without[f"total/{part}"])
    assert torch.equal(found["total/gram"], kept["total/gram"]), "scatter has no labels"


def test_a_network_without_a_linear_head_is_refused_in_words():
    from federation.models.cam import Cam

    task = Task(Cam(), (1, 16, 16), 2)
    assert "linear layer" in Moments().complaints(task.network(), Work(), False)[0]
    assert Moments().complaints(Task(Cnn(widths=(8, 8)), (1, 16, 16), 2).network(), Work(), False) == []


def h_of(sizes):
    n = torch.tensor(sizes, dtype=torch.float64)
    return (n.diag() - torch.outer(n, n) / n.sum()) / n.sum()


@given(st.integers(0, 2**31), st.floats(1e-9, 1e3), st.integers(2, 400), st.integers(2, 400))
def test_noise_scales_the_difference_of_two_classes_and_does_not_turn_it(seed, noise, one, other):
    labels, products = h_of([one, other]), torch.randn(5, 2, generator=torch.Generator().manual_seed(seed)).double()
    products = products - products.mean(dim=1, keepdim=True)  # as centred sums are
    plain, shrunk = (products @ _inverse(labels, products, torch.tensor(s).double()) for s in (0.0, noise))
    first, second = plain[:, 1] - plain[:, 0], shrunk[:, 1] - shrunk[:, 0]
    assert torch.allclose(second, first * (first @ second) / (first @ first), atol=1e-9 * float(first.norm()))
    assert 0 <= float(first @ second) <= float(first @ first) * (1 + 1e-9)


def test_without_noise_nothing_is_shrunk():
    labels, products = h_of([50, 3, 7]), torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double()
    products = products - products.mean(dim=1, keepdim=True)
    plain = torch.linalg.pinv(labels, hermitian=True)
    assert torch.allclose(_inverse(labels, products, torch.tensor(0.0)), plain)
    assert torch.allclose(products @ _inverse(labels, products, torch.tensor(1e-12)), products @ plain, rtol=1e-6)


def test_noised_means_of_rare_classes_are_nearer_to_the_truth_when_shrunk():
    g = torch.Generator().manual_seed(2)
    labels, off, raw, shrunk = h_of([400, 200, 100, 8, 4, 2]), 0.01, [], []
    for _ in range(20):
        means = torch.randn(24, 6, generator=g).double()
        spread = means - (means @ torch.tensor([400.0, 200, 100, 8, 4, 2]).double() / 714)[:, None]
        products = spread @ labels + off * torch.randn(24, 6, generator=g).double()
        for kept, noise in ((raw, 0.0), (shrunk, off**2)):
            found = products @ _inverse(labels, products, torch.tensor(noise).double())
            kept.append(float((found - spread).sub_((found - spread).mean(dim=1, keepdim=True)).square().mean()))
    assert sum(shrunk) < 0.25 * sum(raw) and all(a < b for a, b in zip(shrunk, raw, strict=True))


def test_what_all_sites_get_is_added_up_once_and_is_the_same_for_each():
    """With a thousand sites a total of its own for each took seven minutes."""
    how, replies = Moments(), {}
    g = torch.Generator().manual_seed(3)
    for name in "abc":
        sums, square = torch.randn(2, 4, generator=g).double(), torch.randn(4, 4, generator=g).double()
        parts = {"sizes": torch.tensor([5.0, 7.0]).double(), "sums": sums, "gram": square @ square.T}
        parts["variance"] = torch.zeros((), dtype=torch.float64)
        replies[name] = Message({f"{part}/head.weight": one for part, one in parts.items()})
    call = Call("run", 2, "finish", {"a": 1, "b": 1, "c": 1})
    state = how.merge(Message({}), replies)
    first, second = (section(how.send(state, site, call).tensors, "total") for site in "ab")
    assert first and all(first[part] is second[part] for part in first)
    again = how.merge(Message({}), {name: replies[name] for name in "ac"})
    left = how.without(state, frozenset("b"))
    assert all(torch.equal(left.tensors[name], again.tensors[name]) for name in again.tensors)
    assert set(left.tensors) == set(again.tensors)
