"""Ask each hospital whether figures of it that have left may be copied to tracking tools. What is copied is decided by
the answers, after the report: `pipelines.coordinator.tracking`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.coordinator.artifacts import AGREED
from pipelines.coordinator.world import SitesMissing, World
from pipelines.requests.asking import is_refusal
from pipelines.requests.track import TRACK, Track
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.runs.store import content_digest, digest_json, read_manifest, short_digest
from pipelines.settings import track as settings_of_tracking
from privacy.message import Json

VERSION = 1


def tracking_settings(world: World) -> settings_of_tracking.Track:
    """The settings of tracking. Raises: ValueError: there are none."""
    if world.config.track is None:
        raise ValueError("track: missing; say track: {tensorboard: {}}")
    return world.config.track


def settings(world: World) -> Json:
    """Where figures go."""
    track = tracking_settings(world)
    return {"places": list(track.places), "server": track.server, "pages": track.pages}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Ask every hospital, those outside the federation too; write who agreed, and with which code others did not."""
    track = tracking_settings(world)
    digest_of_inputs = digest_json(
        {name: content_digest(read_manifest(folder)) for name, folder in sorted(inputs.items())}
    )
    question = Track(places=[*track.places], server=track.server, rests_on=digest_of_inputs)
    name = world.run(f"track-{short_digest(digest_json({**to_facts(question), 'version': VERSION}))}")
    codes = dict[str, Json]()
    with show_progress("track") as step:
        for position, part in enumerate((world, world.outside_world())):
            step(position, 2, ", ".join(track.places))
            codes |= _ask_consent(part, name, question)
    (out / AGREED).write_text(json.dumps(codes, indent=1))
    return {"agreed": sum(code is None for code in codes.values()), "asked": len(codes)}


def _ask_consent(world: World, name: str, question: Track) -> dict[str, Json]:
    """Site -> null if it agreed, else its code. Raises: SitesMissing: a hospital did not answer."""
    questions = world.same_for_all(question)
    answers = world.ask(TRACK, dict.fromkeys(questions, name), questions)
    lost = {site: code for site, code in answers.missing.items() if not is_refusal(code)}
    if lost:
        raise SitesMissing(TRACK.name, lost, where=world.log_paths(*lost))
    return {site: answers.missing.get(site) for site in world.engine.sites}


STAGE = Stage("track", VERSION, ("train", "figures", "evaluate", "audit", "route"), settings, run)
