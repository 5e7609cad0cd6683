"""A model that a hospital can use: one file, which also says how a study becomes what the network sees.

It is written beside the scores when a hospital's own model is evaluated, and stays there; `pipelines.predict` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from federation.parameters import loaded
from federation.task import Task
from pipelines.cohort.cohort import Cohort
from pipelines.cohort.examples import IMAGES, SOURCE, AnyImages, Files
from pipelines.cohort.features import Moments, from_json
from pipelines.door import to_plain
from pipelines.site.files import files_of
from pipelines.site.hospital import Hospital
from pipelines.site.learn import ALGORITHM, MODEL, Opening
from pipelines.store import DiskFolder
from privacy.message import Json, Malformed, Message, Params, from_bytes, sealed, to_bytes, unsealed

READY = "ready"
FORMAT = 1
TECHNICAL = (
    *("Modality", "ImageType", "FrameType", "SeriesDescription", "ProtocolName", "SequenceName", "ScanningSequence"),
    *("DiffusionBValue", "EchoTime", "EffectiveEchoTime", "RepetitionTime", "MagneticFieldStrength", "Manufacturer"),
)
"""Keywords of `select` that a model takes along."""


@dataclass(frozen=True)
class Ready:
    """A usable model. source: how the training images were found, its folder left out. facts: where it comes from."""

    module: nn.Module
    task: Task
    images: AnyImages
    source: Files
    gland: bool
    scale: Moments | None
    facts: Mapping[str, Json]


def make_ready(
    hospital: Hospital, label: str, start: Opening, params: Params, cohort: Cohort, origin: Mapping[str, Json]
) -> None:
    """Write `ready/<label>.safetensors`."""
    files = files_of(hospital)
    source = to_plain(files.source)
    nowhere = {key: "." if key in ("folder", "file", "table") else value for key, value in _mapping(source).items()}
    nowhere |= {"where": {}} if "where" in nowhere else {}
    nowhere |= {"select": _technical(nowhere["select"])} if "select" in nowhere else {}
    facts: dict[str, Json] = {
        "format": FORMAT,
        "site": hospital.name,
        "label": label,
        "algorithm": to_plain(start.algorithm),
        "model": to_plain(start.task.model),
        "inputs": list(start.task.inputs),
        "classes": start.task.classes,
        "source": nowhere,
        "gland": files.gland is not None,
        "privacy": None if start.protection is None else to_plain(start.protection),
        **cohort.recipe,
        **origin,
    }
    DiskFolder(hospital.root / READY).write(f"{label}.safetensors", sealed(to_bytes(Message(params, facts))))


def _technical(select: Json) -> dict[str, Json]:
    """Of what tells the right DICOM files apart, all that cannot name anybody."""
    return {keyword: text for keyword, text in _mapping(select).items() if keyword in TECHNICAL}


def read_ready(path: Path) -> Ready:
    """Read such a file.

    Raises:
        ValueError: it is not one, is damaged, or was written by a later version.
        OSError: it cannot be read.
    """
    try:
        message = from_bytes(unsealed(path.read_bytes()))
        facts = message.facts
        if facts["format"] != FORMAT:
            raise ValueError(f"format {facts['format']}, and {FORMAT} is read here")
        model = MODEL.validate_json(json.dumps(facts["model"]), strict=True)
        inputs = [int(str(side)) for side in _list(facts["inputs"])]
        task = Task(model, tuple(inputs), int(str(facts["classes"])))
        algorithm = ALGORITHM.validate_json(json.dumps(facts["algorithm"]), strict=True)
        module = loaded(algorithm.network(task), message.tensors).eval()
        images = IMAGES.validate_json(json.dumps(facts["images"]), strict=True)
        source = SOURCE.validate_json(json.dumps(facts["source"]), strict=True)
    except (Malformed, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a model to predict with ({error}); give a file of a site's {READY}/ folder, "
            "runs/<name>/sites/<site>/ready/<method>.safetensors"
        ) from error
    return Ready(module, task, images, source, bool(facts["gland"]), from_json(facts["scale"]), facts)


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
