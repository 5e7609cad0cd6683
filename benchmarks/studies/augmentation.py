"""Generative augmentation: with and without, beside floors that need no generator, on HAM10000 at 32 pixels.

    CONSILIUM_DATA=... python -m benchmarks.studies.augmentation  # what is missing of all cells, then the tables
    CONSILIUM_DATA=... python -m benchmarks.studies.augmentation --tried  # syntheses on split 100, in no table

Cases. `sources`: rosendahl and vidir_modern (with vienna_dias). `practical`: their lesions together, dealt over three
hospitals, of each class 80 % at one of them and 10 % at each other (FedSLD's and APPLE's partition), by partition
seed 0. Networks. `cnn`: group norm, widths 8 to 64, 25,026 parameters, 10 rounds, sources only. `features`: 90
components of 120 fixed features of colour and a hidden layer of 32, 20 rounds. Everything else is as in
skin_lesion_augmented.yaml. Each method is trained plain, with synthetic pictures, with classes drawn evenly, and, as
a network on pictures, with elastic deformations. The seed draws split, start and synthesis. A cell is one run; it is
written into augmentation.json at once, and is not run again.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured, write_tables

BASE = ROOT / "pipelines/configs/skin_lesion_augmented.yaml"
METHODS = ("local", "fedavg", "apple", "pgfed")
CASES = ("sources", "practical")
SEEDS = (0, 1, 2)
TRIED_ON = 100
MODELS: Mapping[str, Mapping[str, object]] = {
    "cnn": {"name": "cnn", "widths": [8, 16, 32, 64], "norm": "group"},
    "features": {
        "name": "features", "of": {"name": "colour"}, "public": "skin_lesion", "components": 90, "hidden": [32],
    },
}  # fmt: skip
ROUNDS = {"cnn": 10, "features": 20}
FLOORS: Mapping[str, Mapping[str, object]] = {"even": {"balance": True}, "elastic": {"augment": "elastic"}}
CELLS_IN_TURN: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    *(("features", case, seed, METHODS) for seed in SEEDS for case in CASES),
    *(("cnn", "sources", seed, (method,)) for method in ("local", "pgfed", "fedavg", "apple") for seed in SEEDS),
)
"""Network, case, seed, methods."""
TRIED: Mapping[str, Mapping[str, object]] = {
    "prior as it is": {"name": "public", "prior": "skin_lesion"},
    "fitted prior": {"name": "fitted_prior", "prior": "skin_lesion", "epsilon": None},
    "evolution": {"name": "private_evolution", "prior": "skin_lesion", "epsilon": None},
    "evolution, 600 candidates, 12 rounds": {
        "name": "private_evolution", "prior": "skin_lesion", "epsilon": None, "candidates": 600, "rounds": 12,
    },
    "WGAN-GP, 600 steps": {"name": "wgan_gp", "prior": "skin_lesion", "epsilon": None, "steps": 600},
}  # fmt: skip


def configured(
    model: str, case: str, seed: int, methods: Sequence[str], synthesis: Mapping[str, object]
) -> dict[str, Any]:
    """The settings of one cell."""
    said: dict[str, Any] = yaml.safe_load(BASE.read_text())
    said |= {"name": f"augmentation-{case}-{seed}", "seed": seed, "audit": {"membership": False, "canaries": 0}}
    if case == "practical":
        place = said["sites"]["rosendahl"]
        place["source"]["where"] = {"site": ["rosendahl", "vidir_modern", "vienna_dias"]}
        said["sites"] = {"part": {**place, "part": {"kind": "practical", "of": 3, "seed": 0}}}
    floors = FLOORS if model == "cnn" else {"even": FLOORS["even"]}
    said["model"] = dict(MODELS[model])
    said["train"] |= {
        "methods": {f"{method}_{line}": {"name": method} for method in methods for line in ("plain", "aug", *floors)},
        "method_images": {f"{method}_aug": "augmented" for method in methods},
        "method_work": {f"{method}_{line}": dict(how) for method in methods for line, how in floors.items()},
        "schedule": {"rounds": ROUNDS[model]},
    }
    if model == "features":
        said["train"]["work"] |= {"augment": "none"}
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
                found[measure].setdefault(row["method"], {})[row["sites"][0]] = row["value"]
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
    return read_measured("augmentation")


def kept(name: str, value: object) -> None:
    """Write one cell."""
    with FileLock(f"{tempfile.gettempdir()}/augmentation.lock"):
        write_measured("augmentation", {**known(), name: value}, sort=True)


def name_of(model: str, case: str, seed: int, methods: Sequence[str]) -> str:
    """The name of a cell."""
    return f"{model}/{case}/{seed}/{'+'.join(methods)}"


def missing() -> Iterator[tuple[str, str, int, tuple[str, ...]]]:
    """Cells that are not measured yet."""
    yield from (cell for cell in CELLS_IN_TURN if name_of(*cell) not in known())


def copies() -> list[list[str]]:
    """What the check of copies sees of training pictures that were altered; rosendahl, lesions of split 100."""
    import csv

    import numpy as np
    import torch
    from PIL import Image

    from harmonize.balancing import near_copies
    from harmonize.elastic import make_deformed_copies

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
        "bent (elastic)": make_deformed_copies(some, 2, seed=0)[1::2],
        "blurred (3 × 3)": torch.nn.functional.avg_pool2d(some, 3, 1, 1),
        "means of two": (some + some[torch.randperm(200, generator=random_)]) / 2,
    }
    return [[name, f"{100 * near_copies(one, train, held):.1f} %"] for name, one in altered.items()]


def points(cells: Mapping[str, Any], model: str, case: str, line: str, *, over: str | None) -> list[float]:
    """By seed the mean AUC over hospitals in points; with `over` the mean of each hospital's gain over that line."""
    found = []
    for seed in SEEDS:
        for name, cell in cells.items():
            auc = cell.get("AUC", {})
            if name.startswith(f"{model}/{case}/{seed}/") and line in auc:
                gains = [100 * (v - (0 if over is None else auc[over][site])) for site, v in auc[line].items()]
                found.append(statistics.mean(gains))
    return found


def shown(values: list[float], *, signed: bool = False) -> str:
    """Mean and standard deviation over seeds; of one seed alone the value."""
    if not values:
        return "–"
    mean = f"{statistics.mean(values):{'+' if signed else ''}.2f}".replace("-", "−")
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


PAPER = {
    "local": ("+0.47", "+0.64"),
    "fedavg": ("+1.42", "−0.28"),
    "apple": ("−1.61", "+0.49"),
    "pgfed": ("+1.09", "+1.01"),
}
"""Mean AUC with synthesized data minus without, of the slides' two settings."""
NAMES = {"local": "local", "fedavg": "FedAvg", "apple": "APPLE", "pgfed": "PGFed"}


def gains(cells: Mapping[str, Any], model: str, case: str) -> list[list[str]]:
    """A row a method: its AUC, and what each way adds to it, beside the slides' two settings."""
    rows = []
    for method in METHODS:
        plain = points(cells, model, case, f"{method}_plain", over=None)
        lines = [f"{method}_{line}" for line in ("aug", "even", *(("elastic",) if model == "cnn" else ()))]
        own = [shown(points(cells, model, case, line, over=f"{method}_plain"), signed=True) for line in lines]
        if plain:
            rows.append([NAMES[method], str(len(plain)), shown(plain), *own, " and ".join(PAPER[method])])
    return rows


def distances(cells: Mapping[str, Any]) -> list[list[str]]:
    """A row a hospital: synthetic pictures, their distance, that of real ones, near copies; mean over seeds."""
    rows = []
    for case in CASES:
        held = {seed: c["sites"] for seed in SEEDS for name, c in cells.items() if f"/{case}/{seed}/" in name}
        for site in sorted({name for one in held.values() for name in one}):
            own = [one[site] for one in held.values()]
            of = [one for one in own if one.get("distance") is not None]
            made = ", ".join(str(one["made"]) if one["state"] == "augmented" else "N/A" for one in own)
            near = [one["near_copies"] for one in own if one.get("near_copies") is not None]
            rows.append([
                case, site, made,
                f"{statistics.mean(o['distance'] for o in of):.2f}" if of else "N/A",
                f"{statistics.mean(o['distance_real'] for o in of):.2f}" if of else "N/A",
                f"{100 * statistics.mean(near):.1f} %" if near else "N/A",
            ])  # fmt: skip
    return rows


def tables(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of the page, but for the one that `--copies` measures."""
    columns = ["method", "seeds", "AUC", "with synthetic", "classes drawn evenly"]
    last = "the slides, synthetic"
    sites = ["case", "hospital", "synthetic pictures, by seed", "FD to held-back", "FD of real ones", "near copies"]
    made = {
        "cnn": make_table([*columns, "elastic", last], gains(cells, "cnn", "sources")),
        **{case: make_table([*columns, last], gains(cells, "features", case)) for case in CASES},
    }
    made = {key: table for key, table in made.items() if table["rows"]}
    made["distances"] = make_table(sites, distances(cells))
    if tried := [[name, *_tried(cells, name)] for name in TRIED if f"tried/{name}" in cells]:
        made["tried"] = make_table(["synthesis", "FD to held-back", "FD of real ones", "near copies"], tried)
    return made


def _tried(cells: Mapping[str, Any], name: str) -> list[str]:
    sites = [one for one in cells[f"tried/{name}"]["sites"].values() if one.get("distance") is not None]
    return [
        " / ".join(f"{one['distance']:.3g}" for one in sites),
        " / ".join(f"{one['distance_real']:.3g}" for one in sites),
        " / ".join(f"{100 * one['near_copies']:.1f} %" for one in sites),
    ]


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--tried", action="store_true", help="compare syntheses on a split that no table reports")
    line.add_argument("--copies", action="store_true", help="measure and write the table of near copies alone")
    line.add_argument("--runs", type=Path, help="folder of the runs, kept so that hospitals are read once a seed")
    line.add_argument("--cells", type=int, default=10**6, help="stop after so many")
    line.add_argument("--only", default="", help="cells whose names begin so")
    asked = line.parse_args()
    if asked.copies:
        return write_tables("augmentation", {"copies": make_table(["200 pictures", "near copies"], copies())})
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if asked.tried:
            for name, how in TRIED.items():
                if f"tried/{name}" not in known():
                    said = configured("cnn", "sources", TRIED_ON, ("local",), how)
                    kept(f"tried/{name}", measured(said, folder, until="augment"))
            return None
        for number, cell in enumerate([one for one in missing() if name_of(*one).startswith(asked.only)]):
            if number < asked.cells:
                kept(name_of(*cell), measured(configured(*cell, chosen()), folder))
    return None


if __name__ == "__main__":
    main()
