"""How hard each hospital's images are to imitate, and whose space becomes everybody's (VAFL, section II.A)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from harmonize.complexity import chosen, most
from pipelines.door import to_plain
from pipelines.harmonize_settings import RAW
from pipelines.progress import shown
from pipelines.runner import Stage
from pipelines.stages.spaces import asked_of, homes
from pipelines.stages.world import World
from pipelines.store import digest, short
from privacy.message import Json, Message

VERSION = 1
SCORES = "scores.json"


def settings(world: World) -> Json:
    """What the choice depends on."""
    plan = world.config.harmonized
    return {"score": to_plain(plan.score), "prior": plan.public_prior(world.config.images), **asked_of(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Ask every site for one number, or none where the YAML names the target; the lowest is the target."""
    config, plan = world.config, world.config.harmonized
    cohorts, score = homes(inputs, RAW), plan.score
    scores: dict[str, dict[str, Json]] = {}
    smallest = min(int(facts["splits"]["train"]["images"]) for facts in cohorts.values())
    with shown("score") as step:
        for position, site in enumerate(world.engine.sites if score.release != "public" else ()):
            step(position, len(cohorts), site)
            facts: dict[str, Json] = {
                "score": to_plain(score),
                "images": smallest,
                "cohort": str(cohorts[site]["cohort"]),
                "prior": plan.public_prior(config.images),
                **asked_of(world),
            }
            name = world.run(f"score-{short(digest({**facts, 'version': VERSION}))}")
            scores[site] = dict(world.ask_all(name, "score", {site: Message({}, facts)})[site].facts)
    declared = {site: int(facts["splits"]["train"]["patients"]) for site, facts in cohorts.items()}
    numbers = {site: float(str(said["score"])) for site, said in scores.items()}
    target = score.target or (chosen(numbers) if numbers else most(declared))
    found: dict[str, Json] = {"release": score.release, "target": target, "scores": dict(scores)}
    (out / SCORES).write_text(json.dumps(found, indent=1, sort_keys=True))
    return found


def target_of(artifact: Path) -> str:
    """The hospital whose images are imitated."""
    return str(json.loads((artifact / SCORES).read_text())["target"])


STAGE = Stage("score", VERSION, ("ingest",), settings, run)
