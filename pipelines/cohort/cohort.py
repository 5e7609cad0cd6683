"""Files of one hospital's patients become a cohort: de-identified, checked, labelled and split slices.

Nothing in a cohort names a patient: pseudonyms are keyed, and of the headers only counts of scanner models remain.
Rejections quote file names and headers, so they stay at the site; their counts by reason may leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipelines.cohort.admission import Opened
from pipelines.cohort.axes import axes_to_json, fitted_axes, projected
from pipelines.cohort.examples import IMAGES, AnyImages, Files, Labels, open_source
from pipelines.cohort.features import Features, Moments, moments, normalized_by, to_json
from pipelines.cohort.labels import GlandMask
from pipelines.cohort.partition import Divided, Part, dealing_code, divided, written
from pipelines.cohort.pseudonym import normalized, pseudonym
from pipelines.cohort.split import SPLITS, Fold, division_code
from pipelines.cohort.study import Rejected
from pipelines.cohort.survey import survey as survey
from pipelines.cohort.taking import Taken, kept, natural, take
from privacy.message import Json, Message


@dataclass(frozen=True, eq=False)
class Cohort:
    """The examples of one hospital, sorted by pseudonym, study and position.

    images: (n, *inputs) float32: slices (1, H, W), volumes (1, D, H, W), pictures (C, H, W) or features (F,). labels:
    (n,) int64, 0 or 1. patient: (n,) int64, index into `patients`. position: (n,) float32, slice index in its study,
    0 = most inferior. lesion, gland: (n, *spatial) uint8, 0 where unknown, or (n, 0) where such masks make no sense.
    split: (n,) int8, 0 = train, 1 = validation, 2 = test. patients: pseudonyms, sorted. unit: of the images' values.
    recipe: `images`, the settings by which examples were made; `scale`, the moments that normalized features; `axes`,
    onto which they were projected, where they were; and how patients were divided: `independent`, and the `cut`, a
    keyed name of the division (see `split.division_code`).
    """

    images: Tensor
    labels: Tensor
    patient: Tensor
    position: Tensor
    lesion: Tensor
    gland: Tensor
    split: Tensor
    patients: tuple[str, ...]
    unit: str = ""
    recipe: Mapping[str, Json] = field(default_factory=dict)


class Reading(NamedTuple):
    """What `read_cohort` found. names: pseudonym -> identifier of each patient; it never leaves the hospital.
    partition: how the source was dealt out, by pseudonym (`partition.written`); None where it was not.
    """

    cohort: Cohort
    rejected: tuple[Rejected, ...]
    facts: dict[str, Json]
    names: Mapping[str, str]
    partition: Mapping[str, Json] | None = None


def read_cohort(
    source: Files,
    labels: Labels | None,
    images: AnyImages,
    *,
    gland: GlandMask | None = None,
    fractions: Mapping[str, float],
    seed: int,
    key: bytes,
    exclude: tuple[str, ...] = (),
    test: tuple[str, ...] = (),
    independent: bool = False,
    readers: int = 1,
    scale: Moments | None = None,
    scratch: Path | None = None,
    fold: Fold | None = None,
    part: Part | None = None,
) -> Reading:
    """Read, check, prepare, label, de-identify and split all studies of a hospital.

    fractions, seed, independent, fold, part: see `divided`; it follows the identifiers in the files.
    key: of the pseudonyms. exclude: identifiers or pseudonyms of patients that must not be used, for instance after
    withdrawal. test: those who alone are the test split. readers: studies read at a time; it does not change the
    result. scale: moments of all sites' training patients, by which features are normalized; without it they stay raw.
    scratch: a folder on whose disk examples are put down, in files without a name; the cohort's images lie there.

    Returns:
        The cohort; the studies that were not used, with reasons; names; and counts: `files`, `ignored_files`,
        `unselected_series`, `studies`, `patients`, `images`, `positives`, `splits` (each with `patients`, `images`,
        `positives`), `rejected_by_reason`, `excluded` studies, `unmatched_exclusions`, `unmatched_tests`, and
        `scanners` by vendor and field strength. With a part also `source_studies`, of which `studies` are here, and
        unless `independent`, `dealing` (see `dealing_code`); rejections and exclusions are those of the whole source.

    Raises:
        ValueError: settings are wrong (a folder is missing, nothing matches, ...); all problems at once.
    """
    opened = open_source(source, labels, images, gland)
    names = {found.patient: pseudonym(key, found.patient) for found in opened.waiting if found.patient}
    out = _named_by(exclude, names)
    # With the names as given: which of them are here must not change how the others are divided.
    held = {*map(normalized, test), *_named_by(test, names)}
    # In the order in which they are kept, which does not depend on that of the files.
    ordered = sorted(opened.waiting, key=lambda found: (names.get(found.patient, ""), natural(found.study)))
    waiting = [found for found in ordered if found.patient not in out]
    shape = images.columns if isinstance(images, Features) else images.inputs
    taken, refused, parts = take(waiting, shape, readers, scratch)
    rejected = (*opened.rejected, *refused)
    positive = _labels(taken)
    how: Mapping[str, Any] = {"seed": seed, "independent": independent, "key": key, "fold": fold}
    done = divided(positive, part, fractions=fractions, test=held, **how)
    said = None if part is None else asdict(part)
    cut = division_code(fractions, test=[*map(normalized, test)], part=said, **how)
    of_source = _of_source(part, done, len(taken), independent)
    taken, parts = (taken, parts) if part is None else kept(taken, parts, done.splits)
    cohort = _assembled(taken, parts, names, done.splits, opened.unit)
    facts: dict[str, Json] = {
        **_found(opened, taken, rejected),
        "excluded": len(opened.waiting) - len(waiting),
        "unmatched_exclusions": len(exclude) - _matched(exclude, names),
        "unmatched_tests": len(test) - _matched(test, names),
        **of_source,
        **_counts(cohort),
    }
    cohort = replace(cohort, recipe={"independent": independent, "cut": cut, **({"part": said} if said else {})})
    partition = None if part is None else written(part, done, positive, names)
    return Reading(
        _scaled(cohort, images, scale), rejected, facts, {names[s.patient]: s.patient for s in taken}, partition
    )


def _found(opened: Opened, taken: Sequence[Taken], rejected: Sequence[Rejected]) -> dict[str, Json]:
    return {
        "files": opened.files,
        "ignored_files": opened.ignored,
        "unselected_series": opened.unselected,
        "studies": len(taken),
        "rejected_by_reason": dict(sorted(Counter(study.reason for study in rejected).items())),
        "scanners": dict(sorted(Counter(study.scanner for study in taken).items())),
    }


def _labels(taken: Sequence[Taken]) -> dict[str, int]:
    """Patient -> 1 where any of his examples is positive."""
    positives_last = sorted(taken, key=lambda study: any(study.labels))
    return {study.patient: int(any(study.labels)) for study in positives_last}


def _of_source(part: Part | None, done: Divided, studies: int, independent: bool) -> dict[str, Json]:
    """Counts of a source that is dealt out; its code looks at all patients, so a private run has none."""
    if part is None:
        return {}
    return {"source_studies": studies} | ({} if independent else {"dealing": dealing_code(part, done)})


def _named_by(wanted: tuple[str, ...], names: Mapping[str, str]) -> frozenset[str]:
    """Identifiers of the patients that are named by identifier or pseudonym."""
    asked = {normalized(name) for name in wanted}
    return frozenset(patient for patient, name in names.items() if patient in asked or name in asked)


def _matched(wanted: tuple[str, ...], names: Mapping[str, str]) -> int:
    known = {*names, *names.values()}
    return sum(normalized(name) in known for name in wanted)


def _scaled(cohort: Cohort, images: AnyImages, scale: Moments | None) -> Cohort:
    said = IMAGES.dump_python(images, mode="json", exclude_none=True)
    cohort = replace(cohort, recipe={**cohort.recipe, "images": said, "scale": None})
    if not isinstance(images, Features):
        return cohort
    known = training_moments(cohort) if images.normalize == "site" else scale if images.normalize == "pooled" else None
    if known is not None:
        scaled = normalized_by(cohort.images, known)
        cohort = replace(cohort, images=scaled, recipe={**cohort.recipe, "scale": to_json(known)})
    if images.components is None or (images.normalize == "pooled" and known is None):
        return cohort  # the latter is asked for moments alone
    axes = fitted_axes(cohort.images[cohort.split == SPLITS.index("train")], images.components)
    # The axes look at all training patients, so that each example hangs on all of them.
    recipe: dict[str, Json] = {**cohort.recipe, "axes": axes_to_json(axes), "independent": False}
    return replace(cohort, images=projected(cohort.images, axes), recipe=recipe)


def training_moments(cohort: Cohort) -> Moments:
    """Moments of the training patients' features."""
    return moments(cohort.images[cohort.split == SPLITS.index("train")])


def to_message(cohort: Cohort) -> Message:
    """A cohort in the form in which it is stored at the site."""
    facts: dict[str, Json] = {"patients": list(cohort.patients), "unit": cohort.unit, "recipe": dict(cohort.recipe)}
    return Message({name: getattr(cohort, name) for name in _tensor_names()}, facts)


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
    cohort = Cohort(**parts, patients=tuple(map(str, patients)), unit=str(message.facts.get("unit", "")))
    recipe = message.facts.get("recipe")
    cohort = replace(cohort, recipe=recipe if isinstance(recipe, dict) else {})
    if problems := _problems(cohort):
        raise ValueError(f"this message is not a cohort: {'; '.join(problems)}; ingest again")
    return cohort


def _tensor_names() -> list[str]:
    return [part.name for part in fields(Cohort) if part.name not in ("patients", "unit", "recipe")]


def _problems(cohort: Cohort) -> list[str]:
    count = len(cohort.labels)
    line, example = (count,), tuple(cohort.images.shape[1:])
    none, spatial = (count, 0), (count, *example[1:])
    picture = none if tuple(cohort.lesion.shape) == none else spatial
    expected = {
        "images": (torch.float32, (count, *example)),
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


def _assembled(
    taken: Sequence[Taken],
    parts: Mapping[str, Tensor],
    names: Mapping[str, str],
    splits: Mapping[str, str],
    unit: str,
) -> Cohort:
    patients = tuple(sorted({names[study.patient] for study in taken}))
    numbers = {name: number for number, name in enumerate(patients)}
    lengths = [len(study.labels) for study in taken]
    return Cohort(
        images=parts["images"],
        labels=torch.tensor([label for study in taken for label in study.labels], dtype=torch.int64),
        patient=_repeated([numbers[names[study.patient]] for study in taken], lengths, torch.int64),
        position=torch.tensor([place for study in taken for place in study.position], dtype=torch.float32),
        lesion=parts["lesion"],
        gland=parts["gland"],
        split=_repeated([SPLITS.index(splits[study.patient]) for study in taken], lengths, torch.int8),
        patients=patients,
        unit=unit,
    )


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
