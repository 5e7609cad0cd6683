"""Fixed features of public pictures: their scale, and a head that learnt from the pictures' labels alone."""

from __future__ import annotations

from collections.abc import Callable

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
from pipelines.coordinator.public_kept import kept, waiting
from pipelines.coordinator.world import World
from pipelines.data.clip_file import portable, weights_of
from pipelines.data.encoder_file import opened
from pipelines.loader.validation import to_plain
from pipelines.models.fixed_features import UNSCALED, WEIGHTS, Fixed, extracted, featured, weights_in
from pipelines.runs.progress import shown
from privacy.message import Json, Params


def fixed_by(world: World, public: PublicSet, model: Features) -> Fixed:
    """The features of a model, scaled by public pictures.

    Raises:
        ValueError: there are fewer pictures than components.
    """
    extractor, weights = _prepared(world, model.of)
    found = np.concatenate([extracted(extractor, part) for part in public.parts])
    return Fixed(extractor, fitted(found, components=model.components, softness=model.softness), weights)


def brought(model: Clip) -> Fixed:
    """The vectors of pictures of a CLIP, which nothing scales, and its file. Raises: ValueError: it cannot be used."""
    told, weights = portable(model), weights_of(model)
    return Fixed(ClipPictures(told, clip_opened(told, weights)), UNSCALED, weights)


def public_head(world: World, model: Features, public: PublicSet, classes: int) -> Params:
    """Weights of a linear head by ridge regression, as `local_ridge` learns one. Pictures are not disturbed.

    public: the labelled pictures; those of `model.public` scale the features, as at every hospital.
    """
    fixed = fixed_by(world, public_set(world.config, model.public, model.pictures), model)
    x = torch.cat([featured(model, fixed, part) for part in public.parts])
    module = Alone(name="local_ridge").network(Task(model, (model.width,), classes))
    solved(module, x, public.labels, torch.arange(len(x)), classes)
    return read(module)


def _prepared(world: World, of: AnyExtractor) -> tuple[Extractor, bytes]:
    """What computes features, with its weights: an encoder's file, or what a detector learns from its prior."""
    if not isinstance(of, Detector):
        return opened(of)
    weights = taught(world, of)
    return detecting(of, weights), weights


def taught(world: World, detector: Detector, waits: Callable[[], None] | None = None) -> bytes:
    """The weights of a detector, learnt once for all runs of a folder, because it takes minutes. waits: see `kept`."""
    prior, y = PRIORS[detector.on], torch.arange(detector.pictures) % 2
    with shown("detector") as step:

        def told(done: int, total: int) -> None:
            world.stop.check()
            step(done, total, f"learns from {prior.name}")

        def learn() -> Params:
            x, marks = drawn_with_marks(prior, y, (prior.channels, detector.size, detector.size), SEED)
            data = learnt(detector, x, marks, told)
            return {WEIGHTS: torch.frombuffer(bytearray(data), dtype=torch.uint8)}

        about: dict[str, Json] = {"detector": to_plain(detector)}
        return weights_in(kept(world.root, about, learn, waits or waiting(world.stop, step)))
