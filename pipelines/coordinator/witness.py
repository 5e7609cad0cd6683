"""The coordinator remembers each hospital's last answer, and so notices a ledger that was put back from an older copy.

`witness.json` in the run's folder: site -> sha256 of the answer's bytes, as its line in the hospital's ledger has it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from pipelines.coordinator.world import World
from pipelines.runs.store import DiskFolder
from privacy.message import Json, Message, to_bytes

FILE = "witness.json"


def asked_to_survey(world: World) -> dict[str, Message]:
    """The first question of a run, for every hospital: with the last answer that came from it."""
    known = _known(world)
    facts: dict[str, dict[str, Json]] = {
        site: {"witness": known[site]} if site in known else {} for site in world.engine.sites
    }
    return {site: Message({}, facts[site]) for site in facts}


def remember(world: World, last: Mapping[str, Message]) -> None:
    """Keep the last answers, by site. Raises: OSError: the disk."""
    known = _known(world)
    now = known | {site: hashlib.sha256(to_bytes(reply)).hexdigest() for site, reply in last.items()}
    if now != known:
        DiskFolder(world.root).write(FILE, json.dumps(now, indent=0, sort_keys=True).encode())


def _known(world: World) -> dict[str, str]:
    """What is remembered; nothing where the file is missing or cut off, since then there is no witness."""
    folder = DiskFolder(world.root)
    try:
        said = json.loads(folder.read(FILE)) if folder.has(FILE) else {}
    except ValueError:
        return {}
    return {str(site): str(code) for site, code in said.items()} if isinstance(said, dict) else {}
