"""Tables of docs/results/vafl-as-published.md: the paper's tables beside what vafl_as_published.py found.

    python -m benchmarks.tables.derived --write vafl-as-published

Cells that were not run are there, and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.shared.intervals import format_spread
from benchmarks.shared.records import make_table
from benchmarks.studies.vafl_as_published import LINES, at_hospitals, noise

PARTS = {
    "ingest": "reading",
    "score": "score, all hospitals",
    "synthesize": "WGAN-GP",
    "sample": "Algorithm 1",
    "translate": "CycleGANs, with judging",
    "train": "training, four lines",
}


class Published(NamedTuple):
    """overall: AUC and balanced accuracy of all scores in one sample. hospitals: each one's AUC."""

    overall: tuple[float, float] | None
    hospitals: tuple[float, ...]


def of(*hospitals: float, auc: float | None = None, acc: float | None = None) -> Published:
    return Published(None if auc is None or acc is None else (auc, acc), hospitals)


PAPER: dict[str, dict[str, Published]] = {
    "two_20": {
        "local": of(0.9322, 0.9145),
        "central": of(0.9384, 0.9186, auc=0.9293, acc=0.8938),
        "fedavg": of(0.9262, 0.9018, auc=0.8995, acc=0.8288),
        "vafl": of(0.9699, 0.9108, auc=0.9375, acc=0.8858),
    },
    "two_40": {
        "local": of(0.9608, 0.9164),
        "central": of(0.9704, 0.9604, auc=0.9658, acc=0.9173),
        "fedavg": of(0.9684, 0.9424, auc=0.9514, acc=0.8844),
        "vafl": of(0.9735, 0.9346, auc=0.9517, acc=0.9005),
    },
    "two_60": {
        "local": of(0.9944, 0.9407),
        "central": of(0.9977, 0.9983, auc=0.9981, acc=0.9716),
        "fedavg": of(0.9692, 0.9882, auc=0.9806, acc=0.9389),
        "vafl": of(0.9716, 0.9894, auc=0.9823, acc=0.9488),
    },
    "two_80": {
        "local": of(0.9993, 0.9994),
        "central": of(0.9999, 0.9980, auc=0.9982, acc=0.9803),
        "fedavg": of(0.9965, 0.9996, auc=0.9981, acc=0.9655),
        "vafl": of(0.9959, 0.9818, auc=0.9875, acc=0.9722),
    },
    "four_80": {
        "local": of(0.9867, 0.9830, 0.8822, 0.9958),
        "central": of(1.0, 1.0, 0.9984, 1.0, auc=0.9986, acc=0.9863),
        "fedavg": of(0.9459, 0.9915, 0.9922, 0.9986, auc=0.9838, acc=0.9375),
        "vafl": of(1.0, 0.9983, 0.9896, 1.0, auc=0.9942, acc=0.9726),
    },
    "eight_80": {
        "local": of(1.0, 0.8895, 0.9912, 0.9944, 0.8744, 0.9010, 0.8776, 0.9629),
        "central": of(1.0, 1.0, 1.0, 1.0, 0.9978, 1.0, 1.0, 1.0, auc=0.9963, acc=0.9830),
        "fedavg": of(1.0, 0.8211, 0.8947, 1.0, 0.9678, 1.0, 0.9971, 1.0, auc=0.9670, acc=0.9330),
        "vafl": of(1.0, 1.0, 1.0, 1.0, 0.9978, 1.0, 1.0, 1.0, auc=0.9976, acc=0.9830),
    },
}
"""Tables II and IV of the paper."""


def scores(book: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for case, published in PAPER.items():
        cells = [said for key, said in sorted(book.items()) if key.startswith(f"{case}|")]
        for label, name in {**LINES, "fedavg_adabn": "FL, AdaBN", "vafl_adabn": "VAFL, AdaBN"}.items():
            theirs = published.get(label)
            if theirs is None and not cells:
                continue
            each = [one["scores"].get(label, {}) for one in cells]
            overall = [one["AUC overall"] for one in each if "AUC overall" in one]
            accurate = [one["balanced accuracy overall"] for one in each if "balanced accuracy overall" in one]
            hospitals = [float(np.mean(v)) for one in each if (v := at_hospitals(one))]
            ours = (
                [format_spread(overall), format_spread(hospitals), format_spread(accurate)]
                if cells
                else ["not run", "", ""]
            )
            rows.append([case, name, *printed(theirs), *ours, str(len(cells)) if cells else ""])
    return rows


def differences(book: Mapping[str, Any]) -> list[list[str]]:
    """Overall AUC of each cell's lines less FL's, in the order of the seeds."""
    rows = []
    for case in dict.fromkeys(key.partition("|")[0] for key in sorted(book)):
        cells = [said["scores"] for key, said in sorted(book.items()) if key.startswith(f"{case}|")]
        found = [
            " ".join(f"{one[line]['AUC overall'] - one['fedavg']['AUC overall']:+.3f}" for one in cells)
            for line in ("vafl", "fedavg_adabn")
        ]
        rows.append([case, *(text.replace("-", "−") for text in found)])
    return rows


def printed(theirs: Published | None) -> list[str]:
    if theirs is None:
        return ["–", "–", "–"]
    auc, acc = theirs.overall or (None, None)
    shown = ["–" if value is None else f"{value:.3f}" for value in (auc, acc)]
    return [shown[0], f"{np.mean(theirs.hospitals):.3f}", shown[1]]


def targets(book: Mapping[str, Any]) -> list[list[str]]:
    """Of each cell the scores, the target, and how Algorithm 1 went."""
    rows = []
    for key, said in sorted(book.items()):
        complexity = ", ".join(f"{site} {value:.2f}" for site, value in sorted(said["complexity"].items()))
        shared = said["shared"]
        rows.append(
            [
                *key.split("|"), complexity, said["target"], f"{said['delta']:g}", f"{shared['images']}",
                f"{shared['tried']}", f"{shared['far']}", f"{shared['near']}", f"{said['clipped']['epsilon']:.1f}",
            ]
        )  # fmt: skip
    return rows


def parts(book: Mapping[str, Any]) -> list[list[str]]:
    """Seconds of CPU time and memory of each part, of each cell."""
    rows = []
    for key, said in sorted(book.items()):
        spent = [said["spent"][part] for part in PARTS]
        rows.append([*key.split("|"), *(f"{one['cpu']:.0f} s, {one['MiB']} MiB" for one in spent)])
    return rows


def tables(book: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the page."""
    head, *rest = [[cell.strip() for cell in row.strip("|").split("|")] for row in noise().splitlines()]
    ours = [f"ours, {what}" for what in ("AUC overall", "AUC, hospitals' mean", "accuracy overall")]
    theirs = [f"paper, {what}" for what in ("AUC overall", "AUC, hospitals' mean", "accuracy overall")]
    told = ["case", "seed", "scores", "target", "δ", "shared", "tried", "far", "near", "ε if clipped"]
    return {
        "scores": make_table(["case", "line", *theirs, *ours, "seeds"], scores(book)),
        "differences": make_table(["case", "VAFL − FL, by seed", "AdaBN on FL − FL, by seed"], differences(book)),
        "targets": make_table(told, targets(book)),
        "parts": make_table(["case", "seed", *PARTS.values()], parts(book)),
        "noise": make_table(head, rest[1:]),
    }
