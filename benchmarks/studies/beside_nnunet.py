"""Planned runs beside nnU-Net v2 itself: the prostate gland of phantom hospitals in 3-D, on the same patients.

    python -m benchmarks.studies.beside_nnunet --nnunet /where/nnunet/bin/python [--seeds 0 1 2]

Every figure is kept in benchmarks/measured/beside_nnunet.json; `python -m benchmarks.tables.derived --write planned`
writes the table.

Three hospitals with scanners D, E and L, 24 patients each, of whom 10 are trained on, 2 are left out and 12 are tested
on; a seed draws other patients. `consilium plan --small` plans our runs (8 filters in the first stage; nnU-Net gets as
many), and nnU-Net plans for itself. Each line takes `EPOCHS` times `ITERATIONS` steps of the planned batch, each
hospital as many in a federation as alone, and pooled lines as many as one hospital. nnU-Net sees as many patches, in
batches of its own plan. nnU-Net augments as it does by default, and so does the planned work, as far as it has the same
transforms. Dice of each test patient by masks on the patient's own grid, as `predict` and nnU-Net write them. Nothing
was chosen on these figures: settings are the plan's, and the budget was set by the time of a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured

NAME = "beside_nnunet"
SCANNERS, PATIENTS, SPLIT = "DEL", 24, {"train": 0.42, "validation": 0.08, "test": 0.5}
EPOCHS, ITERATIONS, FILTERS = 12, 25, 8
METHODS = {"local": "each hospital alone", "fedavg": "FedAvg", "fenda": "FENDA"}
ALONE, POOLED, TOGETHER = "nnU-Net, each hospital alone", "nnU-Net, pooled", "planned, pooled"
COMMAND = "python -m benchmarks.studies.beside_nnunet --nnunet …"


def write_settings(folder: Path, seed: int) -> None:
    """The run before it is planned."""
    phantom = {"kind": "phantom", "patients": PATIENTS, "slices": 8, "format": "nifti"}
    sites = {
        scanner.lower(): {
            "source": {**phantom, "scanner": scanner, "seed": 700 + 10 * seed + number},
        }
        for number, scanner in enumerate(SCANNERS)
    }
    settings = {
        "name": NAME,
        "privacy": "none",
        "seed": seed,
        "threads": 1,
        "task": {"kind": "segmentation", "target": "gland"},
        "sites": sites,
        "images": {"kind": "volumes", "values": "standardized", "centre": "image"},
        "split": SPLIT,
        "model": {"name": "unet", "width": 8, "levels": 2},
        "train": {"schedule": {"rounds": EPOCHS}, "work": {}, "methods": {name: {"name": name} for name in METHODS}},
        "evaluate": {"checkpoint": "latest", "copies": 20, "public": False, "reference": "local"},
        "audit": {"membership": False},
    }
    (folder / "asked.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def call(folder: Path, *words: str) -> None:
    """Run a command in a folder. Raises: RuntimeError: it fails, with its last lines."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words], cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:4])} ended with {done.returncode}: {done.stderr[-2000:]}")


def list_patients(home: Path) -> dict[str, list[Path]]:
    """Split -> images of its patients."""
    names = json.loads((home / "linkage.json").read_text())["patients"]
    (cut,) = home.glob("cohorts/*/split.json")
    images = {path.name.split(".")[0]: path for path in home.glob("phantom/*/images/*.nii.gz")}
    parts = json.loads(cut.read_text())
    return {part: sorted(images[names[code]] for code in parts[part]) for part in SPLIT}


def mask_of(image: Path) -> Path:
    """The true mask of a phantom's image."""
    return image.parents[1] / "masks" / "gland" / image.name


def dice_of(predicted: Path, true: Path) -> float:
    """Dice of two masks on one grid."""
    import nibabel

    left, right = (np.asarray(nibabel.load(path).dataobj) > 0 for path in (predicted, true))
    return float(2 * (left & right).sum() / (left.sum() + right.sum()))


def write_pooled(folder: Path, patients: Mapping[str, Mapping[str, list[Path]]]) -> None:
    """The planned run with one hospital that has everybody; who is tested is named."""
    tested = list[str]()
    for part in ("images", "masks"):
        (folder / "together" / part).mkdir(parents=True)
    for site, parts in patients.items():
        for split, images in parts.items():
            for image in images:
                name = f"{site}{image.name}"
                shutil.copy(image, folder / "together" / "images" / name)
                shutil.copy(mask_of(image), folder / "together" / "masks" / name)
                tested += [name.split(".")[0]] if split == "test" else []
    settings = yaml.safe_load((folder / "planned.yaml").read_text())
    site = {
        "source": {"kind": "nifti", "folder": "together/images"},
        "gland": {"folder": "together/masks", "pattern": "{patient}.nii.gz"},
        "test": tested,
    }
    settings |= {"name": "together", "sites": {"all": site}, "split": {"train": 0.83, "validation": 0.17, "test": 0.0}}
    settings["train"]["methods"] = {"local": {"name": "local"}}
    (folder / "together.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def measure_ours(folder: Path, seed: int) -> dict[str, dict[str, float]]:
    """Plan, run and predict. Returns: line -> hospital -> Dice."""
    write_settings(folder, seed)
    effort = ("--small", "--rounds", str(EPOCHS), "--steps", str(ITERATIONS))
    call(folder, sys.executable, "-m", "pipelines.plan", "asked.yaml", "-o", "planned.yaml", *effort)
    call(folder, sys.executable, "-m", "pipelines.run", "planned.yaml")
    homes = sorted((folder / "runs" / NAME / "sites").iterdir())
    write_pooled(folder, {home.name: list_patients(home) for home in homes})
    call(folder, sys.executable, "-m", "pipelines.run", "together.yaml")
    pooled = folder / "runs/together/sites/all/ready/local.safetensors"
    lines: dict[str, dict[str, float]] = {}
    for home in homes:
        tested, inputs = list_patients(home)["test"], folder / "test" / home.name
        inputs.mkdir(parents=True)
        for image in tested:
            shutil.copy(image, inputs)
        own = {f"planned, {label}": home / "ready" / f"{method}.safetensors" for method, label in METHODS.items()}
        for place, (line, model) in enumerate({**own, TOGETHER: pooled}.items()):
            out = folder / "predicted" / home.name / str(place)
            call(folder, sys.executable, "-m", "pipelines.predict", str(model), str(inputs), "--out", str(out))
            masks = [next((out / "masks").rglob(f"{image.name.split('.')[0]}*")) for image in tested]
            values = [dice_of(mask, mask_of(image)) for mask, image in zip(masks, tested, strict=True)]
            lines.setdefault(line, {})[home.name] = float(np.mean(values))
    return lines


def measure_nnunet(folder: Path, seed: int, python: str) -> dict[str, dict[str, float]]:
    """nnU-Net on each hospital's training patients, and on all. Returns: line -> hospital -> Dice."""
    patients = {home.name: list_patients(home) for home in sorted((folder / "runs" / NAME / "sites").iterdir())}
    patches = ITERATIONS * yaml.safe_load((folder / "planned.yaml").read_text())["train"]["work"]["batch"]
    tested: dict[Path, tuple[str, Path]] = {}
    (folder / "named").mkdir()
    for site, parts in patients.items():
        for image in parts["test"]:  # two hospitals may name patients alike, so the name tells the hospital too
            tested[Path(shutil.copy(image, folder / "named" / f"{site}-{image.name}"))] = (site, image)
    lines: dict[str, dict[str, float]] = {ALONE: {}, POOLED: {}}
    for job, sites in {**{site: [site] for site in patients}, "pooled": [*patients]}.items():
        images = {path: whose for path, whose in tested.items() if whose[0] in sites}
        training = [(str(image), str(mask_of(image))) for site in sites for image in patients[site]["train"]]
        settings = {
            "folder": str(folder / "nnunet" / job),
            "channel": "ADC",
            "label": "gland",
            "training": training,
            "test": [str(path) for path in images],
            "masks": str(folder / "nnunet-masks" / job),
            "epochs": EPOCHS,
            "patches": patches,
            "filters": FILTERS,
            "seed": seed,
        }
        asked = folder / f"{job}.json"
        asked.write_text(json.dumps(settings))
        call(folder, python, str(ROOT / "benchmarks/studies/nnunet_training.py"), str(asked))
        for site in sites:
            dices = [
                dice_of(folder / "nnunet-masks" / job / path.name, mask_of(image))
                for path, (whose, image) in images.items()
                if whose == site
            ]
            lines[POOLED if job == "pooled" else ALONE][site] = float(np.mean(dices))
    return lines


def tables(kept: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, object]]:
    """Dice of each line by hospital, and differences on the same patients."""
    lines = [*next(iter(kept.values()))]
    means = {
        line: {seed: float(np.mean([*of_seed[line].values()])) for seed, of_seed in kept.items()} for line in lines
    }
    rows = []
    for line, by_seed in means.items():
        sites = [format_interval([of_seed[line][scanner.lower()] for of_seed in kept.values()]) for scanner in SCANNERS]
        bases = (means["planned, each hospital alone"], means[POOLED])
        changes = ["" if base is by_seed else format_change(by_seed, base) for base in bases]
        rows.append([line, *sites, format_interval([*by_seed.values()]), *changes])
    columns = ["line", *SCANNERS, "mean Dice", "more than planned, alone", "more than nnU-Net, pooled"]
    return {"beside-nnunet": make_table(columns, rows, COMMAND)}


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nnunet", required=True, help="python of an environment with nnunetv2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    for seed in options.seeds:
        if str(seed) in read_measured(NAME):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = {**measure_ours(folder, seed), **measure_nnunet(folder, seed, options.nnunet)}
        write_measured(NAME, {**read_measured(NAME), str(seed): lines}, sort=True)
        print(seed, {line: round(float(np.mean([*dices.values()])), 4) for line, dices in lines.items()}, flush=True)


if __name__ == "__main__":
    main()
