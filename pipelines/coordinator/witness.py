"""What a run asks first: each hospital's survey, with the last answer that came from it (`pipelines.runs.witness`)."""

from __future__ import annotations

from pipelines.coordinator.world import World
from pipelines.requests.survey import Survey
from pipelines.runs import witness
from privacy.release.form import read_form


def build_surveys(world: World) -> dict[str, Survey]:
    """The question for every hospital of this world."""
    messages = witness.build_survey_questions(world.root, world.engine.sites)
    return {site: read_form(Survey, message) for site, message in messages.items()}
