"""FENDA-FL: two extractors side by side, one of which travels."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_reply
from federation.task import Task, cross_entropy
from personalize.fedper import FedPer
from personalize.fenda import Fenda, Nothing
from privacy.dp.access import Batch, Rows

ADAM = Work(optimizer="adam", lr=0.02, batch=5)
ROUNDS = 4


def test_heart_disease_has_151_parameters_and_one_logit_stands_against_zero():
    task = Task(Mlp(hidden=(5,), dropout=0.3, logits="one"), (13,), 2)
    module = Fenda().network(task).eval()
    assert sum(p.numel() for p in module.parameters()) == 151
    x = torch.randn(7, 13)
    p = module.state_dict()
    z = [torch.relu(x @ p[f"{side}.stem.0.weight"].T + p[f"{side}.stem.0.bias"]) for side in ("shared", "local")]
    one = torch.cat(z, dim=1) @ p["head.weight"].T + p["head.bias"]
    assert torch.allclose(module(x).logits, torch.cat([torch.zeros(7, 1), one], dim=1), atol=1e-6)
    assert torch.allclose(module(x).features, torch.cat(z, dim=1), atol=1e-6)


@dataclass(frozen=True, kw_only=True)
class FedPerFrom(FedPer):
    """FedPer that begins where FENDA without a local extractor begins."""

    def network(self, task):
        module = super().network(task)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            start = Fenda(local=Nothing()).network(task).state_dict()
        module.load_state_dict({name.removeprefix("shared."): value for name, value in start.items()})
        return module


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize(
    ("task", "sites"),
    [
        (Task(Mlp(hidden=(6, 5), dropout=0.4), (4,), 2), reference.TABLES),
        (Task(Mlp(hidden=(6,), dropout=0.4, logits="one"), (4,), 2), reference.TABLES),
        (reference.CNN, reference.IMAGES),
    ],
)
def test_without_a_local_extractor_it_is_fedper(task, sites, weights):
    fenda, ours = reference.trained(
        Fenda(local=Nothing(), weights=weights),
        sites,
        task,
        ADAM,
        reference.LOST_OF_ALL,
        participation=reference.PARTICIPATION,
    )
    fedper, theirs = reference.trained(
        FedPerFrom(weights=weights), sites, task, ADAM, reference.LOST_OF_ALL, participation=reference.PARTICIPATION
    )
    assert fenda.losses == fedper.losses
    for site in sites:
        model = {name.removeprefix("shared."): value for name, value in testbed.newest_model(ours[site]).items()}
        assert testbed.are_equal(model, testbed.newest_model(theirs[site]))


def slow_work(nets, draws, loss_of, lr=0.05):
    """Plain SGD on the parameters of `nets` over the mini-batches that a site draws."""
    for net in nets:
        net.train()
    params = [p for net in nets for p in net.parameters()]
    for x, y in draws:
        grads = torch.autograd.grad(loss_of(x, y), params, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= 0.0 if g is None else lr * g


@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_OF_ALL], ids=["", "lost replies"])
@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_it_is_the_papers_two_extractors_over_rounds_with_absent_sites_and_lost_replies(weights, lost):
    outcome, crew = reference.trained(
        Fenda(weights=weights),
        reference.IMAGES,
        reference.CNN,
        reference.SGD,
        lost,
        participation=reference.PARTICIPATION,
    )
    initial = initial_parameters(Fenda(), reference.CNN, seed=1)

    def fresh(side):
        net = reference.CNN.network()
        net.load_state_dict(reference.part(initial, side), strict=False)
        return net

    shared, head = fresh("shared"), torch.nn.Linear(32, 2)
    head.load_state_dict(reference.part(initial, "head"))
    local = {site: fresh("local") for site in reference.IMAGES}
    heads = {site: copy.deepcopy(head) for site in reference.IMAGES}
    for r in range(1, ROUNDS + 1):
        came, sizes = [], []
        for site in reference.present(r, lost):
            w, w_i, theta = (copy.deepcopy(net) for net in (shared, local[site], heads[site]))

            def loss(x, y, w=w, w_i=w_i, theta=theta):
                logits = theta(torch.cat([w(x).features, w_i(x).features], dim=1))
                return functional.cross_entropy(logits, y)

            rows = reference.IMAGES[site]["train"]
            slow_work((w, w_i, theta), reference.batches(rows, r, site), loss)
            local[site], heads[site] = w_i, theta
            came.append(w)
            sizes.append(len(rows.y) if weights == "size" else 1)
        shared = reference.averaged(came, sizes)
    for site in reference.IMAGES:
        final = testbed.newest_model(crew[site])
        for part, net in (("shared", shared), ("local", local[site]), ("head", heads[site])):
            for name, value in reference.part(final, part).items():
                assert torch.allclose(value.float(), net.state_dict()[name].float(), atol=2e-5), (site, part, name)
    assert {name.split(".")[0] for name in section(outcome.state.tensors, "model")} == {"shared"}


def test_only_the_shared_extractor_travels():
    task = testbed.make_task()
    initial = initial_parameters(Fenda(), task, seed=1)
    reply = rehearse_reply(Fenda(), task, ADAM, initial)
    assert set(reply.tensors) == {f"model/{name}" for name in initial if name.startswith("shared.")}


@pytest.mark.parametrize("model", [Cnn(widths=(8, 16)), Cam(widths=(8, 8, 8, 8)), ResNet18(width=8, small=True)])
@pytest.mark.parametrize("local", [None, Nothing(), Cnn(widths=(8, 8)), Mlp(hidden=(3,))])
def test_every_image_network_can_be_an_extractor_and_its_head_is_gone(model, local):
    task = Task(model, (1, 16, 16), 2)
    module = Fenda(local=local).network(task).eval()
    names = [name for name, _ in module.named_parameters()]
    assert {name for name in names if "head" in name} == {"head.weight", "head.bias"}
    x = torch.rand(3, 1, 16, 16)
    output = module(x)
    assert output.logits.shape == (3, 2) and output.maps is None
    plain = task.network().eval()
    plain.load_state_dict(reference.part(module.state_dict(), "shared"), strict=False)
    width = plain(x).features.shape[1]
    assert torch.equal(output.features[:, :width], plain(x).features)
    assert local == Nothing() or output.features.shape[1] > width
    assert Fenda(local=local).complaints(module, ADAM, False) == []


def test_with_cam_the_loss_is_cross_entropy():
    task = Task(Cam(widths=(8, 8, 8, 8)), (1, 16, 16), 2)
    x, y = torch.rand(8, 1, 16, 16), torch.tensor([0, 1] * 4)
    rows = Rows(x, y, torch.arange(8))
    work = Work(optimizer="sgd", lr=0.1, batch=8)
    _, crew = reference.trained(Fenda(), {"a": {"train": rows, "validation": rows}}, task, work, rounds=1)
    module = Fenda().network(task)
    module.load_state_dict(initial_parameters(Fenda(), task, seed=1))
    ((x, y),) = reference.batches(rows, 1, "a", work)
    grads = torch.autograd.grad(cross_entropy(module(x), y).mean(), list(module.parameters()))
    final = testbed.newest_model(crew["a"])
    for (name, p), g in zip(module.named_parameters(), grads, strict=True):
        assert torch.allclose(final[name], p - 0.1 * g, atol=1e-5), name


def test_a_network_without_layers_before_its_head_is_refused():
    task = testbed.make_task(hidden=())
    (text,) = Fenda().complaints(Fenda().network(task), ADAM, False)
    assert "no parameter" in text and "fenda" in text


def test_yaml_names_the_local_extractor():
    fenda = TypeAdapter(Fenda)
    assert fenda.validate_python({"name": "fenda"}) == Fenda()
    assert fenda.validate_python({"local": {"name": "none"}}).local == Nothing()
    assert fenda.validate_python({"local": {"name": "mlp", "hidden": [3]}}).local == Mlp(hidden=(3,))
    for wrong in ("none", {"name": "unknown"}, {"name": "mlp", "hiden": [3]}, {"name": "cnn", "widths": [3]}):
        with pytest.raises(ValidationError) as error:
            fenda.validate_python({"local": wrong})
        assert error.value.error_count() == 1, "one mistake is told once, not for every network there is"


def test_one_site_alone_is_fedavg_of_the_whole_network():
    """With one site nothing is averaged, so what stays and what travels makes no difference."""

    @dataclass(frozen=True, kw_only=True)
    class Whole(FedAvg):
        def network(self, task):
            return Fenda().network(task)

    one = {"a": reference.TABLES["a"]}
    for keep in (True, False):
        work = replace(ADAM, keep_optimizer=keep)
        _, ours = reference.trained(Fenda(), one, testbed.make_task(), work)
        _, whole = reference.trained(Whole(), one, testbed.make_task(), work)
        assert testbed.are_equal(testbed.newest_model(ours["a"]), testbed.newest_model(whole["a"]))


def test_batches_do_not_reach_the_head_that_was_taken_off():
    module = Fenda().network(testbed.make_task())
    loss = (
        testbed.make_task()
        .objective(module, Batch(reference.TABLES["a"]["train"].x, reference.TABLES["a"]["train"].y))
        .mean()
    )
    grads = torch.autograd.grad(loss, list(module.parameters()))
    assert all(bool(g.abs().sum() > 0) for g in grads)
