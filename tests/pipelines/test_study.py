"""Studies: laws of merging, all that is wrong at once, and a small one all the way, again, and after a stop."""

from __future__ import annotations

import copy
import csv
import json
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines import study as command
from pipelines.coordinator import study as body
from pipelines.coordinator.run import run_config
from pipelines.coordinator.study_settings import LATER_PATIENTS, keep_methods, load_study, merge_settings
from pipelines.loader.document import ConfigError
from pipelines.loader.files import find_document
from pipelines.run import main as run_alone
from pipelines.runs.exits import Exit
from pipelines.runs.stopping import Stopped
from pipelines.settings.config import Config
from pipelines_settings import BASE

SMALL = {
    **BASE,
    "images": {"kind": "slices", "size": 16, "spacing_mm": 4.0},
    "sites": {name: {**site, "source": {**site["source"], "format": "nifti"}} for name, site in BASE["sites"].items()},
    "model": {"name": "cam", "widths": [8, 8, 8, 8]},
    "train": {**BASE["train"], "schedule": {"rounds": 1}},
    "audit": {"membership": False, "canaries": 0},
    "evaluate": {"copies": 2, "reference": "local", "public": False},
}
STUDY = {
    "name": "both",
    "title": "Two cases",
    "base": "tiny.yaml",
    "seeds": [0, 1],
    "methods": ["local", "fedavg"],
    "resample_patients": True,
    "set": {"train": {"work": {"epochs": 1}}},
    "cases": {
        "half": {"what": "half of the patients", "set": {"split": {"train": 0.5, "validation": 0.2, "test": 0.3}}},
        "few": {"seeds": [0], "set": {"split": {"train": 0.3, "validation": 0.2, "test": 0.5}}},
    },
}
RUNS = ["both_half_s0", "both_half_s1", "both_few_s0"]

plain = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
groups = st.dictionaries(st.sampled_from("abc"), plain, max_size=3)


def written(folder: Path, *, of=SMALL, **changes) -> Path:
    """A study and its base in a folder."""
    (folder / "tiny.yaml").write_text(yaml.safe_dump(of, sort_keys=False))
    (folder / "both.yaml").write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
    return folder / "both.yaml"


def leaves(value, path=()):
    """Path -> value of everything in it that is no filled group."""
    if isinstance(value, dict) and value:
        return {k: v for key, inner in value.items() for k, v in leaves(inner, (*path, key)).items()}
    return {path: value}


@given(groups, groups)
@example({"a": None}, {"a": {"a": {}}})
def test_what_is_changed_is_there_and_what_is_not_named_stays(base, changes):
    before = copy.deepcopy((base, changes))
    found = merge_settings(base, changes)
    assert (base, changes) == before
    told, old = leaves(changes), leaves(base)
    for path, value in told.items():
        if value != {} and path:
            assert leaves(found)[path] == value
    for path, value in old.items():
        touched = any(path[: len(other)] == other or other[: len(path)] == path for other in told if told[other] != {})
        if path and value != {} and not touched:
            # An empty group goes into a group, and a group that holds one takes the place of a value.
            inside = any(other == path[: len(other)] or other[: len(path)] == path for other in told)
            assert inside or leaves(found)[path] == value


@given(groups, groups, groups)
def test_merging_is_associative_idempotent_and_has_a_neutral_element(base, one, other):
    assert merge_settings(base, {}) == base == merge_settings({}, base)
    assert merge_settings(merge_settings(base, one), one) == merge_settings(base, one)
    as_groups = lambda value: {k: v for k, v in value.items() if isinstance(v, dict)}  # noqa: E731
    a, b, c = ({key: as_groups(inner) for key, inner in as_groups(each).items()} for each in (base, one, other))
    assert merge_settings(merge_settings(a, b), c) == merge_settings(a, merge_settings(b, c))


@pytest.mark.parametrize(
    ("base", "changes", "result"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1}}, {"a": None}, {"a": None}),
        ({"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}),
        ({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 3}]}, {"a": [{"b": 3}]}),
        ({"a": {"b": 1}}, {"a": 2, "d": {"e": 5}}, {"a": 2, "d": {"e": 5}}),
    ],
)
def test_groups_are_merged_and_all_else_is_replaced(base, changes, result):
    assert merge_settings(base, changes) == result


def test_methods_that_are_not_kept_take_with_them_what_was_said_of_them():
    data = {
        "train": {
            "methods": {"local": 1, "fedavg": 2, "vafl": 3, "mu": 4},
            "method_images": {"vafl": "gan", "mu": "nyul"},
            "method_work": {"mu": {}, "local": {}},
        },
        "sites": {"a": {"methods": {"mu": {"mu": 1}, "vafl": {}}}, "b": {}},
        "harmonize": {"translate": {"gan": 1, "nyul": 2, "measured": 3}, "shared": 9},
        "evaluate": {"variants": {"mu_adabn": {"of": "mu"}, "fedavg_adabn": {"of": "fedavg"}}},
    }
    before = copy.deepcopy(data)
    found = keep_methods(data, ("local", "fedavg", "vafl"))
    assert data == before
    assert found["train"] == {
        "methods": {"local": 1, "fedavg": 2, "vafl": 3},
        "method_images": {"vafl": "gan"},
        "method_work": {"local": {}},
    }
    assert found["sites"] == {"a": {"methods": {"vafl": {}}}, "b": {}}
    assert found["harmonize"] == {"translate": {"gan": 1, "measured": 3}, "shared": 9}
    assert found["evaluate"]["variants"] == {"fedavg_adabn": {"of": "fedavg"}}
    assert keep_methods(found, ("local", "fedavg", "vafl")) == found


def test_a_case_goes_over_the_study_and_seeds_go_to_runs_and_patients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = {**STUDY["cases"], "own": {"seeds": [7], "methods": ["fedavg"], "set": {"evaluate": {"reference": None}}}}
    cases["half"] = {"set": {"train": {"work": {"epochs": 3}}}}
    _, planned, _ = load_study(str(written(tmp_path, cases=cases)))
    runs = {(one.case, one.seed): one.config for one in planned}
    assert [one.config.name for one in planned] == [*RUNS, "both_own_s7"]
    assert {config.train.work.epochs for key, config in runs.items() if key[0] == "half"} == {3}
    assert {config.train.work.epochs for key, config in runs.items() if key[0] != "half"} == {1}
    assert {config.train.work.lr for config in runs.values()} == {0.01}
    assert all(config.seed == seed for (_, seed), config in runs.items())
    for (_, seed), config in runs.items():
        assert {name: site.source.seed for name, site in config.sites.items()} == {
            name: site["source"]["seed"] + LATER_PATIENTS * seed for name, site in BASE["sites"].items()
        }
    assert list(runs["own", 7].train.methods) == ["fedavg"] and list(runs["few", 0].train.methods) == [
        "local",
        "fedavg",
    ]
    _, same, _ = load_study(str(written(tmp_path, resample_patients=False)))
    assert {one.config.sites["a"].source.seed for one in same} == {1}


def complaints(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_study(str(path))
    return [f"{p.path}@{p.line}: {p.message}" for p in caught.value.problems]


def test_everything_that_is_wrong_is_told_at_once_with_the_name_of_its_case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = {
        "fine": {},
        "sums": {"set": {"split": {"train": 0.9}}},
        "typo": {"set": {"trian": {}}},
        "lost": {"methods": ["local", "fedsgd"]},
        "both": {"set": {"evaluate": {"reference": "nobody"}, "split": {"validation": 0.0, "test": 0.5}}},
    }
    path = written(tmp_path, cases=cases)
    lines = path.read_text().splitlines()
    found = complaints(path)
    assert {re.match(r"[^@]*", one)[0] for one in found} == {
        "cases.sums",
        "cases.typo",
        "cases.lost.methods",
        "cases.both",
    }
    assert any("checkpoint" in one for one in found) and any("nobody" in one for one in found)
    typo = next(one for one in found if one.startswith("cases.typo"))
    assert "unknown key (did you mean 'train'?)" in typo
    assert lines[int(typo.split("@")[1].split(":")[0]) - 1].strip().startswith("trian")
    assert not list(tmp_path.glob("runs*"))
    assert command.main([str(path)]) == Exit.CONFIG and not list(tmp_path.glob("runs*"))


def test_what_is_wrong_in_the_base_names_the_base_and_what_is_the_studys_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    broken = {**SMALL, "threads": 0}
    assert all("(see tiny.yaml)" in one and "threads" in one for one in complaints(written(tmp_path, of=broken)))
    lost = complaints(written(tmp_path, base="elsewhere.yaml"))
    assert len(lost) == 1 and lost[0].startswith("base@") and "no such file" in lost[0]
    own = complaints(written(tmp_path, set={"seed": 3, "name": "x"}, seeds=[1, 1], cases={"A b": {}}))
    assert len(own) == 4 and any("seeds" in one for one in own) and any("'A b'" in one for one in own)
    assert "runs" in complaints(written(tmp_path, cases={"a": {"set": {"runs": "there"}}}))[0]
    assert "name of the base" in complaints(written(tmp_path, name="tiny"))[0]


def told(capsys, *arguments: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = command.main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a study that was stopped after one run and went on. Not to be changed."""
    folder, before = tmp_path_factory.mktemp("study"), Path.cwd()
    os.chdir(folder)
    try:
        path, done = written(folder), []

        def once(config: Config, *others, **more):
            if done:
                raise Stopped("SIGTERM")
            done.append(config.name)
            return run_config(config, *others, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(body, "run_config", once)
            assert command.main([str(path.name)]) == Exit.STOPPED
        lines = (folder / "runs" / "both" / "table.csv").read_text().splitlines()
        assert done == RUNS[:1] and {line.split(",")[0] for line in lines} == {"case", "half"}
        assert "2 runs are missing" in (folder / "runs" / "both" / "study.html").read_text()
        assert command.main([path.name]) == Exit.OK
    finally:
        os.chdir(before)
    return folder


def scores(folder: Path, run: str) -> list[dict]:
    (report,) = (folder / "runs" / run).glob("report/*/scores.json")
    return json.loads(report.read_text())


def test_the_table_says_what_the_runs_own_scores_say(finished):
    table = json.loads((finished / "runs" / "both" / "table.json").read_text())
    lines = list(csv.DictReader((finished / "runs" / "both" / "table.csv").open()))
    rows = [(f"both_{row['case']}_s{row['seed']}", row) for row in table]
    for run in RUNS:
        own = scores(finished, run)
        ours = [row for name, row in rows if name == run]
        assert [{key: row[key] for key in row if key not in ("case", "seed")} for row in ours] == [
            {key: row[key] for key in row if key in ours[0]} for row in own
        ]
    assert {row["method"] for row in table} == {"local", "fedavg", "majority guess"}
    assert {row["protocol"] for row in table} == {"private", "private mean", "overall"}
    for line, row in zip(lines, table, strict=True):
        assert line["value"] == ("" if row["value"] is None else str(row["value"]))


def test_the_page_has_every_case_and_method_and_links_that_lead_to_pages(finished):
    root = finished / "runs" / "both"
    text = (root / "study.html").read_text()
    assert not re.search(r"\bnan\b", text.partition("<script>")[0], re.IGNORECASE) and "are missing" not in text
    for name in ("half", "few", "local", "fedavg", "half of the patients", "sites/HOSPITAL/report.html"):
        assert name in text
    links = set(re.findall(r'href="(\.\.[^"]*)"', text))
    assert len(links) == len(RUNS) and all((root / link).resolve().is_file() for link in links)


def test_other_seeds_have_other_patients_and_cases_of_one_seed_the_same(finished):
    def names(run: str) -> set[str]:
        folder = finished / "runs" / run / "sites" / "a"
        return {p.name for p in folder.rglob("PH*")}

    assert names("both_half_s0") == names("both_few_s0") and names("both_half_s0")
    assert not names("both_half_s0") & names("both_half_s1")


def test_a_second_call_runs_nothing_and_changes_no_number(finished, capsys, monkeypatch):
    monkeypatch.chdir(finished)
    before = (finished / "runs" / "both" / "table.json").read_bytes()
    monkeypatch.setattr(body, "run_config", lambda *_, **__: pytest.fail("something ran"))
    code, said = told(capsys, "both.yaml")
    assert (code, said["exit"], said["ran"], said["kept"]) == (Exit.OK, 0, [], RUNS)
    assert (finished / "runs" / "both" / "table.json").read_bytes() == before


def test_a_case_that_changed_is_not_shown_with_its_old_results(finished, capsys, monkeypatch):
    monkeypatch.chdir(finished)
    cases = {**STUDY["cases"], "few": {"seeds": [0], "set": {"split": {"train": 0.4, "validation": 0.2, "test": 0.4}}}}
    path = finished / "other.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "cases": cases}, sort_keys=False))
    kept = (finished / "runs" / "both" / "table.json").read_bytes()
    code, said = told(capsys, str(path), "--table")
    assert code == Exit.OK and said["ran"] == [] and said["kept"] == RUNS[:2]
    states = {run["run"]: run["state"] for run in said["runs"]}
    assert all("not finished: " in states[run] and "ingest" in states[run] for run in RUNS[2:])
    assert {row["case"] for row in json.loads((finished / "runs" / "both" / "table.json").read_text())} == {"half"}
    assert told(capsys, "both.yaml", "--table")[1]["kept"] == RUNS
    assert (finished / "runs" / "both" / "table.json").read_bytes() == kept


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = {"bad": {"set": {"sites": {"a": {"max_rejected": 0.0}}}}, "good": {}}
    path = written(tmp_path, cases=cases, seeds=[0], methods=["local"])
    code, said = told(capsys, path.name)
    assert code == said["exit"] == Exit.DATA and said["ran"] == ["both_good_s0"]
    states = {run["case"]: run["state"] for run in said["runs"]}
    assert states["bad"].startswith("failed in stage ingest") and "code 3" in states["bad"]
    assert "failed in stage ingest" in (tmp_path / "runs" / "both" / "study.html").read_text()
    assert (tmp_path / "runs" / "both_bad_s0" / "trace.txt").is_file()


def test_one_run_can_be_explained_alone_by_the_settings_that_the_study_wrote(finished, capsys, monkeypatch):
    monkeypatch.chdir(finished)
    for case, seed in (("half", 1), ("few", 0)):
        path = f"runs/both/{case}_s{seed}.yaml"
        planned = next(p for p in load_study("both.yaml")[1] if (p.case, p.seed) == (case, seed))
        assert find_document(path).data == planned.data
        capsys.readouterr()
        assert run_alone([path, "--explain", "--json"]) == Exit.OK
        assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"keep"}


def test_only_the_cases_asked_for_are_looked_at_and_unknown_ones_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path)
    seen = []
    monkeypatch.setattr(body, "run_config", lambda config, *_, **__: seen.append(config.name) or 1 / 0)
    code, _ = told(capsys, path.name, "--only", "few")
    assert code == Exit.FAILED and seen == RUNS[2:]
    code, said = told(capsys, path.name, "--only", "fewer")
    assert code == Exit.CONFIG and "the cases are half, few" in said["error"]
    code, said = told(capsys, path.name, "--check")
    assert (code, said) == (Exit.OK, {"exit": 0, "cases": {"half": 0, "few": 0}})


def test_the_study_that_comes_with_the_package_is_in_order(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    study, planned, _ = load_study("prostate_adc_study.yaml")
    patients = {
        case: sum(site.source.patients for site in one.config.sites.values()) for one in planned for case in (one.case,)
    }
    assert set(patients.values()) == {200} and study.resample_patients
    assert {one.case: len(one.config.sites) for one in planned} == {
        "two_20": 2,
        "two_40": 2,
        "two_60": 2,
        "two_80": 2,
        "four_50": 4,
        "eight_50": 8,
    }
    for one in planned:
        seeds = [site.source.seed for site in one.config.sites.values()]
        assert len(set(seeds)) == len(seeds) and set(one.config.train.methods) == set(study.methods)
        steps = [one.config.work("fedavg", site).steps for site in one.config.sites]
        assert sum(steps) == one.config.work("central", next(iter(one.config.sites))).steps == 32
