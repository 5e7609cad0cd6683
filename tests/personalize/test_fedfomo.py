"""FedFomo: laws, weights by hand, and several rounds in slow code with absent sites and lost replies."""

from __future__ import annotations

import pytest
import torch

import reference
from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.descent import Site, Work
from federation.local import Local
from federation.rehearsal import initial_parameters
from federation.rounds import QuorumLost, Schedule
from federation.task import Task
from personalize.fedfomo import FedFomo
from privacy.dp.access import Batch, Rows
from privacy.message import Call, Message


def test_one_site_alone_trains_locally_bit_for_bit():
    one = {"a": reference.UNEVEN["a"]}
    _, fomo = reference.trained(FedFomo(), one)
    _, alone = reference.trained(Local(), one)
    assert testbed.are_equal(testbed.newest_model(fomo["a"]), testbed.newest_model(alone["a"]))


def test_the_first_round_is_local_training_bit_for_bit():
    _, fomo = reference.trained(FedFomo(), rounds=1)
    _, alone = reference.trained(Local(), rounds=1)
    assert all(
        testbed.are_equal(testbed.newest_model(fomo[s]), testbed.newest_model(alone[s])) for s in reference.UNEVEN
    )


def test_the_second_round_starts_where_weights_by_hand_say():
    """Linear model, one validation example a site; with a learning rate of zero steps show only the mixture."""
    task = Task(testbed.Linear(), (1,), 2)
    one = Rows(torch.tensor([[1.0]]), torch.tensor([1]), torch.zeros(1, dtype=torch.int64))
    sites = {s: {"train": one, "validation": one} for s in "abc"}
    before, newest_, near, far = 3.0, 2.0, 1.5, 9.0  # both weights; the loss is (w + 0 - 1)^2 for two outputs
    pack = lambda w: {"head.weight": torch.full((2, 1), w), "head.bias": torch.zeros(2)}  # noqa: E731
    work = Work(optimizer="sgd", lr=1e-9, batch=2)
    hospital = testbed.make_federation(FedFomo(), sites, task=task, work=work)["a"]
    memory = {
        **{f"model/{n}": v for n, v in pack(newest_).items()},
        **{f"before/{n}": v for n, v in pack(before).items()},
    }
    received = {f"model/{s}/{n}": v for s, w in (("b", near), ("c", far)) for n, v in pack(w).items()}
    site = Site("a", task, work, hospital.access(0))
    message = Message(received, {"models": ["b", "c"], "sites": ["a", "b", "c"]})
    _, kept = FedFomo().train(site, message, Message(memory), Call("law", 2, "train", {}))
    loss = lambda w: (w - 1.0) ** 2  # noqa: E731
    weight = {w: (loss(before) - loss(w)) / (2**0.5 * abs(w - before)) for w in (newest_, near, far)}
    assert weight[far] < 0 < weight[near]
    total = weight[newest_] + weight[near]
    expected = (weight[newest_] * newest_ + weight[near] * near) / total
    assert kept.tensors["model/head.weight"].flatten().tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert kept.tensors["before/head.weight"].flatten().tolist() == [newest_] * 2
    assert kept.facts["affinity"] == pytest.approx({"b": weight[near], "c": weight[far]})
    notes = {f"weight/{s}": weight[w] for s, w in (("a", newest_), ("b", near), ("c", far))}
    assert kept.facts["notes"] == pytest.approx(notes)


def test_where_nobody_is_better_the_site_goes_back_to_the_round_before():
    task = testbed.make_task()
    start = initial_parameters(FedFomo(), task, seed=1)
    _, crew = reference.trained(FedFomo(), work=Work(optimizer="sgd", lr=0.5, batch=5), rounds=3)
    good = testbed.newest_model(crew["a"])
    bad = {
        name: value + 5 * torch.randn(value.shape, generator=torch.Generator().manual_seed(1))
        for name, value in good.items()
    }
    work = Work(optimizer="sgd", lr=1e-9, batch=5)
    site = Site(
        "a", task, work, testbed.make_federation(FedFomo(), reference.UNEVEN, task=task, work=work)["a"].access(0)
    )
    memory = {**{f"model/{n}": v for n, v in bad.items()}, **{f"before/{n}": v for n, v in good.items()}}
    message = Message({f"model/b/{n}": v for n, v in start.items()}, {"models": ["b"], "sites": ["a", "b"]})
    _, kept = FedFomo().train(site, message, Message(memory), Call("law", 2, "train", {}))
    assert testbed.are_close({n: kept.tensors[f"model/{n}"] for n in good}, good, 1e-5)


def slow(algorithm, task, sites, lost, rounds):
    """Returns each site's model."""
    first = initial_parameters(algorithm, task, seed=1)
    parts = [name for name, _ in task.network().named_parameters()]
    uploaded, mine, before, wants = {}, dict.fromkeys(sites, first), {}, {}
    affinity = {s: dict.fromkeys(sorted(set(sites) - {s}), 0.0) for s in sites}

    def loss(params, s):
        rows, model = sites[s]["validation"], reference.network(task, params).eval()
        with torch.no_grad():
            return float(task.objective(model, Batch(rows.x, rows.y)).mean())

    for r in range(1, rounds + 1):
        new = {}
        for s in reference.present(r, lost):
            others = [j for j in sorted(uploaded) if j != s]
            if algorithm.M:
                others = [j for j in others if j in wants[s]] if s in before else others[: algorithm.M]
            start, previous = mine[s], before.get(s, mine[s])
            if others:
                models = {j: uploaded[j] for j in others} | {s: mine[s]}
                weights = {}
                for j, model in models.items():
                    apart = sum(float(((model[n] - previous[n]).double() ** 2).sum()) for n in parts) ** 0.5
                    weights[j] = (loss(previous, s) - loss(model, s)) / apart if apart else 0.0
                for j in others:
                    affinity[s][j] += weights[j]
                kept = sorted(j for j in models if weights[j] > 0)
                start = reference.mixed([models[j] for j in kept], [weights[j] for j in kept]) if kept else previous
            model = reference.network(task, start)
            reference.descend(model, sites[s]["train"], r, s, reference.BRIEF)
            before[s], mine[s] = mine[s], {n: v.clone() for n, v in model.state_dict().items()}
            new[s] = mine[s]
            if algorithm.M:
                wants[s] = sorted(affinity[s], key=lambda j, table=affinity[s]: (-table[j], j))[: algorithm.M]
        uploaded |= new
    return mine


@pytest.mark.parametrize("lost", [frozenset(), reference.LOST_LATER], ids=["", "lost replies"])
@pytest.mark.parametrize("M", [None, 1])
@pytest.mark.parametrize(("task", "sites"), reference.UNEVEN_KINDS)
def test_several_rounds_against_a_slow_implementation(task, sites, M, lost):
    algorithm = FedFomo(M=M)
    _, crew = reference.trained(algorithm, sites, task=task, rounds=6, lost=lost, participation=reference.PARTICIPATION)
    for s, expected in slow(algorithm, task, sites, lost, 6).items():
        reference.agree(testbed.newest_model(crew[s]), expected)


def test_with_m_only_what_was_asked_for_is_sent_and_affinity_stays_at_home():
    outcome, crew = reference.trained(FedFomo(M=1), rounds=4)
    (wanted,) = outcome.state.facts["asked"]["a"]
    sent = FedFomo(M=1).send(outcome.state, "a", Call("law", 5, "train", dict.fromkeys(reference.UNEVEN, 4)))
    assert {name.split("/")[1] for name in sent.tensors} == {wanted} and sent.facts["models"] == [wanted]
    affinity = load_newest_memory(crew["a"].disk).facts["algorithm"]["affinity"]
    assert max(affinity, key=lambda j: affinity[j]) == wanted
    assert set(outcome.state.facts) == {"sites", "merged", "asked"}


def test_a_site_without_validation_patients_is_refused_before_anything_is_trained():
    empty = Rows(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    sites = {**reference.UNEVEN, "b": {"train": reference.UNEVEN["b"]["train"], "validation": empty}}
    crew = testbed.make_federation(FedFomo(), sites, task=testbed.make_task(), work=reference.BRIEF)
    site = Site("b", testbed.make_task(), reference.BRIEF, crew["b"].access(0))
    with pytest.raises(ValueError, match="b has none: give it some, or choose heurfedamp or apple"):
        FedFomo().introduce(site)
    with pytest.raises(QuorumLost, match="round 0"):
        testbed.train(FedFomo(), crew, task=testbed.make_task(), work=reference.BRIEF, schedule=Schedule(rounds=2))
    assert all(hospital.trained == 0 for hospital in crew.values())


def test_private_training_and_a_wrong_m_are_refused_by_name():
    (text,) = FedFomo().complaints(testbed.make_task().network(), reference.BRIEF, True)
    assert "validation patients" in text and "heurfedamp" in text
    assert FedFomo().complaints(testbed.make_task().network(), reference.BRIEF, False) == []
    with pytest.raises(ValueError, match="M must be >= 1 or null, found 0"):
        FedFomo(M=0)
