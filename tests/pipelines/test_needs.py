"""A request that a run needs and a hospital's policy refuses is told by --check, with the hospital and the stage."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import requests_in
from harmonized_run import HARMONIZE
from harmonized_run import settings as harmonized
from small_run import smallest

from pipelines.coordinator.permissions import (
    find_refused_requests,
    find_unanswered_requests,
    list_needs,
    permissions_in,
)
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.run import main
from pipelines.runs.exits import Exit
from pipelines.settings.config import Config
from privacy.release import ledger as ledgers
from privacy.release.policy import REQUESTS
from route_settings import settings as routed

STAGES = Path(__file__).parents[2] / "pipelines" / "coordinator" / "stages"
FEATURES = {"name": "features", "of": {"name": "radiomics"}, "public": "prostate_adc", "pictures": 20, "components": 4}
NOISELESS = {"name": "fitted_prior", "epsilon": None, "pictures": 60}
ELSEWHERE = {"benchmark", "fingerprint"}  # other commands ask them


def pooled() -> dict[str, Any]:
    made = smallest(images={"kind": "features", "numbers": ["age"], "normalize": "pooled"}, model={"name": "mlp"})
    for name, site in made["sites"].items():
        site["source"] = {"kind": "table", "file": f"{name}.csv", "patient": "id", "label": "ill"}
    made["train"]["work"] = {"lr": 0.01, "batch": 8}
    return made | {"audit": {"membership": False, "canaries": 0}}


def central() -> dict[str, Any]:
    made = smallest(track={"tensorboard": {}}, audit={"membership": True})
    made["train"]["methods"]["central"] = {"name": "central"}
    made["evaluate"]["rounds"] = True
    return made


def augmented() -> dict[str, Any]:
    made = smallest(augment={"synthesis": NOISELESS, "copies": 1}, pooling="refused")
    made["images"] = {"kind": "slices", "size": 32, "spacing_mm": 2.0}
    made["train"]["method_images"] = {"fedavg": "augmented"}
    return made


def known_target() -> dict[str, Any]:
    made = copy.deepcopy(harmonized())
    made["harmonize"] = {**HARMONIZE, "score": {"release": "public", "target": "a"}}
    return made


def on_features() -> dict[str, Any]:
    made = smallest(model=FEATURES)
    made["train"]["work"] = {"lr": 0.01, "batch": 16}
    return made


KINDS = {
    "pooled": pooled,
    "central": central,
    "features": on_features,
    "augmented": augmented,
    "harmonized": harmonized,
    "known target": known_target,
    "routed": routed,
}


@cache
def configured(kind: str) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(KINDS[kind]()), environment={}), Config)


def without(config: Config, site: str, request: str) -> Config:
    policy = config.sites[site].policy
    left = tuple(one for one in policy.requests if one != request)
    changed = replace(config.sites[site], policy=replace(policy, requests=left))
    return replace(config, sites={**config.sites, site: changed})


@pytest.mark.parametrize("kind", KINDS)
def test_each_request_that_a_policy_refuses_is_told_with_its_hospital_and_its_stage(kind: str) -> None:
    config = configured(kind)
    assert find_refused_requests(config, permissions_in(config)) == []
    assert find_unanswered_requests(config, permissions_in(config), optional=True) == []
    for need in list_needs(config):
        for request in {*need.requests} - {"pool"}:  # a policy without `pooling` is refused with the settings
            for site in need.sites:
                changed = without(config, site, request)
                told = [
                    find_unanswered_requests(changed, permissions_in(changed), optional=one) for one in (False, True)
                ]
                words = f"{site}: its policy does not answer {request}, which the stage {need.stage} asks"
                (kept,) = [text for text in told[need.optional] if text.startswith(words)]
                assert all(text.startswith(f"{site}: ") for text in (*told[0], *told[1])) and kept


def test_together_these_runs_ask_every_request() -> None:
    asked = {request for kind in KINDS for need in list_needs(configured(kind)) for request in need.requests}
    lost = sorted({*REQUESTS} - ELSEWHERE - asked)
    assert not lost, f"{lost}: say in list_needs of pipelines/coordinator/permissions.py which stage asks it of whom"
    assert asked == {*REQUESTS} - ELSEWHERE


@pytest.mark.parametrize("stage", sorted(path.stem for path in STAGES.glob("*.py") if path.stem != "__init__"))
def test_what_the_code_of_a_stage_asks_is_among_its_needs(stage: str) -> None:
    asked = requests_in(STAGES / f"{stage}.py")
    needs = [need for kind in KINDS for need in list_needs(configured(kind)) if need.stage == stage]
    lost = sorted(asked - {request for need in needs for request in need.requests})
    assert not lost, f"{lost}: say in list_needs of pipelines/coordinator/permissions.py that {stage} asks it"


def test_what_a_run_asks_is_what_it_was_said_to_need(finished_run) -> None:
    said = smallest()
    config = validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)
    needed = {one for need in list_needs(config) for one in need.requests}
    optional = {one for need in list_needs(config) if need.optional for one in need.requests}
    for site in config.sites:
        lines = ledgers.read_lines(finished_run(said) / "runs" / "tiny" / "sites" / site / "ledger.jsonl")
        asked = {str(line["request"]) for line in lines}
        assert asked <= needed and needed - asked <= optional | {"holds"}


@pytest.mark.parametrize(
    ("request_", "stage"), [("survey", "ingest"), ("ingest", "ingest"), ("train", "train"), ("evaluate", "evaluate")]
)
def test_the_check_ends_with_it_as_the_run_on_other_machines_does(request_, stage, tmp_path, capsys) -> None:
    made = smallest(runs=str(tmp_path), pooling="refused")
    made["sites"]["b"]["policy"] = {"requests": [one for one in REQUESTS if one not in (request_, "pool")]}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(made))
    assert main([str(tmp_path / "tiny.yaml"), "--check"]) == Exit.CONFIG
    told = " ".join(capsys.readouterr().err.split())
    assert f"b: its policy does not answer {request_}, which the stage {stage} asks" in told and "a: its" not in told
