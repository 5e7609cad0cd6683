"""Tables of docs/results/without-a-patient.md from benchmarks/measured/no_patient.json, no_patient_t2w.json,
no_patient_unequal.json, vafl_few.json, detector_slices.json, cameras.json and fundus_cameras.json.

    python -m benchmarks.tables.derived --write without-a-patient

Seeds without `raw` and `oracle` are left out, and lines that not all seeds have. Intervals are Student's, 95 %, over
seeds or splits; the share of the gap between `raw` and `oracle` has Fieller's (`evaluation/oracle_gap.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.records import make_table, read_measured
from evaluation.oracle_gap import share_of_gap

NAMES = {"adc": "ADC", "t2w": "T2w"}
BOOKS = {"adc": "no_patient", "t2w": "no_patient_t2w", "unequal": "no_patient_unequal"}
PAIRS = (
    ("translator + start", "start"),
    ("translator + start", "raw"),
    ("translator + start", "oracle"),
    ("translator + start", "oracle + start"),
    ("translator", "raw"),
    ("start", "raw"),
    ("randomize", "raw"),
    ("start", "oracle"),
    ("start", "oracle + start"),
    ("VAFL as published", "raw"),
    ("VAFL, structure", "raw"),
    ("VAFL, structure", "VAFL as published"),
    ("oracle", "raw"),
)
BESIDE = ("raw", "start", "oracle", "oracle + start")
VAFL = {"vafl": "VAFL as published", "structure": "VAFL, structure"}
FEWEST = 3  # seeds
POOLED = "pooled"
Scores = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]
"""seed -> line -> `as it is` or `AdaBN` -> `overall`, `P`, `L` -> AUC."""


def interval(values: np.ndarray, sign: str = "") -> str:
    return format_interval(values, sign=sign).replace("-", "−")


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
    return make_table(columns, rows)


def pairs(every: Mapping[str, Scores]) -> dict[str, object]:
    rows = []
    for one, other in PAIRS:
        cells = [
            interval(of(found, one, way) - of(found, other, way), "+") if {one, other} <= set(lines_of(found)) else ""
            for found in every.values()
            for way in ("as it is", "AdaBN")
        ]
        if any(cells):
            rows.append([f"{one} − {other}", *cells])
    columns = ["overall AUC", *(f"n = {n}{way}" for n in every for way in ("", ", AdaBN"))]
    return make_table(columns, rows)


def adapted(found: Scores) -> dict[str, object]:
    """What AdaBN changes of each line, over seeds, and in how many of them it takes away."""
    rows = []
    for line in lines_of(found):
        change = of(found, line, "AdaBN") - of(found, line)
        rows.append([line, interval(change, "+"), f"{(change < 0).sum()} of {len(change)}"])
    columns = ["n = 48", "AdaBN less without it, AUC overall", "seeds in which it takes away"]
    return make_table(columns, rows)


def detector(book: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> dict[str, object]:
    """book: contrast -> n -> seed -> line -> AUC. Gains are over the seeds that have both lines."""
    rows = []
    for contrast, sizes in book.items():
        for n, found in sizes.items():
            known = recorded(contrast).get(n, {})
            for line in next(iter(found.values())):
                values = np.array([each[line] for each in found.values()])
                cells = [gain({seed: each[line] for seed, each in found.items()}, known, other) for other in BESIDE]
                rows.append([f"{NAMES[contrast]}, n = {n}", line, interval(values), *cells])
    columns = ["slices", "detector", "AUC overall", *(f"minus {name}" for name in BESIDE)]
    return make_table(columns, rows)


def gain(values: Mapping[str, float], known: Scores, other: str) -> str:
    both = [seed for seed in values if other in known.get(seed, {})]
    if len(both) < FEWEST:
        return ""
    told = interval(np.array([values[seed] - known[seed][other]["as it is"]["overall"] for seed in both]), "+")
    return told if len(both) == len(values) else f"{told} ({len(both)} seeds)"


def cameras(book: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, object]:
    """AUC of each camera when it is left out, and of all four's scores in one sample when all train (`pooled`). Splits
    that are not finished are left out; gains are over the splits that both lines have.
    """
    names = [name for name in next(iter(next(iter(book.values())).values())) if name != POOLED]
    whole = {
        line: {split: one for split, one in splits.items() if set(names) <= one.keys()} for line, splits in book.items()
    }
    rows = []
    for line, splits in whole.items():
        if len(splits) < FEWEST:
            continue
        raw = whole[f"{line.rpartition(', ')[0]}, raw"]
        both = [split for split in splits if split in raw]
        mean = {split: float(np.mean([one[name] for name in names])) for split, one in splits.items()}
        other = {split: float(np.mean([one[name] for name in names])) for split, one in raw.items()}
        gain = np.array([mean[split] - other[split] for split in both])
        together = np.array([one[POOLED] for one in splits.values() if POOLED in one])
        cells = [f"{np.mean([one[name] for one in splits.values()]):.3f}" for name in names]
        told = "" if line.endswith(", raw") or len(both) < 2 else f"{interval(gain, '+')}"
        pooled = interval(together) if len(together) > 1 else ""
        rows.append([line, f"{len(splits)}", interval(np.array(list(mean.values()))), *cells, told, pooled])
    columns = ["left out", "splits", "AUC, mean of four", *names, "minus raw", "all four train: AUC overall"]
    return make_table(columns, rows)


def fundus(book: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, object]:
    """Dice of the disc at each camera that nobody trained on, their mean, and where both trained; gains over `raw`, and
    over `reinhard`, of the splits.
    """
    first = next(iter(book.values()))
    names = [name for name in next(iter(first.values())) if name != POOLED]
    splits = [split for split in first if all({*names, POOLED} <= of.get(split, {}).keys() for of in book.values())]
    mean = {
        line: np.array([np.mean([of[split][name] for name in names]) for split in splits]) for line, of in book.items()
    }
    rows = []
    for line, of in book.items():
        cells = [interval(np.array([of[split][name] for split in splits])) for name in (*names, POOLED)]
        gains = [
            "" if line == other else interval(mean[line] - mean[other], "+")
            for other in ("raw", "raw, AdaBN", "reinhard")
        ]
        rows.append([line, *cells[:-1], interval(mean[line]), *gains, cells[-1]])
    columns = [
        "left out", *(f"Dice at {name}" for name in names), "mean", "minus raw", "minus raw with AdaBN",
        "minus reinhard", "both train: Dice",
    ]  # fmt: skip
    return make_table(columns, rows)


def recorded(contrast: str) -> dict[str, Scores]:
    """n -> what was measured."""
    found: dict[str, dict[str, dict[str, object]]] = read_measured(BOOKS[contrast])
    for key, run in read_measured("vafl_few").items():
        of, n, seed, *line = key.split("|")
        if of == contrast and seed in found.get(n, {}):
            found[n][seed][VAFL[line[0] if line else "vafl"]] = run["scores"]
    return found  # type: ignore[return-value]


def scores(contrast: str) -> dict[str, Scores]:
    """n -> the seeds that are finished, where there are enough."""
    every = {
        n: {seed: each for seed, each in seeds.items() if {"raw", "oracle"} <= each.keys()}
        for n, seeds in recorded(contrast).items()
    }
    return {n: found for n, found in every.items() if len(found) >= FEWEST}


def tables(_: object) -> dict[str, object]:
    """The tables of the page."""
    told: dict[str, object] = {}
    for contrast in BOOKS:
        every, name = scores(contrast), "phantom" if contrast == "adc" else contrast
        told |= {f"{name}-{n}": phantom(found, n) for n, found in every.items()}
        if contrast == "unequal":
            told["unequal-adabn"] = adapted(every["48"])
        else:
            told["pairs" if contrast == "adc" else f"{contrast}-pairs"] = pairs(every)
    told["detector"] = detector(read_measured("detector_slices"))
    told["cameras"] = cameras(read_measured("cameras"))
    told["fundus"] = fundus(read_measured("fundus_cameras"))
    return told
