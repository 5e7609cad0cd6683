"""What hospitals with unlike networks share, and what stays with each; with equal networks it is FedAvg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from other_device import OTHER, other_device

from consilium.testing import testbed
from federation.conversation import load_newest_memory
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.mlp import Mlp
from federation.models.planned import Planned
from federation.outcome import Outcome
from federation.parameters import section, select_parameters
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.rounds import Schedule, conduct_training
from federation.task import Task
from personalize.asymmetric import Asymmetric, list_shared
from privacy.dp.access import Rows
from privacy.dp.protection import Protection
from privacy.message import Call, Message

WORK = Work(optimizer="sgd", lr=0.1, batch=64, epochs=None, steps=1)
TABLES = {
    "a": testbed.make_table(1),
    "b": testbed.make_table(2, shift=0.7),
    "c": testbed.make_table(3, n=10, shift=-0.4),
}
HIDDEN = {"a": (6, 5), "b": (6, 5, 4), "c": (6,)}
"""All have the first layer in the same shape; a and b also have the second, and c does not."""


def share(tasks: Mapping[str, Task]) -> dict[str, Task]:
    names = list_shared(tasks.values())
    return {site: replace(task, shared=names) for site, task in tasks.items()}


TASKS = share({site: Task(Mlp(hidden=hidden), (4,), 2) for site, hidden in HIDDEN.items()})


@dataclass
class Watched:
    """An engine that notes what it carries."""

    inner: InProcess
    sent: list[Mapping[str, Message]] = field(default_factory=list)
    replies: list[Mapping[str, Message]] = field(default_factory=list)

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        self.sent.append(dict(messages))
        self.replies.append(dict(answers.replies))
        return answers


def train(
    algorithm: Asymmetric | Local | FedAvg, tasks: Mapping[str, Task], rounds: int = 3, **options: object
) -> tuple[Outcome, dict[str, testbed.Hospital], Watched]:
    """As the stage `train` does it: the start and the form of replies are those of the first hospital."""
    work = options.pop("work", WORK)
    assert isinstance(work, Work)
    crew = {site: testbed.Hospital(site, TABLES[site], algorithm, task, work) for site, task in tasks.items()}
    task, watched = tasks["a"], Watched(InProcess(crew))
    initial = initial_parameters(algorithm, task, seed=1)
    outcome = conduct_training(
        watched,
        algorithm,
        run="law",
        initial=select_parameters(initial, lambda name: task.shared is None or name in task.shared),
        opening={site: Message() for site in crew},
        forms=rehearse_forms(algorithm, task, work, initial),
        schedule=Schedule(rounds=rounds, **options),  # type: ignore[arg-type]
        seed=0,
        folder=testbed.MemoryFolder(),
        between=lambda outcome: None,
    )
    return outcome, crew, watched


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_where_all_networks_are_equal_it_is_fedavg_bit_by_bit(weights):
    tasks = dict.fromkeys(TABLES, testbed.make_task())
    work = Work(optimizer="adam", lr=0.02, batch=5, epochs=2)
    asymmetric, own, _ = train(Asymmetric(weights=weights), tasks, work=work)
    average, common, _ = train(FedAvg(weights=weights), tasks, work=work)
    assert testbed.are_equal(section(asymmetric.state.tensors, "model"), section(average.state.tensors, "model"))
    for site in TABLES:
        assert testbed.are_equal(testbed.newest_model(own[site]), testbed.newest_model(common[site]))
    assert asymmetric.totals == average.totals


def test_what_all_have_in_one_shape_is_shared_and_no_agreement_of_some():
    """By name and shape alone, as in the authors' code: a bias is shared without its weights, whose shapes differ."""
    shared = TASKS["a"].shared
    assert shared == ("head.bias", "stem.0.bias", "stem.0.weight")
    assert set(list_shared([TASKS["a"], TASKS["b"]])) > set(shared)  # of these two the second layer, too


def test_messages_hold_what_is_shared_and_nothing_else():
    _, crew, watched = train(Asymmetric(), TASKS)
    expected = {f"model/{name}" for name in TASKS["a"].shared or ()}
    in_rounds = [(sent, reply) for sent, reply in zip(watched.sent, watched.replies, strict=True)][1:]
    assert len(in_rounds) == 4
    for sent, _ in in_rounds:
        assert all(set(message.tensors) == expected for message in sent.values())
    for _, replies in in_rounds[:-1]:  # the last is the finish, whose reply is a loss
        assert all(set(reply.tensors) == expected for reply in replies.values())
        assert all(set(reply.facts) == {"algorithm", "loss", "n"} for reply in replies.values())
    for site, hospital in crew.items():
        personal = section(load_newest_memory(hospital.disk).tensors, "personal")
        assert {f"model/{name}" for name in personal} | expected == {
            f"model/{name}" for name in TASKS[site].network().state_dict()
        }


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_a_round_is_a_step_of_each_hospital_alone_and_a_mean_of_what_is_shared(weights):
    """The second round once more, by torch alone: one step of gradient descent on all patients of each hospital."""
    _, crew, watched = train(Asymmetric(weights=weights), TASKS, rounds=2)
    first = {site: section(load_memory_of(crew[site], 1).tensors, "personal") for site in crew}
    replies, sent = watched.replies[1], watched.sent[2]
    counts = {site: len(TABLES[site]["train"].y) if weights == "size" else 1 for site in crew}
    stepped = {}
    for site in crew:
        for name in TASKS["a"].shared or ():
            key = f"model/{name}"
            mean = sum(counts[other] * replies[other].tensors[key].double() for other in crew) / sum(counts.values())
            assert torch.allclose(sent[site].tensors[key].double(), mean, atol=1e-7)
        module = TASKS[site].network()
        module.load_state_dict({**section(sent[site].tensors, "model"), **first[site]})
        rows = TABLES[site]["train"]
        loss = torch.nn.functional.cross_entropy(module(rows.x).logits, rows.y)
        gradients = torch.autograd.grad(loss, [*module.parameters()])
        stepped[site] = {
            name: (value - WORK.lr * gradient).detach()
            for (name, value), gradient in zip(module.named_parameters(), gradients, strict=True)
        }
    for site in crew:
        second = {
            **section(watched.replies[2][site].tensors, "model"),
            **section(load_newest_memory(crew[site].disk).tensors, "personal"),
        }
        assert testbed.are_close(second, stepped[site], 1e-6)


def load_memory_of(hospital: testbed.Hospital, round_: int) -> Message:
    """A hospital's memory of a round, from a run that ended with it: what was kept of it is gone by now."""
    _, crew, _ = train(hospital.algorithm, TASKS, rounds=round_)  # type: ignore[arg-type]
    return load_newest_memory(crew[hospital.name].disk)


def test_a_hospital_that_is_not_asked_at_first_has_a_model_of_its_own_network():
    _, crew, _ = train(Asymmetric(), TASKS, rounds=3, participation=0.34, quorum=0.3)
    for site, hospital in crew.items():
        TASKS[site].network().load_state_dict(testbed.newest_model(hospital))


def test_alone_begins_with_what_the_federation_begins_with_and_learns_from_nobody():
    _, alone, watched = train(Local(), TASKS, rounds=1)
    assert all(not reply.tensors for replies in watched.replies for reply in replies.values())
    _, together, _ = train(Asymmetric(), TASKS, rounds=1)
    for site in TASKS:
        personal = section(load_newest_memory(together[site].disk).tensors, "personal")
        own = section(load_newest_memory(alone[site].disk).tensors, "model")
        assert all(torch.equal(own[name], value) for name, value in personal.items()), site


@pytest.mark.parametrize("algorithm", [Asymmetric(), Local()])
@pytest.mark.parametrize("shared", [(), ("head.bias",), ("stem.0.weight",)])
def test_what_a_hospital_draws_itself_lies_with_its_patients(algorithm, shared):
    """Also where the first layer is not shared, as of plans whose first kernels differ."""
    task = Task(Mlp(hidden=(6, 5)), (4,), 2, shared=shared)
    start = {f"model/{name}": task.network().state_dict()[name] for name in shared}
    with other_device():
        splits = {
            split: Rows(*(part.to(OTHER) for part in (rows.x, rows.y, rows.patient)))
            for split, rows in TABLES["a"].items()
        }
        hospital = testbed.Hospital("a", splits, algorithm, task, WORK)
        hospital(Call("law", 1, "train", {}), Message(start, {"algorithm": {}}))
    assert load_newest_memory(hospital.disk).tensors


def test_hospitals_train_privately_and_send_no_more():
    protection = Protection(cut="c", clip=1.0, noise=1.0, sampling=0.5, validation_noise=1.0, loss_bound=1.0)
    for site, task in TASKS.items():
        assert Asymmetric().complaints(task.network(), WORK, True) == []
        crew = testbed.Hospital(site, TABLES[site], Asymmetric(), task, WORK, protection=protection)
        start = {f"model/{name}": task.network().state_dict()[name] for name in task.shared or ()}
        crew(Call("law", 0, "introduce", {}), Message())
        reply = crew(Call("law", 1, "train", {}), Message(start, {"algorithm": {}}))
        assert set(reply.tensors) == set(start) and crew.events


@st.composite
def plans(draw: st.DrawFn) -> Planned:
    """A small plan of volumes."""
    stages = draw(st.integers(2, 4))
    strides = [(1, 1, 1), *draw(st.lists(st.sampled_from([(1, 2, 2), (2, 2, 2)]), min_size=stages - 1, max_size=3))]
    strides = strides[:stages]
    kernels = draw(st.lists(st.sampled_from([(1, 3, 3), (3, 3, 3)]), min_size=stages, max_size=stages))
    width = draw(st.sampled_from([2, 4]))
    return Planned(
        patch=(8, 16, 16),
        kernels=tuple(kernels),
        strides=tuple(strides),
        filters=tuple(min(8, width * 2**stage) for stage in range(stages)),
        deep_supervision=draw(st.booleans()),
    )


def share_slowly(tasks: Sequence[Task]) -> set[str]:
    """By networks that are made."""
    networks = [task.network().state_dict() for task in tasks]
    return {
        name
        for name, value in networks[0].items()
        if all(name in other and other[name].shape == value.shape for other in networks)
    }


@settings(max_examples=25, deadline=None)
@given(st.lists(plans(), min_size=1, max_size=3))
def test_of_any_plans_what_is_shared_is_what_made_networks_have_in_common(made):
    tasks = [Task(plan, (1, 8, 16, 16), 2, "segmentation") for plan in made]
    names = [set(list_shared(tasks[:count])) for count in range(1, len(tasks) + 1)]
    assert names[-1] == share_slowly(tasks) == set(list_shared(tasks[::-1]))
    assert all(fewer <= more for more, fewer in pairwise(names))  # one more hospital never adds anything
    assert names[0] == set(tasks[0].network().state_dict())


@settings(max_examples=5, deadline=None)
@given(st.lists(plans(), min_size=2, max_size=2))
def test_replies_have_one_form_whatever_a_hospitals_network_is(made):
    """So the coordinator checks all of them by the first hospital's, and adds them up without knowing the networks."""
    tasks = share({str(k): Task(plan, (1, 8, 16, 16), 2, "segmentation") for k, plan in enumerate(made)})
    forms = [
        {
            name: (value.shape, value.dtype)
            for name, value in rehearse_forms(
                Asymmetric(), task, WORK, initial_parameters(Asymmetric(), task, seed=0)
            ).reply.tensors.items()
        }
        for task in tasks.values()
    ]
    assert forms[0] == forms[1] and set(forms[0]) == {f"model/{name}" for name in tasks["0"].shared or ()}
