"""What a stage makes and a later one cannot use is an error of settings, told before anything runs: for every pair."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import harmonized_run
import pytest
import yaml

import route_settings
from pipelines.coordinator.rehearsing import check_synthesis
from pipelines.coordinator.run import STAGES
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.settings.config import Config
from pipelines_settings import BASE
from privacy.settings_error import SettingsError

FEATURES = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 60, "components": 4}
NOISELESS = {"name": "fitted_prior", "epsilon": None, "pictures": 60}
GLAND = {"kind": "segmentation", "target": "gland"}
REAL = {"kind": "nifti", "folder": "nowhere"}
LABELS = {"kind": "table", "file": "nowhere.csv"}


def plain() -> dict[str, Any]:
    return copy.deepcopy(BASE)


def on_features() -> dict[str, Any]:
    made = plain()
    made["model"], made["train"]["work"] = FEATURES, {"lr": 0.01, "batch": 16}
    made["train"]["methods"] = {"local": {"name": "local"}, "fedavg": {"name": "fedavg"}}
    return made


def augmented() -> dict[str, Any]:
    made = on_features()
    made["augment"] = {"synthesis": NOISELESS, "copies": 1}
    made["train"]["method_images"] = {"fedavg": "augmented"}
    return made


def begun() -> dict[str, Any]:
    made = plain()
    made["model"] = {"name": "cnn", "widths": [8, 16], "norm": "group"}
    made["train"]["start"] = {"name": "pretrained", "on": "prostate_adc"}
    return made


BASES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "plain": plain,
    "features": on_features,
    "augmented": augmented,
    "begun": begun,
    "harmonized": harmonized_run.settings,
    "routed": route_settings.translated,
}


class Wrong(NamedTuple):
    """Settings of which a later stage cannot use what an earlier one makes. base: of `BASES`. change: keys, joined by
    dots -> value. told: where the error stands.
    """

    base: str
    change: Mapping[str, Any]
    told: str


COHORTS = "it asks of the cohorts on which train learnt, and of no other"
SHOWN = "it copies the figures that there are, whatever they are"
PAIRS: Mapping[tuple[str, str], Wrong | str] = {
    ("ingest", "score"): Wrong("harmonized", {"images.size": 36}, "images.size"),
    ("ingest", "synthesize"): Wrong("harmonized", {"harmonize.synthesis.prior": "skin_lesion"}, "harmonize.synthesis"),
    ("score", "synthesize"): Wrong("routed", {"harmonize.score.target": "west"}, "harmonize.score.target"),
    ("ingest", "sample"): Wrong(
        "harmonized",
        {"harmonize.sampling": {"name": "raw"}, "privacy": {"epsilon": 5.0}},
        "harmonize.sampling",
    ),
    ("synthesize", "sample"): Wrong(
        "harmonized", {"harmonize.sampling": {"name": "surrogate", "closeness": 1e-5}}, "harmonize.sampling"
    ),
    ("ingest", "translate"): Wrong(
        "harmonized", {"sites.a.source": REAL, "sites.a.labels": LABELS}, "harmonize.translate.oracle"
    ),
    ("score", "translate"): Wrong("harmonized", {"harmonize.score.target": "nobody"}, "harmonize.score.target"),
    ("sample", "translate"): Wrong("harmonized", {"harmonize.shared": 4}, "harmonize.shared"),
    ("ingest", "augment"): Wrong(
        "augmented", {"task": {"kind": "classification", "classes": ["one", "two", "three"]}}, "augment"
    ),
    ("ingest", "features"): Wrong("features", {"model.public": "skin_lesion"}, "model.public"),
    ("translate", "features"): Wrong(
        "features", {"train.method_images": {"fedavg": "z"}}, "train.method_images.fedavg"
    ),
    ("augment", "features"): Wrong("augmented", {"augment.space": "other"}, "augment.space"),
    ("ingest", "train"): Wrong(
        "plain",
        {"split": {"train": 0.7, "validation": 0.0, "test": 0.3}, "train.methods.fomo": {"name": "fedfomo"}},
        "train.methods.fomo",
    ),
    ("translate", "train"): Wrong("harmonized", {"train.method_images": {"vafl": "y"}}, "train.method_images.vafl"),
    ("augment", "train"): Wrong("augmented", {"train.method_images": {}}, "augment.space"),
    ("features", "train"): Wrong("features", {"model.components": 10**4}, "model.components"),
    ("pretrain", "train"): Wrong("begun", {"model": {"name": "mlp"}}, "train.start"),
    ("ingest", "evaluate"): Wrong("plain", {"split": {"train": 0.8, "validation": 0.2, "test": 0.0}}, "sites.a.test"),
    ("translate", "evaluate"): COHORTS,
    ("augment", "evaluate"): COHORTS,
    ("features", "evaluate"): COHORTS,
    ("train", "evaluate"): Wrong(
        "plain", {"evaluate.variants": {"x": {"of": "nobody", "calibration": "centred"}}}, "evaluate.variants.x.of"
    ),
    ("ingest", "audit"): COHORTS,
    ("translate", "audit"): COHORTS,
    ("augment", "audit"): COHORTS,
    ("features", "audit"): COHORTS,
    ("train", "audit"): Wrong(
        "plain", {"task": GLAND, "model": {"name": "unet", "width": 4, "levels": 1}}, "audit.membership"
    ),
    ("ingest", "route"): Wrong("routed", {"outside": ["nobody"]}, "outside"),
    ("score", "route"): Wrong("routed", {"harmonize.score.target": "west"}, "harmonize.score.target"),
    ("sample", "route"): Wrong("routed", {"sites.north.policy": {}}, "sites.north.policy.recipients"),
    ("translate", "route"): Wrong("routed", {"route.shared": "fedavg"}, "route.lines.routing"),
    ("augment", "route"): "synthetic images are added to training alone, so raw images serve outside",
    ("features", "route"): Wrong("routed", {"train.method_model": {"vafl": FEATURES}}, "route.lines.tent.shared"),
    ("train", "route"): Wrong("routed", {"route.personal": "nobody"}, "route.personal"),
    ("train", "figures"): "it asks of the trainings that there are, whatever they are",
    ("train", "track"): SHOWN,
    ("figures", "track"): SHOWN,
    ("evaluate", "track"): SHOWN,
    ("audit", "track"): SHOWN,
    ("route", "track"): SHOWN,
}
"""Needed and needing stage, in the order of the run -> settings that must be refused, or why no setting can be wrong.
The report is left out: it shows each stage that ran."""


def changed(wrong: Wrong) -> dict[str, Any]:
    """The settings of a case."""
    made = BASES[wrong.base]()
    for name, value in wrong.change.items():
        *path, last = name.split(".")
        inner = made
        for key in path:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return made


def told(settings: Mapping[str, Any]) -> list[str]:
    """Where errors stand of which settings and the rehearsal tell; empty: in order."""
    try:
        config = validate_settings(read_yaml(yaml.safe_dump(dict(settings)), environment={}), Config)
        check_synthesis(config, {})
    except (ConfigError, SettingsError) as error:
        return [".".join(map(str, problem.where)) for problem in error.problems]
    return []


def test_every_pair_of_a_stage_and_what_it_needs_is_here():
    needed = {(need, stage.name) for stage in STAGES if stage.name != "report" for need in stage.needs}
    assert PAIRS.keys() == needed, "a new need has settings that it cannot use, or a reason why there are none"


@pytest.mark.parametrize("base", BASES)
def test_what_the_cases_change_is_in_order_before(base):
    assert told(BASES[base]()) == []


@pytest.mark.parametrize("pair", [pair for pair, case in PAIRS.items() if isinstance(case, Wrong)], ids="-".join)
def test_what_a_stage_cannot_use_is_told_with_the_settings(pair):
    case = PAIRS[pair]
    assert isinstance(case, Wrong)
    places = told(changed(case))
    assert any(place == case.told or place.startswith(f"{case.told}.") for place in places), places
