"""Common parts of the tests of methods: sites, training with lost replies, and the parts of slow reference
implementations, which are each site's batches, the sites present, plain steps, and the mean."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from consilium.testing import testbed
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.outcome import Outcome
from federation.parameters import section
from federation.questions import sample_sites
from federation.randomness import derive_seed
from federation.rehearsal import initial_parameters
from federation.rounds import Schedule
from federation.task import Task
from privacy.dp.access import Rows
from privacy.dp.batches import batches_per_epoch, iterate_minibatches
from privacy.dp.protection import Protection
from privacy.message import Call, Message, Params


def images(seed: int, n: int, side: int = 8) -> dict[str, Rows]:
    """Splits of small square images; the difference between classes grows with the seed, so that sites differ."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.rand(n, 1, side, side, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(n)), "validation": Rows(x[:4], y[:4], torch.arange(4))}


def alone(seed: int, shift: float = 0.0) -> dict[str, Rows]:
    """A table in double precision in which every patient has one row, so that a patient's mean is the row."""
    rows = testbed.make_table(seed, shift=shift)
    return {split: Rows(r.x.double(), r.y, torch.arange(len(r.y))) for split, r in rows.items()}


NAMES = ("a", "b", "c")
TABLES = {
    "a": testbed.make_table(1, n=10),
    "b": testbed.make_table(2, n=10, shift=0.7),
    "c": testbed.make_table(3, n=6, shift=-0.4),
}
UNEVEN = {**TABLES, "b": testbed.make_table(2, n=14, shift=0.7)}  # no two sites have as many patients
IMAGES = {"a": images(1, 6), "b": images(2, 9), "c": images(3, 4)}
CNN = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
KINDS = {"mlp": (testbed.make_task(), TABLES), "batch norm": (CNN, IMAGES)}
UNEVEN_KINDS = [pytest.param(testbed.make_task(), UNEVEN, id="mlp"), pytest.param(CNN, IMAGES, id="batch norm")]
SGD = Work(optimizer="sgd", lr=0.05, batch=4, epochs=2)
ADAM = Work(optimizer="adam", lr=0.02, batch=4, epochs=2)
BRIEF = Work(optimizer="sgd", lr=0.1, batch=5)  # one epoch
LOST = frozenset({(2, "c"), (4, "b")})  # c is there from round 3 on: its first reply is lost
LOST_LATER = frozenset({(2, "a"), (3, "b")})  # both had a reply merged in round 1
LOST_OF_ALL = frozenset({(2, "a"), (2, "b"), (3, "c")})  # with PARTICIPATION b is not asked in round 2
ROUNDS, PARTICIPATION = 5, 0.67


def trained(
    algorithm: Algorithm,
    sites: Mapping[str, Mapping[str, Rows]] = UNEVEN,
    task: Task | None = None,
    work: Work = BRIEF,
    lost: frozenset[tuple[int, str]] = frozenset(),
    *,
    protection: Protection | None = None,
    **schedule: Any,
) -> tuple[Outcome, dict[str, testbed.Hospital]]:
    """Actual training, by default of `testbed.task()` and for four rounds."""
    task = task or testbed.make_task()
    crew = testbed.make_federation(algorithm, sites, task=task, work=work)
    crew = {name: replace(hospital, protection=protection) for name, hospital in crew.items()}
    rounds = Schedule(**{"rounds": 4, "quorum": 0.3, **schedule})
    engine = testbed.LossyEngine(InProcess(crew), lost)
    return testbed.train(algorithm, crew, task=task, work=work, schedule=rounds, engine=engine), crew


@functools.cache
def run(
    algorithm: Algorithm,
    kind: str,
    work: Work = SGD,
    *,
    rounds: int = ROUNDS,
    participation: float = PARTICIPATION,
    lost: frozenset[tuple[int, str]] = LOST,
    task: Task | None = None,
) -> tuple[Outcome, dict[str, testbed.Hospital]]:
    """`trained`, by default with absent sites and lost replies. Cached: do not modify the result."""
    own, sites = KINDS[kind]
    return trained(algorithm, sites, task or own, work, lost, rounds=rounds, participation=participation)


class RecordingEngine:
    """An engine that remembers the models in the replies that arrived, by round and site."""

    def __init__(self, inner: testbed.LossyEngine) -> None:
        self.inner, self.sites = inner, inner.sites
        self.seen: dict[tuple[int, str], Params] = {}

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        if call.request == "train":
            self.seen |= {(call.round, site): section(r.tensors, "model") for site, r in answers.replies.items()}
        return answers


def recorded_training(
    algorithm: Algorithm,
    task: Task = CNN,
    sites: Mapping[str, Mapping[str, Rows]] = IMAGES,
    lost: frozenset[tuple[int, str]] = frozenset(),
    work: Work = ADAM,
    **schedule: Any,
) -> tuple[list[Params], dict[tuple[int, str], Params], dict[str, dict[str, Tensor]]]:
    """Training with all its states, the first included; the replies that arrived; and each site's last model."""
    crew = testbed.make_federation(algorithm, sites, task=task, work=work)
    engine, states = RecordingEngine(testbed.LossyEngine(InProcess(crew), lost)), list[Params]()
    rounds = Schedule(**{"rounds": 4, "quorum": 0.3, **schedule})

    def keep(outcome: Outcome) -> None:
        states.append(outcome.state.tensors)

    testbed.train(algorithm, crew, task=task, work=work, schedule=rounds, engine=engine, between=keep)
    return states, engine.seen, {name: testbed.newest_model(hospital) for name, hospital in crew.items()}


def present(round_: int, lost: frozenset[tuple[int, str]] = LOST, participation: float = PARTICIPATION) -> list[str]:
    """The sites whose replies of this round are merged."""
    asked = sample_sites(NAMES, round(participation * len(NAMES)), derive_seed(0, "participation", round_))
    return [site for site in asked if (round_, site) not in lost]


def network(task: Task, params: Mapping[str, Tensor] | None = None) -> nn.Module:
    """The task's network in training mode, by default with the initial parameters."""
    module = task.network()
    module.load_state_dict(dict(initial_parameters(FedAvg(), task, seed=1) if params is None else params))
    return module.train()


def batches(rows: Rows, round_: int, site: str, work: Work = SGD, per_step: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """A site's batches (x, y) in a round; `per_step` batches for each of the round's steps."""
    generator = torch.Generator().manual_seed(derive_seed(0, site, round_, "train"))
    stream = iterate_minibatches(rows.y, batch=work.batch, balance=False, generator=generator)
    for _ in range(per_step * (work.epochs or 0) * batches_per_epoch(len(rows.y), work.batch)):
        index = next(stream)
        yield rows.x[index], rows.y[index]


def slopes(module: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Gradient of the mean cross-entropy over a batch, by parameter."""
    loss = nn.functional.cross_entropy(module(x).logits, y)
    return list(torch.autograd.grad(loss, list(module.parameters())))


def descend(
    module: nn.Module,
    rows: Rows,
    round_: int,
    site: str,
    work: Work = SGD,
    pull: Callable[[str, Tensor], Tensor | float] = lambda name, p: 0.0,
) -> None:
    """Plain SGD over the batches of a site's round, in place; `pull` is added to each parameter's slope."""
    module.train()
    for x, y in batches(rows, round_, site, work):
        grads = slopes(module, x, y)
        with torch.no_grad():
            for (name, p), g in zip(module.named_parameters(), grads, strict=True):
                p.sub_(work.lr * (g + pull(name, p)))


def mixed(states: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Weighted mean of models, whatever the weights sum to; counters take the maximum."""
    total = sum(weights)
    return {
        name: torch.stack([w / total * s[name].double() for w, s in zip(weights, states, strict=True)]).sum(0).float()
        if value.is_floating_point()
        else torch.stack([s[name] for s in states]).amax(0)
        for name, value in states[0].items()
    }


def averaged(models: list[nn.Module], weights: list[float]) -> nn.Module:
    result = copy.deepcopy(models[0])
    result.load_state_dict(mixed([model.state_dict() for model in models], weights))
    return result


def part(params: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The parameters of the submodule `name`, with the names in it."""
    return {key.removeprefix(f"{name}."): value for key, value in params.items() if key.startswith(f"{name}.")}


def agree(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 2e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name].float(), value.float(), atol=tolerance), name
