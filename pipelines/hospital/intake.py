"""Patients' files become a cohort at the hospital: the requests `moments`, `ingest` and `holds`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal

import torch

from federation.conversation import load_memory, load_newest_intact_memory, load_newest_memory, load_stored_reply
from federation.participant import CHECKPOINTS, last_scored_round, list_averages, load_checkpoint
from pipelines.data.accounts import reject_unserved_patients
from pipelines.data.cohort import Reading, compute_training_moments, read_cohort
from pipelines.data.sources import DicomSource, NiftiSource
from pipelines.data.tables.features import Moments
from pipelines.hospital.files import Files, files_of, settings_of
from pipelines.hospital.hospital import COHORT, Context, Done, Hospital, keyed_digest, write_cohort_file
from pipelines.hospital.kept import COUNTS, PARTITION, REJECTED, SPLIT, digest_of, split_of
from pipelines.hospital.overview import describe_reading, remember_inside
from pipelines.hospital.promises import find_answer_complaint, find_broken_files, keep_promises
from pipelines.hospital.quarantine import Quarantine, add_to_linkage, list_quarantine, write_accounts
from pipelines.hospital.released_counts import (
    COUNTED_FILE,
    check_same_cohort,
    count_once,
    floor_of,
    read_released_counts,
)
from pipelines.requests import REQUESTS
from pipelines.requests import moments as requests
from pipelines.requests.holds import Held, Holds
from pipelines.requests.ingest import Counted, CountedOnce, Ingest
from pipelines.requests.reading import Reading as Asks
from pipelines.reviews.marks import PAGE, digest_page
from pipelines.runs.store import DiskFolder, short_digest
from privacy.dp.events import NON_PRIVATE, NOTHING, describe_event
from privacy.message import Call, Json, Malformed, Message, as_mapping, from_bytes, unseal_parts, whole_of
from privacy.release.form import read_form, value_or_none
from privacy.release.gate import Refused

WITHOUT_LABELS = "labels: missing; say where they are; only a run that trains no model does without them"


def ingest_cohort(hospital: Hospital, context: Context[Ingest]) -> Done[Counted | CountedOnce]:
    """Read, check, de-identify and split.

    Returns:
        Counts by split and by reason of rejection; the name of the cohort and its digest, `sha256`, both keyed; and
        `cut`, a keyed name of the division into splits. With a budget the counts are those released once (see
        `pipelines.hospital.read_released_counts`), and nothing else is counted. Files that stay here, beside the
        cohort: `rejected.json`, each rejected study with its reason; `counts.json`, the exact counts; `partition.json`,
        which patients of a partitioned source this hospital has; and in the hospital's folder `accounted.csv`, what
        became of each file.

    Raises:
        Refused: `bad_source`; with a budget `another_cohort`, `too_many_rejected`, or as `count_once`.
    """
    settings, message = settings_of(hospital), context.message
    if hospital.policy.promises and message.tensors:  # sums of all hospitals' training patients
        raise Refused("dependent_patients")
    check_same_cohort(hospital, dict(message.facts))
    reading = read_as_asked(hospital, context.question)
    cohort, facts = reading.cohort, reading.facts
    rejected = (*reading.rejected, *reject_unserved_patients(reading.accounts))
    add_to_linkage(hospital, rejected, reading.names)
    write_accounts(hospital, reading.accounts)
    counts = {name: whole_of(facts, name) for name in ("patients", "studies", "images")}
    of = {"table": "lines", "tensors": "examples"}.get(files_of(hospital).source.kind, "files")
    line = describe_reading(counts, reading.accounts, reading.rejected, reading.evidence, unit=cohort.unit, of=of)
    remember_inside(hospital, line + _describe_unmatched_names(facts))
    code = write_cohort_file(hospital.root / "cohorts", cohort, hospital.key())
    folder = DiskFolder(hospital.cohort_folder(short_digest(code)))
    folder.write(REJECTED, json.dumps([q._asdict() for q in list_quarantine(hospital, rejected)], indent=1).encode())
    folder.write(SPLIT, json.dumps(split_of(cohort), indent=1).encode())
    folder.write(COUNTS, json.dumps(facts, indent=1).encode())
    if reading.partition is not None:
        folder.write(PARTITION, json.dumps(reading.partition, indent=1).encode())
    studies = whole_of(facts, "source_studies", whole_of(facts, "studies"))  # of which rejections are counted
    share = len(reading.rejected) / max(1, len(reading.rejected) + studies)
    too_many = share > settings.max_rejected
    named: dict[str, Json] = {"cohort": short_digest(code), "sha256": code, "cut": cohort.recipe["cut"]}
    if hospital.policy.promises:
        if too_many:  # refuse: a fact would reveal it again with every request
            raise Refused("too_many_rejected") from ValueError(f"why, study by study: {folder.root / REJECTED}")
        counted, event = count_once(hospital, context.call, cohort, dict(message.facts))
        released = Message({}, {**named, **counted.facts(), "min_patients": floor_of(hospital)})
        return Done(read_form(CountedOnce, released), describe_event(event))
    rejections: dict[str, Json] = {
        "rejected": len(reading.rejected),
        "max_rejected": settings.max_rejected,
        "too_many_rejected": too_many,
    }
    return Done(read_form(Counted, Message({}, {**facts, **named, **rejections})), describe_event(hospital.counts))


def _describe_unmatched_names(facts: Mapping[str, Json]) -> str:
    """A warning if names of patients in the hospital's settings match no patient; otherwise empty."""
    unmatched = {"test": facts["unmatched_tests"], "exclude": facts["unmatched_exclusions"]}
    return "".join(
        f" ! {number} of the names in {key} match no patient: check the spelling (the identifier as in the files, or "
        "the pseudonym)."
        for key, number in unmatched.items()
        if number
    )


def pooled_moments(hospital: Hospital, context: Context[requests.ReadFeatures]) -> Done[requests.Moments]:
    """Number, sums and sums of squares of this hospital's training features, for normalization over all sites.

    Returns: tensors `count`, `total`, `squares`.
    """
    moments = compute_training_moments(read_as_asked(hospital, context.question).cohort)
    count = torch.tensor([moments.count], dtype=torch.float64)
    return Done(
        requests.Moments(count=count, total=moments.total, squares=moments.squares), describe_event(NON_PRIVATE)
    )


def read_as_asked(hospital: Hospital, question: Asks) -> Reading:
    """Read the cohort as requested. Raises: Refused: `bad_source`; `no_labels`."""
    settings, files, shares = settings_of(hospital), files_of(hospital), question.split
    if is_without_labels(files, question):  # every label would be 0
        raise Refused("no_labels") from ValueError(WITHOUT_LABELS)
    try:
        return read_cohort(
            files.source,
            files.labels,
            question.images,
            gland=files.gland,
            fractions={"train": shares.train, "validation": shares.validation, "test": shares.test},
            seed=question.seed,
            key=hospital.key(),
            exclude=settings.exclude,
            test=settings.test,
            independent=question.independent is True,
            readers=settings.readers,
            scratch=hospital.scratch(),
            scale=_scale_moments(question),
            fold=shares.place,
            part=settings.part,
            target=value_or_none(question.target),
            classes=tuple(value_or_none(question.classes) or ()),
            number=value_or_none(question.number),
            findings=tuple(value_or_none(question.findings) or ()),
            regions=value_or_none(question.regions) or (),
        )
    except ValueError as error:  # of the whole source; errors of single studies are quarantined
        raise Refused("bad_source") from error


def is_without_labels(files: Files, question: Asks) -> bool:
    """Whether the question is about labels, and the files are volumes without any: each label would then be 0."""
    volumes = isinstance(files.source, DicomSource | NiftiSource)
    is_about_labels = value_or_none(question.target) is None and question.unlabelled is not True
    return volumes and files.labels is None and is_about_labels


def _scale_moments(question: Asks) -> Moments | None:
    """The moments by which features are scaled, if the question has them."""
    if not isinstance(question, Ingest):
        return None
    count, total, squares = (
        value_or_none(question.count),
        value_or_none(question.total),
        value_or_none(question.squares),
    )
    return None if count is None or total is None or squares is None else Moments(float(count), total, squares)


def check_holdings(hospital: Hospital, context: Context[Holds]) -> Done[Held]:
    """Whether this hospital still has what an artifact of the coordinator names: a cohort, models of runs."""
    question = context.question
    known_runs = [run for run in value_or_none(question.runs) or {} if _has_trained(hospital, run)]
    # About patients this reveals only whether keyed digests that the hospital sent before are unchanged.
    return Done(Held(complaint=_find_complaint(hospital, question), known=known_runs), describe_event(NOTHING))


def forget_damaged(hospital: Hospital, call: Call) -> None:
    """Delete a committed reply that is corrupt, or whose cohort is missing or corrupt, so that it is made again.

    If only the list of its files is gone, an augmentation stays, and the list is made of what is there.
    """
    folder = hospital.conversation(call.run)
    name = f"{call.request}-{call.round}"
    if not folder.has(name):
        return
    try:
        facts = from_bytes(load_stored_reply(folder, name)).facts
    except Malformed:
        folder.remove(name)
        return
    if not REQUESTS[call.request].cohort:
        return
    lost = _cohort_complaint(hospital, str(facts["cohort"]), facts.get("sha256")) or _is_stale(hospital, facts)
    gone = find_broken_files(hospital, call)
    if call.request == "augment" and not lost and gone is None:  # made again it would be charged again, for a list
        keep_promises(hospital, call, sorted(hospital.cohort_folder(str(facts["cohort"])).iterdir()))
    elif lost or gone != []:
        folder.remove(name)


def _is_stale(hospital: Hospital, facts: Mapping[str, Json]) -> bool:
    """Whether a reply has other counts than the released ones."""
    counted = read_released_counts(hospital)
    return counted is not None and "splits" in facts and facts["splits"] != counted.facts()["splits"]


def _find_complaint(hospital: Hospital, question: Holds) -> str | None:
    """The first thing that is not as the coordinator believes; None: all is."""
    cohort, page = value_or_none(question.cohort), value_or_none(question.page)
    if cohort is not None and (complaint := _cohort_complaint(hospital, cohort, value_or_none(question.sha256))):
        return complaint
    if page is not None and _page_digest(hospital) != page:
        return "its own page is gone, or of another run"
    states = value_or_none(question.runs) or {}
    complaints = (_run_complaint(hospital, run, state) for run, state in states.items())
    answers = value_or_none(question.answers) or []
    return next((complaint for complaint in complaints if complaint), find_answer_complaint(hospital, answers))


def _cohort_complaint(hospital: Hospital, cohort: str, sha256: Json) -> str | None:
    """Why a cohort is not the one that the coordinator names. sha256: the keyed digest that it was told."""
    folder = hospital.cohort_folder(cohort)
    if hospital.policy.promises and read_released_counts(hospital) is None:
        return f"{COUNTED_FILE} is gone, so that its patients must be counted anew"
    digest = digest_of(folder / COHORT)
    if digest is None:
        return "the cohort is gone"
    if keyed_digest(hospital.key(), digest) != sha256:
        return "the cohort is corrupt"
    for name in (REJECTED, SPLIT):
        try:
            json.loads((folder / name).read_bytes())
        except (OSError, ValueError):
            return f"{name} is gone or corrupt"
    return None


def _run_complaint(hospital: Hospital, run: str, state: int | Literal["begun"] | None) -> str | None:
    """What is wrong with this hospital's memory of a run or, if it is finished, with its models: a finished run goes on
    without the memory that made them.
    """
    folder, models = hospital.conversation(run), hospital.models(run)
    try:
        if state == "begun":
            load_memory(folder, 0)
        memory = load_newest_memory(folder) if state == "begun" else load_newest_intact_memory(folder)
        for name in models.names():
            unseal_parts(models.read(name))
    except Malformed:
        return f"a model or a memory of {run} is corrupt"
    last = last_scored_round(memory)
    is_average_lost = _is_averaged(folder) and last is not None and last not in list_averages(models)
    if state == "begun":
        if _has_lost_introduction(folder):
            return f"the introduction of {run} is gone"
        return f"the average of {run} is gone" if is_average_lost else None
    try:
        for which in CHECKPOINTS:
            load_checkpoint(models, memory, which, best=state if isinstance(state, int) else None)
    except KeyError:
        return f"models of {run} are gone"
    return f"the average of {run} is gone" if is_average_lost else None


def _is_averaged(folder: DiskFolder) -> bool:
    """Whether a run keeps averages over rounds, by its introduction if that is there."""
    try:
        opening = as_mapping(load_memory(folder, 0).facts.get("opening", {}))
    except Malformed:
        return False
    return opening.get("averaged") is True


def _has_lost_introduction(folder: DiskFolder) -> bool:
    """Whether a conversation has rounds of training, and not its introduction, without which it cannot go on; other
    conversations have none.
    """
    names = folder.names()
    return "introduce-0" not in names and any(name.startswith(("train-", "finish-")) for name in names)


def _has_trained(hospital: Hospital, run: str) -> bool:
    """Whether this hospital has answered requests of a run after its introduction."""
    return any(not name.startswith("introduce") for name in hospital.conversation(run).names())


def _page_digest(hospital: Hospital) -> str | None:
    """The keyed digest of the hospital's page, without what a person marked there; None if it is missing."""
    digest = digest_page(hospital.root / PAGE)
    return None if digest is None else keyed_digest(hospital.key(), digest)


def rejected_studies(hospital: Hospital, cohort: str) -> list[Quarantine]:
    """The cohort's quarantined studies, for the hospital's own page."""
    data = json.loads((hospital.cohort_folder(cohort) / REJECTED).read_text())
    return [Quarantine(**study) for study in data]
