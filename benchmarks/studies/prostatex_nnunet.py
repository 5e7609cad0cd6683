"""Two real patients through a planned network and nnU-Net v2, as a smoke test: from DICOM to masks, in both programs.

    CONSILIUM_DATA=... python -m benchmarks.studies.prostatex_nnunet --nnunet /where/nnunet/bin/python

One hospital has two ProstateX patients: ADC maps as DICOM, whole glands as NIfTI on the T2-weighted grid. One patient
is trained on and the other is tested. `consilium plan --small` plans, `consilium dataset` writes the hospital's cohort
in nnU-Net's form, and both programs train and predict: ours by its run and `predict`, from the files that it wrote,
nnU-Net on the same files by its own plan, with as many patches. Dice is on the grid of these files, which is that of
the ADC maps. One patient teaches no network what glands look like: the figures say whether both ways hold.

Figures are kept in benchmarks/measured/prostatex_nnunet.json; `python -m benchmarks.tables.derived --write planned`
writes the table. Twelve rounds of ten steps were tried first: no mask of either program met the gland.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from benchmarks.shared.options import make_parser
from benchmarks.shared.places import DATA, ROOT
from benchmarks.shared.records import make_table, write_measured
from benchmarks.studies.beside_nnunet import FILTERS, call, call_here, dice_of, read_mask

NAME = "prostatex_nnunet"
COMMAND = "python -m benchmarks.studies.prostatex_nnunet --nnunet …"
SITE, TARGET, ROUNDS, STEPS = "prostatex", "gland", 12, 25
AS_WRITTEN = ("--kind", "nifti", "--unit", "1e-6 mm2/s")
"""Of ADC maps that `dataset` wrote, for `predict`."""
PROGRAMS = ("planned", "nnU-Net")


def write_settings(folder: Path) -> None:
    """The run before it is planned."""
    labels = DATA / "prostatex" / "labels"
    gland = {
        "folder": str(labels / "whole_gland_Bosma22b"),
        "names": str(labels / "ProstateX-mapping.json"),
    }
    source = {"kind": "dicom", "folder": str(DATA / "prostatex" / "dicom"), "select": {"ImageType": "ADC"}}
    settings = {
        "name": NAME,
        "privacy": "none",
        "seed": 0,
        "threads": 1,
        "task": {"kind": "segmentation", "target": TARGET},
        "sites": {SITE: {"source": source, TARGET: gland}},
        "images": {"kind": "volumes", "values": "standardized", "centre": "image"},
        "split": {"folds": 2, "fold": 0, "validation": 0.0},
        "model": {"name": "unet", "width": 8, "levels": 2},
        "train": {"schedule": {"rounds": ROUNDS}, "work": {}, "methods": {"local": {"name": "local"}}},
        "evaluate": {"checkpoint": "latest", "copies": 20, "public": False, "reference": "local"},
        "audit": {"membership": False},
    }
    (folder / "asked.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def measure_patient(folder: Path, python: str) -> dict[str, dict[str, float]]:
    """Program -> Dice of the patient who is tested, and the voxels of the mask; `true` -> those of the true mask."""
    write_settings(folder)
    effort = ("--small", "--rounds", str(ROUNDS), "--steps", str(STEPS))
    call_here(folder, "plan", "asked.yaml", "-o", "planned.yaml", *effort)
    call_here(folder, "run", "planned.yaml")
    call_here(folder, "dataset", "planned.yaml", "--site", SITE, "--out", "raw")
    (image,), (true,) = ([*(folder / "raw" / part).iterdir()] for part in ("imagesTs", "labelsTs"))
    model = folder / "runs" / NAME / "sites" / SITE / "ready" / "local.safetensors"
    call_here(folder, "predict", str(model), str(folder / "raw/imagesTs"), "--out", "predicted", *AS_WRITTEN)
    planned = yaml.safe_load((folder / "planned.yaml").read_text())
    (trained,), (mask,) = ([*(folder / "raw" / part).iterdir()] for part in ("imagesTr", "labelsTr"))
    job = {
        "folder": str(folder / "nnunet"),
        "configuration": "3d_fullres",
        "channels": ("ADC",),
        "ending": ".nii.gz",
        "label": TARGET,
        "training": [[str(trained), str(mask)]],
        "test": [str(image)],
        "masks": str(folder / "nnunet-masks"),
        "epochs": ROUNDS,
        "patches": STEPS * planned["train"]["work"]["batch"],
        "filters": FILTERS,
        "mirror": planned["model"].get("mirror", True),
        "seed": 0,
    }
    (folder / "job.json").write_text(json.dumps(job))
    call(folder, python, str(ROOT / "benchmarks/studies/nnunet_training.py"), "job.json")
    (ours,) = (folder / "predicted" / "masks").rglob("*.nii.gz")
    masks = dict(zip(PROGRAMS, (ours, folder / "nnunet-masks" / image.name), strict=True))
    found = {name: {"dice": dice_of(path, true), "voxels": int(read_mask(path).sum())} for name, path in masks.items()}
    return {**found, "true": {"voxels": int(read_mask(true).sum())}}


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """Dice of each program, and how large its mask is."""
    true = int(kept["true"]["voxels"])
    rows = [[name, f"{kept[name]['dice']:.3f}", f"{int(kept[name]['voxels']):,}", f"{true:,}"] for name in PROGRAMS]
    return {"prostatex": make_table(["program", "Dice", "voxels of its mask", "of the true one"], rows, COMMAND)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--nnunet", required=True, help="python of an environment with nnunetv2")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = measure_patient(Path(name), options.nnunet)
    write_measured(NAME, figures, sort=True)
    print(figures, flush=True)


if __name__ == "__main__":
    main()
