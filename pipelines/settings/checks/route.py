"""Checks of `outside` and `route`, before anything is trained: whether external sites can get a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch

from federation.alone import Alone
from federation.local import Local
from federation.matching import check_matchable
from federation.models import OnFeatures
from federation.sizes import check_size
from federation.task import Kind, Task
from personalize import AnyAlgorithm
from personalize.adaptation_baselines import Tent, tent
from personalize.routing_outside import Routing, route_experts
from pipelines.settings.image_spaces import find_line_spaces
from pipelines.settings.route import SHARED, How, Line, Matched, Route, find_patch_problem
from pipelines.settings.run_settings import RunSettings, select_model
from privacy.settings_error import Problem, problems_of

ON_FEATURES = ("as_trained", "ensemble", "fine_tuned")
"""Names of ways (`how`) that do not look at images."""


def problems(run: RunSettings) -> Iterator[Problem]:
    """All problems of `outside` and `route`."""
    for name in run.outside if run.sites else ():  # `checks.sites` reports that there are no sites
        if name not in run.sites:
            yield Problem(("outside",), f"{name!r} is no site; sites are {', '.join(run.sites)}")
    if run.sites and sum(name in run.sites for name in run.outside) == len(run.sites):
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
    schedule = run.train.schedule
    misses_rounds = min(schedule.participation, schedule.quorum) < 1 or schedule.buffer is not None
    if run.evaluate.checkpoint == "average" and misses_rounds:
        text = (
            "hospitals that miss rounds have averages of their own, and none is common; say checkpoint: global, or "
            "participation and quorum 1.0, and no buffer"
        )
        yield Problem(("route",), text)
    if run.evaluate.window is not None:
        text = "external sites use whole images; say null, or remove route"
        yield Problem(("evaluate", "window"), text)
    if run.privacy != "none":
        yield Problem(("route",), "its scores are not released with noise yet; say privacy: none, or remove it")
    yield from dict.fromkeys(
        problem
        for label, line in route.lines.items()
        for problem in _line_problems(run, route, label) or _rehearsal_problems(run, route, label)
    )


def _line_problems(run: RunSettings, route: Route, line_label: str) -> list[Problem]:
    """Problems of a line's way and of the methods that it names, each where its name stands."""
    problems, line = [], route.lines[line_label]
    if len(set((spaces := find_line_spaces(run, line)).values())) > 1:
        text = " and ".join(f"{label} in {space}" for label, space in spaces.items())
        text = f"its methods learn in different spaces ({text}), and an external site's images are in one; "
        text = f"{text}name methods of one space in shared and personal"
        problems.append(Problem(("route", "lines", line_label), text))
    if line.how.name == "average" and run.task.kind == "classification":
        text = "average is of the scores of masks; say ensemble, the mean of the models' logits"
        problems.append(Problem(("route", "lines", line_label, "how"), text))
    for part, label in route.methods(line).items():
        where = ("route", part) if getattr(line, part) is None else ("route", "lines", line_label, part)
        if text := _find_method_problem(run, part, label):
            problems.append(Problem(where, text))
        elif text := _find_way_problem(run, line, label):
            problems.append(Problem(("route", "lines", line_label, part), text))
    return problems


def _find_method_problem(run: RunSettings, part: str, label: str) -> str:
    """Why no external site can be given a method's models, whatever the way; empty = it can."""
    method = run.train.methods.get(label)
    if method is None:
        return f"{label!r} is no method; methods are {', '.join(run.train.methods)}"
    if method.name == "central":
        return f"{label} is the pooled baseline of a simulation, which no hospital can be given"
    if part == SHARED and not has_common_model(method):
        return f"{label} is {method.name}, with a model for each hospital; say one like fedavg"
    return ""


def _find_way_problem(run: RunSettings, line: Line, label: str) -> str:
    """Why a line's way cannot use a method's models; empty = it can."""
    method, how = run.train.methods[label], line.how.name
    if isinstance(select_model(run, label), OnFeatures) and how not in ON_FEATURES:
        return f"{label} is on fixed features, and {how} looks at images; say {' or '.join(ON_FEATURES)}"
    if getattr(select_model(run, label), "patch", None) is not None and (text := find_patch_problem(line.how)):
        return f"{label} is trained on patches, and {text}, or take unet"
    if (how == "ttt") != (method.name == "fedavg_turns"):
        return f"{label} is {method.name}; ttt goes with fedavg_turns, and nothing else does"
    return ""


def has_common_model(method: AnyAlgorithm) -> bool:
    """Whether a method has one model for all hospitals: it is a method of federation/, or fedavg_turns, which trains
    for ttt.
    """
    return method.name == "fedavg_turns" or (
        not isinstance(method, Alone | Local) and type(method).__module__.startswith("federation.")
    )


def _rehearsal_problems(run: RunSettings, route: Route, line_label: str) -> list[Problem]:
    """Why the networks of a line do not work with its way."""
    line = route.lines[line_label]
    networks = tuple((run.train.methods[label], run.task_of(label)) for label in route.methods(line).values())
    problems = _rehearse_way(line.how, networks, run.images.inputs, run.task.kind)
    return [problem.within("route", "lines", line_label) for problem in problems]


@lru_cache(maxsize=64)
def _rehearse_way(
    how: How, networks: tuple[tuple[AnyAlgorithm, Task], ...], inputs: tuple[int, ...], kind: Kind
) -> tuple[Problem, ...]:
    """Why networks do not work with a way, tried on two images of zeros; empty = they do."""
    try:
        for method, task in networks:
            check_size(method, task)
        experts = [method.network(task) for method, task in networks]
        patched = networks[-1][1].patch is not None
        x = torch.zeros(2, *(networks[-1][1].trained_inputs if patched else inputs))
        if isinstance(how, Routing):
            route_experts(experts, x, replace(how, epochs=0, mode="all"), kind=kind)
        elif isinstance(how, Matched):
            check_matchable(experts[-1])
        elif isinstance(how, Tent):
            tent(experts[-1], x, replace(how, epochs=0, mode="all"), kind=kind)
    except ValueError as error:
        return problems_of(error)
    return ()
