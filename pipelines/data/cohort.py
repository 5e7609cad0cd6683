"""Make a cohort from one hospital's files: de-identified, checked, labelled and split examples.

A cohort names no patient: pseudonyms are keyed, and of the headers only counts of scanner models remain. Rejections
quote file names and headers, so they stay at the site; only their counts by reason may leave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipelines.data.accounts import Account, account_facts, list_accounts
from pipelines.data.examples import open_source
from pipelines.data.images import AnyImages, Features, Target, describe_images
from pipelines.data.intake import Intake, WaitingStudy
from pipelines.data.label_findings import find_finding_bands, name_finding_bands
from pipelines.data.label_numbers import BANDS, LabelRange, find_band
from pipelines.data.nifti.bids import ENDINGS, file_stem
from pipelines.data.partition import Divided, Part, dealing_code, divide_patients, partition_record
from pipelines.data.pseudonym import make_pseudonym, normalize_identifier
from pipelines.data.regions import unpack_regions
from pipelines.data.sources import Files, GlandMask, Labels
from pipelines.data.split import SPLITS, Fold, division_code
from pipelines.data.stored import Cohort as Cohort
from pipelines.data.stored import class_numbers, label_names
from pipelines.data.stored import from_message as from_message
from pipelines.data.stored import to_message as to_message
from pipelines.data.study import Rejected
from pipelines.data.survey import survey as survey
from pipelines.data.tables.features import Moments, moments, standardize_features, to_json
from pipelines.data.tables.principal_components import axes_to_json, fit_axes, project_features
from pipelines.data.taking import Taken, natural_key, select_patients, take_studies
from privacy.message import Json


class Reading(NamedTuple):
    """The result of `read_cohort`. names: pseudonym -> identifier of each patient; it never leaves the hospital.
    partition: of a partitioned source, by pseudonym (`partition.written`); else None. accounts: the outcome of each
    file; it names patients and never leaves the hospital either. evidence: of each used study, with
    its percentiles, as in `Study`; it stays in the hospital, too.
    """

    cohort: Cohort
    rejected: tuple[Rejected, ...]
    facts: dict[str, Json]
    names: Mapping[str, str]
    partition: Mapping[str, Json] | None = None
    accounts: tuple[Account, ...] = ()
    evidence: tuple[tuple[str, tuple[float, float, float] | None], ...] = ()


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
    target: Target | None = None,
    classes: tuple[str, ...] = (),
    number: LabelRange | None = None,
    findings: tuple[str, ...] = (),
    regions: Sequence[Sequence[str]] = (),
) -> Reading:
    """Read, check, prepare, label, de-identify, split and order all studies of a hospital, whatever their files' order.

    fractions, seed, independent, fold, part: see `divided`, which uses identifiers in the files. key: of pseudonyms.
    exclude: identifiers or pseudonyms of patients that must not be used, for instance after withdrawal. test: the
    patients of the test split, which then has no others. readers: studies read at a time, without effect on results.
    scale: moments of all sites' training patients, for normalizing features; without it they stay raw. scratch: a
    folder whose disk holds the images, in unnamed temporary files. target: the masks that every study must have.
    classes: of label maps, 1 = the first; () = all classes of the source, in its order. Without a target: of labels,
    0 = the first; () = negative and positive. regions: of these classes, as `pack_regions` packs them, for the cohort's
    recipe. number: labels are numbers in this range; patients are then balanced and
    counted by its bands, as if these were classes. findings: names of several that each example has, does not have, or
    of which nobody knows; patients are balanced and counted by how many (`label_findings.find_finding_band`).

    Returns:
        The cohort; the studies that were not used, with reasons; names; and counts: of files (`account_facts`),
        `studies`, `patients`, `images`, `positives`, and `classes` if they are named, `splits` (each with these last
        four), `rejected_by_reason`, `unselected_series`, `excluded` studies, `unmatched_exclusions`, `unmatched_tests`,
        and `scanners` by vendor and field strength. With a part (rejections are then the whole source's) also
        `source_studies`, of which `studies` are here, and unless `independent`, `dealing`.

    Raises:
        ValueError: settings are wrong (a folder is missing, nothing matches, ...); all problems at once.
    """
    opened = open_source(source, labels, images, gland, target, classes, number, findings)
    names = {study.patient: make_pseudonym(key, study.patient) for study in opened.waiting if study.patient}
    excluded = find_named_patients(exclude, patient_names := list_patient_names(opened.waiting, key))
    # Includes names that match no patient here: a missing name must not change the split of the others.
    listed = [*map(normalize_identifier, test)]
    test_names = {*listed, *find_named_patients(test, patient_names)}
    ordered = sorted(opened.waiting, key=lambda study: (names.get(study.patient, ""), natural_key(study.study)))
    waiting = [study for study in ordered if study.patient not in excluded]
    taken, refused, parts = take_studies(waiting, _example_shape(images), readers, scratch, masks=bool(opened.classes))
    rejected = (*opened.rejected, *refused)
    division_settings: Mapping[str, Any] = {"seed": seed, "independent": independent, "key": key, "fold": fold}
    class_count = _count_kinds(target, classes, number, findings)
    highest = _highest_classes(taken, number, len(findings))
    source_division = _find_source_division(opened.splits, highest, part, fold, test)
    division = source_division or divide_patients(
        highest, part, classes=class_count, fractions=fractions, test=test_names, **division_settings
    )
    code = division_code(
        fractions, test=listed, part=_part_settings(part), **division_settings, source_splits=opened.splits
    )
    partition_facts = _partition_facts(part, division, len(taken), independent)
    taken, parts = (taken, parts) if part is None else select_patients(taken, parts, division.splits, scratch)
    recipe = {"independent": independent, "cut": code, **_recipe_settings(part, target, opened.classes, classes)}
    recipe |= _recipe_of_labels(number, findings) | _recipe_of_regions(regions, opened.classes)
    cohort = replace(_build_cohort(taken, parts, names, division.splits, opened.unit), recipe=recipe)
    accounts = list_accounts(
        opened.items, rejected, _explain_left_out_studies(ordered, excluded, division.splits if part else None)
    )
    facts: dict[str, Json] = {
        **_reading_facts(opened, taken, rejected, accounts),
        "excluded": len(opened.waiting) - len(waiting),
        "unmatched_exclusions": len(exclude) - count_matched_names(exclude, patient_names),
        "unmatched_tests": len(test) - count_matched_names(test, patient_names),
        **partition_facts,
        **_count_cohort(cohort),
    }
    return Reading(
        _normalize_features(cohort, images, scale),
        rejected,
        facts,
        _map_pseudonyms(taken, names),
        None if part is None else partition_record(part, division, highest, names, classes=class_count),
        accounts,
        tuple(study.evidence for study in taken),
    )


def _find_source_division(
    splits: Mapping[str, str] | None,
    labels: Mapping[str, int],
    part: Part | None,
    fold: Fold | None,
    test: tuple[str, ...],
) -> Divided | None:
    """The division that the source itself gives; None if it gives none. labels: of the patients that can be used.

    Raises:
        ValueError: the settings divide the patients, too.
    """
    if splits is None:
        return None
    settings = {"part": part, "split.folds": fold, "test": test}
    if named_settings := [name for name, value in settings.items() if value]:
        raise ValueError(
            f"source.file: it divides its patients itself, and so does {', '.join(named_settings)}; remove one"
        )
    return Divided({patient: splits[patient] for patient in sorted(labels)}, {})


def _map_pseudonyms(taken: Sequence[Taken], names: Mapping[str, str]) -> dict[str, str]:
    """Pseudonym -> identifier, of the patients whose studies are used."""
    return {names[study.patient]: study.patient for study in taken}


def _explain_left_out_studies(
    ordered: Sequence[WaitingStudy], excluded_patients: frozenset[str], part_patients: Mapping[str, str] | None
) -> dict[str, tuple[str, str]]:
    """Studies that the settings leave out, with the reason: an excluded patient, or another site's part."""
    exclusion, other_site = "The settings exclude this patient.", "It was dealt out to another site."
    reasons = {study.study: ("excluded", exclusion) for study in ordered if study.patient in excluded_patients}
    if part_patients is not None:
        other_studies = [
            study for study in ordered if study.patient not in part_patients and study.patient not in excluded_patients
        ]
        reasons |= {study.study: ("elsewhere", other_site) for study in other_studies}
    return reasons


def _example_shape(images: AnyImages) -> tuple[int, ...]:
    """Shape of an example before any projection."""
    return images.columns if isinstance(images, Features) else images.inputs


def _part_settings(part: Part | None) -> dict[str, Json] | None:
    """The settings of the part as JSON; None without a part."""
    return None if part is None else asdict(part)


def _recipe_settings(
    part: Part | None, target: Target | None, masks: Sequence[str], classes: Sequence[str]
) -> dict[str, Json]:
    """The entries of `Cohort.recipe` that come from the settings; empty values are left out."""
    settings: dict[str, Json] = {"part": _part_settings(part), "target": target, "classes": [*masks]}
    settings |= {"labels": [] if target else [*classes]}
    return {name: value for name, value in settings.items() if value}


def _recipe_of_labels(number: LabelRange | None, findings: Sequence[str]) -> dict[str, Json]:
    """What `Cohort.recipe` says of labels that are no classes."""
    return {"number": number.to_json()} if number else {"findings": [*findings]} if findings else {}


def _recipe_of_regions(regions: Sequence[Sequence[str]], masks: Sequence[str]) -> dict[str, Json]:
    """What `Cohort.recipe` says of regions. Raises: ValueError: they are none of these classes."""
    checked: list[Json] = [[name, *members] for name, members in unpack_regions(regions, masks).items()]
    return {"regions": checked} if checked else {}


def _reading_facts(
    opened: Intake, taken: Sequence[Taken], rejected: Sequence[Rejected], accounts: Sequence[Account]
) -> dict[str, Json]:
    """The counts of files, series, studies, rejections and scanners."""
    return {
        **account_facts(accounts),
        "unselected_series": opened.unselected,
        "studies": len(taken),
        "rejected_by_reason": dict(sorted(Counter(study.reason for study in rejected).items())),
        "scanners": dict(sorted(Counter(study.scanner for study in taken).items())),
    }


def _count_kinds(
    target: Target | None, classes: Sequence[str], number: LabelRange | None, findings: Sequence[str]
) -> int:
    """The number of kinds of patients by which splits are balanced."""
    if target:
        return 2
    return BANDS if number else len(name_finding_bands(len(findings))) if findings else max(2, len(classes))


def _highest_classes(taken: Sequence[Taken], number: LabelRange | None, findings: int = 0) -> dict[str, int]:
    """Patient -> the highest class of the patient's examples: 1 if any is positive, or the worst grade; of numbers the
    highest band, of findings how many.
    """
    highest = {(study.patient, max(_list_kinds(study.labels, number, findings), default=0)) for study in taken}
    return dict(sorted(highest, key=lambda pair: pair[1]))


def _list_kinds(labels: Sequence[int], number: LabelRange | None, findings: int) -> Sequence[int]:
    """Labels as the classes by which patients are balanced and counted."""
    if findings:
        kinds: list[int] = find_finding_bands(torch.tensor(labels, dtype=torch.int64), findings).tolist()
        return kinds
    return [find_band(label) for label in labels] if number else labels


def _partition_facts(part: Part | None, division: Divided, studies: int, independent: bool) -> dict[str, Json]:
    """Counts of a partitioned source; `dealing` depends on all patients, so a private run has none."""
    if part is None:
        return {}
    return {"source_studies": studies} | ({} if independent else {"dealing": dealing_code(part, division)})


def list_patient_names(waiting: Sequence[WaitingStudy], key: bytes) -> dict[str, set[str]]:
    """Each patient's identifier and pseudonym; for NIfTI files also the file names and their pseudonyms.

    A list of withdrawn patients may still use the whole file name, which was the identifier before BIDS names were
    supported; such patients must stay excluded.
    """
    patient_names: dict[str, set[str]] = {}
    for study in waiting:
        if study.patient:
            file = study.study.rpartition("/")[2]
            names = {
                study.patient,
                *([normalize_identifier(file_stem(file))] if file.lower().endswith(ENDINGS) else []),
            } - {""}
            patient_names.setdefault(study.patient, set()).update(names, (make_pseudonym(key, name) for name in names))
    return patient_names


def find_named_patients(wanted_names: tuple[str, ...], patient_names: Mapping[str, set[str]]) -> frozenset[str]:
    """Identifiers of the patients that have any of these names."""
    normalized_names = {normalize_identifier(name) for name in wanted_names}
    return frozenset(patient for patient, names in patient_names.items() if names & normalized_names)


def count_matched_names(wanted_names: tuple[str, ...], patient_names: Mapping[str, set[str]]) -> int:
    """The number of these names that are names of patients."""
    known_names = set().union(*patient_names.values())
    return sum(normalize_identifier(name) in known_names for name in wanted_names)


def _normalize_features(cohort: Cohort, images: AnyImages, scale: Moments | None) -> Cohort:
    """The cohort with `images` and `scale` in its recipe, and features scaled and projected if asked."""
    cohort = replace(cohort, recipe={**cohort.recipe, "images": describe_images(images), "scale": None})
    if not isinstance(images, Features):
        return cohort
    feature_moments = (
        compute_training_moments(cohort)
        if images.normalize == "site"
        else scale
        if images.normalize == "pooled"
        else None
    )
    if feature_moments is not None:
        scaled = standardize_features(cohort.images, feature_moments)
        cohort = replace(cohort, images=scaled, recipe={**cohort.recipe, "scale": to_json(feature_moments)})
    if images.components is None or (images.normalize == "pooled" and feature_moments is None):
        return cohort  # pooled without moments: this pass only computes them
    axes = fit_axes(cohort.images[cohort.split == SPLITS.index("train")], images.components)
    # The axes are fitted to all training patients, so each example depends on all of them.
    recipe: dict[str, Json] = {**cohort.recipe, "axes": axes_to_json(axes), "independent": False}
    return replace(cohort, images=project_features(cohort.images, axes), recipe=recipe)


def compute_training_moments(cohort: Cohort) -> Moments:
    """Moments of the training patients' features."""
    return moments(cohort.images[cohort.split == SPLITS.index("train")])


def _build_cohort(
    taken: Sequence[Taken],
    parts: Mapping[str, Tensor],
    names: Mapping[str, str],
    splits: Mapping[str, str],
    unit: str,
) -> Cohort:
    """The cohort of the studies that were read, from their tensors and splits."""
    patients = tuple(sorted({names[study.patient] for study in taken}))
    numbers = {name: number for number, name in enumerate(patients)}
    lengths = [len(study.labels) for study in taken]
    return Cohort(
        images=parts["images"],
        labels=torch.tensor([label for study in taken for label in study.labels], dtype=torch.int64),
        patient=_repeat_values([numbers[names[study.patient]] for study in taken], lengths, torch.int64),
        position=torch.tensor([place for study in taken for place in study.position], dtype=torch.float32),
        lesion=parts["lesion"],
        gland=parts["gland"],
        split=_repeat_values([SPLITS.index(splits[study.patient]) for study in taken], lengths, torch.int8),
        patients=patients,
        unit=unit,
        mask=parts["mask"],
    )


def _repeat_values(values: Sequence[int], lengths: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Each study's value, once for each of its examples."""
    return torch.repeat_interleave(torch.tensor(values, dtype=dtype), torch.tensor(lengths, dtype=torch.int64))


def _count_cohort(cohort: Cohort) -> dict[str, Json]:
    """Patients, images and classes of the cohort, in total and for each split."""
    class_names = cohort.recipe.get("labels")
    classes = len(class_names) if isinstance(class_names, list) else 0
    if "number" in cohort.recipe or "findings" in cohort.recipe:
        classes = len(label_names(cohort))
    labels = class_numbers(cohort)
    parts: dict[str, Json] = {
        name: {
            "patients": len(set(cohort.patient[in_split].tolist())),
            "images": int(in_split.sum()),
            **_count_classes(labels[in_split], classes),
        }
        for number, name in enumerate(SPLITS)
        for in_split in [cohort.split == number]
    }
    total: dict[str, Json] = {
        "patients": len(cohort.patients),
        "images": len(cohort.labels),
        **_count_classes(labels, classes),
    }
    return {**total, "splits": parts}


def _count_classes(labels: Tensor, classes: int) -> dict[str, Json]:
    """`positives`, the images of any class but the first, and with named classes the images of each."""
    each: list[Json] = torch.bincount(labels, minlength=classes).tolist()
    return {"positives": int((labels > 0).sum())} | ({"classes": each} if classes else {})
