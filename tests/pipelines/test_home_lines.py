"""Every shipped configuration of labels on images has floors, and gains are over the best line at home by default."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import yaml

from evaluation.histograms import count_scores
from evaluation.masks import Values
from evaluation.metrics import AUC
from evaluation.overlap import Overlaps, sum_over_patients
from evaluation.rows import PRIVATE_MEAN
from evaluation.scoring import score_rows
from federation.alone import Alone
from federation.models import OnFeatures
from pipelines.coordinator.cautions import find_unpaired_home_lines
from pipelines.coordinator.permissions import find_refused_requests, permissions_in
from pipelines.coordinator.report.at_home import compare_with_home, list_home_floors
from pipelines.coordinator.study_settings import load_study
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.requests.ingest import Counted
from pipelines.settings.config import Config
from pipelines.settings.home_lines import asks_comparisons, pair_home_lines, split_lines
from pipelines_settings import BASE, RUNS

FLOORS = {"local_svm", "local_ridge"}


def read(settings: dict[str, Any]) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(settings, sort_keys=False), environment={}), Config)


def shipped(path) -> Config:
    return validate_settings(read_yaml(path.read_text(), environment={"CONSILIUM_DATA": "/data"}), Config)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_shipped_run_of_labels_on_images_has_an_svm_and_a_ridge_at_home_and_names_no_other_reference(path):
    config = shipped(path)
    lines = split_lines(config)
    if config.task.kind == "segmentation":
        assert lines == ((), ()), "no classical floor segments"
        return
    if config.images.kind == "features":
        return
    assert config.evaluate.reference is None, "gains are over the best line at home"
    if config.privacy != "none":
        assert len(list_home_floors(config)) == 2 and lines.home, "learnt at home for each hospital's own page"
        return
    floors = [label for label in lines.home if isinstance(config.train.methods[label], Alone)]
    assert {config.train.methods[label].name for label in floors} >= FLOORS
    assert lines.home[: len(floors)] == tuple(floors) and all(
        isinstance(config.model_of(f), OnFeatures) for f in floors
    )
    assert config.train.methods[floors[0]].name == "local_svm", "the reference where no patient can choose"
    assert lines.federated and not {*lines.home} & {*lines.federated}


STUDIES = ("prostate_adc_methods.yaml", "prostate_adc_study.yaml", "skin_lesion_study.yaml")


@pytest.mark.parametrize("name", STUDIES)
def test_every_case_of_a_study_of_labels_on_images_that_trains_alone_has_floors_too(name, tmp_path, monkeypatch):
    (tmp_path / "ham10000").mkdir()
    (tmp_path / "ham10000" / "labels.csv").touch()
    monkeypatch.setenv("CONSILIUM_DATA", str(tmp_path))
    for run in load_study(name)[1]:
        methods = run.config.train.methods
        assert "local" not in methods or {*methods} >= FLOORS, run.case


def settings(**changes: Any) -> dict[str, Any]:
    made = copy.deepcopy(BASE)
    few = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 8}
    made["train"]["methods"] |= {label: {"name": label} for label in ("local_ridge", "local_svm", "central")}
    made["train"]["methods"]["alone"] = {"name": "moments", "others_gram": 0, "others_classes": 0}
    made["train"]["method_model"] = dict.fromkeys(("local_ridge", "local_svm", "alone"), few)
    made["evaluate"] = {"copies": 20, "variants": {
        "tuned": {"of": "fedavg", "calibration": "fine_tuned", "tuning": {"epochs": 1}},
        "local_tuned": {"of": "local", "calibration": "fine_tuned", "tuning": {"epochs": 1}},
    }}  # fmt: skip
    return made | changes


def test_floors_come_first_and_pooled_images_and_variants_of_home_are_neither():
    lines = split_lines(read(settings()))
    assert lines.home == ("local_ridge", "local_svm", "local", "alone")
    assert lines.federated == ("fedavg", "fedper", "tuned")


@pytest.mark.parametrize(("translator", "federated"), [("reinhard", True), ("oracle", False)])
def test_a_network_on_images_in_anothers_look_is_no_line_at_home_and_an_oracle_is_none_of_either(translator, federated):
    made = settings()
    made["harmonize"] = {
        "score": {"release": "public", "target": "a"},
        "synthesis": {"name": "public", "prior": "prostate_adc"},
        "translate": {"there": {"name": translator}},
    }
    made["train"]["method_images"] = {"local": "there"}
    lines = split_lines(read(made))
    assert "local" not in lines.home and ("local" in lines.federated) == federated


def test_one_hospital_is_asked_only_where_a_line_is_to_be_chosen():
    made = settings()
    made["sites"] = {"a": made["sites"]["a"]}
    assert asks_comparisons(read(made))
    made["train"] |= {"methods": {"local": {"name": "local"}}, "method_model": {}}
    made["evaluate"] = {"copies": 20}
    assert not asks_comparisons(read(made))


def evidence(seed: int) -> dict[tuple[str, str], Any]:
    random = np.random.default_rng(seed)
    table = {}
    for site in ("a", "b"):
        y = np.arange(80) % 2
        p = 1 / (1 + np.exp(-random.normal(y - 0.5, 1.0)))
        table[site, site] = count_scores(y, np.c_[1 - p, p], np.arange(80) // 2, copies=20, seed=0, site=site)
    return table


def counted(positives: int, images: int) -> Counted:
    none = {"patients": 0, "images": 0, "positives": 0}
    splits = {"train": none, "test": none, "validation": {**none, "images": images, "positives": positives}}
    zeros = dict.fromkeys(("files", "used_files", "quarantined_files", "unselected_files", "ignored_files",
        "patients_without_use", "unselected_series", "studies", "patients", "images", "positives", "excluded",
        "unmatched_exclusions", "unmatched_tests", "rejected"), 0)  # fmt: skip
    return Counted(
        **zeros, cohort="c", sha256="0" * 64, cut="x", splits=splits, rejected_by_reason={}, scanners={},
        max_rejected=0.5, too_many_rejected=False,
    )  # fmt: skip


HOME, TOGETHER = ("local_ridge", "local_svm", "local", "alone"), ("fedavg", "fedper", "tuned")
COHORTS = {"a": counted(10, 20), "b": counted(2, 20)}


@pytest.mark.parametrize(("floor", "other"), [*product(HOME, TOGETHER)])
def test_both_lines_are_chosen_by_validation_whatever_the_test_patients_say(floor, other):
    config = read(settings())
    scores = dict.fromkeys((*HOME, *TOGETHER), 0.5) | {floor: 0.6, other: 0.7}
    told = {"a": scores, "b": {**dict.fromkeys(scores, 0.5), "alone": 0.9, "fedper": 0.9}}  # b tells a fifth of a
    for turn in range(3):
        tables = {label: evidence(place + 10 * turn) for place, label in enumerate((*HOME, *TOGETHER, "central"))}
        found = compare_with_home(config, tables, COHORTS, told)
        assert (found.reference, found.federated, found.hospitals) == (floor, other, 2)
        assert {row.method for row in found.gains} == {*TOGETHER} and all(
            row.gain_low < row.gain_high for row in found.gains
        )


def test_without_validation_scores_the_first_floor_is_named_and_not_the_lucky_one():
    config = read(settings())
    for turn in range(5):
        tables = {label: evidence(place + 10 * turn) for place, label in enumerate((*HOME, *TOGETHER))}
        found = compare_with_home(config, tables, COHORTS, {})
        assert (found.reference, found.hospitals) == ("local_ridge", 0)
        gains = {row.method: row.gain for row in found.gains}
        assert gains[found.federated] == max(gains.values())


FENDA, FENDA_AT_HOME = {"name": "fenda"}, {"name": "at_home", "of": {"name": "fenda"}}


def with_fenda(**train: Any) -> dict[str, Any]:
    """A run with FENDA in the federation and at home. train: further keys of `train`."""
    made = settings()
    made["train"]["methods"] |= {"two": FENDA, "two_at_home": FENDA_AT_HOME}
    for key, value in train.items():
        made["train"].setdefault(key, {}).update(value)
    return made


def test_a_method_at_home_is_a_line_at_home_and_is_paired_with_itself_in_the_federation():
    config = read(with_fenda())
    lines = split_lines(config)
    assert "two_at_home" in lines.home and "two" in lines.federated
    assert pair_home_lines(config) == {"two": "two_at_home"}
    assert find_unpaired_home_lines(config) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"methods": {"two_at_home": {"name": "at_home", "of": {"name": "fenda", "weights": "uniform"}}}},
        {"method_work": {"two": {"lr": 0.5}}},
        {"method_work": {"two_at_home": {"lr": 0.5}}},
        {"method_model": {"two": {"name": "cnn", "widths": [8, 16], "norm": "group"}}},
        {"method_start": {"two": {"name": "pretrained", "on": "prostate_adc", "epochs": 1}}},
    ],
)
def test_it_is_paired_only_where_nothing_but_the_others_differs_and_else_the_check_says_so(changes):
    config = read(with_fenda(**changes))
    assert pair_home_lines(config) == {}
    (sentence,) = find_unpaired_home_lines(config)
    assert sentence.startswith("train: two_at_home") and "not told" in sentence


@pytest.mark.parametrize(
    ("schedule", "paired"),
    [
        ({"buffer": 1, "durations": {"a": 1, "b": 3}}, {}),
        ({"buffer": 1, "durations": {"a": 2, "b": 2}}, {"two": "two_at_home"}),
        ({"participation": 0.5}, {"two": "two_at_home"}),
    ],
)
def test_it_is_paired_only_where_every_hospital_trains_as_often_in_both(schedule, paired):
    made = with_fenda()
    made["train"]["methods"].pop("apple", None)
    made["train"]["schedule"] = {"rounds": 4} | schedule
    assert pair_home_lines(read(made)) == paired


def test_of_two_equal_lines_at_home_the_first_is_compared_and_the_check_calls_neither_unlike():
    config = read(with_fenda(methods={"two_again": FENDA_AT_HOME}))
    assert pair_home_lines(config) == {"two": "two_at_home"}
    assert find_unpaired_home_lines(config) == []


def test_settings_of_one_hospital_count_too():
    made = with_fenda()
    made["sites"]["a"]["methods"] = {"two": {"weights": "uniform"}}
    assert pair_home_lines(read(made)) == {}


@pytest.mark.parametrize(
    ("algorithms", "refused"),
    [(["local", "at_home"], "fenda"), (["local", "fenda"], "at_home"), (["local", "fenda", "at_home"], None)],
)
def test_the_check_foresees_a_policy_that_trains_by_one_of_the_two_names_alone(algorithms, refused):
    made = settings()
    made["train"] |= {"methods": {"local": {"name": "local"}, "two_at_home": FENDA_AT_HOME}, "method_model": {}}
    made["evaluate"] = {"copies": 20}
    made["sites"]["a"]["policy"] = {"algorithms": algorithms}
    config = read(made)
    expected = [f"a: its policy does not train by {refused} (stage train)"] if refused else []
    assert find_refused_requests(config, permissions_in(config)) == expected


def test_what_others_add_is_the_gain_over_the_same_method_at_home_on_the_same_patients():
    config = read(with_fenda())
    tables = {label: evidence(place) for place, label in enumerate((*HOME, *TOGETHER, "two", "two_at_home"))}
    (contribution,) = compare_with_home(config, tables, COHORTS, {}).contributions
    assert (contribution.line_at_home, contribution.gain.method) == ("two_at_home", "two")
    rows = {
        row.method: row
        for row in score_rows({k: tables[k] for k in ("two_at_home", "two")}, reference="two_at_home", measures=(AUC,))
        if row.protocol == PRIVATE_MEAN
    }
    assert contribution.gain == rows["two"]
    assert contribution.gain.gain == pytest.approx(rows["two"].value - rows["two_at_home"].value)


def test_of_masks_it_is_told_too_although_they_have_no_floors():
    made = with_fenda()
    made["task"] = {"kind": "segmentation", "target": "gland"}
    made["images"]["centre"] = "image"
    made["model"] = {"name": "unet", "width": 4, "levels": 2, "norm": "group"}
    made["train"] |= {"methods": {"two": FENDA, "two_at_home": FENDA_AT_HOME}, "method_model": {}}
    made["evaluate"], made["audit"] = {"copies": 20}, {"membership": False}
    config = read(made)
    tables = {
        label: {(site, site): overlaps(dice) for site in ("a", "b")}
        for label, dice in (("two", 0.8), ("two_at_home", 0.7))
    }
    (contribution,) = compare_with_home(config, tables, COHORTS, {}).contributions
    assert contribution.gain.measure == "Dice" and contribution.gain.gain == pytest.approx(0.1)


def overlaps(dice: float) -> Overlaps:
    """Of eight patients with this Dice."""
    values = Values(np.arange(8), np.full((8, 1, 2), dice), np.ones((8, 1), bool), 8)
    return sum_over_patients(values, copies=20, seed=0)
