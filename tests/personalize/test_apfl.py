"""APFL: alpha held at its ends is local training and FedAvg, and slow implementations from the paper and the code."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.cam import Cam
from federation.parameters import section
from federation.task import Task
from personalize.apfl import Apfl

MIXES = ["outputs", "parameters"]


def personal(crew, site):
    return {
        n.removeprefix("personal."): v for n, v in testbed.newest_model(crew[site]).items() if n.startswith("personal.")
    }


def shared(outcome):
    return {n.removeprefix("shared."): v for n, v in section(outcome.state.tensors, "model").items()}


@pytest.mark.repeats(3)
@pytest.mark.parametrize("work", [reference.ADAM, reference.SGD], ids=["adam", "sgd"])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("kind", reference.KINDS)
def test_alpha_held_at_1_is_local_training(kind, mix, work):
    _, ours = reference.run(Apfl(alpha=1.0, adaptive=False, mix=mix), kind, work)
    _, local = reference.run(Local(), kind, work)
    for site in reference.NAMES:
        assert testbed.are_equal(personal(ours, site), testbed.newest_model(local[site])), site


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("kind", reference.KINDS)
def test_the_shared_twin_is_fedavgs_whatever_alpha_does(kind, mix):
    ours, _ = reference.run(Apfl(mix=mix, alpha_lr=0.5), kind, reference.ADAM)
    average, _ = reference.run(FedAvg(), kind, reference.ADAM)
    assert testbed.are_equal(shared(ours), section(average.state.tensors, "model"))


def test_alpha_held_at_0_answers_as_fedavg_does():
    task, sites = reference.KINDS["mlp"]
    algorithm = Apfl(alpha=0.0, adaptive=False)
    _, ours = reference.run(algorithm, "mlp", reference.ADAM)
    _, average = reference.run(FedAvg(), "mlp", reference.ADAM)
    for site in reference.NAMES:
        mixed, plain = algorithm.network(task), task.network()
        mixed.load_state_dict(testbed.newest_model(ours[site]))
        plain.load_state_dict(testbed.newest_model(average[site]))
        x = sites[site]["validation"].x
        assert torch.equal(task.probabilities(mixed, x), task.probabilities(plain, x))


def by_outputs(v, w, alpha, x, y):
    """Slopes of v and alpha where the outputs are mixed: the chain rule from the softmax on, by hand."""
    o_v, o_w = v(x).logits, w
    m = alpha * o_v + (1 - alpha) * o_w
    d = (m.softmax(dim=1) - functional.one_hot(y, 2)).detach() / len(y)
    g_v = torch.autograd.grad(o_v, list(v.parameters()), grad_outputs=alpha * d)
    return g_v, float((d * (o_v - o_w).detach()).sum())


def by_parameters(v, w, alpha, x, y):
    """The same where the parameters are: <v - w, grad f(m)> for alpha, alpha grad f(m) for v."""
    m = copy.deepcopy(v)
    with torch.no_grad():
        for p, a, b in zip(m.parameters(), v.parameters(), w, strict=True):
            p.copy_(alpha * a + (1 - alpha) * b)
    g_m = reference.slopes(m, x, y)
    with torch.no_grad():
        for old, new in zip(v.buffers(), m.buffers(), strict=True):
            old.copy_(new)
    slope = sum(float(((a.detach() - b) * g).sum()) for a, b, g in zip(v.parameters(), w, g_m, strict=True))
    return [alpha * g for g in g_m], slope


def one_site(w, v, alpha, rows, round_, site, *, mix, variant, alpha_lr):
    """A round at a site; w and v change in place. Returns alpha."""
    for step, (x, y) in enumerate(reference.batches(rows, round_, site)):
        logits = w(x).logits
        g_w = torch.autograd.grad(functional.cross_entropy(logits, y), list(w.parameters()))
        old = [p.detach().clone() for p in w.parameters()]
        rule, other = (by_outputs, logits.detach()) if mix == "outputs" else (by_parameters, old)
        g_v, slope = rule(v, other, alpha, x, y)
        with torch.no_grad():
            for model, slopes in ((w, g_w), (v, g_v)):
                for p, g in zip(model.parameters(), slopes, strict=True):
                    p -= 0.05 * g
        if step == 0:
            if variant == "official":
                pairs = zip(v.parameters(), w.parameters(), g_v, g_w, strict=True)
                slope = sum(float(((a - b).detach() * (alpha * c + (1 - alpha) * d)).sum()) for a, b, c, d in pairs)
                slope += 0.02 * alpha
            alpha = min(1.0, max(0.0, alpha - alpha_lr * slope))
    return alpha


@pytest.mark.parametrize("variant", ["paper", "official"])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("kind", reference.KINDS)
def test_it_is_algorithm_1(kind, mix, variant):
    task, sites = reference.KINDS[kind]
    w = reference.network(task)
    v = {site: reference.network(task) for site in sites}
    alpha = dict.fromkeys(sites, 0.4)
    for r in range(1, reference.ROUNDS + 1):
        locals_ = []
        for site in reference.present(r):
            own, rows = copy.deepcopy(w), sites[site]["train"]
            alpha[site] = one_site(own, v[site], alpha[site], rows, r, site, mix=mix, variant=variant, alpha_lr=0.8)
            locals_.append(own)
        w = reference.averaged(locals_, [len(sites[s]["train"].y) for s in reference.present(r)])
    outcome, crew = reference.run(Apfl(alpha=0.4, alpha_lr=0.8, mix=mix, variant=variant), kind)
    reference.agree(shared(outcome), w.state_dict())
    for site in reference.NAMES:
        reference.agree(personal(crew, site), v[site].state_dict())
        assert float(testbed.newest_model(crew[site])["alpha"]) == pytest.approx(alpha[site], abs=2e-5)
    assert 0.4 not in alpha.values() and any(0 < value < 1 for value in alpha.values())


@pytest.mark.parametrize("optimizer", [reference.ADAM, reference.SGD], ids=["adam", "sgd"])
def test_alpha_stays_in_its_range_and_is_a_note_of_the_site(optimizer):
    _, crew = reference.run(Apfl(alpha_lr=1e3), "mlp", optimizer)
    for site in reference.NAMES:
        alpha = float(testbed.newest_model(crew[site])["alpha"])
        assert alpha in (0.0, 1.0)
        notes = load_newest_memory(crew[site].disk).facts["notes"]
        assert notes[max(notes)] == {"alpha": alpha}


@pytest.mark.parametrize("mix", MIXES)
def test_a_network_with_maps_is_mixed_too(mix):
    task = Task(Cam(widths=(8, 8, 8, 8)), (1, 16, 16), 2)
    module = Apfl(alpha=1.0, mix=mix).network(task).eval()
    with torch.no_grad():
        for p in module.shared.parameters():
            p.add_(1.0)
    x = torch.rand(3, 1, 16, 16)
    mixed, own = module(x), module.personal(x)
    assert torch.equal(mixed.logits, own.logits) and torch.equal(mixed.maps, own.maps)


def test_settings_that_make_no_sense_are_told_all_at_once():
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], found 2.*; alpha_lr must be > 0, found 0"):
        Apfl(alpha=2.0, alpha_lr=0.0)
