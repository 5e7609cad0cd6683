"""Files of finished models that have learnt nothing, for tests of what is done with their answers."""

from __future__ import annotations

import csv
from pathlib import Path

import torch

from federation.models.cam import Cam
from federation.models.unet import UNet
from pipelines.loader.validation import to_plain
from privacy.message import Message, seal_parts, to_bytes
from translating import SELECT

CLASSIFIER, SEGMENTER = Cam(widths=(8, 8, 8, 8), norm="group"), UNet(width=4, levels=2, norm="group")
SLICES = {"kind": "slices", "values": "adc", "spacing_mm": 1.5, "size": 48, "slices": "all", "context": 1}
PICTURES = {"kind": "pictures", "size": 32, "channels": 3, "fit": "squash", "margin": None}
DICOM = {"kind": "dicom", "folder": ".", "select": SELECT}
NIFTI = {"kind": "nifti", "folder": "."}


def lines(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def model(
    path: Path,
    images: dict[str, object],
    source: dict[str, object],
    network: Cam | UNet = CLASSIFIER,
    classes: tuple[str, ...] = (),
) -> Path:
    """A file as `ready` holds them, of a network that has learnt nothing. classes: of a classifier, if not two."""
    torch.manual_seed(0)
    size, channels = int(str(images["size"])), 3 if images["kind"] == "pictures" else 1
    number, scores = max(2, len(classes)), isinstance(network, Cam)
    module = network.build(inputs=(channels, size, size), classes=number)
    facts = {
        "format": 1,
        "site": "north",
        "label": "fedavg",
        "algorithm": {"name": "fedavg"},
        "model": to_plain(network),
        "inputs": [channels, size, size],
        "kind": "classification" if scores else "segmentation",
        "classes": number,
        "names": list(classes) if scores else ["lesion"],
        "source": source,
        "gland": False,
        "images": images,
        "scale": None,
    }
    path.write_bytes(seal_parts(to_bytes(Message(dict(module.state_dict()), facts))))  # type: ignore[arg-type]
    return path
