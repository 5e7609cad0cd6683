"""The oracle on a phantom hospital's own page: its patients at the target's scanner. Real patients have none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from harmonized_run import settings

from pipelines.hospital.hospital import Hospital
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.page.harmonization import _render_oracle, _select_rows, _side_by_side
from pipelines.hospital.simulated_spaces import render_rows_again, rendered_again
from pipelines.loader.document import parse_document
from pipelines.loader.validation import validate_settings
from pipelines.settings.config import Config
from pipelines.settings.sites import SiteSettings
from privacy.release.gate import Refused


@pytest.fixture(scope="module")
def done(finished_run) -> Path:
    return finished_run(settings(), figures=True) / "runs" / "tiny"


def source_of(done: Path) -> tuple[str, str]:
    """The hospital whose images are translated, and the scanner of the other one."""
    (scores,) = done.glob("score/*/scores.json")
    target = json.loads(scores.read_text())["target"]
    (other,) = {"a", "b"} - {target}
    return other, settings()["sites"][target]["source"]["scanner"]


def read_settings() -> Config:
    config: Config = validate_settings(parse_document(yaml.safe_dump(settings()), environment={}), Config)
    return config


def open_hospital(done: Path, name: str, sites: dict[str, SiteSettings] | None = None) -> Hospital:
    own = (sites or read_settings().sites)[name]
    return Hospital(name, done / "sites" / name, own, lambda: "now")


def raw_cohort(done: Path, name: str) -> str:
    (sites,) = done.glob("ingest/*/sites.json")
    return str(json.loads(sites.read_text())[name]["cohort"])


def test_some_rows_by_another_scanner_are_those_of_all_rows(done):
    name, scanner = source_of(done)
    hospital = open_hospital(done, name)
    cohort = cohort_of(hospital, raw_cohort(done, name))
    before = {*(hospital.root / "cohorts").iterdir()}
    rows = [len(cohort.labels) - 1, 0, 3]
    some = render_rows_again(hospital, cohort, rows, scanner)
    assert torch.equal(some, rendered_again(hospital, cohort, scanner)[rows])
    assert not torch.equal(some, cohort.images[rows])
    assert {*(hospital.root / "cohorts").iterdir()} == before, "what was written for it is gone"


def test_a_translation_stands_beside_what_it_should_be_without_a_line_that_learns_from_it(done):
    name, scanner = source_of(done)
    hospital = open_hospital(done, name)
    cohort, root = cohort_of(hospital, raw_cohort(done, name)), hospital.root / "qualities"
    notes = [json.loads(path.read_text()) for path in sorted(root.glob(f"vafl.{raw_cohort(done, name)}.json"))]
    (sheet,) = _side_by_side(hospital, cohort, notes, scanner)
    assert sheet.title.endswith(": as read, vafl, oracle") and "Real patients have none." in sheet.caption
    captions = re.findall(r"<figcaption>([^<]*)</figcaption>", sheet.html)
    assert captions[1::3] == ["vafl"] * (len(captions) // 3) and captions[2::3] == ["oracle"] * (len(captions) // 3)
    (without,) = _side_by_side(hospital, cohort, notes, None)
    assert without.title.endswith(": as read, vafl") and "oracle" not in without.caption


def test_a_runs_own_oracle_is_not_shown_twice(done):
    name, _ = source_of(done)
    page = (done / "sites" / name / "report.html").read_text()
    (title,) = re.findall(r"<h3>(The same images in every space: [^<]*)</h3>", page)
    assert title.count("oracle") == 1


def test_real_patients_have_no_oracle(done, tmp_path):
    name, scanner = source_of(done)
    config = read_settings()
    real = replace(config.sites[name], source={"kind": "nifti", "folder": str(tmp_path)}, labels=None)  # type: ignore[arg-type]
    hospital = open_hospital(done, name, {name: real})
    cohort = cohort_of(hospital, raw_cohort(done, name))
    with pytest.raises(Refused, match="not_a_phantom"):
        render_rows_again(hospital, cohort, _select_rows(cohort), scanner)
    assert _render_oracle(hospital, cohort, _select_rows(cohort), scanner) is None
