"""What epsilon costs: python -m benchmarks.studies.epsilons skin_lesion_private.yaml --epsilon 1 3 8 inf --seeds 0 1 2

One run for each epsilon (per patient and method; inf = `privacy: none`, same network and epochs) and seed. Printed are
mean and half of the 95 % t interval over seeds of: AUC at home as the hospitals' own files have it (exact, which a real
coordinator would never see), the mean over hospitals of accuracy at the threshold .5 from the same files, the private
mean AUC as the coordinator is told it (noised), and the AUC of membership inference by loss with its copying control.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.runs import must_run, newest_of, read_json
from pipelines.loader.validation import to_plain
from pipelines.settings.load import load_config
from pipelines.settings.privacy import PatientLevel
from privacy.message import from_file

Found = dict[tuple[str, str], float]
"""(method, column) -> value."""


def one_run(name: str, epsilon: float, seed: int, folder: Path) -> Found:
    config = load_config(name)
    if not isinstance(config.privacy, PatientLevel):
        sys.exit(f"{name}: privacy is none; give a configuration that has epsilon")
    privacy = replace(config.privacy, epsilon=epsilon, noise=None) if math.isfinite(epsilon) else "none"
    sites = config.sites
    if privacy == "none":  # a hospital with a budget would refuse
        sites = {name: replace(site, policy=replace(site.policy, budget=None)) for name, site in sites.items()}
    run = f"e{epsilon:g}-{seed}".replace(".", "_")
    config = replace(config, seed=seed, name=run, runs=str(folder), privacy=privacy, sites=sites)
    root = must_run(to_plain(config), folder)
    return {**exact(root), **told(root), **attacked(root)}


def exact(root: Path) -> Found:
    """AUC of each hospital's own model on its own test examples, from its own files, their mean, and mean accuracy."""
    found: Found = {}
    sites = sorted(path.name for path in (root / "sites").iterdir())
    for label, run in trained(root).items():
        right = []
        for site in sites:
            (path,) = (root / "sites" / site / "scores").glob(f"{run}.*.safetensors")
            scores = from_message(path)
            if len(np.unique(scores[0])) == 2:
                found[label, site] = float(roc_auc_score(*scores))
            right.append(float(np.mean((scores[1] > 0.5) == scores[0])))
        own = [value for (method, _), value in found.items() if method == label]
        found[label, "mean"], found[label, "accuracy"] = float(np.mean(own)), float(np.mean(right))
    return found


def from_message(path: Path) -> tuple[np.ndarray, np.ndarray]:
    tensors = from_file(path).tensors
    return tensors["y"].numpy(), tensors["probabilities"][:, 1].numpy()


def trained(root: Path) -> dict[str, str]:
    folder = newest_of(root, "train")
    results = [json.loads(path.read_text()) for path in folder.glob("*.json") if path.name != "manifest.json"]
    return {result["label"]: result["train_run"].rpartition("/")[2] for result in results}


def told(root: Path) -> Found:
    rows = [
        row for row in read_json(root, "report", "scores.json") if row["measure"] == "AUC" and row["value"] is not None
    ]
    return {(row["method"], "mean as told"): row["value"] for row in rows if row["protocol"] == "private mean"}


def attacked(root: Path) -> Found:
    found: Found = {}
    for label, run in trained(root).items():
        files = sorted((root / "sites").glob(f"*/scores/{run}.*.membership.json"))
        said = [json.loads(path.read_text()) for path in files]
        for column, key in (("attack", "auc"), ("its control", "control_auc")):
            values = [one[key] for one in said if one[key] is not None]
            if values:
                found[label, column] = float(np.mean(values))
    return found


def table(runs: dict[float, list[Found]]) -> str:
    columns = list(dict.fromkeys(column for each in runs.values() for found in each for _, column in found))
    lines = ["| method | ε | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    for method in dict.fromkeys(method for each in runs.values() for found in each for method, _ in found):
        for epsilon, each in runs.items():
            cells = []
            for column in columns:
                values = [found[method, column] for found in each if (method, column) in found]
                cells.append(format_interval(values) if values else "–")  # no attack on models without noise
            name = "∞" if math.isinf(epsilon) else f"{epsilon:g}"
            lines.append(f"| {method} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    line = make_parser(__doc__)
    line.add_argument("config")
    line.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0, math.inf])
    line.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = line.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs = {e: [one_run(asked.config, e, seed, Path(place)) for seed in asked.seeds] for e in asked.epsilon}
    print(f"\n{table(runs)}")
