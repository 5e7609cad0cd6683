"""What ingest would say of a hospital's files, found before any run: by the functions that ingest itself uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipelines.data.cohort import count_matched_names, list_patient_names
from pipelines.data.examples import open_source
from pipelines.data.intake import WaitingStudy, foresee_rejection
from pipelines.data.label_findings import FindingNames
from pipelines.data.label_numbers import Meaning
from pipelines.data.labels import open_table
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.sources import PictureSource, TableLabels
from pipelines.data.study import Rejected
from pipelines.hospital.files import Files, files_of, settings_of
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.intake import WITHOUT_LABELS, is_without_labels, read_as_asked
from pipelines.hospital.overview import describe_sample, read_sample
from pipelines.requests.ingest import Ingest
from privacy.message import as_mapping
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

READ_WHOLE = ("table", "tensors")
"""Kinds of sources that are read whole here, as ingest does: they are small."""


class Foreseen(NamedTuple):
    """line: what is there, for the hospital's staff. problems: why ingest would fail."""

    line: str
    problems: tuple[str, ...] = ()


def foresee_ingest(hospital: Hospital, question: Ingest) -> Foreseen:
    """What ingest would find: of volumes and pictures from all headers and names, and the pixels of a few studies.

    Raises:
        Refused: as `files_of`.
    """
    files = files_of(hospital)
    try:
        if files.source.kind in READ_WHOLE:
            return _read_whole(hospital, question)
        return _look_into_files(hospital, files, question)
    except ValueError as error:
        return Foreseen("", (str(error),))


def table_problems(files: Files, question: Ingest) -> tuple[str, ...]:
    """What is wrong with a hospital's table of labels, or of pictures."""
    try:
        if isinstance(files.source, PictureSource):
            from pipelines.data.pictures.reader import check_table  # readers are slow to import

            check_table(files.source, _find_meaning(question))
        if isinstance(files.labels, TableLabels):
            open_table(files.labels, _find_meaning(question))
    except ValueError as error:
        return (str(error),)
    return ()


def _find_meaning(question: Ingest) -> Meaning:
    """What the labels of a table mean."""
    if findings := value_or_none(question.findings):
        return FindingNames(tuple(findings))
    return value_or_none(question.number) or _class_names(question)


def _read_whole(hospital: Hospital, question: Ingest) -> Foreseen:
    """What ingest would find in a table or tensors, which are read whole."""
    try:
        read = read_as_asked(hospital, question)
    except Refused as refused:
        raise ValueError(str(refused.__cause__ or refused.code)) from refused
    counts = {name: int(str(read.facts[name])) for name in ("patients", "studies", "images")}
    line = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    used = int(str(read.facts.get("source_studies", counts["studies"])))
    problems = _find_rejection_problems(hospital, Counter(study.reason for study in read.rejected), used, read.rejected)
    splits = as_mapping(read.facts["splits"])
    needed = ("train",) if question.unlabelled is True else ("train", "test")
    patients = {split: as_mapping(splits[split])["patients"] for split in needed}
    problems += [f"no patient in the {split} split" for split, number in patients.items() if not number]
    return Foreseen(line, tuple(problems))


def _look_into_files(hospital: Hospital, files: Files, question: Ingest) -> Foreseen:
    """What ingest would find, by all headers and the pixels of a few studies."""
    settings, classes = settings_of(hospital), _class_names(question)
    if is_without_labels(files, question):
        raise ValueError(WITHOUT_LABELS)
    opened = open_source(
        files.source,
        files.labels,
        question.images,
        files.gland,
        value_or_none(question.target),
        classes,
        value_or_none(question.number),
        tuple(value_or_none(question.findings) or ()),
    )
    called = list_patient_names(opened.waiting, hospital.key())
    out = {*map(normalize_identifier, settings.exclude)}
    asked_for = [study for study in opened.waiting if not out & called.get(study.patient, set())]
    rejected = [*opened.rejected]
    left: list[WaitingStudy] = []
    for study in asked_for:
        if (why := foresee_rejection(study)) is None:
            left.append(study)
        else:
            rejected.append(why)
    sample = read_sample(replace(opened, waiting=tuple(left)), settings.readers)
    rejected += sample.rejected
    problems = _find_rejection_problems(
        hospital, Counter(study.reason for study in rejected), len(left) - len(sample.rejected), rejected
    )
    if sample.rejected and not sample.read:
        reasons = ", ".join(sorted({f"{study.reason}: {study.detail}" for study in sample.rejected}))
        problems.append(f"each of the {len(sample.rejected)} studies that were read was rejected ({reasons})")
    usable = {study.patient for study in left}
    problems += _too_few(question, len(usable), settings.test)
    names_by_key = {"test": settings.test, "exclude": settings.exclude}
    misspelt = {key: len(names) - count_matched_names(names, called) for key, names in names_by_key.items()}
    if settings.test and misspelt["test"] == len(settings.test):
        problems.append(f"none of the {len(settings.test)} names in test matches a patient, so nobody would be tested")
    line = describe_sample(opened, sample) + "".join(
        f" ! {number} of the names in {key} match no patient." for key, number in misspelt.items() if number
    )
    return Foreseen(line, tuple(problems))


def _class_names(question: Ingest) -> tuple[str, ...]:
    """Names of the classes in the question."""
    return tuple(value_or_none(question.classes) or ())


def _find_rejection_problems(
    hospital: Hospital, reasons: Mapping[str, int], used: int, examples: Sequence[Rejected] = ()
) -> list[str]:
    """A problem if more studies are rejected than the hospital's `max_rejected` allows, or none is left. examples: of
    rejected studies, of which the first with each reason is told.
    """
    rejected, most = sum(reasons.values()), settings_of(hospital).max_rejected
    first = {study.reason: f", as {study.study}: {study.detail}" for study in reversed(examples)}
    counts = [f"{reason} ({count}{first.get(reason, '')})" for reason, count in sorted(reasons.items()) if count]
    text = ", ".join(counts)
    if rejected / max(1, rejected + used) > most:
        of = f"{rejected} of {rejected + used} studies would be rejected"
        return [f"{of}, and max_rejected allows {most:.0%}: {text}"]
    return [] if used else [f"no study can be used ({text or 'none was found'})"]


def _too_few(question: Ingest, patients: int, test: Sequence[str]) -> list[str]:
    """A problem if fewer patients can be used than splits that need one; a partitioned source is dealt out later."""
    shares = question.split
    needed = sum(share > 0 for share in (shares.train, shares.validation, shares.test)) if not test else 2
    return (
        []
        if patients >= needed
        else [f"{patients} patients, without excluded and unlabelled ones, are too few for {needed} splits"]
    )
