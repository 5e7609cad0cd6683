"""The versions of the stages with which a run began, so that a newer program does not pay twice unless a person asks.

`versions.json` in the run's folder: stage -> version. A private run names its artifacts, conversations and questions by
these versions instead of the program's, and so finds the results that it paid for, even if a newer program would
compute others. A person changes a stage to the program's version with --spend.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from pipelines.runs.plan import read_newest_manifest
from pipelines.runs.store import ArtifactError, DiskFolder
from privacy.formats import LaterVersion, check_format
from privacy.message import Json

FILE, FORMAT = "versions.json", 1
UNRECORDED_VERSIONS: Mapping[str, int] = {
    "ingest": 12,
    "score": 4,
    "synthesize": 2,
    "sample": 2,
    "translate": 3,
    "augment": 4,
    "features": 11,
    "pretrain": 4,
    "train": 14,
    "learning": 4,
    "evaluate": 11,
    "audit": 4,
    "route": 9,
    "benchmark": 1,
}
"""The last versions of programs that wrote no `versions.json`, for stages that they began and did not finish."""


def read_kept_versions(root: Path, today: Mapping[str, int], *, spend: Collection[str] = ()) -> dict[str, int]:
    """The version with which each stage is known in a run's folder. Writes nothing.

    today: the program's own versions, for stages that never began in this folder. spend: the stages for which a person
    wants to pay again.

    Raises:
        ArtifactError: `versions.json` is damaged. LaterVersion: a newer program wrote it.
    """
    known, folder = _read_file(root), DiskFolder(root)
    if not known and (folder.has("witness.json") or (root / "federation").is_dir()):
        manifests = {name: read_newest_manifest(root / name) for name in today}
        versions = {name: int(manifest["version"]) for name, manifest in manifests.items() if manifest is not None}
        known = {
            name: min(versions.get(name, UNRECORDED_VERSIONS.get(name, version)), version)
            for name, version in today.items()
        }
    return {name: version if name in spend else known.get(name, version) for name, version in today.items()}


def save_versions(root: Path, versions: Mapping[str, int]) -> None:
    """Save the versions before anything is paid for. Raises: OSError: the disk."""
    known = _read_file(root)
    if known != (now := {**known, **versions}):
        content: dict[str, Json] = {"format": FORMAT, "stages": dict(now)}
        DiskFolder(root).write(FILE, json.dumps(content, indent=1, sort_keys=True).encode())


def _read_file(root: Path) -> dict[str, int]:
    """The versions in the file of a run's folder; empty if there is no file."""
    folder = DiskFolder(root)
    if not folder.has(FILE):
        return {}
    try:
        return _parse_versions(json.loads(folder.read(FILE)), str(root / FILE))
    except LaterVersion:
        raise
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{root / FILE} is damaged ({error}), and without it what was paid for could be paid again; restore it "
            "from a backup, or delete it, and the versions are taken from the finished stages"
        ) from error


def _parse_versions(content: Json, what: str) -> dict[str, int]:
    """Stage -> version, from the file's content. Raises: ValueError: it is invalid. LaterVersion: of a newer
    program.
    """
    if not isinstance(content, dict):
        raise ValueError(f"it must hold a mapping, found {json.dumps(content)[:40]}")
    check_format(content.get("format"), FORMAT, what)
    stages = content.get("stages")
    if not isinstance(stages, dict) or not all(type(number) is int and number > 0 for number in stages.values()):
        raise ValueError(f"stages must map each stage to its version, 1, 2, ..., found {json.dumps(stages)[:40]}")
    return {str(name): int(str(version)) for name, version in stages.items()}
