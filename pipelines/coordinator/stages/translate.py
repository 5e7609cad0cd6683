"""Every hospital translates its images into the spaces of the YAML and returns the names of the new cohorts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pipelines.coordinator.artifacts import SHARED, target_of
from pipelines.coordinator.spaces import cohorts_in, common_facts, complaint_about
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import counting, shown
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, AnySpace
from privacy.message import Json, Message, from_bytes, to_bytes

VERSION = 3


def settings(world: World) -> Json:
    """Settings besides the shared images that change the result."""
    plan = world.config.harmonized
    spaces: dict[str, Json] = {label: to_plain(translator) for label, translator in plan.translate.items()}
    own: dict[str, Json] = {name: to_plain(site.veto) for name, site in world.config.sites.items()}
    return {"translate": spaces, "veto": to_plain(plan.veto), "own": own, **common_facts(world)}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request every site to translate into every space; write one JSON file per space."""
    cohorts, target = cohorts_in(inputs, RAW), target_of(inputs["score"])
    shared = from_bytes((inputs["sample"] / SHARED).read_bytes()).tensors
    spaces = world.config.harmonized.translate
    vetoed: dict[str, Json] = {}
    with shown("translate") as step:
        for position, (space, translator) in enumerate(spaces.items()):
            begun, total = position * len(cohorts), len(spaces) * len(cohorts)
            step(begun, total, space)
            asked = {
                site: _question(
                    world, question(world, space, translator, site, target), cohorts[site]["cohort"], shared
                )
                for site in world.engine.sites
            }
            runs, told = {site: run for site, (run, _) in asked.items()}, counting(step, total, begun, f"{space}, ")
            messages = {site: message for site, (_, message) in asked.items()}
            replies = world.ask_each(runs, "translate", messages, told=told)
            answers: dict[str, Json] = {site: dict(replies[site].facts) for site in sorted(replies)}
            (out / f"{space}.json").write_text(json.dumps(answers, indent=1, sort_keys=True))
            vetoed[space] = {site: said["vetoed"] for site, said in answers.items() if isinstance(said, dict)}
    return {"vetoed": vetoed}


def question(world: World, space: str, translator: AnySpace, site: str, target: str) -> dict[str, Json]:
    """The facts of the request to a site for one space."""
    source = world.config.sites[target].source
    return {
        "space": space,
        "translator": to_plain(translator),
        "veto": to_plain(world.config.sites[site].veto or world.config.harmonized.veto),
        "is_target": site == target,
        "scanner": getattr(source, "scanner", None),
        **common_facts(world),
    }


def _question(
    world: World, asked: Mapping[str, Json], cohort: object, shared: Mapping[str, Tensor]
) -> tuple[str, Message]:
    """The run to which a site's translation belongs, and the request; its reply says the cohort in this space, and the
    reasons for a veto.
    """
    message = Message(shared, {**asked, "cohort": str(cohort)})
    asked_for = hashlib.sha256(to_bytes(message)).hexdigest()
    return world.run(world.named("translate", "translate", VERSION, {"asked": asked_for})), message


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its translated cohorts."""
    files = (artifact / f"{space}.json" for space in world.config.harmonized.translate)
    return next((said for file in files if (said := complaint_about(world, file))), None)


STAGE = Stage("translate", VERSION, ("ingest", "score", "sample"), settings, run, intact=intact)
