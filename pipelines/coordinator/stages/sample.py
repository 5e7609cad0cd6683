"""The target hospital releases the synthetic images that the sampling rule accepts (VAFL, algorithm 1); with synthesis
`public` a prior draws them here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from harmonize.prior import PRIORS, draw_pictures
from pipelines.coordinator.artifacts import SHARED, SYNTHESIS
from pipelines.coordinator.spaces import build_common_part, common_settings, read_cohorts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.requests.sample import SAMPLE, Sample
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, Public
from pipelines.settings.image_spaces import list_routed_spaces
from privacy.message import Json, Message, to_bytes
from privacy.release.form import ABSENT
from privacy.release.policy import OUTSIDE

VERSION = 2  # 1 asked the target always

SEED = 0  # of a prior: the same in all runs


def settings(world: World) -> Json:
    """Settings that change the selection."""
    plan = world.config.harmonize_settings
    common: dict[str, Json] = {
        "sampling": to_plain(plan.sampling),
        "shared": plan.shared,
        **common_settings(world),
        **({"recipient": OUTSIDE} if list_routed_spaces(world.config) else {}),
    }
    return {**common, "inputs": list(world.config.images.inputs)} if isinstance(plan.synthesis, Public) else common


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request the shared images from the target: tensors `images` (n, C, H, W) in [-1, 1] and `labels`."""
    synthesis = json.loads((inputs["synthesize"] / SYNTHESIS).read_text())
    target, plan = str(synthesis["target"]), world.config.harmonize_settings
    if isinstance(plan.synthesis, Public):
        y = torch.arange(2).repeat_interleave(plan.shared)
        prior = PRIORS[plan.public_prior(world.config.images)]
        images = draw_pictures(prior, y, world.config.images.inputs, SEED)
        (out / SHARED).write_bytes(to_bytes(Message({"images": images, "labels": y})))
        return {"target": target, "images": len(y), "prior": prior.name}
    question = Sample(
        synthesis_run=synthesis["run"],
        sampling=plan.sampling,
        shared=plan.shared,
        recipient=OUTSIDE if list_routed_spaces(world.config) else ABSENT,
        cohort=read_cohorts(inputs, RAW)[target].cohort,
        **build_common_part(world),
    )
    with show_progress("sample") as step:
        step(0, 1, target)
        name = world.run(world.name_question("sample", "sample", VERSION, to_facts(question)))
        reply = world.ask_one(SAMPLE, name, target, question)
    (out / SHARED).write_bytes(to_bytes(Message({"images": reply.images, "labels": reply.labels})))
    return {"target": target, "images": len(reply.labels), **to_facts(reply)}


STAGE = Stage("sample", VERSION, ("ingest", "synthesize"), settings, run)
