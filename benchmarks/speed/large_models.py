"""Memory of coordinator and hospitals for models of hundreds of megabytes, in models a process.

    python -m benchmarks.speed.large_models --mb 50 --over process calls --case fedavg ditto hidden
    python -m benchmarks.speed.large_models --mb 100 --over calls --case fedavg packed --into large_uploads
    python -m benchmarks.tables.results_tables

Two real hospitals (policy, gate, ledger, committed memories, models) train a perceptron of a few large linear layers
for two rounds of two steps on images of noise, by plain SGD, whose state is empty. `over`: `process` = coordinator and
hospitals in one process, replies on the disk; `calls` = each hospital is a process of its own behind
`federation.remote`, whose calls cross a pipe, as FLARE would. Memory is what no file stands behind (RssAnon),
sampled every 5 ms from outside, the most in the whole conversation without what the process held before it, over the
bytes of the model's parameters. What training itself needs is subtracted at hospitals: the model and its gradient,
which are two models, or four where a second model is trained beside it (Ditto). A sum of hidden replies (`hidden`) is
of words of 64 bits, so a reply alone is two models. `flare`: a run by `python -m pipelines.run` of four hospitals over
FLARE, mutual TLS on loopback, with a perceptron of two large layers. Of all processes of the server, and of each
hospital, the one that holds most counts, without what it holds in the same run with a model of 1 MB; only `fedavg`.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured

os.environ.setdefault("OMP_NUM_THREADS", "1")

import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.speed import flare
from benchmarks.speed.engine import SEED, Work, cohort, hospitals, opening
from federation.algorithm import Algorithm
from federation.engine import Engine, InProcess
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters, rehearse_forms
from federation.remote import Pending, Reach, Remote
from federation.rounds import Schedule, Trust, conduct_training
from federation.spool import move_params_to_file
from federation.task import Task
from federation.upload import Int8
from personalize.ditto import Ditto
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.worker import make_worker
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.replies import make_reply_store, store_replies
from pipelines.runs.store import DiskFolder
from pipelines.settings.sites import SiteSettings
from privacy.message import Message
from privacy.release.ledger import read_lines

INPUTS, LAYERS, SITES, FAR, ROUNDS, STEP_S = 2304, 4, 2, 4, 2, 0.005
WORK = Work(batch=8, epochs=None, steps=2, optimizer="sgd", lr=1e-3)
RUN = "benchmark/large-000000000000"
CASES: Mapping[str, tuple[Algorithm, bool, int]] = {
    "fedavg": (FedAvg(), False, 2),
    "ditto": (Ditto(), False, 4),
    "hidden": (FedAvg(), True, 2),
    "packed": (FedAvg(), False, 2),
}
"""Method, whether replies are hidden in sums, and the models that training itself needs. `packed` is quantized."""


def task_of(mb: float) -> Task:
    """A perceptron of about so many MB: its hidden layers have the same width."""
    numbers, width = mb * 1e6 / 4, 1
    while INPUTS * width + (LAYERS - 1) * width**2 < numbers:
        width += 8
    return Task(Mlp(hidden=(width,) * LAYERS), (1, 48, 48), 2)


def anonymous(pid: int) -> float:
    """Bytes of a process that no file stands behind; 0 of one that has ended."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024.0
    return 0.0


@contextmanager
def sample_memory(pids: Mapping[str, int]) -> Iterator[dict[str, float]]:
    """The most bytes of each process while this runs, beyond those at its beginning."""
    first = {name: anonymous(pid) for name, pid in pids.items()}
    most, over = dict.fromkeys(pids, 0.0), threading.Event()

    def watch() -> None:
        while not over.wait(STEP_S):
            for name, pid in pids.items():
                most[name] = max(most[name], anonymous(pid) - first[name])

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def coordinate(build: Callable[[], Engine], root: Path, names: Mapping[str, str], mb: float, case: str) -> None:
    """What `pipelines.coordinator.stages.train` does for one method."""
    algorithm, hidden, _ = CASES[case]
    task = task_of(mb)
    said: dict[str, Any] = {"secure_sum": True} if hidden else {}
    upload = Int8() if case == "packed" else None
    said |= {} if upload is None else {"upload": {"name": upload.name}}
    initial = move_params_to_file(initial_parameters(algorithm, task, seed=SEED), root / "federation")
    messages = {site: opening(algorithm, task, name, WORK) for site, name in names.items()}
    outcome = conduct_training(
        build(),
        algorithm,
        run=RUN,
        initial=initial,
        opening={site: Message({}, {**message.facts, **said}) for site, message in messages.items()},
        forms=rehearse_forms(algorithm, task, WORK, initial),
        schedule=Schedule(rounds=ROUNDS),
        seed=SEED,
        folder=DiskFolder(root / "federation"),
        between=lambda outcome: None,
        trust=Trust(secure_sum=hidden, upload=upload),
    )
    if outcome.missing:
        raise RuntimeError(f"replies are missing: {outcome.missing}")


def run_in_process(root: Path, names: Mapping[str, str], mb: float, case: str, line: Connection) -> None:
    """A whole federation in this process, once it is told to begin."""
    torch.set_num_threads(1)
    workers = {name: make_worker(hospital_at(root, name)) for name in names}
    line.send("there")
    line.recv()
    kept = {name: store_replies(worker, root / "federation", print) for name, worker in workers.items()}
    coordinate(lambda: InProcess(kept), root, names, mb, case)
    line.send("done")


def hospital_at(root: Path, name: str) -> Hospital:
    settings = SiteSettings(source=PhantomSource(scanner="P", patients=2))
    return Hospital(name, root / "sites" / name, settings, lambda: datetime.now(UTC).isoformat(timespec="seconds"))


def run_hospital(root: Path, name: str, line: Connection) -> None:
    """A hospital that answers calls."""
    torch.set_num_threads(1)
    pending = make_pending(make_worker(hospital_at(root, name)), root / "sites" / name)
    line.send("there")
    while (asked := line.recv()) is not None:
        line.send(pending.answer(*asked))


def make_pending(worker: Any, folder: Path) -> Pending:
    return Pending(worker, folder)


def make_remote(reached: Mapping[str, Reach], folder: Path) -> Remote:
    return Remote(reached, tuple(reached), keep=make_reply_store(folder, print), folder=folder)


def run_coordinator(
    root: Path, names: Mapping[str, str], mb: float, case: str, lines: Mapping[str, Connection], line: Connection
) -> None:
    """A coordinator that asks over pipes, once it is told to begin."""
    torch.set_num_threads(1)

    def reach(site: str, key: str, question: bytes, wait_s: float, timeout_s: float) -> object:
        lines[site].send((key, question, wait_s))
        return lines[site].recv()

    line.send("there")
    line.recv()
    reached = {site: partial(reach, site) for site in names}
    coordinate(lambda: make_remote(reached, root / "federation"), root, names, mb, case)
    line.send("done")


def measure_models(folder: str | None, over: str, case: str, mb: float) -> dict[str, float]:
    """The most memory of coordinator and hospital in models, and seconds."""
    context = multiprocessing.get_context("spawn")
    width = task_of(mb).model.hidden[0]  # type: ignore[attr-defined]
    size = 4.0 * (INPUTS * width + (LAYERS - 1) * width**2)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        root = Path(place)
        _, names = hospitals(root / "sites", {f"h{number}": cohort(number, 16) for number in range(SITES)})
        processes: dict[str, Any] = {}
        near, far = context.Pipe()
        if over == "process":
            processes["one"] = context.Process(target=run_in_process, args=(root, names, mb, case, far))
        else:
            pipes = {name: context.Pipe() for name in names}
            for name, (_, theirs) in pipes.items():
                processes[name] = context.Process(target=run_hospital, args=(root, name, theirs))
            lines = {name: ours for name, (ours, _) in pipes.items()}
            arguments = (root, names, mb, case, lines, far)
            processes["coordinator"] = context.Process(target=run_coordinator, args=arguments)
        for name, process in processes.items():
            process.start()
            if name in names:
                pipes[name][0].recv()
        near.recv()
        began = time.monotonic()
        with sample_memory({name: process.pid for name, process in processes.items()}) as most:
            near.send("begin")
            near.recv()
        seconds = time.monotonic() - began
        for process in processes.values():
            process.kill()
            process.join()
        booked = max(line["bytes"] for line in read_lines(root / "sites" / min(names) / "ledger.jsonl"))
    return {
        "seconds": seconds,
        "mb": size / 1e6,
        "booked": booked,
        **{name: value / size for name, value in most.items()},
    }


def write_flare_settings(folder: Path, mb: float) -> tuple[dict[str, Any], Path]:
    """The hospitals and the file of a run whose model has so many MB."""
    said: dict[str, Any] = flare.settings(folder, 1.0, ROUNDS, FAR)
    said["model"]["hidden"] = [round((mb * 1e6 / 8) ** 0.5)] * 3
    said["train"]["work"] |= {"steps": 2, "lr": 1e-3}
    config = folder / "far.yaml"
    config.write_text(yaml.safe_dump(said))
    return said["sites"], config


def measure_flare_bytes(folder: str | None, mb: float) -> dict[str, float]:
    """The most bytes of one process of the coordinator and of a hospital, and seconds of the run."""
    most: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        sites, config = write_flare_settings(Path(place), mb)
        with flare.federation(Path(place), sites) as far:
            began = time.monotonic()
            process = far.submit(config, "--until", "train", "--silence", "300")
            while process.poll() is None:
                for name in ("server", *sites):
                    held = [anonymous(each.pid) for each in far.everything_of(name)]
                    most[name] = max([most.get(name, 0.0), *held])
                most["operator"] = max(most.get("operator", 0.0), anonymous(process.pid))
                time.sleep(STEP_S)
            if process.returncode:
                raise RuntimeError(process.stdout.read() if process.stdout else "")
            return {"seconds": time.monotonic() - began, **most}


def measure_flare(folder: str | None, mb: float) -> dict[str, float]:
    """As `measure_models`, over FLARE."""
    small, large = measure_flare_bytes(folder, 1.0), measure_flare_bytes(folder, mb)
    above = {name: (large[name] - small[name]) / (mb * 1e6) for name in large if name != "seconds"}
    above["coordinator"] = max(above.pop("server"), above.pop("operator"))
    return {"seconds": large["seconds"], "mb": mb, **above}


def tables(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The table that this program measures."""
    columns = ["code", "case", "over", "MB", "coordinator, models", "hospital, models", "above training", "s"]
    rows = []
    for key, figures in kept.items():
        code, over, case, mb = key.split(" | ")
        most = max(value for name, value in figures.items() if name.startswith("h") or name == "one")
        coordinator = "the same process" if over == "process" else f"{figures['coordinator']:.2f}"
        cells = [coordinator, f"{most:.2f}", f"{most - CASES[case][2]:.2f}", f"{figures['seconds']:.0f}"]
        rows.append([code, case, over, mb, *cells])
    return {"large": make_table(columns, rows)}


def tables_of_uploads(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The table of replies as they are and quantized: bytes that the ledger has for one, and memory."""
    columns = [
        "replies",
        "MB of the model",
        "bytes of a reply, by the ledger",
        "coordinator, models",
        "hospital, models",
    ]
    rows = []
    for case, words in (("fedavg", "as they are"), ("packed", "int8")):
        for key, figures in kept.items():
            _, _, of, mb = key.split(" | ")
            if of == case:
                most = max(value for name, value in figures.items() if name.startswith("h"))
                cells = [f"{figures['booked']:,.0f}", f"{figures['coordinator']:.2f}", f"{most:.2f}"]
                rows.append([words, mb, *cells])
    command = "python -m benchmarks.speed.large_models --mb 100 --over calls --case fedavg packed --into large_uploads"
    return {"large": make_table(columns, rows, command)}


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--mb", type=float, nargs="+", default=[50.0])
    line.add_argument("--over", nargs="+", default=["process", "calls"], choices=["process", "calls", "flare"])
    line.add_argument("--case", nargs="+", default=[*CASES], choices=[*CASES])
    line.add_argument("--code", default="now", help="what the figures are called: before or now")
    line.add_argument("--into", default="large_models", help="the name of the file in benchmarks/measured")
    line.add_argument("--folder", default=None, help="where the hospitals' folders are made and removed")
    options = line.parse_args()
    for mb in options.mb:
        for over in options.over:
            for case in options.case:
                kept = read_measured(options.into)
                key = f"{options.code} | {over} | {case} | {mb:g}"
                far = over == "flare"
                kept[key] = measure_flare(options.folder, mb) if far else measure_models(options.folder, over, case, mb)
                print(key, {name: round(value, 2) for name, value in kept[key].items()}, flush=True)
                write_measured(options.into, kept)


if __name__ == "__main__":
    main()
