"""The whole way as a user goes it: from a YAML to a report, again, with a change, with damage, and against a policy."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from embedded import texts_of

from evaluation.rows import MAJORITY
from pipelines import study
from pipelines.coordinator.arguments import parser
from pipelines.coordinator.run import select_stages
from pipelines.hospital import training
from pipelines.loader.document import ConfigError
from pipelines.loader.files import CONFIGS
from pipelines.remote.site_config import read_place
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stop
from pipelines.settings.load import load_config
from pipelines_settings import BASE, RUNS
from privacy.message import from_bytes
from privacy.release import ledger as ledgers

ROOT = Path(__file__).parents[2]


def changed(path: Path, **changes) -> Path:
    settings = {**BASE, **changes}
    path.write_text(yaml.safe_dump(settings))
    return path


def state(root: Path) -> dict[str, bytes]:
    """Everything that training left: states at the coordinator, models at the sites."""
    found = {}
    for pattern in ("federation/**/state", "sites/*/models/**/*", "sites/*/cohorts/**/*"):
        found |= {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.glob(pattern)) if p.is_file()}
    return found


@pytest.fixture
def run(finished_run) -> Path:
    """One finished run, not to be changed."""
    return finished_run(BASE, figures=True) / "runs" / "tiny"


@pytest.fixture
def copy(run, tmp_path, monkeypatch) -> Path:
    """A copy of the finished run, with its YAML, to change."""
    shutil.copytree(run.parents[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "tiny"


METHODS = {**BASE["train"]["methods"], "prox": {"name": "fedprox", "mu": 0.1}, "pooled": {"name": "central"}}


@pytest.fixture(scope="module")
def more(finished_run, tmp_path_factory) -> Path:
    """A copy of it that then ran with two methods more, more copies and another title. Not to be changed."""
    folder = tmp_path_factory.mktemp("more")
    shutil.copytree(finished_run(BASE, figures=True), folder, dirs_exist_ok=True)
    train = {**BASE["train"], "methods": METHODS}
    changed(folder / "tiny.yaml", title="another title", evaluate={**BASE["evaluate"], "copies": 30}, train=train)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["tiny.yaml"]) == Exit.OK
    return folder / "runs" / "tiny"


def explained(capsys, config: Path | str = "tiny.yaml") -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert main([str(config), "--explain", "--json"]) == Exit.OK
    return {row["stage"]: (row["state"], row["reason"]) for row in json.loads(capsys.readouterr().out)}


def test_a_run_ends_with_pages_scores_and_a_ledger_of_every_byte(run):
    assert (run / "report.html").read_text().lower().count("<html") == 1
    (scores,) = run.glob("report/*/scores.json")
    rows = json.loads(scores.read_text())
    assert {row["method"] for row in rows} == {"local", "fedavg", "fedper", MAJORITY}
    assert {row["protocol"] for row in rows} >= {"private", "overall", "public"}
    for site in "ab":
        page = (run / "sites" / site / "report.html").read_text()
        assert "stays at" in page.lower()
        lines = list(ledgers.read_lines(run / "sites" / site / "ledger.jsonl"))
        assert {"survey", "ingest", "introduce", "train", "finish", "evaluate", "export", "report"} <= {
            line["request"] for line in lines
        }
        kinds = {line["request"]: line["event"]["kind"] for line in lines}
        assert {kinds[one] for one in ("train", "finish", "evaluate", "export", "audit")} == {"non_private"}
        assert {kinds[one] for one in ("survey", "ingest")} == {"declared"} and kinds["holds"] == "nothing"
        assert {kinds[one] for one in ("compare", "report")} == {"non_private"}, "what is recommended tells of patients"
        assert ledgers.verify_ledger(run / "sites" / site / "ledger.jsonl") == []
        rejected = json.loads(next((run / "sites" / site).glob("cohorts/*/rejected.json")).read_text())
        assert len(rejected) == (1 if site == "a" else 0)


def test_both_pages_name_the_same_model_and_it_is_a_file_that_is_there(run):
    (answers,) = run.glob("report/*/answers.json")
    used = json.loads(answers.read_text())["use"]
    assert [one["site"] for one in used] == ["a", "b"] and {one["by"] for one in used} == {"recommended"}
    for one in used:
        assert (run.parents[1] / one["file"]).is_file()
        page = (run / "sites" / one["site"] / "report.html").read_text()
        assert f"<code>{one['file']}</code>" in page[: page.index('<h2 id="went">')]


def test_every_stage_stands_on_the_page(run):
    text = (run / "report.html").read_text()
    section = text[text.index('<h2 id="stages">') : text.index('<h2 id="settings">')]
    made = {path.parent.parent.name for path in run.glob("*/*/manifest.json")}
    assert set(re.findall(r'<tr><th scope="row">(\w+)</th>', section)) == made


def test_the_terminal_gives_the_three_answers_too(copy, capsys):
    assert main(["tiny.yaml"]) == Exit.OK
    said = capsys.readouterr().out
    assert said.index("which model:") < said.index("what left:") < said.index("to look at:") < said.index("report: ")
    assert "  a: " in said and "chosen by validation patients" in said and "ε = ∞: no formal guarantee" in said


def test_patients_are_in_one_split_and_the_split_is_written_down(run):
    for site in "ab":
        (split,) = (run / "sites" / site).glob("cohorts/*/split.json")
        parts = json.loads(split.read_text())
        names = [name for part in parts.values() for name in part]
        assert len(names) == len(set(names)) == 10
        assert {part: len(found) for part, found in parts.items()} == {"train": 5, "validation": 2, "test": 3}


def test_the_coordinator_holds_no_image_and_no_pseudonym(run):
    pseudonyms = {
        name.encode()
        for path in run.glob("sites/*/cohorts/*/split.json")
        for part in json.loads(path.read_text()).values()
        for name in part
    }
    files = [p for p in run.rglob("*") if p.is_file() and "sites" not in p.relative_to(run).parts]
    assert len(pseudonyms) == 20 and len(files) > 10
    for path in files:
        data = path.read_bytes()
        assert not [name for text in texts_of(data) for name in pseudonyms if name in text], path
        if path.suffix == ".safetensors":
            assert all(t.ndim < 3 or t.shape[-1] != 32 for t in from_bytes(data).tensors.values())


def test_a_second_run_does_nothing_and_says_so_quickly(copy, capsys):
    started = time.monotonic()
    before = state(copy)
    assert main(["tiny.yaml"]) == Exit.OK
    assert time.monotonic() - started < 5
    assert state(copy) == before
    assert {why for _, why in explained(capsys).values()} == {"kept: nothing changed"}


def test_a_changed_setting_repeats_what_depends_on_it_and_only_that(copy, capsys):
    changed(Path("tiny.yaml"), evaluate={"copies": 30})
    found = explained(capsys)
    assert (found["ingest"][0], found["train"][0], found["evaluate"][0]) == ("keep", "keep", "run")
    assert "evaluate.copies 20 -> 30" in found["evaluate"][1]
    changed(Path("tiny.yaml"), sites={**BASE["sites"], "a": {**BASE["sites"]["a"], "exclude": ["nobody"]}})
    found = explained(capsys)
    assert found["ingest"][0] == "run" and "a" in found["ingest"][1]


def test_another_method_trains_that_one_and_keeps_the_others(run, more):
    assert state(run).items() <= state(more).items()
    lines = list(ledgers.read_lines(more / "sites" / "a" / "ledger.jsonl"))
    assert len([line for line in lines if line["request"] == "train"]) == 3 * 4  # local, fedavg, fedper, prox
    assert len([line for line in lines if line["request"] == "pool"]) == 1
    (scores,) = [p for p in more.glob("report/*/scores.json") if "pooled" in p.read_text()]
    assert {row["method"] for row in json.loads(scores.read_text())} == {*METHODS, MAJORITY}


def halved(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


DAMAGES = (
    ("train/*/fedavg.json", halved, "train", "corrupt: fedavg.json"),
    ("evaluate/*/index.json", halved, "evaluate", "corrupt: index.json"),
    ("sites/a/cohorts/*/cohort.safetensors", halved, "ingest", "a: the cohort is corrupt"),
    ("sites/b/models/tiny/fedavg-*/*", halved, "train", "b: a model"),
    ("sites/a/cohorts/*/rejected.json", halved, "ingest", "a: rejected.json"),
    ("sites/a/report.html", halved, "report", "a: its own page"),
    ("sites/a/models/tiny/fedper-*/*", Path.unlink, "train", "a: models of tiny/fedper"),
)
"""What is damaged, how, which stage must see it, and its words."""


@pytest.mark.parametrize(("pattern", "damage", "stage", "reason"), DAMAGES)
def test_damaged_files_are_named(copy, capsys, pattern, damage, stage, reason):
    for path in copy.glob(pattern):
        damage(path)
    found = explained(capsys)
    assert found[stage][0] == "run" and reason in found[stage][1]


def test_a_damaged_reply_of_a_finished_training_is_as_one_that_is_gone(copy, capsys):
    """Its models are whole, so nothing of it is needed any more."""
    (path,) = copy.glob("sites/b/conversations/tiny/fedavg-*/finish-4")
    halved(path)
    assert explained(capsys)["train"][0] == "keep"


def test_damaged_files_are_made_again_never_replaced_in_silence(copy, capsys):
    """All at once; one by one is slow."""
    for pattern, damage, *_ in DAMAGES:
        for path in copy.glob(pattern):
            damage(path)
    made_again(capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "damage", "stage", "reason"), DAMAGES)
def test_a_damaged_file_is_made_again(copy, capsys, pattern, damage, stage, reason):
    for path in copy.glob(pattern):
        damage(path)
    made_again(capsys)


def made_again(capsys) -> None:
    assert main(["tiny.yaml"]) == Exit.OK
    assert {state for state, _ in explained(capsys).values()} == {"keep"}


def test_a_policy_outranks_the_yaml_of_the_coordinator(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stubborn = {**BASE["sites"]["a"], "policy": {"requests": ["survey", "ingest", "holds"]}}
    changed(tmp_path / "tiny.yaml", sites={**BASE["sites"], "a": stubborn})
    assert main(["tiny.yaml"]) == Exit.SITE
    said = capsys.readouterr().err
    assert "a: policy_request" in said
    assert said.strip().splitlines()[-1].startswith("python -m pipelines.run")
    refusals = [line for line in ledgers.read_lines(tmp_path / "runs/tiny/sites/a/ledger.jsonl") if line["refused"]]
    assert refusals and all(line["bytes"] == 0 for line in refusals)


def test_pooling_needs_the_sites_consent_too(copy, capsys):
    methods = {**BASE["train"]["methods"], "pooled": {"name": "central"}}
    sites = {name: {k: v for k, v in site.items() if k != "policy"} for name, site in BASE["sites"].items()}
    changed(Path("tiny.yaml"), name="other", sites=sites, train={**BASE["train"], "methods": methods})
    assert main(["tiny.yaml"]) == Exit.CONFIG
    said = capsys.readouterr().err
    assert all(f"sites.{site}.policy.pooling: train.methods.pooled pools images" in said for site in "ab")


def test_too_many_rejected_studies_end_the_run_with_their_number(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = {**BASE["sites"]["a"]["source"], "patients": 4, "damaged": 3}
    changed(tmp_path / "tiny.yaml", sites={**BASE["sites"], "a": {"source": source}})
    assert main(["tiny.yaml", "--until", "ingest"]) == Exit.DATA
    said = capsys.readouterr().err
    assert "a: 3 of 7 studies were rejected, and max_rejected allows 20%: " in said
    (line,) = [text for text in said.splitlines() if text.startswith("a: ") and "patients, " in text]
    assert "ADC at 1, 50 and 99 %" in line and "quarantined" in line


@pytest.mark.parametrize(
    ("site", "code", "said"),
    [
        ({"source": {"kind": "dicom", "folder": "empty"}}, "survey", "a: no_files"),
        ({"source": {"kind": "nifti", "folder": "junk"}}, "ingest", "a: bad_source"),
    ],
)
def test_files_that_are_not_there_end_with_the_code_for_data_and_a_log(tmp_path, monkeypatch, capsys, site, code, said):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "junk", "masks"):
        (tmp_path / name).mkdir()
    (tmp_path / "junk" / "a.txt").write_text("hello")
    labels = {"labels": {"kind": "mask", "folder": "masks"}}
    changed(tmp_path / "tiny.yaml", sites={"a": {**labels, **site}, "b": BASE["sites"]["b"]})
    assert main(["tiny.yaml"]) == Exit.DATA
    err = capsys.readouterr().err
    assert code in err
    assert said in err
    assert (tmp_path / "runs/tiny/sites/a/log.txt").read_text()
    assert "runs/tiny/sites/a/log.txt" in err
    if code == "survey":
        assert main(["tiny.yaml", "--check"]) == Exit.DATA


def test_a_missing_folder_is_told_with_its_line_and_ends_with_the_code_for_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    lost = {
        "source": {"kind": "dicom", "folder": "nowhere"},
        "labels": {"kind": "table", "file": "here"},
        "gland": {"folder": "glands"},
    }
    changed(tmp_path / "tiny.yaml", sites={"a": lost, "b": BASE["sites"]["b"]})
    lines = (tmp_path / "tiny.yaml").read_text().splitlines()
    at = {
        word: next(n for n, line in enumerate(lines, 1) if line.endswith(f" {word}"))
        for word in ("nowhere", "here", "glands")
    }
    for more in ([], ["--check"], ["--explain"]):
        assert main(["tiny.yaml", *more]) == Exit.DATA
        err = capsys.readouterr().err
        assert f"tiny.yaml:{at['nowhere']}: sites.a.source.folder: 'nowhere' does not exist" in err
        assert f"tiny.yaml:{at['here']}: sites.a.labels.file: 'here' is no file" in err
        assert f"tiny.yaml:{at['glands']}: sites.a.gland.folder: 'glands' does not exist" in err
    assert not (tmp_path / "runs").exists()


def test_a_file_of_another_command_is_sent_there(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.yaml").write_text("name: a\nkit: k\nroot: r\nsite: {}\n")
    for command, file, right in (
        (main, "prostate_adc_study.yaml", "pipelines.study"),
        (main, "site.yaml", "pipelines.site"),
        (study.main, "prostate_adc.yaml", "pipelines.run"),
        (study.main, "route.yaml", "pipelines.run"),
    ):
        assert command([file]) == Exit.CONFIG
        (said,) = capsys.readouterr().err.strip().splitlines()
        assert said.endswith(f"python -m {right} {file}")
    with pytest.raises(ConfigError, match=r"use: python -m pipelines\.run "):
        read_place(str(CONFIGS / "prostate_adc.yaml"))


def test_a_site_with_nobody_to_test_on_is_told_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one = {"source": {**BASE["sites"]["b"]["source"], "patients": 1}}
    changed(tmp_path / "tiny.yaml", sites={**BASE["sites"], "b": one})
    assert main(["tiny.yaml"]) == Exit.DATA
    assert "b: no patient in the test split, of 1 in all" in capsys.readouterr().err


def test_settings_that_go_and_come_back_find_their_own_pages(run, more, tmp_path, monkeypatch):
    places = ("report.html", "sites/a/report.html")
    assert all((more / place).read_bytes() != (run / place).read_bytes() for place in places)
    assert "another title" in (more / "report.html").read_text()
    shutil.copytree(more.parents[1], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    changed(Path("tiny.yaml"))
    assert main(["tiny.yaml"]) == Exit.OK
    for place in places:
        assert "another title" not in (tmp_path / "runs/tiny" / place).read_text()


def test_what_left_is_what_the_ledger_says_also_when_more_left_later(more):
    newest = max(more.glob("report/*/report.json"), key=lambda p: p.stat().st_mtime_ns)
    left = {(e["site"], e["request"]): e["bytes"] for e in json.loads(newest.read_text())["left"]}
    for site in "ab":
        lines = list(ledgers.read_lines(more / "sites" / site / "ledger.jsonl"))
        for request in ("train", "evaluate", "export", "ingest"):
            assert left[site, request] == sum(line["bytes"] for line in lines if line["request"] == request)


def test_fresh_is_always_a_way_out(copy, capsys):
    for path in [*copy.glob("federation/*/state"), *copy.glob("sites/*/phantom/*/images"), *copy.glob("pooled/*")]:
        path.unlink() if path.is_file() else shutil.rmtree(path)
    assert main(["tiny.yaml", "--fresh", "--until", "evaluate"]) == Exit.OK
    found = explained(capsys)
    assert {found[stage][0] for stage in ("ingest", "train", "evaluate")} == {"keep"}


def test_every_command_that_a_failure_prints_is_one_that_can_be_typed():
    line = parser()
    for text in ("--from train --until train", "--from ingest", "--only train", "--until report --fresh"):
        line.parse_args(["my study.yaml", *text.split()])


def test_check_looks_and_computes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    changed(tmp_path / "tiny.yaml")
    assert main(["tiny.yaml", "--check", "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["sites"]["a"] == {"simulated": BASE["sites"]["a"]["source"]["patients"]}
    assert not (tmp_path / "runs" / "tiny" / "sites" / "a").exists(), "a check writes no phantom's files"
    assert found["methods"]["fedavg"]["bytes"] > found["methods"]["local"]["bytes"]
    assert not list((tmp_path / "runs" / "tiny").glob("ingest/*"))


def test_a_file_that_is_not_there_and_a_flag_that_is_not_known(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["nowhere.yaml"]) == Exit.CONFIG
    assert "prostate_adc.yaml" in capsys.readouterr().err
    changed(tmp_path / "tiny.yaml")
    assert main(["tiny.yaml", "--only", "teleport"]) == Exit.CONFIG
    told = ", ".join(stage.name for stage in select_stages(load_config("tiny.yaml")))
    assert f"the stages are {told}" in capsys.readouterr().err
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe\x00")
    assert main(["bad.yaml"]) == Exit.CONFIG


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_every_shipped_configuration_is_in_order(path, monkeypatch):
    monkeypatch.setenv("CONSILIUM_DATA", "/data")
    config = load_config(str(path))
    private = config.privacy != "none"
    assert private == path.stem.endswith("_private")
    for label, method in config.train.methods.items():
        network = method.network(config.task_of(label))
        for site in config.sites:
            assert method.complaints(network, config.work(label, site), private) == []


def test_configurations_are_found_at_all():
    assert len(list(CONFIGS.rglob("*.yaml"))) == len(list(CONFIGS.glob("*.yaml"))) >= 2


TRAINED = ("--until", "train")


def child(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.run", "tiny.yaml", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )


def progress(folder: Path) -> list[tuple[str, int]]:
    """What training has committed so far; it changes as soon as a new process trains."""
    seen = []
    for path in (folder / "runs").glob("tiny/sites/*/conversations/*/*/train-*"):
        with suppress(FileNotFoundError):  # the run at work may remove it after it was listed
            seen.append((str(path), path.stat().st_mtime_ns))
    return sorted(seen)


ALL, FIRST = os.killpg, os.kill
"""Whom a blow hits: the run with the processes in which its hospitals work, or the first process alone."""


def killed_often(folder: Path, *, times: int, seed: int, blow: Callable[[int, int], None] = ALL) -> None:
    """Start, kill -9 after a random while of training, start again; then let it finish. `folder` is where we are."""
    chance, killed = random.Random(seed), 0
    for _ in range(times):
        before = progress(folder)
        process = child(folder, *TRAINED)
        deadline = time.monotonic() + 60
        while process.poll() is None and progress(folder) == before and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.6))
        if process.poll() is not None:
            break  # it was done before the blow fell
        blow(process.pid, signal.SIGKILL)
        process.wait()
        killed += 1
    assert killed
    assert main(["tiny.yaml", *TRAINED]) == Exit.OK


@pytest.mark.parametrize(
    ("processes", "blow"),
    [
        pytest.param(1, ALL, marks=pytest.mark.slow),  # fewer processes, of which none is left behind
        (2, FIRST),
    ],
)
def test_kill_9_in_training_and_a_second_run_is_the_uninterrupted_one(run, tmp_path, monkeypatch, processes, blow):
    """Hospitals' processes end by themselves once the first one is gone: the second run works in the same folders."""
    changed(tmp_path / "tiny.yaml", processes=processes)
    monkeypatch.chdir(tmp_path)
    killed_often(tmp_path, times=1, seed=0, blow=blow)
    assert state(tmp_path / "runs" / "tiny") == state(run)


class Killed(BaseException):
    pass


def test_models_that_a_kill_left_behind_go_when_the_run_goes_on(run, tmp_path, monkeypatch):
    """The last reply is committed, and the process dies before models that nobody needs are deleted."""
    changed(tmp_path / "tiny.yaml")
    monkeypatch.chdir(tmp_path)
    real, killed = training.prune_models, []

    def dies_once(models, memories, *, best, newest):
        if newest == BASE["train"]["schedule"]["rounds"] and not killed:
            killed.append(newest)
            raise Killed
        real(models, memories, best=best, newest=newest)

    monkeypatch.setattr(training, "prune_models", dies_once)
    with pytest.raises(Killed):
        main(["tiny.yaml", *TRAINED])
    assert main(["tiny.yaml", *TRAINED]) == Exit.OK
    assert killed
    assert state(tmp_path / "runs" / "tiny") == state(run)


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "blow"), [(1, ALL), (2, ALL), (2, FIRST)])
@pytest.mark.parametrize("seed", range(1, 9))
def test_kill_9_many_times(run, tmp_path, monkeypatch, seed, processes, blow):
    changed(tmp_path / "tiny.yaml", processes=processes)
    monkeypatch.chdir(tmp_path)
    killed_often(tmp_path, times=4, seed=seed, blow=blow)
    assert state(tmp_path / "runs" / "tiny") == state(run)


def test_ctrl_c_stops_at_a_safe_point_and_the_last_line_goes_on(run, tmp_path, monkeypatch, capfd):
    """Ctrl-C in this process, pressed where a method has its first state; a process of its own is slow."""
    changed(tmp_path / "tiny.yaml")
    monkeypatch.chdir(tmp_path)
    pressed = []

    def check(stop: Stop) -> None:
        if not pressed and list(tmp_path.glob("runs/tiny/federation/*/state")):
            pressed.append(signal.raise_signal(signal.SIGINT))
        whole(stop)

    whole = Stop.check
    with monkeypatch.context() as patch:
        patch.setattr(Stop, "check", check)
        assert main(["tiny.yaml"]) == Exit.STOPPED
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last == "python -m pipelines.run tiny.yaml --from train"
    assert main([*last.split()[3:], *TRAINED]) == Exit.OK
    assert state(tmp_path / "runs" / "tiny") == state(run)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_terminals_signal_to_all_processes_stops_at_a_safe_point(run, tmp_path, monkeypatch, processes, number):
    changed(tmp_path / "tiny.yaml", processes=processes)
    monkeypatch.chdir(tmp_path)
    process = child(tmp_path)
    while process.poll() is None and not list((tmp_path / "runs").glob("tiny/federation/*/state")):
        time.sleep(0.02)
    os.killpg(process.pid, number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == Exit.STOPPED
    assert error.decode().strip().splitlines()[-1] == "python -m pipelines.run tiny.yaml --from train"
    assert main(["tiny.yaml", "--from", "train", *TRAINED]) == Exit.OK
    assert state(tmp_path / "runs" / "tiny") == state(run)
