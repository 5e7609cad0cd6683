"""Where the processor's time of a small round goes, beside its arithmetic: a clock around each part of a site's answer.

    python -m benchmarks.speed.round_parts --sites 16 --images 24

Milliseconds of the processor a site and round, the least over rounds; each part without the parts that are named
within it, so that they add up. `arithmetic` is descent and validation, which a bare loop has too
(`engine.py`). With `--no-descent` nobody learns after the first round: are the other parts as slow then?
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import functools
import gc
import importlib
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.engine import TASK, cohort, federated
from federation.descent import Descent, Site
from federation.fedavg import FedAvg
from federation.outcome import Outcome
from privacy.message import Params

ROUNDS, OTHER = 16, "everything else"
PARTS = {
    "arithmetic": ["federation.descent:Site.descend", "federation.descent:Site.measure"],
    "new networks": ["federation.task:Task.network"],
    "parameters into networks and out": [
        "federation.parameters:loaded",
        "federation.parameters:read_parameters",
        "federation.participant:_put_back",
    ],
    "the cohort and access to it": [
        "pipelines.hospital.kept:cohort_of",
        "pipelines.hospital.training:data_access",
        "privacy.dp.capability:restrict_access",
    ],
    "the run's settings": ["pipelines.hospital.opening:read_opening"],
    "messages from and to bytes": ["privacy.message:to_bytes", "privacy.message:from_bytes"],
    "files of commit and model": ["pipelines.runs.store:DiskFolder.write"],
    "the memory before": ["federation.conversation:load_memory"],
    "gate and ledger": ["privacy.release.gate:release_reply"],
    "the reply that waits on the disk": ["pipelines.runs.replies:_map_to_file"],
    "checks of question and reply": [
        "pipelines.hospital.worker:_parse_request",
        "pipelines.hospital.rehearsal:check_reply",
        "pipelines.hospital.training:check_affordable_opening",
    ],
    "what is no longer needed": ["pipelines.hospital.training:delete_unneeded_models"],
    "the participant": ["federation.participant:answer_training_call", "federation.participant:_score_merged_model"],
    "the method": ["federation.fedavg:FedAvg.train", "federation.fedavg:FedAvg.model"],
    "the worker": ["pipelines.hospital.worker:_answer_call", "pipelines.hospital.worker:_do_work"],
    "training's handler": ["pipelines.hospital.training:_participate", "pipelines.hospital.training:_build_site"],
    "the conversation": ["federation.conversation:answer_once"],
    "the engine": ["federation.engine:_ask_worker"],
    "the coordinator's part": ["federation.rounds:_run_round", "federation.outcome:save_outcome"],
}


class Clock(threading.local):
    """Seconds of each thread in each part, without those of the parts within it."""

    def __init__(self, spent: defaultdict[str, float]) -> None:
        self.spent, self.stack, self.since = spent, [OTHER], time.thread_time()

    def turn(self) -> None:
        now = time.thread_time()
        self.spent[self.stack[-1]] += now - self.since
        self.since = now

    def around(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **more: Any) -> Any:
            self.turn()
            self.stack.append(part)
            try:
                return function(*args, **more)
            finally:
                self.turn()
                self.stack.pop()

        return timed


def no_descent() -> None:
    """Let a site learn in its first round alone, which gives it an optimizer's state."""
    plain = Site.descend

    def descend(self: Site, *args: Any, optimizer: Params | None = None, **more: Any) -> Descent:
        return Descent(1, 0.0, 0.0, optimizer) if optimizer else plain(self, *args, optimizer=optimizer, **more)

    Site.descend = descend  # type: ignore[method-assign]


def watch(clock: Clock) -> None:
    """Put the clock around every part, wherever it was imported."""
    for part, names in PARTS.items():
        for name in names:
            module, _, path = name.partition(":")
            owner, _, last = path.rpartition(".")
            home: Any = importlib.import_module(module)
            home = getattr(home, owner) if owner else home
            old = getattr(home, last)
            new = clock.around(part, old)
            setattr(home, last, new)
            for other in [] if owner else [*sys.modules.values()]:
                for key, value in [*vars(other).items()] if hasattr(other, "__dict__") else []:
                    if value is old:
                        setattr(other, key, new)


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--sites", type=int, default=16)
    line.add_argument("--images", type=int, default=24)
    line.add_argument("--folder", default=tempfile.gettempdir(), help="on the disk that is measured")
    line.add_argument("--no-descent", action="store_true")
    options = line.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # as commands do once they have imported
    clock, rounds = Clock(defaultdict(float)), list[dict[str, float]]()

    def between(outcome: Outcome) -> None:
        clock.turn()
        rounds.append(dict(clock.spent))
        clock.spent.clear()

    cohorts = {f"s{number:02d}": cohort(number, options.images) for number in range(options.sites)}
    if options.no_descent:
        no_descent()
    watch(clock)
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        federated(FedAvg(), TASK, Path(place), cohorts, ROUNDS, between)
    counted = rounds[3:-1]
    parts = (*PARTS, OTHER)
    found = {part: min(1000 * one.get(part, 0.0) / options.sites for one in counted) for part in parts}
    for part in sorted(found, key=lambda part: -found[part]):
        print(f"| {part} | {found[part]:.2f} |")
    print(f"| all but arithmetic | {sum(found.values()) - found['arithmetic']:.2f} |")


if __name__ == "__main__":
    main()
