"""Cost of the conversation: python -m benchmarks.speed.engine [ratio | memory | profile] [--folder PLACE]

ratio: a round of FedAvg as `pipelines.run` trains it (hospitals with policy, gate, ledger, committed memories, models
and the coordinator's state, all forced to the disk), over a bare loop: plain torch on images in memory, Adam, the mean
by hand. Both do the same arithmetic - same start, same batches, validation of the merged model included - and must end
in the same parameters bit for bit. They take turns, a round each, so that a busy machine slows both; a ratio is that of
the sums over turns. `CPU` is processor time, without what is waited for the disk; `forced to the disk` is the share of
the engine's round that fsync took, counted by a wrapper around it.

memory: how far anonymous memory grows, in a process of its own for each federation, over rounds and with sites.

profile: where the time of the hospitals' rounds goes, by function (cProfile).
"""

from __future__ import annotations

import os

from benchmarks.shared.clock import read_memory
from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cProfile
import gc
import multiprocessing
import pstats
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.outcome import Outcome
from federation.parameters import count_values
from federation.randomness import derive_seed
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.rounds import Schedule, conduct_training
from federation.task import Task
from personalize.partial import Partial
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import Hospital, rows_of, write_cohort_file
from pipelines.hospital.worker import make_worker
from pipelines.loader.validation import to_plain
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.replies import store_replies
from pipelines.runs.store import DiskFolder, short_digest
from pipelines.settings.sites import SiteSettings
from privacy.dp.access import Rows, Split
from privacy.dp.batches import iterate_minibatches
from privacy.message import Message

SEED, RUN = 0, "benchmark/fedavg-000000000000"
TASK = Task(Cnn(), (1, 48, 48), 2)
LARGE = Task(Mlp(hidden=(112,)), (2304,), 2)  # many parameters and little to compute
WORK = Work(batch=24)
VALIDATION = 0.2
ROUNDS = 6  # turns of a ratio, and one more that is not counted
SHAPES = ((4, 24), (4, 600), (64, 24))
"""(sites, training images of each): a short round, and two of 2 s or more of a quiet core."""


def cohort(site: int, images: int, validation: float = VALIDATION) -> Cohort:
    """Noise with a bright square where the label is 1; every patient has four slices."""
    made = torch.Generator().manual_seed(derive_seed(SEED, "images", site))
    n = images + round(validation * images)
    y = torch.randint(2, (n,), generator=made)
    x = torch.randn(n, *TASK.inputs, generator=made)
    x[:, :, 16:32, 16:32] += y.view(-1, 1, 1, 1).float()
    return Cohort(
        images=x,
        labels=y,
        patient=torch.arange(n) // 4,
        position=(torch.arange(n) % 4).float(),
        lesion=torch.zeros(n, 0, dtype=torch.uint8),
        gland=torch.zeros(n, 0, dtype=torch.uint8),
        split=(torch.arange(n) >= images).to(torch.int8),
        patients=tuple(f"p{number:05d}" for number in range(-(-n // 4))),
    )


def hospitals(root: Path, cohorts: Mapping[str, Cohort]) -> tuple[dict[str, Hospital], dict[str, str]]:
    """Real hospitals in folders of their own, who admitted these patients; and the names of their cohorts."""
    found, names = {}, {}
    for name, one in cohorts.items():
        settings = SiteSettings(source=PhantomSource(scanner="P", patients=2))
        found[name] = Hospital(name, root / name, settings, lambda: datetime.now(UTC).isoformat(timespec="seconds"))
        names[name] = short_digest(write_cohort_file(root / name / "cohorts", one, secrets.token_bytes(32)))
    return found, names


def opening(algorithm: Algorithm, task: Task, cohort: str, work: Work) -> Message:
    facts: dict[str, Any] = {
        "label": "benchmark",
        "algorithm": to_plain(algorithm),
        "model": to_plain(task.model),
        "inputs": list(task.inputs),
        "classes": task.classes,
        "work": to_plain(work),
        "seed": SEED,
        "cohort": cohort,
        "privacy": None,
    }
    return Message({}, facts)


def federated(
    algorithm: Algorithm,
    task: Task,
    root: Path,
    cohorts: Mapping[str, Cohort],
    rounds: int,
    between: Callable[[Outcome], None],
    work: Work = WORK,
) -> Outcome:
    """What `pipelines.coordinator.stages.train` does for one method, with fsync and all."""
    own, names = hospitals(root / "sites", cohorts)
    initial = initial_parameters(algorithm, task, seed=SEED)
    return conduct_training(
        InProcess(
            {name: store_replies(make_worker(hospital), root / "federation", print) for name, hospital in own.items()}
        ),
        algorithm,
        run=RUN,
        initial=initial,
        opening={name: opening(algorithm, task, names[name], work) for name in own},
        forms=rehearse_forms(algorithm, task, work, initial),
        schedule=Schedule(rounds=rounds),
        seed=SEED,
        folder=DiskFolder(root / "federation"),
        between=between,
    )


class Bare:
    """FedAvg as one writes it by hand: images in memory, one model, an Adam for each site, nothing kept on a disk."""

    def __init__(self, rows: Mapping[str, Mapping[Split, Rows]]) -> None:
        self.rows = rows
        self.start = dict(initial_parameters(FedAvg(), TASK, seed=SEED))
        self.model = TASK.network()
        self.rules = {site: torch.optim.Adam(self.model.parameters(), lr=WORK.lr) for site in rows}
        self.losses: list[dict[str, float]] = []
        self.number = 0

    def batches(self) -> dict[str, list[Tensor]]:
        """Which rows each site draws in this round: those that the hospital of that name draws."""
        self.number += 1
        drawn = {}
        for site, rows in self.rows.items():
            seed = derive_seed(SEED, site, self.number, "train", "draws")
            y, generator = rows["train"].y, torch.Generator().manual_seed(seed)
            stream = iterate_minibatches(y, batch=WORK.batch, balance=False, generator=generator)
            drawn[site] = [next(stream) for _ in range(-(-len(y) // WORK.batch))]
        return drawn

    def round(self, drawn: Mapping[str, list[Tensor]]) -> None:
        after = {}
        if self.number > 1:
            self.losses.append({site: self.validated(rows["validation"]) for site, rows in self.rows.items()})
        for site, rows in self.rows.items():
            self.model.load_state_dict(self.start)
            self.model.train()
            x, y, rule = rows["train"].x, rows["train"].y, self.rules[site]
            for index in drawn[site]:
                rule.zero_grad()
                functional.cross_entropy(self.model(x[index]).logits, y[index]).backward()
                rule.step()
            after[site] = {name: value.clone() for name, value in self.model.state_dict().items()}
        total = sum(len(rows["train"].y) for rows in self.rows.values())
        shares = [len(rows["train"].y) / total for rows in self.rows.values()]
        for name, value in self.start.items():
            each = [model[name] for model in after.values()]
            if value.is_floating_point():
                summed = torch.zeros_like(value, dtype=torch.float64)
                for share, one in zip(shares, each, strict=True):
                    summed += share * one.double()
                self.start[name] = summed.to(value.dtype)
            else:
                self.start[name] = torch.stack(each).amax(dim=0)

    def validated(self, rows: Rows) -> float:
        self.model.load_state_dict(self.start)
        self.model.eval()
        with torch.no_grad():
            logits = [self.model(x).logits for x in torch.split(rows.x, 256)]
            return float(functional.cross_entropy(torch.cat(logits), rows.y))


class Forced:
    """Seconds and calls of fsync, of all threads."""

    def __init__(self) -> None:
        self.seconds, self.calls, self.lock = 0.0, 0, threading.Lock()

    @contextmanager
    def counted(self) -> Iterator[None]:
        plain = os.fsync

        def fsync(file: Any) -> None:
            begun = time.perf_counter()
            plain(file)
            with self.lock:
                self.seconds, self.calls = self.seconds + time.perf_counter() - begun, self.calls + 1

        os.fsync = fsync
        try:
            yield
        finally:
            os.fsync = plain


class Turns:
    """Between two rounds of the hospitals the bare loop has its turn. The first of each is not counted."""

    def __init__(self, bare: Bare, forced: Forced) -> None:
        self.bare, self.forced = bare, forced
        self.wall: dict[str, list[float]] = {"ours": [], "bare": []}
        self.cpu: dict[str, list[float]] = {"ours": [], "bare": []}
        self.disk: list[tuple[float, int]] = []
        self.begun = (0.0, 0.0, 0.0, 0)

    def __call__(self, outcome: Outcome) -> None:
        now = self.now()
        if outcome.round > 1:
            self.book("ours", self.begun, now)
            self.disk.append((now[2] - self.begun[2], now[3] - self.begun[3]))
        if outcome.round < ROUNDS:
            drawn, begun = self.bare.batches(), self.now()
            self.bare.round(drawn)
            if outcome.round > 0:
                self.book("bare", begun, self.now())
        self.begun = self.now()

    def now(self) -> tuple[float, float, float, int]:
        return time.perf_counter(), time.process_time(), self.forced.seconds, self.forced.calls

    def book(self, way: str, begun: tuple[float, ...], ended: tuple[float, ...]) -> None:
        self.wall[way].append(ended[0] - begun[0])
        self.cpu[way].append(ended[1] - begun[1])


def ratio(root: Path, sites: int, images: int) -> str:
    cohorts = {f"s{number:02d}": cohort(number, images) for number in range(sites)}
    bare, forced = Bare({name: rows_of(one) for name, one in cohorts.items()}), Forced()
    turns = Turns(bare, forced)
    with forced.counted():
        outcome = federated(FedAvg(), TASK, root, cohorts, ROUNDS, turns)
    same = all(torch.equal(value, outcome.state.tensors[f"model/{name}"]) for name, value in bare.start.items())
    if not same:
        raise RuntimeError("the bare loop did other arithmetic: its parameters differ")
    ours, theirs = sum(turns.wall["ours"]), sum(turns.wall["bare"])
    quick = sorted(a / b for a, b in zip(turns.wall["ours"], turns.wall["bare"], strict=True))
    times = len(turns.wall["ours"])
    cpu = {way: sum(found) / times for way, found in turns.cpu.items()}
    seconds, calls = sum(s for s, _ in turns.disk), sum(c for _, c in turns.disk)
    return (
        f"| {sites} | {images} | {theirs / times:.2f} | {ours / theirs:.3f} | {quick[0]:.3f} to {quick[-1]:.3f} | "
        f"{cpu['bare']:.2f} | {cpu['ours'] / cpu['bare']:.3f} | {1000 * (cpu['ours'] - cpu['bare']) / sites:.1f} | "
        f"{seconds / ours:.2f} | {calls / times / sites:.1f} | {1000 * seconds / calls:.1f} |"
    )


def anonymous() -> float:
    """MiB of memory that no file stands behind. What is mapped from a file, the system takes back when it needs it."""
    return read_memory("RssAnon")


class Peak:
    """The largest `anonymous` since the last look, sampled every few milliseconds."""

    def __init__(self) -> None:
        self.largest, self.going = 0.0, True
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while self.going:
            self.largest = max(self.largest, anonymous())
            time.sleep(0.005)

    def look(self) -> float:
        found, self.largest = self.largest, anonymous()
        return found


def grown(folder: str, method: str, sites: int, rounds: int) -> list[float]:
    """MiB: the peak of each round, less what there was before the first."""
    torch.set_num_threads(1)
    algorithm: Algorithm = FedAvg() if method == "fedavg" else Partial()
    flat = {f"s{number:02d}": cohort(number, 8) for number in range(sites)}
    cohorts = {name: replace(one, images=one.images.flatten(1)) for name, one in flat.items()}
    peaks: list[float] = []
    peak = Peak()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        federated(algorithm, LARGE, Path(place), cohorts, rounds, lambda outcome: peaks.append(peak.look()))
    peak.going = False
    return [found - peaks[0] for found in peaks[1:]]


def memory(folder: str) -> None:
    parameters = count_values(initial_parameters(FedAvg(), LARGE, seed=SEED))
    print(f"{parameters:,} parameters, {4 * parameters / 2**20:.1f} MiB a model; MiB above the start of round 1\n")
    print("| method | sites | round 1 | round 2 | round 4 | last | rounds |\n|---|---|---|---|---|---|---|")
    context = multiprocessing.get_context("spawn")
    for method in ("fedavg", "fedper"):
        for sites, rounds in ((4, 16), (16, 6), (64, 4)):
            with context.Pool(1, maxtasksperchild=1) as pool:
                found = pool.apply(grown, (folder, method, sites, rounds))
            at = " | ".join(f"{found[number]:.0f}" for number in (0, 1, 3, -1))
            print(f"| {method} | {sites} | {at} | {rounds} |", flush=True)


def profile(folder: str, sites: int, images: int) -> None:
    watched = cProfile.Profile(time.process_time)  # of a busy machine, too
    initial = initial_parameters(FedAvg(), TASK, seed=SEED)
    rehearse_forms(FedAvg(), TASK, WORK, initial)  # what is imported at the first step
    cohorts = {f"s{number:02d}": cohort(number, images) for number in range(sites)}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        watched.enable()
        federated(FedAvg(), TASK, Path(place), cohorts, ROUNDS, lambda outcome: None)
        watched.disable()
    for order in ("cumulative", "tottime"):
        pstats.Stats(watched).sort_stats(order).print_stats(45)


def ratios(folder: str, shapes: tuple[tuple[int, int], ...]) -> None:
    print(f"{count_values(initial_parameters(FedAvg(), TASK, seed=SEED)):,} parameters, {ROUNDS - 1} turns\n")
    print(
        "| sites | images each | bare, s a round | ours / bare | of single turns | bare, CPU s | ours / bare, CPU | "
        "CPU ms more a site | share forced to the disk | fsync a site | ms each |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for sites, images in shapes:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            print(ratio(Path(place), sites, images), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # as commands do once they have imported; or each look for garbage goes through all of it
    parser = make_parser(__doc__)
    parser.add_argument("what", nargs="?", default="ratio", choices=("ratio", "memory", "profile"))
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is measured")
    parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("SITES", "IMAGES"))
    chosen = parser.parse_args()
    asked = tuple((a, b) for a, b in chosen.shape or SHAPES)
    if chosen.what == "ratio":
        ratios(chosen.folder, asked)
    elif chosen.what == "memory":
        memory(chosen.folder)
    else:
        profile(chosen.folder, *asked[0])
