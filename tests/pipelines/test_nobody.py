"""Harmonization that no patient shapes, through a whole run: who is asked, what it costs, and what is said of it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
import torch
import yaml
from harmonized_run import HARMONIZE, settings

from harmonize.prior import PRIORS, draw_pictures
from harmonize.randomized import Randomized
from harmonize.scale import Scale
from pipelines.hospital.public_networks import PUBLIC, learnt_once
from pipelines.run import main
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes, from_file, unseal_parts
from privacy.release import ledger as ledgers

QUICK = {"name": "randomized", "steps": 3, "width": 4}
START = {"name": "pretrained", "on": "prostate_adc", "pictures": 32, "epochs": 1, "strength": 1.0}


def asked() -> dict[str, Any]:
    said = settings()
    said["harmonize"] = {
        "score": {"release": "public", "target": "a"},
        "synthesis": {"name": "public"},
        "shared": 12,
        "translate": {"nobody": QUICK, "reinhard": {"name": "reinhard"}},
        "veto": HARMONIZE["veto"],
    }
    work = {**said["train"].get("work", {}), "randomize": 0.3}
    methods = {label: {"name": "fedavg"} for label in ("raw", "begun", "nobody", "reinhard")}
    said["train"] |= {
        "methods": methods,
        "method_images": {"nobody": "nobody", "reinhard": "reinhard"},
        "method_start": {"begun": START, "nobody": START},
        "method_work": {"reinhard": work},
    }
    return said


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    return finished_run(asked())


def test_nobody_is_asked_for_images_and_the_prior_is_shared(done):
    root = done / "runs" / "tiny"
    for site in ("a", "b"):
        requests = {str(line["request"]) for line in ledgers.read_lines(root / "sites" / site / "ledger.jsonl")}
        assert "translate" in requests and not requests & {"score", "synthesize", "sample"}
    (shared,) = root.glob("sample/*/shared.safetensors")
    y = torch.arange(2).repeat_interleave(12)
    images = from_bytes(shared.read_bytes()).tensors["images"]
    assert torch.equal(images, draw_pictures(PRIORS["prostate_adc"], y, tuple(images.shape[1:]), 0))


def test_hospitals_have_the_same_translator_learnt_once_and_it_makes_their_cohorts(done):
    root, scale = done / "runs" / "tiny", Scale(low=0.0, high=3.5)
    kept = DiskFolder(root.parent / PUBLIC)
    networks = [from_bytes(unseal_parts(kept.read(name))).tensors for name in kept.names()]
    (params,) = [one for one in networks if any(name.startswith("translator/") for name in one)]
    assert len(networks) == 3, "and the starts"
    answers = json.loads(next(root.glob("translate/*/nobody.json")).read_text())
    for site in ("a", "b"):
        mine = from_bytes(
            unseal_parts((root / "sites" / site / "translators" / "nobody.safetensors").read_bytes())
        ).tensors
        assert mine.keys() == params.keys() and all(torch.equal(mine[name], params[name]) for name in params)
        raw = json.loads((next(root.glob("ingest/*/sites.json"))).read_text())[site]["cohort"]
        before, after = (
            from_file(root / "sites" / site / "cohorts" / name / "cohort.safetensors").tensors["images"]
            for name in (raw, answers[site]["cohort"])
        )
        expected = Randomized(steps=3, width=4).translate(params, scale.into(before), torch.arange(len(before)))
        assert torch.allclose(scale.back(expected), after, atol=1e-5)


def test_a_start_in_such_a_space_is_trained_on_translated_pictures(done):
    starts = list((done / "runs" / "tiny").glob("pretrain/*/start-*.safetensors"))
    first, second = (from_bytes(path.read_bytes()).tensors for path in starts)
    assert first.keys() == second.keys() and not all(torch.equal(first[name], second[name]) for name in first)


def test_the_statement_says_that_no_patient_shaped_it(done):
    said = " ".join(next((done / "runs" / "tiny").glob("report/*/statement.md")).read_text().split())
    assert "that translates images, used unless the veto refused it, learnt from pictures of" in said
    assert (
        "of the procedural prior prostate_adc, which is code of this program, and no patient shaped it (ε = 0)" in said
    )


def test_the_plan_says_so_too_and_a_private_run_may_use_it(tmp_path, capsys, monkeypatch):

    monkeypatch.chdir(tmp_path)
    said = asked()
    Path("x.yaml").write_text(yaml.safe_dump(said))
    assert main(["x.yaml", "--check"]) == 0
    assert "pictures of a public prior, which no patient shaped (ε = 0)" in " ".join(capsys.readouterr().err.split())
    said |= {"privacy": {"epsilon": 3.0, "delta": 1e-3, "sampling": 0.5}, "pooling": "refused"}
    said["model"] = {"name": "cnn", "widths": [8, 8], "norm": "group"}
    said["evaluate"] = {"copies": 5, "checkpoint": "latest", "public": False}
    Path("x.yaml").write_text(yaml.safe_dump(said))
    assert main(["x.yaml", "--check"]) == 0
    said["harmonize"]["translate"]["nobody"] = {**QUICK, "prior": "skin_lesion"}
    Path("x.yaml").write_text(yaml.safe_dump(said))
    assert main(["x.yaml", "--check"]) != 0
    assert "prior skin_lesion draws no images of 1 channels" in " ".join(capsys.readouterr().err.split())


def test_hospitals_that_work_at_the_same_time_learn_a_public_network_once(tmp_path):
    learnt = []

    def learn():
        learnt.append(get_ident())
        time.sleep(0.3)
        return {"w": torch.ones(2)}

    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(learnt_once, DiskFolder(tmp_path / "public"), {"a": 1}, learn) for _ in range(3)]
    assert len(learnt) == 1 and all(torch.equal(one.result()["w"], torch.ones(2)) for one in found)
    learnt_once(DiskFolder(tmp_path / "public"), {"a": 2}, learn)
    assert len(learnt) == 2
    assert len(DiskFolder(tmp_path / "public").names()) == 2, "locks are no files of anybody"
