"""Names of a hospital's files on patients and runs, and how cohorts are read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch

from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import (
    COHORT,
    SPLITS,
    Hospital,
    read_cohort_file,
)
from pipelines.runs.store import digest_json, short_digest
from privacy.message import Json
from privacy.release.gate import Refused

REAL_SENT = "their images were sent, as what others' images shall look like"


QUALITIES = "qualities"
"""Folder with each translation's quality figures, for the hospital's own page."""


MAP = "map.safetensors"
"""Real and synthetic images in two dimensions, for the hospital's own page."""


REJECTED, SPLIT, PARTITION, COUNTS = "rejected.json", "split.json", "partition.json", "counts.json"


def digest_of(path: Path) -> str | None:
    """Sha256 of a file; None if there is no file. It may leave only keyed (`keyed`)."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def cohort_of(hospital: Hospital, cohort: str) -> Cohort:
    """The hospital's cohort. Raises: Refused."""
    return read_cohort_file(hospital.cohort_folder(cohort) / COHORT)


def split_of(cohort: Cohort) -> dict[str, list[str]]:
    """Pseudonyms by split."""
    codes_by_split: dict[str, list[str]] = {}
    for number, split in enumerate(SPLITS):
        patients = torch.unique(cohort.patient[cohort.split == number]).tolist()
        codes_by_split[split] = [cohort.patients[patient] for patient in patients]
    return codes_by_split


def central_name(facts: Mapping[str, Json]) -> str:
    """The file of the central baseline's model at home."""
    return f"{str(facts['train_run']).rpartition('/')[2]}.central.safetensors"


def scores_name(facts: Mapping[str, Json]) -> str:
    """The file of a model's scores at its own hospital, by run, checkpoint, globally best round and calibration."""
    calibration = facts.get("calibration")
    how = f".{calibration.get('calibration')}-{calibration.get('quantile')}" if isinstance(calibration, dict) else ""
    if isinstance(calibration, dict) and calibration.get("tuning") is not None:
        how = f".{calibration['calibration']}-{short_digest(digest_json(calibration['tuning']))}"
    return f"{str(facts['train_run']).rpartition('/')[2]}.{facts['checkpoint']}.{facts['best']}{how}.safetensors"


def cut_of(cohort: Cohort) -> str:
    """The name of a division into splits in which no patient's split depends on other patients.

    Raises:
        Refused: `dependent_patients`: the split, or the scale of the features, depends on all patients, so that
        clipping does not bound one patient's influence.
    """
    images = cohort.recipe.get("images")
    normalized = images.get("normalize") if isinstance(images, dict) else None
    if cohort.recipe.get("independent") is not True or normalized in ("site", "pooled"):
        raise Refused("dependent_patients")
    return str(cohort.recipe["cut"])
