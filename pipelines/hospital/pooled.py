"""The pooled site of a simulation: images of all sites in one place, for the central baseline and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pipelines.data.cohort import Cohort, to_message
from pipelines.hospital.hospital import COHORT, SPLITS, Hospital
from pipelines.runs.store import DiskFolder
from privacy.message import Message, to_bytes


def adopt(hospital: Hospital, name: str, pooled: Mapping[str, Message]) -> None:
    """Write the pooled training and validation images as a cohort of `hospital`. pooled: replies to `pool`, by site.

    Masks, where they are what is learnt, become the cohort's label maps, whatever they were at the sites.
    """
    offset = 0
    parts: dict[str, list[torch.Tensor]] = {"x": [], "y": [], "patient": [], "split": []}
    for site in sorted(pooled):
        tensors = pooled[site].tensors
        last = offset
        for split in ("train", "validation"):
            patient = tensors[f"{split}/patient"] + offset
            last = max(last, int(patient.max()) + 1) if len(patient) else last
            parts["x"].append(tensors[f"{split}/x"])
            parts["y"].append(tensors[f"{split}/y"])
            parts["patient"].append(patient)
            parts["split"].append(torch.full((len(patient),), SPLITS.index(split), dtype=torch.int8))
        offset = last
    images = torch.cat(parts["x"])
    truth = torch.cat(parts["y"])
    empty = torch.zeros(len(images), 0, dtype=torch.uint8)
    cohort = Cohort(
        images=images,
        labels=truth if truth.dim() == 1 else (truth > 0).flatten(1).any(dim=1).long(),
        patient=torch.cat(parts["patient"]),
        position=torch.zeros(len(images)),
        lesion=empty,
        gland=empty.clone(),
        mask=empty.clone() if truth.dim() == 1 else truth.to(torch.uint8),
        split=torch.cat(parts["split"]),
        patients=tuple(f"pooled-{number}" for number in range(offset)),
    )
    DiskFolder(hospital.cohort_folder(name)).write(COHORT, to_bytes(to_message(cohort)))
