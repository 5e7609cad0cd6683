"""Each hospital's cohort in an image space: its own (raw), a translated one, or one with synthetic images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from federation.models import OnFeatures
from federation.origins import identity
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.listing import listed
from pipelines.settings.config import Config
from pipelines.settings.harmonization import RAW, default_scale
from pipelines.settings.image_spaces import features_name, space_of
from privacy.message import Json, as_mapping

Cohorts: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Site -> its reply about the cohort: `cohort`, `sha256`, counts."""


def common_facts(world: World) -> dict[str, Json]:
    """Facts of every harmonization request: value scale, deformed copies, seed, privacy."""
    config = world.config
    return {
        "scale": to_plain(config.harmonized.scale or default_scale(config.images)),
        "copies": config.harmonized.copies,
        "seed": config.seed,
        "private": config.privacy != "none",
        **identity(config.harmonized),
    }


def cohorts_in(inputs: Mapping[str, Path], space: str) -> Cohorts:
    """Cohorts of all sites in a space, from the artifacts of `ingest`, `translate` and `augment`.

    A hospital that vetoed its translation keeps its raw cohort in this space.
    """
    raw: dict[str, dict[str, Any]] = json.loads((inputs["ingest"] / "sites.json").read_text())
    if space == RAW:
        return raw
    made = next(path for path in _spaces(inputs) if path.name == f"{space}.json")
    answers = json.loads(made.read_text())
    return {site: {**facts, **answers[site]} for site, facts in raw.items()}


def complaint_about(world: World, file: Path) -> str | None:
    """A complaint unless every site still holds the cohort that it told of in this file of an artifact."""
    told: Cohorts = json.loads(file.read_text())
    return world.complaint({site: {key: said[key] for key in ("cohort", "sha256")} for site, said in told.items()})


def _spaces(inputs: Mapping[str, Path]) -> Iterator[Path]:
    """The answers of all hospitals about each space besides the raw one."""
    for stage in ("translate", "augment"):
        if stage in inputs:
            yield from listed(inputs[stage], "*.json")


def cohorts_for(config: Config, inputs: Mapping[str, Path], label: str) -> Cohorts:
    """Cohorts of all sites in the space of a method, or of the features of their images on which its model is built."""
    space, model = space_of(config, label), config.model_of(label)
    homes = cohorts_in(inputs, space)
    if not isinstance(model, OnFeatures):
        return homes
    found = json.loads((inputs["features"] / f"{features_name(space, model)}.json").read_text())
    return {site: {**facts, **found[site]} for site, facts in homes.items()}


def window_of(world: World) -> Json:
    """Sides of a segmentation network's input window; None: whole images, or classification."""
    return as_mapping(to_plain(world.config.evaluate)).get("window")
