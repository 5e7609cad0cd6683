"""Checks of models on fixed features: whether they fit the run's images, and whether the public pictures do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from federation.features import AnyExtractor, select_weighted_part
from federation.features.detector import Detector, build_blank_detector
from federation.features.onnx_encoder import FileEncoder
from federation.models.clip import Clip
from federation.models.clip import read_tensors as read_clip_tensors
from federation.models.features import Features
from pipelines.data.clip_file import read_clip, read_weights
from pipelines.data.extractor_file import make_portable_encoder, open_extractor
from pipelines.settings.checks.public_pictures import find_unit_problems
from pipelines.settings.harmonization import default_scale
from pipelines.settings.run_settings import RunSettings, select_model
from privacy.settings_error import Problem

if TYPE_CHECKING:
    from harmonize.prior import Prior


def problems(run: RunSettings) -> Iterator[Problem]:
    """All conflicts between images, task and models on fixed features."""
    for label in run.train.methods:
        model = select_model(run, label)
        where = ("train", "method_model", label) if label in run.train.method_model else ("model",)
        if isinstance(model, Clip):
            yield from (Problem((*where, field), text) for field, text in _clip_problems(run, model, label))
        if not isinstance(model, Features):
            continue
        complaints = list(_extractor_problems(run, model))
        yield from (Problem((*where, "of"), text) for text in complaints)
        if not complaints:
            yield from (Problem((*where, field), text) for field, text in _size_problems(run, model))
        yield from (Problem((*where, "public"), text) for text in _public_problems(run, model))


def _clip_problems(run: RunSettings, model: Clip, label: str) -> Iterator[tuple[str, str]]:
    """The field of a Clip model and what is wrong with it."""
    if run.task.kind != "classification":
        yield "name", "clip knows classes of pictures, and neither masks nor numbers nor findings; take another model"
    elif complaints := model.complaints(run.images.inputs):
        yield from (("name", text) for text in complaints)
    elif set(model.classes) != set(run.task.names):
        yield "classes", f"must have words for those of the task, {[*run.task.names]}, found {[*model.classes]}"
    elif run.train.methods[label].name == "central":
        yield "name", "central pools vectors, and no hospital's file comes with them; take another model for it"
    else:
        try:
            read_clip_tensors(read_clip(model), read_weights(model))
        except ValueError as error:
            yield "weights", f"{error}"


def _extractor_problems(run: RunSettings, model: Features) -> Iterator[str]:
    """Why the extractor (`of`) cannot be used with the task and the images."""
    if run.task.kind == "segmentation":
        yield "features of an image have no pixels to segment; take another model"
    elif run.images.kind == "features":
        yield "a table's columns are features already; take mlp"
    elif complaints := model.of.complaints(run.images.inputs):
        yield from complaints
    elif isinstance(model.of, Detector):
        yield from _detector_problems(run, model.of)


def _size_problems(run: RunSettings, model: Features) -> Iterator[tuple[str, str]]:
    """Problems of the number of components; checked here because a run would notice them only after reading all
    images.
    """
    weighted = select_weighted_part(model.of)
    version = make_portable_encoder(weighted).sha256 if isinstance(weighted, FileEncoder) else ""
    try:
        count = _count_features(model.of, version, run.images.inputs)
    except ValueError as error:
        yield "of", f"{error}"
        return
    if model.components > count:
        yield (
            "components",
            f"must be at most the number of features of {model.of.name}, {count}, found {model.components}",
        )


@lru_cache(maxsize=16)
def _count_features(settings: AnyExtractor, version: str, inputs: tuple[int, ...]) -> int:
    """The number of features of an image. version: digest of an encoder's file. Raises: ValueError: it cannot be
    used.
    """
    extractor = (
        build_blank_detector(settings, _known_priors()[settings.on].channels)
        if isinstance(settings, Detector)
        else open_extractor(settings)[0]
    )
    return len(extractor.extract(np.zeros((1, *inputs)))[0])


def _detector_problems(run: RunSettings, detector: Detector) -> Iterator[str]:
    """Problems of a detector's prior: it is unknown, draws other pictures than the run's, or its values have another
    range.
    """
    if (prior := _known_priors().get(detector.on)) is None:
        yield f"a detector learns from a prior, found on: {detector.on!r}; there are {', '.join(_known_priors())}"
    else:
        yield from _prior_problems(run, prior)
        scale = default_scale(run.images)
        if detector.window != (scale.low, scale.high):
            expected = f"what the prior draws for these images, {scale.low} to {scale.high}"
            yield f"a detector's window must be {expected}; found window: {list(detector.window)}"


def _public_problems(run: RunSettings, model: Features) -> Iterator[str]:
    """Why the public pictures of a model's scale are unknown, or do not fit the images."""
    prior = _known_priors().get(model.public)
    if prior is None and model.public not in run.public_pictures:
        known = ", ".join((*_known_priors(), *run.public_pictures))
        yield f"unknown pictures {model.public!r}; there are {known}; public_pictures: declares others"
    elif prior is not None and run.images.kind != "features":
        yield from _prior_problems(run, prior)


def _known_priors() -> Mapping[str, Prior]:
    """The public priors by name."""
    from harmonize.prior import PRIORS  # not needed by other runs

    return PRIORS


def _prior_problems(run: RunSettings, prior: Prior) -> list[str]:
    """Why a prior's pictures differ from the run's images in form or in unit."""
    from harmonize.stacks import find_form_problems

    return find_form_problems(prior, run.images.inputs, run.images.kind) or find_unit_problems(prior.name, run.images)
