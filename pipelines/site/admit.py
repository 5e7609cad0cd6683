"""Files of patients become a cohort at the hospital: `survey`, `ingest`, `holds`."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import TypeAdapter

from federation.conversation import newest, remembered, stored_reply
from federation.participant import CHECKPOINTS, checkpoint
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
    _look(files)
    found = survey(*files)
    if not found["files"]:
        raise Refused("no_files")
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
    try:
        cohort, rejected, facts = read_cohort(
            files.source,
            files.labels,
            replace(asked, gland=files.gland),
            fractions={"train": shares.train, "validation": shares.validation, "test": shares.test},
            seed=int(str(message.facts["seed"])),
            key=hospital.key(),
            exclude=settings.exclude,
        )
    except ValueError as error:  # a study's trouble is quarantined; this is the source as a whole
        raise Refused("bad_source") from error
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

    Facts: `cohort` with `sha256`; `runs`, each with its globally best round (or None) if it is finished, else "begun";
    `page` with the sha256 of the report page. Returns: facts `complaint` (a sentence of fixed words, or None) and
    `known` (which of the runs this hospital has taken part in).
    """
    known: list[Json] = [run for run in _runs(message.facts) if _trained(hospital, run)]
    event = NON_PRIVATE if "cohort" in message.facts else NOTHING  # it tells whether the cohort is a certain one
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
    cohort, page = facts.get("cohort"), facts.get("page")
    if isinstance(cohort, str) and (complaint := _cohort_complaint(hospital.cohort_folder(cohort), facts)):
        return complaint
    if isinstance(page, str) and _digest(hospital.root / "report.html") != page:
        return "its own page is gone, or of another run"
    found = (_run_complaint(hospital, run, state) for run, state in _runs(facts).items())
    return next((complaint for complaint in found if complaint), None)


def _cohort_complaint(folder: Path, facts: Mapping[str, Json]) -> str | None:
    if not (folder / COHORT).exists():
        return "the cohort is gone"
    if _digest(folder / COHORT) != facts["sha256"]:
        return "the cohort is corrupt"
    for name in (REJECTED, SPLIT):
        try:
            json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            return f"{name} is gone or corrupt"
    return None


def _run_complaint(hospital: Hospital, run: str, state: Json) -> str | None:
    """What is wrong with what this hospital remembers of a run, and, if it is finished, with its models."""
    folder, models = hospital.conversation(run), hospital.models(run)
    try:
        remembered(folder, 0)
        memory = newest(folder)
        for name in models.names():
            unsealed(models.read(name))
    except Malformed:
        return f"a model or a memory of {run} is corrupt"
    if state == "begun":
        return None
    try:
        for which in CHECKPOINTS:
            checkpoint(models, memory, which, best=state if isinstance(state, int) else None)
    except KeyError:
        return f"models of {run} are gone"
    return None


def _runs(facts: Mapping[str, Json]) -> dict[str, Json]:
    runs = facts.get("runs")
    return dict(runs) if isinstance(runs, dict) else {}


def _trained(hospital: Hospital, run: str) -> bool:
    """Whether this hospital has answered more of a run than its introduction."""
    return any(not name.startswith("introduce") for name in hospital.conversation(run).names())


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def files_of(hospital: Hospital) -> Files:
    """The hospital's files. A phantom's are written first, once."""
    settings = _settings(hospital)
    if not isinstance(settings.source, PhantomSource):
        if settings.labels is None:
            raise Refused("no_labels")
        return Files(settings.source, settings.labels, settings.gland)
    name = short(digest(to_plain(settings.source)))
    folder = hospital.root / "phantom" / name
    images = str(folder / "images")
    source = (
        DicomSource(kind="dicom", folder=images, select={"ImageType": "ADC"})
        if settings.source.format == "dicom"
        else NiftiSource(kind="nifti", folder=images)
    )
    masks = folder / "masks"
    files = Files(source, MaskLabels(folder=str(masks / "lesion")), GlandMask(folder=str(masks / "gland")))
    written = DiskFolder(hospital.root / "phantom")
    known = written.read(f"{name}.txt").decode() if written.has(f"{name}.txt") else None
    if known is None or known != survey(*files)["digest"]:  # never written, or changed since
        shutil.rmtree(folder, ignore_errors=True)
        write(settings.source, folder)
        written.write(f"{name}.txt", str(survey(*files)["digest"]).encode())
    return files


def _look(files: Files) -> None:
    """What can be seen without opening a file. Raises: Refused: `no_folder`, `no_labels`, `no_gland`."""
    labels = files.labels.file if isinstance(files.labels, TableLabels) else files.labels.folder
    places = {"no_folder": files.source.folder, "no_labels": labels}
    if files.gland is not None:
        places["no_gland"] = files.gland.folder
    named = [("no_labels", files.labels), ("no_gland", files.gland)]
    for code, masks in named:
        if isinstance(masks, MaskLabels | GlandMask) and masks.names is not None and not Path(masks.names).is_file():
            raise Refused(code) from FileNotFoundError(f"{masks.names}: no such file")
    for code, place in places.items():
        path = Path(place)
        if not (path.is_file() if place == labels and isinstance(files.labels, TableLabels) else path.is_dir()):
            raise Refused(code) from FileNotFoundError(f"{place}: no such file or folder")


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
