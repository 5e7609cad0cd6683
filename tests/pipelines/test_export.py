"""Exports of a finished run: the bundle says what `predict` says, the card what the run's report says, and no more."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from pipelines.export import main as export
from pipelines.predict import main as predict
from pipelines.runs.exits import Exit
from pipelines_settings import BASE
from privacy.release import ledger as ledgers

FEDPER = Path("runs/tiny/sites/a/ready/fedper.safetensors")


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    """A finished run's folder. Not to be changed."""
    return finished_run(BASE, figures=True)  # as test_run has it


@pytest.fixture
def copied(done, tmp_path, monkeypatch) -> Path:
    """A copy of what an export reads."""
    monkeypatch.chdir(tmp_path)
    for place in ("sites/a", "report", "train"):
        shutil.copytree(done / "runs/tiny" / place, tmp_path / "runs/tiny" / place)
    return tmp_path


def images(done: Path) -> str:
    (found,) = done.glob("runs/tiny/sites/a/phantom/*/images")
    return str(found)


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow  # a smaller case: the same bundle is read by MONAI in this process, below
def test_monais_own_runner_gives_the_scores_of_predict(done, tmp_path):
    """On files of images, in a process of its own that is given no code of ours."""
    for package in ("ignite", "fire"):
        pytest.importorskip(package, reason="MONAI's runner needs it")
    model, out, folder = str(done / FEDPER), tmp_path / "out", images(done)
    assert export([model, "--out", str(out), "--bundle", "--examples", folder, "--no-gland"]) == Exit.OK
    bundle = out / "fedper"
    command = ["-m", "monai.bundle", "run", "--bundle_root", str(bundle)]
    command += ["--meta_file", f"{bundle}/configs/metadata.json", "--config_file", f"{bundle}/configs/inference.json"]
    command += ["--dataset_dir", str(out / "examples"), "--output_dir", str(tmp_path / "eval")]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run([sys.executable, *command], cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr[-2000:]
    lines = [line.split(",") for line in (tmp_path / "eval/predictions.csv").read_text().splitlines()]
    theirs = {Path(name).name: [float(p) for p in numbers] for name, *numbers in lines}
    ours = {row["file"]: row for row in table(out / "examples.csv")}
    assert theirs.keys() == ours.keys() and len(theirs) > 30
    for name, row in ours.items():
        assert np.allclose(theirs[name], [float(row["p_negative"]), float(row["p_positive"])], rtol=0, atol=1e-5)
    assert predict([model, folder, "--no-gland", "--out", str(tmp_path / "p")]) == Exit.OK
    highest = {}
    for name, row in ours.items():
        highest[row["study"]] = max(highest.get(row["study"], 0.0), theirs[name][1])
    for row in table(tmp_path / "p/predictions.csv"):
        assert abs(float(row["score"]) - highest[row["study"]]) <= 1e-5


def test_a_bundle_has_the_parts_that_monai_asks_for(done, tmp_path):
    """By MONAI's own tables of properties. Its JSON schema lies behind a URL, so the keys that it asks for are here."""
    pytest.importorskip("ignite", reason="MONAI's runner needs it")
    from monai.bundle import ConfigWorkflow
    from monai.bundle.properties import InferProperties, MetaProperties

    assert export([str(done / FEDPER), "--out", str(tmp_path), "--bundle", "--licence", "CC BY 4.0"]) == Exit.OK
    bundle = tmp_path / "fedper"
    said = json.loads((bundle / "configs/metadata.json").read_text())
    keys = ("version", "changelog", "monai_version", "pytorch_version", "numpy_version", "required_packages_version")
    assert {*keys, "schema", "task", "description", "authors", "copyright", "network_data_format"} <= said.keys()
    for part in (said["network_data_format"]["inputs"]["image"], said["network_data_format"]["outputs"]["pred"]):
        kept = {"type", "format", "num_channels", "spatial_shape", "dtype", "value_range", "is_patch_data"}
        assert kept | {"channel_def"} <= part.keys()
        assert len(part["channel_def"]) == part["num_channels"]
    whole = ConfigWorkflow(
        workflow_type="infer",
        config_file=str(bundle / "configs/inference.json"),
        meta_file=str(bundle / "configs/metadata.json"),
        bundle_root=str(bundle),
        logging_file=False,
        properties_path=None,
    )
    whole.properties = {**InferProperties, **MetaProperties}
    whole.initialize()
    assert not whole.check_properties()
    assert (bundle / "LICENSE").read_text() == "CC BY 4.0\n"


def test_the_cards_figures_are_those_of_the_coordinators_report_and_of_this_hospital_alone(copied):
    assert export([str(FEDPER), "--out", "out", "--card"]) == Exit.OK
    card = json.loads(Path("out/fedper.card.json").read_text())
    (path,) = Path("runs/tiny/report").glob("*/report.json")
    report = json.loads(path.read_text())
    own = [r for r in report["scores"] if (r["method"], r["protocol"], r["sites"]) == ("fedper", "private", ["a"])]
    assert len(own) >= 5
    assert [{name: row[name] for name in card["scores"][0]} for row in own] == card["scores"]
    assert card["training_data"]["splits"] == next(one for one in report["sites"] if one["site"] == "a")["splits"]
    assert card["privacy"]["statement"]["epsilon"] == "Infinity"
    assert card["settings"]["stages"] == {one["stage"]: one["why"] for one in report["stages"]}
    text = Path("out/fedper.card.md").read_text()
    for row in own:
        assert f"| {row['measure']} | {row['value']:.3f} |" in text
    assert '"b"' not in json.dumps(card) and " b " not in text, "another hospital's figures are its own"
    assert "stays at the hospital" in text


def test_a_report_of_another_training_is_refused_and_without_one_no_figure_is_given(copied, capsys):
    (path,) = Path("runs/tiny/report").glob("*/report.json")
    for made in Path("runs/tiny/train").glob("*/fed*.json"):
        made.write_text(made.read_text().replace("tiny/fed", "tiny/other"))
    assert export([str(FEDPER), "--out", "out", "--card"]) == Exit.CONFIG
    assert "it reports another training of this method" in " ".join(capsys.readouterr().err.split())
    assert not Path("out").exists()
    page = json.loads(path.read_text())
    path.unlink()
    assert export([str(FEDPER), "--out", "out", "--card"]) == Exit.OK
    card = json.loads(Path("out/fedper.card.json").read_text())
    assert card["scores"] is None and card["training_data"] is None and card["privacy"]["statement"] is None
    assert any("without the report of the run" in one for one in card["limits"])
    path.write_text(json.dumps({**page, "sites": [], "models": []}))
    assert export([str(FEDPER), "--out", "out", "--card"]) == Exit.CONFIG
    told = " ".join(capsys.readouterr().err.split())
    assert "it knows no hospital a; it knows no method fedper" in told, "all problems at once"


def home(folder: Path, **policy) -> Path:
    """The hospital's folder, with its ledger and its policy."""
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    return folder


def test_what_leaves_needs_the_policy_and_is_in_the_ledger_before_it_is_written(copied, capsys):
    place = Path("runs/tiny/sites/a")
    before = len([*ledgers.read_lines(place / "ledger.jsonl")])
    asked = [str(FEDPER), "--out", "out", "--bundle", "--card", "--release", str(place)]
    assert export(asked) == Exit.CONFIG
    assert "policy.yaml is not there" in " ".join(capsys.readouterr().err.split())
    home(place, requests=["train"])
    assert export(asked) == Exit.CONFIG
    told = " ".join(capsys.readouterr().err.split())
    assert "does not answer `export`" in told and "names no recipient `outside`" in told
    home(place, recipients=["coordinator", "outside"], budget={"epsilon": 1.0}, requests=["export"])
    assert export(asked) == Exit.CONFIG
    assert "its budget does not allow a model that was shaped by patients without noise" in capsys.readouterr().err
    assert not Path("out").exists(), "nothing is written that was not booked"
    home(place, recipients=["coordinator", "outside"])
    assert export(asked) == Exit.OK
    lines = [*ledgers.read_lines(place / "ledger.jsonl")][before:]
    refused, left = [line for line in lines if line["refused"]], [line for line in lines if not line["refused"]]
    assert [line["refused"] for line in refused] == ["budget"]
    files = [path for path in Path("out").rglob("*") if path.is_file()]
    assert {line["sha256"] for line in left} == {ledger_digest(path) for path in files}
    assert {(line["request"], line["recipient"]) for line in left} == {("export", "outside")}
    assert "Released by the hospital to others" in Path("out/fedper.card.md").read_text()


def ledger_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "say what to make: --onnx, --bundle or --card"),
        (["--card", "--release", "x", "--examples", "y"], "--examples are patients' images, which never leave"),
        (["--card", "--report", "nowhere.json"], "nowhere.json"),
        (["--bundle", "--examples", "nowhere"], "nowhere"),
    ],
)
def test_wrong_command_lines_say_what_is_wrong(copied, arguments, words, capsys):
    assert export([str(FEDPER), "--out", "out", *arguments]) in (Exit.CONFIG, Exit.DISK)
    told = " ".join(capsys.readouterr().err.split())
    assert words in told and "Traceback" not in told
    assert not Path("out").exists()
