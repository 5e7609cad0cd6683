"""The target hospital trains a synthesis of its images (VAFL, section II.B). It releases nothing yet. With synthesis
`public` nobody is asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.coordinator.artifacts import SYNTHESIS, read_counts, target_of
from pipelines.coordinator.rehearsing import check_synthesis
from pipelines.coordinator.spaces import build_common_part, common_settings, read_cohorts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.requests.synthesize import SYNTHESIZE, Synthesize
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, Public
from privacy.message import Json

VERSION = 2  # 1 asked the target always


def settings(world: World) -> Json:
    """Settings that change the synthesis."""
    return {"synthesis": to_plain(world.config.harmonize_settings.synthesis), **common_settings(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request the target to train."""
    target = target_of(inputs["score"])
    if isinstance(world.config.harmonize_settings.synthesis, Public):
        return _write_summary(out, {"run": "", "target": target})
    counts = read_counts(inputs["ingest"])
    check_synthesis(world.config, {site: each.splits["train"]["patients"] for site, each in counts.items()})
    question = Synthesize(
        synthesis=world.config.harmonize_settings.synthesis,
        cohort=read_cohorts(inputs, RAW)[target].cohort,
        **build_common_part(world),
    )
    with show_progress("synthesize") as step:
        step(0, 1, target)
        name = world.choose_conversation(
            world.name_question("synthesis", "synthesize", VERSION, to_facts(question)), target
        )
        world.ask_one(SYNTHESIZE, name, target, question)
    return _write_summary(out, {"run": name, "target": target})


def _write_summary(out: Path, summary: dict[str, Json]) -> Mapping[str, Json]:
    """Write the summary for later stages, and return it."""
    (out / SYNTHESIS).write_text(json.dumps(summary, indent=1, sort_keys=True))
    return summary


STAGE = Stage("synthesize", VERSION, ("ingest", "score"), settings, run)
