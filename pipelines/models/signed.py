"""A finished model as a hospital that never trained gets it: its file, its signature, and how it wants images read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from pipelines.data.images import AnyImages, Features, Target, describe_images
from pipelines.data.regions import pack_regions
from pipelines.models.file import Ready, parse_ready
from privacy.message import Json
from privacy.release.signature import ENDING, LARGEST, Signature
from privacy.settings_error import words_of

SIGNATURE: TypeAdapter[Signature] = TypeAdapter(Signature)
TENSOR = "model"
"""The tensor (n,) uint8 of a message that holds the file."""


@dataclass(frozen=True)
class Signed:
    """data: the file's bytes. signature: read and not verified. ready: the model that the file holds."""

    data: bytes
    signature: Signature
    ready: Ready

    @property
    def sha256(self) -> str:
        """Of the file, 64 hexadecimal digits."""
        return hashlib.sha256(self.data).hexdigest()


def read_signed(path: Path) -> Signed:
    """Read a model with its signature, MODEL.sig beside it.

    Raises:
        ValueError: one of them is not what it should be.
        OSError: one of them cannot be read.
    """
    signature_path = path.with_name(f"{path.name}{ENDING}")
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give the file of a finished model, runs/NAME/sites/SITE/ready/...")
    if not signature_path.is_file():
        raise ValueError(f"{signature_path.name} does not lie beside it; sign it: consilium sign {path} --key KEY")
    try:
        if (size := signature_path.stat().st_size) > LARGEST:
            raise ValueError(f"it has {size} bytes")
        signature = SIGNATURE.validate_json(signature_path.read_bytes(), strict=True)
    except ValueError as error:
        raise ValueError(f"{signature_path} is no signature ({words_of(error)}); sign the model again") from error
    data = path.read_bytes()
    try:
        return Signed(data, signature, refuse_number(parse_ready(data)))
    except ValueError as error:
        raise ValueError(f"{path} is no finished model ({error}); give one of a site's folder ready/") from error


def refuse_number(ready: Ready) -> Ready:
    """The model itself. Raises: ValueError: it predicts a number, which a benchmark does not score."""
    if ready.task.kind == "regression":
        raise ValueError("it predicts a number, and a benchmark scores classes, findings and masks")
    return ready


def settings_of(ready: Ready) -> dict[str, Json]:
    """What a signature says of a model besides its digest: its label, what it predicts, and from which examples."""
    return {
        "label": ready.origin.label,
        "kind": ready.task.kind,
        "classes": ready.task.classes,
        "names": [*ready.names],
        "inputs": [*ready.task.inputs],
        **_reading_facts(ready),
    }


class Wanted(NamedTuple):
    """How a hospital reads its files for a model. target: the masks that every study must have; None: labels.
    classes: names of what is learnt. findings: names of several. regions: of the classes of masks, as facts have them.
    """

    images: AnyImages
    target: Target | None
    classes: list[str]
    findings: Sequence[str] = ()
    regions: Sequence[Sequence[str]] = ()


def reading_of(ready: Ready) -> Wanted:
    """How a hospital reads its files for a model."""
    target = ready.origin.target
    if ready.task.kind == "findings":
        return Wanted(_drop_scales(ready.images), None, [], ready.names)
    if target is None:
        return Wanted(_drop_scales(ready.images), None, [*ready.origin.labels])
    regions = pack_regions({name: [ready.names[n - 1] for n in members] for name, members in ready.regions.items()})
    return Wanted(_drop_scales(ready.images), target, [*ready.names] if target == "masks" else [], regions=regions)


def _reading_facts(ready: Ready) -> dict[str, Json]:
    """The same as facts: `images`, and `target`, `classes` or `findings`."""
    reading = reading_of(ready)
    images = describe_images(reading.images)
    if reading.findings:
        return {"images": images, "findings": [*reading.findings]}
    if reading.target is None:
        return {"images": images, **({"classes": [*reading.classes]} if reading.classes else {})}
    regions: list[Json] = [[*each] for each in reading.regions]
    return {
        "images": images,
        "target": reading.target,
        "classes": [*reading.classes],
        **({"regions": regions} if regions else {}),
    }


def _drop_scales(images: AnyImages) -> AnyImages:
    """Settings without scales that a hospital computes of its own patients: the model's file brings its own."""
    if not isinstance(images, Features):
        return images
    normalize = "none" if images.normalize in ("site", "pooled") else images.normalize
    return replace(images, normalize=normalize, components=None)


def to_tensor(data: bytes) -> Tensor:
    """A file's bytes as a tensor (n,) uint8."""
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())


def find_reading_differences(ready: Ready, recipe: Mapping[str, Json]) -> str | None:
    """How a cohort was read otherwise than the model wants; None if it was not."""
    expected = _reading_facts(ready)
    named = "classes" if "target" in expected else "labels"
    actual = {"images": recipe.get("images"), "target": recipe.get("target"), "classes": recipe.get(named) or []}
    actual |= {name: recipe.get(name) or [] for name in ("findings", "regions")}
    empty: dict[str, Json] = {"classes": [], "findings": [], "regions": []}
    odd = [key for key in actual if actual[key] != (expected.get(key) or empty.get(key))]
    return ", ".join(odd) or None
