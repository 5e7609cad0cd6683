"""Every hospital computes the fixed features on which models are built, and keeps them as a cohort of their own.

The scale of the features comes from public pictures. The coordinator draws or reads them, fits the scale once, and
sends it to all hospitals. What leaves a hospital is the new cohort's name and keyed digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch

from federation.models import OnFeatures
from federation.models.features import Features
from federation.origins import code_identity
from pipelines.coordinator.artifacts import write_replies
from pipelines.coordinator.public import PublicSet, public_stamps, read_public_set
from pipelines.coordinator.public_features import fit_scale, read_clip_vectors
from pipelines.coordinator.spaces import find_cohort_complaint, read_cohorts
from pipelines.coordinator.world import World
from pipelines.loader.validation import to_plain
from pipelines.models.fixed_features import to_tensors
from pipelines.requests.extract import EXTRACT, Extract, Extracted, Public
from pipelines.requests.writing import to_message
from pipelines.runs.progress import make_counter, show_progress
from pipelines.runs.runner import Stage
from pipelines.runs.store import read_manifest
from pipelines.settings.image_spaces import drop_head, extractor_name, features_name, list_features, make_portable_model
from privacy.message import Json, Message, Params, as_mapping, from_bytes, to_bytes

VERSION = 11
# 1 rounded random convolutions of narrow filters by how many images there were; 3 to 8 tell what is public;
# 8 asked by the same name when an extractor's package had changed


def settings(world: World) -> Json:
    """Which features are computed of which images."""
    features = list_features(world.config)
    return {
        "features": {
            f"{space}: {features_name(space, model)}": to_plain(make_portable_model(model)) for space, model in features
        }
    }


def outside(world: World) -> Mapping[str, str]:
    """Names, sizes and times of the files of declared public pictures."""
    return public_stamps(
        world.config, (model.public for _, model in list_features(world.config) if isinstance(model, Features))
    )


def run(world: World, inputs: Mapping[str, Path], out: Path) -> Mapping[str, Json]:
    """Fit the scale of each kind of features, and ask every site to compute them; write one JSON file a kind."""
    features, public_facts = list_features(world.config), dict[str, Json]()
    with show_progress("features") as step:
        for position, (space, model) in enumerate(features):
            cohorts = read_cohorts(inputs, space)
            step(position * len(cohorts), len(features) * len(cohorts), f"{extractor_name(model)}, public pictures")
            public, tensors = _prepare_features(world, model)
            kind = features_name(space, model)
            (out / f"{kind}.safetensors").write_bytes(to_bytes(Message(tensors)))
            public_facts[kind] = {**public.told, "refused": list(public.refused)}
            names = {site: cohorts[site].cohort for site in world.engine.sites}
            name = f"{extractor_name(model)}, "
            report_site = make_counter(step, len(features) * len(cohorts), position * len(cohorts), name)
            replies = _ask_features(world, names, model, tensors, public.told, report_site)
            write_replies(out / f"{kind}.json", replies)
    return {"features": [features_name(space, model) for space, model in features], "public": public_facts}


def _prepare_features(world: World, model: OnFeatures) -> tuple[PublicSet, Params]:
    """The public pictures of a model's features, and what hospitals get; vectors of a CLIP need neither."""
    if not isinstance(model, Features):
        return PublicSet((), torch.zeros(0), {"pictures": 0}), to_tensors(read_clip_vectors(model))
    public = read_public_set(world.config, model.public, model.pictures)
    return public, to_tensors(fit_scale(world, public, model))


def ask_features_outside(world: World, artifact: Path, site: str, cohort: str, model: OnFeatures, space: str) -> str:
    """The cohort with the features of an external site's images in a space, scaled as in this artifact of the stage."""
    kind = features_name(space, model)
    tensors = from_bytes((artifact / f"{kind}.safetensors").read_bytes()).tensors
    public = {**as_mapping(as_mapping(read_manifest(artifact)["summary"]["public"])[kind])}
    public.pop("refused")
    return _ask_features(world.outside_world(), {site: cohort}, drop_head(model), tensors, public)[site].cohort


def _ask_features(
    world: World,
    cohorts: Mapping[str, str],
    model: OnFeatures,
    tensors: Params,
    public: Mapping[str, Json],
    report_site: Callable[[str], None] = lambda site: None,
) -> Mapping[str, Extracted]:
    """Each site's reply to `extract`; asked again for the same, it is the same. cohorts: of each site, by name.
    report_site: called with each site that answered.
    """
    runs, questions = dict[str, str](), dict[str, Extract]()
    for site, cohort in cohorts.items():
        pictures = cast("Public", dict(public))
        questions[site] = Extract(cohort=cohort, model=make_portable_model(model), public=pictures, tensors=tensors)
        code = hashlib.sha256(to_bytes(to_message(questions[site]))).hexdigest()
        about = {"asked": code, **code_identity(model)}  # a changed package is another question
        runs[site] = world.run(world.name_question("features", "features", VERSION, about))
    return world.ask_each(EXTRACT, runs, questions, report_site=report_site)


def intact(world: World, artifact: Path) -> str | None:
    """A complaint unless every site still holds its features."""
    files = (artifact / f"{features_name(space, model)}.json" for space, model in list_features(world.config))
    return next((complaint for file in files if (complaint := find_cohort_complaint(world, file))), None)


STAGE = Stage("features", VERSION, ("ingest", "translate", "augment"), settings, run, outside=outside, intact=intact)
