"""Every method's models on every site's test patients, from counts that the sites release."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pipelines.door import to_plain
from pipelines.progress import shown
from pipelines.runner import Stage
from pipelines.stages.train import CENTRAL, opening, pooled_engine
from pipelines.stages.world import SitesMissing, World
from pipelines.store import digest, short
from privacy.gate import BUDGET
from privacy.message import Call, Json, Message, Params, to_bytes

VERSION = 3


def settings(world: World) -> Json:
    """What the result depends on beside training."""
    return {"evaluate": to_plain(world.config.evaluate)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Collect counts for each (method, model site, test site); write them with an index."""
    cohorts = json.loads((inputs["ingest"] / "sites.json").read_text())
    labels = list(world.config.train.methods)
    index: list[Json] = []
    refused: list[Json] = []
    with shown("evaluate") as step:
        for position, label in enumerate(labels):
            step(position, len(labels), label)
            trained = json.loads((inputs["train"] / f"{label}.json").read_text())
            for model_site, test_site, reply in _scored(world, trained, cohorts):
                if reply is None:
                    refused.append({"site": test_site, "request": f"evaluate {label}", "code": BUDGET})
                    continue
                name = f"{label}.{model_site}.{test_site}.safetensors"
                (out / name).write_bytes(to_bytes(reply))
                index.append({"label": label, "model_site": model_site, "test_site": test_site, "file": name})
    if not index:
        raise SitesMissing("evaluate", dict.fromkeys(cohorts, BUDGET), where=str(world.root / "sites"))
    (out / "index.json").write_text(json.dumps(index, indent=1))
    (out / "refused.json").write_text(json.dumps(refused, indent=1))
    return {"scored": len(index), "refused": len(refused)}


Scored: TypeAlias = tuple[str, str, Message | None]
"""Model site, test site, counts; None where the test patients' budget does not allow them."""


def _scored(world: World, trained: Mapping[str, Any], cohorts: Mapping[str, Any]) -> Iterator[Scored]:
    """Every site's own model at home, and everywhere for the public protocol."""
    if trained["name"] == CENTRAL:
        params = _central(world, trained, cohorts)
        for site in world.engine.sites:
            yield CENTRAL, site, _ask(world, trained, cohorts, CENTRAL, site, params)
        return
    own = {site: _ask(world, trained, cohorts, site, site, {}) for site in world.engine.sites}
    for site, reply in own.items():
        yield site, site, reply
    if not world.config.evaluate.public or len(own) == 1:
        return
    exported = {site: _export(world, trained, site) for site in own}
    same = {site: hashlib.sha256(to_bytes(Message(params))).hexdigest() for site, params in exported.items()}
    for model_site, params in exported.items():
        for test_site in own:
            if test_site == model_site:
                continue
            if same[test_site] == same[model_site]:  # one global model: its score at home is the score
                yield model_site, test_site, own[test_site]
            else:
                yield model_site, test_site, _ask(world, trained, cohorts, model_site, test_site, params)


def _chosen(world: World, trained: Mapping[str, Any]) -> dict[str, Json]:
    checkpoint = world.config.evaluate.checkpoint
    said = {"label": trained["label"], "train_run": trained["train_run"]}
    return {**said, "checkpoint": checkpoint, "best": trained["best"]}


def _ask(
    world: World,
    trained: Mapping[str, Any],
    cohorts: Mapping[str, Any],
    model_site: str,
    test_site: str,
    params: Params,
) -> Message | None:
    """Ask a site to score its own model (no params), or these. None: its patients' budget is spent."""
    cohort = str(cohorts[test_site]["cohort"])
    facts: dict[str, Json] = {
        **_chosen(world, trained),
        "cohort": cohort,
        "copies": world.config.evaluate.copies,
    }
    if params:
        facts["opening"] = opening(world, trained["label"], test_site, cohort)
    run = world.run(f"score-{short(digest({**facts, 'model': model_site, 'test': test_site, 'version': VERSION}))}")
    try:
        return world.ask_all(run, "evaluate", {test_site: Message(params, facts)})[test_site]
    except SitesMissing as missing:
        if set(missing.missing.values()) == {BUDGET}:
            return None
        raise


def _export(world: World, trained: Mapping[str, Any], site: str) -> Params:
    """A site's model, so that other sites can be asked to score it: a release, for the public protocol only."""
    facts = _chosen(world, trained)
    run = world.run(f"export-{short(digest({**facts, 'site': site, 'version': VERSION}))}")
    return world.ask_one(run, "export", site, facts).tensors


def _central(world: World, trained: Mapping[str, Any], cohorts: Mapping[str, Any]) -> Params:
    engine, _ = pooled_engine(world, cohorts)
    facts = _chosen(world, trained)
    call = Call(world.run(f"export-{short(digest({**facts, 'site': CENTRAL, 'version': VERSION}))}"), 0, "export", {})
    answers = engine.ask(call, {CENTRAL: Message({}, facts)})
    if answers.missing:  # its models were removed, perhaps; train --fresh makes them again
        raise SitesMissing("export", answers.missing, where=str(world.root / "pooled" / "log.txt"))
    return answers.replies[CENTRAL].tensors


STAGE = Stage("evaluate", VERSION, ("ingest", "train"), settings, run)
