"""PGFed and PGFedMo: laws, a step by hand, and algorithm 1 in slow code with absent sites and lost replies."""

from __future__ import annotations

import copy

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory, load_stored_reply
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_events
from federation.task import Task
from personalize.pgfed import PGFed
from privacy.dp.access import Batch, Rows
from privacy.dp.events import Gaussian, Part, PoissonSampled, SelfComposed, compose_events
from privacy.dp.protection import Protection
from privacy.message import Call, Message


@pytest.mark.parametrize("work", [reference.BRIEF, Work(optimizer="adam", lr=0.02, batch=5)], ids=["sgd", "adam"])
@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_without_mu_the_global_model_is_fedavgs_and_the_sites_is_what_it_replied(task, sites, work):
    left, crew = reference.trained(PGFed(mu=0.0), sites, task, work, rounds=3, participation=reference.PARTICIPATION)
    right, other = reference.trained(FedAvg(), sites, task, work, rounds=3, participation=reference.PARTICIPATION)
    model = section(left.state.tensors, "model")
    assert testbed.are_equal(model, section(right.state.tensors, "model"))
    for name, hospital in crew.items():
        if left.merged.get(name):
            replied = section(testbed.from_bytes(stored(other[name], left.merged[name])).tensors, "model")
            assert testbed.are_equal(testbed.newest_model(hospital), replied)


def stored(hospital, round_):
    return load_stored_reply(hospital.disk, f"train-{round_}")


def test_pgfedmo_without_momentum_is_pgfed():
    plain, crew = reference.trained(PGFed(eta_2=0.1))
    momentum, other = reference.trained(PGFed(name="pgfedmo", beta=0.0, eta_2=0.1))
    assert testbed.are_equal(plain.state.tensors, momentum.state.tensors)
    assert all(testbed.are_equal(testbed.newest_model(crew[name]), testbed.newest_model(other[name])) for name in crew)


def test_two_rounds_on_two_sites_by_hand():
    """f = ((w x + b - y)^2) / 2 for each of two outputs, one example a site, one step a round."""
    x, y = {"a": 1.0, "b": 2.0}, {"a": 1, "b": 0}
    rows = {s: Rows(torch.tensor([[x[s]]]), torch.tensor([y[s]]), torch.zeros(1, dtype=torch.int64)) for s in x}
    task = Task(testbed.Linear(), (1,), 2)
    work = Work(optimizer="sgd", lr=0.1, batch=2, epochs=None, steps=1)
    mu, eta_2 = 0.3, 0.05
    sites = {s: {"train": r, "validation": r} for s, r in rows.items()}
    outcome, crew = reference.trained(PGFed(mu=mu, eta_2=eta_2), sites, task, work, rounds=2)

    start = initial_parameters(FedAvg(), task, seed=1)
    flat = lambda params: [float(v) for key in ("head.weight", "head.bias") for v in params[key].flatten()]  # noqa: E731
    dot = lambda left, right: sum(p * q for p, q in zip(left, right, strict=True))  # noqa: E731

    def risk(theta, s):
        residual = [theta[o] * x[s] + theta[2 + o] - y[s] for o in (0, 1)]
        return sum(e * e for e in residual) / 2, [residual[0] * x[s], residual[1] * x[s], *residual]

    glob, alpha, past = flat(start), {i: dict.fromkeys(x, 0.5) for i in x}, {}
    for _ in (1, 2):
        theta, now = {}, {}
        for i in x:
            aid = [mu * sum(alpha[i][j] * past[j][1][k] for j in past) for k in range(4)]
            slope = [mu / 2 * sum(past[j][1][k] for j in past) for k in range(4)]
            theta[i] = [w - 0.1 * (g + extra) for w, g, extra in zip(glob, risk(glob, i)[1], aid, strict=True)]
            for j in past:
                g_1 = mu * (past[j][0] - dot(past[j][1], past[j][2]))
                alpha[i][j] = max(0.0, alpha[i][j] - eta_2 * (g_1 + dot(slope, theta[i])))
            now[i] = (*risk(theta[i], i), theta[i])
        glob, past = [sum(theta[i][k] for i in x) / 2 for k in range(4)], now
    assert flat(section(outcome.state.tensors, "model")) == pytest.approx(glob, abs=1e-5)
    for i in x:
        assert flat(testbed.newest_model(crew[i])) == pytest.approx(theta[i], abs=1e-5)
    found = outcome.state.tensors["between/alpha"].flatten().tolist()
    assert found == pytest.approx([alpha[i][j] for i in "ab" for j in "ab"], abs=1e-6)


def slow(algorithm, task, sites, lost, rounds):
    """Algorithm 1; returns the global model, each site's model and the matrix alpha."""
    model = reference.network(task)
    names = [n for n, _ in model.named_parameters()]
    order = sorted(sites)
    alpha = {i: {j: 1 / len(order) for j in order} for i in order}
    past, momentum, personal = {}, {}, {}
    for r in range(1, rounds + 1):
        present, locals_, now = reference.present(r, lost), {}, {}
        for i in present:
            own = copy.deepcopy(model).train()
            aid = {n: sum(algorithm.mu * alpha[i][j] * past[j]["grad"][n] for j in past) for n in names} if past else {}
            if past:
                old = momentum.get(i, dict.fromkeys(names, 0.0))
                aid = {n: (1 - algorithm.momentum) * aid[n] + algorithm.momentum * old[n] for n in names}
                momentum[i] = aid
            rows = sites[i]["train"]
            for x, y in reference.batches(rows, r, i, reference.BRIEF):
                grads = reference.slopes(own, x, y)
                with torch.no_grad():
                    for (n, p), g in zip(own.named_parameters(), grads, strict=True):
                        p -= 0.1 * (g + aid.get(n, 0.0))
                theta = {n: p.detach() for n, p in own.named_parameters()}
                for j in past:
                    if algorithm.slopes == "each":
                        g_2 = algorithm.mu * sum(float((past[j]["grad"][n] * theta[n]).sum()) for n in names)
                    else:
                        mean = {n: sum(past[k]["grad"][n] for k in past) / len(past) for n in names}
                        g_2 = algorithm.mu * sum(float((mean[n] * theta[n]).sum()) for n in names)
                    alpha[i][j] = max(0.0, alpha[i][j] - algorithm.eta_2 * (past[j]["g_1"] + g_2))
            own.eval()
            loss = task.objective(own, Batch(rows.x, rows.y)).mean()
            grads = dict(zip(names, torch.autograd.grad(loss, list(own.parameters())), strict=True))
            inner = sum(float((grads[n] * p.detach()).sum()) for n, p in own.named_parameters())
            now[i] = {"grad": grads, "g_1": algorithm.mu * (float(loss.detach()) - inner)}
            locals_[i] = personal[i] = own
        past = now
        model = reference.averaged([locals_[i] for i in present], [len(sites[i]["train"].y) for i in present])
    return model, personal, alpha


@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_LATER], ids=["", "lost replies"])
@pytest.mark.parametrize(
    "algorithm",
    [PGFed(mu=0.4, eta_2=0.05), PGFed(name="pgfedmo", beta=0.6, mu=0.4, eta_2=0.05, slopes="each")],
    ids=["pgfed", "pgfedmo"],
)
@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_several_rounds_against_a_slow_implementation(task, sites, algorithm, lost):
    outcome, crew = reference.trained(
        algorithm, sites, task=task, rounds=5, lost=lost, participation=reference.PARTICIPATION
    )
    model, personal, alpha = slow(algorithm, task, sites, lost, 5)
    reference.agree(section(outcome.state.tensors, "model"), model.state_dict())
    for name, own in personal.items():
        reference.agree(testbed.newest_model(crew[name]), own.state_dict())
    order = sorted(sites)
    expected = torch.tensor([[alpha[i][j] for j in order] for i in order], dtype=torch.float64)
    assert torch.allclose(outcome.state.tensors["between/alpha"], expected, atol=1e-5)
    assert float((expected - 1 / 3).abs().max()) > 1e-3


def test_only_those_of_the_round_before_are_heard_and_alpha_never_falls_below_zero():
    outcome, _ = reference.trained(PGFed(mu=1.0, eta_2=50.0), lost=frozenset({(4, "b")}))
    heard = {name.split("/")[1] for name in outcome.state.tensors if name.startswith("gradient/")}
    assert heard == set(outcome.state.facts["g_1"]) == {"a", "c"}
    alpha = outcome.state.tensors["between/alpha"]
    assert float(alpha.min()) == 0.0


def test_an_alpha_that_is_no_number_or_of_nobody_changes_nothing():
    algorithm = PGFed(eta_2=0.1)
    outcome, crew = reference.trained(algorithm, rounds=2)
    said = testbed.from_bytes(stored(crew["a"], 2)).tensors
    before = outcome.state.tensors["between/alpha"]
    for bad in ({"b": "x"}, {"b": float("inf")}, {"nobody": 0.5}, {"b": None}):
        reply = Message(said, {"n": 3, "risk": 0.5, "alpha": bad})
        assert torch.equal(algorithm.merge(outcome.state, {"a": reply}).tensors["between/alpha"], before)
    reply = Message(said, {"n": 3, "risk": 0.5, "alpha": {"b": -2.0}})
    assert float(algorithm.merge(outcome.state, {"a": reply}).tensors["between/alpha"][0, 1]) == 0.0


def test_alpha_that_does_not_learn_asks_for_no_risk_and_sends_no_slope():
    algorithm = PGFed(eta_2=0.0, alpha_0=0.7)
    outcome, crew = reference.trained(algorithm, rounds=3)
    assert set(outcome.state.tensors["between/alpha"].flatten().tolist()) == {0.7}
    said = testbed.from_bytes(stored(crew["a"], 3))
    assert set(said.facts["algorithm"]) == {"n"}
    sent = algorithm.send(outcome.state, "a", Call("law", 4, "train", dict.fromkeys(reference.UNEVEN, 3)))
    assert {name.split("/")[0] for name in sent.tensors} == {"model", "aid"}


def test_the_others_help_more_than_nothing():
    """The first-order estimate of the others' risk does lower the others' risk, at the price of the own one."""
    risks = {}
    for mu in (0.0, 1.0):
        _, crew = reference.trained(PGFed(mu=mu, eta_2=0.0), rounds=6)
        net = testbed.make_task().network()
        net.load_state_dict(testbed.newest_model(crew["a"]))
        others = [reference.UNEVEN[s]["train"] for s in "bc"]
        with torch.no_grad():
            risks[mu] = sum(float(testbed.make_task().objective(net, Batch(rows.x, rows.y)).mean()) for rows in others)
    assert risks[1.0] < risks[0.0]


def test_private_training_needs_a_fixed_alpha_and_pays_for_the_full_gradient():
    network, work = testbed.make_task().network(), Work(optimizer="sgd", lr=0.05, batch=24, epochs=2)
    (text,) = PGFed().complaints(network, work, True)
    assert "eta_2: 0" in text and "0.01" in text
    fixed = PGFed(eta_2=0.0)
    assert fixed.complaints(network, work, True) == PGFed().complaints(network, work, False) == []
    how = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, validation_noise=3.0, cut="c")
    seen = rehearse_events(
        fixed, testbed.make_task(), work, initial_parameters(fixed, testbed.make_task(), seed=0), how
    )
    steps = SelfComposed(Part("c", "train", PoissonSampled(0.4, Gaussian(1.1))), 4)
    assert seen.training == compose_events([steps, Part("c", "train", PoissonSampled(1.0, Gaussian(1.1)))])


def test_a_site_remembers_its_momentum_and_notes_its_alpha():
    _, crew = reference.trained(PGFed(name="pgfedmo", beta=0.5), rounds=3)
    memory = load_newest_memory(crew["a"].disk)
    assert section(memory.tensors, "aid").keys() == dict(testbed.make_task().network().named_parameters()).keys()
    assert {name for name in memory.facts["notes"]["3"] if name.startswith("alpha/")} == {
        "alpha/a",
        "alpha/b",
        "alpha/c",
    }


def test_settings_out_of_range_are_all_named_at_once():
    with pytest.raises(ValueError, match=r"mu .* -1.*eta_2 .* -2.*alpha_0 .* -3.*beta .* 1.0.*pgfedmo"):
        PGFed(mu=-1, eta_2=-2, alpha_0=-3, beta=1.0)
