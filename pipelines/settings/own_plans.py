"""Checks of hospitals' own plans: a grid of examples and a network that differ from the run's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from federation.algorithm import allows_own_networks
from pipelines.loader.overrides import override_settings
from pipelines.settings.home_lines import CENTRAL
from pipelines.settings.run_settings import RunSettings, has_own_plans
from privacy.settings_error import Path, Problem, problems_of

GRID = {
    "slices": ("spacing_mm", "size"),
    "volumes": ("spacing_mm", "size", "depth_mm", "depth"),
    "pictures": ("size",),
}
"""By kind: what of the images may differ. All else says what a value means, which must be the same everywhere."""
REMEDY = "or remove images and model of the hospitals"
OWN: tuple[Path, ...] = (("sites",),)
"""What these problems follow from."""


def find_plan_problems(run: RunSettings) -> list[Problem]:
    """Why hospitals' own plans cannot be run; empty where no hospital has one. Without them no network is known."""
    if not has_own_plans(run):
        return []
    problems = [*_site_problems(run), *_method_problems(run), *_run_problems(run)]
    return problems or [*_network_problems(run)]


def _site_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of single plans: fields that must not differ, and values that are out of range."""
    grid = GRID.get(run.images.kind, ())
    for name, site in run.sites.items():
        for key in sorted(set(site.images) - set(grid)):
            text = f"must be the same at all hospitals; a plan of {run.images.kind} differs in {', '.join(grid)} alone"
            yield Problem(("sites", name, "images", key), f"{text}; remove it, or change it for the run")
        if "name" in site.model:
            text = "names the network, of which all hospitals have the same kind; remove it"
            yield Problem(("sites", name, "model", "name"), text)
        for key, settings in (("images", run.images), ("model", run.model)):
            changes = getattr(site, key)
            if not changes or settings is None or (key == "images" and not set(changes) <= set(grid)):
                continue
            try:
                override_settings(settings, changes)
            except ValueError as error:
                yield from (problem.within("sites", name, key) for problem in problems_of(error))


def _method_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of methods that need one network for all hospitals."""
    for label, method in run.train.methods.items():
        if method.name == CENTRAL or not allows_own_networks(method):
            text = f"{method.name} needs the same images and network at all hospitals, and some have plans of their own"
            yield Problem(("train", "methods", label), f"{text}; take asymmetric or local, {REMEDY}", needs=OWN)


def _run_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of settings by which one hospital's images or models would meet another's network."""
    if run.task.kind != "segmentation":
        text = f"plans of hospitals' own are for masks, found kind: {run.task.kind}; remove images and model of sites"
        yield Problem(("task", "kind"), text, needs=OWN)
    if run.evaluate.public:
        text = "true scores each model at every hospital, and networks of other hospitals take other images; say false"
        yield Problem(("evaluate", "public"), text, needs=OWN)
    matched = [label for label, variant in run.evaluate.variants.items() if variant.calibration == "matched"]
    unfit: tuple[tuple[Path, object, str], ...] = (
        (("evaluate", "window"), run.evaluate.window, "is one size of windows for all networks"),
        (("harmonize",), run.harmonize, "translates images on one grid"),
        (("augment",), run.augment, "makes images on one grid"),
        (("route",), run.route, "gives a hospital outside the models of all"),
        (("outside",), run.outside, "names hospitals that are given the models of all"),
        (("train", "start"), run.train.start, "begins one network for all"),
        (("train", "method_start"), run.train.method_start, "begins one network for all"),
        (("train", "method_model"), run.train.method_model, "is one network for all"),
        (
            ("train", "secure_sum"),
            run.train.secure_sum,
            "hides replies among hospitals that were told the same network",
        ),
        (("evaluate", "variants"), matched, f"({', '.join(matched)}: matched) compares channels of one network"),
    )
    for where, value, why in unfit:
        if value:
            text = f"{why}, and some hospitals have plans of their own; remove it, {REMEDY}"
            yield Problem(where, text, needs=OWN)


def _network_problems(run: RunSettings) -> Iterator[Problem]:
    """Problems of networks that cannot be built on their hospital's grid. All methods have the same at a hospital."""
    label = next(iter(run.train.methods), "")
    for name, site in run.sites.items() if label else ():
        try:
            with torch.device("meta"):  # nothing is allocated
                run.model_of(label, name).build(inputs=run.images_of(name).inputs, classes=len(run.task.names))
        except (RuntimeError, OverflowError, ValueError) as error:
            where = ("sites", name, "model" if site.model else "images") if site.model or site.images else ("model",)
            yield Problem(where, f"the network cannot take this hospital's examples: {error}")
