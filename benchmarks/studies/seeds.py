"""Run a configuration with several seeds and print tables: python -m benchmarks.studies.seeds prostate_adc.yaml 0 1 2

A seed changes the split of the patients (but not named test patients), the common start and the order of the images;
the patients stay the same. `--images '{"normalize": "pooled"}'` changes settings of the images. "all sites" is the mean
over every hospital, those that cannot be assessed included, as benchmarks of the field average.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.runs import must_run, read_json
from pipelines.loader.overrides import override_settings
from pipelines.settings.load import load_config


def rows_of(name: str, seed: int, folder: Path, images: Mapping[str, object]) -> list[dict[str, object]]:
    """Scores of one run."""
    from pipelines.loader.validation import to_plain

    config = load_config(name)
    config = replace(
        config, seed=seed, name=f"seed-{seed}", runs=str(folder), images=override_settings(config.images, images)
    )
    run_folder = must_run(to_plain(config), folder)
    found: list[dict[str, object]] = read_json(run_folder, "report", "scores.json")
    return found


def table(runs: Sequence[Sequence[dict[str, object]]], measure: str) -> str:
    """Markdown: a line a method, mean over runs with the 95 % t interval."""
    values: dict[tuple[str, str], list[float]] = {}
    for rows in runs:
        own: dict[str, list[float]] = {}
        for row in rows:
            if row["measure"] == measure and row["value"] is not None:
                column = row["sites"][0] if row["protocol"] == "private" else row["protocol"]
                values.setdefault((str(row["method"]), str(column)), []).append(float(str(row["value"])))
                if row["protocol"] == "private":
                    own.setdefault(str(row["method"]), []).append(float(str(row["value"])))
        for method, each in own.items():
            values.setdefault((method, "all sites"), []).append(sum(each) / len(each))
    columns = list(dict.fromkeys(column for _, column in values))
    lines = [f"| {measure} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method in dict.fromkeys(method for method, _ in values):
        cells = []
        for column in columns:
            cells.append(format_interval(values.get((method, column), [])))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    line = make_parser(__doc__)
    line.add_argument("config")
    line.add_argument("seeds", type=int, nargs="+")
    line.add_argument("--images", type=json.loads, default={}, help="JSON: settings of the images that differ")
    asked = line.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs = [rows_of(asked.config, seed, Path(place), asked.images) for seed in asked.seeds]
    for measure in ("AUC", "balanced accuracy", "accuracy"):
        print(f"\n{table(runs, measure)}")
