"""Harmonization from the YAML to the pages, with phantoms small enough for a test."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from harmonized_run import HARMONIZE, settings, write

from evaluation.rows import MAJORITY
from harmonize.scale import Scale
from pipelines.coordinator.permissions import find_refused_requests, find_unanswered_requests, permissions_in
from pipelines.coordinator.run import HARMONIZING, STAGES, select_stages
from pipelines.coordinator.trained import read_trained
from pipelines.hospital.statement import AS_THEY_ARE
from pipelines.loader.document import ConfigError
from pipelines.loader.validation import validate_settings
from pipelines.requests.sample import SAMPLE
from pipelines.run import main
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.message import from_bytes, from_file
from privacy.release import ledger as ledgers


def cycled(**changes: Any) -> dict[str, Any]:
    """Settings of a run whose target is said and whose only space is learnt, from images that cost no learning."""
    said = settings()
    learnt = {"vafl": {**HARMONIZE["translate"]["vafl"], **changes}}
    target = {"release": "public", "target": "b"}
    said["harmonize"] |= {"score": target, "synthesis": {"name": "real"}, "translate": learnt}
    said["train"]["methods"] = {"vafl": {"name": "fedavg"}}
    said["train"]["method_images"] = {"vafl": "vafl"}
    return said


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    """A run without vetoes: every space is used."""
    return finished_run(settings(), figures=True) / "runs" / "tiny"


def test_without_exclude_nothing_is_said(done: Path) -> None:
    for place in ("report.html", "sites/a/report.html", "sites/b/report.html"):
        text = (done / place).read_text()
        assert "ithdrawn" not in text.replace("a patient who withdrew", "") and "does not forget" not in text


def artifact(root: Path, stage: str) -> Path:
    (folder,) = [path for path in (root / stage).iterdir() if (path / "manifest.json").exists()]
    return folder


def cohort(root: Path, site: str, name: str):
    return from_file(root / "sites" / site / "cohorts" / name / "cohort.safetensors")


def answers(root: Path, space: str) -> dict[str, Any]:
    return json.loads((artifact(root, "translate") / f"{space}.json").read_text())


def test_the_site_with_the_lowest_score_is_the_target(done):
    said = json.loads((artifact(done, "score") / "scores.json").read_text())
    scores = {site: one["score"] for site, one in said["scores"].items()}
    assert set(scores) == {"a", "b"} and all(value > 0 for value in scores.values())
    assert said["target"] == min(scores, key=scores.__getitem__)


def test_only_the_target_synthesizes_and_shares_and_pays_what_was_asked(done):
    target = json.loads((artifact(done, "score") / "scores.json").read_text())["target"]
    for site in ("a", "b"):
        lines = list(ledgers.read_lines(done / "sites" / site / "ledger.jsonl"))
        asked = {line["request"] for line in lines}
        assert ({"synthesize", "sample"} <= asked) == (site == target)
        assert {"score", "translate"} <= asked
        by = {line["request"]: line["event"]["kind"] for line in lines}
        assert by["score"] == by["translate"] == "non_private"
        if site == target:
            (paid,) = [line["event"] for line in lines if line["request"] == "synthesize"]
            from privacy.dp.accounting import compute_cost
            from privacy.dp.events import parse_event

            assert 9.9 < compute_cost([parse_event(paid)], 1e-5).epsilon <= 10.0
            assert by["sample"] == "nothing"


def test_shared_images_are_of_both_classes_and_in_range(done):
    shared = from_bytes((artifact(done, "sample") / "shared.safetensors").read_bytes()).tensors
    assert shared["images"].shape == (24, 1, 32, 32) and float(shared["images"].abs().max()) <= 1
    assert shared["labels"].tolist() == [0] * 12 + [1] * 12


def test_pages_draw_images_as_points_and_only_a_hospitals_own_page_its_images(done):
    assert "Shared images beside public ones" in (done / "report.html").read_text()
    (label,) = re.findall(r'aria-label="([^"]*) images as points"', (done / "report.html").read_text())
    assert "as read" not in label and "real" not in label
    for site in ("a", "b"):
        for space in HARMONIZE["translate"]:
            drawn = f"{space}: this hospital&#39;s images beside the shared ones"
            there = (done / "sites" / site / "maps" / f"{space}.space.safetensors").exists()
            assert (drawn in (done / "sites" / site / "report.html").read_text()) == there
            assert drawn not in (done / "report.html").read_text()


def test_translated_cohorts_hold_the_same_patients_with_other_images(done):
    said = json.loads((artifact(done, "score") / "scores.json").read_text())
    target = said["target"]
    (other,) = {"a", "b"} - {target}
    raw = {site: json.loads((artifact(done, "ingest") / "sites.json").read_text())[site]["cohort"] for site in "ab"}
    for space in HARMONIZE["translate"]:
        before, after = cohort(done, other, raw[other]), cohort(done, other, answers(done, space)[other]["cohort"])
        assert not torch.equal(before.tensors["images"], after.tensors["images"])
        for name in ("labels", "patient", "position", "split", "lesion", "gland"):
            assert torch.equal(before.tensors[name], after.tensors[name])
        learnt = space == "vafl"
        assert (answers(done, space)[target]["cohort"] == raw[target]) == learnt
        # What learnt from all patients ties each of them to all others.
        assert after.facts["recipe"]["independent"] is not learnt


def test_methods_learn_in_their_spaces(done):
    for label in ("fedavg", "vafl", "oracle"):
        result = json.loads((artifact(done, "train") / f"{label}.json").read_text())
        assert result["space"] == {"vafl": "vafl", "oracle": "oracle"}.get(label, "raw")
    methods = {row["method"] for row in json.loads((artifact(done, "report") / "scores.json").read_text())}
    assert methods == {"fedavg", "vafl", "oracle", MAJORITY}


def test_pages_tell_of_spaces_and_pictures_of_patients_stay_home(done):
    page = (done / "report.html").read_text()
    assert (
        "Image spaces" in page and "private_evolution, patient-level ε = 10" in page and "synthetic 1, positive" in page
    )
    for site in ("a", "b"):
        own = (done / "sites" / site / "report.html").read_text()
        assert "Image spaces" in own and "How well this hospital" in own
    assert "no patient's image" in page and "central baseline" not in page
    assert SAMPLE.says in page and AS_THEY_ARE not in page


def test_reports_tell_the_share_of_the_oracle_gap(done):
    """The run's oracle is one: on the coordinator's page, on each hospital's own, and as JSON."""
    shares = json.loads((artifact(done, "report") / "report.json").read_text())["shares"]
    assert {(row["method"], row["untranslated"], row["oracle"]) for row in shares} == {("vafl", "fedavg", "oracle")}
    assert {row["protocol"] for row in shares} == {"private", "private mean", "overall"}
    scores = {
        (row["method"], row["protocol"], *row["sites"]): row["value"]
        for row in json.loads((artifact(done, "report") / "scores.json").read_text())
        if row["measure"] == "AUC"
    }
    for row in shares:
        place = row["protocol"], *row["sites"]
        assert row["gap"] == pytest.approx(scores["oracle", *place] - scores["fedavg", *place])
        assert row["gain"] == pytest.approx(scores["vafl", *place] - scores["fedavg", *place])
        assert (row["share"] is None) == bool(row["why"])
    page = (done / "report.html").read_text()
    assert "What harmonization is worth" in page and "The same patients on one scanner (oracle) would gain" in page
    for site in ("a", "b"):
        own = (done / "sites" / site / "report.html").read_text()
        assert "What harmonization is worth" in own and "The same images in every space: as read" in own
        assert "The same images in every space" not in page


def pseudonyms(root: Path) -> set[str]:
    """Of every patient of every hospital, as short as pages print them."""
    places = (root / "sites").glob("*/cohorts/*/split.json")
    return {name[:8] for place in places for names in json.loads(place.read_text()).values() for name in names}


def named_on(page: str, names: set[str]) -> set[str]:
    return {name for name in names if name in page}


def test_no_patient_has_a_name_on_the_coordinators_page(done):
    names, page = pseudonyms(done), (done / "report.html").read_text()
    assert len(names) == 32
    assert named_on(page, names) == set()
    for name in names:
        assert named_on(page.replace("Image spaces", f"Image spaces {name}"), names) == {name}
    for site in ("a", "b"):  # where they may stand, they are found
        assert named_on((done / "sites" / site / "report.html").read_text(), names)


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A run that shares the target's own images, and pools all hospitals' translated ones."""
    folder = tmp_path_factory.mktemp("real")
    said = cycled()
    said["harmonize"]["translate"] = {"z": {"name": "z_score"}}
    said["train"]["methods"] = {"fedavg": {"name": "fedavg"}, "pooled": {"name": "central"}}
    said["train"]["method_images"] = {"fedavg": "z", "pooled": "z"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main([write(folder, said)]) == 0
    return folder / "runs" / "tiny"


def test_patients_own_images_that_were_shared_are_called_so_on_every_page(real):
    shared = from_bytes((artifact(real, "sample") / "shared.safetensors").read_bytes()).tensors["images"]
    name = json.loads((artifact(real, "ingest") / "sites.json").read_text())["b"]["cohort"]
    own = Scale(low=0.0, high=3.5).into(cohort(real, "b", name).tensors["images"])
    assert all(bool((own == one).flatten(1).all(dim=1).any()) for one in shared)
    page, at_b, at_a = (
        (real / place).read_text() for place in ("report.html", "sites/b/report.html", "sites/a/report.html")
    )
    assert "no patient's image" not in page and "central baseline" in page
    assert (
        "training slices of patients as they are, with their labels" in page
        and AS_THEY_ARE in page
        and SAMPLE.says not in page
    )
    assert f"{len(shared)} of its training images, drawn at random" in page and "synthetic 1" not in page
    assert AS_THEY_ARE in at_b and AS_THEY_ARE not in at_a and "synthetic images, which" not in at_b
    assert AS_THEY_ARE in (real / "sites" / "b" / "statement.md").read_text()
    assert named_on(page, pseudonyms(real)) == set()


def test_a_second_run_does_nothing(done, monkeypatch, capsys):
    monkeypatch.chdir(done.parents[1])
    assert main(["tiny.yaml", "--explain", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    assert [step["state"] for step in steps] == ["keep"] * (len(STAGES) - 6), (
        "all but augment, features, figures, pretrain, route and track"
    )


def test_a_ready_model_takes_its_translator_along(done, tmp_path, monkeypatch):
    from pipelines.predict import main as predict

    said = json.loads((artifact(done, "score") / "scores.json").read_text())
    (other,) = {"a", "b"} - {said["target"]}
    ready = done / "sites" / other / "ready"
    models = {path.stem for path in ready.iterdir() if not path.stem.endswith(".statistics")}
    assert models == {"fedavg", "vafl"}  # oracle: no new study gets there
    files = sorted((done / "sites" / other / "phantom").glob("*/images"))[0]
    options = [str(files), "--no-gland", "--out"]
    assert predict([str(ready / "vafl.safetensors"), *options, str(tmp_path / "vafl"), "--json"]) == 0
    assert predict([str(ready / "fedavg.safetensors"), *options, str(tmp_path / "raw"), "--json"]) == 0
    one, two = ((tmp_path / name / "predictions.csv").read_text() for name in ("vafl", "raw"))
    assert one.count("\n") == two.count("\n") > 5 and one != two


def test_a_refused_translation_is_not_used_and_no_method_is_trained_again_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = cycled()
    said["harmonize"]["veto"] |= {"gland_order": 0.999999, "gland_order_centre": 0.999999}
    said["train"]["methods"] = {label: {"name": "fedavg"} for label in ("fedavg", "other_rate", "second", "vafl")}
    said["train"]["method_work"] = {"other_rate": {"lr": 0.002}}
    said["train"]["method_images"] = {"vafl": "vafl", "other_rate": "vafl"}
    assert main([write(tmp_path, said)]) == 0
    root = tmp_path / "runs" / "tiny"
    raw = json.loads((artifact(root, "ingest") / "sites.json").read_text())["a"]["cohort"]
    answer = answers(root, "vafl")["a"]
    assert answer["vetoed"] == ["gland_order"] and answer["cohort"] == raw
    trained = {label: read_trained(artifact(root, "train"), label) for label in said["train"]["methods"]}
    assert {label: method.same_as for label, method in trained.items()} == {
        "fedavg": None, "vafl": "fedavg", "second": None, "other_rate": None,
    }  # fmt: skip
    assert trained["vafl"].train_run == trained["fedavg"].train_run and trained["vafl"].space == "vafl"
    runs = {str(line["run"]) for site in "ab" for line in ledgers.read_lines(root / "sites" / site / "ledger.jsonl")}
    assert not [run for run in runs if "/vafl-" in run]
    rows = json.loads((artifact(root, "report") / "report.json").read_text())["scores"]
    scores = {
        label: [row["value"] for row in rows if row["method"] == label and row["protocol"] == "private"]
        for label in ("fedavg", "vafl")
    }
    assert scores["vafl"] == scores["fedavg"] != []
    page = re.sub(r"<[^>]+>", "", (root / "report.html").read_text())
    assert "= fedavg: translation refused at a (patient order)" in page
    assert (root / "sites" / "a" / "ready" / "vafl.safetensors").exists()


def test_an_interrupted_translation_goes_on_where_it_was(tmp_path, monkeypatch):
    """A stop between two states: the run ends politely, the next one finishes, and no patient is asked twice."""
    from pipelines.hospital import translation as handler
    from pipelines.runs import stopping

    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, cycled(steps=12))
    assert main([path, "--until", "sample"]) == 0
    telling = handler.make_progress

    def stopping_at(hospital, step):
        told = telling(hospital, step)

        def then(done: int, total: int, what: str) -> None:
            told(done, total, what)
            if total and done >= total // 2:
                raise stopping.Stopped("a test")

        return then

    monkeypatch.setattr(handler, "make_progress", stopping_at)
    assert main([path, "--until", "translate"]) != 0
    root = tmp_path / "runs" / "tiny"
    assert not list((root / "translate").glob("*/manifest.json"))
    assert list((root / "sites" / "a" / "fitting").rglob("*"))
    monkeypatch.setattr(handler, "make_progress", telling)
    assert main([path, "--until", "translate"]) == 0
    lines = [
        line for line in ledgers.read_lines(root / "sites" / "a" / "ledger.jsonl") if line["request"] == "translate"
    ]
    assert [line["refused"] for line in lines].count(None) == 1


def test_a_damaged_synthesis_is_learnt_again_under_another_name_and_fresh_learns_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = settings()
    said["harmonize"]["score"] = {"release": "public", "target": "b"}
    path, root = write(tmp_path, said), tmp_path / "runs" / "tiny"

    def name() -> str:
        newest = max((root / "synthesize").glob("*/synthesis.json"), key=lambda place: place.stat().st_mtime_ns)
        return str(json.loads(newest.read_text())["run"]).partition("/")[2]

    assert main([path, "--until", "synthesize"]) == 0
    first = name()
    assert main([path, "--only", "synthesize", "--fresh"]) == 0
    assert name() == f"{first}-1"
    (kept,) = (root / "sites" / "b" / "conversations" / "tiny" / f"{first}-1").iterdir()
    kept.write_bytes(kept.read_bytes()[:-7])
    for folder in (root / "synthesize").iterdir():
        shutil.rmtree(folder)
    assert main([path, "--until", "sample"]) == 0
    assert name() == first  # the one that is intact; nothing was paid again
    lines = [
        line for line in ledgers.read_lines(root / "sites" / "b" / "ledger.jsonl") if line["request"] == "synthesize"
    ]
    assert [line["again"] for line in lines] == [False, False, True]


def problems(said: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        validate_settings(_document(said), Config)
    return " ".join(f"{problem.path}: {problem.message}" for problem in caught.value.problems)


def _document(said: dict[str, Any]):
    from pipelines.loader.document import read_yaml

    return read_yaml(yaml.safe_dump(said), environment={})


def test_without_harmonize_there_are_no_such_stages():
    config = validate_settings(_document(BASE), Config)
    stages = select_stages(config)
    unasked = {"augment", "features", "figures", "pretrain", "route", "track"}
    without = {stage.name for stage in HARMONIZING} | unasked
    assert [stage.name for stage in stages] == [stage.name for stage in STAGES if stage.name not in without]
    assert all(set(stage.needs) <= {one.name for one in stages} for stage in stages)
    harmonized = select_stages(validate_settings(_document(settings()), Config))
    assert [stage.name for stage in harmonized] == [stage.name for stage in STAGES if stage.name not in unasked]


def test_spaces_that_do_not_exist_and_images_that_do_not_suit_are_all_told():
    said = settings() | {"images": {"kind": "slices", "size": 36, "spacing_mm": 2.0}}
    said["train"]["method_images"]["fedavg"] = "moon"
    said["harmonize"]["score"] = {"release": "public", "target": "c"}
    said["harmonize"]["synthesis"] = {"name": "real"}
    said["pooling"] = "refused"
    told = problems(said)
    for words in ("'moon' is no space of images", "must be a multiple of 8", "'c' is no site", "real shares training"):
        assert words in told


def test_a_prior_of_other_channels_and_an_epsilon_that_no_noise_is_enough_for_are_told():
    said = settings()
    said["harmonize"]["synthesis"] = {"name": "private_evolution", "prior": "skin_lesion"}
    assert "skin_lesion has 3 channels, and images have 1" in problems(said)
    said["harmonize"]["synthesis"] = {"name": "dp_wgan_gp", "epsilon": 1e-9}
    assert "harmonize.synthesis" in problems(said) and "noise" in problems(said)


def test_the_present_target_stays_unless_another_is_notably_lower():
    from harmonize.complexity import Score
    from pipelines.coordinator.stages.score import _choose_target
    from pipelines.requests.score import Scored

    def lowest(a: list[float], b: list[float], **more: Any) -> str:
        replies = {site: Scored(score=sum(v) / len(v), values=v, deviation=None) for site, v in (("a", a), ("b", b))}
        return _choose_target(Score(release="exact", seeds=2, **more), replies, {"a": 5, "b": 5})

    assert lowest([10.0, 12.0], [9.5, 11.0]) == "b"
    assert lowest([10.0, 12.0], [9.5, 11.0], current="a") == "a"
    assert lowest([10.0, 12.0], [2.0, 3.0], current="a") == "b"
    assert lowest([10.0, 12.0], [9.5, 11.0], current="a", margin=0.0) == "b"


def test_under_a_budget_nothing_without_noise_is_planned():
    said = settings() | {"privacy": {"epsilon": 5.0}, "model": {**BASE["model"], "norm": "group"}}
    said["harmonize"]["sampling"] = {"name": "raw"}
    said["harmonize"]["synthesis"] = {"name": "wgan_gp", "epsilon": None}
    told = problems(said)
    for words in (
        "harmonize.translate.vafl: cyclegan learns from several patients",
        "harmonize.sampling: raw",
        "harmonize.score.release: exact",
        "harmonize.synthesis: wgan_gp has no noise",
    ):
        assert words in told
    assert "harmonize.translate.z:" not in told


def test_a_policy_that_does_not_answer_is_told_before_anything_runs():
    said = settings()
    said["sites"]["a"]["policy"] = {"pooling": True, "requests": ["survey", "ingest", "holds", "report"]}
    config = validate_settings(_document(said), Config)
    told = find_refused_requests(config, permissions_in(config)) + find_unanswered_requests(
        config, permissions_in(config), optional=True
    )
    for request in ("score", "synthesize", "sample", "translate"):
        assert f"a: its policy does not answer {request}, which the stage {request} asks" in " ".join(told)


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Runs with sites a and b, then with c too, which joins later; gives what each site was asked in the second run."""

    def run(**score: Any) -> tuple[str, dict[str, list[str]], Path]:
        monkeypatch.chdir(tmp_path)
        said = settings()
        said["harmonize"]["score"]["seeds"] = 2
        said["harmonize"]["translate"] = {"vafl": said["harmonize"]["translate"]["vafl"]}
        said["train"]["methods"], said["train"]["method_images"] = {"vafl": {"name": "fedavg"}}, {"vafl": "vafl"}
        assert main([write(tmp_path, said), "--until", "train"]) == 0
        root = tmp_path / "runs" / "tiny"
        target = str(json.loads((artifact(root, "score") / "scores.json").read_text())["target"])
        told = {site: len(list(ledgers.read_lines(root / "sites" / site / "ledger.jsonl"))) for site in "ab"}
        said["sites"]["c"] = copy.deepcopy(said["sites"]["b"])
        said["sites"]["c"]["source"]["seed"] = 77
        said["harmonize"]["score"] |= {"current": target, **score}
        assert main([write(tmp_path, said), "--until", "train"]) == 0
        asked = {
            site: [
                line["request"]
                for line in list(ledgers.read_lines(root / "sites" / site / "ledger.jsonl"))[told.get(site, 0) :]
                if not line["again"] and line["request"] in ("score", "synthesize", "sample", "translate", "train")
            ]
            for site in "abc"
        }
        return target, asked, root

    return run


def test_a_hospital_that_joins_later_trains_its_own_translator_alone(joined):
    """VAFL, section II.A: the shared images stay, and so do the translators of those who were there."""
    target, asked, root = joined(margin=100.0)
    assert asked == {"a": ["train"], "b": ["train"], "c": ["score", "translate", "train"]}
    newest = max((root / "score").iterdir(), key=lambda path: path.stat().st_mtime)
    said = json.loads((newest / "scores.json").read_text())
    assert said["target"] == target and set(said["scores"]) == {"a", "b", "c"}


@pytest.mark.slow
def test_a_hospital_that_joins_with_a_notably_lower_score_becomes_the_target_and_all_is_made_again(joined, monkeypatch):
    from pipelines.coordinator.stages import score

    seen: list[tuple[float, ...]] = []

    def lower(current: Sequence[float], joining: Sequence[float], *_: Any, **__: Any) -> bool:
        seen.append(tuple(joining))
        return len(seen) == 2  # the target is asked for first, then the others by name: c comes last

    monkeypatch.setattr(score, "replaces_target", lower)
    _, asked, _ = joined()
    assert asked["c"] == ["score", "synthesize", "sample", "translate", "train"]
    assert asked["a"] == asked["b"] == ["translate", "train"]
