"""A run without `train`: it scores, synthesizes, samples and translates, and ends with its page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from harmonized_run import HARMONIZE
from small_run import smallest

from pipelines.coordinator.permissions import list_needs
from pipelines.hospital.files import Files
from pipelines.hospital.intake import is_without_labels
from pipelines.loader.document import ConfigError, parse_document, render
from pipelines.requests.reading import Reading
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines.settings.load import check_config
from privacy.message import from_bytes

TRAINING = ("model", "train", "evaluate", "pooling")


def alone(**changes):
    """Two hospitals and harmonization, and nothing of training."""
    made = smallest(harmonize={**HARMONIZE, "translate": {"z": {"name": "z_score"}}}, **changes)
    made["images"] = {"kind": "slices", "size": 32, "spacing_mm": 3.0}
    return {key: value for key, value in made.items() if key not in TRAINING}


def run(folder: Path, said: dict, *options: str) -> int:
    path = folder / "alone.yaml"
    path.write_text(yaml.safe_dump(said))
    return main([str(path), *options])


def problems(said: dict) -> str:
    with pytest.raises(ConfigError) as error:
        check_config(parse_document(yaml.safe_dump(said), environment={}), files=False)
    return render(error.value, "my.yaml")


def test_it_ends_with_a_page_and_the_same_command_makes_nothing_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, alone()) == Exit.OK
    folder = tmp_path / "runs" / alone()["name"]
    made = {path.name for path in folder.iterdir() if path.is_dir()} - {"sites", "public", "federation"}
    assert made == {"ingest", "score", "synthesize", "sample", "translate", "report"}
    page = (folder / "report.html").read_text()
    assert "no model is trained" in page and "Image spaces" in page
    assert "How good" not in page and "Scores by hospital" not in page and "Size of methods" not in page
    assert all("Image spaces" in (folder / "sites" / site / "report.html").read_text() for site in alone()["sites"])
    assert "compare" not in "".join(str(path) for path in (folder / "sites").rglob("*"))  # no models to compare
    capsys.readouterr()
    assert run(tmp_path, alone()) == Exit.OK
    shown = capsys.readouterr().err
    assert shown.count("kept: nothing changed") == len(made)


def test_one_hospital_without_labels_shares_synthetic_images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path, alone(), "--until", "ingest") == Exit.OK
    written = next((tmp_path / "runs" / alone()["name"] / "sites").glob("*/phantom/*/images"))
    shutil.copytree(written, tmp_path / "studies")
    kind = "dicom" if any(path.suffix == ".dcm" for path in written.rglob("*")) else "nifti"
    said = alone()
    said["sites"] = {"only": {"source": {"kind": kind, "folder": str(tmp_path / "studies")}, "unlabelled": True}}
    said["images"] |= {"centre": "image"}
    said["split"] = {"train": 1.0, "validation": 0.0, "test": 0.0}
    said["harmonize"] |= {"translate": {}}
    said["name"] = "only"
    assert run(tmp_path, said) == Exit.OK
    shared = next((tmp_path / "runs" / "only" / "sample").rglob("*.safetensors"))
    tensors = from_bytes(shared.read_bytes()).tensors
    assert torch.equal(tensors["labels"].bincount(), torch.tensor([12, 12]))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"harmonize": None}, "train: missing; name at least one method"),
        (
            {"evaluate": {"reference": "local"}},
            "as in methods: {fedavg: {name: fedavg}}; evaluate.reference is for models",
        ),
        (
            {"train": {"methods": {"m": {"name": "local"}}, "schedule": {"rounds": 1}}},
            "model: missing; name a network for m",
        ),
    ],
)
def test_what_is_missing_or_of_no_use_is_named(change, text):
    assert text in problems({**alone(), **change})


def test_a_hospital_without_labels_cannot_train():
    said = smallest()
    said["sites"]["a"] = {"source": {"kind": "nifti", "folder": "studies"}, "unlabelled": True}
    assert "sites.a.unlabelled: methods learn from labels" in problems(said)
    said["sites"]["a"]["labels"] = {"kind": "table", "file": "labels.csv"}
    assert "it is for studies without labels" in problems(said)


@pytest.mark.parametrize("unlabelled", [True, False])
@pytest.mark.parametrize("target", [None, "gland"])
def test_volumes_without_labels_are_read_as_negative_by_no_question_about_labels(unlabelled, target):
    from pipelines.data.images import Slices
    from pipelines.data.sources import NiftiSource
    from pipelines.settings.learning import Split
    from privacy.release.form import ABSENT

    files = Files(NiftiSource(kind="nifti", folder="studies"), None, None)
    question = Reading(images=Slices(), split=Split(), seed=0, target=target, unlabelled=unlabelled or ABSENT)
    assert is_without_labels(files, question) == (target is None and not unlabelled)


def test_a_hospital_needs_to_answer_nothing_about_models():
    needed = list_needs(check_config(parse_document(yaml.safe_dump(alone()), environment={}), files=False))
    requests = {request for need in needed for request in need.requests}
    assert requests == {"survey", "ingest", "holds", "score", "synthesize", "sample", "translate", "report"}


def test_the_other_settings_of_training_stay_optional():
    config = check_config(parse_document(yaml.safe_dump(alone()), environment={}), files=False)
    assert isinstance(config, Config)
    assert config.model is None
    assert not config.train.methods


@pytest.mark.parametrize(
    ("harmonize", "noised"),
    [
        ({"score": {"release": "dp"}, "synthesis": {"name": "public"}}, True),
        ({"score": {"release": "exact"}, "synthesis": {"name": "public"}}, False),
        ({"score": {"release": "exact"}, "synthesis": {"name": "fitted_prior"}}, True),
        ({"score": {"release": "public"}, "synthesis": {"name": "dp_wgan_gp", "epsilon": 10}}, True),
    ],
)
def test_where_something_leaves_with_noise_no_patients_split_depends_on_others(harmonize, noised):
    """Otherwise a hospital would refuse the release with `dependent_patients`, after others have paid."""
    said = alone()
    said["harmonize"] = {**harmonize, "translate": {"z": {"name": "z_score"}}}
    config = check_config(parse_document(yaml.safe_dump(said), environment={}), files=False)
    assert config.independent == noised
