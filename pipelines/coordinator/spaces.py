"""Where each hospital's images lie in a space: its own cohort, or a translated one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW, default_scale
from privacy.message import Json, as_mapping

Cohorts: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Site -> what it said when its cohort was made: `cohort`, `sha256`, counts."""


def asked_of(world: World) -> dict[str, Json]:
    """What every question about harmonization says: how values become those of networks, copies, seed, privacy."""
    config = world.config
    return {
        "scale": to_plain(config.harmonized.scale or default_scale(config.images)),
        "copies": config.harmonized.copies,
        "seed": config.seed,
        "private": config.privacy != "none",
    }


def space_of(config: Config, label: str) -> str:
    """The space in which a method learns."""
    return config.train.method_images.get(label, RAW)


def homes(inputs: Mapping[str, Path], space: str) -> Cohorts:
    """Cohorts of all sites in a space, from the artifacts of `ingest` and `translate`.

    A hospital that vetoed its translation keeps its raw cohort in this space.
    """
    raw: dict[str, dict[str, Any]] = json.loads((inputs["ingest"] / "sites.json").read_text())
    if space == RAW:
        return raw
    translated = json.loads((inputs["translate"] / f"{space}.json").read_text())
    return {site: {**facts, **translated[site]} for site, facts in raw.items()}


def homes_of(config: Config, inputs: Mapping[str, Path], label: str) -> Cohorts:
    """Cohorts of all sites in the space of a method."""
    return homes(inputs, space_of(config, label))


def window_of(world: World) -> Json:
    """Sides of what a network that segments sees at once; None: whole images, and labels."""
    return as_mapping(to_plain(world.config.evaluate)).get("window")
