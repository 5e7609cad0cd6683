"""Folders that older programs left are opened by this one and cost nothing; those of newer ones are refused by name.

`tests/kept/COMMIT.tar.gz`: a private run over two small made-up tables, ledgers, models and an empty worklist, as the
program of that commit left them. None is ever made anew; who raises a format adds one.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from federation.outcome import load_outcome
from harmonize.intensity import ZScore
from pipelines.data.images import Slices
from pipelines.data.sources import NiftiSource
from pipelines.ledger import main as ledger_command
from pipelines.models.file import read_ready
from pipelines.models.recommended import read_recommended
from pipelines.models.translator_file import read_translator, write_translator
from pipelines.nights import worklist
from pipelines.nights.worklist import open_worklist
from pipelines.predict import main as predict
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder, digest_json, read_manifest
from pipelines.settings.harmonization import default_scale
from privacy.dp.accounting import compute_cost
from privacy.formats import LaterVersion
from privacy.message import Message, from_bytes, seal_parts, to_bytes, unseal_parts
from privacy.release import ledger as ledgers
from privacy.release.chain import Damaged
from privacy.settings_error import words_of

KEPT = sorted((Path(__file__).parents[1] / "kept").glob("*.tar.gz"))
LATER = "made by a later version (format 9; this program reads up to "


def unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")  # with the files' times, on which a survey depends
    return folder


@pytest.fixture(params=KEPT, ids=lambda path: path.name.partition(".")[0])
def kept(request, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(unpacked(request.param, tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def opened_once(tmp_path_factory) -> Path:
    """The newest folder, after this program wrote what the kept one did not. Not to be changed."""
    folder = unpacked(KEPT[-1], tmp_path_factory.mktemp("opened") / "kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["kept.yaml"]) == Exit.OK
    return folder


@pytest.fixture
def opened(opened_once, tmp_path, monkeypatch) -> Path:
    folder = Path(shutil.copytree(opened_once, tmp_path / "kept"))
    monkeypatch.chdir(folder)
    return folder


def epsilons(folder: Path) -> dict[str, float]:
    paths = sorted(folder.glob("homes/*/ledger.jsonl"))
    return {
        path.parent.name: compute_cost(ledgers.spent_events(ledgers.read_lines(path)), 1e-5).epsilon for path in paths
    }


def test_a_kept_folder_is_opened_and_its_run_costs_nothing(kept, capsys):
    before = epsilons(kept)
    assert len(before) == 2 and all(before.values())
    models = sorted(kept.glob("runs/kept/sites/*/ready/*.safetensors"))
    models = [path for path in models if "statistics" not in path.name]
    held = {path: path.read_bytes() for path in models}
    assert len(models) == 4
    for path in models:
        ready = read_ready(path)
        assert ready.probabilities(torch.zeros(2, *ready.task.inputs)).shape == (2, 2)
    for home in kept.glob("homes/*"):
        assert ledgers.verify_ledger(home / "ledger.jsonl") == []
        assert ledger_command(["sum", str(home)]) == Exit.OK
    open_worklist(kept / "nights" / "worklist.db").close()
    assert main(["kept.yaml", "--explain"]) == Exit.OK
    assert main(["kept.yaml"]) == Exit.OK, capsys.readouterr().err
    assert epsilons(kept) == before
    assert {path: path.read_bytes() for path in models} == held, "paid models stay as they are"


def test_the_kept_folders_are_small():
    assert KEPT and all(path.stat().st_size < 300_000 for path in KEPT)


def of_json(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 9}))


def of_manifest(path: Path) -> None:
    said = read_manifest(path.parent) | {"format": 9}
    path.write_text(json.dumps({**said, "seal": digest_json(said)}))


def of_sealed(path: Path) -> None:
    found = from_bytes(unseal_parts(path.read_bytes()))
    path.write_bytes(seal_parts(to_bytes(Message(found.tensors, {**found.facts, "format": 9}))))


def of_lines(path: Path) -> None:
    path.write_text(path.read_text() + json.dumps({"format": 9, "what": "nobody knows"}) + "\n")


def of_head(path: Path) -> None:
    path.write_text(json.dumps({"format": 9, "lines": [1, 2]}))


def of_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 9")


def run(folder: Path) -> str:
    assert main(["kept.yaml"]) != Exit.OK
    return ""


def opens(read: Callable[[Path], object], name: str) -> Callable[[Path], str]:
    def do(folder: Path) -> str:
        (path,) = folder.glob(name)
        with pytest.raises((LaterVersion, Damaged, worklist.Damaged)) as refused:
            read(path)
        return str(refused.value)

    return do


@dataclass(frozen=True)
class Newer:
    file: str
    change: Callable[[Path], None]
    read: Callable[[Path], str] = run


def of_state(path: Path) -> object:
    return load_outcome(DiskFolder(path.parent), f"kept/{path.parent.name}")


LEDGER = "homes/a/ledger.jsonl"
STATE = "runs/kept/federation/local-*/state"
READY = "runs/kept/sites/a/ready/local.safetensors"
NEWER = {
    "manifest": Newer("runs/kept/train/*/manifest.json", of_manifest),
    "versions": Newer("runs/kept/versions.json", of_json),
    "witness": Newer("runs/kept/witness.json", of_json),
    "state": Newer(STATE, of_sealed, opens(of_state, STATE)),
    "model": Newer(READY, of_sealed, opens(read_ready, READY)),
    "recommended": Newer(
        "runs/kept/sites/a/recommended.json",
        of_json,
        opens(lambda path: read_recommended(path.parent), "runs/kept/sites/a/recommended.json"),
    ),
    "ledger": Newer(LEDGER, of_lines, opens(lambda path: ledgers.append_line(path, {}), LEDGER)),
    "head": Newer("homes/a/ledger.head", of_head, opens(ledgers.read_head, LEDGER)),
    "worklist": Newer("nights/worklist.db", of_database, opens(open_worklist, "nights/worklist.db")),
}


@pytest.mark.parametrize("what", NEWER)
def test_what_a_newer_program_made_is_refused_by_name_and_nothing_is_paid(what, opened, capsys):
    folder, before = opened, epsilons(opened)
    path = max(folder.glob(NEWER[what].file), key=lambda one: one.stat().st_mtime_ns)  # of two reports the later
    NEWER[what].change(path)
    whole = path.read_bytes()
    capsys.readouterr()
    said = " ".join((NEWER[what].read(folder) + capsys.readouterr().err).split())
    assert LATER in said and "upgrade this program" in said, said
    assert "pydantic" not in said and "http" not in said
    assert path.read_bytes() == whole and (what == "ledger" or epsilons(folder) == before)


def test_a_translator_of_a_newer_program_is_refused_by_name(tmp_path):
    images = Slices(size=16)
    how = {"scale": default_scale(images), "images": images, "source": NiftiSource(folder="x"), "gland": False}
    made = {"settings": ZScore(), "params": {}, "site": "a", "vetoed": (), "origin": {}}
    write_translator(DiskFolder(tmp_path), "z", **made, **how)
    (path,) = tmp_path.glob("*.safetensors")
    read_translator(path)
    of_sealed(path)
    with pytest.raises(LaterVersion, match="made by a later version"):
        read_translator(path)


def test_errors_of_pydantic_are_told_in_words_without_a_link(kept, capsys):
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(dict[str, int]).validate_python({"a": "x", "b": "y"})
    assert "\n" not in words_of(refused.value) and "http" not in words_of(refused.value)
    assert words_of(refused.value).startswith("a: ")
    path = kept / READY
    found = from_bytes(unseal_parts(path.read_bytes()))
    path.write_bytes(seal_parts(to_bytes(Message(found.tensors, {**found.facts, "model": {"name": "no_such"}}))))
    assert predict([str(path), "a.csv", "--out", "out"]) == Exit.CONFIG
    said = capsys.readouterr().err
    assert "no_such" in said and "http" not in said and "validation error" not in said


@pytest.mark.repeats(6)
@pytest.mark.parametrize(
    "content", ["half", "", "[]", "{}", "null", "3", '{"stages": []}', '{"stages": {"train": "x"}}']
)
@pytest.mark.parametrize("option", ["", "--explain", "--check", "--spend"])
def test_a_damaged_list_of_versions_is_damage_and_no_bug(content, option, kept, capsys):
    path, before = kept / "runs/kept/versions.json", epsilons(kept)
    path.write_text('{"format": 1, "stages": {"train": 14, "eval' if content == "half" else content)
    damaged = path.read_bytes()
    assert main(["kept.yaml", *option.split()]) == Exit.DISK
    said = " ".join(capsys.readouterr().err.split())
    assert "versions.json is damaged (" in said and "restore it from a backup, or delete it" in said
    assert "object has no attribute" not in said and "free space" not in said
    assert path.read_bytes() == damaged and epsilons(kept) == before and not (kept / "runs/kept/trace.txt").exists()
    path.unlink()
    assert option or (main(["kept.yaml"]) == Exit.OK and epsilons(kept) == before), "the remedy is one"


UNREADABLE = ("9", 9, 2.5, True, False, -1, 0, [], {}, "")
NO_LEDGER = [what for what in NEWER if what not in ("worklist", "ledger", "head")]


def with_format(path: Path, form: Any) -> None:
    if path.suffix in (".safetensors", "") and path.suffix != ".json":
        found = from_bytes(unseal_parts(path.read_bytes()))
        path.write_bytes(seal_parts(to_bytes(Message(found.tensors, {**found.facts, "format": form}))))
    elif path.name == "manifest.json":
        said = read_manifest(path.parent) | {"format": form}
        path.write_text(json.dumps({**said, "seal": digest_json(said)}))
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": form}))


@pytest.mark.repeats(3)
@pytest.mark.parametrize("what", NO_LEDGER)
def test_a_format_that_is_no_whole_number_from_one_is_refused_by_name(what, opened, capsys):
    before = epsilons(opened)
    path = max(opened.glob(NEWER[what].file), key=lambda one: one.stat().st_mtime_ns)  # of two reports the later
    whole = path.read_bytes()
    for form in UNREADABLE:
        with_format(path, form)
        changed = path.read_bytes()
        capsys.readouterr()
        said = " ".join((NEWER[what].read(opened) + capsys.readouterr().err).split())
        assert "later version" in said and "upgrade this program" in said, (form, said)
        assert (type(form) is int and form > 1) or f"has the format {json.dumps(form)}" in said, (form, said)
        assert path.read_bytes() == changed and epsilons(opened) == before
        path.write_bytes(whole)


@pytest.mark.parametrize("form", [9, "9"])
def test_a_run_leaves_the_recommendation_of_a_later_version(form, opened, capsys):
    path = opened / "runs/kept/sites/a/recommended.json"
    with_format(path, form)
    changed = path.read_bytes()
    shutil.rmtree(opened / "runs/kept/report")
    assert main(["kept.yaml"]) == Exit.OK, capsys.readouterr().err
    assert path.read_bytes() == changed
    assert predict(["--recommended", str(path.parent), "a.csv", "--out", "out"]) == Exit.CONFIG
    assert "later version" in capsys.readouterr().err


def test_a_model_that_lacks_a_fact_is_read_or_refused_in_words(kept, capsys):
    path = kept / READY
    found, whole = from_bytes(unseal_parts(path.read_bytes())), path.read_bytes()
    refused = set()
    for name in found.facts:
        for fact in ({}, {name: None}):
            facts = {key: value for key, value in found.facts.items() if key != name} | fact
            path.write_bytes(seal_parts(to_bytes(Message(found.tensors, facts))))
            code = predict([str(path), "a.csv", "--out", str(kept / f"out-{name}")])
            said = capsys.readouterr().err
            assert code in (Exit.OK, Exit.CONFIG, Exit.DATA) and "Traceback" not in said, (name, fact, said)
            refused |= {name} if code == Exit.CONFIG else set()
            shutil.rmtree(kept / f"out-{name}", ignore_errors=True)
            if name == "label":
                assert code == Exit.CONFIG and "its label must be a method's name" in said
    assert {"label", "model", "format"} <= refused
    path.write_bytes(whole)
