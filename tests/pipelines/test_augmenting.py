"""Generative augmentation: synthetic images join training alone, and patients are charged for them."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save

from evaluation.records import STATES, AugmentedRow
from federation.features.encoder import file_digest
from federation.features.inception import Network
from harmonize import balancing, synthesis
from harmonize.fitted_prior import FittedPrior
from harmonize.prior import PRIORS, draw_pictures
from pipelines import clean
from pipelines.coordinator.spending import total_cost
from pipelines.data.cohort import Cohort
from pipelines.data.stored import count_synthetic, of_patients
from pipelines.hospital import augmenting
from pipelines.hospital import training as learn
from pipelines.hospital.hospital import COHORT, Hospital, write_cohort_file
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.withdrawn import list_earlier_uses
from pipelines.hospital.worker import make_worker
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.phantom.patients import PhantomSource
from pipelines.run import main
from pipelines.runs.store import short_digest
from pipelines.settings.config import Config
from pipelines.settings.sites import SiteSettings
from pipelines_settings import BASE
from privacy.dp.accounting import compute_cost
from privacy.dp.events import NON_PRIVATE
from privacy.message import Call, Json, Message
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused
from privacy.release.policy import Budget, Policy

INPUTS = (1, 32, 32)
SCALE: dict[str, Json] = {"low": 0.0, "high": 3.5}
EPSILON = 2.0
NOISELESS: dict[str, Json] = {"name": "fitted_prior", "epsilon": None, "pictures": 60}
NOISED: dict[str, Json] = {**NOISELESS, "epsilon": EPSILON}
COPYING: dict[str, Json] = {"name": "real"}
PROMISED = Policy(budget=Budget(epsilon=50.0, delta=1e-5), min_patients=1)
TRAIN, VALIDATION, TEST = 60, 24, 24


class Place:
    """A hospital of one picture a patient, of which every fourth is positive, and what it answers."""

    def __init__(self, folder: Path, policy: Policy | None = None, every: int = 4) -> None:
        settings = SiteSettings(source=PhantomSource(scanner="P", patients=4), policy=policy or Policy())
        self.hospital = Hospital("a", folder, settings, lambda: "2026-01-01T00:00:00Z")
        count = TRAIN + VALIDATION + TEST
        y = (torch.arange(count) % every == 0).long()
        none = torch.zeros(count, 0, dtype=torch.uint8)
        self.raw = Cohort(
            images=(draw_pictures(PRIORS["prostate_adc"], y, INPUTS, 5) + 1) * 1.75,
            labels=y,
            patient=torch.arange(count),
            position=torch.zeros(count),
            lesion=none,
            gland=none,
            split=torch.tensor([0] * TRAIN + [1] * VALIDATION + [2] * TEST, dtype=torch.int8),
            patients=tuple(f"{number:04x}" for number in range(count)),
            recipe={"images": {"kind": "slices"}, "independent": True, "cut": "real"},
        )
        self.cohort = short_digest(write_cohort_file(self.hospital.scratch(), self.raw, self.hospital.key()))
        if policy is not None and policy.promises:
            from pipelines.hospital.released_counts import count_once

            count_once(self.hospital, Call("r/ingest", 0, "ingest", {}), self.raw, "asked")

    def ask(self, request: str, run: str, facts: dict[str, Json], round_: int = 0, tensors=None) -> Message:
        return make_worker(self.hospital)(Call(run, round_, request, {}), Message(tensors or {}, facts))

    def augment(
        self, how: dict[str, Json] = NOISELESS, run: str = "r/augment", tensors=None, **changes
    ) -> dict[str, Json]:
        facts: dict[str, Json] = {"cohort": self.cohort, "scale": SCALE, "copies": 1, "prior": "prostate_adc"}
        own = {"synthesis": how, "copies": 1, **changes.pop("augment", {})}
        return dict(
            self.ask(
                "augment", run, {**facts, "seed": 0, "private": False, "augment": own, **changes}, tensors=tensors
            ).facts
        )

    def opening(self, cohort: str, privacy: Json) -> dict[str, Json]:
        return {
            "label": "x",
            "algorithm": {"name": "fedavg"},
            "model": {"name": "cnn", "widths": [8, 8], "norm": "group"},
            "inputs": [*INPUTS],
            "classes": 2,
            "work": {"optimizer": "sgd", "lr": 0.1, "steps": 1, "epochs": None},
            "seed": 0,
            "cohort": cohort,
            "privacy": privacy,
            "evaluation_noise": 5.0 if privacy else 0.0,
        }

    @property
    def events(self) -> list:
        return list(ledgers.spent_events(ledgers.read_lines(self.hospital.ledger)))


def same(one: Cohort, other: Cohort) -> bool:
    parts = ("images", "labels", "patient", "position", "lesion", "gland", "mask", "split")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts) and (
        one.patients == other.patients and one.unit == other.unit
    )


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path / "a")


@pytest.mark.parametrize("how", [NOISELESS, NOISED, {"name": "public"}], ids=["noiseless", "noised", "public"])
def test_training_is_balanced_and_every_bit_of_what_was_read_stays(place, how):
    told = place.augment(how)
    made = cohort_of(place.hospital, str(told["cohort"]))
    train = made.labels[made.split == 0]
    assert told["state"] == "augmented" and told["label"] == 1
    assert int((train == 0).sum()) == int((train == 1).sum()) and told["made"] == count_synthetic(made) == 30
    for split in (1, 2):
        before, after = place.raw.split == split, made.split == split
        for part in ("images", "labels", "patient", "position"):
            assert torch.equal(getattr(place.raw, part)[before], getattr(made, part)[after])
    assert same(of_patients(made), place.raw) and int(made.split[len(place.raw.labels) :].max()) == 0
    assert len(made.patients) == len(set(made.patients)) and list(made.patients) == sorted(made.patients)
    assert float(made.images[-30:].min()) >= 0 and float(made.images[-30:].max()) <= 3.5


def test_a_balanced_hospital_is_left_as_it_is_and_learns_nothing(tmp_path, monkeypatch):
    def learnt(*arguments, **options):
        raise AssertionError("a synthesis was learnt")

    monkeypatch.setattr(synthesis, "synthesize", learnt)
    told = Place(tmp_path / "a", every=2).augment()
    assert (told["state"], told["made"], told["label"]) == ("balanced", 0, None)
    assert told["cohort"] == Place(tmp_path / "a", every=2).cohort


def test_a_hospital_without_one_of_the_classes_is_left_as_it_is(tmp_path):
    own = Place(tmp_path / "a", every=10**6)
    own.raw = replace(own.raw, labels=torch.zeros_like(own.raw.labels))
    own.cohort = short_digest(write_cohort_file(own.hospital.scratch(), own.raw, own.hospital.key()))
    told = own.augment()
    assert told["state"] == "one_class" and told["cohort"] == own.cohort


def test_a_generator_that_copies_is_not_used_unless_someone_allows_it(place):
    told = place.augment(COPYING)
    assert told["state"] == "copies" and told["cohort"] == place.cohort and told["made"] == 0
    assert isinstance(told["near_copies"], float) and told["near_copies"] > 0.9
    assert place.augment(run="r/honest")["near_copies"] == 0
    allowed = place.augment(COPYING, "r/allowed", augment={"near_copies": None})
    assert allowed["state"] == "augmented" and allowed["cohort"] != place.cohort


def test_cohorts_of_two_requests_never_share_a_name_though_their_images_are_equal(place):
    """An equal name would say that the images are equal; a request that is asked again gets the name that it got."""
    allowed = {"r/one": 0.5, "r/two": None, "s/again": 0.5}
    told = [
        place.augment({"name": "public"}, run, augment={"near_copies": share})["cohort"]
        for run, share in allowed.items()
    ]
    one, other, again = (cohort_of(place.hospital, str(name)) for name in told)
    assert same(one, other) and same(one, again)
    assert told[0] != told[1] and told[0] == told[2]


def test_distances_are_to_validation_images_and_test_images_change_nothing_that_leaves(tmp_path):
    one, other = Place(tmp_path / "one"), Place(tmp_path / "two")
    test = other.raw.split == 2
    other.raw.images[test] = 0.3
    other.cohort = short_digest(write_cohort_file(other.hospital.scratch(), other.raw, other.hospital.key()))
    first, second = one.augment(), other.augment()
    names = ("distance", "distance_real", "compared", "near_copies", "made", "label", "state")
    assert [first[name] for name in names] == [second[name] for name in names]
    assert one.events[-1] == NON_PRIVATE, "distances have no noise, and are booked"


def test_with_inceptions_weights_distances_are_the_fid_and_without_their_digest_nothing_is_done(place, monkeypatch):
    torch.manual_seed(0)
    made = {name: 0.05 * torch.rand_like(part.float()) for name, part in Network().state_dict().items()}
    data = save(made)
    tensors = {"weights": torch.frombuffer(bytearray(data), dtype=torch.uint8)}
    monkeypatch.setattr(balancing, "FEWEST", 4)
    plain, told = place.augment(), place.augment(run="r/fid", tensors=tensors, fid=file_digest(data))
    assert (plain["features"], told["features"]) == ("prostate_adc", "inception")
    assert plain["compared"] == told["compared"] == 6 and plain["distance_real"] != told["distance_real"]
    for wrong in ({"fid": "0" * 64}, {}, {"fid": None}):
        with pytest.raises(Refused) as caught:
            place.augment(run="r/wrong", tensors=tensors, **wrong)
        assert caught.value.code == "malformed_settings"


def test_where_privacy_is_promised_the_synthesis_is_what_is_booked_and_no_distance_leaves(tmp_path):
    own = Place(tmp_path / "a", PROMISED)
    told = own.augment(NOISED, private=True)
    assert told["state"] == "augmented" and not {"distance", "near_copies", "compared"} & {*told}
    settings = FittedPrior(epsilon=EPSILON, pictures=60)
    planned = synthesis.list_events(settings, synthesis.make_protection(settings, patients=1, cut="real"))
    spent = compute_cost(own.events, 1e-5).epsilon
    assert spent == pytest.approx(compute_cost(planned, 1e-5).epsilon) and 0.9 * EPSILON < spent <= EPSILON
    assert cohort_of(own.hospital, str(told["cohort"])).recipe["independent"] is True


def test_how_many_images_are_made_follows_from_released_counts_alone(tmp_path):
    """Otherwise their number would tell one patient's label."""
    own = Place(tmp_path / "a", PROMISED)
    first = own.augment(NOISED, private=True)
    train = own.raw.split == 0
    own.raw = replace(own.raw, labels=torch.where(train & (torch.arange(len(train)) < 8), 1, own.raw.labels))
    own.cohort = short_digest(write_cohort_file(own.hospital.scratch(), own.raw, own.hospital.key()))
    second = own.augment(NOISED, "r/later", private=True)
    assert first["made"] == second["made"] and first["label"] == second["label"]


def test_private_training_on_synthetic_images_costs_the_synthesis_and_the_training(tmp_path, monkeypatch):
    own, how = Place(tmp_path / "a", PROMISED), {"clip": 1.0, "sampling": 0.5, "views": 1, "noise": 3.0}
    told, sizes = own.augment(NOISED, private=True), []
    opened = learn.data_access

    def seen(*arguments):
        access = opened(*arguments)
        sizes.append((dict(access.sizes), len(access.units["train"].sizes)))
        return access

    monkeypatch.setattr(learn, "data_access", seen)
    before = own.events
    own.ask("introduce", "r/train", own.opening(str(told["cohort"]), how))
    network = learn.read_opening(own.hospital, "r/train").task.network().state_dict()
    start = {f"model/{name}": value for name, value in network.items()}
    own.ask("train", "r/train", {"algorithm": {}, "best": None}, 1, start)
    trained = own.events[len(before) :]
    both, alone = compute_cost(own.events, 1e-5).epsilon, compute_cost(trained, 1e-5).epsilon
    assert both > max(alone, compute_cost(before, 1e-5).epsilon) and both == pytest.approx(
        compute_cost([*before, *trained], 1e-5).epsilon
    )
    told_sizes, true = sizes[-1]
    assert true == TRAIN + int(str(told["made"])), "each synthetic image is drawn and clipped as a patient"
    assert told_sizes["train"] == learn.need_counts(own.hospital).patients("train") + int(str(told["made"]))


def test_nothing_private_is_learnt_from_images_that_were_synthesized_without_noise(tmp_path):
    """Made without a budget; a budget came later. One patient may have shaped every synthetic image."""
    own = Place(tmp_path / "a")
    told = own.augment()
    made = cohort_of(own.hospital, str(told["cohort"]))
    assert made.recipe["independent"] is False
    promised = Place(tmp_path / "b", PROMISED)
    name = short_digest(write_cohort_file(promised.hospital.scratch(), made, promised.hospital.key()))
    how: Json = {"clip": 1.0, "sampling": 0.5, "views": 1, "noise": 3.0}
    with pytest.raises(Refused) as caught:
        promised.ask("introduce", "r/train", promised.opening(name, how))
    assert caught.value.code == "dependent_patients"


@pytest.mark.parametrize("how", [NOISELESS, COPYING], ids=["noiseless", "copying"])
def test_a_hospital_that_promises_privacy_synthesizes_nothing_without_noise(tmp_path, how):
    own = Place(tmp_path / "a", PROMISED)
    with pytest.raises(Refused) as caught:
        own.augment(how)
    assert caught.value.code == "budget"


@pytest.mark.chance(1e-12, "two draws of noise make the same images")
def test_a_lost_cohort_is_made_again_and_charged_again(tmp_path):
    own = Place(tmp_path / "a", PROMISED)
    told = own.augment(NOISED, private=True)
    once = compute_cost(own.events, 1e-5).epsilon
    assert own.augment(NOISED, private=True) == told and compute_cost(own.events, 1e-5).epsilon == once, "asked twice"
    (own.hospital.cohort_folder(str(told["cohort"])) / COHORT).unlink()
    again = own.augment(NOISED, private=True)
    assert again["cohort"] != told["cohort"] and (own.hospital.cohort_folder(str(again["cohort"])) / COHORT).exists()
    assert compute_cost(own.events, 1e-5).epsilon > 1.3 * once


def settings(**changes) -> dict:
    made = copy.deepcopy(BASE) | {"pooling": "refused", "model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    for site in made["sites"].values():
        site["policy"] = {}
        site["source"]["patients"] = 16
    made["train"] = {
        "schedule": {"rounds": 1},
        "work": {"lr": 0.01, "batch": 16},
        "methods": {"fedavg": {"name": "fedavg"}, "fedavg_aug": {"name": "fedavg"}},
        "method_images": {"fedavg_aug": "augmented"},
    }
    made["evaluate"] = {"copies": 5, "reference": "fedavg", "public": False}
    made["audit"] = {"canaries": 0}
    return made | {"augment": {"synthesis": NOISELESS, "copies": 1}} | changes


def config(**changes) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(settings(**changes)), environment={}), Config)


def test_with_and_without_stand_in_one_table_of_one_run_and_test_patients_are_the_same(finished_run):
    root = finished_run(settings()) / "runs" / "tiny"
    said = json.loads(next(root.glob("report/*/report.json")).read_text())
    private = [row for row in said["scores"] if row["measure"] == "AUC" and row["protocol"] == "private"]
    rows = {(row["method"], *row["sites"]): row for row in private}
    assert {method for method, *_ in rows} >= {"fedavg", "fedavg_aug"}
    for site in ("a", "b"):
        with_, without = rows["fedavg_aug", site], rows["fedavg", site]
        assert all(with_[name] == without[name] for name in ("patients", "positives", "negatives"))
    page = (root / "report.html").read_text()
    assert "Synthetic training images" in page and "this is no FID" in page and "fedavg_aug." in page
    assert {row["site"]: row["made"] for row in said["augmented"]} == {
        site: one["made"] for site, one in json.loads(next(root.glob("augment/*/augmented.json")).read_text()).items()
    }
    assert said["spaces"] == {"fedavg": "raw", "fedavg_aug": "augmented"}
    assert (root / "sites" / "a" / "ready" / "fedavg_aug.safetensors").exists(), "it reads images as they are"


def test_a_private_run_pays_what_was_planned_for_synthesis_and_training(finished_run):
    private = {"epsilon": 3.0, "sampling": 0.5, "views": 2}
    changes = {"privacy": private, "augment": {"synthesis": NOISED, "copies": 1}}
    root, made = finished_run(settings(**changes)) / "runs" / "tiny", config(**changes)
    plain = config(privacy=private, augment={"synthesis": {"name": "public"}})
    for site in ("a", "b"):
        events = ledgers.spent_events(ledgers.read_lines(root / "sites" / site / "ledger.jsonl"))
        assert NON_PRIVATE not in events
        spent, plan = compute_cost(events, 1e-5).epsilon, total_cost(made, site).epsilon
        assert total_cost(plain, site).epsilon < spent <= plan * 1.001
        assert "synthesis" in (root / "sites" / site / "statement.md").read_text()


def test_settings_that_cannot_work_are_refused_with_their_reason():
    for said, words in (
        ({"augment": {"synthesis": COPYING}}, "train.work.balance"),
        ({"augment": {"synthesis": {"name": "wgan_gp", "variant": "paper"}}}, "knows no classes"),
        ({"augment": {"synthesis": NOISELESS, "space": "raw"}}, "raw is taken"),
        ({"augment": {"synthesis": NOISELESS, "space": "other"}}, "no method learns from 'other'"),
        ({"augment": {"synthesis": {**NOISELESS, "prior": "skin_lesion"}}}, "3 channels"),
        ({"privacy": {"epsilon": 3.0}}, "one patient may shape every synthetic image"),
        ({"augment": None}, "is no space of images"),
    ):
        with pytest.raises(ConfigError, match=words):
            config(**said)


def test_states_of_hospitals_have_their_words():
    rows = [AugmentedRow("a", "augmented", state, "", 0) for state in STATES]
    assert [row.why != "" for row in rows] == [False, True, True, True]
    assert {augmenting.AUGMENTED, augmenting.BALANCED, augmenting.ONE_CLASS, augmenting.COPIES} == {*STATES}


def test_a_finished_run_goes_on_without_asking_anew(finished_run, tmp_path, monkeypatch, capsys):
    folder = finished_run(settings())
    shutil.copytree(folder, tmp_path / "again")
    monkeypatch.chdir(tmp_path / "again")
    lines = len((tmp_path / "again/runs/tiny/sites/a/ledger.jsonl").read_text().splitlines())
    assert main(["tiny.yaml", "--until", "augment"]) == 0
    assert "augment   kept" in capsys.readouterr().err
    left = (tmp_path / "again/runs/tiny/sites/a/ledger.jsonl").read_text().splitlines()[lines:]
    assert not [line for line in left if '"augment"' in line]


def test_a_cohort_with_synthetic_images_stays_while_its_run_does_and_names_patients_who_withdraw(
    finished_run, tmp_path, monkeypatch
):
    shutil.copytree(finished_run(settings()), tmp_path / "again")
    monkeypatch.chdir(tmp_path / "again")
    root = tmp_path / "again" / "runs" / "tiny"
    told = json.loads(next(root.glob("augment/*/augmented.json")).read_text())
    assert clean.main(["runs", "--older-than", "0h", "--yes"]) == 0
    for site, said in told.items():
        assert (root / "sites" / site / "cohorts" / said["cohort"] / COHORT).exists()
    split = json.loads((root / "sites" / "a" / "cohorts" / told["a"]["cohort"] / "split.json").read_text())
    patient = next(name for name in split["train"] if not name.startswith("synthetic"))
    out = SiteSettings(source=PhantomSource(scanner="P", patients=4), exclude=(patient,))
    found = list_earlier_uses(Hospital("a", root / "sites" / "a", out, lambda: "2026-01-01T00:00:00Z"))
    assert {augmenting.SHAPED, "its model was trained on them"} <= {one.how for one in found}


def test_settings_of_the_request_are_those_of_the_yaml():
    assert (
        to_plain(config().augment_settings)["until"] == "balanced"
        and config().augment_settings.public_prior(config().images) == "prostate_adc"
    )
