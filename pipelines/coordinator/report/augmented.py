"""Generative augmentation on the coordinator's page, from sites' replies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from evaluation.augmented import AugmentedRow
from evaluation.harmony import as_number
from pipelines.coordinator.artifacts import read_replies
from pipelines.coordinator.world import World
from pipelines.requests.augment import AUGMENT, Judged


def list_augmentation_rows(world: World, inputs: Mapping[str, Path]) -> tuple[AugmentedRow, ...]:
    """A row a hospital; none if nothing was augmented."""
    plan, names = world.config.augment, world.config.task.names
    if plan is None:
        return ()
    replies = read_replies(AUGMENT, inputs["augment"] / f"{plan.space}.json")
    return tuple(
        AugmentedRow(
            site=site,
            space=plan.space,
            state=reply.state,
            label="" if reply.label is None else str(names[reply.label]),
            made=reply.made,
            distance=as_number(reply.distance if isinstance(reply, Judged) else None),
            real=as_number(reply.distance_real if isinstance(reply, Judged) else None),
            compared=(reply.compared or 0) if isinstance(reply, Judged) else 0,
            features=reply.features if isinstance(reply, Judged) else "",
            near_copies=as_number(reply.near_copies if isinstance(reply, Judged) else None),
        )
        for site, reply in sorted(replies.items())
    )
