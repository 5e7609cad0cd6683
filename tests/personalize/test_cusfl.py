"""CusFL: networks that are never overwritten, guided by a frozen federated extractor."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.models.resnet import ResNet18
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_events, rehearse_reply
from federation.task import Task
from personalize.cusfl import COLLAPSED, CusFL, Guided, between, parts_of, project_features
from privacy.dp.access import Batch, Rows
from privacy.dp.events import compose_events
from privacy.dp.protection import Protection
from privacy.message import Call, Message

ADAM = Work(optimizer="adam", lr=0.02, batch=5)
SGD = Work(optimizer="sgd", lr=0.05, batch=4)
ROUNDS = 4


def diagnosing(params):
    return {name: value for name, value in params.items() if not name.startswith("projector.")}


@pytest.mark.parametrize(
    ("task", "sites", "depth", "options"),
    [
        (Task(Mlp(hidden=(6, 5), dropout=0.4), (4,), 2), reference.TABLES, 1, {"balance": "paper"}),
        (Task(Mlp(hidden=(6, 5), dropout=0.4), (4,), 2), reference.TABLES, 2, {"contrast": "moon", "projection": None}),
        (reference.CNN, reference.IMAGES, 2, {}),
    ],
)
def test_without_guidance_it_is_local_training(task, sites, depth, options):
    schedule = {"participation": reference.PARTICIPATION}
    cusfl, ours = reference.trained(
        CusFL(r=0.0, depth=depth, **options), sites, task, ADAM, reference.LOST_OF_ALL, **schedule
    )
    local, theirs = reference.trained(Local(), sites, task, ADAM, reference.LOST_OF_ALL, **schedule)
    assert cusfl.losses == local.losses
    assert all(
        testbed.are_equal(diagnosing(testbed.newest_model(ours[site])), testbed.newest_model(theirs[site]))
        for site in sites
    )


def test_the_first_round_is_local_training_as_the_federated_part_knows_nothing_yet():
    for rounds, same in ((1, True), (2, False)):
        _, ours = reference.trained(CusFL(depth=1), reference.TABLES, testbed.make_task(), ADAM, rounds=rounds)
        _, theirs = reference.trained(Local(), reference.TABLES, testbed.make_task(), ADAM, rounds=rounds)
        assert all(
            testbed.are_equal(diagnosing(testbed.newest_model(ours[s])), testbed.newest_model(theirs[s])) == same
            for s in reference.TABLES
        )


@pytest.mark.parametrize("balance", ["capped", "paper"])
def test_the_federated_part_is_the_plain_mean_of_what_the_sites_hold(balance):
    """xi_t = mean_k theta_k,t with a common start and full participation, though sites differ in size."""
    outcome, crew = reference.trained(CusFL(depth=2, balance=balance), reference.IMAGES, reference.CNN, ADAM)
    federated = section(outcome.state.tensors, "federated")
    assert {name.split(".")[0] for name in federated} == {"stem", "blocks", "projector"}
    finals = [testbed.newest_model(crew[site]) for site in sorted(crew)]
    for name, value in federated.items():
        values = torch.stack([final[name].double() for final in finals])
        expected = values.mean(dim=0) if value.is_floating_point() else values.amax(dim=0)
        assert torch.allclose(value.double(), expected, atol=1e-7), name


class Slow:
    """f: the stem and the first block; g: two linear layers, each brought to mean 0 and variance 1 over the batch; the
    rest: what is left of the network. Batch norms of what is frozen follow the batch because they are in training mode,
    and forget it because they are copies."""

    NAMES: ClassVar = {
        "both": ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight"),
        "hidden": ("0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"),
        "none": ("0.weight", "0.bias", "2.weight", "2.bias"),
    }

    def __init__(self, initial, algorithm):
        self.net = reference.CNN.network()
        self.net.load_state_dict(diagnosing(initial))
        self.normalize = algorithm.normalize
        names = self.NAMES[self.normalize] if algorithm.projection else ()
        self.g = [initial[f"projector.{name}"].clone().requires_grad_(True) for name in names]

    def split(self, x):
        h = self.net.blocks[0](self.net.stem(x))
        pooled = h.mean(dim=(2, 3))
        if not self.g:
            return h, pooled
        hidden = pooled @ self.g[0].T + self.g[1]
        if self.normalize == "none":
            return h, torch.relu(hidden) @ self.g[2].T + self.g[3]
        projected = torch.relu(standard(hidden) * self.g[2] + self.g[3]) @ self.g[4].T
        return h, standard(projected) if self.normalize == "both" else projected + self.g[5]

    def logits(self, h):
        return self.net.head(torch.cat([h.mean(dim=(2, 3)), h.amax(dim=(2, 3))], dim=1))

    def frozen(self, x):
        with torch.no_grad():
            return copy.deepcopy(self).split(x)[1]

    def parameters(self):
        return [*self.net.parameters(), *self.g]

    def shared(self):
        state = {n: v for n, v in self.net.state_dict().items() if not n.startswith("head.")}
        return {**state, **{f"g{k}": v.detach() for k, v in enumerate(self.g)}}

    def take(self, shared):
        shared = {name: value.clone() for name, value in shared.items()}
        self.net.load_state_dict({n: v for n, v in shared.items() if n[0] != "g"}, strict=False)
        self.g = [shared[f"g{k}"].requires_grad_(True) for k in range(len(self.g))]
        return self


def standard(z):
    return (z - z.mean(0)) / torch.sqrt(z.var(0, unbiased=False) + 1e-5)


def slow_cosine(a, b):
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def slow_round(own, federated, draws, algorithm, first):
    """One site's round of equations 2 to 4. Returns nothing: `own` is trained in place."""
    guide, past = copy.deepcopy(own).take(federated), copy.deepcopy(own)
    if algorithm.resync:
        own.take(federated)
    off = algorithm.r == 0 or (first and algorithm.balance == "capped")
    for x, y in draws:
        h, z = own.split(x)
        task = functional.cross_entropy(own.logits(h), y)
        params = own.parameters()
        loss = task
        if not off:
            target = guide.frozen(x) if algorithm.freeze else guide.split(x)[1]
            apart = (1 - slow_cosine(z, target)).mean()
            if algorithm.contrast == "moon":
                near, far = (torch.exp(slow_cosine(z, v) / algorithm.temperature) for v in (target, past.frozen(x)))
                apart = -torch.log(near / (near + far)).mean()
            wanted = algorithm.r / (1 - algorithm.r) * task.item()
            weight = 0.0 if apart.item() <= 1e-6 else wanted / apart.item()
            loss = task + (min(weight, algorithm.cap) if algorithm.balance == "capped" else weight) * apart
            params = params + ([] if algorithm.freeze else guide.parameters())
        grads = torch.autograd.grad(loss, params, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= torch.zeros_like(p) if g is None else 0.05 * g


VARIANTS = [
    {},
    {"r": 0.8, "cap": 0.3},
    {"r": 0.2, "balance": "paper"},
    {"contrast": "moon", "temperature": 0.3},
    {"contrast": "moon", "balance": "paper"},
    {"freeze": False},
    {"resync": True},
    {"resync": True, "contrast": "moon", "r": 0.7},
    {"resync": True, "r": 0.0},
    {"projection": None},
    {"normalize": "hidden"},
    {"normalize": "none", "balance": "paper"},
]


@pytest.mark.repeats(4)
@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_it_is_a_slow_loop_with_absent_sites_and_lost_replies(options):
    algorithm = CusFL(depth=2, **options)
    outcome, crew = reference.trained(
        algorithm, reference.IMAGES, reference.CNN, SGD, reference.LOST_OF_ALL, participation=reference.PARTICIPATION
    )
    initial = initial_parameters(algorithm, reference.CNN, seed=1)
    own = {site: Slow(initial, algorithm) for site in reference.IMAGES}
    federated, merged = Slow(initial, algorithm).shared(), 0
    for r in range(1, ROUNDS + 1):
        came = []
        for site in reference.present(r, reference.LOST_OF_ALL):
            draws = reference.batches(reference.IMAGES[site]["train"], r, site, SGD)
            slow_round(own[site], federated, draws, algorithm, first=not merged)
            came.append(own[site].shared())
        if came:
            federated, merged = reference.mixed(came, [1] * len(came)), merged + 1
    for site in reference.IMAGES:
        state = own[site].net.state_dict()
        for name, value in diagnosing(testbed.newest_model(crew[site])).items():
            assert torch.allclose(value.float(), state[name].float(), atol=1e-4), (site, name)
    for name, value in section(outcome.state.tensors, "federated").items():
        expected = federated.get(name)
        assert expected is None or torch.allclose(value.float(), expected.float(), atol=1e-4), name


def test_guidance_without_the_stopped_gradient_would_cancel():
    """lambda_2 L_sim equals r / (1 - r) L_task; its gradient is that of L_task * log L_sim with L_task held."""
    task = testbed.make_task()
    algorithm = CusFL(depth=1, balance="paper")
    own, other = algorithm.network(task), algorithm.network(task)
    module = Guided(own, algorithm._extractor(other, other.state_dict()), None, 1, True).train()
    rows = reference.TABLES["a"]["train"]
    batch = Batch(rows.x, rows.y)
    seen: list[torch.Tensor] = []
    loss = algorithm._objective(task, seen)(module, batch).mean()
    params = list(own.parameters())
    found = torch.autograd.grad(loss, params, retain_graph=True)
    output = module(rows.x)
    wanted = functional.cross_entropy(output.output.logits, rows.y)
    apart = (1 - functional.cosine_similarity(output.own, output.guide)).mean()
    expected = torch.autograd.grad(wanted + wanted.item() * torch.log(apart), params)
    plain = torch.autograd.grad(functional.cross_entropy(own(rows.x).logits, rows.y), params, allow_unused=True)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True))
    assert loss.item() == pytest.approx(2 * wanted.item(), rel=1e-5), "half of the loss is guidance at r = 0.5"
    assert not all(b is not None and torch.allclose(a, b, atol=1e-4) for a, b in zip(found, plain, strict=True))


@pytest.mark.parametrize(
    ("wanted", "apart", "capped", "printed"),
    [(0.6, 0.3, 1.0, 2.0), (0.6, 1.2, 0.5, 0.5), (0.6, 0.0, 0.0, 0.0), (0.6, -1e-7, 0.0, 0.0), (0.7, 7e-5, 1.0, 1e4)],
)
def test_lambda_is_the_papers_ratio_and_is_capped(wanted, apart, capped, printed):
    losses = torch.tensor(wanted), torch.tensor(apart)
    assert float(CusFL(r=0.5, cap=1.0)._weight(*losses)) == pytest.approx(capped)
    assert float(CusFL(r=0.5, balance="paper")._weight(*losses)) == pytest.approx(printed, rel=1e-4)
    assert float(CusFL(r=0.75, cap=100.0)._weight(*losses)) == pytest.approx(min(100.0, 3 * printed), rel=1e-4)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_frozen_guide_follows_the_batch_and_remembers_nothing(freeze):
    algorithm = CusFL(depth=2)
    own = algorithm.network(reference.CNN)
    guide = algorithm._extractor(own, own.state_dict())
    before = copy.deepcopy(guide.state_dict())
    module = Guided(own, guide, None, 2, freeze).train()
    x = torch.rand(6, 1, 8, 8) * 3
    found = module(x)
    assert torch.allclose(found.own, found.guide, atol=1e-6), "same weights, same statistics: those of the batch"
    same = testbed.are_equal(before, guide.state_dict())
    assert same == freeze
    assert not testbed.are_equal(before, {n: v for n, v in own.state_dict().items() if n in before})


def test_dropout_is_off_in_what_is_frozen():
    task = Task(Mlp(hidden=(40,), dropout=0.5), (4,), 2)
    algorithm = CusFL(depth=1, projection=None)
    own = algorithm.network(task)
    module = Guided(own, algorithm._extractor(own, own.state_dict()), None, 1, True).train()
    x = torch.randn(8, 4)
    assert torch.equal(module(x).guide, module(x).guide) and not torch.equal(module(x).own, module(x).own)


def test_a_site_that_joins_late_starts_from_the_common_start_and_is_guided_at_once():
    algorithm, task = CusFL(depth=1), testbed.make_task()
    initial = initial_parameters(algorithm, task, seed=1)
    state = algorithm.start(initial, {"a": Message(), "b": Message()})
    f = {name: value for name, value in initial.items() if algorithm._is_shared(name)}
    state = algorithm.merge(state, {"a": Message({f"model/{n}": v + 1 for n, v in f.items()})})
    known = algorithm.send(state, "a", Call("law", 2, "train", {"a": 1}))
    joins = algorithm.send(state, "b", Call("law", 2, "train", {"a": 1}))
    assert set(known.tensors) == {f"federated/{n}" for n in f}
    assert testbed.are_equal(dict(section(joins.tensors, "model")), dict(initial))
    assert testbed.are_equal(dict(section(joins.tensors, "federated")), {n: v + 1 for n, v in f.items()})


def test_only_f_and_g_travel_and_all_of_the_rest_stays():
    for model, depth, expected in (
        (Cam(widths=(8, 8, 8, 8)), 3, {"stem", "blocks.0", "blocks.1", "projector"}),
        (ResNet18(width=8, small=True), 3, {"stem", "blocks.0", "blocks.1", "projector"}),
        (Cnn(widths=(8, 8)), 1, {"stem", "projector"}),
    ):
        task = Task(model, (1, 16, 16), 2)
        algorithm = CusFL(depth=depth, projection=5)
        reply = rehearse_reply(algorithm, task, ADAM, initial_parameters(algorithm, task, seed=1))
        assert all(name.startswith("model/") for name in reply.tensors) and reply.facts["algorithm"] == {}
        parts = {".".join(name[6:].split(".")[: 2 if "blocks" in name else 1]) for name in reply.tensors}
        assert parts == expected


@pytest.mark.parametrize(("small", "channels"), [(True, 16), (False, 16)])
def test_resnet_is_split_after_its_ninth_convolution(small, channels):
    task = Task(ResNet18(width=8, small=small), (1, 32, 32), 2)
    module = CusFL().network(task)
    first = [m for part in parts_of(module)[:3] for m in part.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size != (1, 1) for m in first) == 9
    assert module.get_parameter("projector.0.weight").shape == (128, channels)
    assert module.get_parameter("projector.3.weight").shape == (128, 128)


@pytest.mark.parametrize("model", [Cnn(widths=(8, 8, 8)), Cam(widths=(8, 8, 8, 8)), ResNet18(width=8, small=True)])
def test_the_model_to_diagnose_with_is_the_tasks_own_and_g_is_beside_it(model):
    task = Task(model, (1, 16, 16), 2)
    rows = Rows(torch.rand(6, 1, 16, 16), torch.tensor([0, 1] * 3), torch.arange(6))
    _, crew = reference.trained(
        CusFL(projection=4), {s: {"train": rows, "validation": rows} for s in "ab"}, task, SGD, rounds=2
    )
    final = testbed.newest_model(crew["a"])
    module, plain = CusFL(projection=4).network(task), task.network()
    module.load_state_dict(final)
    plain.load_state_dict(diagnosing(final))
    one, two = module.eval()(rows.x), plain.eval()(rows.x)
    assert torch.equal(one.logits, two.logits) and (one.maps is None) == (two.maps is None)
    assert CusFL().complaints(module, ADAM, False) == []


def test_a_site_sees_what_guided_it_and_is_warned_when_the_projections_say_nothing():
    _, crew = reference.trained(CusFL(depth=2), reference.IMAGES, reference.CNN, ADAM)
    notes = load_newest_memory(crew["b"].disk).facts["notes"]
    assert notes["1"] == {}, "nothing guided the first round"
    for r in ("2", "3", "4"):
        assert set(notes[r]) == {"similarity", "lambda2", "between", "share", "collapsed", "asleep"}
        assert 0 <= notes[r]["similarity"] <= 2 and 0 <= notes[r]["lambda2"] <= 1000 and 0 <= notes[r]["share"] < 1
        assert notes[r]["collapsed"] == float(notes[r]["between"] > COLLAPSED)
        assert notes[r]["asleep"] == float(notes[r]["share"] < 0.25)
    one = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]])
    assert float(between(one)) == pytest.approx(1 / 3)
    assert float(between(torch.tensor([[1.0, 2.0]]).repeat(5, 1))) == pytest.approx(1.0)


def test_a_constant_projection_is_called_collapsed():
    """A g whose last layer is only a bias gives one vector for all images."""
    algorithm, task = CusFL(depth=1, balance="paper", normalize="none"), testbed.make_task()
    initial = dict(initial_parameters(algorithm, task, seed=1))
    initial["projector.2.weight"] = torch.zeros_like(initial["projector.2.weight"])
    hospital = testbed.make_federation(algorithm, {"a": reference.TABLES["a"]}, task=task, work=ADAM)["a"]
    hospital(Call("law", 1, "train", {}), Message({f"model/{n}": v for n, v in initial.items()}))
    notes = load_newest_memory(hospital.disk).facts["notes"]["1"]
    assert notes["collapsed"] == 1.0 and notes["between"] == pytest.approx(1.0)


GROUPED = Task(Cnn(widths=(8, 16), norm="group"), (1, 8, 8), 2)
SPOTS = {site: reference.images(k, 40) for k, site in enumerate("ab", start=1)}


def guided(**options):
    """Validation losses after five rounds on a network with group norm, and what each hospital noted in the last."""
    outcome, crew = reference.trained(CusFL(depth=2, **options), SPOTS, GROUPED, Work(lr=0.005, batch=20), rounds=5)
    notes = [load_newest_memory(hospital.disk).facts["notes"]["5"] for hospital in crew.values()]
    return [series[max(series)] for series in outcome.losses.values()], notes


def test_r_is_the_share_of_the_guidance_and_acts():
    """The law of section V.D: other shares, other models; and no projection collapses."""
    found = {r: guided(r=r) for r in (0.3, 0.5, 0.7)}
    for r, (_, notes) in found.items():
        for note in notes:
            assert note["share"] == pytest.approx(r, abs=0.02)
            assert note["asleep"] == 0.0 and note["collapsed"] == 0.0 and note["between"] < 0.6
    for one, other in ((0.3, 0.5), (0.5, 0.7), (0.3, 0.7)):
        assert all(abs(a - b) > 1e-3 for a, b in zip(found[one][0], found[other][0], strict=True))


def test_without_norms_in_g_and_with_a_low_cap_it_sleeps_and_says_so():
    """Pooled features behind a group norm are the same vector for all images: L_sim is near 0 from the start."""
    for note in guided(normalize="none", cap=1.0)[1]:
        assert note["lambda2"] == 1.0 and note["share"] < 0.05 and note["asleep"] == 1.0
    module, pictures = CusFL(depth=2).network(GROUPED), SPOTS["a"]["train"].x
    plain = CusFL(depth=2, normalize="none").network(GROUPED)
    assert (
        between(project_features(plain, 2, pictures)[1])
        > 0.95
        > 0.5
        > between(project_features(module, 2, pictures)[1])
    )


@pytest.mark.parametrize("normalize", ["both", "hidden", "none"])
def test_a_constant_is_no_solution_where_projections_are_normalized(normalize):
    """The mean projection of a batch, by the size of its projections: 0 under `both` whatever g holds."""
    algorithm = CusFL(depth=2, normalize=normalize)
    module = algorithm.network(GROUPED)
    with torch.no_grad():
        for p in module.get_submodule("projector").parameters():
            p.add_(3.0)
    z = project_features(module, 2, SPOTS["a"]["train"].x)[1]
    constant = float(z.detach().mean(dim=0).norm() / z.detach().norm(dim=1).mean())
    assert constant < 1e-4 if normalize == "both" else constant > 0.3


def test_a_single_image_is_trained_on_and_not_guided():
    rows = reference.alone(1)["train"]
    one = Rows(rows.x[:1].float(), rows.y[:1], rows.patient[:1])
    sites = {s: {"train": one, "validation": one} for s in "ab"}
    _, ours = reference.trained(CusFL(depth=1), sites, testbed.make_task(), SGD)
    _, theirs = reference.trained(Local(), sites, testbed.make_task(), SGD)
    assert all(
        testbed.are_close(diagnosing(testbed.newest_model(ours[s])), testbed.newest_model(theirs[s]), 1e-6)
        for s in sites
    )


QUIET = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, cut="c")


@pytest.mark.usefixtures("doubles")
def test_private_training_without_noise_and_clipping_is_plain_training_where_the_cap_holds():
    """lambda_2 at its cap is the same for a batch and for each of its patients."""
    sites = {"a": reference.alone(1), "b": reference.alone(2, 0.7)}
    work = Work(optimizer="sgd", lr=0.05, batch=24, epochs=2)  # Adam would show the rounding of tiny gradients
    algorithm = CusFL(depth=1, cap=0.01, normalize="none")
    _, plain = reference.trained(algorithm, sites, testbed.make_task(), work)
    _, private = reference.trained(algorithm, sites, testbed.make_task(), work, protection=QUIET)
    # Where a patient's features hardly differ from the guide's, that patient's lambda_2 is 0 and the batch's is not.
    assert all(testbed.are_close(testbed.newest_model(plain[s]), testbed.newest_model(private[s]), 1e-7) for s in sites)
    assert load_newest_memory(plain["a"].disk).facts["notes"]["4"]["lambda2"] == pytest.approx(0.01)
    assert load_newest_memory(private["a"].disk).facts["notes"]["4"] == {}


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("contrast", ["similarity", "moon"])
def test_under_privacy_each_patient_is_balanced_alone(contrast):
    """One private step without noise is the mean of single patients' gradients, each with a lambda_2 of its own."""
    task, algorithm = testbed.make_task(), CusFL(depth=1, r=0.6, contrast=contrast, balance="paper", normalize="none")
    own, other, old = (algorithm.network(task) for _ in range(3))
    past = algorithm._extractor(old, old.state_dict()) if contrast == "moon" else None
    module = Guided(own, algorithm._extractor(other, other.state_dict()), past, 1, True).train()
    for name, p in module.named_parameters():
        p.requires_grad_(name.startswith("network."))
    rows = reference.alone(1)
    hospital = testbed.make_federation(algorithm, {"a": rows}, task=task, work=ADAM)["a"]
    access = replace(hospital, protection=QUIET).access(0)
    objective = algorithm._objective(task, [])
    found = access.gradient(module, objective, access.draw()).gradient
    train = rows["train"]
    expected = {name: torch.zeros_like(p) for name, p in module.named_parameters() if p.requires_grad}
    for i in range(len(train.y)):
        loss = objective(module, Batch(train.x[i : i + 1], train.y[i : i + 1])).sum()
        for name, g in zip(
            expected, torch.autograd.grad(loss, [dict(module.named_parameters())[n] for n in expected]), strict=True
        ):
            expected[name] += g / len(train.y)
    assert testbed.are_close(dict(found), expected, 1e-10)
    together = objective(module, Batch(train.x, train.y)).mean()
    batch = torch.autograd.grad(together, [dict(module.named_parameters())[n] for n in expected])
    assert not all(torch.allclose(a, expected[n], atol=1e-6) for n, a in zip(expected, batch, strict=True))


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("options", [{}, {"balance": "paper"}, {"freeze": False, "contrast": "moon"}, {"resync": True}])
def test_what_privacy_costs_is_the_same_every_round(options):
    noised = Protection(clip=0.5, sampling=0.4, views=2, noise=1.1, cut="c")
    work = Work(optimizer="adam", lr=0.02, batch=24, epochs=2)
    algorithm = CusFL(depth=1, normalize="none", **options)
    _, crew = reference.trained(
        algorithm, {"a": reference.alone(1), "b": reference.alone(2)}, testbed.make_task(), work, protection=noised
    )
    seen = rehearse_events(
        algorithm, testbed.make_task(), work, initial_parameters(algorithm, testbed.make_task(), seed=0), noised
    )
    wanted = [seen.introduction, *[seen.training] * ROUNDS, *[seen.validation] * ROUNDS]
    assert all(compose_events(hospital.events) == compose_events(wanted) for hospital in crew.values())
    assert all(bool(t.isfinite().all()) for hospital in crew.values() for t in testbed.newest_model(hospital).values())


def test_a_split_that_this_network_does_not_have_is_refused_by_name():
    (deep,) = CusFL().complaints(CusFL().network(testbed.make_task()), ADAM, False)
    assert "after part 3" in deep and "depth to at most 1" in deep
    task = testbed.make_task(hidden=())
    (empty,) = CusFL(depth=1).complaints(CusFL(depth=1).network(task), ADAM, False)
    assert "without parameters" in empty
    private = CusFL(depth=1, normalize="none")
    assert private.complaints(private.network(testbed.make_task()), ADAM, True) == []


def test_private_training_has_no_batch_to_normalize_by():
    task = testbed.make_task()
    for normalize, refused in (("both", True), ("hidden", True), ("none", False)):
        algorithm = CusFL(depth=1, normalize=normalize)
        assert (
            any("say normalize: none" in text for text in algorithm.complaints(algorithm.network(task), ADAM, True))
            == refused
        )
    assert CusFL(depth=1, projection=None).complaints(CusFL(depth=1, projection=None).network(task), ADAM, True) == []


def test_wrong_settings_are_refused_all_at_once():
    with pytest.raises(ValueError, match=r"r must be .* found 1.0; cap .* found 0; depth .* found 0; projection .* 0"):
        CusFL(r=1.0, cap=0, depth=0, projection=0)


def test_restarting_without_guidance_is_fedavg_of_f_under_heads_of_their_own():
    """One site: nothing is averaged, so restarting changes nothing either."""
    one = {"a": reference.TABLES["a"]}
    _, ours = reference.trained(CusFL(r=0.0, depth=1, resync=True), one, testbed.make_task(), ADAM)
    _, whole = reference.trained(FedAvg(), one, testbed.make_task(), ADAM)
    assert testbed.are_equal(diagnosing(testbed.newest_model(ours["a"])), testbed.newest_model(whole["a"]))
