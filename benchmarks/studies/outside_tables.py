"""Tables of docs/results/routing.md from the cells of benchmarks/measured/outside.json.

python -m benchmarks.tables.derived --write routing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.studies.outside import LINES, SEEDS, TAUS

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
        seeds = [seed for seed in SEEDS if np.isfinite([of(kept, site, seed, label) for site in SITES]).all()]
        table = np.array([[of(kept, site, seed, label) for site in SITES] for seed in seeds])
        own = table.mean(axis=1)
        before = "start" if label in LINES else "statistics"
        if label in LINES and LINES[label].statistics == "set":
            before = "start, statistics of all images"
        from_ = np.array([[of(kept, site, seed, before) for site in SITES] for seed in seeds]).mean(axis=1)
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
    if not kept["inside"]:
        rows = [[row[0], *row[2:]] for row in rows]
    return ["τ", *(["IOP-FL inside"] if kept["inside"] else []), "outside, before it adapts", "routing (paper)"], rows


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


SIGNS = ("statistics", "own", "pairs", "experts, image", "experts, set")
"""Signs of agreement, of which `tried_below` is a limit: see `outside.signs`."""
LIMITS = (0.0, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975, 1.1)


def by_rule(cells: list[Any], sign: str, limit: float, before: str, after: str) -> tuple[float, int]:
    """Mean Dice where adapting is tried below the limit, and in how many cells it is."""
    tried = [cell["signs"][sign] < limit for cell in cells]
    found = [cell[after] if yes else cell[before] for cell, yes in zip(cells, tried, strict=True)]
    return float(np.mean(found)), sum(tried)


PAIRS = (("start", "paper"), ("statistics", "tent"))


def choice(kept: Mapping[str, Any]) -> Made:
    """Every sign and limit on the cells that no table reports."""
    cells = list(kept["choice"].values())
    columns = ["sign: how much agree", *(f"below {x:g}" for x in LIMITS[1:-1])]
    rows = []
    for before, after in PAIRS:
        never, always = (by_rule(cells, SIGNS[0], x, before, after)[0] for x in (LIMITS[0], LIMITS[-1]))
        rows.append([f"**{after}**: never {short(never)}, always {short(always)}", *("" for _ in LIMITS[1:-1])])
        for sign in SIGNS:
            found = [by_rule(cells, sign, x, before, after) for x in LIMITS[1:-1]]
            rows.append([f"{after} by *{sign}*", *(f"{short(value)} ({n})" for value, n in found)])
    return columns, rows


def rule(kept: Mapping[str, Any]) -> Made:
    """What the rules give on the reported seeds."""
    rows = []
    for (before, after), (sign, limit) in zip(PAIRS, RULES, strict=True):
        by_seed = [[cell for key, cell in kept["outside"].items() if key.endswith(f"| {s}")] for s in SEEDS]
        by_seed = [cells for cells in by_seed if cells]
        told = [[by_rule(cells, sign, x, before, after) for cells in by_seed] for x in (0.0, limit, 1.1)]
        cells = [" ".join(short(value) for value, _ in each) for each in told]
        number = f"{sum(n for _, n in told[1])} of {sum(map(len, by_seed))}"
        rows.append([after, f"{sign} below {limit:g}", *cells, number])
    return ["way", "rule", "never", "by the rule", "always", "tried"], rows


RULES = (("experts, image", 0.95), ("statistics", 0.85))
