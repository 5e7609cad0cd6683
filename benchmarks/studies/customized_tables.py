"""The tables of docs/results/customized.md, with the paper's figures below ours where it has a counterpart.

Paper: Wicaksana et al., CusFL, IEEE JBHI 2022, tables VII to XI and XIV, skin lesions, ResNet-18.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.shared.records import make_table

Kept = dict[str, dict[str, dict[str, float]]]
"""`table | line` -> fold -> figures."""
COUNTS = (2, 4, 8, 16, 32)
PAPER = {  # private / public with 2, 4, 8, 16 and 32 hospitals
    "AUC": {
        "central (CL)": "89.6; 86.2; 85.8; 86.4; 87.2",
        "local (LL)": "86.8 / 76.0; 80.9 / 62.0; 77.6 / 59.7; 71.8 / 55.1; 68.7 / 53.8",
        "FedAvg (FL)": "84.2 / 81.6; 70.8 / 73.5; 70.1 / 70.2; 68.6 / 65.3; 68.1 / 63.8",
        "CusFL": "87.7 / 80.9; 86.1 / 74.0; 84.2 / 70.7; 80.7 / 68.3; 78.2 / 67.6",
        "SplitNN": "86.5 / 77.8; 75.3 / 62.4; 71.8 / 61.6; 69.6 / 56.1; 66.6 / 57.5",
        "MOON": "86.8 / 80.6; 81.6 / 69.3; 77.7 / 66.1; 74.7 / 66.2; 69.5 / 63.2",
        "MoE": "86.5 / 79.8; 80.7 / 68.1; 74.7 / 65.2; 73.7 / 60.8; 71.5 / 61.6",
    },
    "ACC": {
        "central (CL)": "83.9; 82.7; 82.3; 82.6; 81.4",
        "local (LL)": "77.3 / 67.9; 72.0 / 56.9; 65.3 / 55.5; 62.2 / 52.9; 58.6 / 51.9",
        "FedAvg (FL)": "73.2 / 76.6; 57.3 / 60.5; 57.1 / 59.8; 57.2 / 57.4; 54.8 / 54.4",
        "CusFL": "79.1 / 77.7; 81.0 / 64.4; 76.6 / 62.8; 73.8 / 60.7; 70.0 / 59.6",
        "SplitNN": "75.8 / 70.0; 68.4 / 57.7; 66.1 / 54.6; 64.3 / 52.0; 62.0 / 50.2",
        "MOON": "76.7 / 72.4; 70.5 / 61.0; 67.8 / 59.1; 63.5 / 56.0; 59.4 / 53.2",
        "MoE": "76.2 / 69.5; 75.0 / 62.1; 69.4 / 58.4; 69.6 / 55.2; 68.0 / 54.6",
    },
}
LINES = ("local (LL)", "FedAvg (FL)", "CusFL", "CusFL, as printed", "SplitNN", "MOON", "MoE")
ABLATED = {  # the paper's ACC and AUC, how many hospitals it does not say
    "r = 0 (local)": ("4 hospitals | local (LL)", "78.95 / 86.63"),
    "r = .1": ("ablation | r = .1", ""),
    "r = .3": ("ablation | r = .3", "80.88 / 87.62"),
    "r = .5 (CusFL)": ("4 hospitals | CusFL", "81.34 / 87.86"),
    "r = .7": ("ablation | r = .7", "78.96 / 87.68"),
    "MOON's contrast (table IX)": ("ablation | MOON's contrast (table IX)", "77.41 / 86.74"),
    "not frozen (table X)": ("ablation | not frozen (table X)", "80.50 / 87.33"),
    "no projection (figure 3)": ("ablation | no projection (figure 3)", ""),
    "f starts from the federated one each round (ours)": (
        "ablation | f starts from the federated one each round (ours)",
        "",
    ),
    "as printed: no norms in g, no cap": ("4 hospitals | CusFL, as printed", ""),
    "asleep: no norms in g, cap 1 (the old default)": ("ablation | asleep: no norms in g, cap 1 (the old default)", ""),
}
TUNED = {
    "local (LL)": "",
    "FedAvg (FL)": "55.5 / 65.9 → 56.1 / 66.3",
    "CusFL": "68.6 / 76.0 → 69.3 / 76.4",
}


def values(kept: Kept, name: str, key: str) -> list[float]:
    """Of all folds, in their order."""
    return [one[key] for _, one in sorted(kept.get(name, {}).items()) if key in one]


def percent(kept: Kept, name: str, key: str) -> str:
    """Mean and standard deviation over folds, as the paper writes them: 86.1 (1.0); of fewer than three folds each."""
    found = [100 * one for one in values(kept, name, key)]
    if len(found) < 3:
        return " · ".join(f"{one:.1f}" for one in found)
    return f"{np.mean(found):.1f} ({np.std(found, ddof=1):.1f})"


def plain(kept: Kept, name: str, key: str, digits: int = 3) -> str:
    """The same in plain numbers; a figure of each fold."""
    return " · ".join(f"{one:.{digits}f}" for one in values(kept, name, key))


def pair(kept: Kept, name: str, first: str, second: str) -> str:
    both = percent(kept, name, first), percent(kept, name, second)
    return " / ".join(both) if all(both) else "–"


def main_rows(kept: Kept, measure: str, counts: Sequence[int]) -> Iterator[list[str]]:
    """Ours and the paper's, line by line."""
    places = [COUNTS.index(n) for n in counts]

    def paper(line: str) -> list[str]:
        said = PAPER[measure][line].split("; ")
        return ["*paper*", *(f"*{said[k]}*" for k in places)]

    whole = pair(kept, "central", f"private {measure}", f"public {measure}")
    if "central" in kept:
        yield ["central (CL)", *[whole] * len(counts)]
        yield paper("central (CL)")
    for line in LINES:
        names = [f"{n} hospitals | {line}" for n in counts]
        if any(name in kept for name in names):
            yield [line, *(pair(kept, name, f"private {measure}", f"public {measure}") for name in names)]
            if line in PAPER[measure]:
                yield paper(line)


def tables(kept: Kept) -> dict[str, object]:
    """All tables."""
    made: dict[str, object] = {}

    def table(key: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        rows = [row for row in rows if row[0] == "*paper*" or set(row[1:]) - {"", "–"}]
        if rows:
            made[key] = make_table(columns, rows)

    counts = [n for n in COUNTS if any(f"{n} hospitals | {line}" in kept for line in LINES)]
    heads = [f"{n} hospitals" for n in counts]
    for measure, number in (("AUC", "VIII"), ("ACC", "VII")):
        table(
            measure.lower(),
            [f"table {number}: {measure}, %, private / public", *heads],
            [*main_rows(kept, measure, counts)],
        )
    judged = [
        [line, *(pair(kept, f"{n} hospitals | {line}", "judged AUC", "judged ACC") for n in counts)]
        for line in LINES
        if any(f"{n} hospitals | {line}" in kept for n in counts)
    ]
    table("judged", ["AUC / ACC at home, %, rosendahl and vidir_modern alone", *heads], judged)
    table(
        "ablation",
        [
            "4 hospitals",
            "ACC / AUC, private",
            "AUC, judged",
            "AUC, public",
            "loss, private",
            "share of the guidance",
            "mean \\|cosine\\|",
            "paper, ACC / AUC",
        ],
        [
            [
                line,
                pair(kept, name, "private ACC", "private AUC"),
                percent(kept, name, "judged AUC"),
                percent(kept, name, "public AUC"),
                plain(kept, name, "loss"),
                plain(kept, name, "share"),
                plain(kept, name, "between"),
                said,
            ]
            for line, (name, said) in ABLATED.items()
            if name in kept
        ],
    )
    after = ["16 hospitals, ACC / AUC, private", "after training", "fine-tuned 6 epochs at home", "paper, 64 hospitals"]
    names = {line: (f"fine-tuned before | {line}", f"fine-tuned after | {line}") for line in TUNED}
    table(
        "tuned",
        after,
        [
            [line, *(pair(kept, one, "private ACC", "private AUC") for one in names[line]), TUNED[line]]
            for line in TUNED
            if names[line][1] in kept
        ],
    )
    few = ("local (LL)", "FedAvg (FL)", "CusFL")
    grown = {"2": "growing 2", "4": "growing 4", "8": "growing 8", "16": "16 hospitals"}
    table(
        "growing",
        ["AUC / ACC, public, of 16 parts", *(f"{n} take part" for n in grown)],
        [
            [line, *(pair(kept, f"{name} | {line}", "public AUC", "public ACC") for name in grown.values())]
            for line in few
            if f"growing 2 | {line}" in kept
        ],
    )
    spaces = {"as they are": "4 hospitals", "prior's colours": "colour"}
    table(
        "colour",
        ["4 hospitals, AUC, private / public", *spaces],
        [
            [line, *(pair(kept, f"{name} | {line}", "private AUC", "public AUC") for name in spaces.values())]
            for line in few
            if f"colour | {line}" in kept
        ],
    )
    table("own-r", OWN, [*own_rows(kept)])
    table(
        "statistics",
        ["batch norms, 4 hospitals, AUC private / public", "averaged statistics", "untracked: those of each batch"],
        [
            [
                line,
                *(
                    pair(kept, f"statistics | {line}, {how}", "private AUC", "public AUC")
                    for how in ("averaged", "of each batch")
                ),
            ]
            for line in ("FedAvg", "FedAdam")
        ],
    )
    return made


OWN = ["CusFL's r", "aggregated validation loss", "AUC, private", "AUC, judged", "loss, private", "chosen"]


def own_rows(kept: Kept) -> Iterator[list[str]]:
    """Each r for all, the one that validation chooses, and each hospital's own."""

    def row(line: str, name: str, chosen: str) -> list[str]:
        cells = [percent(kept, name, "private AUC"), percent(kept, name, "judged AUC"), plain(kept, name, "loss")]
        return [line, plain(kept, name, "validation", 4), *cells, chosen]

    last = "own r | each hospital's own"
    if last not in kept:
        return
    for r in (0, 0.1, 0.3, 0.5, 0.7):
        folds = [fold for fold, one in kept.get(last, {}).items() if one["common"] == r]
        yield row(f"{r:g} for all", f"own r | r = {r:g}", f"folds {', '.join(folds)}" if folds else "")
    yield row(
        "each its own", last, "; ".join(f"fold {fold}: {_spoken(one)}" for fold, one in kept.get(last, {}).items())
    )


def _spoken(one: Mapping[str, float]) -> str:
    return ", ".join(
        f"{key.removeprefix('r of ').removesuffix('-1')} {r:g}" for key, r in one.items() if key.startswith("r of")
    )
