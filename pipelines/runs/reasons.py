"""Why a stage runs, in a sentence: its identity beside that of its newest earlier artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.runs.store import ArtifactError, read_manifest
from privacy.settings_error import notation, shown

if TYPE_CHECKING:
    from privacy.message import Json

SHOWN = 3
ABSENT = object()


def earlier(folder: Path) -> Mapping[str, Any] | None:
    """The newest readable manifest of a stage's folder, or None."""
    manifests = []
    for path in folder.glob("[!.]*"):
        try:
            manifests.append(read_manifest(path))
        except ArtifactError:
            continue
    return max(manifests, key=lambda manifest: float(manifest["finished"]), default=None)


def changed(identity: Mapping[str, Json], before: Mapping[str, Any] | None) -> str:
    """What differs: `settings changed: rounds 10 -> 12; input changed: ingest`; or `never ran`."""
    if before is None:
        return "never ran"
    reasons = []
    if identity["version"] != before["version"]:
        reasons.append(f"stage version {before['version']} -> {identity['version']}")
    settings = differences(before["settings"], identity["settings"])
    if settings:
        more = f", and {len(settings) - SHOWN} more" if len(settings) > SHOWN else ""
        reasons.append(f"settings changed: {', '.join(settings[:SHOWN])}{more}")
    for key, words in (("inputs", "input changed"), ("outside", "outside input changed")):
        names = _other(before[key], identity[key])
        if names:
            reasons.append(f"{words}: {', '.join(names)}")
    return "; ".join(reasons) or "missing: its folder is gone"


def _other(old: Any, new: Any) -> list[str]:
    return sorted(name for name in {*old, *new} if old.get(name) != new.get(name))


def differences(before: Json, now: Json) -> list[str]:
    """Every setting that differs, as `train.rounds 10 -> 12`, `mu 0.1 removed` or `mu 0.1 added`."""
    old, new = dict(_leaves(before, ())), dict(_leaves(now, ()))
    told = []
    for path in dict.fromkeys([*old, *new]):
        was, is_now = old.get(path, ABSENT), new.get(path, ABSENT)
        if was is ABSENT:
            told.append(f"{notation(path)} {shown(is_now)} added".strip())
        elif is_now is ABSENT:
            told.append(f"{notation(path)} {shown(was)} removed".strip())
        elif type(was) is not type(is_now) or was != is_now:
            told.append(f"{notation(path)} {shown(was)} -> {shown(is_now)}".strip())
    return told


def _leaves(value: Json, path: tuple[str | int, ...]) -> list[tuple[tuple[str | int, ...], Json]]:
    """Scalars, and empty groups and lists, with their paths."""
    if isinstance(value, dict) and value:
        return [leaf for key in sorted(value) for leaf in _leaves(value[key], (*path, key))]
    if isinstance(value, list) and value:
        return [leaf for index, inner in enumerate(value) for leaf in _leaves(inner, (*path, index))]
    return [(path, value)]
