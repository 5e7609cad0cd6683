"""The cohort of one hospital, and the message in which it is stored on the hospital's disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from federation.findings import STATES
from federation.task import IGNORED, STEPS
from pipelines.data.images import Target
from pipelines.data.label_classes import PLAIN
from pipelines.data.label_findings import find_finding_bands, name_finding_bands
from pipelines.data.label_numbers import find_band, read_range
from pipelines.data.regions import list_members, read_regions
from pipelines.data.split import SPLITS
from privacy.message import Json, Message, as_list

SINCE = ("mask",)
"""Tensors missing in cohorts of earlier versions."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """The examples of one hospital, sorted by pseudonym, study and position.

    images: (n, *inputs) float32: slices (1 or 3, H, W), volumes (1, D, H, W), pictures (C, H, W), features (F,).
    labels: (n,) int64, 0 = the first class. patient: (n,) int64, index into `patients`. position: (n,) float32, slice
    index in its study, 0 = most inferior. lesion, gland: (n, *spatial) uint8, 0 where unknown, or (n, 0) where such
    masks do not apply. mask: (n, *spatial) uint8, label maps, 0 = background, 1 = the first class, 255 = ignored; or
    (n, 0) where there are none. split: (n,) int8, 0 = train, 1 = validation, 2 = test. patients: pseudonyms, sorted.
    unit: of the images' values. recipe: `images`, the settings of the examples; `scale`, the moments for normalizing
    features; `axes`, onto which they were projected, if any; `target`, the masks that every study must have; `classes`,
    the names of the values of `mask`; `regions`, of several such classes each (`pipelines.data.regions`); `labels`, the
    names of classes, if not negative and positive; `number`, the range of labels that are numbers, which are then its
    steps (`pipelines.data.label_numbers`); `findings`, the names of several, of which each label is one number
    (`federation.findings`); and how patients were divided: `independent`, and `cut`, a keyed digest of the division
    (see `split.division_code`). `synthetic`: how many of the last training examples are synthetic images, each under
    the name of a patient of its own.
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
    mask: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.uint8))

    def __post_init__(self) -> None:
        if self.mask.dim() == 2 and self.mask.shape[1] == 0:  # empty masks still have one row per example
            object.__setattr__(self, "mask", torch.zeros(len(self.labels), 0, dtype=torch.uint8))


def to_message(cohort: Cohort) -> Message:
    """A cohort as the message that is stored at the site."""
    facts: dict[str, Json] = {"patients": list(cohort.patients), "unit": cohort.unit, "recipe": dict(cohort.recipe)}
    return Message({name: getattr(cohort, name) for name in _tensor_names()}, facts)


def from_message(message: Message) -> Cohort:
    """The cohort of a message from `to_message`. Cohorts from before label maps were supported have none.

    Raises:
        ValueError: a part is missing, or has the wrong type or shape, or a patient is in two splits; all at once.
    """
    patients = message.facts.get("patients")
    missing = [name for name in _tensor_names() if name not in (*message.tensors, *SINCE)]
    if missing or not isinstance(patients, list):
        absent = ", ".join([*missing, *([] if isinstance(patients, list) else ["patients"])])
        raise ValueError(f"this message is not a cohort: without {absent}; ingest again")
    parts: dict[str, Any] = {name: message.tensors[name] for name in _tensor_names() if name in message.tensors}
    cohort = Cohort(**parts, patients=tuple(map(str, patients)), unit=str(message.facts.get("unit", "")))
    recipe = message.facts.get("recipe")
    cohort = replace(cohort, recipe=recipe if isinstance(recipe, dict) else {})
    if problems := _shape_problems(cohort):
        raise ValueError(f"this message is not a cohort: {'; '.join(problems)}; ingest again")
    return cohort


def _tensor_names() -> list[str]:
    """The names of the cohort's tensors, in the order of its fields."""
    return [part.name for part in fields(Cohort) if part.name not in ("patients", "unit", "recipe")]


def _shape_problems(cohort: Cohort) -> list[str]:
    """Tensors of a wrong type or shape; if there are none, problems with their content."""
    count = len(cohort.labels)
    line, example = (count,), tuple(cohort.images.shape[1:])
    none, spatial = (count, 0), (count, *example[1:])
    picture, labelled = (none if tuple(part.shape) == none else spatial for part in (cohort.lesion, cohort.mask))
    expected = {
        "images": (torch.float32, (count, *example)),
        "labels": (torch.int64, line),
        "patient": (torch.int64, line),
        "position": (torch.float32, line),
        "lesion": (torch.uint8, picture),
        "gland": (torch.uint8, picture),
        "mask": (torch.uint8, labelled),
        "split": (torch.int8, line),
    }
    problems = [
        f"{name} is {tensor.dtype} {tuple(tensor.shape)}, {dtype} {shape} is needed"
        for name, (dtype, shape) in expected.items()
        if ((tensor := getattr(cohort, name)).dtype, tuple(tensor.shape)) != (dtype, shape)
    ]
    return problems or _content_problems(cohort)


def _content_problems(cohort: Cohort) -> list[str]:
    """Values outside their range, masks of unnamed classes, and patients in two splits."""
    problems = []
    for name, limit in (
        ("labels", _count_values(cohort)),
        ("split", len(SPLITS)),
        ("patient", len(cohort.patients)),
    ):
        values = getattr(cohort, name)
        if len(values) and not (int(values.min()) >= 0 and int(values.max()) < limit):
            problems.append(f"{name} goes from {int(values.min())} to {int(values.max())}, 0..{limit - 1} is allowed")
    classes = cohort.recipe.get("classes")
    highest = max((_find_highest_class(mask) for mask in cohort.mask if mask.numel()), default=0)
    if isinstance(classes, list) and highest > len(classes):
        problems.append(f"mask goes up to {highest}, and {len(classes)} classes are named")
    pairs = set(zip(cohort.patient.tolist(), cohort.split.tolist(), strict=True))
    if len(pairs) > len({patient for patient, _ in pairs}):
        problems.append("a patient is in two splits")
    return problems


def _find_highest_class(mask: Tensor) -> int:
    """The highest class in a mask, beside what is ignored."""
    highest = int(mask.max())
    return highest if highest != IGNORED else int(mask.masked_fill(mask == IGNORED, 0).max())


def _count_values(cohort: Cohort) -> int:
    """The number of values that a label can have."""
    if findings := finding_names(cohort):
        return int(STATES ** len(findings))
    return STEPS + 1 if "number" in cohort.recipe else len(label_names(cohort))


def count_synthetic(cohort: Cohort) -> int:
    """The number of synthetic images in the cohort: its last examples, all in the training split."""
    count = cohort.recipe.get("synthetic")
    return count if isinstance(count, int) else 0


def of_patients(cohort: Cohort) -> Cohort:
    """The cohort without synthetic images."""
    synthetic = count_synthetic(cohort)
    if not synthetic:
        return cohort
    rows = len(cohort.labels) - synthetic
    parts = {name: getattr(cohort, name)[:rows] for name in _tensor_names()}
    real_patients = cohort.patients[: len(cohort.patients) - synthetic]
    return replace(cohort, **parts, patients=real_patients, recipe={**cohort.recipe, "synthetic": 0})


def class_numbers(cohort: Cohort) -> Tensor:
    """The class of each example (n,) int64; of labels that are numbers, the band of the range; of findings how many."""
    if findings := finding_names(cohort):
        return find_finding_bands(cohort.labels, len(findings))
    if "number" not in cohort.recipe:
        return cohort.labels
    return torch.tensor([find_band(step) for step in cohort.labels.tolist()], dtype=torch.int64)


def label_names(cohort: Cohort) -> tuple[str, ...]:
    """The names of the labels' classes; of labels that are numbers, the bands of their range, of findings how many."""
    if findings := finding_names(cohort):
        return name_finding_bands(len(findings))
    if (number := read_range(cohort.recipe)) is not None:
        return number.band_names
    names = cohort.recipe.get("labels")
    return tuple(map(str, names)) if isinstance(names, list) else PLAIN


def structures_of(cohort: Cohort, classes: int) -> tuple[tuple[int, ...], ...]:
    """The classes of each structure of the masks: those of its regions, or else one each. classes: with the background.

    Raises:
        ValueError: the recipe's regions are none of its classes.
    """
    names = [str(name) for name in as_list(cohort.recipe.get("classes", []))]
    return list_members(read_regions(cohort.recipe, names), classes)


def finding_names(cohort: Cohort) -> tuple[str, ...]:
    """The names of the findings, where an example has several."""
    names = cohort.recipe.get("findings")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def count_outputs(cohort: Cohort) -> int:
    """The number of a network's outputs for the labels: of each class or finding one, and one for a number."""
    if findings := finding_names(cohort):
        return len(findings)
    return 1 if "number" in cohort.recipe else len(label_names(cohort))


class NoMasks(ValueError):
    """The target's masks are missing in a cohort, or for some of its patients."""


def target_masks(cohort: Cohort, target: Target) -> Tensor:
    """The class of each pixel or voxel, (n, *spatial) uint8, 0 = background, `IGNORED` where nobody says: the cohort's
    own tensor, which may lie in a file.

    `gland` and `lesion` are 0 or 1, `masks` are the classes of the cohort's label maps. In a cohort 0 also stands for
    a missing annotation, which must not be learnt as background. Every patient has a gland, so an empty gland mask was
    not drawn; a patient may have no lesion, so a cohort without lesions must have been read with the target `lesion`,
    which accepts only studies with a mask, which may be empty.

    Raises:
        NoMasks: the cohort has no such masks, or a patient has no gland mask.
    """
    masks = cohort.mask if target == "masks" else cohort.gland if target == "gland" else cohort.lesion
    if masks.shape[1:] != cohort.images.shape[2:] or masks.dim() < 3:
        raise NoMasks(
            f"the cohort has no masks for the target {target}: theirs are of shape {tuple(masks.shape)}, its images of "
            f"shape {tuple(cohort.images.shape)}. Choose another target, or say where the masks are and ingest again."
        )
    drawn = torch.tensor([bool(mask.any()) for mask in masks] if target != "masks" else [], dtype=torch.bool)
    known = cohort.recipe.get("target") == target
    if target == "lesion" and not known and len(masks) and not drawn.any():
        raise NoMasks(
            "no lesion is drawn in this cohort, and it was not read with the target lesion, so that nobody knows "
            "whether its patients have none. Give lesion masks (labels of kind mask) and ingest again."
        )
    if target == "gland" and (undrawn := _count_without_mask(cohort, drawn)):
        raise NoMasks(
            f"{undrawn} of {len(cohort.patients)} patients have no gland mask; each must have one, or the network "
            "learns that they have no gland. Give gland masks and ingest again with the target gland."
        )
    return masks


def _count_without_mask(cohort: Cohort, drawn: Tensor) -> int:
    """The number of patients with examples none of which has a mask."""
    return len(torch.unique(cohort.patient)) - len(torch.unique(cohort.patient[drawn]))
