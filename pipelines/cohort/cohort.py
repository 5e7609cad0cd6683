"""Files of one hospital's patients become a cohort: de-identified, checked, labelled and split slices.

Nothing in a cohort names a patient: pseudonyms are keyed, and of the headers only counts of scanner models remain.
Rejections quote file names and headers, so they stay at the site; their counts by reason may leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.cohort.admission import Admitted, Labels, Source, admit, open_files
from pipelines.cohort.prepare import Preparation as Preparation
from pipelines.cohort.pseudonym import pseudonym
from pipelines.cohort.split import SPLITS, split_patients
from pipelines.cohort.study import Rejected
from pipelines.cohort.survey import survey as survey
from privacy.message import Json, Message

MM2_PER_S_1E_3 = 1e-3  # from 1e-6 mm²/s into 1e-3 mm²/s, in which tissue is about 1


@dataclass(frozen=True, eq=False)
class Cohort:
    """The slices of one hospital, sorted by pseudonym, study and position.

    images: (n, 1, H, W) float32, ADC in 1e-3 mm²/s. labels: (n,) int64, 0 or 1. patient: (n,) int64, index into
    `patients`. position: (n,) float32, slice index within the study, 0 = most inferior. lesion, gland: (n, H, W) uint8,
    0 where unknown. split: (n,) int8, 0 = train, 1 = validation, 2 = test. patients: pseudonyms, sorted.
    """

    images: Tensor
    labels: Tensor
    patient: Tensor
    position: Tensor
    lesion: Tensor
    gland: Tensor
    split: Tensor
    patients: tuple[str, ...]


def read_cohort(
    source: Source,
    labels: Labels,
    preparation: Preparation,
    *,
    fractions: Mapping[str, float],
    seed: int,
    key: bytes,
    exclude: tuple[str, ...] = (),
) -> tuple[Cohort, tuple[Rejected, ...], dict[str, Json]]:
    """Read, check, prepare, label, de-identify and split all studies of a hospital.

    fractions, seed: see `split_patients`; the split follows the identifiers in the files, not the key. key: of the
    pseudonyms. exclude: identifiers or pseudonyms of patients that must not be used, for instance after withdrawal.

    Returns:
        The cohort; the studies that were not used, with reasons; and counts: `files`, `ignored_files`,
        `unselected_series`, `studies`, `patients`, `images`, `positives`, `splits` (each with `patients`, `images`,
        `positives`), `rejected_by_reason`, `excluded` studies, `unmatched_exclusions`, and `scanners` by model.

    Raises:
        ValueError: settings are wrong (a folder is missing, nothing matches, ...); all problems at once.
    """
    opened = open_files(source, labels, preparation)
    names = {found.patient: pseudonym(key, found.patient) for found in opened.found.candidates}
    out = {patient for patient, name in names.items() if patient in exclude or name in exclude}
    candidates = [found for found in opened.found.candidates if found.patient not in out]
    visits = Counter(found.patient for found in candidates)
    results = [admit(found, opened, alone=visits[found.patient] == 1) for found in candidates]
    admitted = [result for result in results if isinstance(result, Admitted)]
    rejected = (*opened.found.rejected, *(result for result in results if isinstance(result, Rejected)))
    positive = {study.patient: 0 for study in admitted}
    for study in admitted:
        positive[study.patient] |= int(any(study.labels))
    splits = split_patients(positive, fractions=fractions, seed=seed)
    cohort = _assembled(admitted, names, splits, preparation.size)
    facts: dict[str, Json] = {
        "files": opened.found.files,
        "ignored_files": opened.found.ignored,
        "unselected_series": opened.found.unselected,
        "studies": len(admitted),
        "excluded": len(opened.found.candidates) - len(candidates),
        "unmatched_exclusions": len(set(exclude) - out - {names[patient] for patient in out}),
        "rejected_by_reason": dict(sorted(Counter(study.reason for study in rejected).items())),
        "scanners": dict(sorted(Counter(study.scanner for study in admitted).items())),
        **_counts(cohort),
    }
    return cohort, rejected, facts


def to_message(cohort: Cohort) -> Message:
    """A cohort in the form in which it is stored at the site."""
    return Message({name: getattr(cohort, name) for name in _tensor_names()}, {"patients": list(cohort.patients)})


def from_message(message: Message) -> Cohort:
    """The cohort that `to_message` gave.

    Raises:
        ValueError: a part is missing, or has the wrong type or shape, or a patient is in two splits; all at once.
    """
    patients = message.facts.get("patients")
    missing = [name for name in _tensor_names() if name not in message.tensors]
    if missing or not isinstance(patients, list):
        absent = ", ".join([*missing, *([] if isinstance(patients, list) else ["patients"])])
        raise ValueError(f"this message is not a cohort: without {absent}; ingest again")
    parts: dict[str, Any] = {name: message.tensors[name] for name in _tensor_names()}
    cohort = Cohort(**parts, patients=tuple(map(str, patients)))
    if problems := _problems(cohort):
        raise ValueError(f"this message is not a cohort: {'; '.join(problems)}; ingest again")
    return cohort


def _tensor_names() -> list[str]:
    return [part.name for part in fields(Cohort) if part.name != "patients"]


def _problems(cohort: Cohort) -> list[str]:
    count, (height, width) = len(cohort.labels), cohort.lesion.shape[-2:] if cohort.lesion.dim() == 3 else (0, 0)
    line, picture = (count,), (count, height, width)
    expected = {
        "images": (torch.float32, (count, 1, height, width)),
        "labels": (torch.int64, line),
        "patient": (torch.int64, line),
        "position": (torch.float32, line),
        "lesion": (torch.uint8, picture),
        "gland": (torch.uint8, picture),
        "split": (torch.int8, line),
    }
    problems = [
        f"{name} is {found.dtype} {tuple(found.shape)}, {dtype} {shape} is needed"
        for name, (dtype, shape) in expected.items()
        if ((found := getattr(cohort, name)).dtype, tuple(found.shape)) != (dtype, shape)
    ]
    return problems or _content_problems(cohort)


def _content_problems(cohort: Cohort) -> list[str]:
    problems = []
    for name, limit in (("labels", 2), ("split", len(SPLITS)), ("patient", len(cohort.patients))):
        values = getattr(cohort, name)
        if len(values) and not (int(values.min()) >= 0 and int(values.max()) < limit):
            problems.append(f"{name} goes from {int(values.min())} to {int(values.max())}, 0..{limit - 1} is allowed")
    pairs = set(zip(cohort.patient.tolist(), cohort.split.tolist(), strict=True))
    if len(pairs) > len({patient for patient, _ in pairs}):
        problems.append("a patient is in two splits")
    return problems


def _assembled(admitted: Sequence[Admitted], names: Mapping[str, str], splits: Mapping[str, str], size: int) -> Cohort:
    """All slices in one place, in an order that does not depend on the files' order."""
    studies = sorted(admitted, key=lambda study: (names[study.patient], study.study))
    patients = tuple(sorted({names[study.patient] for study in studies}))
    numbers = {name: number for number, name in enumerate(patients)}
    images = _joined([study.prepared.images for study in studies], (0, size, size), np.float32)
    lengths = [len(study.labels) for study in studies]
    return Cohort(
        images=(images * MM2_PER_S_1E_3)[:, None],
        labels=torch.tensor([label for study in studies for label in study.labels], dtype=torch.int64),
        patient=_repeated([numbers[names[study.patient]] for study in studies], lengths, torch.int64),
        position=_joined([study.prepared.position for study in studies], (0,), np.float32),
        lesion=_joined([study.prepared.lesion for study in studies], (0, size, size), np.uint8),
        gland=_joined([study.prepared.gland for study in studies], (0, size, size), np.uint8),
        split=_repeated([SPLITS.index(splits[study.patient]) for study in studies], lengths, torch.int8),
        patients=patients,
    )


def _joined(parts: Sequence[NDArray[Any]], empty: tuple[int, ...], dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(empty, dtype), *parts]).astype(dtype, copy=False))


def _repeated(values: Sequence[int], lengths: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.repeat_interleave(torch.tensor(values, dtype=dtype), torch.tensor(lengths, dtype=torch.int64))


def _counts(cohort: Cohort) -> dict[str, Json]:
    parts: dict[str, Json] = {}
    for number, name in enumerate(SPLITS):
        here = cohort.split == number
        parts[name] = {
            "patients": len(set(cohort.patient[here].tolist())),
            "images": int(here.sum()),
            "positives": int(cohort.labels[here].sum()),
        }
    total: dict[str, Json] = {
        "patients": len(cohort.patients),
        "images": len(cohort.labels),
        "positives": int(cohort.labels.sum()),
    }
    return {**total, "splits": parts}
