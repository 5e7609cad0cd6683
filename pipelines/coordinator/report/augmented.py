"""Generative augmentation on the coordinator's page, from sites' replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from evaluation.augmented import AugmentedRow
from evaluation.harmony import as_number
from pipelines.coordinator.world import World


def augmented(world: World, inputs: Mapping[str, Path]) -> tuple[AugmentedRow, ...]:
    """A row a hospital; none if nothing was augmented."""
    plan, names = world.config.augment, world.config.task.names
    if plan is None:
        return ()
    said = json.loads((inputs["augment"] / f"{plan.space}.json").read_text())
    return tuple(
        AugmentedRow(
            site=site,
            space=plan.space,
            state=str(one["state"]),
            label="" if one["label"] is None else str(names[one["label"]]),
            made=int(one["made"]),
            distance=as_number(one.get("distance")),
            real=as_number(one.get("distance_real")),
            compared=int(one.get("compared") or 0),
            features=str(one.get("features") or ""),
            near_copies=as_number(one.get("near_copies")),
        )
        for site, one in sorted(said.items())
    )
