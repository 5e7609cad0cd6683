"""Files become cohorts, each at its own hospital; counts come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.door import to_plain
from pipelines.progress import shown
from pipelines.runner import Stage
from pipelines.stages.world import World
from pipelines.store import digest, short
from privacy.message import Json

VERSION = 1


class TooManyRejected(RuntimeError):
    """A site rejected more studies than its `max_rejected` allows."""

    def __init__(self, sites: Mapping[str, Mapping[str, Json]]) -> None:
        said = "; ".join(
            f"{site}: {facts['rejected']} rejected, {facts['studies']} used, max_rejected {facts['max_rejected']}"
            for site, facts in sorted(sites.items())
        )
        super().__init__(f"too many studies rejected ({said}); each site's rejected.json says why, study by study")


def settings(world: World) -> Json:
    """What the result depends on beside the hospitals' files and settings, which `outside` covers."""
    config = world.config
    return {"images": to_plain(config.images), "split": to_plain(config.split), "seed": config.seed}


def outside(world: World) -> Mapping[str, str]:
    """Each site's digest of its files and of its settings for them, without reading a pixel."""
    replies = world.ask_all(world.run("survey"), "survey", world.everyone({}))
    return {site: str(reply.facts["digest"]) for site, reply in replies.items()}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Ask every site to ingest; write what they answer (counts by split and by reason of rejection)."""
    asked = settings(world)
    name = world.run(f"ingest-{short(digest({'asked': asked, 'outside': dict(outside(world)), 'version': VERSION}))}")
    found: dict[str, Mapping[str, Json]] = {}
    with shown("ingest") as step:
        for position, site in enumerate(world.engine.sites):
            step(position, len(world.engine.sites), site)
            facts = asked if isinstance(asked, dict) else {}
            found[site] = world.ask_one(name, "ingest", site, facts).facts
    bad = {site: facts for site, facts in found.items() if facts["too_many_rejected"]}
    (out / "sites.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    if bad:
        raise TooManyRejected(bad)
    return {"sites": {site: dict(facts) for site, facts in found.items()}}


def intact(world: World, artifact: Path) -> str | None:
    """Whether every site still holds its cohort, unchanged."""
    found = json.loads((artifact / "sites.json").read_text())
    for site, facts in found.items():
        reply = world.ask_one(world.run("holds"), "holds", site, {"cohort": facts["cohort"], "sha256": facts["sha256"]})
        if reply.facts.get("complaint"):
            return f"{site}: {reply.facts['complaint']}"
    return None


STAGE = Stage("ingest", VERSION, (), settings, run, outside=outside, intact=intact)
