"""Cost of every method beside FedAvg's: python -m benchmarks.speed.methods [--epochs 5] [--methods apfl pgfed]

A round of each method that a YAML can name, in memory, on one thread: 4 sites of 48 to 96 noise images, a CNN. Each
method takes turns with a FedAvg of the same local work, a round each, so that a busy machine slows both; a ratio is
that of the sums over turns, of processor time. The first round of each is not counted: most methods do less in it.

train: local training alone, FedAvg's seconds over the method's, which is images/s of the same epochs relative to
FedAvg's, as the papers of PGFed give it. round: with validation of the model, sending and merging. passes: images that
went through a training gradient, over FedAvg's. up, down: bytes of a serialized reply and of what a site is sent, over
FedAvg's. Settings are the methods' own, but for those in SETTINGS; a method that wants plain SGD gets it, and so does
its FedAvg.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cProfile
import gc
import pstats
import time
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.parameters import loaded
from federation.participant import NOTES
from federation.randomness import derive_seed, use_seed
from federation.rehearsal import initial_parameters
from federation.task import Task
from personalize import AnyAlgorithm
from privacy.dp.access import Access, Draw, Gradient, Objective, Rows, Sample, Split, open_access
from privacy.message import Call, Message, to_bytes

SEED, SIZES = 0, (48, 72, 72, 96)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "pgfedmo": {"beta": 0.5},
    "fedrep": {"head_epochs": 1},  # and one of the body
}
PAPERS = {"apfl": 0.49, "perfedavg": 0.50, "fedrod": 0.97, "pgfed": 0.88, "pgfedmo": 0.872}
"""Images/s relative to FedAvg's, 5 local epochs: Luo et al., ICCV 2023."""


@dataclass
class Counted:
    """Data access that counts the images whose gradient was taken."""

    inner: Access
    images: int = 0

    def gradient(
        self, module: nn.Module, objective: Objective, draw: Draw | Sample, aux: Tensor | None = None
    ) -> Gradient:
        self.images += len(cast(Draw, draw).y)
        return self.inner.gradient(module, objective, draw, aux)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Told:
    """What rounds cost, added up. train, whole: seconds of processor time. up, down: bytes of the last round."""

    train: float = 0.0
    whole: float = 0.0
    images: int = 0
    up: int = 0
    down: int = 0


@dataclass
class Federation:
    """All sites of one method, without disks."""

    algorithm: Algorithm
    task: Task
    work: Work
    splits: Mapping[str, Mapping[Split, Rows]]
    told: Told = field(default_factory=Told)
    number: int = 0

    def __post_init__(self) -> None:
        call = Call("methods", 0, "introduce", {})
        said = {name: self.algorithm.introduce(self.site(name, call)[0]) for name in self.splits}
        self.state = self.algorithm.start(initial_parameters(self.algorithm, self.task, seed=SEED), said)
        self.memories = {name: Message() for name in self.splits}

    def site(self, name: str, call: Call) -> tuple[Site, Counted]:
        seed = derive_seed(SEED, name, call.round)
        access = Counted(open_access(self.splits[name], batch=self.work.batch, seed=seed))
        return Site(name, self.task, self.work, cast(Access, access)), access

    def round(self) -> None:
        before, self.number = self.number, self.number + 1
        call = Call("methods", self.number, "train", dict.fromkeys(self.splits, before))
        told, replies, begun = Told(), dict[str, Message](), time.process_time()
        messages = {name: self.algorithm.send(self.state, name, call) for name in self.splits}
        for name in self.splits:
            (site, access), memory = self.site(name, call), self.memories[name]
            with use_seed(derive_seed(SEED, name, call.round)):
                if before:
                    params = self.algorithm.model(site, messages[name], memory)
                    site.measure(loaded(self.algorithm.network(self.task), params), self.task.validation, "validation")
                one, access.images = time.process_time(), 0
                replies[name], kept = self.algorithm.train(site, messages[name], memory, call)
                told.train += time.process_time() - one
            told.images += access.images
            facts = {key: fact for key, fact in kept.facts.items() if key != NOTES}
            self.memories[name] = Message(kept.tensors, facts)
        self.state = self.algorithm.merge(self.state, replies)
        told.whole = time.process_time() - begun
        told.up = sum(len(to_bytes(reply)) for reply in replies.values())
        told.down = sum(len(to_bytes(message)) for message in messages.values())
        if before:
            self.told = Told(
                self.told.train + told.train, self.told.whole + told.whole, told.images, told.up, told.down
            )


def images(side: int) -> dict[str, dict[Split, Rows]]:
    """Noise with a bright square where the label is 1, at every site; a fifth more for validation."""
    made = torch.Generator().manual_seed(SEED)

    def rows(n: int) -> Rows:
        y = torch.randint(2, (n,), generator=made)
        x = torch.randn(n, 1, side, side, generator=made)
        x[:, :, side // 3 : 2 * side // 3, side // 3 : 2 * side // 3] += y.view(-1, 1, 1, 1).float()
        return Rows(x, y, torch.arange(n))

    return {f"s{number}": {"train": rows(n), "validation": rows(n // 5)} for number, n in enumerate(SIZES)}


def everyone() -> dict[str, Algorithm]:
    """Each word of a YAML's `name` with its method; `central` is `local` elsewhere."""
    kinds = typing.get_args(AnyAlgorithm)
    words = {name: kind for kind in kinds for name in typing.get_args(typing.get_type_hints(kind)["name"])}
    del words["central"]
    return {name: kind(name=name, **SETTINGS.get(name, {})) for name, kind in sorted(words.items())}


def fitting(algorithm: Algorithm, task: Task, work: Work) -> Work:
    """The work, by plain SGD where the method wants it."""
    network = algorithm.network(task)
    for one in (work, replace(work, optimizer="sgd", lr=0.01, keep_optimizer=work.keep_optimizer)):
        found = algorithm.complaints(network, one, False)
        if not found:
            return one
    raise ValueError(f"{algorithm.name} does not run here: {'; '.join(found)}")


def compared(algorithm: Algorithm, task: Task, work: Work, side: int, turns: int) -> str:
    work = fitting(algorithm, task, work)
    splits = images(side)
    ours, base = Federation(algorithm, task, work, splits), Federation(FedAvg(), task, work, splits)
    for _ in range(turns + 1):
        base.round()
        ours.round()
        gc.collect()
    one, two = ours.told, base.told
    paper = f"{PAPERS[algorithm.name]:.2f}" if algorithm.name in PAPERS else ""
    speed, whole = two.train / one.train, one.whole / two.whole
    return (
        f"| {algorithm.name} | {work.optimizer} | {speed:.2f} | {paper} | {whole:.2f} | "
        f"{one.images / two.images:.2f} | {one.up / two.up:.2f} | {one.down / two.down:.2f} |"
    )


def profile(algorithm: Algorithm, task: Task, work: Work, side: int, turns: int) -> None:
    work, splits = fitting(algorithm, task, work), images(side)
    for one in (FedAvg(), algorithm):
        federation = Federation(one, task, work, splits)
        federation.round()
        watched = cProfile.Profile(time.process_time)
        watched.enable()
        for _ in range(turns):
            federation.round()
        watched.disable()
        print(one.name)
        pstats.Stats(watched).sort_stats("tottime").print_stats(18)
        pstats.Stats(watched).sort_stats("cumulative").print_stats(r"(access|descent|personalize|federation).*\.py")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = make_parser(__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--norm", choices=("batch", "group"), default="batch")
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--profile", action="store_true", help="of the named methods instead, beside FedAvg")
    said = parser.parse_args()
    task = Task(Cnn(norm=said.norm), (1, said.side, said.side), 2)
    work = Work(batch=said.batch, epochs=said.epochs)
    known = everyone()
    chosen = [known[name] for name in (said.methods or known)]
    if said.profile:
        for algorithm in chosen:
            profile(algorithm, task, work, said.side, said.turns)
        raise SystemExit
    print(f"{said.epochs} local epochs, batch {said.batch}, {said.side} px, {said.turns} turns\n")
    print("| method | by | images/s, times FedAvg's | its paper | round | passes | up | down |")
    print("|---|---|---|---|---|---|---|---|")
    for algorithm in chosen:
        print(compared(algorithm, task, work, said.side, said.turns), flush=True)
