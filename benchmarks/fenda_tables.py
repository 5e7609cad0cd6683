"""Write two tables of docs/results/heart-disease.md from the cells of benchmarks/fenda.json.

PYTHONPATH=. python benchmarks/fenda_tables.py --commit 1234567 && python benchmarks/results_tables.py
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from fenda import KEPT, METHODS, SITES, SIZES
from one_message import interval, write_tables

PAGE = Path(__file__).parents[1] / "docs/results/data/heart-disease.json"
COMMAND = "CONSILIUM_DATA=… PYTHONPATH=. python benchmarks/fenda.py"
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
        over = "–" if base is own else interval(own - base)
        cells = [f"{interval(own)}", over]
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commit", default="0000000")
    commit, kept = parser.parse_args().commit, json.loads(KEPT.read_text())
    made = {}
    for name, table in (("sizes", sizes), ("matrix", matrix)):
        columns, rows = table(kept)
        made[name] = {"command": COMMAND, "commit": commit, "date": datetime.now(UTC).date().isoformat()}
        made[name] |= {"columns": columns, "rows": rows}
    write_tables(PAGE, made)


if __name__ == "__main__":
    main()
