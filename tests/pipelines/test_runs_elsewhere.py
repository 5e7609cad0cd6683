"""Whole runs whose hospitals compute on another device end as on the CPU: from reading to scores, attacks and pages.

`tests/other_device.py` stands for the GPU. What a run learns is compared to rounding; Adam would divide gradients that
are zero but for rounding by their own size, so methods learn by SGD.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import harmonized_run
import pytest
import small_run
import torch
import yaml
from other_device import OTHER, other_device

import route_settings
from consilium.testing import testbed
from pipelines.coordinator import conversations
from pipelines.coordinator import run as coordinator
from pipelines.run import main
from pipelines.runs.exits import Exit
from privacy.message import from_bytes, unseal_parts

SGD = {"optimizer": "sgd", "lr": 0.01, "batch": 8}
PLAN = {
    "name": "planned", "patch": [8, 8], "kernels": [[3, 3]] * 3, "strides": [[1, 1], [2, 2], [2, 2]],
    "filters": [8, 8, 8], "norm": "group", "mirror": True,
}  # fmt: skip
MASKS = {"kind": "segmentation", "target": "gland"}


def maps() -> dict[str, Any]:
    """A detector with its maps, attacks on members and on gradients, and random views."""
    made = small_run.smallest(model={"name": "cam", "widths": [8, 8, 8, 8], "norm": "group"})
    made["images"] = {"kind": "slices", "size": 32, "spacing_mm": 2.0}
    made["train"]["methods"] = {name: {"name": name} for name in ("fedavg", "fedper", "central")}
    made["audit"] = {"inversion": {"images": 1, "steps": 2}}
    made["train"]["work"] = {**SGD, "augment": "affine"}
    return made


def private() -> dict[str, Any]:
    made = copy.deepcopy(small_run.PRIVATE)
    made["train"]["work"] = {**SGD, "augment": "flip"}
    return made


def planned() -> dict[str, Any]:
    """Patches, windows that are mirrored, losses of deep supervision."""
    made = small_run.smallest(task=MASKS, model=PLAN)
    made["train"]["work"] = {**SGD, "foreground": 0.5}
    made["images"]["centre"] = "image"
    made["audit"] = {"membership": False}
    return made


def extracted() -> dict[str, Any]:
    """Features of what a detector marks, whitened by pictures of a prior, heads on them, and one of solved moments."""
    detector = {"name": "detector", "on": "prostate_adc", "pictures": 16, "steps": 3, "width": 4, "size": 16}
    features = {"name": "features", "of": detector, "public": "prostate_adc", "pictures": 20, "components": 8}
    made = small_run.smallest(model=features)
    made["images"] = {"kind": "slices", "size": 32, "spacing_mm": 2.0}
    made["train"]["methods"] = {"heads": {"name": "fedavg"}, "moments": {"name": "moments"}}
    made["train"]["work"] = SGD
    return made


def calibrated() -> dict[str, Any]:
    """Every calibration of a finished model."""
    made = small_run.smallest(model={"name": "cnn", "widths": [8, 8]})
    made["train"]["work"] = SGD
    made["train"]["methods"] = {name: {"name": name} for name in ("fedavg", "local", "central")}
    made["evaluate"]["variants"] = {
        "centred": {"of": "fedavg", "calibration": "centred"},
        "adabn": {"of": "fedavg", "calibration": "adabn"},
        "adabn_centred": {"of": "local", "calibration": "adabn_centred"},
        "tuned": {"of": "fedavg", "calibration": "fine_tuned", "tuning": {"epochs": 2}},
    }
    return made


def harmonized() -> dict[str, Any]:
    """A CycleGAN of two members with classes, intensity translators, a synthesis, and the veto."""
    made = harmonized_run.settings()
    made["train"]["work"] = SGD
    return made


def routed() -> dict[str, Any]:
    """All ways to serve a hospital outside, each of which adapts at test time."""
    made: dict[str, Any] = route_settings.settings()
    made["train"]["work"] = SGD
    return made


def ended(folder: Path, settings: dict[str, Any], monkeypatch) -> dict[str, dict[str, torch.Tensor]]:
    """What each method ended with, by its label."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    assert main(["tiny.yaml"]) == Exit.OK
    states = sorted((folder / "runs/tiny/federation").glob("*/state"))
    # the end of the name of a training on translated images follows from their last bits
    return {
        path.parent.name.rpartition("-")[0]: dict(from_bytes(unseal_parts(path.read_bytes())).tensors)
        for path in states
    }


RUNS = [
    maps,
    private,
    planned,
    extracted,
    calibrated,
    *(pytest.param(one, marks=pytest.mark.slow) for one in (harmonized, routed)),
]


@pytest.mark.parametrize("settings", RUNS)
def test_a_run_on_another_device_ends_as_on_the_cpu(settings, tmp_path, monkeypatch, capsys):
    here = ended(tmp_path / "here", settings(), monkeypatch)
    for module in (coordinator, conversations):
        monkeypatch.setattr(module, "select_device", lambda device: OTHER)
    with other_device(1e-7) as crossings:
        there = ended(tmp_path / "there", settings(), monkeypatch)
    assert crossings.uploads, "no hospital computed there"
    assert here.keys() == there.keys() and here
    made = settings()
    if "privacy" in made and made["privacy"] != "none":
        noised = here.keys()
    else:
        noised = made["train"].get("method_images", {}).keys()  # synthesis has noise of the operating system
    compared = here.keys() - noised
    assert all(testbed.are_close(here[name], there[name], 1e-3) for name in compared)
    assert compared or settings is private
    assert "failed" not in capsys.readouterr().out
