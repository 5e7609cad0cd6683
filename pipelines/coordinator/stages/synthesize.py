"""The target hospital trains a synthesis of its images (VAFL, section II.B). It releases nothing yet. With synthesis
`public` nobody is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.coordinator.artifacts import SYNTHESIS, target_of
from pipelines.coordinator.spaces import cohorts_in, common_facts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, Public
from privacy.message import Json, Message

VERSION = 2  # 1 asked the target always


def settings(world: World) -> Json:
    """Settings that change the synthesis."""
    return {"synthesis": to_plain(world.config.harmonized.synthesis), **common_facts(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request the target to train."""
    target = target_of(inputs["score"])
    if isinstance(world.config.harmonized.synthesis, Public):
        return _written(out, {"run": "", "target": target})
    facts: dict[str, Json] = {
        "synthesis": to_plain(world.config.harmonized.synthesis),
        "cohort": str(cohorts_in(inputs, RAW)[target]["cohort"]),
        **common_facts(world),
    }
    with shown("synthesize") as step:
        step(0, 1, target)
        name = world.conversation(world.named("synthesis", "synthesize", VERSION, facts), target)
        said = dict(world.ask_all(name, "synthesize", {target: Message({}, facts)})[target].facts)
    return _written(out, {"run": name, "target": target, **said})


def _written(out: Path, found: dict[str, Json]) -> Mapping[str, Json]:
    (out / SYNTHESIS).write_text(json.dumps(found, indent=1, sort_keys=True))
    return found


STAGE = Stage("synthesize", VERSION, ("ingest", "score"), settings, run)
