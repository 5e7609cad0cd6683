"""Cleaning never touches a ledger, a key or anything outside; and the same run command works afterwards."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines import clean
from pipelines.run import main as run_main
from pipelines.runs.exits import Exit
from pipelines.runs.holdings import KINDS
from pipelines.runs.stopping import RunLock, Stop, Stopped
from pipelines.runs.store import write_artifact

DAY = 86400.0
PRECIOUS = ("ledger.jsonl", "ledger.head", "pseudonym.key", "linkage.json", "log.txt", "budget.json")
TRANSLATIONS = (
    "fitting/translate-0123456789ab/state",
    "translators/vafl.safetensors",
    "qualities/vafl.0123456789ab.json",
    "maps/map.safetensors",
)
TINY = {
    "name": "tiny",
    "privacy": "none",
    "pooling": "allowed",
    "sites": {
        name: {
            "source": {
                "kind": "phantom",
                "scanner": "P",
                "patients": 8,
                "seed": seed,
                "slices": 4,
                "format": wrote,
            },
            "policy": {"pooling": True},
        }
        for name, seed, wrote in (("a", 1, "dicom"), ("b", 2, "nifti"))
    },
    "images": {"kind": "slices", "size": 32, "spacing_mm": 2.0},
    "split": {"train": 0.5, "validation": 0.25, "test": 0.25},
    "model": {"name": "cam", "widths": [8, 8, 8, 8]},
    "train": {
        "schedule": {"rounds": 2},
        "methods": {"fedavg": {"name": "fedavg"}, "central": {"name": "central"}},
    },
    "evaluate": {"copies": 5, "reference": None},
}


# A made-up tree: what is where, how old it is, and what would be needed.


def put(path: Path, text: str, days: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - days * DAY,) * 2)


def aged(folder: Path, days: float) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - days * DAY,) * 2)


def tree(runs: Path, days: dict[str, float]) -> dict[str, list[Path]]:
    """A run with one item of every kind that nothing needs; the paths of each kind."""
    run, name = runs / "r", "fedavg-0123456789ab"
    put(run / ".lock", "", 0)
    digest = "0" * 12
    place = write_artifact(run, "train", digest, lambda out: {}, about={"inputs": {}})
    aged(place, days["artifacts"])
    write_artifact(run, "train", "1" * 12, lambda out: {}, about={"inputs": {}})  # the newest, so the other is old news
    found = {"artifacts": [place]}
    sites = [run / "sites" / site for site in "ab"]
    for site in sites:
        for precious in PRECIOUS:
            put(site / precious, f"{precious} of {site.name}", 1000)
        put(site / "cohorts" / "c" / "cohort.safetensors", "images", days["cohorts"])
        put(site / "cohorts" / "c" / "split.json", "{}", days["cohorts"])
        for answer in ("introduce-0", "train-1", "finish-2"):
            put(site / "conversations" / "r" / name / answer, answer, days["conversations"])
        put(site / "models" / "r" / name / "1", "weights", days["models"])
        put(site / "scores" / f"{name}.global.1.safetensors", "scores", days["scores"])
        put(site / "ready" / "fedavg.safetensors", "weights", days["ready"])
        for translation in TRANSLATIONS:
            put(site / translation, "{}", days["translations"])
        put(site / "phantom" / "p" / "images" / "1.dcm", "image", days["phantoms"])
        put(site / "phantom" / "p.txt", "digest", days["phantoms"])
        put(site / "phantom" / "q" / "images" / "1.dcm", "image", -1)  # the newest
        put(site / "phantom" / "q.txt", "digest", -1)
        put(site / "archive" / "k" / "images" / "1" / "1.dcm", "image", 5000)  # its time follows from its content
        put(site / "archive" / "k" / "odd.json", "[]", days["copies"])
        put(site / "archive" / "l" / "odd.json", "[]", -1)  # the newest
        put(site / "report.html", "page", days["reports"])
        put(site / "report.json", "{}", days["reports"])
        put(site / ".part-0123456789abcdef" / "half", "half", days["leftovers"])
    put(run / "federation" / name / "state", "state", days["conversations"])
    put(run / "federation" / name / "begun", "", days["conversations"])
    put(run / "notes.txt", "somebody's own file", 1000)
    found["cohorts"] = [site / "cohorts" / "c" for site in sites]
    found["conversations"] = [run / "federation" / name, *(site / "conversations" / "r" / name for site in sites)]
    found["models"] = [site / "models" / "r" / name for site in sites]
    found["scores"] = [site / "scores" / f"{name}.global.1.safetensors" for site in sites]
    found["ready"] = [site / "ready" / "fedavg.safetensors" for site in sites]
    found["translations"] = [site / translation for site in sites for translation in TRANSLATIONS]
    found["phantoms"] = [site / "phantom" / inner for site in sites for inner in ("p", "p.txt")]
    found["copies"] = [site / "archive" / "k" for site in sites]
    found["leftovers"] = [site / ".part-0123456789abcdef" for site in sites]
    return found


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", ".lock.json")
    }


ages = st.dictionaries(st.sampled_from(KINDS), st.integers(0, 60), min_size=len(KINDS), max_size=len(KINDS))


@settings(max_examples=60)
@given(days=ages, chosen=st.sets(st.sampled_from(KINDS), min_size=1), limit=st.integers(0, 60), yes=st.booleans())
def test_exactly_what_is_old_and_asked_for_goes_and_nothing_else(tmp_path_factory, days, chosen, limit, yes):
    runs = tmp_path_factory.mktemp("tree") / "runs"
    days = {kind: number + 0.5 for kind, number in days.items()}  # never at the very limit
    found = tree(runs, days)
    before = everything(runs)
    words = [str(runs), "--older-than", f"{limit}d", "--kind", ",".join(sorted(chosen)), *(["--yes"] if yes else [])]
    assert clean.main(words) == Exit.OK
    after = everything(runs)
    going = [path for kind, paths in found.items() if kind in chosen and days[kind] > limit for path in paths] * yes
    gone = {name for name in before if any((runs / name).is_relative_to(path) for path in going)}
    assert after == {name: data for name, data in before.items() if name not in gone}
    assert {name for name in after if Path(name).name in PRECIOUS} == {
        f"r/sites/{s}/{p}" for s in "ab" for p in PRECIOUS
    }


def test_links_are_not_followed_wherever_they_lie(tmp_path, capsys):
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    tree(runs, dict.fromkeys(KINDS, 50.0))
    for name in ("cohorts/c", "scores", "r/x-0123456789ab"):
        put(outside / name / "cohort.safetensors", "somebody else's", 1000)
    site = runs / "r" / "sites" / "a"
    (site / "cohorts" / "linked").symlink_to(outside / "cohorts" / "c")
    shutil.rmtree(site / "scores")
    (site / "scores").symlink_to(outside / "scores")
    (site / "models" / "linked").symlink_to(outside / "r")
    (site / "cohorts" / "c" / "inside").symlink_to(outside)
    (runs / "r" / "sites" / "z").symlink_to(outside)
    (runs / "other").symlink_to(runs / "r")
    before = everything(outside)
    assert clean.main([str(runs), "--older-than", "0h", "--run", "r", "--needed", "--yes"]) == Exit.OK
    assert everything(outside) == before and len(before) == 3
    assert not (site / "cohorts" / "c").exists() and (site / "cohorts" / "linked").is_symlink()
    link = tmp_path / "link"
    link.symlink_to(runs)
    with pytest.raises(SystemExit) as ended:
        clean.main([str(link), "--older-than", "0h", "--yes"])
    assert ended.value.code == Exit.CONFIG and "links are not followed" in capsys.readouterr().err


def test_a_linked_lock_is_not_written_through(tmp_path):
    runs, outside = tmp_path / "runs", tmp_path / "precious"
    tree(runs, dict.fromkeys(KINDS, 50.0))
    outside.write_text("precious")
    (runs / "r" / ".lock.json").symlink_to(outside)
    before = everything(runs)
    assert clean.main([str(runs), "--older-than", "1d", "--yes"]) == Exit.DISK
    assert outside.read_text() == "precious" and everything(runs) == before


def test_a_run_at_work_is_left_alone_and_the_others_are_cleaned(tmp_path, capsys):
    for name in ("one", "two"):
        tree(tmp_path / name, dict.fromkeys(KINDS, 50.0))
        shutil.move(tmp_path / name / "r", tmp_path / "runs" / name)
    before = everything(tmp_path / "runs" / "one")
    with RunLock(tmp_path / "runs" / "one"):
        assert clean.main([str(tmp_path / "runs"), "--older-than", "30d", "--yes"]) == Exit.LOCKED
        assert f"process {os.getpid()}" in " ".join(capsys.readouterr().out.split())
    assert everything(tmp_path / "runs" / "one") == before
    assert not (tmp_path / "runs" / "two" / "sites" / "a" / "cohorts" / "c").exists()


@pytest.mark.parametrize("at", range(12))
def test_killed_anywhere_nothing_half_deleted_looks_whole(tmp_path, monkeypatch, at):
    runs = tmp_path / "runs"
    found = tree(runs, dict.fromkeys(KINDS, 50.0))
    before = everything(runs)
    left = [at]

    def killing(function):
        def wrapped(*args, **kwargs):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return function(*args, **kwargs)

        return wrapped

    with monkeypatch.context() as patched:
        for name in ("unlink", "rmdir", "rename"):
            patched.setattr(os, name, killing(getattr(os, name)))
        with pytest.raises(KeyboardInterrupt):
            clean.main([str(runs), "--older-than", "1d", "--yes"])
    after = everything(runs)
    for paths in found.values():
        for path in paths:
            mine = {name: data for name, data in before.items() if (runs / name).is_relative_to(path)}
            still = {name: data for name, data in after.items() if (runs / name).is_relative_to(path)}
            assert still in ({}, mine) or path.name.startswith(".part-"), path
    federation, *answers = found["conversations"]
    assert all(path.exists() for path in answers) or not federation.exists()  # sites forget after the coordinator
    assert clean.main([str(runs), "--older-than", "0h", "--kind", "leftovers", "--yes"]) == Exit.OK
    assert not list(runs.rglob(".part-*"))


def test_models_of_a_training_in_the_middle_go_only_with_its_conversation(tmp_path, capsys):
    found = tree(tmp_path / "runs", dict.fromkeys(KINDS, 50.0))
    for path in found["conversations"]:
        (path / "finish-2").unlink(missing_ok=True)
    words = [str(tmp_path / "runs"), "--older-than", "1d", "--yes", "--kind"]
    assert clean.main([*words, "models"]) == Exit.OK
    assert all(path.exists() for path in found["models"]) and "its training is unfinished" in capsys.readouterr().out
    assert clean.main([*words, "models,conversations"]) == Exit.OK
    assert not any(path.exists() for path in found["models"] + found["conversations"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "does not exist"),
        (["file"], "is a file"),
        (["runs/r"], "is one run; give the folder around it"),
        (["runs", "--run", "s"], "no such run below runs; there are r"),
        (["runs", "--yes"], "--yes needs --older-than"),
        (["runs", "--older-than", "1d", "--needed"], "--needed needs --run"),
        (["runs", "--older-than", "30"], "an age is a whole number with h, d or w"),
        (["runs", "--kind", "ledgers"], "no such kind: ledgers"),
    ],
)
def test_wrong_words_are_told_with_their_remedy(tmp_path, monkeypatch, capsys, words, told):
    tree(tmp_path / "runs", dict.fromkeys(KINDS, 50.0))
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        clean.main(words)
    assert ended.value.code == Exit.CONFIG and told in " ".join(capsys.readouterr().err.split())


def test_looking_changes_nothing_and_counts_every_byte(tmp_path, capsys):
    tree(tmp_path / "runs", dict.fromkeys(KINDS, 50.0))
    before = everything(tmp_path / "runs")
    assert clean.main([str(tmp_path / "runs"), "--json"]) == Exit.OK
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    counted = sum(item["bytes"] for item in run["items"]) + run["never_removed"]["bytes"]
    assert counted == sum(map(len, before.values())) and {item["kind"] for item in run["items"]} == set(KINDS)
    assert clean.main([str(tmp_path / "runs")]) == Exit.OK
    assert "never removed" in capsys.readouterr().out and everything(tmp_path / "runs") == before


# A real run: the same command goes on after any cleaning.


@pytest.fixture
def copy(finished_run, tmp_path, monkeypatch) -> Path:
    shutil.copytree(finished_run(TINY), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "tiny"


def ledgers(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("ledger.jsonl"))}


def scores(run: Path) -> list[dict]:
    newest = max(run.glob("report/*/scores.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(newest.read_text())


def works_again(run: Path, words: list[str]) -> None:
    """Clean; the ledgers are as they were; the same command ends well, with the same scores and whole pages."""
    before, wanted = ledgers(run), scores(run)
    assert len(before) == 3
    assert clean.main(["runs", "--older-than", "0h", "--yes", *words]) == Exit.OK
    assert ledgers(run) == before
    assert run_main(["tiny.yaml"]) == Exit.OK
    assert scores(run) == wanted
    for name, data in ledgers(run).items():
        assert data.startswith(before[name])
    for site in "ab":
        assert "fedavg" in (run / "sites" / site / "report.html").read_text()
        assert list((run / "sites" / site / "scores").glob("fedavg-*"))
        assert (run / "sites" / site / "ready" / "fedavg.safetensors").exists()


def test_what_a_finished_run_rests_on_stays_unless_its_name_is_given(copy, capsys):
    assert clean.main(["runs", "--older-than", "0h", "--yes"]) == Exit.OK
    assert not list(copy.glob("sites/*/conversations/*/pool-*")) and not list(copy.glob("pooled/cohorts/*"))
    capsys.readouterr()
    assert run_main(["tiny.yaml", "--explain", "--json"]) == Exit.OK
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"keep"}


def test_after_removing_all_that_can_be_removed_the_same_command_works(copy):
    works_again(copy, ["--run", "tiny", "--needed"])


ALONE = [
    *((kind,) for kind in KINDS if kind != "leftovers"),
    ("models", "artifacts"),
    ("scores", "artifacts"),
    ("ready", "artifacts"),
]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [*ALONE, ("conversations", "cohorts"), ("conversations", "models", "artifacts")])
def test_after_removing_some_kinds_the_same_command_works(copy, chosen):
    works_again(copy, ["--run", "tiny", "--needed", "--kind", ",".join(chosen)])


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, "conversations", "models", "cohorts,phantoms"])
def test_a_run_stopped_in_the_middle_goes_on_after_cleaning(tmp_path, monkeypatch, chosen):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    run = tmp_path / "runs" / "tiny"

    def check(stop: Stop) -> None:
        if list(run.glob("sites/a/conversations/tiny/fedavg-*/train-1")):
            raise Stopped("test")

    with monkeypatch.context() as patched:
        patched.setattr(Stop, "check", check)
        assert run_main(["tiny.yaml"]) == Exit.STOPPED
    assert not list(run.glob("train/*"))
    before = ledgers(run)
    words = ["runs", "--older-than", "0h", "--yes", "--run", "tiny", "--needed"]
    assert clean.main([*words, *(["--kind", chosen] if chosen else [])]) == Exit.OK
    assert ledgers(run) == before
    assert run_main(["tiny.yaml"]) == Exit.OK
