"""The coordinator remembers each hospital's last answer, and so notices a ledger that was restored from an older copy.

`witness.json` in the run's folder: site -> sha256 of the answer's bytes, which the hospital's ledger contains, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.runs.store import DiskFolder
from privacy.formats import check_format
from privacy.message import Message, to_bytes

FILE, FORMAT = "witness.json", 1


def remember_answers(root: Path, last: Mapping[str, Message]) -> None:
    """Save the digests of the last answers, by site, in the run's folder. Raises: OSError: the disk."""
    known_digests = read_last_answers(root)
    new_digests = known_digests | {site: hashlib.sha256(to_bytes(reply)).hexdigest() for site, reply in last.items()}
    if new_digests != known_digests:
        DiskFolder(root).write(FILE, json.dumps({**new_digests, "format": FORMAT}, indent=0, sort_keys=True).encode())


def describe_new_beginning(root: Path) -> str:
    """Advice for a simulation whose ledger is gone; a real hospital cannot follow it. root: the run's folder."""
    return (
        f"in a simulation whose folders were deleted on purpose, delete {FILE} and all of sites/ (both in {root}): all "
        "hospitals begin anew, and what was spent before is forgotten"
    )


def read_last_answers(root: Path) -> dict[str, str]:
    """The remembered digests by site; empty if the file is missing or cut off, since then there is no witness. root:
    the run's folder.
    """
    folder = DiskFolder(root)
    try:
        content = json.loads(folder.read(FILE)) if folder.has(FILE) else {}
    except ValueError:
        return {}
    if not isinstance(content, dict):
        return {}
    check_format(content.pop("format", None), FORMAT, str(root / FILE))
    return {str(site): str(code) for site, code in content.items()}
