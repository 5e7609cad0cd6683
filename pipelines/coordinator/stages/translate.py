"""Every hospital translates its images into the spaces of the YAML and returns the names of the new cohorts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from pipelines.coordinator.artifacts import SHARED, target_of
from pipelines.coordinator.spaces import cohorts_in, common_facts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.runs.store import digest, short
from pipelines.settings.harmonization import RAW, AnySpace
from privacy.message import Json, Message, from_bytes, to_bytes

VERSION = 1


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
            answers: dict[str, Json] = {}
            for number, site in enumerate(world.engine.sites):
                step(position * len(cohorts) + number, len(spaces) * len(cohorts), f"{space}, {site}")
                asked = question(world, space, translator, site, target)
                answers[site] = _translated(world, asked, site, str(cohorts[site]["cohort"]), shared)
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


def _translated(
    world: World, asked: Mapping[str, Json], site: str, cohort: str, shared: Mapping[str, Tensor]
) -> dict[str, Json]:
    """A site's reply: its cohort in this space, and its reasons for a veto."""
    facts: dict[str, Json] = {**asked, "cohort": cohort}
    message = Message(shared, facts)
    asked_for = hashlib.sha256(to_bytes(message)).hexdigest()
    name = world.run(f"translate-{short(digest({'asked': asked_for, 'version': VERSION}))}")
    return dict(world.ask_all(name, "translate", {site: message})[site].facts)


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its translated cohorts."""
    for space in world.config.harmonized.translate:
        for site, said in json.loads((artifact / f"{space}.json").read_text()).items():
            reply = world.ask_one(
                world.run("holds"), "holds", site, {"cohort": said["cohort"], "sha256": said["sha256"]}
            )
            if reply.facts.get("complaint"):
                return f"{site}: {reply.facts['complaint']}"
    return None


STAGE = Stage("translate", VERSION, ("ingest", "score", "sample"), settings, run, intact=intact)
