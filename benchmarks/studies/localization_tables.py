"""Tables of docs/results/maps.md from benchmarks/measured/localization.json.

    python -m benchmarks.tables.derived --write maps

Figures are means over seeds with Student's 95 % interval; lines that not all reported seeds have are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.records import make_table

REPORTED, CHOSEN = ("0", "1", "2", "3", "4"), "100"
FIGURES = ("inside", "within 5 mm", "AUPRC", "Dice at 0.6", "blank")
HEADS = ("peak inside", "within 5 mm", "AUPRC", "Dice at 0.6", "blank")
WAYS = {
    ("slopes", "sensitivity"): "sensitivity (what pages draw)",
    ("slopes", "HiResCAM"): "HiResCAM of the second block",
    ("as it is", "probability"): "class probability of the maps (what pages drew before)",
    ("every 4", "probability"): "the same, the network moved over the image",
    ("as it is", "CAM, joint"): "CAM of class 1, `joint`",
    ("as it is", "CAM, min_max"): "CAM of class 1, `min_max`",
}
READINGS = {
    "as printed": "as printed (`joint`, `union`, `class`)",
    "no map loss": "without equation 9 (`map_weight: 0`)",
    "intersection": "`first: intersection`",
    "min_max": "`normalized: min_max`",
    "min_max, intersection": "both",
    "other": "`index: other`",
    "min_max, other": "`normalized: min_max, index: other`",
    "stride 8": "`stride: 8`",
    "stride 4": "`stride: 4`",
    "untrained": "untrained, as FedAvg begins",
}
FLOORS = (
    "the detector's map",
    "the gland's darkest spot",
    "the image's middle",
    "a random spot of the gland",
    "a random spot",
)
Figures = Mapping[str, float]


def cells(each: list[Figures]) -> list[str]:
    return [format_interval([one[name] for one in each]) for name in FIGURES]


def of(book: Mapping[str, Any], seeds: list[str], line: str, where: str, way: tuple[str, str]) -> list[Figures]:
    return [book[seed][line][where][way[0]][way[1]] for seed in seeds]


def lines(book: Mapping[str, Any], seeds: list[str]) -> list[str]:
    return [name for name in READINGS if all(name in book[seed] for seed in seeds)]


def tables(book: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the page."""
    seeds = [seed for seed in REPORTED if {"floors", "as printed"} <= set(book.get(seed, {}))]
    made: dict[str, Any] = {}
    for where, key in (("phantom", "phantom"), ("real", "prostatex")):
        rows = []
        for line in [name for name in ("as printed", "stride 4") if name in lines(book, seeds)]:
            for way, name in WAYS.items():
                if line == "as printed" or way[0] != "every 4":
                    rows.append([READINGS[line], name, *cells(of(book, seeds, line, where, way))])
        if "untrained" in lines(book, seeds):
            blind = of(book, seeds, "untrained", where, ("slopes", "sensitivity"))
            rows.append([READINGS["untrained"], "sensitivity", *cells(blind)])
        for name in FLOORS:
            rows.append(["no network" if "detector" not in name else "learnt on drawn pictures", name])
            rows[-1] += cells([book[seed]["floors"][where][name] for seed in seeds])
        made[key] = make_table(["network", "map", *HEADS], rows)
    if CHOSEN not in book:
        raise SystemExit(f"seed {CHOSEN} is not measured")
    made["readings"] = make_table(["reading", "AUC P", "AUC L", *COLUMNS], readings(book, [CHOSEN]))
    return made


COLUMNS = (
    "CAM of class 1: peak inside",
    "within 5 mm",
    "blank",
    "class probability: peak inside",
    "within 5 mm",
    "AUPRC",
)


def readings(book: Mapping[str, Any], seeds: list[str]) -> list[list[str]]:
    """A line for each reading of the loss, with what its own network's maps are worth."""
    rows = []
    for line in lines(book, seeds):
        auc = [format_interval([book[seed][line]["AUC"][site] for seed in seeds]) for site in "PL"]
        way = "CAM, min_max" if "min_max" in line else "CAM, joint"
        cam = of(book, seeds, line, "phantom", ("as it is", way))
        chance = of(book, seeds, line, "phantom", ("as it is", "probability"))
        values = [[one[name] for one in cam] for name in ("inside", "within 5 mm", "blank")]
        values += [[one[name] for one in chance] for name in ("inside", "within 5 mm", "AUPRC")]
        rows.append([READINGS[line], *auc, *(format_interval(one) for one in values)])
    return rows
