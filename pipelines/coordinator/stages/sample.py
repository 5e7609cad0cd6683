"""The target hospital releases the synthetic images that the sampling rule accepts (VAFL, algorithm 1); with synthesis
`public` a prior draws them here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from harmonize.prior import PRIORS, drawn
from pipelines.coordinator.artifacts import SHARED, SYNTHESIS
from pipelines.coordinator.spaces import cohorts_in, common_facts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.runs.progress import shown
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, Public
from privacy.message import Json, Message, to_bytes

VERSION = 2  # 1 asked the target always

SEED = 0  # of a prior: the same in all runs


def settings(world: World) -> Json:
    """Settings that change the selection."""
    plan = world.config.harmonized
    said: dict[str, Json] = {"sampling": to_plain(plan.sampling), "shared": plan.shared, **common_facts(world)}
    return {**said, "inputs": list(world.config.images.inputs)} if isinstance(plan.synthesis, Public) else said


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request the shared images from the target: tensors `images` (n, C, H, W) in [-1, 1] and `labels`."""
    made = json.loads((inputs["synthesize"] / SYNTHESIS).read_text())
    target, plan = str(made["target"]), world.config.harmonized
    if isinstance(plan.synthesis, Public):
        y = torch.arange(2).repeat_interleave(plan.shared)
        prior = PRIORS[plan.public_prior(world.config.images)]
        images = drawn(prior, y, world.config.images.inputs, SEED)
        (out / SHARED).write_bytes(to_bytes(Message({"images": images, "labels": y})))
        return {"target": target, "images": len(y), "prior": prior.name}
    facts: dict[str, Json] = {
        "synthesis_run": made["run"],
        "sampling": to_plain(plan.sampling),
        "shared": plan.shared,
        "cohort": str(cohorts_in(inputs, RAW)[target]["cohort"]),
        **common_facts(world),
    }
    with shown("sample") as step:
        step(0, 1, target)
        name = world.run(world.named("sample", "sample", VERSION, facts))
        reply = world.ask_all(name, "sample", {target: Message({}, facts)})[target]
    (out / SHARED).write_bytes(to_bytes(Message(reply.tensors)))
    return {"target": target, "images": len(reply.tensors["labels"]), **dict(reply.facts)}


STAGE = Stage("sample", VERSION, ("ingest", "synthesize"), settings, run)
