"""What one message of moments costs beside FedAvg's twenty rounds: bytes, seconds and epsilon, by number of hospitals.

    python -m benchmarks.speed.one_message_cost [--hospitals 2 12 100 1000]

Every hospital has 40 training patients with 24 features each, with gate, ledger and committed memories on the disk, all
in one process. Bytes are those of whole messages, as they are sent: `down` to all hospitals, `up` from all. Seconds are
processor time of the whole conversation, hospitals' and coordinator's work together. `fedavg, head` learns the same
linear head; `fedavg, cnn` learns a network of 48 x 48 pixels, of which only the bytes of two hospitals are counted and
multiplied, since they do not depend on the number. Epsilon is that of a patient at the noise with which one release of
moments costs 3 at delta 1e-5: FedAvg takes 4 steps in each of 20 rounds, every patient in a step with probability .25.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, write_measured
from benchmarks.speed.engine import SEED, hospitals, opening
from federation.algorithm import Algorithm
from federation.descent import Work
from federation.engine import InProcess, Worker
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.rounds import Schedule, conduct_training, method_schedule
from federation.task import Task
from personalize.moments import Moments
from pipelines.data.cohort import Cohort
from pipelines.hospital.worker import make_worker
from pipelines.runs.replies import store_replies
from pipelines.runs.store import DiskFolder
from privacy.dp.accounting import calibrate_noise, compute_cost
from privacy.dp.events import Gaussian, PoissonSampled, SelfComposed
from privacy.message import Call, Message, to_bytes

PATIENTS, WIDTH, ROUNDS, DELTA, EPSILON = 40, 24, 20, 1e-5, 3.0
HEAD, IMAGES = Task(Mlp(hidden=()), (WIDTH,), 2), Task(Cnn(), (1, 48, 48), 2)
WORK = Work(batch=8)


class Counted:
    """A worker, and the bytes of what it gets and sends in training."""

    def __init__(self, own: Worker) -> None:
        self.own, self.down, self.up = own, 0, 0

    def __call__(self, call: Call, message: Message) -> Message:
        reply = self.own(call, message)
        self.down += len(to_bytes(message))
        self.up += len(to_bytes(reply))
        return reply


def cohort(site: int, task: Task) -> Cohort:
    made = torch.Generator().manual_seed(site)
    y = torch.arange(PATIENTS) % 2
    x = torch.randn(PATIENTS, *task.inputs, generator=made) + y.float().view(-1, *[1] * len(task.inputs)) / 4
    none = torch.zeros(PATIENTS, 0, dtype=torch.uint8)
    return Cohort(
        images=x,
        labels=y,
        patient=torch.arange(PATIENTS),
        position=torch.zeros(PATIENTS),
        lesion=none,
        gland=none,
        split=torch.zeros(PATIENTS, dtype=torch.int8),
        patients=tuple(f"p{number:05d}" for number in range(PATIENTS)),
    )


def measured(algorithm: Algorithm, task: Task, many: int) -> dict[str, float]:
    """Of a whole conversation of `many` hospitals."""
    with tempfile.TemporaryDirectory() as folder:
        root, cohorts = Path(folder), {f"h{number:04d}": cohort(number, task) for number in range(many)}
        own, names = hospitals(root / "sites", cohorts)
        workers = {
            name: Counted(store_replies(make_worker(one), root / "federation", print)) for name, one in own.items()
        }
        initial = initial_parameters(algorithm, task, seed=SEED)
        schedule = Schedule(rounds=ROUNDS)
        begun = time.process_time()
        conduct_training(
            InProcess(workers),
            algorithm,
            run="benchmark/cost-000000000000",
            initial=initial,
            opening={name: opening(algorithm, task, names[name], WORK) for name in own},
            forms=rehearse_forms(algorithm, task, WORK, initial),
            schedule=schedule,
            seed=SEED,
            folder=DiskFolder(root / "federation"),
            between=lambda outcome: None,
        )
        seconds = time.process_time() - begun
    return {
        "rounds": method_schedule(algorithm, schedule).rounds,
        "down": sum(one.down for one in workers.values()),
        "up": sum(one.up for one in workers.values()),
        "seconds": round(seconds, 2),
    }


def epsilons() -> Mapping[str, float]:
    """Of one release of moments, and of twenty rounds of four steps with the same noise."""
    noise = calibrate_noise(lambda sigma: [Gaussian(sigma)], epsilon=EPSILON, delta=DELTA)
    steps = SelfComposed(PoissonSampled(0.25, Gaussian(noise)), 4 * ROUNDS)
    found = {"moments": [Gaussian(noise)], "fedavg": [steps]}
    return {"noise": round(noise, 4)} | {
        name: round(compute_cost(one, DELTA).epsilon, 3) for name, one in found.items()
    }


def table(found: Mapping[str, Any]) -> dict[str, object]:
    """Kilobytes and seconds by number of hospitals, and how many times as much FedAvg takes."""
    rows = []
    for many in (name for name in found if name.isdecimal()):
        one = found[many]["moments"]
        for name, other in found[many].items():
            cells = [f"{other[part] / 1000:,.0f}" for part in ("down", "up")]
            times = f"{other['up'] / one['up']:,.1f} ×" if name != "moments" else ""
            seconds = f"{other['seconds']:,.1f}" if "seconds" in other else ""
            slower = f"{other['seconds'] / one['seconds']:,.1f} ×" if seconds and times else ""
            rows.append([many, name, str(other["rounds"]), *cells, times, seconds, slower])
    columns = ["hospitals", "method", "rounds", "kB to all", "kB from all"]
    columns += ["times the kB", "processor s", "times the s"]
    return make_table(columns, rows)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--hospitals", type=int, nargs="+", default=[2, 12, 100, 1000])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, object] = {"epsilon": dict(epsilons())}
    image = measured(FedAvg(), IMAGES, 2)
    for many in options.hospitals:
        scaled = {part: int(image[part] * many / 2) for part in ("down", "up")}
        rows = {"moments": measured(Moments(), HEAD, many), "fedavg, head": measured(FedAvg(), HEAD, many)}
        found[str(many)] = rows | {"fedavg, cnn": {"rounds": ROUNDS, **scaled}}
        print(many, found[str(many)], flush=True)
        write_measured("one_message_cost", found)


if __name__ == "__main__":
    main()
