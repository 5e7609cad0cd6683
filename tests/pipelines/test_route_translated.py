"""A hospital outside is served by models that learnt from translated images: it trains a translator of its own."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from federation.conversation import load_newest_memory
from harmonize.cyclegan import CycleGan
from harmonize.own import SiteImages
from pipelines.hospital.adaptation import file_of
from pipelines.hospital.hospital import COHORT, read_cohort_file
from pipelines.run import main as run
from pipelines.runs.exits import Exit
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes
from privacy.release import ledger as ledgers
from route_settings import translated


@pytest.fixture
def done(finished_run) -> Path:
    """One finished run, not to be changed."""
    return finished_run(translated()) / "runs" / "tiny"


def artifact(root: Path, stage: str) -> Path:
    (folder,) = (path for path in (root / stage).iterdir() if path.is_dir() and not path.name.startswith("."))
    return folder


def answer(root: Path) -> dict[str, Any]:
    return json.loads((artifact(root, "route") / "outside" / "vafl.json").read_text())["west"]


def raw_cohort(root: Path) -> str:
    return json.loads((artifact(root, "route") / "outside" / "sites.json").read_text())["west"]["cohort"]


def asked(root: Path, site: str, request: str) -> list[dict[str, Any]]:
    lines = ledgers.read_lines(root / "sites" / site / "ledger.jsonl")
    return [dict(line) for line in lines if line["request"] == request]


def test_the_check_is_in_order(tmp_path, capsys):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(translated()))
    assert run([str(tmp_path / "tiny.yaml"), "--check"]) == Exit.OK


def test_it_gets_the_shared_images_and_brings_its_own_into_the_space(done):
    reply = answer(done)
    assert reply["vetoed"] == [] and reply["cohort"] != raw_cohort(done)
    folder = done / "sites" / "west" / "cohorts"
    raw, new = (read_cohort_file(folder / name / COHORT) for name in (raw_cohort(done), reply["cohort"]))
    assert new.patients == raw.patients and torch.equal(new.split, raw.split)
    assert not torch.equal(new.images, raw.images)
    assert len(asked(done, "west", "translate")) == 1


def test_lines_of_the_space_use_its_translated_images_and_others_the_raw_ones(done):
    folder = done / "sites" / "west"
    used = {}
    for line in asked(done, "west", "route"):
        memory = load_newest_memory(DiskFolder(folder / "conversations" / line["run"]))
        scores = from_bytes((folder / "scores" / file_of(line["run"])).read_bytes()).facts
        used[scores["line"]] = memory.facts["looked_at"]
    new = answer(done)["cohort"]
    assert used == {"untreated": raw_cohort(done), "as_trained": new, "tent": new, "routing": new}


def on_features() -> dict[str, Any]:
    """Models on fixed features, which a hospital outside computes from its translated images."""
    said = translated()
    said["model"] = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "components": 8}
    said["train"]["methods"] = {"fedavg": {"name": "fedavg"}, "vafl": {"name": "fedavg"}}
    said["train"]["method_images"] = {"vafl": "vafl"}
    lines = {name: said["route"]["lines"][name] for name in ("untreated", "as_trained")}
    said["route"] |= {"personal": "fedavg", "lines": lines}
    return said


@pytest.mark.slow  # by default each half is tried: features outside, and translated images outside
def test_models_on_features_get_those_of_its_translated_images(finished_run):
    root = finished_run(on_features()) / "runs" / "tiny"
    folder, source = root / "sites" / "west", {}
    for line in asked(root, "west", "route"):
        memory = load_newest_memory(DiskFolder(folder / "conversations" / line["run"]))
        scores = from_bytes((folder / "scores" / file_of(line["run"])).read_bytes()).facts
        used = read_cohort_file(folder / "cohorts" / str(memory.facts["looked_at"]) / COHORT)
        assert used.images.shape[1:] == (8,)
        source[scores["line"]] = used.recipe["of"]
    assert source == {"untreated": raw_cohort(root), "as_trained": answer(root)["cohort"]}
    assert source["untreated"] != source["as_trained"]


def test_the_hospital_whose_images_they_are_is_asked_for_whom_and_books_it(done):
    (line,) = asked(done, "north", "sample")
    assert line["recipient"] == "outside"
    assert "which every hospital gets; handed to external sites too" in (done / "sites/north/statement.md").read_text()


def test_its_own_page_and_the_coordinators_say_what_it_got_and_did(done):
    assert "trained a translator of its own on them, without labels" in (done / "sites/west/report.html").read_text()
    assert "west (outside)" in (done / "report.html").read_text()


def refusing() -> dict[str, Any]:
    """Quality control accepts nothing."""
    said = copy.deepcopy(translated())
    said["sites"]["west"]["veto"] = {**said["harmonize"]["veto"], "cycle": 1e-9}
    return said


@pytest.fixture(scope="module")
def refused(tmp_path_factory) -> tuple[Path, list[bool]]:
    """A run in which it refuses its translation; whether any label shaped each translator that was fitted."""
    folder, labelled, fit = tmp_path_factory.mktemp("refused"), list[bool](), CycleGan.fit

    def record_labels(self: CycleGan, site_images: SiteImages, *arguments: Any, **more: Any) -> Any:
        labelled.append(bool(site_images.labels.any()))
        return fit(self, site_images, *arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(CycleGan, "fit", record_labels)
        (folder / "tiny.yaml").write_text(yaml.safe_dump({**refusing(), "processes": 1}))
        assert run(["tiny.yaml"]) == Exit.OK
    return folder / "runs" / "tiny", labelled


def test_a_refused_translation_serves_raw_images_and_says_so(refused):
    root, _ = refused
    reply = answer(root)
    assert reply["vetoed"] == ["cycle"] and reply["cohort"] == raw_cohort(root)
    for page in (root / "sites" / "west" / "report.html", root / "report.html"):
        assert '<span class="mark">vetoed</span><span class="sub">cycle error</span>' in page.read_text()


def test_its_labels_do_not_shape_its_translator(refused):
    _, labelled = refused
    assert labelled == [True, False], "south inside, with labels; west outside, without"


def test_a_policy_that_does_not_hand_them_out_is_named_before(tmp_path, capsys):
    said = translated()
    said["sites"]["north"]["policy"] = {}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(said))
    assert run([str(tmp_path / "tiny.yaml"), "--check"]) == Exit.CONFIG
    assert "sites.north.policy.recipients" in " ".join(capsys.readouterr().err.split())


def test_a_line_whose_methods_learn_in_two_spaces_is_refused(tmp_path, capsys):
    said = translated()
    said["route"]["lines"]["mixed"] = {"how": {"name": "routing"}, "shared": "fedavg"}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(said))
    assert run([str(tmp_path / "tiny.yaml"), "--check"]) == Exit.CONFIG
    assert "route.lines.mixed: its methods learn in different spaces" in " ".join(capsys.readouterr().err.split())
