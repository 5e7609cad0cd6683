"""What other hospitals add to each method on Fed-Heart-Disease: it in the federation, and at each hospital alone.

    CONSILIUM_DATA=... python -m benchmarks.studies.added_by_others [--seeds 1 2 ...]

Protocol and settings of pipelines/configs/heart_disease_study.yaml, which are the paper's where it has the method;
nothing is chosen anew. Each method is also run at each hospital alone (`at_home`), with the same network, work and
number of steps. A seed draws networks, batches and validation patients; the test patients are always FLamby's. Models
are of the globally best round. Rates of the paper are for its federations, and may be poor ones at a hospital alone.
Figures of a seed go into benchmarks/measured/added_by_others.json, and what stands there is not measured again; `python
-m benchmarks.tables.derived --write heart-disease` writes the tables.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.shared.runs import must_run, read_json
from evaluation.rows import PRIVATE, PRIVATE_MEAN

NAME = "added_by_others"
COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.added_by_others"
CONFIGS = ROOT / "pipelines/configs"
METHODS = ("fedavg", "fedavg_large", "moon", "private_intercept", "fedper", "ditto", "apfl", "perfcl", "fenda")
LOCAL, AT_HOME = "local", "{}_at_home"
MEASURES = ("accuracy", "AUC")

Figures = dict[str, dict[str, float]]
"""Line -> measure -> mean over hospitals: of the accuracy over all four, of the AUC over those that can be assessed."""


def write_settings(seed: int) -> dict[str, Any]:
    """The run of a seed."""
    settings, study = (
        yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in ("heart_disease", "heart_disease_study")
    )
    of_run, of_study = settings["train"], study["set"]["train"]
    every: dict[str, dict[str, Any]] = {
        key: {**of_run[key], **of_study[key]} for key in ("methods", "method_work", "method_model")
    }
    train = {"schedule": of_run["schedule"], "work": of_run["work"], **{key: {} for key in every}}
    train["methods"] = {LOCAL: {"name": "local"}}
    for label in METHODS:
        for line in (label, AT_HOME.format(label)):
            method = every["methods"][label]
            train["methods"][line] = method if line == label else {"name": "at_home", "of": method}
            for key in ("method_work", "method_model"):
                train[key] |= {line: every[key][label]} if label in every[key] else {}
    evaluate = {"checkpoint": "global", "copies": 0, "public": False, "reference": LOCAL}
    changes = {"name": f"added{seed}", "seed": seed, "train": train, "evaluate": evaluate}
    return {**settings, **changes, "audit": {"membership": False}}


def measure(seed: int) -> Figures:
    """Run a seed, and read its scores."""
    with tempfile.TemporaryDirectory() as folder:
        rows = read_json(must_run(write_settings(seed), Path(folder)), "report", "scores.json")
    lines = [LOCAL, *METHODS, *map(AT_HOME.format, METHODS)]
    accuracies = {line: [row["value"] for row in rows if _is(row, line, "accuracy", PRIVATE)] for line in lines}
    aucs = {line: [row["value"] for row in rows if _is(row, line, "AUC", PRIVATE_MEAN)] for line in lines}
    return {line: {"accuracy": float(np.mean(accuracies[line])), "AUC": float(*aucs[line])} for line in lines}


def _is(row: Mapping[str, Any], line: str, measure_name: str, protocol: str) -> bool:
    """Whether a row of scores is of this line, measure and protocol."""
    return (row["method"], row["measure"], row["protocol"]) == (line, measure_name, protocol)


def tables(kept: Mapping[str, Figures]) -> dict[str, dict[str, object]]:
    """Of each method its accuracy and AUC, at home and in the federation, and what others add."""
    made = {}
    for measure_name in MEASURES:
        by_line = {
            line: {seed: figures[line][measure_name] for seed, figures in kept.items()}
            for line in next(iter(kept.values()))
        }
        local, rows = by_line[LOCAL], [[LOCAL, format_interval([*by_line[LOCAL].values()]), "", "", "", ""]]
        for label in METHODS:
            whole, alone = by_line[label], by_line[AT_HOME.format(label)]
            cells = [format_interval([*alone.values()]), format_interval([*whole.values()])]
            rows.append(
                [label, *cells, *(format_change(*pair) for pair in ((whole, local), (alone, local), (whole, alone)))]
            )
        columns = ["method", "at each hospital alone", "in the federation"]
        columns += ["more than local", "of that at home", "added by others"]
        made[f"added-{measure_name.lower()}"] = make_table(columns, rows, COMMAND)
    return made


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(1, 11)])
    for seed in parser.parse_args().seeds:
        if str(seed) not in (kept := read_measured(NAME)):
            write_measured(NAME, {**kept, str(seed): measure(seed)})
            print(seed, flush=True)


if __name__ == "__main__":
    main()
