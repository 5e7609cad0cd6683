"""What a run asks first: each hospital's survey, with the last answer that came from it (`pipelines.runs.witness`)."""

from __future__ import annotations

from pipelines.coordinator.world import World
from pipelines.requests import survey


def build_surveys(world: World) -> dict[str, survey.Survey]:
    """The question for every hospital of this world."""
    return survey.build_surveys(world.root, world.engine.sites)
