"""Checks of `outside` and `route`, before anything is trained: whether external sites can get a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from federation.alone import Alone
from federation.local import Local
from federation.models import OnFeatures
from federation.sizes import check_size
from personalize import AnyAlgorithm
from personalize.adaptation_baselines import Tent, tent
from personalize.routing_outside import Routing, route_experts
from pipelines.settings.harmonization import RAW
from pipelines.settings.route import SHARED, Line, Route
from pipelines.settings.run_settings import RunSettings
from privacy.release.policy import OUTSIDE
from privacy.settings_error import Problem, problems_of

ON_FEATURES = ("as_trained", "ensemble", "fine_tuned")
"""Names of ways (`how`) that do not look at images."""


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `outside` and `route`."""
    for name in run.outside:
        if name not in run.sites:
            yield Problem(("outside",), f"{name!r} is no site; sites are {', '.join(run.sites)}")
    if run.outside and sum(name in run.sites for name in run.outside) == len(run.sites):
        yield Problem(("outside",), "names every site; somebody must be in the federation")
    if len(set(run.outside)) < len(run.outside):
        yield Problem(("outside",), "names a site twice; name each once")
    if run.route is not None:
        yield from _route_problems(run, run.route)


def _route_problems(run: RunSettings, route: Route) -> Iterator[Problem]:
    """Problems of a route with the run's settings, and of its lines."""
    if not run.outside:
        text = "missing; route is for external sites, name at least one site"
        yield Problem(("outside",), text)
    if run.evaluate.checkpoint == "local":
        yield Problem(("route",), "models of each site's own best round are no common one; say checkpoint: global")
    if run.evaluate.window is not None:
        text = "external sites use whole images; say null, or remove route"
        yield Problem(("evaluate", "window"), text)
    if run.privacy != "none":
        yield Problem(("route",), "its scores are not released with noise yet; say privacy: none, or remove it")
    for label, line in route.lines.items():
        line_problems = _line_problems(run, route, line) or _rehearsal_problems(run, route, line)
        yield from (problem.within("route", "lines", label) for problem in line_problems)
    for name, site in run.sites.items() if run.outside else ():
        if name not in run.outside and OUTSIDE not in site.policy.recipients:
            yield Problem(
                ("sites", name, "policy", "recipients"),
                "route hands this site's models to external sites, and its policy does not allow that; "
                f"say recipients: [coordinator, {OUTSIDE}], or remove route",
            )


def _line_problems(run: RunSettings, route: Route, line: Line) -> list[Problem]:
    """Problems of a line's way and of the methods that it names."""
    problems = []
    if line.how.name == "average" and run.task.kind == "classification":
        text = "average is of the scores of masks; say ensemble, the mean of the models' logits"
        problems.append(Problem(("how",), text))
    for part, label in route.methods(line).items():
        method, text = run.train.methods.get(label), ""
        if method is None:
            text = f"{label!r} is no method; methods are {', '.join(run.train.methods)}"
        elif method.name == "central":
            text = f"{label} is the pooled baseline of a simulation, which no hospital can be given"
        elif run.train.method_images.get(label, RAW) != RAW:
            text = f"{label} learns from translated images, which an external site does not have"
        elif isinstance(run.train.method_model.get(label, run.model), OnFeatures) and line.how.name not in ON_FEATURES:
            text = f"{label} is on fixed features, and {line.how.name} looks at images; say {' or '.join(ON_FEATURES)}"
        elif (line.how.name == "ttt") != (method.name == "fedavg_turns"):
            text = f"{label} is {method.name}; ttt goes with fedavg_turns, and nothing else does"
        elif part == SHARED and not has_common_model(method):
            text = f"{label} is {method.name}, with a model for each hospital; say one like fedavg"
        if text:
            problems.append(Problem((part,), text))
    return problems


def has_common_model(method: AnyAlgorithm) -> bool:
    """Whether a method has one model for all hospitals: it is a method of federation/, or fedavg_turns, which trains
    for ttt.
    """
    return method.name == "fedavg_turns" or (
        not isinstance(method, Alone | Local) and type(method).__module__.startswith("federation.")
    )


def _rehearsal_problems(run: RunSettings, route: Route, line: Line) -> list[Problem]:
    """Why the networks of a line do not work with its way, tried on two images of zeros; empty = they do."""
    labels_by_part, how = route.methods(line), line.how
    try:
        for label in labels_by_part.values():
            check_size(run.train.methods[label], run.task_of(label))
        experts = [run.train.methods[label].network(run.task_of(label)) for label in labels_by_part.values()]
        x = torch.zeros(2, *run.images.inputs)
        if isinstance(how, Routing):
            route_experts(experts, x, replace(how, epochs=0, mode="all"), kind=run.task.kind)
        elif isinstance(how, Tent):
            tent(experts[-1], x, replace(how, epochs=0, mode="all"), kind=run.task.kind)
    except ValueError as error:
        return list(problems_of(error))
    return []
