"""Generative augmentation: with and without, beside floors that need no generator, on HAM10000 at 32 pixels.

    CONSILIUM_DATA=... python benchmarks/augmentation.py            # what is missing of all cells, then the tables
    CONSILIUM_DATA=... python benchmarks/augmentation.py --tried    # syntheses on split 100, which no table reports

Cases. `sources`: rosendahl and vidir_modern (with vienna_dias). `practical`: their lesions together, dealt over three
hospitals, of each class 80 % at one of them and 10 % at each other (FedSLD's and APPLE's partition), by partition
seed 0. Settings are those of skin_lesion_augmented.yaml (group-norm CNN of 98,434 parameters), but 12 rounds. A cell
is one method, one seed: plain; with synthetic pictures; and of local training and PGFed also with classes drawn
evenly, and with elastic deformations. The seed draws split, start and synthesis. Every cell is written into
augmentation.json at once, and is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
BASE = HERE.parent / "pipelines/configs/skin_lesion_augmented.yaml"
CELLS = HERE / "augmentation.json"
TABLE = HERE.parent / "docs/results/data/augmentation.json"
METHODS = ("local", "pgfed", "fedavg", "apple")
CASES = ("sources", "practical")
SEEDS = (0, 1, 2)
TRIED_ON, ROUNDS = 100, 12
LINES: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "aug": {},
    "even": {"balance": True},
    "elastic": {"augment": "elastic"},
}
TRIED: Mapping[str, Mapping[str, object]] = {
    "prior as it is": {"name": "public", "prior": "skin_lesion"},
    "fitted prior": {"name": "fitted_prior", "prior": "skin_lesion", "epsilon": None},
    "evolution": {"name": "private_evolution", "prior": "skin_lesion", "epsilon": None},
    "evolution, 600 candidates, 12 rounds": {
        "name": "private_evolution", "prior": "skin_lesion", "epsilon": None, "candidates": 600, "rounds": 12,
    },
    "WGAN-GP, 600 steps": {"name": "wgan_gp", "prior": "skin_lesion", "epsilon": None, "steps": 600},
}  # fmt: skip


def configured(case: str, seed: int, method: str, synthesis: Mapping[str, object]) -> dict[str, Any]:
    """The settings of one cell."""
    said: dict[str, Any] = yaml.safe_load(BASE.read_text())
    said |= {"name": f"augmentation-{case}-{seed}", "seed": seed, "audit": {"membership": False, "canaries": 0}}
    if case == "practical":
        place = said["sites"]["rosendahl"]
        place["source"]["where"] = {"site": ["rosendahl", "vidir_modern", "vienna_dias"]}
        said["sites"] = {"part": {**place, "part": {"kind": "practical", "of": 3, "seed": 0}}}
    floors = ("even", "elastic") if method in METHODS[:2] else ()
    labels = {name: f"{method}_{name}" for name in ("plain", "aug", *floors)}
    said["train"] |= {
        "methods": {label: {"name": method} for label in labels.values()},
        "method_images": {labels["aug"]: "augmented"},
        "method_work": {labels[name]: dict(LINES[name]) for name in floors},
        "schedule": {"rounds": ROUNDS},
    }
    said["augment"]["synthesis"] = dict(synthesis)
    return said | {"evaluate": {"checkpoint": "global", "copies": 20, "public": False, "reference": None}}


def measured(said: Mapping[str, Any], folder: Path, *, until: str | None = None) -> dict[str, Any]:
    """Run, and read the figures: AUC by line and hospital, and what the hospitals say of their synthetic images."""
    from pipelines.run import main
    from pipelines.runs.store import read_manifest

    path = folder / f"{said['name']}.yaml"
    path.write_text(yaml.safe_dump(dict(said)))
    begun = time.process_time()
    where = Path.cwd()
    os.chdir(folder)
    try:
        code = main([str(path), *([] if until is None else ["--until", until])])
    finally:
        os.chdir(where)
    if code:
        raise SystemExit(f"{said['name']} ended with {code}")
    newest = max((folder / "runs" / said["name"] / "augment").iterdir(), key=lambda one: one.stat().st_mtime)
    found: dict[str, Any] = {"sites": read_manifest(newest)["summary"]["sites"], "seconds": time.process_time() - begun}
    if until is not None:
        return found
    report = max((folder / "runs" / said["name"] / "report").iterdir(), key=lambda one: one.stat().st_mtime)
    rows = [r for r in json.loads((report / "scores.json").read_text()) if r["protocol"] == "private"]
    for measure in ("AUC", "balanced accuracy"):
        found[measure] = {}
        for row in rows:
            if row["measure"] == measure and "_" in row["method"]:
                line = row["method"].rpartition("_")[2]
                found[measure].setdefault(line, {})[row["sites"][0]] = row["value"]
    found["assessable"] = {row["sites"][0]: row["assessable"] for row in rows if row["measure"] == "AUC"}
    return found


def chosen() -> Mapping[str, object]:
    """The synthesis nearest to held-back pictures on the split that no table reports, among those that do not copy."""
    cells = known()
    found: dict[str, float] = {}
    for name in TRIED:
        sites = list(cells[f"tried/{name}"]["sites"].values())
        if all(one["state"] == "augmented" for one in sites):
            found[name] = statistics.mean(one["distance"] for one in sites)
    return TRIED[min(found, key=lambda name: found[name])]


def known() -> dict[str, Any]:
    """The cells that were measured."""
    return json.loads(CELLS.read_text()) if CELLS.exists() else {}


def kept(name: str, value: object) -> None:
    """Write one cell."""
    CELLS.write_text(json.dumps({**known(), name: value}, indent=1, sort_keys=True) + "\n")


def missing() -> Iterator[tuple[str, int, str]]:
    """Cells that are not measured yet: local and PGFed first, because the paper's claim is about those."""
    cells = [
        (case, seed, method)
        for pair in (METHODS[:2], METHODS[2:])
        for seed in SEEDS
        for case in CASES
        for method in pair
    ]
    yield from (cell for cell in cells if "/".join(map(str, cell)) not in known())


def copies() -> list[list[str]]:
    """What the check of copies sees of training pictures that were altered; rosendahl, lesions of split 100."""
    import csv

    import numpy as np
    import torch
    from PIL import Image

    from harmonize.balancing import near_copies
    from harmonize.elastic import deformed

    root = Path(os.environ["CONSILIUM_DATA"]) / "ham10000"
    with (root / "labels.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["site"] == "rosendahl"]
    names = sorted({line["patient"] for line in lines})
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(TRIED_ON))
    lesions = [names[place] for place in order]
    cuts = [0, int(0.6 * len(lesions)), int(0.7 * len(lesions)), len(lesions)]

    def read(first: int, last: int) -> torch.Tensor:
        chosen = {*lesions[first:last]}
        files = [root / line["image"] for line in lines if line["patient"] in chosen]
        small = [np.asarray(Image.open(one).convert("RGB").resize((32, 32), Image.Resampling.BOX)) for one in files]
        return torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).float() / 127.5 - 1

    train, held, other = (read(*pair) for pair in pairwise(cuts))
    some, random_ = train[:200], torch.Generator().manual_seed(0)
    noise = torch.randn(some.shape, generator=random_)
    altered = {
        "other lesions' pictures": other,
        "copies": some,
        "with noise of 0.05": (some + 0.05 * noise).clamp(-1, 1),
        "with noise of 0.1": (some + 0.1 * noise).clamp(-1, 1),
        "with noise of 0.2": (some + 0.2 * noise).clamp(-1, 1),
        "mirrored": some.flip(3),
        "bent (elastic)": deformed(some, 2, seed=0)[1::2],
        "blurred (3 × 3)": torch.nn.functional.avg_pool2d(some, 3, 1, 1),
        "means of two": (some + some[torch.randperm(200, generator=random_)]) / 2,
    }
    return [[name, f"{100 * near_copies(one, train, held):.1f} %"] for name, one in altered.items()]


def points(cells: Mapping[str, Any], case: str, method: str, line: str, *, over: str | None) -> list[float]:
    """By seed the mean AUC over hospitals in points; with `over` the mean of each hospital's gain over that line."""
    found = []
    for seed in SEEDS:
        cell = cells.get(f"{case}/{seed}/{method}")
        if cell is None or line not in cell["AUC"]:
            continue
        auc = cell["AUC"]
        found.append(
            statistics.mean(100 * (v - (0 if over is None else auc[over][site])) for site, v in auc[line].items())
        )
    return found


def shown(values: list[float], *, signed: bool = False) -> str:
    """Mean and standard deviation over seeds."""
    if not values:
        return "–"
    mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else float("nan")
    return f"{mean:+.2f} ± {spread:.2f}".replace("-", "−") if signed else f"{mean:.2f} ± {spread:.2f}"


PAPER = {
    "local": ("+0.47", "+0.64"),
    "fedavg": ("+1.42", "−0.28"),
    "apple": ("−1.61", "+0.49"),
    "pgfed": ("+1.09", "+1.01"),
}
"""Mean AUC with synthesized data minus without, of the slides' two settings."""
NAMES = {"local": "local", "fedavg": "FedAvg", "apple": "APPLE", "pgfed": "PGFed"}


def gains(cells: Mapping[str, Any], case: str) -> list[list[str]]:
    """A row a method: its AUC, and what each of the three adds to it, beside the paper's."""
    rows = []
    for method in ("local", "fedavg", "apple", "pgfed"):
        own = [
            shown(points(cells, case, method, line, over="plain"), signed=True) for line in ("aug", "even", "elastic")
        ]
        rows.append(
            [NAMES[method], shown(points(cells, case, method, "plain", over=None)), *own, " and ".join(PAPER[method])]
        )
    return rows


def distances(cells: Mapping[str, Any]) -> list[list[str]]:
    """A row a hospital: synthetic pictures, their distance, that of real ones, near copies; mean over seeds."""
    rows = []
    for case in CASES:
        held = [cells[f"{case}/{seed}/local"]["sites"] for seed in SEEDS if f"{case}/{seed}/local" in cells]
        for site in sorted({name for one in held for name in one}):
            own = [one[site] for one in held]
            of = [one for one in own if one.get("distance") is not None]
            made = " ".join(str(one["made"]) if one["state"] == "augmented" else f"N/A ({one['state']})" for one in own)
            near = [one["near_copies"] for one in own if one.get("near_copies") is not None]
            rows.append([
                case, site, made,
                f"{statistics.mean(o['distance'] for o in of):.3g}" if of else "N/A",
                f"{statistics.mean(o['distance_real'] for o in of):.3g}" if of else "N/A",
                f"{100 * statistics.mean(near):.1f} %" if near else "N/A",
            ])  # fmt: skip
    return rows


def tables(commit: str, date: str) -> None:
    """Write the tables of the page."""
    cells = known()
    command = "CONSILIUM_DATA=… python benchmarks/augmentation.py"
    about = {"command": command, "commit": commit, "date": date}
    columns = ["method", "AUC", "with synthetic", "classes drawn evenly", "elastic", "the slides, synthetic"]
    sites = ["case", "hospital", "synthetic pictures, by seed", "FD to held-back", "FD of real ones", "near copies"]
    made = {case: {**about, "columns": columns, "rows": gains(cells, case)} for case in CASES}
    made["distances"] = {**about, "columns": sites, "rows": distances(cells)}
    made["copies"] = {**about, "columns": ["200 pictures", "near copies"], "rows": copies()}
    if tried := [[name, *_tried(cells, name)] for name in TRIED if f"tried/{name}" in cells]:
        how = {**about, "command": f"{command} --tried"}
        made["tried"] = {
            **how,
            "columns": ["synthesis", "FD to held-back", "FD of real ones", "near copies"],
            "rows": tried,
        }
    TABLE.write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n")


def _tried(cells: Mapping[str, Any], name: str) -> list[str]:
    sites = [one for one in cells[f"tried/{name}"]["sites"].values() if one.get("distance") is not None]
    return [
        " / ".join(f"{one['distance']:.3g}" for one in sites),
        " / ".join(f"{one['distance_real']:.3g}" for one in sites),
        " / ".join(f"{100 * one['near_copies']:.1f} %" for one in sites),
    ]


def main() -> None:
    line = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    line.add_argument("--tried", action="store_true", help="compare syntheses on a split that no table reports")
    line.add_argument("--runs", type=Path, help="folder of the runs, kept so that hospitals are read once a seed")
    line.add_argument("--cells", type=int, default=10**6, help="stop after so many")
    line.add_argument("--commit", default="", help="write the tables, with this commit")
    line.add_argument("--date", default="")
    asked = line.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if asked.tried:
            for name, how in TRIED.items():
                if f"tried/{name}" not in known():
                    kept(
                        f"tried/{name}",
                        measured(configured("sources", TRIED_ON, "local", how), folder, until="augment"),
                    )
        elif not asked.commit:
            for number, (case, seed, method) in enumerate(missing()):
                if number < asked.cells:
                    kept(f"{case}/{seed}/{method}", measured(configured(case, seed, method, chosen()), folder))
    if asked.commit:
        tables(asked.commit, asked.date)


if __name__ == "__main__":
    main()
