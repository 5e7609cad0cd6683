"""The settings loader of the real configuration: every mistake told, with its place, and never a traceback."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import os
import random
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
import yaml

from pipelines.loader.document import ConfigError, parse_document, read_yaml, render
from pipelines.loader.files import CONFIGS, find_document
from pipelines.loader.overrides import override_settings
from pipelines.loader.validation import to_plain, validate_settings
from pipelines.settings import checks
from pipelines.settings.config import CHECKS, Config
from pipelines.settings.load import find_missing_files
from pipelines.settings.processes import count_processes
from pipelines_settings import BASE, RUNS
from privacy.settings_error import Problem

FEW = ("prostate_adc.yaml", "prostate_gland_volumes.yaml", "prostatex_gland.yaml")
"""Files in which hospitals have roles: a target of translation, and some outside the federation."""
MORE = {
    ", on: ": ", 'on': ",  # PyYAML takes a bare on for true
    "    fedavg: {name: fedavg}\n": (
        "    fedavg: {name: fedavg}\n    fedprox: {name: fedprox, mu: 0.01}\n    scaffold: {name: scaffold}\n"
    ),
    "  method_start:": "  method_work: {scaffold: {optimizer: sgd, lr: 0.05}}\n  method_start:",
}
TEXT = (CONFIGS / "prostate_adc_lines.yaml").read_text()
for place, more in MORE.items():
    TEXT = TEXT.replace(place, more)
PLAIN = yaml.safe_load(TEXT)


def problems(change) -> str:
    settings = yaml.safe_load(TEXT)
    change(settings)
    with pytest.raises(ConfigError) as caught:
        validate_settings(read_yaml(yaml.safe_dump(settings), environment={}), Config)
    return render(caught.value, "my.yaml")


def put(*path_and_value):
    *path, last, value = path_and_value

    def change(settings):
        for part in path:
            settings = settings[part]
        settings[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("train", "methods", "fedprox", "mu", -1.0), "fedprox.mu: must be >= 0, found -1.0"),
        (put("train", "methods", "fedavg", "name", "fedporx"), "fedprox"),
        (put("train", "methods", "Fed Avg", {"name": "fedavg"}), "'Fed Avg' is not made of"),
        (put("train", "methods", {}), "methods: empty"),
        (lambda s: s.pop("train"), "train: missing; name at least one method"),
        (lambda s: s.pop("model"), "model: missing; name a network for "),
        (put("train", "method_work", {}), "scaffold needs plain sgd"),
        (put("train", "method_work", {"nobody": {"lr": 0.1}}), "nobody"),
        (put("train", "method_work", {"fedavg": {"learning_rate": 0.1}}), "learning_rate"),
        (put("train", "method_work", {"fedavg": {"lr": "0.1"}}), "lr"),
        (put("train", "schedule", "rounds", 0), "train.schedule.rounds: must be >= 1, found 0"),
        (put("train", "work", "steps", 5), "either epochs or steps"),
        (put("pooling", "refused"), "central training pools images"),
        (put("privacy", None), "privacy"),
        (lambda s: s.pop("privacy"), "privacy"),
        (put("sites", {}), "name at least one hospital"),
        (put("sites", "central", PLAIN["sites"]["north"]), "or is reserved (central"),
        (put("sites", "north", "methods", {"fedprox": {"nu": 1}}), "nu"),
        (put("sites", "north", "work", {"lr": -1.0}), "lr: must be > 0"),
        (put("sites", "north", "source", {"kind": "dicom", "folder": "x"}), "labels: missing"),
        (put("sites", "north", "source", "scanner", "Z"), "scanner"),
        (put("sites", "north", "policy", "requests", ["teleport"]), "teleport"),
        (put("split", "train", 0.9), "sum to 1"),
        (put("evaluate", "reference", "nobody"), "'nobody' is no method"),
        (put("evaluate", "copis", 3), "copies"),
        (put("split", {"train": 0.5, "validation": 0.0, "test": 0.5}), "evaluate.checkpoint: global is chosen by"),
        (put("model", "widths", [7, 7, 7, 7]), "multiples of 8"),
        (put("model", "name", "resnet"), "cam"),
        (put("images", "size", "48"), "size"),
        (put("images", "size", 8), "the network cannot take examples of shape"),
        (
            lambda s: s["images"].update(size=16) or s["model"].update(widths=[8, 8, 8, 8], norm="group"),
            "a group norm of 8 groups gets [8, 1, 1], and makes 0 of one value a group",
        ),
        (
            lambda s: s["images"].update(size=16) or s["train"]["work"].update(batch=1),
            "train.work.batch: 1, and a batch norm gets one value a channel of each example",
        ),
        (put("threads", 0), "threads"),
        (put("name", "../up"), "name"),
    ],
)
def test_each_mistake_is_named_with_its_place(change, said):
    text = problems(change)
    assert said in text
    assert text.startswith("my.yaml:")


def test_several_mistakes_come_at_once():
    def change(settings):
        settings["train"]["methods"]["fedprox"]["mu"] = "high"
        settings["split"]["train"] = -1.0
        settings["evaluate"]["copis"] = 3
        settings["model"]["norm"] = "layer"

    assert len(problems(change).splitlines()) >= 4


def walk(kind, seen: set[type]) -> set[type]:
    """Every dataclass that can be reached from a type."""
    for part in typing.get_args(kind):
        walk(part, seen)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            walk(hint, seen)
    return seen


def test_every_settings_class_is_frozen_and_strict():
    found = walk(Config, set())
    assert len(found) > 15
    for kind in found:
        assert kind.__dataclass_params__.frozen, kind
        assert kind.__pydantic_config__["extra"] == "forbid", kind


def test_every_check_of_the_folder_is_asked():
    modules = [import_module(f"{checks.__name__}.{found.name}") for found in iter_modules(checks.__path__)]
    assert {module.problems for module in modules} == set(CHECKS)


def test_processes_are_as_many_as_can_be_used_or_as_asked_for(monkeypatch):
    def run(**more) -> Config:
        return validate_settings(read_yaml(yaml.safe_dump(BASE | more), environment={}), Config)

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 4})
    assert [count_processes(run(processes=n)) for n in (0, 1, 5)] == [3, 1, 5]
    assert count_processes(run()) == 1
    with monkeypatch.context() as elsewhere:
        elsewhere.delattr(os, "sched_getaffinity")
        elsewhere.setattr(os, "cpu_count", lambda: 6)
        assert count_processes(run(processes=0)) == 6
    with pytest.raises(ConfigError, match="processes"):
        run(processes=-1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert count_processes(run(processes=0, device="auto")) == 1 and count_processes(run(processes=0)) == 3
    with pytest.raises(ConfigError, match="one GPU"):
        run(processes=2, device="auto")


def test_a_shipped_file_may_be_named_without_its_ending(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_document("prostate_adc").data == find_document("prostate_adc.yaml").data
    Path("prostate_adc.yaml").write_text("name: mine\n")
    assert find_document("prostate_adc").data == {"name": "mine"}, "a file that is here comes first"
    with pytest.raises(ConfigError, match="no such file here"):
        find_document("prostate_adc.yml")


def test_an_override_is_checked_like_the_setting_itself():
    config = validate_settings(read_yaml(TEXT, environment={}), Config)
    assert config.work("scaffold", "north").optimizer == "sgd"
    assert override_settings(config.train.work, {"steps": 7}).epochs is None
    with pytest.raises(ValueError, match="lr must be > 0, found -1"):
        override_settings(config.train.work, {"lr": -1.0})
    with pytest.raises(ValueError, match=r"speed: unknown key; allowed: .*lr"):
        override_settings(config.train.work, {"speed": 1})


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_settings_survive_their_plain_form(path):
    config = validate_settings(read_yaml(path.read_text(), environment={"CONSILIUM_DATA": "/data"}), Config)
    again = validate_settings(read_yaml(yaml.safe_dump(to_plain(config)), environment={}), Config)
    assert again == config


@pytest.mark.parametrize("tries", [24, pytest.param(400, marks=pytest.mark.slow)])
def test_mutated_configurations_end_in_settings_or_in_named_problems(tries):
    chance = random.Random(0)
    environment = {**os.environ, "CONSILIUM_DATA": "/data"}
    good = 0
    for _ in range(tries):
        text = list(TEXT)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text))
            kind = chance.randrange(3)
            if kind == 0:
                del text[at]
            elif kind == 1:
                text[at] = chance.choice("{}[]:,#&*!|>'\"%@`-0a \n\t\x00é")
            else:
                other = chance.randrange(len(text))
                text[at:at] = text[other : other + chance.randint(1, 30)]
        with contextlib.suppress(ConfigError):
            validate_settings(read_yaml("".join(text), environment=environment), Config)
            good += 1
    assert 0 < good < tries


def places_in(said: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all keys."""
    for key, value in said.items() if isinstance(said, dict) else ():
        yield (*path, str(key))
        yield from places_in(value, (*path, str(key)))


@pytest.mark.parametrize("name", ["prostate_adc.yaml", *(pytest.param(p.name, marks=pytest.mark.slow) for p in RUNS)])
def test_one_wrong_value_is_one_problem_and_nothing_that_follows_from_it_is_told(name, thorough):
    """The file is right but for one value, so whatever is told of another place is not so. By default one at every
    third place.
    """
    text = next(path for path in RUNS if path.name == name).read_text()
    good = read_yaml(text, environment={"CONSILIUM_DATA": "/data"}).data
    beside_it = {}
    wrongs = ("no such thing", -3, [])
    for number, path in enumerate(list(places_in(good))[:: 1 if thorough else 3]):
        for wrong in wrongs if thorough else [wrongs[number % len(wrongs)]]:
            said = copy.deepcopy(good)
            put(*path, wrong)(said)
            problems = list_problems(said)
            places = {problem.where for problem in problems}  # of one value, two things may be to be said
            beside_it |= {(path, str(wrong)): [*map(str, problems)]} if len(places) > 1 else {}
    assert beside_it == {}


def list_problems(settings: object) -> list[Problem]:
    """The problems that are told of settings in plain form."""
    try:
        validate_settings(read_yaml(yaml.safe_dump(settings, sort_keys=False), environment={}), Config)
    except ConfigError as error:
        return list(error.problems)
    return []


def rename(group: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    """A group, one of whose keys has another name."""
    return {name if each == key else each: value for each, value in group.items()}


def mistake_hospitals(good: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], bool]]:
    """What one mistake is, the settings with it, and whether it may be none: a hospital that nothing names may leave,
    be added, or be called otherwise."""
    outside, sites = good.get("outside", []), good["sites"]
    if "outside" in good:
        without = {key: value for key, value in good.items() if key != "outside"}
        yield "outside: []", {**good, "outside": []}, "route" not in good
        yield "no outside", without, "route" not in good
        yield "outsde", rename(good, "outside", "outsde"), False
        yield "outside: [nobody]", {**good, "outside": ["nobody"]}, False
        yield "outside: [.., nobody]", {**good, "outside": [*outside, "nobody"]}, False
    yield "sites: {}", {**good, "sites": {}}, False
    yield "sitse", rename(good, "sites", "sitse"), False
    for site in sites:
        yield f"no {site}", {**good, "sites": {name: sites[name] for name in sites if name != site}}, True
        yield f"{site}x", {**good, "sites": rename(sites, site, f"{site}x")}, True
        yield f"{site}: {{}}", {**good, "sites": {**sites, site: {}}}, False


@pytest.mark.parametrize("name", [pytest.param(p.name, marks=() if p.name in FEW else pytest.mark.slow) for p in RUNS])
def test_a_mistake_about_who_is_there_or_outside_is_one_problem(name):
    """Whoever is named wrongly, or not at all: the rest is right, so nothing else is told."""
    text = next(path for path in RUNS if path.name == name).read_text()
    good = read_yaml(text, environment={"CONSILIUM_DATA": "/data"}).data
    twice = {}
    for mistake, said, may_be_none in mistake_hospitals(good):
        problems = [*map(str, list_problems(said))]
        twice |= {mistake: problems} if len(problems) > 1 or (not problems and not may_be_none) else {}
    assert twice == {}


@pytest.mark.parametrize("name", ["prostate_adc.yaml", *(pytest.param(p.name, marks=pytest.mark.slow) for p in RUNS)])
def test_a_misspelt_key_is_one_problem(name, thorough):
    """A key that is missing because it is misspelt is told once; and an empty group is told, not what it lacks. By
    default a sixth of the keys are tried.
    """
    text = next(path for path in RUNS if path.name == name).read_text()
    good = read_yaml(text, environment={"CONSILIUM_DATA": "/data"}).data

    def told(said: object) -> list[str]:
        try:
            validate_settings(read_yaml(yaml.safe_dump(said), environment={}), Config)
        except ConfigError as error:
            return [str(each) for each in error.problems]
        return []

    twice = {}
    for path in list(places_in(good))[:: 1 if thorough else 6]:
        said = copy.deepcopy(good)
        group = said
        for part in path[:-1]:
            group = group[part]
        group[f"{path[-1]}x"] = group.pop(path[-1])
        problems = told(said)
        unknown = [text for text in problems if f"did you mean '{path[-1]}'" in text]
        twice |= {path: problems} if unknown and len(problems) > 1 else {}
    assert twice == {}
    for path in (("sites",), ("train", "methods")):
        said = copy.deepcopy(good)
        put(*path, {})(said)
        others = [text for text in told(said) if " are " in text or "nobody to share" in text]
        assert not any(text.rstrip().endswith(" are") or "nobody to share" in text for text in others), others


@pytest.mark.parametrize("place", ["title", "device", "runs"])
def test_what_a_draft_leaves_to_be_filled_in_is_refused(place):
    settings = yaml.safe_load(TEXT)
    put(place, "FILL IN")(settings)
    put("sites", "north", "source", "folder", "FILL IN")(settings)
    with pytest.raises(ConfigError) as caught:
        validate_settings(parse_document(yaml.safe_dump(settings), environment={}), Config)
    assert place in {problem.path for problem in caught.value.problems}


def folder_of(site: str, folder: str):
    def change(settings):
        settings["sites"][site] = {
            "source": {"kind": "dicom", "folder": folder},
            "labels": {"kind": "table", "file": "nothing.csv"},
            "policy": {"pooling": True},
        }

    return change


INDEPENDENT = {
    "text": put("title", "${HOME}"),
    "type": put("train", "schedule", "rounds", "3"),
    "missing": lambda settings: settings.pop("name"),
    "range of a site": put("sites", "north", "readers", 100),
    "second range of that site": put("sites", "north", "max_rejected", 3.0),
    "override": put("sites", "north", "methods", {"fedprox": {"mu": -1.0}}),
    "unknown key": put("split", "nothing", 1),
    "between parts": put("evaluate", "reference", "nobody"),
    "whole run": put("threads", 999),
    "missing folder": folder_of("lost", "/nowhere"),
    "literal": put("train", "work", "optimizer", "adamm"),
}


def told_of(*faults: str) -> set[str]:
    settings = yaml.safe_load(TEXT)
    for fault in faults:
        INDEPENDENT[fault](settings)
    text = yaml.safe_dump(settings, sort_keys=False)
    with pytest.raises(ConfigError) as caught:
        validate_settings(parse_document(text, environment={}), Config, find_missing_files)
    lines = text.splitlines()
    for problem in caught.value.problems:  # each at the line of its own key, or of the group that lacks it
        key = [part for part in problem.where if isinstance(part, str)]
        there = problem.where == ("name",) or any(f"{part}:" in lines[problem.line - 1] for part in key[-2:])
        assert there, problem
    return {f"{problem.path}: {problem.message}" for problem in caught.value.problems}


def test_no_mistake_hides_one_of_another_part(thorough):
    """The law: what is told of two mistakes in different parts is at least what is told of each by itself.

    All at once by default: one that hides another hides it there too.
    """
    pairs = itertools.combinations(INDEPENDENT, 2) if thorough else ()
    alone = {fault: told_of(fault) for fault in INDEPENDENT}
    assert all(alone.values())
    for one, other in pairs:
        assert told_of(one, other) >= alone[one] | alone[other], (one, other)
    assert told_of(*INDEPENDENT) >= set().union(*alone.values())


def test_what_follows_from_a_mistake_is_not_told():
    """One mistake each, and one problem each, though the rest is checked again without it."""
    for change, said in (
        (put("split", "train", "0.5"), "split.train"),
        (put("train", "methods", "fedavg", "name", "fedporx"), "train.methods.fedavg.name"),
        (lambda settings: settings.pop("privacy"), "privacy"),
        (put("model", "name", "camm"), "model.name"),
        (put("images", "size", "96"), "images.size"),
        (put("sites", "north", "source", "kind", "phantoms"), "sites.north.source.kind"),
    ):
        settings = yaml.safe_load(TEXT)
        change(settings)
        with pytest.raises(ConfigError) as caught:
            validate_settings(parse_document(yaml.safe_dump(settings), environment={}), Config, find_missing_files)
        assert [problem.path for problem in caught.value.problems] == [said]
