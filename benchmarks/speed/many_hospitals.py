"""Four to a thousand simulated hospitals: seconds a round, files, bytes and memory.

    python -m benchmarks.speed.many_hospitals [--only 1000] [--folder PLACE]
    python -m benchmarks.tables.results_tables

FedAvg as `pipelines.run` trains it: real hospitals with policy, gate, ledger, committed memories, models and the
coordinator's state, all forced to the disk, one after another in one process on one core. A perceptron of 1,074
parameters and 24 images of 8 x 8 a hospital, one epoch a round: what is measured is the conversation, not arithmetic.
`everybody`: all hospitals in each of 8 rounds. `sampled`: a tenth of them, one fifth of whose replies do not come
(drawn by hospital and round), 100 rounds. Memory is what no file stands behind, after the first and after the last
round; `state` is the file that the coordinator writes each round. Every case is a process of its own, and goes into
benchmarks/measured/many_hospitals.json once it is measured.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured

os.environ.setdefault("OMP_NUM_THREADS", "1")

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.engine import RUN, SEED, Work, anonymous, cohort, hospitals, opening
from federation.engine import Answers, Engine, InProcess
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.outcome import Outcome
from federation.parameters import count_values
from federation.randomness import derive_seed
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.rounds import Schedule, conduct_training
from federation.task import Task
from pipelines.hospital.worker import make_worker
from pipelines.runs.replies import store_replies
from pipelines.runs.store import DiskFolder
from privacy.message import Call, Message

SIZES = (4, 16, 64, 256, 1000)
TASK = Task(Mlp(hidden=(16,)), (64,), 2)
CASES: Mapping[str, Schedule] = {
    "everybody": Schedule(rounds=8),
    "sampled": Schedule(rounds=100, participation=0.1, quorum=0.1),
}
LOST = 0.2  # of the replies of a sampled round


@dataclass(frozen=True)
class Failing:
    """An engine of whose hospitals some do not answer a round of training."""

    engine: Engine
    share: float

    @property
    def sites(self) -> tuple[str, ...]:
        return self.engine.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        lost = {site: "late" for site in messages if call.request == "train" and self._fails(site, call.round)}
        if len(lost) == len(messages):
            lost.popitem()
        answers = self.engine.ask(call, {s: m for s, m in messages.items() if s not in lost}, deadline_s=deadline_s)
        return Answers(answers.replies, {**answers.missing, **lost})

    def _fails(self, site: str, number: int) -> bool:
        return derive_seed(SEED, "fails", site, number) % 1000 < 1000 * self.share


def measured(folder: str, sites: int, case: str) -> dict[str, float]:
    """One federation, in a folder that is removed."""
    torch.set_num_threads(1)
    schedule = CASES[case]
    made = {f"s{number:04d}": cohort(number, 24) for number in range(sites)}
    made = {name: replace(one, images=one.images[..., ::6, ::6].flatten(1).contiguous()) for name, one in made.items()}
    algorithm, work = FedAvg(), Work(batch=24)
    initial = initial_parameters(algorithm, TASK, seed=SEED)
    seconds: list[float] = []
    memory: list[float] = []
    state: list[int] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        root = Path(place)
        own, names = hospitals(root / "sites", made)
        del made
        inside = InProcess(
            {name: store_replies(make_worker(one), root / "federation", print) for name, one in own.items()}
        )
        begun = time.process_time()

        def between(outcome: Outcome) -> None:
            nonlocal begun
            seconds.append(time.process_time() - begun)
            memory.append(anonymous())
            state.append((root / "federation" / "state").stat().st_size)
            begun = time.process_time()

        outcome = conduct_training(
            Failing(inside, LOST if case == "sampled" else 0.0),
            algorithm,
            run=RUN,
            initial=initial,
            opening={name: opening(algorithm, TASK, names[name], work) for name in own},
            forms=rehearse_forms(algorithm, TASK, work, initial),
            schedule=schedule,
            seed=SEED,
            folder=DiskFolder(root / "federation"),
            between=between,
        )
        files = [path for path in root.rglob("*") if path.is_file()]
        cohorts = [path for path in files if "cohorts" in path.parts]
        return {
            "seconds": statistics.median(seconds[2:]),
            "asked": max(1, round(schedule.participation * sites)),
            "files": (len(files) - len(cohorts)) / sites,
            "kib": sum(path.stat().st_size for path in files if path not in {*cohorts}) / sites / 1024,
            "mib_first": memory[1],
            "mib_last": memory[-1],
            "state_first": state[1] / 1024,
            "state_last": state[-1] / 1024,
            "lost": len(outcome.missing),
            "parameters": count_values(initial),
        }


def tables(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The tables that this program measures."""
    columns = ["hospitals", "asked a round", "CPU s a round", "CPU ms a hospital asked", "files a hospital"]
    columns += ["KiB a hospital", "memory, MiB: first and last round", "state, KiB: first and last", "replies lost"]
    made: dict[str, Any] = {}
    for case in CASES:
        rows = []
        for sites in SIZES:
            if (one := kept.get(f"{case} | {sites}")) is None:
                continue
            rows.append([
                f"{sites:,}", str(one["asked"]), f"{one['seconds']:.2f}", f"{1000 * one['seconds'] / one['asked']:.1f}",
                f"{one['files']:.0f}", f"{one['kib']:.0f}", f"{one['mib_first']:.0f}, {one['mib_last']:.0f}",
                f"{one['state_first']:.0f}, {one['state_last']:.0f}", str(one["lost"]),
            ])  # fmt: skip
        made[case] = make_table(columns, rows)
    return made


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--only", type=int, nargs="*", default=SIZES)
    line.add_argument("--folder", default=None, help="where the hospitals' folders are made and removed")
    asked = line.parse_args()
    context = multiprocessing.get_context("spawn")
    for case in CASES:
        for sites in asked.only:
            kept = read_measured("many_hospitals")
            if (key := f"{case} | {sites}") not in kept:
                with context.Pool(1, maxtasksperchild=1) as pool:
                    kept[key] = pool.apply(measured, (asked.folder, sites, case))
                print(key, kept[key], flush=True)
                write_measured("many_hospitals", kept)


if __name__ == "__main__":
    main()
