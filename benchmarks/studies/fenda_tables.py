"""Tables of docs/results/heart-disease.md: ranks of methods, from its own tables, and, where there are cells in
benchmarks/measured/fenda.json, sizes and the matrix of models and hospitals.

    python -m benchmarks.tables.derived --write heart-disease
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.places import TABLES
from benchmarks.studies.fenda import METHODS, SITES, SIZES

INPUTS = 13


def weights(hidden: tuple[int, ...]) -> int:
    return sum((a + 1) * b for a, b in zip((INPUTS, *hidden), hidden, strict=False))


def short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def seeds(kept: dict[str, Any], label: str) -> np.ndarray:
    """(seeds, model's hospital, tested hospital)."""
    return np.array([matrix for key, matrix in sorted(kept.items()) if key.rpartition(" | ")[0] == label])


def sizes(kept: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    columns = ["hidden layers, global and local", "parameters", "accuracy, mean of four hospitals"]
    rows, base = [], None
    for label, (shared, local) in SIZES.items():
        own = np.array([np.diag(one).mean() for one in seeds(kept, f"sizes {label}")])
        base = own if base is None else base
        last = shared[-1] + (local[-1] if local else 0)
        number = weights(shared) + (weights(local) if local else 0) + last + 1
        over = "–" if base is own else format_interval(own - base)
        cells = [f"{format_interval(own)}", over]
        away = np.array([(one.sum() - np.trace(one)) / 12 for one in seeds(kept, f"sizes {label}")])
        rows.append([label, str(number), *cells, short(float(away.mean()))])
    return [*columns, "over 5, 5", "at the other hospitals"], rows


def matrix(kept: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for label in METHODS:
        mean = seeds(kept, label).mean(axis=0)
        if label == "local":
            rows += [[f"local, of {site}", *map(short, mean[k])] for k, site in enumerate(SITES)]
        elif label in ("central", "FedAvg", "SCAFFOLD"):
            rows.append([label, *map(short, np.diag(mean))])
        else:
            away = [(mean[:, j].sum() - mean[j, j]) / 3 for j in range(4)]
            rows.append([f"{label}, own model", *map(short, np.diag(mean))])
            rows.append([f"{label}, the others' models", *map(short, away)])
    return ["model", *(f"at {site}" for site in SITES)], [[*row] for row in rows]


RANKS = {"fedavg": 8, "fedadam": 7, "fedprox": 9, "scaffold": 10, "moon": 6, "fedper": 2, "ditto": 4, "apfl": 5}
RANKS |= {"perfcl": 3, "fenda": 1}
"""FENDA-FL, table 1, Fed-Heart."""


def ranks() -> tuple[list[str], list[list[str]]]:
    """By the better of both checkpoints, as the paper ranks, from the page's tables of five and of twenty seeds."""
    tables = json.loads((TABLES / "heart-disease.json").read_text())
    found: dict[str, list[int]] = {name: [] for name in RANKS}
    for key, places in (("fenda", (2, 3)), ("noise", (1, 2))):
        rows = {row[0]: [float(row[k].split()[0]) for k in places if row[k] != "–"] for row in tables[key]["rows"]}
        order = sorted(RANKS, key=lambda name: -max(rows[name]))
        for name in RANKS:
            found[name].append(order.index(name) + 1)
    made = [[name, str(RANKS[name]), *map(str, found[name])] for name in sorted(RANKS, key=lambda n: RANKS[n])]
    return ["method", "paper", "seeds 2021 to 2025", "seeds 1 to 20"], made
