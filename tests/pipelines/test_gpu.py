"""What a person with a GPU runs (docs/how-to/gpu.md), run small, and without a GPU on the CPU: that it works at all."""

from __future__ import annotations

import copy
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml

from pipelines.loader.files import CONFIGS
from pipelines.run import main
from pipelines.runs.exits import Exit

ROOT = Path(__file__).parents[2]
GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
)


@pytest.mark.gpu
@pytest.mark.slow
def test_the_configuration_for_a_gpu_runs_to_its_page(tmp_path, monkeypatch):
    """prostate_adc_gpu.yaml with few patients, steps and rounds; on the CPU where no GPU is (`device: auto`)."""
    said = copy.deepcopy(yaml.safe_load((CONFIGS / "prostate_adc_gpu.yaml").read_text()))
    said["threads"], said["images"]["size"], said["images"]["spacing_mm"] = 1, 32, 2.25
    for site in said["sites"].values():
        site["source"]["patients"] = 12
    harmonize = said["harmonize"]
    harmonize["score"] |= {"steps": 20, "seeds": 1}
    harmonize["synthesis"] |= {"steps": 5, "width": 8, "latent": 8, "prior_steps": 20, "prior_images": 64}
    harmonize |= {"shared": 32, "copies": 1}
    for translate in harmonize["translate"].values():
        translate |= {"steps": 4, "every": 2, "width": 8, "blocks": 1, "critic": 8, "batch": 4, "copies": 1}
    said["model"]["widths"], said["train"]["schedule"] = [8, 8, 8, 8], {"rounds": 2}
    said["evaluate"]["copies"] = 20
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    assert main(["small.yaml"]) == Exit.OK
    assert list((tmp_path / "runs").rglob("report.html"))


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU), "cpu"])
def test_the_measure_of_throughput_measures(device, tmp_path, monkeypatch, capsys):
    out = tmp_path / "found.json"
    small = ["--device", device, "--images", "16", "--side", "16", "--batch", "8", "--widths", "8", "8", "--times", "1"]
    monkeypatch.setattr(sys, "argv", ["throughput.py", *small, "--json", str(out)])
    runpy.run_path(str(ROOT / "benchmarks/speed/throughput.py"), run_name="__main__")
    found = json.loads(out.read_text())
    assert set(found["rows"]) == {"float32", "channels_last", "bf16", "bf16, channels_last", "private"}
    for row in found["rows"].values():
        assert row["images_a_second"] > 0 and row["bare_images_a_second"] > 0 and row["peak_mib"] > 0
    assert "x the bare loop's time" in capsys.readouterr().out
