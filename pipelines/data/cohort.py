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

from pipelines.data.accounts import Account, accounted, as_facts
from pipelines.data.examples import open_source
from pipelines.data.images import IMAGES, AnyImages, Features, Target
from pipelines.data.intake import Intake, WaitingStudy
from pipelines.data.nifti.bids import ENDINGS, stem
from pipelines.data.partition import Divided, Part, dealing_code, divided, written
from pipelines.data.pseudonym import normalized, pseudonym
from pipelines.data.sources import Files, GlandMask, Labels
from pipelines.data.split import SPLITS, Fold, division_code
from pipelines.data.stored import Cohort as Cohort
from pipelines.data.stored import from_message as from_message
from pipelines.data.stored import to_message as to_message
from pipelines.data.study import Rejected
from pipelines.data.survey import survey as survey
from pipelines.data.tables.features import Moments, moments, normalized_by, to_json
from pipelines.data.tables.principal_components import axes_to_json, fitted_axes, projected
from pipelines.data.taking import Taken, kept, natural, take
from privacy.message import Json


class Reading(NamedTuple):
    """The result of `read_cohort`. names: pseudonym -> identifier of each patient; it never leaves the hospital.
    partition: of a partitioned source, by pseudonym (`partition.written`); else None. accounts: the outcome of each
    file; it names patients and never leaves the hospital either. told: evidence and percentiles of each used study, as
    in `Study`; they stay in the hospital, too.
    """

    cohort: Cohort
    rejected: tuple[Rejected, ...]
    facts: dict[str, Json]
    names: Mapping[str, str]
    partition: Mapping[str, Json] | None = None
    accounts: tuple[Account, ...] = ()
    told: tuple[tuple[str, tuple[float, float, float] | None], ...] = ()


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
) -> Reading:
    """Read, check, prepare, label, de-identify, split and order all studies of a hospital, whatever their files' order.

    fractions, seed, independent, fold, part: see `divided`, which uses identifiers in the files. key: of pseudonyms.
    exclude: identifiers or pseudonyms of patients that must not be used, for instance after withdrawal. test: the
    patients of the test split, which then has no others. readers: studies read at a time, without effect on results.
    scale: moments of all sites' training patients, for normalizing features; without it they stay raw. scratch: a
    folder whose disk holds the images, in unnamed temporary files. target: the masks that every study must have.
    classes: of label maps, 1 = the first; () = all classes of the source, in its order. Without a target: of labels,
    0 = the first; () = negative and positive.

    Returns:
        The cohort; the studies that were not used, with reasons; names; and counts: of files (`as_facts`), `studies`,
        `patients`, `images`, `positives`, and `classes` if they are named, `splits` (each with these last four),
        `rejected_by_reason`, `unselected_series`, `excluded` studies, `unmatched_exclusions`, `unmatched_tests`, and
        `scanners` by vendor and field strength. With a part (rejections are then the whole source's) also
        `source_studies`, of which `studies` are here, and unless `independent`, `dealing`.

    Raises:
        ValueError: settings are wrong (a folder is missing, nothing matches, ...); all problems at once.
    """
    opened = open_source(source, labels, images, gland, target, classes)
    names = {found.patient: pseudonym(key, found.patient) for found in opened.waiting if found.patient}
    out = _named_by(exclude, called := names_of(opened.waiting, key))
    # Includes names that match no patient here: a missing name must not change the split of the others.
    held = {*map(normalized, test), *_named_by(test, called)}
    ordered = sorted(opened.waiting, key=lambda found: (names.get(found.patient, ""), natural(found.study)))
    waiting = [found for found in ordered if found.patient not in out]
    taken, refused, parts = take(waiting, _shape(images), readers, scratch, masks=bool(opened.classes))
    rejected = (*opened.rejected, *refused)
    how: Mapping[str, Any] = {"seed": seed, "independent": independent, "key": key, "fold": fold}
    kinds = 2 if target else max(2, len(classes))
    own = _by_the_source(opened.splits, highest := _labels(taken), part, fold, test)
    done = own or divided(highest, part, classes=kinds, fractions=fractions, test=held, **how)
    cut = division_code(fractions, test=[*map(normalized, test)], part=_said(part), **how, given=opened.splits)
    of_source = _of_source(part, done, len(taken), independent)
    taken, parts = (taken, parts) if part is None else kept(taken, parts, done.splits)
    recipe = {"independent": independent, "cut": cut, **_asked(part, target, opened.classes, classes)}
    cohort = replace(_assembled(taken, parts, names, done.splits, opened.unit), recipe=recipe)
    accounts = accounted(opened.items, rejected, _apart(ordered, out, done.splits if part else None))
    facts: dict[str, Json] = {
        **_found(opened, taken, rejected, accounts),
        "excluded": len(opened.waiting) - len(waiting),
        "unmatched_exclusions": len(exclude) - matched(exclude, called),
        "unmatched_tests": len(test) - matched(test, called),
        **of_source,
        **_counts(cohort),
    }
    partition = None if part is None else written(part, done, highest, names, classes=kinds)
    told = tuple(study.told for study in taken)
    return Reading(_scaled(cohort, images, scale), rejected, facts, _named(taken, names), partition, accounts, told)


def _by_the_source(
    splits: Mapping[str, str] | None,
    labels: Mapping[str, int],
    part: Part | None,
    fold: Fold | None,
    test: tuple[str, ...],
) -> Divided | None:
    """The source's own division, if it has one. labels: of the patients that can be used.

    Raises:
        ValueError: the settings divide them, too.
    """
    if splits is None:
        return None
    asked = {"part": part, "split.folds": fold, "test": test}
    if both := [name for name, said in asked.items() if said]:
        raise ValueError(f"source.file: it divides its patients itself, and so does {', '.join(both)}; remove one")
    return Divided({patient: splits[patient] for patient in sorted(labels)}, {})


def _named(taken: Sequence[Taken], names: Mapping[str, str]) -> dict[str, str]:
    return {names[study.patient]: study.patient for study in taken}


def _apart(
    ordered: Sequence[WaitingStudy], out: frozenset[str], here: Mapping[str, str] | None
) -> dict[str, tuple[str, str]]:
    """Studies that the settings leave out, with the reason: an excluded patient, or another site's part."""
    excluded, elsewhere = "The settings exclude this patient.", "It was dealt out to another site."
    told = {one.study: ("excluded", excluded) for one in ordered if one.patient in out}
    if here is not None:
        away = [one for one in ordered if one.patient not in here and one.patient not in out]
        told |= {one.study: ("elsewhere", elsewhere) for one in away}
    return told


def _shape(images: AnyImages) -> tuple[int, ...]:
    """Shape of an example before any projection."""
    return images.columns if isinstance(images, Features) else images.inputs


def _said(part: Part | None) -> dict[str, Json] | None:
    return None if part is None else asdict(part)


def _asked(part: Part | None, target: Target | None, masks: Sequence[str], classes: Sequence[str]) -> dict[str, Json]:
    said: dict[str, Json] = {"part": _said(part), "target": target, "classes": [*masks]}
    said |= {"labels": [] if target else [*classes]}
    return {name: value for name, value in said.items() if value}


def _found(
    opened: Intake, taken: Sequence[Taken], rejected: Sequence[Rejected], accounts: Sequence[Account]
) -> dict[str, Json]:
    return {
        **as_facts(accounts),
        "unselected_series": opened.unselected,
        "studies": len(taken),
        "rejected_by_reason": dict(sorted(Counter(study.reason for study in rejected).items())),
        "scanners": dict(sorted(Counter(study.scanner for study in taken).items())),
    }


def _labels(taken: Sequence[Taken]) -> dict[str, int]:
    """Patient -> the highest class of the patient's examples: 1 if any is positive, or the worst grade."""
    highest_last = sorted(taken, key=lambda study: max(study.labels, default=0))
    return {study.patient: max(study.labels, default=0) for study in highest_last}


def _of_source(part: Part | None, done: Divided, studies: int, independent: bool) -> dict[str, Json]:
    """Counts of a partitioned source; `dealing` depends on all patients, so a private run has none."""
    if part is None:
        return {}
    return {"source_studies": studies} | ({} if independent else {"dealing": dealing_code(part, done)})


def names_of(waiting: Sequence[WaitingStudy], key: bytes) -> dict[str, set[str]]:
    """Each patient's identifier and pseudonym; for NIfTI files also the file names and their pseudonyms.

    A list of withdrawn patients may still use the whole file name, which was the identifier before BIDS names were
    supported; such patients must stay excluded.
    """
    called: dict[str, set[str]] = {}
    for found in waiting:
        if found.patient:
            file = found.study.rpartition("/")[2]
            names = {found.patient, *([normalized(stem(file))] if file.lower().endswith(ENDINGS) else [])} - {""}
            called.setdefault(found.patient, set()).update(names, (pseudonym(key, name) for name in names))
    return called


def _named_by(wanted: tuple[str, ...], called: Mapping[str, set[str]]) -> frozenset[str]:
    """Identifiers of the patients of whom `wanted` has any name."""
    asked = {normalized(name) for name in wanted}
    return frozenset(patient for patient, names in called.items() if names & asked)


def matched(wanted: tuple[str, ...], called: Mapping[str, set[str]]) -> int:
    """How many of the wanted names are names of patients."""
    known = set().union(*called.values())
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
        return cohort  # pooled without moments: this pass only computes them
    axes = fitted_axes(cohort.images[cohort.split == SPLITS.index("train")], images.components)
    # The axes are fitted to all training patients, so each example depends on all of them.
    recipe: dict[str, Json] = {**cohort.recipe, "axes": axes_to_json(axes), "independent": False}
    return replace(cohort, images=projected(cohort.images, axes), recipe=recipe)


def training_moments(cohort: Cohort) -> Moments:
    """Moments of the training patients' features."""
    return moments(cohort.images[cohort.split == SPLITS.index("train")])


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
        mask=parts["mask"],
    )


def _repeated(values: Sequence[int], lengths: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.repeat_interleave(torch.tensor(values, dtype=dtype), torch.tensor(lengths, dtype=torch.int64))


def _counts(cohort: Cohort) -> dict[str, Json]:
    named = cohort.recipe.get("labels")
    classes = len(named) if isinstance(named, list) else 0
    parts: dict[str, Json] = {
        name: {
            "patients": len(set(cohort.patient[here].tolist())),
            "images": int(here.sum()),
            **_of_classes(cohort.labels[here], classes),
        }
        for number, name in enumerate(SPLITS)
        for here in [cohort.split == number]
    }
    total: dict[str, Json] = {
        "patients": len(cohort.patients),
        "images": len(cohort.labels),
        **_of_classes(cohort.labels, classes),
    }
    return {**total, "splits": parts}


def _of_classes(labels: Tensor, classes: int) -> dict[str, Json]:
    """`positives`, the images of any class but the first, and with named classes the images of each."""
    each: list[Json] = torch.bincount(labels, minlength=classes).tolist()
    return {"positives": int((labels > 0).sum())} | ({"classes": each} if classes else {})
