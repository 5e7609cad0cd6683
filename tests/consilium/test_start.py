"""Runs that begin with weights of a file: what follows, what is told of them, and what cannot be."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from api_pictures import ARGUMENTS, dense, train
from safetensors.torch import save_file

import consilium
from consilium import ConfigError, PatientLevel, Policy, Weights
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.parameters import read_parameters
from federation.rehearsal import initial_parameters
from federation.task import Task
from pipelines.exports.card import build_card
from pipelines.run import main
from pipelines.runs.exits import Exit

MLP = Mlp(hidden=(4,))
TASK = Task(MLP, (1, 8, 8), 2)
SGD = {"optimizer": "sgd", "lr": 0.05, "batch": 8, "epochs": None, "steps": 2}


def written(path: Path, seed: int) -> Path:
    save_file(dict(initial_parameters(FedAvg(), TASK, seed=seed)), path)
    return path


def weights(results: consilium.Results, method: str = "fedavg") -> dict[str, torch.Tensor]:
    return dict(read_parameters(results.model(method, "north")))


def test_a_start_from_the_initial_values_is_no_start_and_another_is_one(tmp_path: Path) -> None:
    """The seed of a run is 0: its networks begin with these values anyway."""
    plain = train(tmp_path / "plain", MLP, method=["fedavg", "ditto"])
    again = train(tmp_path / "again", MLP, method=["fedavg", "ditto"], start=written(tmp_path / "0.safetensors", 0))
    file = str(written(tmp_path / "1.safetensors", 1))
    other = train(tmp_path / "other", MLP, method=["fedavg", "ditto"], start=Weights(file=file))
    for method in ("fedavg", "ditto"):
        ours, theirs = weights(plain, method), weights(again, method)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        assert plain.losses[method] == again.losses[method] != other.losses[method]
    assert str(plain.rows) == str(again.rows)
    assert plain.starts == {}
    assert set(again.starts) == {"fedavg", "ditto"}


def test_what_is_told_of_a_file_is_its_digest_and_that_nobody_calls_it_public(tmp_path: Path) -> None:
    file = written(tmp_path / "start.safetensors", 1)
    code = hashlib.sha256(file.read_bytes()).hexdigest()
    changes: dict[str, Any] = {"method": "fedavg", "start": file}
    results = train(tmp_path / "run", MLP, **changes)
    assert results.starts["fedavg"] == {"weights": {"public": False, "head": "kept"}, "sha256": code}
    said = " ".join(results.statements["north"].text.split())
    assert (
        f"networks began with weights of a file (SHA-256 {code}) that the coordinator brought; it does not say" in said
    )
    assert "no ε here covers those whose data shaped them" in said and str(tmp_path) not in said
    outside = results.statements["north"].outside[-1]
    assert outside.startswith("Those whose data shaped weights of a file with which networks began") and code in outside
    ready = results.ready("fedavg", "north")
    assert ready.origin.start == results.starts["fedavg"], "the finished model knows it, wherever it goes"
    limits = build_card(ready, None, licence="", leaves="").limits
    assert any(one.startswith(f"Networks began with weights of a file (SHA-256 {code})") for one in limits)
    (manifest,) = results.folder.glob("pretrain/*/manifest.json")
    assert code in manifest.read_text()
    written(file, 2)
    changed = train(tmp_path / "run", MLP, **changes)
    assert "train" in changed.ran and changed.starts["fedavg"]["sha256"] != code, "another file is another start"
    public = train(tmp_path / "public", MLP, **{**changes, "start": Weights(file=str(file), public=True)})
    text = " ".join(public.statements["north"].text.split())
    assert "that the coordinator brought and calls public" in text and "no ε here covers" not in text
    assert not any("began" in one for one in public.statements["north"].outside)
    plain = train(tmp_path / "plain", MLP, method="fedavg")
    assert plain.ready("fedavg", "north").origin.start is None


def test_a_private_run_pays_nothing_for_it_and_check_says_what_no_epsilon_covers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = {
        "privacy": PatientLevel(epsilon=8.0),
        "policy": Policy(public=("counts",)),
        "method": "fedavg",
        "work": SGD,
    }
    plain = train(tmp_path / "plain", MLP, **private)
    begun = train(tmp_path / "begun", MLP, start=written(tmp_path / "1.safetensors", 1), **private)
    assert plain.statements["north"].epsilon == begun.statements["north"].epsilon
    assert begun.yaml is not None and main([str(begun.yaml), "--check"]) == Exit.OK
    said = " ".join(capsys.readouterr().err.split())
    assert "! train: fedavg begins with" in said and "not said to be public: no epsilon covers" in said


def test_weights_of_a_monai_network_serve_as_it_saves_them(tmp_path: Path) -> None:
    torch.manual_seed(3)
    network = dense((1, 8, 8), 2)
    file = tmp_path / "monai.safetensors"
    save_file(network.state_dict(), file)
    model = {"name": "monai", "network": "DenseNet", "arguments": ARGUMENTS}
    results = train(tmp_path / "run", model, method={"begun": {"name": "as_begun"}}, start=file)
    found = results.model("begun", "north")
    x = torch.randn(3, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(found(x).logits, network.eval()(x))


def test_a_file_that_cannot_serve_is_told_before_anything_runs(tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not a network")
    pickled = tmp_path / "net.pt"
    torch.save({"x": torch.zeros(1)}, pickled)
    other = tmp_path / "other.safetensors"
    save_file({"stem.weight": torch.zeros(3)}, other)
    good = written(tmp_path / "good.safetensors", 0)
    cases: list[tuple[Any, str]] = [
        (tmp_path / "none.safetensors", r"train.start.file: .*none.safetensors cannot be read \(No such file"),
        (tmp_path, r"cannot be read \(Is a directory\)"),
        (broken, "is no safetensors file .*write one by safetensors.torch.save_file"),
        (pickled, "is no safetensors file .*nothing else is opened"),
        (other, "is not of this network: 4 of the network's 4 tensors are missing: .*1 are none of the network's"),
        (Weights(file=str(good), sha256="0" * 64), "has the SHA-256 .*and sha256 says 0000.*take the right file"),
        ({"name": "weights"}, r"train.start.file: missing"),
        ({"name": "wights", "file": "x"}, "wights"),
        ({"x": torch.zeros(1)}, "start: must be the path of a safetensors file, or settings as Weights.*found dict"),
        (dense((1, 8, 8), 2), "found DenseNet; safetensors.torch.save_file"),
    ]
    for start, words in cases:
        with pytest.raises(ConfigError, match=words):
            train(tmp_path / "run", MLP, start=start)
    assert not (tmp_path / "run").exists()


def test_a_method_may_begin_otherwise(tmp_path: Path) -> None:
    file = str(written(tmp_path / "1.safetensors", 1))
    more = {"evaluate": {"copies": 0}, "audit": {"membership": False, "canaries": 0}}
    results = train(tmp_path / "run", MLP, start=file, settings={**more, "train": {"method_start": {"fenda": None}}})
    assert set(results.starts) == {"fedavg"}
    (start,) = results.folder.glob("pretrain/*/start-*.json")
    assert json.loads(start.read_text())["weights"] == {"public": False, "head": "kept"}
