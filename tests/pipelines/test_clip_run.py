"""A run on a CLIP that the user brings: prompts are learnt, the file is recorded, and finished models need no file."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from pathlib import Path

import pytest
import yaml

import small_clip
from federation.models.clip_words import parse_vocabulary
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.models.file import read_ready
from pipelines.predict import main as predict
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from pipelines_settings import BASE

TRAIN = {
    "schedule": {"rounds": 2},
    "work": {"lr": 1e-2, "batch": 16},
    "methods": {
        "zero_shot": {"name": "zero_shot"},
        "promptfl": {"name": "fedavg"},
        "pfedmoap": {"name": "pfedmoap", "d": 4, "heads": 2},
    },
}


@pytest.fixture
def brought(tmp_path) -> Path:
    """A tiny CLIP's files, in a folder whose name nobody needs to know."""
    folder = tmp_path / "secret_place"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(small_clip.file())
    (folder / "config.json").write_text(json.dumps(small_clip.CONFIG))
    (folder / "vocab.json").write_text(small_clip.VOCABULARY)
    (folder / "merges.txt").write_text(small_clip.MERGED)
    os.chdir(tmp_path)
    return folder / "model.safetensors"


def settings(file: Path, **said) -> dict[str, object]:
    model = {"name": "clip", "weights": str(file), "classes": small_clip.CLASSES, "context": 3, "window": [0.0, 3.0]}
    handed = {"recipients": ["coordinator", "sites"]}
    sites = {name: {**one, "policy": {**one.get("policy", {}), **handed}} for name, one in BASE["sites"].items()}
    evaluate = {"copies": 20, "reference": "promptfl"}
    return {**BASE, "sites": sites, "model": {**model, **said}, "train": TRAIN, "evaluate": evaluate}


def test_prompts_are_learnt_the_digest_is_recorded_and_a_finished_model_needs_no_file(brought, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings(brought)))
    assert run(["tiny.yaml"]) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    code = hashlib.sha256(brought.read_bytes()).hexdigest()
    (manifest,) = home.glob("features/*/manifest.json")
    assert code in manifest.read_text()
    statement = (next(home.glob("report/*/statement.md"))).read_text()
    assert f"a frozen network (clip) of a file with SHA-256 {code}" in " ".join(statement.split())
    said = [path for path in (home / "sites").rglob("*") if path.is_file() and b"secret_place" in path.read_bytes()]
    assert said == []  # the coordinator's folders are not sent
    (trained,) = home.glob("train/*/promptfl.json")
    assert json.loads(trained.read_text())["parameters"] == 3 * 8
    brought.unlink()
    site = home / "sites" / "a"
    assert (site / "ready" / "zero_shot.safetensors").exists()
    assert read_ready(site / "ready" / "pfedmoap.safetensors").origin.label == "pfedmoap"
    (files,) = site.glob("phantom/*/images")
    arguments = [str(files), "--gland", str(files.parent / "masks" / "gland"), "--out", str(tmp_path / "out")]
    assert predict([str(site / "ready" / "pfedmoap.safetensors"), *arguments]) == Exit.OK
    with (tmp_path / "out" / "predictions.csv").open() as file:
        assert all(0 <= float(line["score"]) <= 1 for line in csv.DictReader(file))


def test_words_stand_in_the_order_of_the_task_whatever_the_order_in_the_yaml(brought):
    known, of = parse_vocabulary(small_clip.VOCABULARY, small_clip.MERGED), []
    for classes in (dict(reversed(small_clip.CLASSES.items())), small_clip.CLASSES):
        text = yaml.safe_dump(settings(brought, classes=classes), sort_keys=False)
        of.append(validate_settings(read_yaml(text, environment={}), Config).task_of("promptfl").model.tokens)
    assert of[0] == of[1] == tuple(known.sentence(f"{one}.") for one in ("nevus", "an ulcer"))


def told(said: dict[str, object], capsys) -> str:
    Path("x.yaml").write_text(yaml.safe_dump(said))
    assert run(["x.yaml", "--check"]) == Exit.CONFIG
    return " ".join(capsys.readouterr().err.split())


def test_what_cannot_serve_is_told_before_anything_runs(brought, capsys):
    assert "words for those of the task, ['negative', 'positive'], found ['benign', 'positive']" in told(
        settings(brought, classes={"positive": "ulcer", "benign": "nevus"}), capsys
    )
    assert "SHA-256 is" in told(settings(brought, sha256="0" * 64), capsys)
    other = settings(brought)
    other["train"] = {**TRAIN, "methods": {"fenda": {"name": "fenda"}, "promptfl": {"name": "fedavg"}}}
    assert "fenda takes a network apart, and a prompt is one tensor" in told(other, capsys)
    other["model"] = {"name": "cnn", "widths": [8, 8]}
    other["train"] = {**TRAIN, "methods": {"promptfl": {"name": "fedavg"}, "pfedmoap": {"name": "pfedmoap"}}}
    assert "pfedmoap learns prompts of a frozen CLIP, found cnn" in told(other, capsys)
    (brought.parent / "merges.txt").unlink()
    assert "merges.txt cannot be read" in told(settings(brought), capsys)
    brought.write_bytes(b"\x80\x04 pickled")
    (brought.parent / "merges.txt").write_text(small_clip.MERGED)
    assert "it is no safetensors file, or a damaged one" in told(settings(brought), capsys)


def test_prompts_are_learnt_privately_and_what_left_has_an_epsilon(brought, tmp_path):
    said = settings(brought)
    said |= {"privacy": {"epsilon": 8.0, "sampling": 0.5, "views": 2}, "pooling": "refused"}
    said |= {"audit": {"membership": False, "canaries": 0}, "evaluate": {"copies": 2, "reference": "promptfl"}}
    sites = {name: dict(one) for name, one in said["sites"].items()}
    for one in sites.values():
        one["policy"] = {"recipients": ["coordinator", "sites"], "public": ["counts"], "require": "privacy"}
        one["policy"]["budget"] = {"epsilon": 40.0}
    said["sites"] = sites
    (tmp_path / "private.yaml").write_text(yaml.safe_dump(said))
    assert run(["private.yaml"]) == Exit.OK
    home = tmp_path / "runs" / BASE["name"]
    assert (home / "sites" / "a" / "ready" / "pfedmoap.safetensors").exists()
    statement = " ".join((next(home.glob("report/*/statement.md"))).read_text().split())
    assert "handed on to all other sites" in statement
    assert "no formal guarantee" not in statement
