"""Plans of hospitals' own against one plan for all: the prostate gland of phantom hospitals with unlike grids, in 3-D.

    python -m benchmarks.studies.own_plans [--seeds 0 1 2]

Every figure is kept in benchmarks/measured/own_plans.json; `python -m benchmarks.tables.derived --write planned`
writes the tables.

Three phantom hospitals with scanners D, E and L. `thin` has 10 slices 3.6 mm apart of 1.5 mm pixels, `thick` means of
two slices, and `coarse` means of four pixels. Each has four training patients, and white noise as strong as the
image's own deviation, so that there may be something to win from others. Twelve others are tested; a seed draws other
patients. The lines take the same patients and as many steps: `EPOCHS` times `ITERATIONS` at each hospital, by
`consilium plan --small` for all, or with `--each`, each with the batch of its plan. Dice of each test patient by masks
on the patient's own grid, as `predict` writes them; the last round's models. Settings were written down before the
first figure, the budget by the time of a processor, and no others were tried.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
import yaml

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.studies.beside_nnunet import call, dice_of
from pipelines.phantom.files import render
from pipelines.phantom.patients import PhantomSource
from pipelines.predict import main as predict

NAME = "own_plans"
COMMAND = "python -m benchmarks.studies.own_plans"
GRIDS = {"thin": ("D", (1, 1, 1)), "thick": ("E", (1, 1, 2)), "coarse": ("L", (2, 2, 1))}
"""Hospital -> scanner, and of how many pixels and slices the mean is one voxel."""
TRAINED, NOISE = 4, 1.0
"""Patients of each hospital, and deviations of the image."""
TESTED, SLICES, EPOCHS, ITERATIONS = 12, 10, 8, 25
OWN = {"local": "own plans, alone", "asymmetric": "own plans, asymmetric"}
COMMON = {"local": "one plan, alone", "fedavg": "one plan, FedAvg"}
LINES = (*OWN.values(), *COMMON.values())
BASES = ("own plans, alone", "one plan, alone", "one plan, FedAvg")


def write_hospital(folder: Path, site: str, seed: int) -> list[str]:
    """Write a hospital's images and masks. Returns: names of patients, those to train on first."""
    scanner, factors = GRIDS[site]
    number = [*GRIDS].index(site)
    source = PhantomSource(
        kind="phantom", scanner=scanner, patients=TRAINED + TESTED, slices=SLICES, seed=800 + 10 * seed + number
    )
    generator = np.random.default_rng([seed, number])
    for part in ("images", "masks"):
        (folder / site / part).mkdir(parents=True)
    for patient in range(TRAINED + TESTED):
        seen = render(source, patient)
        image, mask = (average_blocks(each.values.astype(np.float64), factors) for each in (seen.image, seen.gland))
        image = image + NOISE * image.std() * generator.standard_normal(image.shape)
        affine = scale_affine(seen.image.affine, factors)
        for part, values in (("images", image.astype(np.float32)), ("masks", (mask >= 0.5).astype(np.uint8))):
            nibabel.save(nibabel.Nifti1Image(values, affine), folder / site / part / f"p{patient:02d}.nii.gz")
    return [f"p{patient:02d}" for patient in range(TRAINED + TESTED)]


def average_blocks(values: np.ndarray, factors: tuple[int, int, int]) -> np.ndarray:
    """The mean of each block of so many voxels along each axis, which must divide."""
    for axis, factor in enumerate(factors):
        shape = (*values.shape[:axis], values.shape[axis] // factor, factor, *values.shape[axis + 1 :])
        values = values.reshape(shape).mean(axis=axis + 1)
    return values


def scale_affine(affine: np.ndarray, factors: tuple[int, int, int]) -> np.ndarray:
    """The affine of blocks of so many voxels: the first block's centre is the centre of its voxels."""
    scaled = affine.copy()
    scaled[:3, :3] = affine[:3, :3] * factors
    scaled[:3, 3] = affine[:3, 3] + affine[:3, :3] @ ((np.array(factors) - 1) / 2)
    return scaled


def write_settings(folder: Path, name: str, patients: Mapping[str, list[str]], methods: list[str], seed: int) -> None:
    """The run before it is planned."""
    sites = {
        site: {
            "source": {"kind": "nifti", "folder": f"{site}/images"},
            "gland": {"folder": f"{site}/masks", "pattern": "{patient}.nii.gz"},
            "test": names[-TESTED:],
        }
        for site, names in patients.items()
    }
    settings = {
        "name": name,
        "privacy": "none",
        "seed": seed,
        "threads": 1,
        "task": {"kind": "segmentation", "target": "gland"},
        "sites": sites,
        "images": {"kind": "volumes", "values": "standardized", "centre": "image"},
        "split": {"train": 1.0, "validation": 0.0, "test": 0.0},
        "model": {"name": "unet", "width": 8, "levels": 2},
        "train": {"schedule": {"rounds": EPOCHS}, "work": {}, "methods": {name: {"name": name} for name in methods}},
        "evaluate": {"checkpoint": "latest", "copies": 0, "public": False, "reference": "local"},
        "audit": {"membership": False},
    }
    (folder / f"{name}.asked.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def measure(folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """Plan, run and predict. Returns: line -> hospital -> mean Dice."""
    patients = {site: write_hospital(folder, site, seed) for site in GRIDS}
    effort = ("--small", "--rounds", str(EPOCHS), "--steps", str(ITERATIONS))
    for site, names in patients.items():
        (folder / site / "test").mkdir()
        for name in names[-TESTED:]:
            (folder / site / "test" / f"{name}.nii.gz").hardlink_to(folder / site / "images" / f"{name}.nii.gz")
    lines: dict[str, dict[str, float]] = {}
    for run, labels, options in (("own", OWN, ("--each",)), ("common", COMMON, ())):
        write_settings(folder, run, patients, [*labels], seed)
        call(
            folder, sys.executable, "-m", "pipelines.plan", f"{run}.asked.yaml", "-o", f"{run}.yaml", *effort, *options
        )
        call(folder, sys.executable, "-m", "pipelines.run", f"{run}.yaml")
        for site, names in patients.items():
            for method, line in labels.items():
                model = folder / f"runs/{run}/sites/{site}/ready/{method}.safetensors"
                out = folder / f"predicted/{run}-{site}-{method}"
                if predict([str(model), str(folder / site / "test"), "--out", str(out)]):
                    raise RuntimeError(f"{model} gave no masks")
                dices = [
                    dice_of(next((out / "masks").rglob(f"{name}*")), folder / site / "masks" / f"{name}.nii.gz")
                    for name in names[-TESTED:]
                ]
                lines.setdefault(line, {})[site] = float(np.mean(dices))
    return lines


def describe_plans(folder: Path) -> dict[str, dict[str, object]]:
    """The plans that were run, by hospital, and how much of each network all have in common."""
    from pipelines.settings.load import load_config

    own, common = (load_config(str(folder / f"{run}.yaml")) for run in ("own", "common"))
    described = {}
    for site in GRIDS:
        task = own.task_of("asymmetric", site)
        sizes = {name: value.numel() for name, value in task.network().state_dict().items()}
        described[site] = {
            "spacing": [own.images_of(site).depth_mm, own.images_of(site).spacing_mm],
            "patch": [*task.patch],
            "stages": len(task.model.filters),
            "batch": own.work("asymmetric", site).batch,
            "shared": sum(sizes[name] for name in task.shared) / sum(sizes.values()),
        }
    task, images = common.task_of("fedavg"), common.images
    one = {"patch": [*task.patch], "stages": len(task.model.filters), "batch": common.train.work.batch}
    return {**described, "one plan": {"spacing": [images.depth_mm, images.spacing_mm], **one, "shared": 1.0}}


def tables(kept: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """Dice of each line by hospital, and differences on the same patients; and the plans."""
    book: Mapping[str, Mapping[str, Mapping[str, float]]] = kept["dice"]
    means = {
        line: {seed: float(np.mean([*of_seed[line].values()])) for seed, of_seed in book.items()} for line in LINES
    }
    rows = []
    for line, by_seed in means.items():
        sites = [format_interval([of_seed[line][site] for of_seed in book.values()]) for site in GRIDS]
        changes = ["" if base == line else format_change(by_seed, means[base]) for base in BASES]
        rows.append([line, *sites, format_interval([*by_seed.values()]), *changes])
    columns = ["line", *GRIDS, "mean Dice", *(f"more than {base}" for base in BASES)]
    made = {"own-plans-dice": make_table(columns, rows, COMMAND)}
    rows = [
        [
            whose,
            " × ".join(f"{length:.3g}" for length in plan["spacing"]),
            " × ".join(map(str, plan["patch"])),
            str(plan["stages"]),
            str(plan["batch"]),
            f"{plan['shared']:.0%}",
        ]
        for whose, plan in kept["plans"].items()
    ]
    columns = ["whose", "slices and pixels, mm", "patch", "stages", "batch", "numbers of its network that all share"]
    return {**made, "own-plans": make_table(columns, rows, COMMAND)}


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    for seed in options.seeds:
        kept = read_measured(NAME)
        if str(seed) in kept.get("dice", {}):
            continue
        with tempfile.TemporaryDirectory() as name:
            lines = measure(Path(name), seed)
            plans = kept.get("plans") or describe_plans(Path(name))
        write_measured(NAME, {"plans": plans, "dice": {**kept.get("dice", {}), str(seed): lines}})
        print(seed, {line: round(float(np.mean([*dices.values()])), 4) for line, dices in lines.items()}, flush=True)


if __name__ == "__main__":
    main()
