"""Which lines of a run are compared with the oracle, and over which line outside hospitals' gains are told."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from harmonized_run import settings

from evaluation.oracle_gap import Compared
from pipelines.coordinator.report.asking import find_untreated_line, list_oracle_comparisons
from pipelines.loader.document import read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.settings.config import Config
from route_settings import settings as routed

START = {"name": "pretrained", "on": "prostate_adc", "pictures": 32, "epochs": 1}


def config(said: dict[str, Any]) -> Config:
    import yaml

    return validate_settings(read_yaml(yaml.safe_dump(said, sort_keys=False), environment={}), Config)


def run(**train: Any) -> Config:
    said = copy.deepcopy(settings())
    labels = ("fedavg", "vafl", "oracle", "begun", "best")
    said["train"]["methods"] = {label: {"name": "fedavg"} for label in labels} | {"local": {"name": "local"}}
    said["train"]["method_images"] = {"vafl": "vafl", "oracle": "oracle", "best": "oracle"}
    said["train"]["method_start"] = {"begun": START, "best": START}
    said["train"] |= train
    said["evaluate"]["variants"] = {
        "adabn": {"of": "fedavg", "calibration": "adabn"},
        "alone": {"of": "local", "calibration": "adabn"},
    }
    return config(said)


def test_lines_of_one_method_are_compared_and_the_oracle_without_a_start_comes_first():
    assert list_oracle_comparisons(run()) == (Compared("fedavg", "oracle", ("vafl", "begun", "best", "adabn")),)


def test_with_a_start_everywhere_the_oracle_has_it_too():
    found = list_oracle_comparisons(run(start=START, method_start={}))
    assert [(one.untranslated, one.oracle) for one in found] == [("fedavg", "oracle")]


@pytest.mark.parametrize(
    "changes",
    [
        {"method_images": {"vafl": "vafl"}},
        {"method_images": {"oracle": "oracle"}, "method_start": {"oracle": START}, "methods": ("fedavg", "oracle")},
        {"method_work": {"oracle": {"lr": 0.5}}, "method_start": {}, "method_images": {"oracle": "oracle"}},
        {"methods": ("local", "oracle")},
    ],
)
def test_there_is_no_comparison_without_an_oracle_that_differs_in_its_images_alone(changes):
    changes = dict(changes)
    if "methods" in changes:
        names = changes.pop("methods")
        changes["methods"] = {name: {"name": name if name == "local" else "fedavg"} for name in names}
        changes.setdefault("method_images", {"oracle": "oracle"})
        changes.setdefault("method_start", {})
        said = copy.deepcopy(settings())
        said["train"] |= changes
        assert list_oracle_comparisons(config(said)) == ()
    else:
        assert list_oracle_comparisons(run(**changes)) == ()


def test_two_networks_are_two_comparisons():
    other = {"name": "cam", "widths": [16, 16, 16, 16]}
    found = list_oracle_comparisons(run(method_model={"begun": other, "best": other}))
    assert found == (
        Compared("fedavg", "oracle", ("vafl", "adabn")),
        Compared("begun", "best", ()),
    )


def test_gains_outside_are_over_a_model_as_it_was_trained_on_images_as_they_were_read():
    assert find_untreated_line(run()) is None
    assert find_untreated_line(config(routed())) == "as_trained"
    said = routed()
    said["route"] = {"shared": "fedavg", "personal": "iopfl", "lines": {"routing": {"how": {"name": "routing"}}}}
    assert find_untreated_line(config(said)) is None
