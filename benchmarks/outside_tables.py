"""Write the tables of docs/results/routing.md from the cells of benchmarks/outside.json.

PYTHONPATH=. python benchmarks/outside_tables.py --commit 1234567 && python benchmarks/results_tables.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from one_message import write_tables
from outside import KEPT, LINES, SEEDS, TAUS

PAGE = Path(__file__).parents[1] / "docs/results/data/routing.json"
COMMAND = "CONSILIUM_DATA=… PYTHONPATH=. python benchmarks/outside.py"
SITES = ("drishti-1", "drishti-2", "rimone-1", "rimone-2")
Made = tuple[list[str], list[list[str]]]


def short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if np.isfinite(value) else "–"


def change(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−").replace("0.", ".", 1)


def of(kept: Mapping[str, Any], site: str, seed: int, label: str) -> float:
    return float(kept["outside"].get(f"{site} | {seed}", {}).get(label, float("nan")))


def ways(kept: Mapping[str, Any]) -> Made:
    columns = ["way", *SITES, "mean", "by seed", "change by adapting, by seed"]
    rows = []
    for label in ("as trained", "ensemble", "statistics", "tent", *LINES):
        table = np.array([[of(kept, site, seed, label) for site in SITES] for seed in SEEDS])
        own = table.mean(axis=1)
        before = "start" if label in LINES else "statistics"
        if label in LINES and LINES[label].statistics == "set":
            before = "start, statistics of all images"
        from_ = np.array([[of(kept, site, seed, before) for site in SITES] for seed in SEEDS]).mean(axis=1)
        adapted = label == "tent" or (label in LINES and LINES[label].epochs > 0)
        cells = [short(one) for one in (*table.mean(axis=0), own.mean())]
        told = " ".join(change(one) for one in own - from_) if adapted else "–"
        rows.append([label, *cells, " ".join(short(one) for one in own), told])
    return columns, rows


def taus(kept: Mapping[str, Any]) -> Made:
    rows = []
    for tau in TAUS:
        inside = [np.mean(kept["inside"][f"disc | 8 | {s}"][f"IOP-FL, tau {tau}, disc"]) for s in SEEDS
                  if f"disc | 8 | {s}" in kept["inside"]]  # fmt: skip
        row = [str(tau), short(float(np.mean(inside))) if inside else "–"]
        for label in ("start", "paper"):
            by_seed = [np.mean([of(kept, s, seed, f"tau {tau}, {label}") for s in SITES[::2]]) for seed in SEEDS]
            row.append(f"{short(float(np.mean(by_seed)))} ({' '.join(short(float(one)) for one in by_seed)})")
        rows.append(row)
    return ["τ", "IOP-FL inside", "outside, before it adapts", "routing (paper)"], rows


def epochs(kept: Mapping[str, Any]) -> Made:
    rows = []
    for number, label in ((0, "start"), (1, "epochs 1"), (3, "epochs 3"), (10, "paper"), (30, "epochs 30")):
        by_seed = [np.mean([of(kept, site, seed, label) for site in SITES[::2]]) for seed in SEEDS]
        cells = [short(float(np.mean(by_seed))), " ".join(short(float(one)) for one in by_seed)]
        rows.append([str(number), *cells])
    return ["epochs", "Dice", "by seed"], rows


def inside(kept: Mapping[str, Any], what: str, parts: tuple[str, ...], steps: tuple[int, ...]) -> Made:
    columns = ["method", *(f"{part}, {n} steps" for n in steps for part in parts)]
    rows = []
    for label in ("local", "FedAvg", "FedBN", "IOP-FL, tau 0.9"):
        row = [label]
        for n in steps:
            for part in parts:
                cells = [kept["inside"].get(f"{what} | {n} | {s}", {}).get(f"{label}, {part}") for s in SEEDS]
                own = [float(np.mean(one)) for one in cells if one is not None]
                row.append(f"{short(float(np.mean(own)))} ({' '.join(map(short, own))})" if own else "–")
        rows.append(row)
    return columns, rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commit", default="0000000")
    commit, kept = parser.parse_args().commit, json.loads(KEPT.read_text())
    tables: dict[str, tuple[str, Callable[[], Made]]] = {
        "ways": ("measure", lambda: ways(kept)),
        "taus": ("measure && … inside", lambda: taus(kept)),
        "epochs": ("measure", lambda: epochs(kept)),
        "steps": ("inside", lambda: inside(kept, "disc", ("disc",), (2, 8))),
        "cups": ("inside", lambda: inside(kept, "cup", ("disc", "cup"), (8,))),
    }
    made = {}
    for name, (part, table) in tables.items():
        columns, rows = table()
        made[name] = {"command": f"{COMMAND} {part}", "commit": commit, "date": datetime.now(UTC).date().isoformat()}
        made[name] |= {"columns": columns, "rows": rows}
    write_tables(PAGE, made)


if __name__ == "__main__":
    main()
