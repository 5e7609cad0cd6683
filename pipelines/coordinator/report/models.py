"""Which model each hospital can use, as the coordinator knows it: validation losses that left, and names of files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.choice import Model
from pipelines.coordinator.world import World
from pipelines.models.file import READY
from privacy.message import Json, as_list


def models(
    world: World, trained: Sequence[Mapping[str, Any]], said: Mapping[str, Mapping[str, Json]]
) -> tuple[Model, ...]:
    """Of every hospital every method and variant. said: what each hospital answered to `report`."""
    found = []
    for site in sorted(said):
        ready = set(map(str, as_list(said[site].get("ready", []))))
        folder = str(world.root / "sites" / site / READY) if world.simulation else READY
        losses = {str(result["label"]): loss_at(result, site, world.config.evaluate.checkpoint) for result in trained}
        for label in (*losses, *world.config.evaluate.variants):
            file = f"{folder}/{label}.safetensors" if label in ready else ""
            found.append(Model(site, label, losses.get(label, math.nan), file))
    return tuple(found)


def loss_at(result: Mapping[str, Any], site: str, checkpoint: str) -> float:
    """The validation loss at a hospital of the model that it uses; NaN where it told none."""
    series = {int(number): float(v) for number, v in result["losses"].get(site, {}).items() if v is not None}
    finite = {number: loss for number, loss in series.items() if math.isfinite(loss)}
    if not finite:
        return math.nan
    if checkpoint == "local":
        return min(finite.values())
    number = result["best"] if checkpoint == "global" else result["rounds"]
    return finite.get(number, math.nan)


def spaces(world: World, trained: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The space of images in which a method, and so each of its variants, learns."""
    found = {str(result["label"]): str(result["space"]) for result in trained}
    return found | {label: found[one.of] for label, one in world.config.evaluate.variants.items()}
