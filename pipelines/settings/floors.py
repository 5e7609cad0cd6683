"""The features of floors: what a hospital's classical learner is given where a run's networks get images."""

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
OF_CHANNELS: Mapping[int, Features] = {
    1: RADIOMICS,
    3: Features(of=Colour(), public="skin_lesion", components=90),
}
"""Features of slices or pictures, by their channels. 90 components of colours were chosen on splits of HAM10000 that no
table reports (60, 90 or all); those of radiomics are not tuned."""


def with_features(train: Training, model: AnyModel, images: AnyImages, task: AnyTask) -> Training:
    """The settings of training with features for each floor that has no model of its own, where the run has none."""
    floors = [label for label, method in train.methods.items() if isinstance(method, Alone)]
    fit = isinstance(model, OnFeatures) or images.kind == "features" or task.kind != "classification"
    feature_model = None if fit or len(images.inputs) != 3 else OF_CHANNELS.get(images.inputs[0])
    if feature_model is RADIOMICS and getattr(images, "values", "adc") == "standardized":
        feature_model = replace(RADIOMICS, of=Radiomics(window=(-3.0, 3.0)), public="prostate_t2w")
    model_of_floor = (
        {} if feature_model is None else {label: feature_model for label in floors if label not in train.method_model}
    )
    return replace(train, method_model={**train.method_model, **model_of_floor}) if model_of_floor else train
