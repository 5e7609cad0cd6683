"""Every hospital balances its classes by synthetic images in its training split, and returns the name of the new cohort
(`augment:`). The images stay there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from federation.features.encoder import digest as digest_of
from federation.features.inception import opened
from pipelines.coordinator.spaces import cohorts_in, complaint_about
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.models.fixed_features import WEIGHTS
from pipelines.runs.progress import counting, shown
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, default_scale
from privacy.message import Json, Message

VERSION = 4  # 1 could not tell the FID


def settings(world: World) -> Json:
    """Settings that change the images."""
    return _common(world)


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request every site to augment its training split; write the replies under the name of the space."""
    cohorts, answers, data = cohorts_in(inputs, RAW), dict[str, Json](), _weights(world)
    tensors = {WEIGHTS: torch.frombuffer(bytearray(data), dtype=torch.uint8)} if data else {}
    facts = {site: {**_common(world), "cohort": str(cohorts[site]["cohort"])} for site in world.engine.sites}
    runs = {site: world.run(world.named("augment", "augment", VERSION, one)) for site, one in facts.items()}
    with shown("augment") as step:
        step(0, len(facts))
        asked = {site: Message(tensors, one) for site, one in facts.items()}
        replies = world.ask_each(runs, "augment", asked, told=counting(step, len(facts)))
    answers |= {site: dict(replies[site].facts) for site in facts}
    (out / f"{world.config.augmented.space}.json").write_text(json.dumps(answers, indent=1, sort_keys=True))
    kept = ("state", "label", "made", "distance", "distance_real", "compared", "features", "near_copies")
    told = {site: {name: said.get(name) for name in kept} for site, said in answers.items() if isinstance(said, dict)}
    return {"space": world.config.augmented.space, "sites": dict(told)}


def _common(world: World) -> dict[str, Json]:
    """Facts of the request to every site."""
    config, plan = world.config, world.config.augmented
    return {
        "augment": to_plain(replace(plan, fid=None)),
        "fid": digest_of(data) if (data := _weights(world)) else None,
        "scale": to_plain(plan.scale or default_scale(config.images)),
        "copies": plan.copies,
        "prior": plan.public_prior(config.images),
        "seed": config.seed,
        "private": config.privacy != "none",
    }


def _weights(world: World) -> bytes:
    """The bytes of Inception's weights, where there are any and distances will be told."""
    plan = world.config.augmented
    return b"" if plan.fid is None or world.config.privacy != "none" else opened(plan.fid)


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its augmented cohort."""
    return complaint_about(world, artifact / f"{world.config.augmented.space}.json")


STAGE = Stage("augment", VERSION, ("ingest",), settings, run, intact=intact)
