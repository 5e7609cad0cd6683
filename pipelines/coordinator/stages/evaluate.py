"""Evaluate every method's models on every site's test patients, from counts that the sites release."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from federation.participant import Checkpoint
from pipelines.coordinator.artifacts import CENTRAL
from pipelines.coordinator.conversations import opening, pooled_engine
from pipelines.coordinator.spaces import Cohorts, cohorts_for, window_of
from pipelines.coordinator.world import SitesMissing, World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.settings.variants import Variant
from privacy.message import Call, Json, Message, Params, to_bytes
from privacy.release.gate import BUDGET

VERSION = 11
Line: TypeAlias = tuple[str, Variant | None]
"""A label in the tables of results, and how its models are calibrated; None: not calibrated."""


def settings(world: World) -> Json:
    """Settings besides training's that change the result."""
    return {"evaluate": to_plain(world.config.evaluate)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Collect counts for each (method or variant, model site, test site); write them with an index."""
    order = [*world.config.train.methods, *world.config.evaluate.variants]
    index: list[dict[str, str]] = []
    refused: list[Json] = []
    done = 0
    floor = _floor_of(world)
    with shown("evaluate") as step:
        for method in world.config.train.methods:
            trained = json.loads((inputs["train"] / f"{method}.json").read_text())
            homes = cohorts_for(world.config, inputs, method)
            models = cache(partial(_models, world, trained, homes))  # exported once per checkpoint
            for line in _lines(world, method):
                step(done, len(order), line[0])
                done += 1
                for model_site, test_site, reply in _scored(world, trained, homes, line, models, line[0] == floor):
                    if reply is None:
                        refused.append({"site": test_site, "request": f"evaluate {line[0]}", "code": BUDGET})
                        continue
                    name = f"{line[0]}.{model_site}.{test_site}.safetensors"
                    (out / name).write_bytes(to_bytes(reply))
                    entry = {"label": line[0], "model_site": model_site, "test_site": test_site, "file": name}
                    index.append(entry)
    if not index:
        raise SitesMissing("evaluate", dict.fromkeys(world.engine.sites, BUDGET), where=world.logs(*world.engine.sites))
    index.sort(key=lambda entry: order.index(entry["label"]))  # methods look the same with and without variants
    (out / "index.json").write_text(json.dumps(index, indent=1))
    (out / "refused.json").write_text(json.dumps(refused, indent=1))
    return {"scored": len(index), "refused": len(refused)}


def _floor_of(world: World) -> str | None:
    """The method whose evaluation also scores the mean mask at each site; None in classification."""
    methods = world.config.train.methods
    if world.config.task.target is None:
        return None
    return next((label for label, method in methods.items() if method.name != CENTRAL), next(iter(methods)))


def _lines(world: World, method: str) -> list[Line]:
    """The method itself, and its variants."""
    variants = world.config.evaluate.variants
    return [(method, None), *((label, one) for label, one in variants.items() if one.of == method)]


Models: TypeAlias = Callable[[Checkpoint], Mapping[str, Params]]
"""A method's models of a checkpoint, by site."""
Scored: TypeAlias = tuple[str, str, Message | None]
"""Model site, test site, counts; None where the budget of the test patients is spent."""


def _scored(
    world: World,
    trained: Mapping[str, Any],
    homes: Cohorts,
    line: Line,
    models: Models,
    floor: bool,
) -> Iterator[Scored]:
    """Scores of every site's model on its own test patients and, in the public protocol, at every site. Calibration
    uses the test site's patients; a model tuned at a site is scored only there. floor: also score the mean mask.
    """
    held, sites = _checkpoint(world, line), world.engine.sites
    if trained["name"] == CENTRAL:
        params = models(held)[CENTRAL]
        said = _asked(world, trained, homes, line, dict.fromkeys(sites, CENTRAL), dict.fromkeys(sites, params), floor)
        yield from ((CENTRAL, site, said[site]) for site in sites)
        return
    own = _asked(world, trained, homes, line, {site: site for site in sites}, {}, floor)
    yield from ((site, site, own[site]) for site in sites)
    tuned = line[1] is not None and line[1].tuning is not None
    if not world.config.evaluate.public or len(own) == 1 or tuned:
        return
    same = {site: hashlib.sha256(to_bytes(Message(params))).hexdigest() for site, params in models(held).items()}
    for model_site, params in models(held).items():
        # One global model was scored at the other site already.
        others = [site for site in own if site != model_site and same[site] != same[model_site]]
        by = dict.fromkeys(others, model_site), dict.fromkeys(others, params)
        said = _asked(world, trained, homes, line, *by) if others else {}
        yield from ((model_site, site, said.get(site, own[site])) for site in own if site != model_site)


def _checkpoint(world: World, line: Line) -> Checkpoint:
    """Which checkpoint a line scores."""
    _, variant = line
    return (variant and variant.checkpoint) or world.config.evaluate.checkpoint


def _chosen(trained: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Json]:
    said = {"label": trained["label"], "train_run": trained["train_run"]}
    return {**said, "checkpoint": checkpoint, "best": trained["best"]}


def _asked(
    world: World,
    trained: Mapping[str, Any],
    homes: Cohorts,
    line: Line,
    scored: Mapping[str, str],
    params: Mapping[str, Params],
    floor: bool = False,
) -> dict[str, Message | None]:
    """Request sites to score models, all at once. scored: test site -> site of the model. params: of the models that
    are not the test site's own. None: the budget of a site's patients is spent.
    """
    label, variant = line
    runs, messages = dict[str, str](), dict[str, Message]()
    for test_site, model_site in scored.items():
        cohort = str(homes[test_site]["cohort"])
        facts: dict[str, Json] = {
            **_chosen(trained, _checkpoint(world, line)),
            "cohort": cohort,
            "copies": world.config.evaluate.copies,
        }
        if floor:
            facts["floor"] = True
        if (window := window_of(world)) is not None:
            facts["window"] = window
        if variant is not None:
            facts |= {"calibration": to_plain(variant), "variant": label}
        if params:
            facts["opening"] = opening(world, trained["label"], test_site, cohort)
            facts["central"] = model_site == CENTRAL
        asked = {**facts, "model": model_site, "test": test_site}
        runs[test_site] = world.run(world.named("score", "evaluate", VERSION, asked))
        told: dict[str, Json] = {"rounds": trained["rounds"]}  # for the model's file: no part of the question's name
        messages[test_site] = Message(params.get(test_site, {}), facts | told)
    replies = world.ask_each(runs, "evaluate", messages, spared={BUDGET})
    return {site: replies.get(site) for site in scored}


def _models(world: World, trained: Mapping[str, Any], homes: Cohorts, checkpoint: Checkpoint) -> Mapping[str, Params]:
    """A method's models by site, exported so that other sites can score them: a release, for public testing only."""
    facts = _chosen(trained, checkpoint)
    if trained["name"] == CENTRAL:
        return {CENTRAL: _central(world, facts, homes)}
    runs = {
        site: world.run(world.named("export", "evaluate", VERSION, {**facts, "site": site}))
        for site in world.engine.sites
    }
    replies = world.ask_each(runs, "export", {site: Message({}, facts) for site in runs})
    return {site: replies[site].tensors for site in runs}


def _central(world: World, facts: Mapping[str, Json], homes: Cohorts) -> Params:
    engine, _ = pooled_engine(world, homes)
    call = Call(world.run(world.named("export", "evaluate", VERSION, {**facts, "site": CENTRAL})), 0, "export", {})
    answers = engine.ask(call, {CENTRAL: Message({}, facts)})
    if answers.missing:  # perhaps its models were removed; train --fresh makes them again
        raise SitesMissing("export", answers.missing, where=str(world.root / "pooled" / "log.txt"))
    return answers.replies[CENTRAL].tensors


STAGE = Stage("evaluate", VERSION, ("ingest", "translate", "augment", "features", "train"), settings, run)
