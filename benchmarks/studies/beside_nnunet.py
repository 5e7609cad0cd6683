"""Planned runs beside nnU-Net v2 itself, on the same patients: the prostate gland and its lesions of phantom hospitals
in 3-D, and the optic disc and cup in pictures.

    CONSILIUM_DATA=... python -m benchmarks.studies.beside_nnunet --nnunet /where/nnunet/bin/python \
        [--only glands lesions discs cups] [--seeds 0 1 2] [--again]

Every figure is kept in benchmarks/measured/beside_nnunet.json, draw by draw, so that a call goes on where an earlier
one stopped. With `--again` planned lines are measured anew, beside nnU-Net's as they are kept: on the same patients and
with as many patches it gives the same masks, so the steps must fit the batch of the plan. `python -m
benchmarks.tables.derived --write planned` writes the tables.

A seed draws patients; of pictures, which are few, draws share most, so that an interval over draws is of how they are
dealt out and of training. Pictures get other pseudonyms in each run, and so another order in training: the figures of a
draw do not repeat to the last digit. `consilium plan --small` plans our runs (8 filters in the first stage; nnU-Net
gets as many), and nnU-Net plans for itself. Each line takes `rounds` times `steps` steps of the planned batch, each
hospital as many in a federation as alone, and pooled lines as many as one hospital. A planned pooled line draws its
patients anew among those who are trained on or left out at the hospitals, as many as these train on. nnU-Net sees as
many patches, in batches of its own plan. nnU-Net augments as it does by default, and so does the planned work, as far
as it has the same transforms. Dice of each test patient by masks on the patient's own grid, as `predict` and nnU-Net
write them. FENDA joins two networks, so of glands and cups it is also trained at each hospital alone.

glands: three hospitals with scanners D, E and L, 24 patients each, of whom 10 are trained on, 2 are left out and 12 are
tested; both programs mirror predictions, as is nnU-Net's default. lesions: hospitals with scanners D and L, as many
patients, all with a significant lesion; neither mirrors predictions. discs: Drishti-GS and RIM-ONE, cut about their
discs as in fundus_disc.yaml, 96 x 96 pixels; of each 4 pictures are trained on, 2 are left out and 20 are tested; both
programs read the same PNG files, and neither mirrors predictions. cups: 48 pictures of Drishti-GS, dealt out anew in
each draw among four clinics with the same camera; three of a clinic are trained on, 2 are left out and 7 are tested; 48
rounds of ten steps, and 24 epochs of nnU-Net.

Settings are the plan's, and the budget was set by the time of a processor. Nothing was chosen on these figures. Of
glands two rules of the plan were changed by planned lines of seed 100, of which no other table tells (`rules` in the
file of figures): as it was at efd25877, 25 steps of four patches a round; the same with nnU-Net's mean over all voxels
alone, by a change of hand; and as it is, with batches of a hospital's own size and a half of them about foreground: 50
steps of two patches. Draws 3 to 5 were added when 0 to 2 had been seen, and 5 to 8 of cups when 0 to 4 had. Three and
two training patients of a hospital were tried on seed 100 (`trials` in the file of figures).

Of lesions the glands' budget was tried first, on draw 0 and patients of whom two in five have a lesion: no line of
either program found one. Then 12 rounds of 60 steps, on seed 100, which no table reports, and on draw 1: planned lines
had .61 to .79 of Dice, and nnU-Net found no lesion. On seed 100 its loss stood where everything is background for seven
or eight epochs of 60 steps, pooled and at each hospital, and then fell; with 24 such epochs its hospitals alone had .61
and .77 there, and 24 were kept, for both programs.

On seed 100 of the discs 10 pictures of each camera were tried first, where hospitals alone (Dice .911) were no worse
than FedAvg (.908), so there was nothing to win; then 4 (.884 and .907), which were kept. Both were measured before the
noise of plans and the first weights of planned networks were mended. Of the cups 24 rounds of 20 steps were tried on
seed 100, then 48 of ten, which were kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.places import DATA, ROOT
from benchmarks.shared.records import make_table, read_measured, write_measured

NAME = "beside_nnunet"
FILTERS, LEFT_OUT = 8, 2
METHODS = {"local": "each hospital alone", "fedavg": "FedAvg", "fenda": "FENDA"}
AT_HOME = {"fenda_at_home": "FENDA, each hospital alone"}
"""FENDA's two networks at a hospital that shares with nobody, which some comparisons have too."""
ALONE, POOLED = "nnU-Net, each hospital alone", "nnU-Net, pooled"
OWN, TOGETHER = "planned, each hospital alone", "planned, pooled"
FENDA_ALONE = f"planned, {AT_HOME['fenda_at_home']}"
BASES = {OWN: "planned, alone", FENDA_ALONE: "FENDA, alone", ALONE: "nnU-Net, alone", POOLED: "nnU-Net, pooled"}
"""Lines that others are compared with, and what columns call them."""
MOST_COLUMNS = 3
"""Hospitals of whom a table says what each gains; of more it would be too wide for a page."""
RULES = ("as it was", "mean over all voxels", "and batches of a hospital's own size")
"""Of the plan, one after the other, by which a draw was measured."""
TRIALS = (
    "glands, three training patients each",
    "glands, two training patients each",
    "cups, 24 rounds of 20 steps",
    "cups, 48 rounds of ten steps",
)
"""What was tried on that draw, all but the last by a change of hand: 17 and 16 patients of a hospital for 24, and other
rounds and steps.
"""
COMMAND = "python -m benchmarks.studies.beside_nnunet --nnunet …"
SCANNERS = {scanner.lower(): scanner for scanner in "DEL"}
LESION_SCANNERS = {scanner.lower(): scanner for scanner in "DL"}
CAMERAS = {"drishti": {"disc": (1, 2)}, "rimone": {"disc": (255,)}}
"""Camera -> structure -> its values in masks; in Drishti's 2 is the cup, inside the disc."""
CUPS = {"drishti": {"rim": (1,), "cup": (2,)}}
SIDE, DISCS_TRAINED, DISCS_TESTED = 96, 4, 20
CUP_CLINICS = {f"clinic{number}": f"clinic {number}" for number in range(1, 5)}
CUP_TRAINED, CUP_TESTED = 3, 7

Lines = dict[str, dict[str, float]]
"""Line -> hospital -> Dice, the mean over its test patients."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A structure, and hospitals that learn it.

    hospitals: name -> as a table calls it. target: the structure. write_sites: (folder, seed) -> `sites` of a run, with
    files below the folder where there are none yet. task, images, split: of the run. rounds, steps: of training at a
    hospital. epochs: of nnU-Net, which sees as many patches in all; None = as many as rounds. mirror: whether
    predictions of both programs are mirrored. configuration, channels: of nnU-Net. seeds: of the draws that are
    reported.
    """

    hospitals: Mapping[str, str]
    target: str
    write_sites: Callable[[Path, int], dict[str, dict[str, Any]]]
    task: Mapping[str, Any]
    images: Mapping[str, Any]
    split: Mapping[str, float]
    rounds: int = 12
    steps: int
    epochs: int | None = None
    mirror: bool = False
    configuration: str = "3d_fullres"
    channels: tuple[str, ...] = ("ADC",)
    fenda_at_home: bool = False
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def methods(self) -> dict[str, str]:
        """Label in a run -> as a line is called."""
        return METHODS | (AT_HOME if self.fenda_at_home else {})

    @property
    def ending(self) -> str:
        """Of the files of images and masks."""
        return ".png" if self.images["kind"] == "pictures" else ".nii.gz"


def phantom_sites(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Hospitals with scanners D, E and L; each draw has patients of its own."""
    phantom = {"kind": "phantom", "patients": 24, "slices": 8, "format": "nifti"}
    return {
        site: {"source": {**phantom, "scanner": scanner, "seed": 700 + 10 * seed + number}}
        for number, (site, scanner) in enumerate(SCANNERS.items())
    }


def camera_sites(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Two cameras."""
    return draw_pictures(folder, seed, {camera: [camera] for camera in CAMERAS}, DISCS_TRAINED, DISCS_TESTED)


def cup_sites(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Four small clinics with one camera."""
    return draw_pictures(folder, seed, {"drishti": [*CUP_CLINICS]}, CUP_TRAINED, CUP_TESTED, CUPS)


def draw_pictures(
    folder: Path,
    seed: int,
    hospitals: Mapping[str, Sequence[str]],
    trained: int,
    tested: int,
    cameras: Mapping[str, Mapping[str, tuple[int, ...]]] = CAMERAS,
) -> dict[str, dict[str, Any]]:
    """Choose pictures of each camera, share them out among its hospitals, write them cut about their discs, and name
    who is tested. hospitals: camera -> names. trained, tested: pictures of each hospital. cameras: structures in their
    masks, of which together the disc consists, and the last is learnt.
    """
    from PIL import Image

    from pipelines.data.images import Pictures
    from pipelines.data.pictures.label_maps import open_maps
    from pipelines.data.pictures.pixels import read_pair
    from pipelines.data.sources import PictureMasks

    images = Pictures(size=SIDE, fit="around", margin=1.5, jitter=0.2)
    sites, count = {}, trained + LEFT_OUT + tested
    for camera, structures in cameras.items():
        place, target = DATA / "fundus" / camera, [*structures][-1]
        maps = open_maps(PictureMasks(folder=str(place / "masks"), values=structures), tuple(structures))
        paths = sorted((place / "images").iterdir())
        order = np.random.default_rng([seed, len(paths)]).permutation(len(paths))
        for place_of_hospital, hospital in enumerate(hospitals[camera]):
            home = folder / "pictures" / hospital
            for part in ("images", f"masks/{target}"):
                (home / part).mkdir(parents=True)
            for number, row in enumerate(order[count * place_of_hospital :][:count]):
                picture, mask = read_pair(paths[row], images, maps, paths[row].name)
                pixels = np.round((picture.transpose(1, 2, 0) + 1) * 127.5).astype(np.uint8)
                Image.fromarray(pixels).save(home / "images" / f"p{number:03d}.png")
                is_target = (mask == len(structures)).astype(np.uint8)
                Image.fromarray(is_target).save(home / f"masks/{target}" / f"p{number:03d}.png")
            masks = {"folder": str(home / f"masks/{target}"), "values": {target: [1]}}
            source = {"kind": "picture", "folder": str(home / "images"), "table": None, "masks": masks}
            names = [f"p{number:03d}.png" for number in range(trained + LEFT_OUT, count)]
            sites[hospital] = {"source": source, "test": names}
    return sites


def lesion_sites(folder: Path, seed: int) -> dict[str, dict[str, Any]]:
    """Two of the phantom hospitals, where every patient has a significant lesion."""
    sites = phantom_sites(folder, seed)
    return {site: {"source": {**sites[site]["source"], "significant": 1.0}} for site in LESION_SCANNERS}


GLANDS = Comparison(
    hospitals=SCANNERS,
    target="gland",
    write_sites=phantom_sites,
    task={"kind": "segmentation", "target": "gland"},
    images={"kind": "volumes", "values": "standardized", "centre": "image"},
    split={"train": 0.42, "validation": 0.08, "test": 0.5},
    steps=50,
    mirror=True,
    fenda_at_home=True,
    seeds=(0, 1, 2, 3, 4, 5),
)
DISCS = Comparison(
    hospitals={"drishti": "Drishti-GS", "rimone": "RIM-ONE"},
    target="disc",
    write_sites=camera_sites,
    task={"kind": "segmentation", "target": "masks", "classes": ["disc"]},
    images={"kind": "pictures", "size": SIDE, "channels": 3, "fit": "squash"},
    split={"train": 0.67, "validation": 0.33, "test": 0.0},
    steps=20,
    configuration="2d",
    channels=("R", "G", "B"),
)
COMPARISONS = {
    "glands": GLANDS,
    "lesions": replace(
        GLANDS,
        hospitals=LESION_SCANNERS,
        target="lesion",
        write_sites=lesion_sites,
        task={"kind": "segmentation", "target": "lesion"},
        rounds=24,
        steps=60,
        mirror=False,
        fenda_at_home=False,
        seeds=(1, 2, 3),
    ),
    "discs": DISCS,
    "cups": replace(
        DISCS,
        hospitals=CUP_CLINICS,
        target="cup",
        write_sites=cup_sites,
        task={"kind": "segmentation", "target": "masks", "classes": ["cup"]},
        split={"train": 0.6, "validation": 0.4, "test": 0.0},
        rounds=48,
        steps=10,
        epochs=24,
        fenda_at_home=True,
        seeds=(0, 1, 2, 3, 4, 5, 6, 7, 8),
    ),
}


def write_settings(comparison: Comparison, folder: Path, seed: int) -> None:
    """The run before it is planned."""
    at_home = {label: {"name": "at_home", "of": {"name": label.removesuffix("_at_home")}} for label in AT_HOME}
    methods = {label: at_home.get(label, {"name": label}) for label in comparison.methods}
    settings = {
        "name": NAME,
        "privacy": "none",
        "seed": seed,
        "threads": 1,
        "task": dict(comparison.task),
        "sites": comparison.write_sites(folder, seed),
        "images": dict(comparison.images),
        "split": dict(comparison.split),
        "model": {"name": "unet", "width": 8, "levels": 2},
        "train": {"schedule": {"rounds": comparison.rounds}, "work": {}, "methods": methods},
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


def call_here(folder: Path, command: str, *words: str) -> None:
    """One of our commands in a folder, in this process, because its imports take longer than a prediction.

    Raises:
        RuntimeError: it fails, with its last lines.
    """
    lines = io.StringIO()
    main: Callable[[Sequence[str]], int] = importlib.import_module(f"pipelines.{command}").main
    with contextlib.chdir(folder), contextlib.redirect_stderr(lines), contextlib.redirect_stdout(lines):
        code = main(words)
    if code:
        raise RuntimeError(f"{command} {' '.join(words)} ended with {code}: {lines.getvalue()[-2000:]}")


def stem_of(image: Path) -> str:
    """The name of an image's file without its ending."""
    return image.name.split(".")[0]


def list_patients(home: Path, folder: Path) -> dict[str, list[Path]]:
    """Split -> images of its patients. home: of a hospital in a run. folder: of the draw."""
    names = json.loads((home / "linkage.json").read_text())["patients"]
    (cut,) = home.glob("cohorts/*/split.json")
    files = [*home.glob("phantom/*/images/*"), *(folder / "pictures" / home.name).glob("images/*")]
    images = {stem_of(path): path for path in files}
    parts = json.loads(cut.read_text())
    return {part: sorted(images[stem_of(Path(names[code]))] for code in codes) for part, codes in parts.items()}


def mask_of(image: Path, target: str) -> Path:
    """The true mask of an image."""
    return image.parents[1] / "masks" / target / image.name


def read_mask(path: Path) -> np.ndarray:
    """Where a mask shows the structure."""
    if path.suffix == ".png":
        from PIL import Image

        return np.asarray(Image.open(path)) > 0
    import nibabel

    return np.asarray(nibabel.load(path).dataobj) > 0


def dice_of(predicted: Path, true: Path) -> float:
    """Dice of two masks on one grid; NaN where nothing is to be found."""
    left, right = read_mask(predicted), read_mask(true)
    return float(2 * (left & right).sum() / (left.sum() + right.sum())) if right.any() else math.nan


def write_pooled(comparison: Comparison, folder: Path, patients: Mapping[str, Mapping[str, list[Path]]]) -> None:
    """The planned run with one hospital that has everybody; who is tested is named."""
    tested = list[str]()
    for part in ("images", "masks"):
        (folder / "together" / part).mkdir(parents=True)
    is_picture = comparison.images["kind"] == "pictures"
    for site, parts in patients.items():
        for split, images in parts.items():
            for image in images:
                name = f"{site}{image.name}"
                shutil.copy(image, folder / "together" / "images" / name)
                shutil.copy(mask_of(image, comparison.target), folder / "together" / "masks" / name)
                tested += [name if is_picture else name.split(".")[0]] if split == "test" else []
    hospital: dict[str, Any] = {"test": tested}
    if is_picture:
        maps = {"folder": "together/masks", "values": {comparison.target: [1]}}
        hospital["source"] = {"kind": "picture", "folder": "together/images", "table": None, "masks": maps}
    else:
        hospital["source"] = {"kind": "nifti", "folder": "together/images"}
        masks = {"folder": "together/masks", "pattern": "{patient}.nii.gz"}
        hospital |= {"gland": masks} if comparison.target == "gland" else {"labels": {"kind": "mask", **masks}}
    share = comparison.split["train"] / (comparison.split["train"] + comparison.split["validation"])
    settings = yaml.safe_load((folder / "planned.yaml").read_text())
    shares = {"train": share, "validation": 1 - share, "test": 0.0}
    settings |= {"name": "together", "sites": {"all": hospital}, "split": shares}
    settings["train"]["methods"] = {"local": {"name": "local"}}
    (folder / "together.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def write_plan(comparison: Comparison, folder: Path, seed: int) -> None:
    """Plan the run of all hospitals."""
    write_settings(comparison, folder, seed)
    effort = ("--small", "--rounds", str(comparison.rounds), "--steps", str(comparison.steps))
    call_here(folder, "plan", "asked.yaml", "-o", "planned.yaml", *effort)
    planned = yaml.safe_load((folder / "planned.yaml").read_text())
    planned["model"]["mirror"] = comparison.mirror
    (folder / "planned.yaml").write_text(yaml.safe_dump(planned, sort_keys=False))


def score_models(comparison: Comparison, folder: Path, home: Path, models: Mapping[str, Path]) -> dict[str, float]:
    """Dice of each model, the mean over the test patients of a hospital. home: of the hospital in a run."""
    tested, inputs = list_patients(home, folder)["test"], folder / "test" / home.name
    inputs.mkdir(parents=True)
    for image in tested:
        shutil.copy(image, inputs)
    dices = {}
    for place, (line, model) in enumerate(models.items()):
        out = folder / "predicted" / home.name / str(place)
        call_here(folder, "predict", str(model), str(inputs), "--out", str(out))
        masks = [next((out / "masks").rglob(f"{stem_of(image)}*")) for image in tested]
        pairs = zip(masks, tested, strict=True)
        dices[line] = float(np.nanmean([dice_of(mask, mask_of(image, comparison.target)) for mask, image in pairs]))
    return dices


def measure_ours(comparison: Comparison, folder: Path, seed: int) -> Lines:
    """Plan, run and predict."""
    write_plan(comparison, folder, seed)
    call_here(folder, "run", "planned.yaml")
    homes = sorted((folder / "runs" / NAME / "sites").iterdir())
    write_pooled(comparison, folder, {home.name: list_patients(home, folder) for home in homes})
    call_here(folder, "run", "together.yaml")
    pooled = folder / "runs/together/sites/all/ready/local.safetensors"
    lines: Lines = {}
    for home in homes:
        own = {
            f"planned, {label}": home / "ready" / f"{method}.safetensors"
            for method, label in comparison.methods.items()
        }
        for line, dice in score_models(comparison, folder, home, {**own, TOGETHER: pooled}).items():
            lines.setdefault(line, {})[home.name] = dice
    return lines


def measure_nnunet(comparison: Comparison, folder: Path, seed: int, python: str, *, alone: bool = True) -> Lines:
    """nnU-Net on all training patients, and on each hospital's. alone: whether on each hospital's."""
    homes = sorted((folder / "runs" / NAME / "sites").iterdir())
    patients = {home.name: list_patients(home, folder) for home in homes}
    batch = yaml.safe_load((folder / "planned.yaml").read_text())["train"]["work"]["batch"]
    tested: dict[Path, tuple[str, Path]] = {}
    (folder / "named").mkdir()
    for site, parts in patients.items():
        for image in parts["test"]:  # two hospitals may name patients alike, so the name tells the hospital too
            tested[Path(shutil.copy(image, folder / "named" / f"{site}-{image.name}"))] = (site, image)
    jobs = {**({site: [site] for site in patients} if alone else {}), "pooled": [*patients]}
    for job, sites in jobs.items():
        pairs = [(image, mask_of(image, comparison.target)) for site in sites for image in patients[site]["train"]]
        settings = {
            "folder": str(folder / "nnunet" / job),
            "configuration": comparison.configuration,
            "channels": comparison.channels,
            "ending": comparison.ending,
            "label": comparison.target,
            "training": [[str(path) for path in pair] for pair in pairs],
            "test": [str(path) for path, (site, _) in tested.items() if site in sites],
            "masks": str(folder / "nnunet-masks" / job),
            "epochs": (epochs := comparison.epochs or comparison.rounds),
            "patches": comparison.rounds * comparison.steps * batch // epochs,
            "filters": FILTERS,
            "mirror": comparison.mirror,
            "seed": seed,
        }
        (folder / f"{job}.json").write_text(json.dumps(settings))
    training = ROOT / "benchmarks/studies/nnunet_training.py"
    call(folder, python, str(training), *(f"{job}.json" for job in jobs))
    lines: Lines = {**({ALONE: {}} if alone else {}), POOLED: {}}
    for job, sites in jobs.items():
        for site in sites:
            dices = [
                dice_of(folder / "nnunet-masks" / job / path.name, mask_of(image, comparison.target))
                for path, (whose, image) in tested.items()
                if whose == site
            ]
            lines[POOLED if job == "pooled" else ALONE][site] = float(np.nanmean(dices))
    return lines


def tables(kept: Mapping[str, Mapping[str, Lines]]) -> dict[str, dict[str, object]]:
    """Of each comparison, Dice by line, and what lines gain over hospitals alone.

    Raises:
        ValueError: draws of a comparison have other lines, so that one was not finished.
    """
    made = {}
    for name, comparison in COMPARISONS.items():
        if len(draws := kept.get(name, {})) > 1:
            if len({frozenset(lines) for lines in draws.values()}) > 1:
                raise ValueError(f"draws of {name} have other lines; finish them: {COMMAND} --only {name}")
            place = "beside-nnunet" if name == "glands" else f"beside-nnunet-{name}"
            made[place] = tabulate_dice(comparison, draws)
            if len(comparison.hospitals) <= MOST_COLUMNS:
                made[f"{place}-gains"] = tabulate_gains(comparison, draws)
    if rules := kept.get("rules"):
        made["beside-nnunet-rules"] = tabulate_trials("rules of the plan", RULES, rules, f"{COMMAND} --only glands")
    if trials := kept.get("trials"):
        made["beside-nnunet-trials"] = tabulate_trials("tried", TRIALS, trials, f"{COMMAND} --only cups")
    return made


def tabulate_trials(column: str, names: Sequence[str], trials: Mapping[str, Lines], command: str) -> dict[str, object]:
    """Mean Dice of planned lines on the draw of which no other table tells. column: what names are of."""
    planned_lines = [*(f"planned, {label}" for label in METHODS.values()), TOGETHER]
    lines = [line for line in planned_lines if line in trials[names[0]]]
    rows = [[name, *(f"{np.mean([*trials[name][line].values()]):.3f}" for line in lines)] for name in names]
    return make_table([column, *lines], rows, f"{command} --seeds 100")


def tabulate_dice(comparison: Comparison, draws: Mapping[str, Lines]) -> dict[str, object]:
    """Dice of each line by hospital, and differences on the same patients."""
    means = {
        line: {seed: float(np.mean([*lines[line].values()])) for seed, lines in draws.items()}
        for line in next(iter(draws.values()))
    }
    rows, bases = [], {line: label for line, label in BASES.items() if line in means}
    for line, by_seed in means.items():
        sites = [format_interval([lines[line][site] for lines in draws.values()]) for site in comparison.hospitals]
        changes = ["" if base is by_seed else format_change(by_seed, base) for base in (means[name] for name in bases)]
        rows.append([line, *sites, format_interval([*by_seed.values()]), *changes])
    hospitals = comparison.hospitals.values()
    columns = ["line", *hospitals, "mean Dice", *(f"more than {base}" for base in bases.values())]
    return make_table(columns, rows, COMMAND)


def tabulate_gains(comparison: Comparison, draws: Mapping[str, Lines]) -> dict[str, object]:
    """What each line has more, hospital by hospital, than planned and nnU-Net of that hospital alone."""
    columns, rows = ["line"], []
    for label in comparison.hospitals.values():
        columns += [f"{label}: more than planned, alone", f"{label}: more than nnU-Net, alone"]
    for line in next(iter(draws.values())):
        if line in (OWN, ALONE):
            continue
        cells = [
            format_interval([lines[line][site] - lines[base][site] for lines in draws.values()], sign="+")
            for site in comparison.hospitals
            for base in (OWN, ALONE)
        ]
        rows.append([line, *cells])
    return make_table(columns, rows, COMMAND)


def measure_draw(comparison: Comparison, seed: int, python: str, kept: Lines) -> Lines:
    """All lines on the patients of one draw. kept: lines that are not measured again."""
    lines = dict(kept)
    ours = {f"planned, {label}" for label in comparison.methods.values()}
    if not ours | {ALONE} <= {*kept}:
        with tempfile.TemporaryDirectory() as name:
            lines |= measure_ours(comparison, Path(name), seed)
            lines |= {} if ALONE in kept else measure_nnunet(comparison, Path(name), seed, python)
    return lines


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nnunet", required=True, help="python of an environment with nnunetv2")
    parser.add_argument("--only", nargs="+", choices=[*COMPARISONS], default=[*COMPARISONS])
    parser.add_argument("--seeds", type=int, nargs="+", help="draws; each comparison has its own if none is said")
    parser.add_argument("--again", action="store_true", help="measure planned lines anew, and keep nnU-Net's")
    parser.add_argument("--out", type=Path, help="write there, and not into benchmarks/measured")
    return parser.parse_args(arguments)


def main() -> None:
    options = parse_options()
    place = options.out or NAME
    for name in options.only:
        for seed in options.seeds or COMPARISONS[name].seeds:
            draw: Lines = read_measured(place).get(name, {}).get(str(seed), {})
            kept = {line: dices for line, dices in draw.items() if not options.again or line in (ALONE, POOLED)}
            lines = measure_draw(COMPARISONS[name], seed, options.nnunet, kept)
            if lines == draw:
                continue
            book = read_measured(place)
            write_measured(place, {**book, name: {**book.get(name, {}), str(seed): lines}}, sort=True)
            print(name, seed, {line: round(float(np.mean([*v.values()])), 4) for line, v in lines.items()}, flush=True)


if __name__ == "__main__":
    main()
