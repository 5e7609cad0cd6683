"""Tables of docs/results/without-a-patient.md from benchmarks/no_patient.json and benchmarks/cameras.json.

    python benchmarks/no_patient_tables.py && python benchmarks/results_tables.py

Lines that not all seeds have are left out, and seeds that are not finished. Intervals are Student's, 95 %, over seeds
or splits; the share of the gap between `raw` and `oracle` has Fieller's (`evaluation/oracle_gap.py`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from evaluation.oracle_gap import share_of_gap  # noqa: E402

TABLE = ROOT / "docs/results/data/without-a-patient.json"
COMMIT, DATE = "f84500b", "2026-11-23"
PAIRS = (
    ("translator + start", "start"),
    ("translator + start", "raw"),
    ("translator + start", "oracle"),
    ("translator + start", "oracle + start"),
    ("translator", "raw"),
    ("start", "raw"),
    ("start", "oracle"),
    ("start", "oracle + start"),
    ("oracle", "raw"),
)
Scores = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
"""seed -> line -> `as it is` or `AdaBN` -> `overall`, `P`, `L` -> AUC."""


def interval(values: np.ndarray, sign: str = "") -> str:
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    return f"{values.mean():{sign}.3f} ± {half:.3f}".replace("-", "−")


def of(found: Scores, line: str, way: str = "as it is", where: str = "overall") -> np.ndarray:
    return np.array([each[line][way][where] for each in found.values()])


def share(found: Scores, line: str) -> str:
    told = share_of_gap(of(found, line).tolist(), of(found, "raw").tolist(), of(found, "oracle").tolist())
    if line in ("raw", "oracle") or told is None:
        return ""
    if math.isinf(told.low):
        return f"{told.share:.2f} (any)".replace("-", "−")
    return f"{told.share:.2f} ({told.low:.2f} to {told.high:.2f})".replace("-", "−")


def lines_of(found: Scores) -> list[str]:
    first = next(iter(found.values()))
    return [line for line in first if all(line in each for each in found.values())]


def phantom(found: Scores, n: str) -> dict[str, object]:
    rows = [
        [
            line,
            *(interval(of(found, line, where=where)) for where in ("overall", "P", "L")),
            interval(of(found, line, "AdaBN")),
            "" if line == "raw" else interval(of(found, line) - of(found, "raw"), "+"),
            share(found, line),
        ]
        for line in lines_of(found)
    ]
    columns = [f"n = {n}", "AUC overall", "P", "L", "overall, AdaBN", "minus raw", "share of the gap"]
    return {**head(f"no_patient.py --n {n} --seeds {' '.join(found)}"), "columns": columns, "rows": rows}


def pairs(every: Mapping[str, Scores]) -> dict[str, object]:
    rows = []
    for one, other in PAIRS:
        cells = [
            interval(of(found, one, way) - of(found, other, way), "+")
            for found in every.values()
            for way in ("as it is", "AdaBN")
        ]
        rows.append([f"{one} − {other}", *cells])
    columns = ["overall AUC", *(f"n = {n}{way}" for n in every for way in ("", ", AdaBN"))]
    return {**head("no_patient.py"), "columns": columns, "rows": rows}


def cameras(book: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, object]:
    rows = []
    for line, splits in book.items():
        raw = book[f"{line.rpartition(', ')[0]}, raw"]
        each = {name: np.array([one[name] for one in splits.values()]) for name in next(iter(splits.values()))}
        mean = np.mean(list(each.values()), axis=0)
        other = np.array([np.mean(list(raw[split].values())) for split in splits])
        gain = "" if line.endswith(", raw") else interval(mean - other, "+")
        rows.append([line, interval(mean), *(f"{values.mean():.3f}" for values in each.values()), gain])
    names = list(next(iter(next(iter(book.values())).values())))
    columns = ["left out", "AUC, mean of four", *names, "minus raw"]
    return {**head("cameras.py", "CONSILIUM_DATA=… "), "columns": columns, "rows": rows}


def head(command: str, before: str = "") -> dict[str, object]:
    return {"command": f"{before}python benchmarks/{command}", "commit": COMMIT, "date": DATE}


def main() -> None:
    told: dict[str, object] = {}
    every: dict[str, Scores] = {}
    for n, seeds in json.loads((ROOT / "benchmarks/no_patient.json").read_text()).items():
        needed = {line for pair in PAIRS for line in pair}
        every[n] = {seed: each for seed, each in seeds.items() if needed <= each.keys()}
    told |= {f"phantom-{n}": phantom(found, n) for n, found in every.items()}
    told["pairs"] = pairs(every)
    told["cameras"] = cameras(json.loads((ROOT / "benchmarks/cameras.json").read_text()))
    text = json.dumps(told, indent=1, ensure_ascii=False)
    TABLE.write_text(text + "\n")


if __name__ == "__main__":
    main()
