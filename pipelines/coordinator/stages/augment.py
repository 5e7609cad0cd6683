"""Every hospital balances its classes by synthetic images in its training split, and returns the name of the new cohort
(`augment:`). The images stay there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from federation.features.encoder import file_digest as digest_of
from federation.features.inception import read_weights_file
from pipelines.coordinator.artifacts import write_replies
from pipelines.coordinator.spaces import find_cohort_complaint, read_cohorts
from pipelines.coordinator.world import World
from pipelines.models.fixed_features import WEIGHTS
from pipelines.requests.augment import AUGMENT, Augment
from pipelines.requests.writing import to_facts
from pipelines.runs.progress import make_counter, show_progress
from pipelines.runs.runner import Stage
from pipelines.settings.harmonization import RAW, default_scale
from privacy.message import Json
from privacy.release.form import ABSENT

VERSION = 4  # 1 could not tell the FID


def settings(world: World) -> Json:
    """Settings that change the images."""
    facts = to_facts(_build_question(world, "", _read_weights(world)))
    return {name: value for name, value in facts.items() if name != "cohort"}


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Request every site to augment its training split; write the replies under the name of the space."""
    cohorts, weights = read_cohorts(inputs, RAW), _read_weights(world)
    questions = {site: _build_question(world, cohorts[site].cohort, weights) for site in world.engine.sites}
    runs = {
        site: world.run(world.name_question("augment", "augment", VERSION, to_facts(question)))
        for site, question in questions.items()
    }
    with show_progress("augment") as step:
        step(0, len(questions))
        replies = world.ask_each(AUGMENT, runs, questions, report_site=make_counter(step, len(questions)))
    write_replies(out / f"{world.config.augment_settings.space}.json", replies)
    facts = {site: to_facts(replies[site]) for site in questions}
    summary_keys = ("state", "label", "made", "distance", "distance_real", "compared", "features", "near_copies")
    sites: dict[str, Json] = {site: {name: each.get(name) for name in summary_keys} for site, each in facts.items()}
    return {"space": world.config.augment_settings.space, "sites": sites}


def _build_question(world: World, cohort: str, weights: bytes) -> Augment:
    """What a site is asked. weights: the bytes of Inception's weights; empty: distances are told in other features."""
    config, plan = world.config, world.config.augment_settings
    return Augment(
        cohort=cohort,
        augment=replace(plan, fid=None),
        fid=digest_of(weights) if weights else None,
        scale=plan.scale or default_scale(config.images),
        copies=plan.copies,
        prior=plan.public_prior(config.images),
        seed=config.seed,
        private=config.privacy != "none",
        tensors={WEIGHTS: torch.frombuffer(bytearray(weights), dtype=torch.uint8)} if weights else ABSENT,
    )


def _read_weights(world: World) -> bytes:
    """The bytes of Inception's weights, where there are any and distances will be told."""
    plan = world.config.augment_settings
    return b"" if plan.fid is None or world.config.privacy != "none" else read_weights_file(plan.fid)


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its augmented cohort."""
    return find_cohort_complaint(world, artifact / f"{world.config.augment_settings.space}.json")


STAGE = Stage("augment", VERSION, ("ingest",), settings, run, intact=intact)
