"""The report's requests to hospitals: each writes its own page and returns its facts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipelines.coordinator.artifacts import SCORES
from pipelines.coordinator.report.comparing import others
from pipelines.coordinator.report.external_sites import questions
from pipelines.coordinator.report.gap import compared
from pipelines.coordinator.spaces import cohorts_for, cohorts_in, window_of
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.store import digest, short
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW
from privacy.message import Json, Message, as_mapping

PICTURED = 32
"""Simulated hospitals whose pages all have pictures; of more only those that the coordinator's figures show."""


def ask_sites(
    world: World, inputs: Mapping[str, Path], trained: list[Any], version: int, seen: Collection[str] = ()
) -> dict[str, Mapping[str, Json]]:
    """Have every hospital write its own page; return its facts by site. seen: those in the coordinator's figures."""
    config = world.config
    cohorts, spaces = cohorts_in(inputs, RAW), {r["label"]: cohorts_for(config, inputs, r["label"]) for r in trained}

    def methods(site: str) -> list[Json]:
        return [
            {
                "label": result["label"],
                "train_run": result["train_run"],
                "checkpoint": config.evaluate.checkpoint,
                "best": result["best"],
                "rounds": result["rounds"],
                "cohort": spaces[result["label"]][site]["cohort"],
                "space": result["space"],
            }
            for result in trained
        ]

    def variants(site: str) -> list[Json]:
        """Methods with another label, another checkpoint perhaps, and a calibration."""
        own = {as_mapping(method)["label"]: as_mapping(method) for method in methods(site)}
        return [
            {
                **own[one.of],
                "label": label,
                "checkpoint": one.checkpoint or config.evaluate.checkpoint,
                "calibration": to_plain(one),
            }
            for label, one in config.evaluate.variants.items()
        ]

    facts: dict[str, Json] = {
        **_common(world),
        "reference": config.evaluate.reference,
        "spaces": list(config.harmonize.translate) if config.harmonize else [],
        "imitated": _target(inputs),
        **_oracles(config),
    }
    own: dict[str, dict[str, Json]] = {
        site: {"methods": methods(site), "variants": variants(site)} for site in world.engine.sites
    }
    heard = others(world, own, version)
    if world.simulation and len(own) > PICTURED and config.pages != "all":
        for site, said in own.items():
            said["pictures"] = site in seen
    asked = {
        site: Message({}, {**facts, **own[site], **_of_ingest(cohorts[site]), **heard[site]})
        for site in world.engine.sites
    }
    used: dict[str, Json] = {site: {"cohort": cohorts[site]["cohort"], **own[site]} for site in sorted(own)}
    known = {**facts, "sites": used, "version": version}
    replies = world.ask_all(world.run(f"report-{short(digest(known))}"), "report", asked)
    return {site: reply.facts for site, reply in replies.items()}


def ask_outside(world: World, inputs: Mapping[str, Path], version: int) -> dict[str, Mapping[str, Json]]:
    """The same for external sites, with the routing lines of each."""
    if "route" not in inputs:
        return {}
    own = {site: {**_common(world), **asked} for site, asked in questions(world, inputs["route"]).items()}
    known: Json = {"sites": dict(own), "version": version}
    run_ = world.run(f"report-{short(digest(known))}")
    messages = {site: Message({}, facts) for site, facts in own.items()}
    return {site: reply.facts for site, reply in sorted(world.beyond().ask_all(run_, "report", messages).items())}


def _common(world: World) -> dict[str, Json]:
    """Facts that every hospital's page needs."""
    config = world.config
    return {
        "title": " ".join((config.title or config.name).split()),
        "copies": config.evaluate.copies,
        **_learnt(world),
    }


def _learnt(world: World) -> dict[str, Json]:
    """Which structures the methods segment; in classification, whether the classes are ordered, if they are."""
    task = world.config.task
    if task.target is None:
        return {"ordered": True} if task.ordered else {}
    return {"target": task.target, "structures": list(task.names[1:]), "window": window_of(world)}


def _oracles(config: Config) -> dict[str, Json]:
    """Which lines are compared with an oracle, if any are."""
    found: list[Json] = [
        {"untranslated": one.untranslated, "oracle": one.oracle, "others": list(one.others)} for one in compared(config)
    ]
    return {"compared": found} if found else {}


def _of_ingest(said: Mapping[str, Any]) -> dict[str, Json]:
    return {name: said[name] for name in ("cohort", "excluded", "unmatched_exclusions") if name in said}


def _target(inputs: Mapping[str, Path]) -> Json:
    """The target of harmonization; None if nothing is harmonized."""
    return json.loads((inputs["score"] / SCORES).read_text())["target"] if "score" in inputs else None
