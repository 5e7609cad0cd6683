"""A run over NVIDIA FLARE: real processes with certificates of their own, bit for bit what one process computes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from planned_settings import OWN, own_settings

from federation.conversation import load_stored_reply
from federation.models.cnn import Cnn
from federation.summing import MASKED
from flare_processes import PLAIN_RUN, federation
from harmonize.veto import Limits
from pipelines.data.images import Slices
from pipelines.data.sources import NiftiSource
from pipelines.run import main
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes
from privacy.release import ledger as ledgers
from signed_models import finished, public_key, write_signed

SITE = {"source": {"kind": "phantom", "scanner": "P", "patients": 12, "slices": 4}}
TRUSTED = {"trusted_models": {"owner": public_key()}}
SMALL = {
    **PLAIN_RUN,
    "model": {"name": "cnn", "widths": [8, 16], "norm": "group"},
    "train": {
        "schedule": {"rounds": 2},
        "work": {"lr": 1e-2, "batch": 8},
        "methods": {"fedavg": {"name": "fedavg"}, "fedper": {"name": "fedper"}},
    },
}


def hospitals(*names: str) -> dict[str, dict[str, object]]:
    return {name: {"source": {**SITE["source"], "seed": seed}} for seed, name in enumerate(names, 1)}


def written(folder: Path, said: dict[str, object]) -> Path:
    path = folder / f"{said['name']}.yaml"
    path.write_text(yaml.safe_dump(said))
    return path


def outcome(runs: Path) -> dict[str, object]:
    """States of all conversations, and scores."""
    states = {
        str(path.parent.relative_to(runs)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(runs.glob("federation/**/state"))
    }
    (scores,) = runs.glob("report/*/scores.json")
    return {"states": states, "scores": json.loads(scores.read_text())}


def near(folder: Path, config: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    place = folder / "near"
    place.mkdir()
    monkeypatch.chdir(place)
    assert main([str(config)]) == 0
    return outcome(place / "runs" / "far")


@pytest.mark.slow  # without its processes and certificates: tests/pipelines/test_wire.py
def test_a_run_over_flare_is_the_run_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = hospitals("a", "b")
    config = written(tmp_path, {**SMALL, "sites": sites})
    with federation(tmp_path, sites) as far:
        said, _ = far.submit(config).communicate(timeout=400)
    runs = tmp_path / "coordinator" / "runs" / "far"
    assert (runs / "report.html").exists(), said
    assert outcome(runs) == near(tmp_path, config, monkeypatch)
    assert not (runs / "sites").exists(), "patients' folders lie at the hospitals"
    for site in sites:
        assert (far.home(site) / "report.html").exists()
        assert not ledgers.verify_ledger(far.home(site) / "ledger.jsonl")
        assert len(list(ledgers.read_lines(far.home(site) / "ledger.jsonl"))) > 10


@pytest.mark.slow
def test_hidden_sums_over_flare_are_those_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and masks are drawn anew each time, and cancel: the same scores. What is stored of each reply is words."""
    policy = {"secure_sum": {"hospitals": 3}}
    sites = {name: {**site, "policy": policy} for name, site in hospitals("a", "b", "c").items()}
    train = {**SMALL["train"], "secure_sum": True}  # type: ignore[dict-item]
    config = written(tmp_path, {**SMALL, "sites": sites, "train": train})
    undisturbed = near(tmp_path, config, monkeypatch)
    with federation(tmp_path, sites) as far:
        said, _ = far.submit(config).communicate(timeout=400)
    runs = tmp_path / "coordinator" / "runs" / "far"
    assert (runs / "report.html").exists(), said
    assert outcome(runs)["scores"] == undisturbed["scores"]
    for site in sites:
        for folder in far.home(site).glob("conversations/*/fed*"):
            reply = from_bytes(load_stored_reply(DiskFolder(folder), "train-2"))
            assert set(reply.tensors) == {MASKED}


@pytest.mark.slow
def test_methods_and_translation_over_flare_are_those_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg, SCAFFOLD, FENDA, CusFL, APPLE and PGFed, and VAFL; APPLE hands models to other hospitals."""
    policy = {"recipients": ["coordinator", "sites"]}
    sites = {name: {**site, "policy": policy} for name, site in hospitals("a", "b", "c").items()}
    methods = ("fedavg", "scaffold", "fenda", "cusfl", "apple", "pgfed")
    train = SMALL["train"] | {  # type: ignore[operator]
        "methods": {
            **{name: {"name": name} for name in methods},
            "cusfl": {"name": "cusfl", "depth": 2},
            "vafl": {"name": "fedavg"},
        },
        "method_work": {"scaffold": {"optimizer": "sgd", "lr": 0.05}},
        "method_images": {"vafl": "vafl"},
    }
    harmonize = {
        "score": {"release": "exact", "steps": 3, "seeds": 2, "perplexity": 5.0, "components": 5},
        "synthesis": {"name": "wgan_gp", "epsilon": None, "steps": 20, "prior": None},
        "sampling": {"name": "surrogate", "closeness": 1.0, "spacing": 0.0},
        "shared": 12,
        "copies": 2,
        "translate": {"vafl": {"name": "cyclegan", "steps": 6, "every": 3}},
        "veto": dict.fromkeys(field.name for field in fields(Limits)),
    }
    config = written(tmp_path, {**SMALL, "sites": sites, "train": train, "harmonize": harmonize})
    undisturbed = near(tmp_path, config, monkeypatch)
    with federation(tmp_path, sites) as far:
        said, _ = far.submit(config).communicate(timeout=900)
    runs = tmp_path / "coordinator" / "runs" / "far"
    assert (runs / "report.html").exists(), said
    assert outcome(runs) == undisturbed


@pytest.mark.slow
def test_hospitals_own_plans_over_flare_are_those_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hospital's own file says where its patients are, and the run says its plan."""
    sites = hospitals("a", "b")
    plans = {"a": {}, "b": OWN}
    config = written(
        tmp_path,
        own_settings(name="far", pooling="refused", sites={name: {**sites[name], **plans[name]} for name in sites}),
    )
    with federation(tmp_path, sites) as far:
        said, _ = far.submit(config).communicate(timeout=400)
    runs = tmp_path / "coordinator" / "runs" / "far"
    assert (runs / "report.html").exists(), said
    assert outcome(runs) == near(tmp_path, config, monkeypatch)


@pytest.mark.slow
def test_a_benchmark_over_flare_is_that_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hospitals, of which one trusts nobody. Without processes: tests/pipelines/test_benchmark.py."""
    images = Slices(size=16, spacing_mm=4.0)
    data = finished(model=Cnn(widths=(8, 8), norm="group"), images=images, source=NiftiSource(folder="."), gland=True)
    model = write_signed(tmp_path / "cnn.safetensors", data)
    sites = {name: {**site, "policy": TRUSTED} for name, site in hospitals("a", "b", "c").items()}
    sites["c"]["policy"] = {}
    plan = {"models": {"cnn": str(model)}, "copies": 20}
    config = written(tmp_path, {"name": "far", "benchmark": plan, "sites": sites})
    with federation(tmp_path, sites) as far:
        said, _ = far.submit(config).communicate(timeout=400)
    runs = tmp_path / "coordinator" / "runs" / "far"
    assert (runs / "benchmark.html").exists(), said
    assert not (runs / "sites").exists(), "patients' folders lie at the hospitals"
    (tmp_path / "near").mkdir()
    monkeypatch.chdir(tmp_path / "near")
    assert main([str(config)]) == 0
    here = tmp_path / "near" / "runs" / "far"
    assert [path.name for path in sorted(here.glob("replies/*"))] == ["cnn.a.safetensors", "cnn.b.safetensors"]
    for path in here.glob("replies/*"):
        assert (runs / "replies" / path.name).read_bytes() == path.read_bytes()
    told = [json.loads((root / "benchmark.json").read_text()) for root in (runs, here)]
    assert told[0]["hospitals"] == told[1]["hospitals"] and told[0]["scores"] == told[1]["scores"]
    assert told[0]["hospitals"][0]["reasons"]["cnn"]["code"] == "policy_model"
