"""Fixed features of public pictures: their scale, and a head that learnt from the pictures' labels alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from federation.alone import Alone, solved
from federation.features import AnyExtractor, Extractor
from federation.features.detector import Detector, detecting, learnt
from federation.features.whitening import fitted
from federation.models.clip import Clip, ClipPictures
from federation.models.clip import opened as clip_opened
from federation.models.features import Features
from federation.parameters import read
from federation.task import Task
from harmonize.prior import PRIORS, drawn_with_marks
from pipelines.coordinator.public import SEED, PublicSet, public_set
from pipelines.data.clip_file import portable, weights_of
from pipelines.data.encoder_file import opened
from pipelines.models.fixed_features import UNSCALED, Fixed, extracted, featured
from pipelines.runs.progress import shown
from pipelines.settings.config import Config
from privacy.message import Params


def fixed_by(public: PublicSet, model: Features) -> Fixed:
    """The features of a model, scaled by public pictures.

    Raises:
        ValueError: there are fewer pictures than components.
    """
    extractor, weights = _prepared(model.of)
    found = np.concatenate([extracted(extractor, part) for part in public.parts])
    return Fixed(extractor, fitted(found, components=model.components, softness=model.softness), weights)


def brought(model: Clip) -> Fixed:
    """The vectors of pictures of a CLIP, which nothing scales, and its file. Raises: ValueError: it cannot be used."""
    told, weights = portable(model), weights_of(model)
    return Fixed(ClipPictures(told, clip_opened(told, weights)), UNSCALED, weights)


def public_head(config: Config, model: Features, public: PublicSet, classes: int) -> Params:
    """Weights of a linear head by ridge regression, as `local_ridge` learns one. Pictures are not disturbed.

    public: the labelled pictures; those of `model.public` scale the features, as at every hospital.
    """
    fixed = fixed_by(public_set(config, model.public, model.pictures), model)
    x = torch.cat([featured(model, fixed, part) for part in public.parts])
    module = Alone(name="local_ridge").network(Task(model, (model.width,), classes))
    solved(module, x, public.labels, torch.arange(len(x)), classes)
    return read(module)


def _prepared(of: AnyExtractor) -> tuple[Extractor, bytes]:
    """What computes features, with its weights: an encoder's file, or what a detector learns from its prior."""
    if not isinstance(of, Detector):
        return opened(of)
    weights = _learnt(of)
    return detecting(of, weights), weights


@lru_cache(maxsize=2)
def _learnt(detector: Detector) -> bytes:
    """Once for all methods that ask for it in this process, because it takes minutes."""
    prior, y = PRIORS[detector.on], torch.arange(detector.pictures) % 2
    with shown("detector") as step:
        x, marks = drawn_with_marks(prior, y, (prior.channels, detector.size, detector.size), SEED)
        return learnt(detector, x, marks, lambda done, total: step(done, total, f"learns from {prior.name}"))
