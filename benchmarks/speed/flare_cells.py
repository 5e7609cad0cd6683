"""What the coordinator holds when many hospitals answer at one moment, over FLARE's own messages.

    python -m benchmarks.speed.flare --cells 4 16 64 --mb 10

64 real hospitals do not fit on a small machine. Here are FLARE's cells without its jobs: the root server, the job's
cell in which our engine runs (`federation.remote`, replies kept on the disk), and hospitals' cells with our published
function, 16 to a process, over TCP on loopback without TLS. A hospital answers with a model of so many MB after 0.2 s,
all at the same moment, and the job averages them as FedAvg does. Memory is what no file stands behind, of the job and
of the root, sampled every 20 ms: the most in a round, without what stood before the first question. `--together`:
all send at once and replies are held in memory, without turns, as it was before them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from pipelines.remote.serve import FEW_HEAPS

ROOT, JOB, HOST = "server", "server.job", 16
WORK_S = 0.2


def cell(name: str, port: int, parent: str | None = None) -> Any:
    from nvflare.fuel.f3.cellnet.cell import Cell

    made = Cell(fqcn=name, root_url=f"tcp://127.0.0.1:{port}", secure=False, credentials={},
                create_internal_listener=name == ROOT, parent_url=parent)  # fmt: skip
    made.start()
    return made


def root(port: int, line: Connection) -> None:
    """FLARE's server, which hands messages on. Ends when told."""
    own = cell(ROOT, port)
    line.send(own.get_internal_listener_url())
    line.recv()


def hospitals(port: int, names: list[str], numbers: int, line: Connection) -> None:
    """Cells of some hospitals. Ends when told."""
    import torch
    from nvflare.collab.api.app import ClientApp as FlareApp
    from nvflare.collab.runtime.dispatch import prepare_for_remote_call
    from nvflare.fuel.utils.log_utils import get_obj_logger

    from federation.flare import ClientApp
    from privacy.message import Call, Message

    torch.set_num_threads(1)

    def work(call: Call, message: Message, number: int) -> Message:
        time.sleep(WORK_S)
        return Message({"model/w": torch.full((numbers,), float(number + call.round))}, {"n": 1, "loss": 0.5})

    hands = ThreadPoolExecutor(4 * len(names))
    for name in names:
        app = FlareApp(ClientApp(partial(work, number=int(name[1:]))))
        app.name = name
        logger = get_obj_logger(app)
        prepare_for_remote_call(cell(name, port), app, logger, hands, {JOB: ROOT})
    line.send("there")
    line.recv()


def job(port: int, parent: str, names: list[str], numbers: int, rounds: int, together: bool, line: Connection) -> None:
    """The coordinator's job: rounds of FedAvg. Sends the seconds of each when told to begin."""
    import torch
    from nvflare.apis.signal import Signal
    from nvflare.apis.workspace import Workspace
    from nvflare.collab.api.app import ClientApp as FlareApp
    from nvflare.collab.api.app import ServerApp as FlareServer
    from nvflare.collab.api.proxy import Proxy
    from nvflare.collab.runtime.cell_dispatcher import CellDispatcher

    import federation.remote as remote
    from federation.fedavg import FedAvg
    from federation.flare import ClientApp, ServerApp, build_collector, build_reach
    from pipelines.runs.replies import make_reply_store
    from privacy.message import Call, Message

    torch.set_num_threads(1)
    own, signal = cell(JOB, port, parent), Signal()
    here = FlareServer(ServerApp(lambda reached: None))
    here.name = ROOT
    published = FlareApp(ClientApp(lambda call, message: message)).get_collab_interface()["client"]
    hands = ThreadPoolExecutor(4)

    def proxy(name: str) -> Any:
        by = CellDispatcher(None, None, ROOT, own, name, signal, hands)
        return Proxy(app=here, target_name=f"{name}.client", target_fqn="", backend=by, target_interface=published)

    for folder in ("startup", "local"):  # FLARE insists
        Path(folder).mkdir()
    here.setup(Workspace("."), proxy(ROOT), [], signal)
    keep = (lambda call, reply: reply) if together else make_reply_store(Path.cwd(), print)
    note = (lambda size: None) if together else build_collector()
    if together:
        remote.SMALL = 2**40
    engine = remote.Remote({name: build_reach(proxy(name), note) for name in names}, names, keep=keep)
    algorithm = FedAvg()
    state = Message({"model/w": torch.zeros(numbers)})
    line.send("there")
    line.recv()
    for number in range(1, rounds + 1):
        begun, call = time.monotonic(), Call("many/fedavg", number, "train", {})
        answers = engine.ask(call, {name: algorithm.send(state, name, call) for name in names})
        if answers.missing:
            raise RuntimeError(f"missing: {dict(answers.missing)}")
        state = algorithm.merge(state, answers.replies)
        want = sum(int(name[1:]) + number for name in names) / len(names)
        if not bool((state.tensors["model/w"] == want).all()):
            raise RuntimeError("the mean is wrong")
        del answers
        line.send(time.monotonic() - begun)
        line.recv()


def anonymous(process: psutil.Process) -> float:
    """MB that no file stands behind; 0 of a process that has ended."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024 / 1e6
    return 0.0


@contextmanager
def sampled(processes: dict[str, psutil.Process]) -> Iterator[dict[str, float]]:
    """The most memory of each while this runs, beyond that at its beginning."""
    first = {name: anonymous(one) for name, one in processes.items()}
    most, over = dict.fromkeys(processes, 0.0), threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            for name, one in processes.items():
                most[name] = max(most[name], anonymous(one) - first[name])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        over.set()
        watcher.join()


def measured(count: int, mb: float, rounds: int, together: bool) -> tuple[float, dict[str, float]]:
    """Seconds a round, the median without the first, and the most memory of job and root in MB."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context, numbers = multiprocessing.get_context("spawn"), round(mb * 1e6 / 4)
    names = [f"h{number:04d}" for number in range(count)]
    place = tempfile.mkdtemp()
    started: list[tuple[Any, Connection]] = []

    def start(work: Any, *arguments: object) -> Connection:
        near, far = context.Pipe()
        process = context.Process(target=in_folder, args=(place, work, *arguments, far), daemon=True)
        process.start()
        far.close()  # so that its end is heard
        started.append((process, near))
        return near

    try:
        parent = start(root, port).recv()
        for first in range(0, count, HOST):
            start(hospitals, port, names[first : first + HOST], numbers).recv()
        if not together:
            os.environ.setdefault(*FEW_HEAPS)  # as `pipelines.remote.serve` does
        line = start(job, port, parent, names, numbers, rounds, together)
        line.recv()
        watched = {"job": psutil.Process(started[-1][0].pid), "root": psutil.Process(started[0][0].pid)}
        seconds = []
        with sampled(watched) as most:
            for _ in range(rounds):
                line.send("go")
                seconds.append(float(line.recv()))
        return statistics.median(seconds[1:]), dict(most)
    finally:
        for process, _ in started:
            process.kill()
            process.join()
        shutil.rmtree(place)


def in_folder(place: str, work: Any, *arguments: object) -> None:
    """In a folder that is removed."""
    os.chdir(place)
    logging.disable(logging.ERROR)
    try:
        work(*arguments)
    except Exception:
        traceback.print_exc()
    os._exit(0)  # FLARE's threads would go on


def cells(counts: list[int], mb: float, rounds: int, together: bool) -> None:
    """Print a line of Markdown for each number of hospitals."""
    print("| hospitals | MB | s a round | job, MB more | root, MB more |\n|---|---|---|---|---|")
    for count in counts:
        seconds, most = measured(count, mb, rounds, together)
        print(f"| {count} | {mb:g} | {seconds:.2f} | {most['job']:,.0f} | {most['root']:,.0f} |", flush=True)
