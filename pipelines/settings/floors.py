"""The features of floors: the inputs of a hospital's classical learner in runs whose networks get images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from federation.alone import Alone
from federation.features.colour import Colour
from federation.features.radiomics import Radiomics
from federation.models import AnyModel, OnFeatures
from federation.models.features import Features
from pipelines.data.images import AnyImages
from pipelines.settings.learning import Training
from pipelines.settings.task import AnyTask

RADIOMICS = Features(of=Radiomics(), public="prostate_adc", components=60)
FEATURES_BY_CHANNELS: Mapping[int, Features] = {
    1: RADIOMICS,
    3: Features(of=Colour(), public="skin_lesion", components=90),
}
"""Features of slices or pictures, by number of channels. 90 components of colours were chosen among 60, 90 and all, on
splits of HAM10000 that no table reports. The number for radiomics is not tuned."""


def add_floor_features(train: Training, model: AnyModel | None, images: AnyImages, task: AnyTask) -> Training:
    """The settings of training, with features for each floor without its own model, if the run's model is not on
    features.
    """
    floors = [label for label, method in train.methods.items() if isinstance(method, Alone)]
    needs_none = isinstance(model, OnFeatures) or images.kind == "features" or task.kind == "segmentation"
    feature_model = None if needs_none or len(images.inputs) != 3 else FEATURES_BY_CHANNELS.get(images.inputs[0])
    if feature_model is RADIOMICS and getattr(images, "values", "adc") == "standardized":
        feature_model = replace(RADIOMICS, of=Radiomics(window=(-3.0, 3.0)), public="prostate_t2w")
    floor_models = (
        {} if feature_model is None else {label: feature_model for label in floors if label not in train.method_model}
    )
    return replace(train, method_model={**train.method_model, **floor_models}) if floor_models else train
