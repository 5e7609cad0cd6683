"""What settings of methods are refused by the settings loader, at one site as for all: nothing is trained before."""

from __future__ import annotations

import copy

import pytest
import yaml

from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.settings.config import Config
from pipelines_settings import BASE


def settings(methods: dict, site: dict | None = None, **more) -> dict:
    made = copy.deepcopy(BASE) | {"model": {"name": "cnn", "widths": [8, 8], "norm": "group"}}
    made["train"] = {"schedule": {"rounds": 1}, "work": {"lr": 0.01}, "methods": methods}
    made["evaluate"] = {"copies": 5}
    for name in made["sites"]:
        made["sites"][name]["policy"] = {"pooling": True, "recipients": ["coordinator", "sites"]}
    if site:
        made["sites"]["a"]["methods"] = site
    return made | more


def config(made: dict) -> Config:
    return validate_settings(read_yaml(yaml.safe_dump(made), environment={}), Config)


def privately(made: dict) -> dict:
    made |= {"privacy": {"epsilon": 3.0}, "pooling": "refused"}
    for site in made["sites"].values():
        site["policy"] = {"public": ["counts"]}
    return made


@pytest.mark.parametrize(
    ("common", "own", "why"),
    [
        ({"name": "fedsld", "share": "site"}, {"share": "batch"}, "sites.a.methods.m: fedsld"),
        (
            {"name": "pgfed", "eta_2": 0.0},
            {"eta_2": 0.01},
            "sites.a.methods.m: pgfed learns alpha",
        ),
    ],
)
def test_what_a_private_run_refuses_it_refuses_of_one_site(common, own, why):
    config(privately(settings({"m": common})))
    with pytest.raises(ConfigError, match=why):
        config(privately(settings({"m": common}, {"m": own})))


OTHER = {"name": "cnn", "widths": [8, 16], "norm": "group"}


def at_home(name: str) -> dict:
    return {"name": "at_home", "of": {"name": name}}


@pytest.mark.parametrize(
    ("common", "own", "why"),
    [
        ({"name": "apple"}, {"M": 1}, "replies would have other tensors or facts"),
        ({"name": "cusfl", "depth": 1}, {"depth": 2}, "replies would have other tensors or facts"),
        ({"name": "cusfl", "depth": 1}, {"depth": 9}, "set depth to at most"),
        ({"name": "fedper"}, {"name": "lg_fedavg"}, "all sites run one method, fedper here; remove it"),
        ({"name": "fenda"}, {"local": OTHER}, "sites.a.methods.m: its network would not fit the start"),
        (at_home("fenda"), {"of": {"name": "fenda", "local": OTHER}}, "m: its network would not fit the start"),
        (at_home("fedprox"), {"of": {"name": "fedavg"}}, "of.name: fedavg, but all sites run one method, fedprox here"),
    ],
)
def test_a_site_whose_replies_nobody_could_read_is_named_before_it_trains(common, own, why):
    config(settings({"m": common}))
    with pytest.raises(ConfigError, match=why):
        config(settings({"m": common}, {"m": own}))


def test_a_site_may_still_change_what_leaves_its_replies_alike():
    config(
        settings({"m": {"name": "cusfl", "depth": 1}, "p": {"name": "fedprox"}}, {"m": {"r": 0.3}, "p": {"mu": 1.0}})
    )
    config(settings({"m": at_home("fedprox")}, {"m": {"of": {"name": "fedprox", "mu": 1.0}}}))


def test_what_validation_patients_decide_needs_some():
    split = {"train": 0.7, "validation": 0.0, "test": 0.3}
    evaluate = {"copies": 5, "checkpoint": "latest"}
    with pytest.raises(ConfigError, match=r"fedfomo weighs models by validation patients, and split.validation is 0"):
        config(settings({"m": {"name": "fedfomo"}}, split=split, evaluate=evaluate))
    variants = {"best": {"of": "m", "checkpoint": "local"}}
    with pytest.raises(ConfigError, match=r"variants.best.checkpoint: local is chosen by validation loss"):
        config(settings({"m": {"name": "fedavg"}}, split=split, evaluate={**evaluate, "variants": variants}))


def test_a_head_can_only_be_tuned_where_there_is_one():
    tuning = {"calibration": "fine_tuned", "tuning": {"epochs": 1, "trainable": "head"}}
    config(settings({"m": {"name": "fedavg"}}, evaluate={"copies": 5, "variants": {"v": {"of": "m", **tuning}}}))
    with pytest.raises(ConfigError, match=r"variants.v.tuning.trainable: the network of m has no head"):
        config(settings({"m": {"name": "apfl"}}, evaluate={"copies": 5, "variants": {"v": {"of": "m", **tuning}}}))


def test_a_step_that_would_swing_is_refused():
    work = {"optimizer": "sgd", "lr": 0.05}
    made = settings({"m": {"name": "ditto", "lam": 100.0}})
    made["train"]["work"] = work
    with pytest.raises(ConfigError, match=r"ditto needs lr \* lam < 2"):
        config(made)
