"""Cleaning what harmonization left: the same run command works afterwards, and withdrawn patients leave no trace."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from harmonized_run import HARMONIZE, settings, write

from pipelines import clean
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.public_networks import PUBLIC
from pipelines.hospital.synthesis import SCORED, SENT, SYNTHESIZED
from pipelines.hospital.translation import FITTED, JUDGED
from pipelines.hospital.withdrawn import PARTS, UNKNOWN, known_outside, list_earlier_uses
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main as run_main
from pipelines.runs.exits import Exit
from pipelines.runs.holdings import list_run_items, list_runs
from pipelines.settings.config import Config
from privacy.release import ledger as ledgers

LEFT = {"translators/vafl.safetensors", "translators/z.safetensors", "maps/map.safetensors"}


def again(said: dict[str, Any], *words: str) -> int:
    return run_main([write(Path(), said), *words])


@pytest.fixture(scope="module")
def finished(finished_run) -> Path:
    return finished_run(settings(), figures=True)  # as other tests of this run


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "tiny"


def cleaned(*words: str) -> int:
    return clean.main(["runs", "--older-than", "0h", "--yes", *words])


def all_of(*kinds: str) -> tuple[str, ...]:
    return ("--run", "tiny", "--needed", *(("--kind", ",".join(kinds)) if kinds else ()))


def target(run: Path) -> str:
    (path,) = run.glob("score/*/scores.json")
    return str(json.loads(path.read_text())["target"])


def other(run: Path) -> str:
    """The site whose images are translated."""
    return next(site for site in "ab" if site != target(run))


def named(run: Path, kind: str) -> set[str]:
    """At the site whose images are translated."""
    return {item.name for item in list_run_items(run) if item.kind == kind and item.where == other(run)}


def states(capsys) -> dict[str, str]:
    capsys.readouterr()
    assert run_main(["tiny.yaml", "--explain", "--json"]) == Exit.OK
    return {row["stage"]: row["state"] for row in json.loads(capsys.readouterr().out)}


def scores(run: Path) -> list[dict]:
    newest = max(run.glob("report/*/scores.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(newest.read_text())


def worked(run: Path, site: str, request: str) -> int:
    """How often this was done, and not only told again."""
    lines = ledgers.read_lines(run / "sites" / site / "ledger.jsonl")
    return len({line["commit"] for line in lines if line["request"] == request})


def answers(run: Path, space: str) -> dict[str, Any]:
    (path,) = run.glob(f"translate/*/{space}.json")
    return json.loads(path.read_text())


def translated(run: Path) -> set[str]:
    return {answers(run, space)[other(run)]["cohort"] for space in HARMONIZE["translate"]}


def test_everything_that_harmonization_wrote_has_its_kind(run):
    found = named(run, "translations")
    maps = {f"maps/{space}.space.safetensors" for space in HARMONIZE["translate"]}
    assert {name for name in found if not name.startswith(("fitting/", "qualities/"))} == LEFT | maps
    assert sum(name.startswith("fitting/translate-") for name in found) == 1
    assert {name.split(".")[0] for name in found if name.startswith("qualities/")} == {
        f"qualities/{space}" for space in HARMONIZE["translate"]
    }
    assert translated(run) < named(run, "cohorts")
    known = [part for item in list_run_items(run) for part in item.parts]
    rest = {path for path in (run / "sites").rglob("*") if path.is_file()}
    rest = {path.name for path in rest if not any(path.is_relative_to(part) for part in known)}
    own = {
        "ledger.jsonl",
        "ledger.head",
        "ledger.lock",
        "linkage.json",
        "accounted.csv",
        "inside.txt",
        "recommended.json",
    }
    assert rest <= own | {"statement.md", "asked.json", "promises.json"}


def test_what_was_learnt_from_public_images_alone_is_no_run(run):
    (run.parent / PUBLIC).mkdir(exist_ok=True)
    (run.parent / PUBLIC / "start.safetensors").write_text("weights")
    assert list_runs(run.parent) == [run]
    assert cleaned(*all_of()) == Exit.OK
    assert (run.parent / PUBLIC / "start.safetensors").exists()


def test_what_a_harmonized_run_rests_on_stays_and_the_states_of_trainings_go(run, capsys):
    before = {kind: named(run, kind) for kind in ("translations", "cohorts", "phantoms")}
    key = patient(run, other(run), "train")
    told = list_earlier_uses(hospital(run, other(run), key))
    assert cleaned() == Exit.OK
    assert (
        list_earlier_uses(hospital(run, other(run), key)) == told and len(told) == 6
    )  # three trainings, a score, two translations
    after = {kind: named(run, kind) for kind in ("translations", "cohorts", "phantoms")}
    gone = before["translations"] - after["translations"]
    assert len(gone) == 1 and gone.pop().startswith("fitting/")
    assert after["cohorts"] == before["cohorts"] and after["phantoms"] == before["phantoms"]
    assert list(run.glob(f"sites/{target(run)}/conversations/tiny/synthesis-*"))
    assert set(states(capsys).values()) == {"keep"}


@pytest.mark.parametrize("kind", ["translations", "conversations"])
def test_what_an_artifact_speaks_of_does_not_go_without_it(run, capsys, kind):
    assert cleaned(*all_of(kind)) == Exit.OK
    assert "an artifact that stays refers to it; add the kind artifacts" in capsys.readouterr().out
    assert named(run, "translations") >= LEFT
    assert list(run.glob(f"sites/{target(run)}/conversations/tiny/synthesis-*"))
    found = states(capsys)
    assert {found[stage] for stage in ("ingest", "score", "synthesize", "sample", "translate", "train")} == {"keep"}


SLOW = [
    pytest.param(kinds, marks=pytest.mark.slow)
    for kinds in ((), ("translations", "artifacts"), ("conversations", "artifacts"))
]


@pytest.mark.parametrize("chosen", [("cohorts",), *SLOW])
def test_the_same_command_makes_again_what_is_gone(run, chosen):
    wanted, left, cohorts = scores(run), named(run, "translations"), translated(run)
    # Where the memory of the made-up images goes, it is paid for once more, and fresh noise makes others.
    forgotten = not chosen or "conversations" in chosen
    assert cleaned(*all_of(*chosen)) == Exit.OK
    assert run_main(["tiny.yaml"]) == Exit.OK
    assert worked(run, target(run), "synthesize") == 1 + forgotten
    same = [row for row in wanted if not forgotten or row["method"] != "vafl"]
    assert [row for row in scores(run) if not forgotten or row["method"] != "vafl"] == same and len(same) > 5
    assert translated(run) <= named(run, "cohorts") and (forgotten or translated(run) == cohorts)
    assert {name for name in left if not name.startswith("fitting/")} <= named(run, "translations")
    assert "Image spaces" in (run / "sites/a/report.html").read_text()


# Withdrawn consent.


def patient(run: Path, site: str, split: str) -> str:
    """A pseudonym from the cohort as it was read."""
    (path,) = run.glob("ingest/*/sites.json")
    cohort = json.loads(path.read_text())[site]["cohort"]
    return str(json.loads((run / "sites" / site / "cohorts" / cohort / "split.json").read_text())[split][0])


def hospital(run: Path, site: str, *excluded: str) -> Hospital:
    config = validate_settings(read_yaml(yaml.safe_dump(settings(**{site: excluded})), environment={}), Config)
    return Hospital(site, run / "sites" / site, config.sites[site], str)


def kinds_of(run: Path, site: str) -> dict[str, str]:
    """Conversation -> what was asked in it; a translation's with its space."""
    found = {}
    for folder in (run / "sites" / site / "conversations" / "tiny").iterdir():
        (request, *_) = sorted(path.name.rpartition("-")[0] for path in folder.iterdir())
        found[f"tiny/{folder.name}"] = request
    return found


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("role", ["target", "other"])
def test_every_run_that_a_patient_shaped_is_told_and_no_other(run, role, split):
    site = target(run) if role == "target" else other(run)
    told = {one.run: one.how for one in list_earlier_uses(hospital(run, site, patient(run, site, split)))}
    asked_in = kinds_of(run, site)
    expected: dict[str, list[str]] = {request: [] for request in asked_in.values()}
    for run_, how in told.items():
        expected[asked_in[run_]].append(how)
    # Two of them learnt from translated images.
    assert expected.pop("finish") == [PARTS[split]] * 3
    few = [JUDGED] if split != "test" else []  # few validation patients: a translation is judged on train too
    wanted = {
        "score": [SCORED] if split == "train" else [],
        "synthesize": [SYNTHESIZED] if split == "train" else [],
        "sample": [SENT] if split == "train" else [],
        # One of them is of the oracle, which nobody shaped; the target's images are not translated by what learns.
        "translate": few if role == "target" else [JUDGED, f"{FITTED}; {JUDGED}"] if split == "train" else few * 2,
    }
    assert {request: sorted(found) for request, found in expected.items() if found} == {
        request: found for request, found in wanted.items() if found and request in expected
    }


def test_what_cannot_be_told_is_said_to_be_so(run):
    site, site_key = other(run), patient(run, other(run), "test")
    for folder in (run / "sites" / site / "cohorts").iterdir():
        (folder / "split.json").unlink()
    found = list_earlier_uses(hospital(run, site, site_key))
    asked_in = kinds_of(run, site)
    shaped = {"score", "translate", "finish"}
    assert {one.run for one in found} == {name for name, request in asked_in.items() if request in shaped}
    assert {one.how for one in found} == {UNKNOWN} and known_outside(found) == []


@pytest.mark.slow
def test_after_cleaning_no_trace_of_a_withdrawn_patient_is_left_but_who_he_is(run):
    gone = {site: patient(run, site, "train") for site in "ab"}
    made_up = {path.name for path in run.glob("sites/*/conversations/tiny/synthesis-*")}
    fitted = {item.name for item in list_run_items(run) if item.name.startswith(("fitting/", "qualities/"))}
    assert again(settings(**{site: [name] for site, name in gone.items()})) == Exit.OK
    for site in gone:
        page = (run / "sites" / site / "report.html").read_text()
        told = dict(re.findall(r"<code>tiny/([^<]+)</code></th><td>([^<]+)</td>", page))
        assert SCORED in told.values() and PARTS["train"] in told.values()
        assert (SYNTHESIZED in told.values()) == any(path in told for path in made_up)
    assert cleaned("--run", "tiny") == Exit.OK
    left = {item.name for item in list_run_items(run)}
    assert not left & (made_up | fitted) and left >= LEFT
    for site, name in gone.items():
        for path in (run / "sites" / site).rglob("*"):
            if path.is_file() and path.name != "linkage.json":
                assert name.encode() not in path.read_bytes(), path


def test_a_memory_that_somebody_removed_is_missed_and_made_again_as_the_code_says(run):
    """`not_synthesized`: what docs/how-to/operations.md advises works."""
    (memory,) = run.glob(f"sites/{target(run)}/conversations/tiny/synthesis-*")
    shutil.rmtree(memory)
    said = settings()
    said["harmonize"]["shared"] = 10
    assert again(said, "--until", "sample") == Exit.SITE
    assert "not_synthesized" in (run / "sites" / target(run) / "log.txt").read_text()
    assert again(said, "--only", "synthesize", "--fresh") == Exit.OK
    assert again(said, "--until", "sample") == Exit.OK
