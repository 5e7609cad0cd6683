"""FedDG at a hospital: who may have its spectra, what leaves, and what the ledger and the statement say of it."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import yaml

from federation.amplitude import low_amplitudes
from federation.feddg import FedDG
from pipelines.data.images import Slices
from pipelines.hospital.hospital import COHORT, Hospital, read_cohort_file, rows_of
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.released_counts import count_once
from pipelines.hospital.statement import build_own_statement, describe_contents
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.settings.config import Config
from pipelines.settings.sites import SiteSettings
from pipelines_settings import BASE
from privacy.dp.events import NON_PRIVATE, describe_event
from privacy.message import Call, Json, Message, to_bytes
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import COORDINATOR, SITES, Budget, Policy

OPEN = Policy(recipients=(COORDINATOR, SITES))
MODEL: dict[str, Json] = {"name": "unet", "width": 4, "levels": 1, "norm": "group"}
PRIVATE: dict[str, Json] = {"clip": 1.0, "sampling": 0.5, "views": 2, "noise": 8.0, "validation_noise": None}


@dataclass(frozen=True)
class Site:
    """A hospital that has read its patients. Every test introduces a run of its own."""

    hospital: Hospital
    cohort: str

    def under(self, policy: Policy, **settings: Any) -> Site:
        own = self.hospital.settings
        assert own is not None
        return replace(self, hospital=replace(self.hospital, settings=replace(own, policy=policy, **settings)))

    def introduced(self, run: str, **changes: Json) -> Message:
        said: dict[str, Json] = {"label": "x", "algorithm": {"name": "feddg"}, "seed": 0, "cohort": self.cohort}
        said |= {"model": MODEL, "inputs": [1, 16, 16], "classes": 2, "target": "gland", "evaluation_noise": 0.0}
        said |= {"work": {"optimizer": "sgd", "lr": 0.01, "steps": 1, "epochs": None}, "privacy": None}
        return make_worker(self.hospital)(Call(run, 0, "introduce", {}), Message({}, {**said, **changes}))

    def refused(self, run: str, **changes: Json) -> str:
        with pytest.raises(Refused) as caught:
            self.introduced(run, **changes)
        (line,) = self.lines(run)
        assert line["bytes"] == 0 and line["refused"] == caught.value.code
        return caught.value.code

    def lines(self, run: str) -> list[dict[str, Json]]:
        return [dict(line) for line in ledgers.read_lines(self.hospital.ledger) if line["run"] == run]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    settings = SiteSettings(source=PhantomSource(scanner="P", patients=8, seed=1, slices=4), policy=Policy())
    made = Hospital("a", tmp_path_factory.mktemp("spectra") / "a", settings, lambda: "2026-01-01T00:00:00Z")
    asked: dict[str, Json] = {"images": to_plain(Slices(size=16, spacing_mm=4.0)), "seed": 0, "independent": True}
    asked |= {"split": {"train": 0.5, "validation": 0.25, "test": 0.25}, "target": "gland", "classes": []}
    cohort = make_worker(made)(Call("r/ingest", 0, "ingest", {}), Message({}, asked)).facts["cohort"]
    return Site(made, str(cohort))


def test_a_hospital_that_never_spoke_of_other_sites_keeps_its_spectra(site):
    assert site.refused("r/closed") == "policy_recipient"
    told = (site.hospital.root / "log.txt").read_text().splitlines()[-1]
    assert "feddg" in told and "recipients: [coordinator, sites]" in told


def test_a_hospital_may_refuse_this_method_and_take_part_in_others_that_hand_on(site):
    choosy = site.under(replace(OPEN, algorithms=("fedavg", "apple")))
    assert choosy.refused("r/choosy") == "policy_algorithm"
    assert choosy.introduced("r/apple", algorithm={"name": "apple"}).facts["algorithm"] is not None


def test_what_leaves_are_low_amplitudes_of_training_images_and_the_ledger_has_every_byte(site):
    reply = site.under(OPEN).introduced("r/open")
    rows = rows_of(read_cohort_file(site.hospital.cohort_folder(site.cohort) / COHORT), target="gland")
    (spectra,) = reply.tensors.values()
    assert reply.tensors.keys() == {"spectra"} and reply.facts == {"algorithm": {}}
    assert spectra.shape == (min(FedDG().spectra, len(rows["train"].x)), 1, 3, 2)
    training = low_amplitudes(rows["train"].x, FedDG().window)
    others = low_amplitudes(torch.cat([rows["validation"].x, rows["test"].x]), FedDG().window)
    for one in spectra:
        assert any(torch.equal(one, own) for own in training)
        assert not any(torch.equal(one, other) for other in others)
    (line,) = site.lines("r/open")
    sent = to_bytes(reply)
    assert (line["recipient"], line["bytes"], line["refused"]) == (SITES, len(sent), None)
    assert line["sha256"] == hashlib.sha256(sent).hexdigest() and line["event"] == describe_event(NON_PRIVATE)


def test_pages_say_that_it_went_to_all_sites(site):
    site.under(OPEN).introduced("r/told")
    site.under(OPEN).introduced("r/plain", algorithm={"name": "fedavg"})
    lines = [line for line in ledgers.read_lines(site.hospital.ledger) if line["run"] in ("r/told", "r/plain")]
    assert describe_contents(site.hospital, lines)["introduce"].endswith("handed on to all other sites (r/told)")
    stated = build_own_statement(site.hospital, lines)
    assert "handed on to all other sites" in str(stated)


def test_a_replay_is_the_same_spectra_and_no_second_release(site):
    first, second = (site.under(OPEN).introduced("r/again") for _ in range(2))
    assert to_bytes(first) == to_bytes(second)
    assert [line["again"] for line in site.lines("r/again")] == [False, True]


def test_a_hospital_sets_its_own_number_whatever_the_coordinator_asks(site):
    asked: dict[str, Json] = {"name": "feddg", "spectra": 64}
    for number in (2, 0):
        own = site.under(OPEN, methods={"x": {"spectra": number}})
        found = own.introduced(f"r/own-{number}", algorithm=asked).tensors
        assert [len(value) for value in found.values()] == ([number] if number else [])
    (line,) = site.lines("r/own-0")
    assert line["event"] == {"kind": "nothing"}, "with 0 no patient was looked at"
    assert site.under(OPEN).refused("r/greedy", algorithm={**asked, "spectra": 65}) == "malformed_opening"
    assert site.under(OPEN).refused("r/wide", algorithm={**asked, "window": 9}) == "malformed_opening"


@pytest.mark.parametrize("policy", [OPEN, replace(OPEN, budget=Budget(epsilon=4.0), public=("counts",))])
def test_under_differential_privacy_no_spectra_leave_even_if_a_coordinator_asks(site, policy):
    run = f"r/private-{policy.budget is None}".lower()
    assert site.under(policy).refused(run, privacy=PRIVATE)


def test_a_budget_affords_no_spectra(site):
    paying = replace(OPEN, budget=Budget(epsilon=4.0), public=("counts",))
    later = site.under(paying)
    assert later.refused("r/early") == "no_counts", "a budget that came later has no counts to repeat yet"
    count_once(later.hospital, Call("r/ingest", 0, "ingest", {}), cohort_of(later.hospital, later.cohort), {})
    assert later.refused("r/budget") == "budget"


def settings(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(BASE)
    made |= {"task": {"kind": "segmentation", "target": "gland"}, "model": MODEL}
    made["train"] = {"schedule": {"rounds": 1}, "methods": {"m": {"name": "feddg"}, "fedavg": {"name": "fedavg"}}}
    made["images"] = {"kind": "slices", "size": 32, "spacing_mm": 2.0, "centre": "image"}
    made |= {"evaluate": {"copies": 5, "reference": None}, "audit": {"membership": False}}
    for one in made["sites"].values():
        one["policy"] = {"pooling": True, "recipients": ["coordinator", "sites"]}
    return made | changes


def config(made: dict[str, Any]) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def test_a_yaml_takes_it_for_masks_where_policies_let_spectra_go():
    assert config(settings()).train.methods["m"] == FedDG()
    closed = settings()
    closed["sites"]["a"]["policy"] = {"pooling": True}
    with pytest.raises(ConfigError, match=r"sites.a.policy.recipients: train.methods.m \(feddg\) hands"):
        config(closed)


def test_a_hospital_outside_the_federation_says_nothing_that_could_be_handed_on():
    made = settings(outside=["z"])
    made["sites"]["z"] = {"source": made["sites"]["a"]["source"]}
    made["train"]["methods"] = {"m": {"name": "feddg"}, "fedavg": {"name": "fedavg"}, "iopfl": {"name": "iopfl"}}
    made["route"] = {
        "shared": "fedavg",
        "personal": "iopfl",
        "lines": {"m": {"how": {"name": "as_trained"}, "shared": "m"}},
    }
    for site in ("a", "b"):
        made["sites"][site]["policy"] = {"recipients": ["coordinator", "sites", "outside"]}
    made["pooling"] = "refused"
    assert config(made).outside == ("z",)


def test_a_yaml_is_refused_by_name_for_labels_and_for_privacy():
    labels = settings(model=BASE["model"], task={"kind": "classification"})
    with pytest.raises(ConfigError, match=r"feddg contrasts the edges of masks"):
        config(labels)
    private = settings(privacy={"epsilon": 3.0}, pooling="refused")
    for one in private["sites"].values():
        one["policy"] = {"public": ["counts"], "recipients": ["coordinator", "sites"]}
    with pytest.raises(ConfigError, match=r"feddg hands amplitude spectra of single training images"):
        config(private)
