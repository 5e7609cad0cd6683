"""Names of a hospital's files on patients and runs, and how cohorts are read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from federation.participant import Checkpoint
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import (
    COHORT,
    SPLITS,
    Hospital,
    read_cohort_file,
)
from pipelines.loader.validation import to_plain
from pipelines.requests.methods import TableLine
from pipelines.runs.store import digest_json, short_digest
from pipelines.settings.variants import Variant
from privacy.release.gate import Refused

REAL_SENT = "their images were sent, as what others' images shall look like"


QUALITIES = "qualities"
"""Folder with each translation's quality figures, for the hospital's own page."""


MAP = "map.safetensors"
"""Real and synthetic images in two dimensions, for the hospital's own page."""


REJECTED, SPLIT, PARTITION, COUNTS = "rejected.json", "split.json", "partition.json", "counts.json"


def digest_of(path: Path) -> str | None:
    """Sha256 of a file; None if there is no file. It may leave only keyed (`keyed`)."""
    if not path.exists():
        return None
    with path.open("rb") as file:  # a cohort may be larger than memory
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def central_name(run: str) -> str:
    """The file of the central baseline's model at home. run: of its training."""
    return f"{run.rpartition('/')[2]}.central.safetensors"


def scores_name(run: str, checkpoint: Checkpoint, best: int | None, variant: Variant | None = None) -> str:
    """The file of a model's scores at its own hospital.

    run: of its training. best: the globally best round. variant: how it was calibrated; None = it was not.
    """
    calibration = ""
    if variant is not None and variant.tuning is not None:
        calibration = f".{variant.calibration}-{short_digest(digest_json(to_plain(variant.tuning)))}"
    elif variant is not None:
        calibration = f".{variant.calibration}-{variant.quantile}"
    return f"{run.rpartition('/')[2]}.{checkpoint}.{best}{calibration}.safetensors"


def scores_name_of(line: TableLine) -> str:
    """The file of the scores of a line of the tables at its own hospital."""
    return scores_name(line["train_run"], line["checkpoint"], line["best"], line.get("calibration"))


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
