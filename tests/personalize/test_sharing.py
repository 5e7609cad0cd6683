"""Which parameters travel: predicates against names written by hand, and every method that is only a predicate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference
import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.parameters import section
from federation.rehearsal import initial_parameters
from federation.task import Task
from personalize import sharing
from personalize.fedper import FedPer
from personalize.partial import Partial
from personalize.sharing import SHARED, body, head, parts, split_model, without_effect
from privacy.dp.access import Rows, open_access
from privacy.message import Call, Message

ADAM = Work(optimizer="adam", lr=0.02, batch=5)
NORM = tuple(f"adn.N.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"))
PERSONAL = {
    "fedper": {"head.weight", "head.bias"},
    "lg_fedavg": {f"{part}.0.{n}" for part in ("stem", "blocks.0") for n in ("conv.weight", *NORM)},
    "fedbn": {f"{part}.0.{n}" for part in ("stem", "blocks.0") for n in NORM},
    "splitnn": {f"stem.0.{n}" for n in ("conv.weight", *NORM)},
    "private_intercept": {"head.bias"},
}
"""Written by hand for the network of reference.CNN; splitnn with depth 1."""


def made(name, **fields):
    return Partial(name=name, **({"depth": 1} if name == "splitnn" else {}), **fields)


def run(algorithm, sites=reference.IMAGES, task=reference.CNN, work=reference.SGD, rounds=3, **options):
    outcome, crew = reference.trained(algorithm, sites, task, work, rounds=rounds, **options)
    return outcome, {name: testbed.final(hospital) for name, hospital in crew.items()}


@pytest.mark.parametrize("name", SHARED)
def test_what_stays_is_what_was_written_by_hand(name):
    network = reference.CNN.network()
    shared = made(name).shared(network)
    assert {n for n in network.state_dict() if not shared(n)} == PERSONAL[name]


def test_fedper_and_lg_fedavg_share_complementary_parts():
    for model in (Cnn(widths=(8, 16)), Cam(widths=(8, 8, 8, 8)), Mlp(hidden=(5, 3))):
        for name in model.build(inputs=(1, 16, 16), classes=3).state_dict():
            assert body(name) != head(name)
    assert isinstance(FedPer(), Partial) and FedPer() == Partial(name="fedper")


def test_parts_stand_in_the_order_of_the_forward_pass():
    assert parts(reference.CNN.network()) == ("stem", "blocks.0", "head")
    assert parts(testbed.task(hidden=(6, 5, 4)).network()) == ("stem", "blocks.0", "blocks.1", "head")
    assert parts(testbed.task(hidden=()).network()) == ("head",), "a stem that holds nothing is no part"


def test_group_norms_stay_too_and_a_norm_without_parameters_is_a_norm():
    network = Cnn(widths=(8, 8), norm="group").build(inputs=(1, 8, 8), classes=2)
    shared = Partial(name="fedbn").shared(network)
    kept = {name for name in network.state_dict() if not shared(name)}
    assert kept == {f"{part}.0.adn.N.{n}" for part in ("stem", "blocks.0") for n in ("weight", "bias")}
    bare = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2))
    assert Partial(name="fedbn").complaints(bare, reference.SGD, False) == []


@pytest.mark.parametrize(
    ("algorithm", "hidden", "words"),
    [
        (FedPer(), (), ("fedper", "no parameter")),
        (Partial(name="lg_fedavg"), (), ("lg_fedavg", "every parameter")),
        (Partial(name="fedbn"), (6,), ("fedbn", "every parameter, which is FedAvg", "norm layers")),
        (Partial(name="splitnn", depth=0), (6, 5), ("every parameter, which is FedAvg", "depth from 1 to 2")),
        (Partial(name="splitnn", depth=3), (6, 5), ("no parameter, which is local", "depth from 1 to 2")),
        (Partial(name="splitnn"), (), ("no parameter", "more than a head")),
    ],
)
def test_a_method_without_effect_is_refused_with_a_sentence(algorithm, hidden, words):
    (text,) = algorithm.complaints(testbed.task(hidden=hidden).network(), reference.SGD, False)
    assert all(word in text for word in words)


@pytest.mark.parametrize("name", SHARED)
def test_a_split_is_not_refused_and_may_run_privately(name):
    network = Cnn(widths=(8, 8), norm="group").build(inputs=(1, 8, 8), classes=2)
    assert made(name).complaints(network, reference.SGD, True) == []


def test_a_head_without_bias_has_no_private_intercept():
    network = nn.Sequential()
    network.head = nn.Linear(3, 2, bias=False)
    (text,) = Partial(name="private_intercept").complaints(network, reference.SGD, False)
    assert "every parameter" in text and "bias" in text
    assert without_effect(network, head, "x") and not without_effect(testbed.task().network(), head, "x")


def test_all_that_is_wrong_with_a_depth_is_said_at_once():
    with pytest.raises(ValueError, match=r"depth must be >= 0, found -2.*belongs to splitnn.*fedbn"):
        Partial(name="fedbn", depth=-2)


def test_splitnn_with_nothing_private_is_fedavg_and_with_everything_private_local():
    outcome, nothing = run(Partial(name="splitnn", depth=0), work=ADAM)
    average, expected = run(FedAvg(), work=ADAM)
    assert testbed.equal(section(outcome.state.tensors, "model"), section(average.state.tensors, "model"))
    assert all(testbed.equal(nothing[site], expected[site]) for site in reference.IMAGES)
    _, everything = run(Partial(name="splitnn", depth=3), work=ADAM)
    _, alone = run(Local(), work=ADAM)
    assert all(testbed.equal(everything[site], alone[site]) for site in reference.IMAGES)


def test_splitnn_with_all_but_the_head_private_is_lg_fedavg():
    _, split = run(Partial(name="splitnn", depth=2))
    _, lg = run(Partial(name="lg_fedavg"))
    assert all(testbed.equal(split[site], lg[site]) for site in reference.IMAGES)


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("weights", [None, "size", "uniform"])
def test_a_slow_loop_with_sites_away_and_replies_lost_finds_the_same(name, weights):
    """A site keeps its own part only if its reply arrived; the names are those written by hand."""
    rounds, lost, stays = 4, frozenset({(1, "a"), (2, "b"), (3, "a")}), PERSONAL[name]
    uniform = weights == "uniform" or (weights is None and name == "fedbn")
    start = initial_parameters(FedAvg(), reference.CNN, seed=1)
    server = {n: v for n, v in start.items() if n not in stays}
    personal = {site: {n: start[n] for n in stays} for site in reference.IMAGES}
    for r in range(1, rounds + 1):
        locals_ = {}
        for site in reference.present(r, lost):
            model = reference.network(reference.CNN, {**server, **personal[site]})
            reference.descend(model, reference.IMAGES[site]["train"], r, site)
            locals_[site] = model.state_dict()
            personal[site] = {n: locals_[site][n] for n in stays}
        sizes = {site: 1 if uniform else len(reference.IMAGES[site]["train"].y) for site in locals_}
        mean = reference.mixed(list(locals_.values()), list(sizes.values()))
        server = {n: mean[n] for n in server}
    _, found = run(made(name, weights=weights), lost=lost, rounds=rounds, participation=reference.PARTICIPATION)
    for site in reference.IMAGES:
        assert testbed.close(found[site], {n: {**server, **personal[site]}[n] for n in found[site]}, 2e-5)


def test_the_private_intercept_by_hand():
    """Two sites, one full-batch step on half the squared error: weights are averaged 1 to 3, biases stay."""
    task = Task(testbed.Linear(), (1,), 2)
    x = {"a": [1.0], "b": [1.0, 3.0, 2.0]}
    y = {"a": [1], "b": [0, 1, 1]}
    sites = {}
    for s in x:
        rows = Rows(torch.tensor(x[s])[:, None], torch.tensor(y[s]), torch.arange(len(y[s])))
        sites[s] = {"train": rows, "validation": rows}
    work = Work(optimizer="sgd", lr=0.5, batch=8)
    _, found = run(Partial(name="private_intercept"), sites, task, work, rounds=1)
    start = initial_parameters(FedAvg(), task, seed=1)
    w, b = float(start["head.weight"][0, 0]), float(start["head.bias"][0])
    stepped = {}
    for s in x:
        residual = [w * v + b - t for v, t in zip(x[s], y[s], strict=True)]
        slope = sum(r * v for r, v in zip(residual, x[s], strict=True)) / len(residual)
        stepped[s] = (w - 0.5 * slope, b - 0.5 * sum(residual) / len(residual))
    for s in x:
        assert float(found[s]["head.weight"][0, 0]) == pytest.approx(0.25 * stepped["a"][0] + 0.75 * stepped["b"][0])
        assert float(found[s]["head.bias"][0]) == pytest.approx(stepped[s][1])


@pytest.mark.parametrize("name", SHARED)
def test_personal_parts_are_sent_until_the_first_merge_and_never_replied(name):
    algorithm, whole = made(name), set(reference.CNN.network().state_dict())
    state = algorithm.start(initial_parameters(algorithm, reference.CNN, seed=1), {})
    site = Site("a", reference.CNN, reference.SGD, open_access(reference.IMAGES["a"], batch=4, seed=0))
    first = algorithm.send(state, "a", Call("r", 1, "train", {}))
    assert set(section(first.tensors, "model")) == whole
    reply, memory = algorithm.train(site, first, Message(), Call("r", 1, "train", {}))
    assert set(section(reply.tensors, "model")) == whole - PERSONAL[name]
    assert set(section(memory.tensors, "personal")) == PERSONAL[name]
    state = algorithm.merge(state, {"a": reply})
    later = algorithm.send(state, "a", Call("r", 2, "train", {"a": 1}))
    assert set(later.tensors) == set(reply.tensors)
    newcomer = algorithm.send(state, "b", Call("r", 2, "train", {"a": 1}))
    assert set(section(newcomer.tensors, "model")) == whole
    for n in PERSONAL[name]:
        assert torch.equal(newcomer.tensors[f"model/{n}"], first.tensors[f"model/{n}"]), (
            "the common start, nobody's own"
        )


@given(
    st.sampled_from(sorted(SHARED)),
    st.integers(0, 4),
    st.lists(st.sampled_from([8, 16]), min_size=2, max_size=3),
    st.sampled_from(["batch", "group"]),
)
@settings(max_examples=25, deadline=None)
def test_what_leaves_and_what_stays_are_the_model_again(name, depth, widths, norm):
    network = Cnn(widths=tuple(widths), norm=norm).build(inputs=(1, 8, 8), classes=2)
    site = Site("a", reference.CNN, reference.SGD, open_access(reference.IMAGES["a"], batch=4, seed=0))
    reply, memory = split_model(network, SHARED[name](network, depth), site, {})
    assert not set(section(reply.tensors, "model")) & set(section(memory.tensors, "personal"))
    assert testbed.equal(sharing.model(None, site, reply, memory), network.state_dict())
