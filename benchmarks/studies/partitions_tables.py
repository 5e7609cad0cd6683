"""Tables of docs/results/partitions.md from the cells of benchmarks/measured/partitions.json.

    python -m benchmarks.tables.derived --write partitions

The papers' figures are those of Luo's slides (proposal, 2025) on FedSLD, APPLE and PGFed, in per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from benchmarks.studies.partitions import BATCHES, ROWS, SEEDS, SETTINGS, best, dealt

REACHING = ("APFL", "FedPer", "Per-FedAvg", "FedRoD", "PGFed", "PGFedMo")
"""The methods of the slides' table of convergence."""
PAPER: Mapping[str, Mapping[str, str]] = {  # practical and pathological: MNIST / CIFAR10; Dirichlet: CIFAR10, 25
    "local": {"practical": "78.2 / 63.1", "pathological": "97.3 / 75.0", "dirichlet": "72.4"},
    "FedAvg": {"practical": "94.0 / 34.3", "pathological": "95.7 / 51.4", "dirichlet": "65.1"},
    "FedAvg-local": {"practical": "97.5 / 72.0", "pathological": "99.5 / 90.1"},
    "FedAvg-FT": {"practical": "97.7 / 72.1", "pathological": "99.4 / 90.5"},
    "FedProx-FT": {"practical": "97.7 / 72.1", "pathological": "99.4 / 90.5"},
    "FedSLD": {"practical": "95.6 / 37.5*"},
    "FedProx": {"practical": "93.5 / 32.0*"},
    "FedDyn": {"dirichlet": "67.3"},
    "FedFomo": {"practical": "98.1 / 70.2", "pathological": "99.7 / 92.0", "dirichlet": "72.3"},
    "APFL": {"practical": "98.8 / 71.2", "pathological": "99.8 / 89.3", "dirichlet": "77.0"},
    "FedRep": {"dirichlet": "76.9"},
    "LG-FedAvg": {"dirichlet": "72.8"},
    "FedPer": {"dirichlet": "77.8"},
    "Per-FedAvg": {"dirichlet": "75.5"},
    "FedRoD": {"dirichlet": "79.7"},
    "FedBABU": {"dirichlet": "78.9"},
    "HeurFedAMP": {"practical": "97.5 / 69.5", "pathological": "98.1 / 91.1"},
    "APPLE, μ = 0": {"practical": "99.0 / 75.6", "pathological": "99.7 / 92.2"},
    "APPLE": {"practical": "99.0 / 77.4", "pathological": "99.8 / 92.7"},
    "PGFed": {"dirichlet": "81.0"},
    "PGFedMo": {"dirichlet": "81.2"},
}
GAINS = {"FedAvg": "−9.0 ± 10.4", "APFL": "2.8 ± 8.1", "FedPer": "5.3 ± 2.6", "Per-FedAvg": "0.7 ± 6.2"}
GAINS |= {"FedRoD": "7.8 ± 3.7", "PGFed": "8.5 ± 4.7", "PGFedMo": "8.6 ± 3.6"}
ROUNDS = {"APFL": "31 (1.0×)", "FedPer": "8 (3.9×)", "Per-FedAvg": "31 (1.0×)", "FedRoD": "26 (1.2×)"}
ROUNDS |= {"PGFed": "9 (3.4×)", "PGFedMo": "9 (3.4×)"}
BANDWIDTH = {
    "practical": {
        "APPLE": {11: "99.0 / 75.6", 5: "98.5 / 75.6", 1: "98.5 / 73.0"},
        "FedFomo": {11: "98.1 / 70.2", 5: "97.5 / 70.4", 1: "91.5 / 69.9"},
    },
    "pathological": {
        "APPLE": {11: "99.7 / 92.2", 5: "99.7 / 92.3", 1: "99.7 / 92.3"},
        "FedFomo": {11: "99.7 / 92.0", 5: "99.7 / 91.9", 1: "99.7 / 92.0"},
    },
}


def percent(values: list[float]) -> str:
    """The mean over seeds, and each."""
    if not values:
        return "–"
    each = " ".join(f"{100 * value:.1f}" for value in values)
    return f"{100 * float(np.mean(values)):.1f} ({each})"


def measured(kept: Mapping[str, Any], setting: str, label: str, of: Callable[[Any, int], float]) -> list[float]:
    cells = kept["measured"]
    return [of(cells[key], s) for s in SEEDS if "last" in cells.get(key := f"{setting} | {label} | {s}", {})]


def accuracy(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    columns = ["method"]
    for setting in SETTINGS:
        columns += [setting, "slides: CIFAR10, 25 clients" if setting == "dirichlet" else "slides: MNIST / CIFAR10"]
    rows = [
        [
            "majority guess",
            *(
                x
                for s in SETTINGS
                for x in (percent(measured(kept, s, "local", lambda _, seed, s=s: floor(s, seed))), "–")
            ),
        ]
    ]
    for label in ROWS:
        row = [label]
        for setting in SETTINGS:
            row.append(percent(measured(kept, setting, label, lambda cell, _: float(np.mean(cell["last"])))))
            row.append(PAPER.get(label, {}).get(setting, "–"))
        rows.append(row)
    return columns, rows


def pooled(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The same with every test picture weighing the same."""
    sizes = {
        (s, seed): np.array([len(rows["test"].y) for rows in dealt(s, seed).values()])
        for s in SETTINGS
        for seed in SEEDS
    }
    rows = []
    for label in ROWS:
        own = [
            measured(kept, s, label, lambda cell, seed, s=s: float(np.average(cell["last"], weights=sizes[s, seed])))
            for s in SETTINGS
        ]
        rows.append([label, *map(percent, own)])
    return ["method", *SETTINGS], rows


def floor(setting: str, seed: int) -> float:
    """What the most common training class of each hospital has in its test split."""
    found = []
    for rows in dealt(setting, seed).values():
        most = rows["train"].y.bincount().argmax()
        found.append(float((rows["test"].y == most).double().mean()))
    return float(np.mean(found))


def gains(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Mean individual gain over local, population deviation over hospitals, and hospitals that lose."""
    columns = ["method", *(f"{s}: gain ± sd, worse off" for s in SETTINGS), "slides: CIFAR10, 25 clients"]
    rows = []
    for label in ROWS:
        row = [label]
        for setting in SETTINGS:
            over = []
            for seed in SEEDS:
                one, two = (kept["measured"].get(f"{setting} | {n} | {seed}", {}) for n in (label, "local"))
                if "last" in one and "last" in two:
                    over.append(100 * (np.array(one["last"]) - np.array(two["last"])))
            if not over:
                row.append("–")
                continue
            worse = sum(int((each < 0).sum()) for each in over)
            spread = float(np.mean([each.std() for each in over]))
            row.append(f"{signed(float(np.mean(over)))} ± {spread:.1f}, {worse} of {sum(map(len, over))}")
        rows.append([*row, GAINS.get(label, "–")])
    return columns, [row for row in rows if row[0] != "local"]


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def cost(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Rounds to reach the lowest last score of the slides' six methods, in each seed; gradients over FedAvg's."""
    columns = ["method", *(f"rounds, {s}" for s in SETTINGS), "slides: rounds (speed-up), CIFAR10, 25 clients"]
    columns += ["passes"]
    rows = []
    for label in ROWS:
        row = [label]
        for setting, how in SETTINGS.items():
            told = []
            for seed in SEEDS:
                cells = {n: kept["measured"].get(f"{setting} | {n} | {seed}", {}) for n in (*REACHING, label)}
                if not all("curve" in cell for cell in cells.values()):
                    continue
                target = min(cells[n]["curve"][-1] for n in REACHING)
                reached = [k for k, value in enumerate(cells[label]["curve"], 1) if value >= target]
                told.append(str(reached[0] * how.every) if reached else "never")
            row.append(" ".join(told) or "–")
        passes, base = (measured(kept, "practical", n, lambda cell, _: cell["passes"]) for n in (label, "FedAvg"))
        passes = [one * (2 if label == "APFL" else 1) / np.mean(base) for one in passes]  # two networks in one pass
        row += [ROUNDS.get(label, "–"), f"{np.mean(passes):.2f}" if passes else "–"]
        rows.append(row)
    return columns, [row for row in rows if not ROWS[row[0]].tuned]


def bandwidth(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    columns = ["method", "models a round, M", "practical", "slides", "pathological", "slides"]
    rows = []
    for label in ("APPLE", "FedFomo"):
        for m in (11, 5, 1):
            row = [label, "11 (all)" if m == 11 else str(m)]
            for setting in ("practical", "pathological"):
                name = label if m == 11 else f"{label}, M = {m}"
                values = measured(kept, setting, name, lambda cell, _: float(np.mean(cell["last"])))
                row += [percent(values), BANDWIDTH[setting][label][m]]
            rows.append(row)
    return columns, rows


def directed(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """APPLE's p after the last round: own weight, the others' sum, and whom it follows."""
    columns = ["partition", "method", "p_ii, mean over hospitals and seeds", "sum of the others' p", "p_0, own"]
    columns += ["rank correlation of p_ij with the overlap of labels, by seed"]
    rows = []
    for setting in SETTINGS:
        for label in ("APPLE, μ = 0", "APPLE"):
            own, others, start, alike = [], [], [], []
            for seed in SEEDS:
                cell = kept["measured"].get(f"{setting} | {label} | {seed}", {})
                if "p" not in cell:
                    continue
                p, splits = np.array(cell["p"]), list(dealt(setting, seed).values())
                seen = p.any(axis=1)  # hospitals that were in a round
                q = np.stack([r["train"].y.bincount(minlength=10).numpy() / len(r["train"].y) for r in splits])
                overlap = np.minimum(q[:, None], q[None]).sum(axis=2)
                off = ~np.eye(len(p), dtype=bool) & seen[:, None]
                own.append(np.diag(p)[seen].mean())
                others.append((p.sum(axis=1) - np.diag(p))[seen].mean())
                start.append(1 / len(p))
                alike.append(float(spearmanr(p[off], overlap[off])[0]))
            if own:
                cells = [f"{np.mean(one):.2f}" for one in (own, others, start)]
                rows.append([setting, label, *cells, " ".join(f"{a:.2f}" for a in alike)])
    return columns, rows


def newcomers(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    labels = list(dict.fromkeys(key.split(" | ")[0] for key in kept["newcomers"]))
    rows = []
    for label in labels:
        cells = [kept["newcomers"][f"{label} | {s}"] for s in SEEDS if f"{label} | {s}" in kept["newcomers"]]
        name = "a random start" if label == "alone" else label
        rows.append([name, *(percent([float(np.mean(c[k])) for c in cells]) for k in ("before", "after"))])
    return ["the global model of", "as it came, five new hospitals", "after 20 epochs of tuning"], rows


def toy(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for mu in (0.0, 0.1, 0.3, 1.0):
        cells = [kept["toy"][f"{mu} | {s}"] for s in SEEDS if f"{mu} | {s}" in kept["toy"]]
        name = "0: implicit (FedAvg-local)" if not mu else f"{mu}: explicit"
        rows.append([name, *(percent([cell[k] for cell in cells]) for k in ("own", "global"))])
    return ["μ", "hospitals' own models", "the global model"], rows


def settings(kept: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = []
    for label, row in ROWS.items():
        cells = [label, str(BATCHES // row.inner), row.key or "–"]
        for setting in ("practical", "dirichlet"):
            said, lr = best(kept, setting, label)
            own = ", ".join(f"{k} {v}" for k, v in {**row.said, **said}.items())
            tried = sum(key.startswith(f"{setting} | {label} | ") for key in kept["chosen"])
            cells += [f"lr {lr}{', ' if own else ''}{own}", str(tried)]
        rows.append(cells)
    return ["method", "steps a round", "own key that was tried", "practical", "tried", "dirichlet", "tried"], rows
