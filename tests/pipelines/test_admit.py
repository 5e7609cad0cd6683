"""What ingest tells of a cohort: digests that only the hospital can make, and how its patients were divided."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from asking import asked

from harmonize.veto import Limits
from pipelines.data.images import IMAGES, Features
from pipelines.data.partition import Part
from pipelines.data.sources import GlandMask, MaskLabels, TableSource
from pipelines.hospital.files import NOT_OF_COHORT, cohort_settings, survey_files
from pipelines.hospital.hospital import COHORT, Hospital
from pipelines.hospital.intake import check_holdings, ingest_cohort
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.overview import INSIDE
from pipelines.phantom.patients import PhantomSource
from pipelines.requests.writing import to_facts
from pipelines.runs.store import short_digest
from pipelines.settings.sites import SiteSettings
from privacy.message import Call
from privacy.release.gate import Refused
from privacy.release.policy import REQUESTS, Policy

IMAGES_SAID = IMAGES.dump_python(Features(numbers=("age",), normalize="none"), mode="json")
SAID: dict[str, Any] = {
    "images": IMAGES_SAID,
    "split": {"train": 0.5, "validation": 0.2, "test": 0.3},
    "seed": 3,
    "independent": True,
}
CALL, HELD, SURVEYED = (Call("run", 0, name, {}) for name in ("ingest", "holds", "survey"))


def hospital(root: Path, lines: int = 12, **settings: Any) -> Hospital:
    root.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"P{number},{30 + number},{number % 2}\n" for number in range(lines))
    (root / "t.csv").write_text(f"id,age,ill\n{rows}")
    source = TableSource(file=str(root / "t.csv"), patient="id", label="ill")
    return Hospital("a", root / "site", SiteSettings(source=source, **settings), lambda: "2026-01-01T00:00:00")


def told(site: Hospital, **changed: Any) -> dict[str, Any]:
    return to_facts(ingest_cohort(site, asked(CALL, {**SAID, **changed})).reply)


def complaint(site: Hospital, facts: dict[str, Any]) -> object:
    named = {"cohort": facts["cohort"], "sha256": facts["sha256"]}
    return check_holdings(site, asked(HELD, named)).reply.complaint


def test_what_leaves_of_a_cohort_is_no_digest_that_a_guess_could_be_checked_against(tmp_path):
    """Not even by one who guesses the whole file."""
    site = hospital(tmp_path)
    facts = told(site)
    data = (site.cohort_folder(facts["cohort"]) / COHORT).read_bytes()
    plain = hashlib.sha256(data).hexdigest()
    assert facts["cohort"] == short_digest(facts["sha256"]) and len(facts["sha256"]) == 64
    assert plain not in json.dumps(facts) and short_digest(plain) not in json.dumps(facts)
    assert told(site) == facts  # the key stays, so names repeat


def test_the_same_cohort_has_another_name_under_another_key(tmp_path):
    site, other = (replace(hospital(tmp_path / name), root=tmp_path / name / "site") for name in "ab")
    one = told(site)
    (other.root).mkdir(parents=True)
    (other.root / "pseudonym.key").write_bytes((site.root / "pseudonym.key").read_bytes())
    (other.root / "pseudonym.key").chmod(0o600)
    assert told(other) == one
    third = hospital(tmp_path / "c")
    assert not {one["cohort"], one["sha256"], one["cut"]} & {told(third)[name] for name in ("cohort", "sha256", "cut")}


def test_a_phantoms_names_repeat_on_any_machine(tmp_path):
    source = PhantomSource(kind="phantom", scanner="L", patients=4, seed=4, slices=4, format="nifti")
    images = {"kind": "slices", "size": 16, "spacing_mm": 4.0}
    found = [
        told(Hospital("a", tmp_path / name, SiteSettings(source=source), lambda: "now"), images=images) for name in "xy"
    ]
    assert found[0] == found[1]


def test_holds_knows_the_cohort_by_its_keyed_digest_and_sees_damage(tmp_path):
    site = hospital(tmp_path)
    facts = told(site)
    assert complaint(site, facts) is None
    path = site.cohort_folder(facts["cohort"]) / COHORT
    data = path.read_bytes()
    plain = hashlib.sha256(data).hexdigest()
    assert complaint(site, {**facts, "sha256": plain}) == "the cohort is corrupt"
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert complaint(site, facts) == "the cohort is corrupt"
    path.unlink()
    assert complaint(site, facts) == "the cohort is gone"
    with pytest.raises(Refused, match="malformed_cohort"):
        complaint(site, {**facts, "cohort": "../x"})


def test_the_cut_names_the_division_and_training_can_read_it(tmp_path):
    site = hospital(tmp_path, test=("P1", "P2"))
    facts = told(site)
    recipe = cohort_of(site, facts["cohort"]).recipe
    assert (recipe["cut"], recipe["independent"]) == (facts["cut"], True)
    hospital(tmp_path, lines=9)  # other patients, divided in the same way
    assert told(site)["cut"] == facts["cut"]
    assert told(site)["cohort"] != facts["cohort"]
    images = {**IMAGES_SAID, "normalize": "site"}
    assert told(site, images=images)["cut"] == facts["cut"]
    moved = [
        told(site, seed=4),
        told(site, independent=False),
        told(site, split={"train": 0.5, "validation": 0.25, "test": 0.25}),
        told(replace(site, settings=replace(site.settings, test=("P1",)))),  # type: ignore[type-var, arg-type]
    ]
    assert len({facts["cut"], *(other["cut"] for other in moved)}) == 5


def test_independent_is_false_unless_it_is_said_and_nothing_but_a_truth_value(tmp_path):
    site = hospital(tmp_path)
    plain = dict(SAID)
    del plain["independent"]
    facts = to_facts(ingest_cohort(site, asked(CALL, plain)).reply)
    assert cohort_of(site, str(facts["cohort"])).recipe["independent"] is False
    assert facts == told(site, independent=False)
    assert facts["splits"]["train"]["patients"] == 6  # stratified: the shares of 12 as near as can be
    for wrong in (1, "yes", None):
        with pytest.raises(Refused, match="malformed_request"):
            told(site, independent=wrong)


OTHER: dict[str, Any] = {
    "source": TableSource(file="other.csv", patient="id", label="ill"),
    "labels": MaskLabels(folder="masks"),
    "gland": GlandMask(folder="glands"),
    "max_rejected": 0.5,
    "exclude": ("P1",),
    "test": ("P2",),
    "part": Part(kind="even", of=2, number=1),
    "policy": Policy(requests=("survey",)),
    "home": "home",
    "methods": {"fedprox": {"mu": 1.0}},
    "work": {"lr": 0.1},
    "images": {"size": 32},
    "model": {"patch": [8, 8]},
    "readers": 3,
    "veto": Limits(),
    "unlabelled": True,
}


def test_a_cohort_is_another_one_where_its_own_settings_change_and_only_there(monkeypatch):
    """For every setting that a hospital has: one that is new must be put on one of the two sides here."""
    plain = SiteSettings(source=TableSource(file="t.csv", patient="id", label="ill"))
    assert set(OTHER) == {field.name for field in fields(SiteSettings)}
    for name, value in OTHER.items():
        changed = object.__new__(SiteSettings)  # unchecked: only the digest is asked for
        for field in fields(SiteSettings):
            object.__setattr__(changed, field.name, getattr(plain, field.name))
        object.__setattr__(changed, name, value)
        assert (cohort_settings(changed) == cohort_settings(plain)) == (name in NOT_OF_COHORT), name


def test_a_request_that_is_new_leaves_every_survey_as_it_was(tmp_path):
    before = survey_files(site := hospital(tmp_path), asked(SURVEYED)).reply.digest
    more = replace(site.settings, policy=replace(site.settings.policy, requests=REQUESTS[:-1]))
    again = replace(site, settings=more)
    assert survey_files(again, asked(SURVEYED)).reply.digest == before


def test_a_name_in_the_settings_that_is_nobodys_is_told_at_the_hospital(tmp_path):
    """Misspelt, a patient who withdrew would be used, and one held out for testing would be trained on."""
    right, wrong = (
        hospital(tmp_path / "right", test=("P1",), exclude=("P2",)),
        {"test": ("P1", "P91"), "exclude": ("P92",)},
    )
    other = hospital(tmp_path / "wrong", **wrong)
    for site in (right, other):
        ingest_cohort(site, asked(CALL, SAID))
    assert "match no patient" not in (right.root / INSIDE).read_text()
    line = (other.root / INSIDE).read_text()
    assert "1 of the names in test match no patient" in line and "1 of the names in exclude match no patient" in line
    assert "P91" not in line and "P92" not in line
