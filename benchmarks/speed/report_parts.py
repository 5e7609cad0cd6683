"""Seconds of the processor by part of the report stage, and at the coordinator alone by the number of hospitals.

    cd PLACE && python -m benchmarks.speed.report_parts prostate_adc.yaml --from report --fresh --set processes=1
    python -m benchmarks.speed.report_parts --hospitals 3 12 48

The first measures a run that is there, its report anew: arguments are those of `pipelines.run`, and parts without the
parts inside them. One process and one thread, so that seconds are those of the work and not of other work on the
machine. An older checkout is measured with `PYTHONPATH=CHECKOUT`. The second makes a run for each number: small
phantom hospitals, two methods and two rounds, their report twice, of which the second counts: the first one imports.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.options import make_parser
from pipelines.run import main as run
from pipelines.runs import runner

PARTS: Mapping[str, tuple[str, ...]] = {
    "maps of models": ("pipelines.hospital.page.looks:build_look", "pipelines.hospital.page.looks:compute_case_maps"),
    "figures": (
        "evaluation.figures:draw_score_dots",
        "evaluation.figures:draw_gain_bars",
        "evaluation.figures:draw_roc_curves",
        "evaluation.figures:draw_learning_curves",
        "evaluation.figures:draw_note_curves",
        "evaluation.heat:draw_cross_site",
        "evaluation.heat:draw_round_matrix",
        "evaluation.agreement:calibration_curves",
        "evaluation.patients:draw_features_by_class",
        "evaluation.patients:draw_intensities",
        "evaluation.maps:draw_scatter",
    ),
    "images as PNG, outlines": ("evaluation.pictures:_tile_item",),
    "scores and intervals": (
        "evaluation.scoring:score_rows",
        "evaluation.scoring:gain_rows",
        "evaluation.scoring:pair_rows",
    ),
    "t-SNE of shared images": ("harmonize.embedding:tsne",),
    "the target's scanner, simulated": ("pipelines.hospital.simulated_spaces:render_rows_again",),
    "stored messages": ("privacy.message:from_bytes",),
    "HTML": ("evaluation.rendering:render_template",),
}
"""What is told, and the functions that do it."""
ELSEWHERE = "all else"
HOSPITAL = """  h{number:02d}:
    source: {{kind: phantom, scanner: {scanner}, patients: 12, seed: {number}, slices: 4, format: nifti}}
"""
RUN = """name: many
privacy: none
threads: 1
processes: 1
sites:
{sites}images: {{kind: slices, size: 32, spacing_mm: 2.0}}
split: {{train: 0.5, validation: 0.25, test: 0.25}}
model: {{name: cnn, widths: [8, 16], norm: group}}
train:
  schedule: {{rounds: 2}}
  work: {{lr: 1e-2, batch: 16}}
  methods: {{local: {{name: local}}, fedavg: {{name: fedavg}}}}
evaluate: {{copies: 200, reference: local}}
"""


class Clock:
    """Seconds of the processor by part, without the parts inside."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self._inside: list[float] = []

    def time(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose seconds count for the part."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.process_time()
            self._inside.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                used = time.process_time() - begun
                self.spent[part] += used - self._inside.pop()
                if self._inside:
                    self._inside[-1] += used

        return timed

    def replace(self, part: str, place: str) -> None:
        """Count a function's seconds wherever a loaded module has it. place: module:name; left out where it is none."""
        module, _, name = place.partition(":")
        real = getattr(importlib.import_module(module), name, None)
        if real is None:
            return
        timed = self.time(part, real)
        for loaded in [*sys.modules.values()]:
            if getattr(loaded, "__dict__", {}).get(name) is real:
                setattr(loaded, name, timed)


def measure_report(arguments: Sequence[str], parts: Mapping[str, Sequence[str]]) -> Counter[str]:
    """Seconds of the processor of a run's report stage, by part; `ELSEWHERE` is the rest.

    Raises:
        SystemExit: the run failed, or had no report stage.
    """
    for module in ("pipelines.coordinator.stages.report", "pipelines.hospital.page.page"):
        importlib.import_module(module)
    clock, stage = Clock(), runner._run_stage
    for part, places in parts.items():
        for place in places:
            clock.replace(part, place)

    def timed(step: Any, *others: Any) -> float:
        if step.stage.name != "report":
            return stage(step, *others)
        clock.spent.clear()
        seconds: float = clock.time(ELSEWHERE, stage)(step, *others)
        return seconds

    runner._run_stage = timed
    try:
        code = run([*arguments])
    finally:
        runner._run_stage = stage
    if code or ELSEWHERE not in clock.spent:
        sys.exit(f"{' '.join(arguments)}: code {code}, no report was made")
    return clock.spent


def measure_coordinator(hospitals: int) -> float:
    """Seconds of the coordinator in the report of a run of so many hospitals, made in a folder that is removed."""
    at_hospitals = {"hospitals": ("federation.engine:_ask_worker",)}
    lines = (HOSPITAL.format(number=number, scanner="PLD"[number % 3]) for number in range(hospitals))
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            Path("many.yaml").write_text(RUN.format(sites="".join(lines)), encoding="utf-8")
            measure_report(["many.yaml"], at_hospitals)
            return measure_report(["many.yaml", "--from", "report", "--fresh"], at_hospitals)[ELSEWHERE]
        finally:
            os.chdir(here)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--hospitals", type=int, nargs="+", help="at the coordinator, of so many hospitals each")
    asked, options = parser.parse_known_args()
    if asked.hospitals:
        rows = [(str(number), measure_coordinator(number)) for number in asked.hospitals]
        print("| hospitals | s of CPU at the coordinator |\n|---|---|")
    else:
        spent = measure_report(options, PARTS)
        rows = [*spent.most_common(), ("report stage", sum(spent.values()))]
        print("| part | s of CPU |\n|---|---|")
    for name, seconds in rows:
        print(f"| {name} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
