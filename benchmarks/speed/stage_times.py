"""Seconds of each stage of a run: those on the clock, and those of the processor, which others' work changes less.

    cd PLACE && PYTHONPATH=CHECKOUT python CHECKOUT/benchmarks/speed/stage_times.py prostate_adc.yaml

Arguments are those of `pipelines.run`; with `--in-turn`, what drawn pictures alone teach is learnt when a stage needs
it, and not by one more process from the beginning (`pipelines/coordinator/ahead.py`). Processor seconds are of all
threads and processes of the run. With one thread and one process (`threads: 1`, `processes: 1`) they are what a stage
takes on a machine that does nothing else.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext, suppress
from typing import Any

import psutil

from benchmarks.shared.options import make_parser
from pipelines.coordinator import run as coordinator
from pipelines.run import main as run
from pipelines.runs import runner


def processor() -> float:
    """Seconds of this process, of its children that have ended, and of those that live."""
    own = os.times()
    spent = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            used = child.cpu_times()
            spent += used.user + used.system + used.children_user + used.children_system
    return spent


def main() -> None:
    begun, stage, spent = time.monotonic(), runner._run_stage, dict[str, tuple[float, float]]()

    def timed(step: Any, *arguments: Any) -> float:
        clock, used = time.monotonic(), processor()
        try:
            return stage(step, *arguments)
        finally:
            spent[step.stage.name] = (time.monotonic() - clock, processor() - used)

    runner._run_stage = timed  # type: ignore[assignment]
    parser = make_parser(__doc__)
    parser.add_argument("--in-turn", action="store_true", help="nothing is learnt ahead")
    asked, options = parser.parse_known_args()
    if asked.in_turn:
        coordinator.learn_ahead = lambda steps, world: nullcontext()
    code = run(options)
    print("| stage | s of CPU | s |\n|---|---|---|")
    for name, (clock, used) in {**spent, "whole": (time.monotonic() - begun, processor())}.items():
        print(f"| {name} | {used:.1f} | {clock:.1f} |")
    sys.exit(code)


if __name__ == "__main__":
    main()
