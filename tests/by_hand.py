"""What slow second implementations of methods share: sites, the batches that each draws, who is there, and the mean."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

import rig
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.parameters import mean
from federation.randomness import derived
from federation.rehearsal import initial_parameters
from federation.rounds import Outcome, Schedule, sampled
from federation.task import Task
from privacy.access import Rows, batches_per_epoch, minibatches


def images(seed: int, n: int) -> dict[str, Rows]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.rand(n, 1, 8, 8, generator=g) + 0.3 * y[:, None, None, None] * seed
    return {"train": Rows(x, y, torch.arange(n)), "validation": Rows(x[:4], y[:4], torch.arange(4))}


NAMES = ("a", "b", "c")
TABLES = {"a": rig.table(1), "b": rig.table(2, shift=0.7), "c": rig.table(3, n=10, shift=-0.4)}
IMAGES = {"a": images(1, 9), "b": images(2, 14), "c": images(3, 6)}
CNN = Task(Cnn(widths=(8, 8), norm="batch"), (1, 8, 8), 2)
KINDS = {"mlp": (rig.task(), TABLES), "batch norm": (CNN, IMAGES)}
SGD = Work(optimizer="sgd", lr=0.05, batch=4, epochs=2)
ADAM = Work(optimizer="adam", lr=0.02, batch=4, epochs=2)
LOST = frozenset({(2, "c"), (4, "b")})  # c is there from round 3 on: its first reply is lost
ROUNDS, PARTICIPATION = 5, 0.67


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
) -> tuple[Outcome, dict[str, rig.Hospital]]:
    """Training as it is, with absent sites and lost replies unless told otherwise. Kept: do not write on the result."""
    own, sites = KINDS[kind]
    task = task or own
    crew = rig.federation(algorithm, sites, task=task, work=work)
    schedule = Schedule(rounds=rounds, participation=participation, quorum=0.3)
    engine = rig.Lossy(InProcess(crew), lost)
    return rig.train(algorithm, crew, task=task, work=work, schedule=schedule, engine=engine), crew


def present(round_: int) -> list[str]:
    """The sites whose replies of this round are merged."""
    asked = sampled(NAMES, PARTICIPATION, derived(0, "participation", round_))
    return [site for site in asked if (round_, site) not in LOST]


def network(task: Task, params: Mapping[str, Tensor] | None = None) -> nn.Module:
    """The task's network in training mode, at the common start unless told otherwise."""
    module = task.network()
    module.load_state_dict(dict(initial_parameters(FedAvg(), task, seed=1) if params is None else params))
    return module.train()


def batches(rows: Rows, round_: int, site: str, work: Work = SGD, per_step: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """What a site draws in a round, (x, y); `per_step` batches for each of the round's steps."""
    generator = torch.Generator().manual_seed(derived(0, site, round_, "train"))
    stream = minibatches(rows.y, batch=work.batch, balance=False, generator=generator)
    for _ in range(per_step * (work.epochs or 0) * batches_per_epoch(len(rows.y), work.batch)):
        index = next(stream)
        yield rows.x[index], rows.y[index]


def slopes(module: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """Gradient of the mean cross-entropy over a batch, by parameter."""
    loss = nn.functional.cross_entropy(module(x).logits, y)
    return list(torch.autograd.grad(loss, list(module.parameters())))


def averaged(models: list[nn.Module], weights: list[float]) -> nn.Module:
    result = copy.deepcopy(models[0])
    result.load_state_dict(dict(mean([model.state_dict() for model in models], weights)))
    return result


def agree(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 2e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name].float(), value.float(), atol=tolerance), name
