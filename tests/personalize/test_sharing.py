"""Which parameters travel: predicates against names written by hand, and every method that is only a predicate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import reference
from consilium.testing import testbed
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.cam import Cam
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.parameters import section
from federation.rehearsal import initial_parameters, rehearse_events
from federation.task import Task
from personalize import sharing
from personalize.fedper import FedPer
from personalize.partial import Partial, prior_odds
from personalize.sharing import SHARED, is_body, is_head, part_names, split_model, without_effect
from privacy.dp.access import Rows, open_access
from privacy.dp.protection import Protection
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
    return outcome, {name: testbed.newest_model(hospital) for name, hospital in crew.items()}


@pytest.mark.parametrize("name", SHARED)
def test_what_stays_is_what_was_written_by_hand(name):
    network = reference.CNN.network()
    shared = made(name).shared(network)
    assert {n for n in network.state_dict() if not shared(n)} == PERSONAL[name]


def test_fedper_and_lg_fedavg_share_complementary_parts():
    for model in (Cnn(widths=(8, 16)), Cam(widths=(8, 8, 8, 8)), Mlp(hidden=(5, 3))):
        for name in model.build(inputs=(1, 16, 16), classes=3).state_dict():
            assert is_body(name) != is_head(name)
    assert isinstance(FedPer(), Partial) and FedPer() == Partial(name="fedper")


def test_parts_stand_in_the_order_of_the_forward_pass():
    assert part_names(reference.CNN.network()) == ("stem", "blocks.0", "head")
    assert part_names(testbed.make_task(hidden=(6, 5, 4)).network()) == ("stem", "blocks.0", "blocks.1", "head")
    assert part_names(testbed.make_task(hidden=()).network()) == ("head",), "a stem that holds nothing is no part"


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
    (text,) = algorithm.complaints(testbed.make_task(hidden=hidden).network(), reference.SGD, False)
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
    assert without_effect(network, is_head, "x") and not without_effect(testbed.make_task().network(), is_head, "x")


def test_all_that_is_wrong_with_a_depth_is_said_at_once():
    with pytest.raises(ValueError, match=r"depth must be >= 0, found -2.*belongs to splitnn.*fedbn"):
        Partial(name="fedbn", depth=-2)


def test_splitnn_with_nothing_private_is_fedavg_and_with_everything_private_local():
    outcome, nothing = run(Partial(name="splitnn", depth=0), work=ADAM)
    average, expected = run(FedAvg(), work=ADAM)
    assert testbed.are_equal(section(outcome.state.tensors, "model"), section(average.state.tensors, "model"))
    assert all(testbed.are_equal(nothing[site], expected[site]) for site in reference.IMAGES)
    _, everything = run(Partial(name="splitnn", depth=3), work=ADAM)
    _, alone = run(Local(), work=ADAM)
    assert all(testbed.are_equal(everything[site], alone[site]) for site in reference.IMAGES)


def test_splitnn_with_all_but_the_head_private_is_lg_fedavg():
    _, split = run(Partial(name="splitnn", depth=2))
    _, lg = run(Partial(name="lg_fedavg"))
    assert all(testbed.are_equal(split[site], lg[site]) for site in reference.IMAGES)


@pytest.mark.repeats(6)
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("weights", [None, "size", "uniform"])
def test_a_slow_loop_with_sites_away_and_replies_lost_finds_the_same(name, weights):
    """A site keeps its own part only if its reply arrived; the names are those written by hand."""
    rounds, lost, stays = 4, frozenset({(1, "a"), (2, "b"), (3, "a")}), PERSONAL[name]
    uniform = weights == "uniform" or (weights is None and name == "fedbn")
    start = initial_parameters(FedAvg(), reference.CNN, seed=1)
    server = {n: v for n, v in start.items() if n not in stays}
    personal = {site: {n: start[n] for n in stays} for site in reference.IMAGES}
    if name == "private_intercept":
        for site, splits in reference.IMAGES.items():
            held = [float((splits["train"].y == c).sum()) + 0.5 for c in (0, 1)]
            personal[site] = {"head.bias": torch.tensor([math.log(n / sum(held)) for n in held])}
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
        assert testbed.are_close(found[site], {n: {**server, **personal[site]}[n] for n in found[site]}, 2e-5)


def test_the_private_intercept_by_hand():
    """Two sites, one full-batch step on half the squared error: weights are averaged 1 to 3, biases, which begin at
    the logs of the hospital's class shares with half a label more of each, stay.
    """
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
    w, stepped = float(start["head.weight"][0, 0]), {}
    for s in x:
        b = math.log((y[s].count(0) + 0.5) / (len(y[s]) + 1))
        residual = [w * v + b - t for v, t in zip(x[s], y[s], strict=True)]
        slope = sum(r * v for r, v in zip(residual, x[s], strict=True)) / len(residual)
        stepped[s] = (w - 0.5 * slope, b - 0.5 * sum(residual) / len(residual))
    for s in x:
        assert float(found[s]["head.weight"][0, 0]) == pytest.approx(0.25 * stepped["a"][0] + 0.75 * stepped["b"][0])
        assert float(found[s]["head.bias"][0]) == pytest.approx(stepped[s][1])


RARE = replace(testbed.make_table(4, n=60)["train"], y=(torch.arange(60) < 1).long())


def test_an_intercept_begins_at_the_hospitals_own_log_odds_which_adam_would_not_reach():
    """A disease of one in sixty: a network that learns nothing must not give it a third of the probability."""
    task, sites = testbed.make_task(hidden=(4,)), {"a": {"train": RARE, "validation": RARE}, "b": testbed.make_table(5)}
    algorithm, work = Partial(name="private_intercept"), Work(lr=1e-6, batch=10)
    _, found = run(algorithm, sites, task, work)
    shares = found["a"]["head.bias"].softmax(dim=0)
    assert float(shares[1]) == pytest.approx(1.5 / 61, rel=1e-3)
    balanced, _ = reference.trained(algorithm, {"a": sites["a"]}, task, replace(work, balance=True), rounds=1)
    assert not balanced.state.facts, "who draws the classes equally often needs no odds, and tells no shares"


def test_one_logit_begins_at_the_log_odds_and_an_absent_class_is_finite():
    assert float(prior_odds([0.75, 0.25], 16, torch.zeros(1))) == pytest.approx(math.log(4.5 / 12.5))
    of_three = prior_odds([0.5, 0.5, 0.0], 8, torch.zeros(3))
    assert of_three.exp().tolist() == pytest.approx([4.5 / 9.5, 4.5 / 9.5, 0.5 / 9.5])


def test_a_head_of_two_begins_each_half_at_the_odds():
    assert prior_odds([0.75, 0.25], 16, torch.zeros(4)).exp().tolist() == pytest.approx([12.5 / 17, 4.5 / 17] * 2)


def test_a_hospital_gets_its_own_shares_only_and_until_it_has_an_intercept():
    algorithm, task = Partial(name="private_intercept"), testbed.make_task(hidden=(4,))
    said = {name: Message({}, {"shares": shares}) for name, shares in (("a", [0.9, 0.1]), ("b", [0.5, 0.5]))}
    state = algorithm.start(initial_parameters(algorithm, task, seed=1), said)
    assert algorithm.send(state, "a", Call("r", 1, "train", {})).facts == {"shares": [0.9, 0.1]}
    assert not algorithm.send(state, "a", Call("r", 3, "train", {"a": 2})).facts
    assert Partial(name="fedper").start({}, {"a": Message()}).facts == {}


def test_privately_class_shares_cost_one_noised_release():
    """Not one a round, which would need more noise for the same epsilon."""
    algorithm, task = Partial(name="private_intercept"), testbed.make_task(hidden=(4,))
    protection = Protection(clip=1.0, sampling=0.5, noise=1.0, counts_noise=7.0)
    start = initial_parameters(algorithm, task, seed=0)
    seen = rehearse_events(algorithm, task, Work(), start, protection)
    assert "7.0" in str(seen.introduction) and "7.0" not in str(seen.training)


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
    assert testbed.are_equal(sharing.model(None, site, reply, memory), network.state_dict())
