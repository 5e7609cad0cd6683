"""Several findings as labels: one number an example, every method trains on them or says why it cannot; the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import log_loss

import methods
from federation.algorithm import find_class_needs
from federation.alone import Alone, _fit_ridge, _fit_svm, fit_calibrated_logits, fit_machine
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.findings import MOST_FINDINGS, NO, UNKNOWN, YES, decode_findings, encode_findings, findings_loss
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.unet import UNet
from federation.parameters import loaded
from federation.rehearsal import initial_parameters, rehearse_events, zero_patients
from federation.task import Output, Task
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Call, Message

K = 3
TABLE = Task(Mlp(hidden=(6,)), (4,), K, "findings")
IMAGES = Task(Cnn(widths=(8, 8), norm="group"), (1, 8, 8), K, "findings")
NEED = {"feddg", "fedsld", "dp_head", "fedrod", "moe", "moments", "pfedmoap", "private_intercept", "zero_shot"}
"""Methods whose equations need one class an example."""
WORK = Work(optimizer="sgd", lr=0.1, epochs=10)
states_of_examples = st.integers(1, MOST_FINDINGS).flatmap(
    lambda number: st.lists(
        st.lists(st.sampled_from((NO, YES, UNKNOWN)), min_size=number, max_size=number), min_size=1, max_size=6
    )
)


def table(task: Task, n: int = 48, seed: int = 0, *, unknown: float = 0.2) -> Rows:
    """Finding k where input k is above 0; some unknown; two rows a patient."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *task.inputs, generator=g)
    states = (x.flatten(1)[:, : task.classes] > 0).long()
    states[torch.rand(states.shape, generator=g) < unknown] = UNKNOWN
    return Rows(x, encode_findings(states), torch.arange(n) // 2)


@given(states_of_examples)
def test_one_number_holds_all_findings_and_gives_them_back(examples):
    states = torch.tensor(examples)
    codes = encode_findings(states)
    assert codes.dtype == torch.int64 and bool((codes >= 0).all())
    assert decode_findings(codes, states.shape[1]).equal(states)


@given(st.integers(1, MOST_FINDINGS).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, 3**k - 1))))
def test_each_number_below_a_power_of_three_is_one_set_of_findings(case):
    number, code = case
    assert int(encode_findings(decode_findings(torch.tensor([code]), number))) == code


def trained(algorithm, task: Task, site: Site, rounds: int = 6):
    """The network of one hospital after some rounds alone, and its first network."""
    initial = initial_parameters(algorithm, task, seed=0)
    state, memory = algorithm.start(initial, {"a": algorithm.introduce(site)}), Message()
    for number in range(1, rounds + 1):
        call = Call("run", number, "train", {"a": number - 1})
        reply, memory = algorithm.train(site, algorithm.send(state, "a", call), memory, call)
        state = algorithm.merge(state, {"a": reply})
    last = algorithm.send(state, "a", Call("run", rounds + 1, "finish", {"a": rounds}))
    return loaded(algorithm.network(task), algorithm.model(site, last, memory)), loaded(
        algorithm.network(task), initial
    )


@pytest.mark.repeats(16)
@pytest.mark.parametrize("algorithm", methods.ALL, ids=lambda one: one.name)
def test_every_method_learns_findings_or_says_why_it_cannot(algorithm):
    """A method that needs classes says so by what it declares; every other one lowers the loss or never trains."""
    task = IMAGES if algorithm.name in ("fedavg_turns", "fedbn") else TABLE
    why = find_class_needs(algorithm, task)
    assert bool(why) == (algorithm.name in NEED), why
    if why:
        assert "the task is several findings" in why[0] and "leave this method out" in why[0]
        return
    assert algorithm.complaints(algorithm.network(task), WORK, False) == []
    rows = table(task)
    site = Site("a", task, WORK, open_access({"train": rows, "validation": rows}, batch=6, seed=0))
    after, before = (site.measure(module, task.validation, "validation") for module in trained(algorithm, task, site))
    assert after < 0.995 * before or algorithm.name == "as_begun", (after, before)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ((Cam(), (1, 32, 32), 3), "gives no findings"),
        ((UNet(), (1, 32, 32), 3), "gives no findings"),
        ((Mlp(hidden=(), logits="one"), (4,), 2), "each finding needs its own"),
        ((Mlp(), (4,), 1), "2 to 30"),
        ((Mlp(), (4,), MOST_FINDINGS + 1), "2 to 30"),
    ],
)
def test_a_network_that_gives_no_findings_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Task(*wrong, "findings")


def test_findings_have_no_order():
    with pytest.raises(ValueError, match="only classes are ordered"):
        Task(Mlp(), (4,), 3, "findings", ordered=True)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(-9, 9), st.sampled_from((NO, YES, UNKNOWN))), min_size=3, max_size=3)))
def test_the_loss_is_the_mean_log_loss_of_the_known_findings(rows):
    if not rows:
        return
    logits = torch.tensor([[a for a, _ in row] for row in rows], dtype=torch.float64, requires_grad=True)
    states = torch.tensor([[b for _, b in row] for row in rows])
    losses = findings_loss(logits, encode_findings(states))
    for loss, row in zip(losses.tolist(), rows, strict=True):
        known = [(1 / (1 + np.exp(-a)), b) for a, b in row if b != UNKNOWN]
        expected = log_loss([b for _, b in known], [p for p, _ in known], labels=[0, 1]) if known else 0.0
        assert loss == pytest.approx(expected, abs=1e-9)
    losses.sum().backward()
    assert bool((logits.grad[states == UNKNOWN] == 0).all()), "an unknown finding moves nothing"
    assert float(logits.grad.abs().sum(dim=1).max()) <= 1, "the slope is bounded as that of cross-entropy is"


def test_one_loss_trains_and_compares_and_probabilities_are_each_for_itself():
    rows = table(TABLE, 5)
    network = TABLE.network()
    output = network(rows.x)
    assert TABLE.losses(output, rows.y).equal(TABLE.comparable_loss(output, rows.y))
    assert TABLE.losses(output, rows.y).equal(findings_loss(output.logits, rows.y))
    assert TABLE.probabilities(network, rows.x).allclose(Output(*output).logits.sigmoid())


@pytest.mark.parametrize(("name", "learn"), [("local_ridge", _fit_ridge), ("local_svm", _fit_svm)])
def test_a_floor_learns_each_finding_as_two_classes_of_the_rows_where_it_is_known(name, learn):
    rows = table(TABLE, 80)
    module = Alone(name=name).network(TABLE)
    fit_machine(module, rows.x, rows.y, rows.patient, K, "findings")
    z, states = module.embed_rows(rows.x).detach().double().numpy(), decode_findings(rows.y, K).numpy()
    p = TABLE.probabilities(module, rows.x).numpy()
    for finding in range(K):
        known = states[:, finding] != UNKNOWN
        args = z[known], states[known, finding], rows.patient.numpy()[known], 2
        weight, bias = fit_calibrated_logits(learn, *args)
        logits = z @ (weight[1] - weight[0]) + bias[1] - bias[0]
        assert p[:, finding] == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-4)


@pytest.mark.parametrize("name", ["local_ridge", "local_svm"])
def test_a_floor_says_nothing_of_a_finding_that_it_never_knew(name):
    rows = table(TABLE)
    states = decode_findings(rows.y, K)
    states[:, 1] = UNKNOWN
    module = Alone(name=name).network(TABLE)
    fit_machine(module, rows.x, encode_findings(states), rows.patient, K, "findings")
    assert TABLE.probabilities(module, rows.x)[:, 1].tolist() == pytest.approx([0.5] * len(rows.y))


def test_private_training_cuts_each_patient_whatever_is_known():
    """Of two sets of patients that differ in one, sums of gradients differ by the clip at most."""
    rows, protection = table(TABLE, 24), Protection(clip=0.01, noise=0.0, sampling=1.0, views=1)
    rows = Rows(rows.x, rows.y, torch.arange(len(rows.y)))
    other = Rows(rows.x.clone(), rows.y.clone(), rows.patient)
    other.x[0], other.y[0] = 100.0, encode_findings(torch.tensor([YES, UNKNOWN, UNKNOWN]))
    sums = []
    for each in (rows, other):
        access = open_private({"train": each, "validation": each}, protection, counts=NOTHING, sizes={"train": 24})
        network = loaded(TABLE.network(), initial_parameters(FedAvg(), TABLE, seed=0))
        gradient = access.gradient(network, TABLE.objective, access.draw()).gradient
        sums.append(torch.cat([value.flatten() for value in gradient.values()]) * 24)
    assert 0 < float((sums[0] - sums[1]).norm()) <= 2 * 0.01 * (1 + 1e-6)


def test_private_training_is_rehearsed_as_it_is_for_classes():
    protection = Protection(clip=1.0, noise=1.0, sampling=0.5)
    events = []
    for task in (TABLE, Task(Mlp(hidden=(6,)), (4,), K)):
        initial = initial_parameters(FedAvg(), task, seed=0)
        events.append(rehearse_events(FedAvg(), task, WORK, initial, protection))
    assert events[0] == events[1]


def test_invented_patients_have_no_finding_and_all_in_turn():
    states = decode_findings(zero_patients(TABLE, 4)["train"].y, K)
    assert states.tolist() == [[NO] * K, [YES] * K] * 2
