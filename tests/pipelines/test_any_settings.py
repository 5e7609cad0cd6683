"""Whatever `--check` accepts ends: runs of settings that nobody chose, over all methods and parts of a configuration.

A seed draws the settings. What the check refuses is taken out, piece by piece, as a user would, until it accepts the
rest; then the run must end with its page, and one of its models must predict for new files. Each fault that was found
so stands in a test of its own, too.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import methods
from pipelines.loader.document import ConfigError, render
from pipelines.loader.files import read_document
from pipelines.loader.validation import to_plain
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.load import check_config

FEW, MANY = 8, 120
"""Runs by default, and thoroughly."""
OPEN = {"pooling": True, "recipients": ["coordinator", "sites", "outside"]}
SMALL = {"size": 16, "spacing_mm": 4.0}
VIEWS = [{"name": "noise", "std": 0.1}, {"name": "affine", "degrees": 5, "scales": 0.1, "translation": 0}]
PRIVATE = {"epsilon": 3.0, "sampling": 0.5, "views": 2}
HARMONIZE: dict[str, Any] = {
    "score": {"release": "exact", "steps": 2, "seeds": 1, "perplexity": 5.0, "components": 5},
    "synthesis": {"name": "private_evolution", "epsilon": 10.0, "candidates": 24, "rounds": 2, "public": 100},
    "sampling": {"name": "surrogate", "closeness": 1.0, "spacing": 0.0},
    "shared": 12,
    "copies": 1,
}
WORK: dict[str, list[Any]] = {
    "augment": ["flip", "affine", "elastic"],
    "label_smoothing": [0.1],
    "torchio": [VIEWS],
    "precision": ["bf16"],
    "channels_last": [True],
    "balance": [True],
    "foreground": [0.5],
}
TRAIN: dict[str, list[Any]] = {
    "secure_sum": [True],
    "repeats": [2],
    "merge": [{"name": "median"}, {"name": "trimmed_mean"}, {"name": "krum"}],
    "upload": [{"name": "int8"}],
    "start": [{"name": "pretrained", "on": "prostate_adc", "pictures": 24}],
}
SCHEDULE: dict[str, list[Any]] = {"buffer": [1], "participation": [0.5]}
TASKS: dict[str, dict[str, Any]] = {
    "gland": {"kind": "segmentation", "target": "gland"},
    "lesion": {"kind": "segmentation", "target": "lesion"},
    "findings": {"kind": "findings", "findings": ["significant", "indolent", "transition", "large"]},
    "gland_area": {"kind": "regression", "what": "gland area", "unit": "cm2", "range": [0, 60]},
    "grade_group": {
        "kind": "classification", "ordered": True,
        "classes": ["none", "gg1", "gg2", "gg3", "gg4", "gg5"],
    },
}  # fmt: skip
"""What a phantom can be asked for, by its `labels` or its masks; beside labels 0 and 1."""
ROUTES = [
    *({"name": name} for name in ("as_trained", "average", "ensemble", "matched")),
    {"name": "tent", "epochs": 1},
    {"name": "routing", "epochs": 1, "radius": 2},
]
ALL = [one for one in methods.ALL if one.name not in methods.ON_PROMPTS]


def sometimes(chance: random.Random, parts: dict[str, list[Any]], share: float = 0.15) -> dict[str, Any]:
    """Some of the parts, with one of their values."""
    return {name: chance.choice(values) for name, values in parts.items() if chance.random() < share}


def draw_model(chance: random.Random, *, of_masks: bool, axes: int) -> dict[str, Any]:
    norm = chance.choice(["group", "group", "batch"])
    plan = {
        "name": "planned", "patch": [4, 16, 16][-axes:], "kernels": [[1, 3, 3][-axes:], [3] * axes],
        "strides": [[1] * axes, [1, 2, 2][-axes:]], "filters": [8, 8], "norm": chance.choice(["instance", norm]),
        "mirror": chance.random() < 0.3,
    }  # fmt: skip
    of = {"name": chance.choice(["radiomics", "scattering"])}
    features = {"name": "features", "of": of, "public": "prostate_adc", "pictures": 20, "components": 8}
    if of_masks:
        return chance.choice([{"name": "unet", "width": 4, "levels": 2, "norm": norm}, plan])
    maps = {"name": "cam", "widths": [8, 8, 8, 16], "norm": norm}
    return chance.choice([{"name": "cnn", "widths": [8, 8], "norm": norm}, features, *([maps] if axes == 2 else [])])


def draw_settings(seed: int) -> dict[str, Any]:
    """A small run that may hold anything."""
    chance = random.Random(seed)
    asked = chance.choice(["", "", "", *TASKS])
    target = asked if asked in ("gland", "lesion") else None
    axes = chance.choice([2, 2, 3])
    images = {"kind": "slices", **chance.choice([SMALL, {"size": 32, "spacing_mm": 2.0}])}
    if axes == 3:
        images = {"kind": "volumes", **SMALL, "depth": 8, "depth_mm": 4.0}
    has_unit = random.Random(f"values {seed}")
    if has_unit.random() < 0.25:
        images |= {"values": "standardized", "nonzero": has_unit.random() < 0.5}
    names = "abc"[: chance.choice([2, 2, 3])]
    phantom = {"kind": "phantom", "slices": 4}
    sites = {}
    for number, name in enumerate(names, start=1):
        source = {**phantom, "scanner": chance.choice("PLADE"), "patients": chance.choice([16, 20]), "seed": number}
        source |= {"format": chance.choice(["dicom", "nifti"]), "damaged": chance.choice([0, 0, 1])}
        source |= {"labels": asked} if asked and not target else {}
        sites[name] = {"source": source, "max_rejected": 0.6, "policy": OPEN}
    privacy = (
        chance.choice(["none", "none", PRIVATE, {**PRIVATE, "shared": {"colluding": 1}}]) if not target else "none"
    )
    chosen = chance.sample(ALL, chance.choice([2, 3]))
    labels = [one.name for one in chosen]
    of_methods = {
        one.name: to_plain(methods.PRIVATELY.get(one.name, one) if privacy != "none" else one) for one in chosen
    }
    work = {"optimizer": chance.choice(["sgd", "adam"]), "lr": 0.01, "batch": chance.choice([1, 4, 8])}
    work |= sometimes(chance, WORK) | chance.choice([{}, {"epochs": None, "steps": 2}])
    schedule = {"rounds": chance.choice([1, 2]), **sometimes(chance, SCHEDULE)}
    of = chance.choice(labels)
    calibrations = ["centred", "adabn", "adabn_centred", "largest", "matched"]
    variants: list[Any] = [{"of": of, "calibration": each} for each in calibrations]
    variants.append({"of": of, "calibration": "fine_tuned", "tuning": {"epochs": 1}})
    made: dict[str, Any] = {
        "name": "tiny", "seed": seed, "pooling": "allowed", "privacy": privacy, "sites": sites, "images": images,
        "model": draw_model(chance, of_masks=target is not None, axes=axes),
        "split": chance.choice([{"train": 0.5, "validation": 0.2, "test": 0.3}, {"folds": 3, "fold": 1}]),
        "train": {"methods": of_methods, "work": work, "schedule": schedule, **sometimes(chance, TRAIN)},
        "evaluate": {
            "checkpoint": chance.choice(["global", "latest", "average", "local"]), "copies": chance.choice([0, 3]),
            "public": chance.random() < 0.5, "rounds": chance.random() < 0.2,
        },
        "audit": {"membership": not target and chance.random() < 0.6, "canaries": 0},
    }  # fmt: skip
    if asked:
        made["task"] = TASKS[asked]
    if target:
        images["centre"] = "image"
    if chance.random() < 0.4:
        made["evaluate"]["variants"] = {"v": chance.choice(variants)}
    if chance.random() < 0.5:
        made["audit"]["inversion"] = {"images": 1, "steps": 2}
    if chance.random() < 0.3:
        of_methods["pooled"] = {"name": "central"}
    if len(names) == 3 and chance.random() < 0.6:
        lines = {"line": {"how": chance.choice(ROUTES)}}
        made |= {"outside": ["c"], "route": {"shared": labels[0], "personal": labels[-1], "lines": lines}}
    if chance.random() < 0.2:
        space = chance.choice(["z_score", "nyul", "oracle", "histogram"])
        made["harmonize"] = {**HARMONIZE, "translate": {"space": {"name": space}}}
        made["train"]["method_images"] = {labels[0]: "space"}
    return made


def find_problems(file: Path) -> list[str]:
    """What the check says."""
    try:
        check_config(read_document(str(file)))
    except ConfigError as error:
        return render(error, str(file)).splitlines()
    return []


def take_out(made: dict[str, Any], problems: list[str]) -> bool:
    """Remove the parts that problems are about, or else methods that they name; returns whether anything was."""
    text = "\n".join(line.partition(": ")[2] for line in problems)
    paths = [
        "evaluate.variants", "evaluate.rounds", "route", "harmonize", "audit.inversion", "privacy.shared",
        *(f"train.{name}" for name in TRAIN), *(f"train.work.{name}" for name in WORK),
        *(f"train.schedule.{name}" for name in SCHEDULE),
    ]  # fmt: skip
    removed = [path for path in paths if re.search(rf"\b{path}\b", text) and remove(made, path)]
    if "route" in removed:
        made.pop("outside", None)
    if "harmonize" in removed:
        made["train"].pop("method_images", None)
    if removed:
        return True
    of_methods = made["train"]["methods"]
    named = [name for name in of_methods if re.search(rf"\b{name}\b", text)]
    if len(named) == len(of_methods):
        return False
    for name in named:
        del of_methods[name]
    return bool(named)


def remove(made: dict[str, Any], path: str) -> bool:
    """Remove a part; returns whether it was there."""
    *outer, last = path.split(".")
    for name in outer:
        made = made.get(name, {}) if isinstance(made, dict) else {}
    return isinstance(made, dict) and made.pop(last, None) is not None


def make_accepted(seed: int, file: Path) -> bool:
    """Write settings that the check accepts; returns whether there are any."""
    made = draw_settings(seed)
    while True:
        file.write_text(yaml.safe_dump(made, sort_keys=False))
        if not (problems := find_problems(file)):
            return True
        if not take_out(made, problems):
            return False


@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(FEW, MANY))]
)
def test_what_the_check_accepts_ends_with_a_page(seed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if not make_accepted(seed, tmp_path / "any.yaml"):
        pytest.skip("the check refuses all of it")
    code = main(["any.yaml"])
    text = capsys.readouterr().err
    if code != Exit.OK and "no patient in the" in text:  # under privacy a secret of the hospital divides its patients
        pytest.skip("by chance a hospital has no patient in one of the splits")
    assert code == Exit.OK, text
    assert (tmp_path / "runs/tiny/report.html").exists()
    predict_with_one(random.Random(seed), tmp_path)


def predict_with_one(chance: random.Random, folder: Path) -> None:
    """Predict with a model that a run finished at a hospital with NIfTI files, for these."""
    homes = [path.parents[2] for path in sorted(folder.glob("runs/tiny/sites/*/phantom/*/images"))]
    pairs = [
        (model, images)
        for home in homes
        for images in home.glob("phantom/*/images")
        for model in sorted(home.glob("ready/*.safetensors"))
        if next(images.glob("*.nii.gz"), None) is not None and ".statistics" not in model.name
    ]
    if not pairs:
        return
    model, images = chance.choice(pairs)
    words = [str(model), str(images), "--out", str(folder / "out")]
    gland = images.parent / "masks/gland"
    code = predict([*words, *(["--gland", str(gland)] if gland.is_dir() else [])])
    assert code == Exit.OK or predict(words) == Exit.OK, model.name
    assert (folder / "out/predictions.csv").exists()
