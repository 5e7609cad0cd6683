"""FENDA-FL on Fed-Heart-Disease: extractors of unequal size (appendix F) and who learns for whom (figure 4).

    CONSILIUM_DATA=... python -m benchmarks.studies.fenda [--seeds 2021 2022 2023 2024 2025]

Protocol and rates of pipelines/configs/heart_disease_study.yaml; nothing is chosen anew. Every model is scored at every
hospital: matrix[k][j] is the accuracy of hospital k's model on the test patients of hospital j, of the globally best
round. Cells of a seed go into benchmarks/measured/fenda.json, and what stands there is not measured again;
`fenda_tables.py` writes the tables. Sizes are hidden layers of the global and of the local extractor.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import read_measured, write_measured
from benchmarks.shared.runs import must_run, newest_of
from evaluation.histograms import Counts, from_tensors
from evaluation.metrics import ACCURACY
from privacy.message import from_bytes

BASE = ROOT / "pipelines/configs/heart_disease.yaml"
SITES = ("cleveland", "hungary", "switzerland", "va")


def mlp(*hidden: int) -> dict[str, Any]:
    return {"name": "mlp", "hidden": [*hidden], "dropout": 0.3 if hidden else 0.0, "logits": "one"}


SIZES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "5, 5": ((5,), (5,)),
    "8, 2": ((8,), (2,)),
    "2, 8": ((2,), (8,)),
    "5, none (FedPer)": ((5,), None),
    "10-5, 5": ((10, 5), (5,)),
    "5, 10-5": ((5,), (10, 5)),
    "16, 4": ((16,), (4,)),
    "4, 16": ((4,), (16,)),
}
"""Hidden layers of the global extractor and of the local one."""
METHODS: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "local": ({"name": "local"}, {}, mlp(10)),
    "central": ({"name": "central"}, {"epochs": 3}, mlp(10)),
    "FedAvg": ({"name": "fedavg"}, {"lr": 0.1}, mlp()),
    "SCAFFOLD": (
        {"name": "scaffold", "global_lr": 0.1},
        {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0},
        mlp(),
    ),
    "FedPer": ({"name": "fedper"}, {}, mlp(10)),
    "Ditto": ({"name": "ditto", "lam": 0.01}, {"lr": 0.1}, mlp(10)),
    "APFL": ({"name": "apfl", "alpha_lr": 0.1}, {"lr": 0.1}, mlp(5)),
    "PerFCL": ({"name": "perfcl", "mu": 0.1, "gamma": 1.0}, {}, mlp(5)),
    "FENDA-FL": ({"name": "fenda"}, {}, mlp(5)),
}
"""Method, local work and network, as in the study."""


def asked() -> dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Every method by the label of a run."""
    found = {f"m{k}": one for k, one in enumerate(METHODS.values())}
    for k, (shared, local) in enumerate(SIZES.values()):
        how = {"name": "none"} if local is None else mlp(*local)
        found[f"s{k}"] = ({"name": "fenda", "local": how}, {}, mlp(*shared))
    return found


def labels() -> dict[str, str]:
    return {f"m{k}": name for k, name in enumerate(METHODS)} | {
        f"s{k}": f"sizes {name}" for k, name in enumerate(SIZES)
    }


def matrices(seed: int, names: list[str], folder: Path) -> dict[str, list[list[float]]]:
    """Accuracy of each hospital's model at each hospital."""
    said, every = yaml.safe_load(BASE.read_text()), asked()
    said |= {"name": f"fenda{seed}", "seed": seed, "audit": {"membership": False}}
    for key, part in (("methods", 0), ("method_work", 1), ("method_model", 2)):
        said["train"][key] = {name: every[name][part] for name in names if every[name][part]}
    said["evaluate"] = {"checkpoint": "global", "copies": 0, "public": True, "reference": None}
    index = newest_of(must_run(said, folder, "--until", "evaluate"), "evaluate") / "index.json"
    found = {name: [[float("nan")] * len(SITES) for _ in SITES] for name in names}
    for line in json.loads(index.read_text()):
        if line["test_site"] not in SITES or line["label"] not in found:
            continue
        counts = from_tensors(from_bytes((index.parent / line["file"]).read_bytes()).tensors)
        value = ACCURACY.of(counts)[0] if isinstance(counts, Counts) else float("nan")
        of = line["model_site"]  # the central model is nobody's, and stands in every row
        for at in found[line["label"]] if of not in SITES else [found[line["label"]][SITES.index(of)]]:
            at[SITES.index(line["test_site"])] = round(float(value), 4)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[2021, 2022, 2023, 2024, 2025])
    kept: dict[str, Any] = read_measured("fenda")
    named = labels()
    for seed in parser.parse_args().seeds:
        for group in ("s", "m"):
            if names := [n for n in named if n[0] == group and f"{named[n]} | {seed}" not in kept]:
                with tempfile.TemporaryDirectory() as place:
                    for name, matrix in matrices(seed, names, Path(place)).items():
                        kept[f"{named[name]} | {seed}"] = matrix
                write_measured("fenda", kept, indent=0)


if __name__ == "__main__":
    main()
