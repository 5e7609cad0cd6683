"""Files of patients become a cohort at the hospital: `survey`, `ingest`, `holds`."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

import torch
from pydantic import TypeAdapter

from federation.conversation import stored_reply
from pipelines.cohort.cohort import Cohort, Preparation, read_cohort, survey, to_message
from pipelines.cohort.dicom import DicomSource
from pipelines.cohort.labels import GlandMask, MaskLabels, TableLabels
from pipelines.cohort.nifti import NiftiSource
from pipelines.cohort.phantom import PhantomSource
from pipelines.cohort.phantom_files import write
from pipelines.cohort.study import Rejected
from pipelines.config import SiteSettings, Split
from pipelines.door import to_plain
from pipelines.site.hospital import COHORT, SPLITS, Done, Hospital, read_cohort_file
from pipelines.store import DiskFolder, digest, short
from privacy.events import NON_PRIVATE, NOTHING, describe
from privacy.gate import Refused
from privacy.message import Call, Json, Malformed, Message, from_bytes, to_bytes, unsealed

REJECTED, SPLIT = "rejected.json", "split.json"


class Files(NamedTuple):
    """Where a hospital's images, labels and gland masks lie."""

    source: DicomSource | NiftiSource
    labels: MaskLabels | TableLabels
    gland: GlandMask | None


def survey_files(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """How many files there are, and a digest of their names, sizes and times and of the settings that concern them."""
    settings = _settings(hospital)
    files = files_of(hospital)
    found = survey(files.source, files.labels, files.gland)
    own = {"files": found["digest"], "settings": to_plain(replace(settings, methods={}, work={}))}
    # Keyed, because file names could be guessed from a plain digest.
    keyed = hmac.new(hospital.key(), digest(own).encode(), "sha256").hexdigest()
    return Done(Message({}, {"digest": keyed, "files": found["files"], "bytes": found["bytes"]}), describe(NON_PRIVATE))


def ingest(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Read, check, de-identify and split; facts `images`, `split`, `seed` say how.

    Returns:
        Counts by split and by reason of rejection, and the name and digest of the cohort. The studies that were
        rejected, with the reason of each, are written to `rejected.json` beside it and stay here.
    """
    settings, files = _settings(hospital), files_of(hospital)
    asked = TypeAdapter(Preparation).validate_json(json.dumps(message.facts["images"]), strict=True)
    shares = TypeAdapter(Split).validate_json(json.dumps(message.facts["split"]), strict=True)
    cohort, rejected, facts = read_cohort(
        files.source,
        files.labels,
        replace(asked, gland=files.gland),
        fractions={"train": shares.train, "validation": shares.validation, "test": shares.test},
        seed=int(str(message.facts["seed"])),
        key=hospital.key(),
        exclude=settings.exclude,
    )
    data = to_bytes(to_message(cohort))
    sha = hashlib.sha256(data).hexdigest()
    folder = DiskFolder(hospital.cohort_folder(short(sha)))
    folder.write(REJECTED, json.dumps([asdict(study) for study in rejected], indent=1).encode())
    folder.write(SPLIT, json.dumps(_split(cohort), indent=1).encode())
    folder.write(COHORT, data)
    share = len(rejected) / max(1, len(rejected) + int(str(facts["studies"])))
    reply: dict[str, Json] = {
        **facts,
        "cohort": short(sha),
        "sha256": sha,
        "rejected": len(rejected),
        "max_rejected": settings.max_rejected,
        "too_many_rejected": share > settings.max_rejected,
    }
    return Done(Message({}, reply), describe(NON_PRIVATE))


def holds(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Whether this hospital still has what an artifact of the coordinator speaks of: a cohort, models of runs.

    Facts: `cohort` with `sha256`, or `runs`. Returns: facts `complaint` (a sentence of fixed words, or None) and
    `known` (which of the runs this hospital has taken part in).
    """
    runs = message.facts.get("runs")
    event = NON_PRIVATE if "cohort" in message.facts else NOTHING  # it tells whether the cohort is a certain one
    known = [run for run in (runs if isinstance(runs, list) else []) if hospital.conversation(str(run)).names()]
    return Done(Message({}, {"complaint": _complaint(hospital, message.facts), "known": known}), describe(event))


def forget_damaged(hospital: Hospital, call: Call) -> None:
    """Drop a committed answer that is corrupt, or whose cohort is gone or corrupt, so that it is made again."""
    folder = hospital.conversation(call.run)
    name = f"{call.request}-{call.round}"
    if not folder.has(name):
        return
    try:
        facts = from_bytes(stored_reply(folder, name)).facts
    except Malformed:
        folder.remove(name)
        return
    if call.request == "ingest" and _complaint(hospital, facts):
        folder.remove(name)


def _complaint(hospital: Hospital, facts: Mapping[str, Json]) -> str | None:
    cohort, runs = facts.get("cohort"), facts.get("runs")
    if isinstance(cohort, str):
        path = hospital.cohort_folder(cohort) / COHORT
        if not path.exists():
            return "the cohort is gone"
        if hashlib.sha256(path.read_bytes()).hexdigest() != facts["sha256"]:
            return "the cohort is corrupt"
    for run in runs if isinstance(runs, list) else []:
        models = hospital.models(str(run))
        if not models.names():
            return f"the models of {run} are gone"
        try:
            for name in models.names():
                from_bytes(unsealed(models.read(name)))
        except Malformed:
            return f"a model of {run} is corrupt"
    return None


def files_of(hospital: Hospital) -> Files:
    """The hospital's files. A phantom's are written first, once."""
    settings = _settings(hospital)
    if not isinstance(settings.source, PhantomSource):
        if settings.labels is None:
            raise Refused("no_labels")
        return Files(settings.source, settings.labels, settings.gland)
    plain = to_plain(settings.source)
    folder = hospital.root / "phantom" / short(digest(plain))
    if not folder.exists():  # it appears whole or not at all
        write(settings.source, folder)
    images = str(folder / "images")
    source = (
        DicomSource(kind="dicom", folder=images, select={"ImageType": "ADC"})
        if settings.source.format == "dicom"
        else NiftiSource(kind="nifti", folder=images)
    )
    masks = folder / "masks"
    return Files(source, MaskLabels(kind="mask", folder=str(masks / "lesion")), GlandMask(folder=str(masks / "gland")))


def rejected_studies(hospital: Hospital, cohort: str) -> list[Rejected]:
    """The hospital's quarantine, for its own page."""
    data = json.loads((hospital.cohort_folder(cohort) / REJECTED).read_text())
    return [Rejected(**study) for study in data]


def cohort_of(hospital: Hospital, cohort: str) -> Cohort:
    """The hospital's cohort. Raises: Refused."""
    return read_cohort_file(hospital.cohort_folder(cohort) / COHORT)


def _split(cohort: Cohort) -> dict[str, list[str]]:
    """Pseudonyms by split, as written down beside the cohort."""
    found: dict[str, list[str]] = {}
    for number, split in enumerate(SPLITS):
        patients = torch.unique(cohort.patient[cohort.split == number]).tolist()
        found[split] = [cohort.patients[patient] for patient in patients]
    return found


def _settings(hospital: Hospital) -> SiteSettings:
    if hospital.settings is None:
        raise Refused("no_files")
    return hospital.settings
