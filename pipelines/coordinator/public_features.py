"""Fixed features of public pictures: their scale, and a head that learnt from the pictures' labels alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from federation.alone import Alone, fit_machine
from federation.features import AnyExtractor, Extractor
from federation.features.detector import Detector, load_detector, train_detector_network
from federation.features.whitening import fit_whitening
from federation.models.clip import Clip, ClipPictures
from federation.models.clip import read_tensors as clip_opened
from federation.models.features import Features
from federation.parameters import read_parameters
from federation.task import Task
from harmonize.prior import PRIORS, draw_with_marks
from pipelines.coordinator.public import SEED, PublicSet, read_public_set
from pipelines.coordinator.public_kept import learn_or_load, make_waiter
from pipelines.coordinator.world import World
from pipelines.data.clip_file import make_portable, read_weights
from pipelines.data.extractor_file import open_extractor
from pipelines.loader.validation import to_plain
from pipelines.models.fixed_features import UNSCALED, WEIGHTS, Fixed, compute_features, extract_values, weights_in
from pipelines.runs.progress import show_progress
from privacy.message import Json, Params


def fit_scale(world: World, public: PublicSet, model: Features) -> Fixed:
    """The features of a model, scaled by public pictures.

    Raises:
        ValueError: there are fewer pictures than components.
    """
    extractor, weights = _prepare_extractor(world, model.of)
    values = np.concatenate([extract_values(extractor, part) for part in public.parts])
    return Fixed(extractor, fit_whitening(values, components=model.components, softness=model.softness), weights)


def read_clip_vectors(model: Clip) -> Fixed:
    """The vectors of pictures of a CLIP, which nothing scales, and its file. Raises: ValueError: it cannot be used."""
    portable_model, weights = make_portable(model), read_weights(model)
    return Fixed(ClipPictures(portable_model, clip_opened(portable_model, weights)), UNSCALED, weights)


def public_head(world: World, model: Features, public: PublicSet, classes: int) -> Params:
    """Weights of a linear head by ridge regression, as `local_ridge` learns one. Pictures are not disturbed.

    public: the labelled pictures; those of `model.public` scale the features, as at every hospital.
    """
    fixed = fit_scale(world, read_public_set(world.config, model.public, model.pictures), model)
    x = torch.cat([compute_features(model, fixed, part) for part in public.parts])
    module = Alone(name="local_ridge").network(Task(model, (model.width,), classes))
    fit_machine(module, x, public.labels, torch.arange(len(x)), classes)
    return read_parameters(module)


def _prepare_extractor(world: World, of: AnyExtractor) -> tuple[Extractor, bytes]:
    """What computes features, with its weights: an encoder's file, or what a detector learns from its prior."""
    if not isinstance(of, Detector):
        return open_extractor(of)
    weights = train_detector(world, of)
    return load_detector(of, weights), weights


def train_detector(world: World, detector: Detector, waits: Callable[[], None] | None = None) -> bytes:
    """The weights of a detector, learnt once for all runs of a folder, because it takes minutes. waits: see `kept`."""
    prior, y = PRIORS[detector.on], torch.arange(detector.pictures) % 2
    with show_progress("detector") as step:

        def report_progress(done: int, total: int) -> None:
            world.stop.check()
            step(done, total, f"learns from {prior.name}")

        def learn_parameters() -> Params:
            x, marks = draw_with_marks(prior, y, (prior.channels, detector.size, detector.size), SEED)
            data = train_detector_network(detector, x, marks, report_progress)
            return {WEIGHTS: torch.frombuffer(bytearray(data), dtype=torch.uint8)}

        about: dict[str, Json] = {"detector": to_plain(detector)}
        return weights_in(learn_or_load(world.root, about, learn_parameters, waits or make_waiter(world.stop, step)))
