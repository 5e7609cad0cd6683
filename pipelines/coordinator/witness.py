"""What a run asks first: each hospital's survey, with the last answer that came from it (`pipelines.runs.witness`)."""

from __future__ import annotations

from pipelines.coordinator.world import World
from pipelines.runs import witness
from privacy.message import Message


def asked_to_survey(world: World) -> dict[str, Message]:
    """The question for every hospital of this world."""
    return witness.asked_to_survey(world.root, world.engine.sites)
