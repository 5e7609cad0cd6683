"""Compute the fixed features of a hospital's images: `extract`. Images and features stay; a name and a digest leave."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import torch

from federation.features import select_weighted_part
from federation.features.detector import Detector
from federation.features.encoder import Encoder
from federation.features.lite0 import FILE_SHA256, Lite0
from federation.features.onnx_encoder import OnnxEncoder
from federation.models import OnFeatures
from federation.models.clip import Clip
from pipelines.hospital.beginnings import DETECTOR, ENCODER, FEATURES
from pipelines.hospital.frozen import SCALE
from pipelines.hospital.hospital import COHORT, Context, Done, Hospital, keyed_digest, write_cohort_file
from pipelines.hospital.kept import REJECTED, SPLIT, cohort_of, digest_of, split_of
from pipelines.models.fixed_features import Fixed, compute_features, from_tensors, to_tensors
from pipelines.requests.extract import Extract, Extracted
from pipelines.runs.store import DiskFolder, short_digest
from privacy.dp.chunks import apply_to_each_row
from privacy.dp.events import NOTHING, describe_event
from privacy.message import Json, Message, to_bytes
from privacy.release.gate import Refused


def extract_features(hospital: Hospital, context: Context[Extract]) -> Done[Extracted]:
    """Write the features of a cohort's images as a cohort.

    Of the model `of`, `components`, `fourier` and `bandwidth` matter here. Tensors: the scale; of an encoder also its
    file, which must have the digest that the model names, and of a CLIP its file alone; of a detector, what it learnt.
    Each row of the new cohort depends on its own image and on public pictures only.

    Returns:
        `cohort` and `sha256` of the new cohort.

    Raises:
        Refused: `malformed_settings`: the model has no features, images of this form have none, or the encoder's file
            is another one or cannot be used here.
    """
    message, question, model = context.message, context.question, context.question.model
    cohort = cohort_of(hospital, question.cohort)
    try:
        if not isinstance(model, OnFeatures):
            raise ValueError(f"{model.name} is no model on features")
        if wrong := (model if isinstance(model, Clip) else model.of).complaints(tuple(cohort.images.shape[1:])):
            raise ValueError("; ".join(wrong))
        fixed = from_tensors(message.tensors, model)
    except ValueError as error:
        raise Refused("malformed_settings") from error
    features = apply_to_each_row(lambda image: compute_features(model, fixed, image), cohort.images)
    digest = hashlib.sha256(to_bytes(message)).hexdigest()
    recipe = {**cohort.recipe, "features": message.facts["model"], "of": question.cohort, "asked": digest}
    none = torch.zeros(len(cohort.labels), 0, dtype=torch.uint8)  # features have no pixels
    made = replace(cohort, images=features, lesion=none, gland=none, mask=none, recipe=recipe)
    name = short_digest(write_cohort_file(hospital.root / "cohorts", made, hospital.key()))
    folder = DiskFolder(hospital.cohort_folder(name))
    folder.write(REJECTED, b"[]")  # rejections are listed beside the images
    folder.write(SPLIT, json.dumps(split_of(cohort), indent=1).encode())
    folder.write(SCALE, to_bytes(Message(to_tensors(fixed))))
    code = digest_of(hospital.cohort_folder(name) / COHORT) or ""
    memory = Message({}, {FEATURES: {"public": message.facts["public"], **_network(model, fixed)}})
    return Done(Extracted(cohort=name, sha256=keyed_digest(hospital.key(), code)), describe_event(NOTHING), memory)


def _network(model: OnFeatures, fixed: Fixed) -> dict[str, Json]:
    """Where features come from a network: its kind or what it learnt from, and its digest. Empty if there is none."""
    if isinstance(model, Clip):
        return {ENCODER: {"kind": model.name, "sha256": hashlib.sha256(fixed.weights).hexdigest()}}
    weighted = select_weighted_part(model.of)
    if isinstance(weighted, Encoder):
        return {ENCODER: {"kind": json.loads(weighted.architecture)["model_type"], "sha256": weighted.sha256}}
    if isinstance(weighted, OnnxEncoder):
        return {ENCODER: {"kind": weighted.name, "sha256": weighted.sha256}}
    if isinstance(weighted, Lite0):
        return {ENCODER: {"kind": "efficientnet-lite0", "sha256": FILE_SHA256}}
    if isinstance(weighted, Detector):
        return {DETECTOR: {"prior": weighted.on, "sha256": hashlib.sha256(fixed.weights).hexdigest()}}
    return {}
