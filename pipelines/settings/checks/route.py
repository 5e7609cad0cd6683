"""What keeps hospitals outside from getting a model, found before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from personalize import AnyAlgorithm
from personalize.adaptation_baselines import Tent, tent
from personalize.routing_outside import Routing
from personalize.routing_outside import route as adapt
from pipelines.settings.harmonization import RAW
from pipelines.settings.route import SHARED, Line, Route
from privacy.release.policy import OUTSIDE

if TYPE_CHECKING:
    from pipelines.settings.config import Config


def unfit_route(config: Config) -> list[str]:
    """What keeps hospitals outside from getting a model: all of it at once."""
    known = [name for name in config.outside if name in config.sites]
    problems = [
        f"outside: {name!r} is no site; sites are {', '.join(config.sites)}"
        for name in config.outside
        if name not in config.sites
    ]
    if config.outside and len(known) == len(config.sites):
        problems.append("outside: names every site; somebody must be in the federation")
    if len(set(config.outside)) < len(config.outside):
        problems.append("outside: names a site twice; name each once")
    if config.route is None:
        return problems
    if not config.outside:
        problems.append("outside: missing; route is for hospitals outside the federation, name at least one site")
    if config.evaluate.checkpoint == "local":
        problems.append("route: models of each site's own best round are no common one; say checkpoint: global")
    if config.evaluate.window is not None:
        problems.append("evaluate.window: hospitals outside look at whole images; say null, or remove route")
    if config.privacy != "none":
        problems.append("route: its scores are not released with noise yet; say privacy: none, or remove it")
    for label, line in config.route.lines.items():
        problems += [f"route.lines.{label}: {said}" for said in _unfit_line(config, config.route, line)]
    return problems + [
        f"sites.{name}.policy.recipients: route hands this site's models to hospitals outside the federation, and its "
        f"policy does not let it; say recipients: [coordinator, {OUTSIDE}], or remove route"
        for name, site in config.sites.items()
        if name not in config.outside and OUTSIDE not in site.policy.recipients
    ]


def _unfit_line(config: Config, route: Route, line: Line) -> list[str]:
    problems = []
    if line.how.name == "average" and config.task.kind == "classification":
        problems.append("how: average is of the scores of masks; say ensemble, the mean of the models' logits")
    for part, label in route.methods(line).items():
        method = config.train.methods.get(label)
        if method is None:
            problems.append(f"{part}: {label!r} is no method; methods are {', '.join(config.train.methods)}")
        elif method.name == "central":
            problems.append(f"{part}: {label} is the pooled baseline of a simulation, which no hospital can be given")
        elif config.train.method_images.get(label, RAW) != RAW:
            problems.append(f"{part}: {label} learns from translated images, which a hospital outside does not have")
        elif (line.how.name == "ttt") != (method.name == "fedavg_turns"):
            problems.append(f"{part}: {label} is {method.name}; ttt goes with fedavg_turns, and nothing else does")
        elif part == SHARED and not for_all(method):
            problems.append(f"{part}: {label} is {method.name}, with a model for each hospital; say one like fedavg")
    return problems or _rehearsed(config, route, line)


def for_all(method: AnyAlgorithm) -> bool:
    """Whether a method has one model for all hospitals: it lies in federation/, or trains for ttt."""
    return method.name == "fedavg_turns" or (
        method.name not in ("local", "central") and type(method).__module__.startswith("federation.")
    )


def _rehearsed(config: Config, route: Route, line: Line) -> list[str]:
    """Whether the networks of a line go with its way, seen on two images of zeros before anything is trained."""
    parts, how = route.methods(line), line.how
    try:
        experts = [config.train.methods[label].network(config.task_of(label)) for label in parts.values()]
        x = torch.zeros(2, *config.images.inputs)
        if isinstance(how, Routing):
            adapt(experts, x, replace(how, epochs=0, mode="all"), kind=config.task.kind)
        elif isinstance(how, Tent):
            tent(experts[-1], x, replace(how, epochs=0, mode="all"), kind=config.task.kind)
    except ValueError as error:
        return [str(error)]
    return []
