"""The hospital's own page: pictures of its patients, its quarantine, its scores, its releases. It stays there."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from evaluation.answers import list_choices
from evaluation.choice import compute_optimism, make_decisions
from evaluation.classes import Classes
from evaluation.drawing import Picture
from evaluation.histograms import Counts
from evaluation.leaving import Left
from evaluation.metrics import AUC
from evaluation.overlap import DICE, list_measures
from evaluation.patients import compute_characteristics, draw_features_by_class
from evaluation.protocols import Evidence
from evaluation.records import Command, Model, Quarantined, SitePage, SplitCount, Withdrawn
from evaluation.report import OutsideDetails, render_outside_page, render_site_page
from evaluation.rows import MEAN_MASK
from evaluation.scoring import label_measures, score_rows
from pipelines.data.cohort import Cohort
from pipelines.data.images import Target
from pipelines.data.stored import label_names, targets
from pipelines.hospital.adaptation import EVERYBODY, evidence, evidence_of, read_lines
from pipelines.hospital.finished_models import noised as noised_at
from pipelines.hospital.finished_models import usable
from pipelines.hospital.home_floors import RIDGE, SVM, HomeFloor, home_floors
from pipelines.hospital.hospital import SPLITS, Asked, Done, Hospital, keyed
from pipelines.hospital.intake import rejected_studies
from pipelines.hospital.inversion import inversion_sheets
from pipelines.hospital.kept import COUNTS, cohort_of, scores_name
from pipelines.hospital.opening import TARGET
from pipelines.hospital.page.adaptation import adapted_lines, adapted_sheets
from pipelines.hospital.page.attacks import own_attacks
from pipelines.hospital.page.curves import Found, drawn, methods_of
from pipelines.hospital.page.harmonization import own_harmony, own_shares
from pipelines.hospital.page.notes import noted
from pipelines.hospital.page.outlines import outline_sheets
from pipelines.hospital.page.pictures import image_sheets, map_sheets
from pipelines.hospital.page.table import features_of
from pipelines.hospital.recommending import keep_decision, recommendation, told
from pipelines.hospital.released_counts import ASKED, kinds_of, released_counts
from pipelines.hospital.segmentation import FLOOR, kind_of, measured, own_sums, read_patient_scores
from pipelines.hospital.statement import delta_of, left, own_statement
from pipelines.hospital.withdrawn import knew, known_outside
from pipelines.requests.report import Entry, Report, Reported
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, describe
from privacy.message import Json, Message, as_list, as_mapping, from_bytes, whole_of
from privacy.release import ledger as ledgers
from privacy.release.bounds import plain
from privacy.release.gate import Refused
from privacy.release.statement import Statement, to_json
from privacy.release.statement_markdown import markdown

AT_HOME = (RIDGE, SVM)
PAGE, STATEMENT, UNMATCHED = "report.html", "statement.md", "unmatched_exclusions"


def report(hospital: Hospital, asked: Asked[Report]) -> Done[Reported]:
    """Write the page; say what left and in how many messages and bytes, by request and by run (not yet this one).

    Returns also the names of earlier runs that patients had a part in who are excluded now.
    """
    call, facts = asked.call, asked.message.facts
    here = _here(hospital, facts)
    lines = [line for line in ledgers.lines(hospital.ledger) if not line.get("torn")]
    statement, known = own_statement(hospital, lines), knew(hospital)
    floors = () if here.outside else home_floors(hospital, here.methods)
    page = _page(hospital, here, facts, call.run.partition("/")[0], floors, _losses(statement))
    page = replace(
        page,
        left=tuple(left(hospital, lines, delta=delta_of(hospital))),
        withdrawn=Withdrawn(_own_count(hospital, facts, "excluded"), _own_count(hospital, facts, UNMATCHED), known),
        released=released(hospital),
        statement=statement,
    )
    DiskFolder(hospital.root).write(STATEMENT, markdown(statement).encode())
    text = (_beyond(page, here, facts) if here.outside else render_site_page(page)).encode()
    DiskFolder(hospital.root).write(PAGE, text)
    for one, in_words in zip(page.decisions, list_choices(page), strict=True):
        keep_decision(hospital, facts, one, in_words)
    head, heard = ledgers.head(hospital.ledger), told(hospital, facts, next(iter(page.decisions), None))
    reply = Reported(
        left=[_plain(entry) for entry in page.left],
        sent=_sent(lines),
        page=keyed(hospital.key(), hashlib.sha256(text).hexdigest()),
        knew=[*known_outside(known)] if not hospital.policy.promises else [],  # which split a patient was in
        ready=[model.method for model in page.models if model.file and model.method not in AT_HOME],
        statement=as_mapping(to_json(statement)),
        decision=heard,
        ledger=(head.lines, head.sha256),  # whoever keeps it can prove that history was not rewritten
    )
    return Done(reply, describe(hospital.counts if heard is None else NON_PRIVATE))


def _losses(statement: Statement) -> dict[str, str]:
    """A patient's epsilon by conversation, as a text."""
    return {one.run: "∞" if math.isinf(one.epsilon) else f"{one.epsilon:g}" for one in statement.runs}


class Here(NamedTuple):
    """What a page is of. splits: their names. methods: of a run that it took part in; lines: what is kept of the lines
    of one that it did not.
    """

    cohort: Cohort
    splits: Sequence[str]
    methods: Sequence[dict[str, Json]]
    lines: Mapping[str, Message]
    outside: bool


def _here(hospital: Hospital, facts: Mapping[str, Json]) -> Here:
    cohort, outside = cohort_of(hospital, str(facts["cohort"])), "lines" in facts
    if not outside:
        return Here(cohort, SPLITS, methods_of(facts), {}, outside)
    whole = replace(cohort, split=torch.zeros_like(cohort.split))
    return Here(whole, EVERYBODY, (), read_lines(hospital, facts), outside)


def _page(
    hospital: Hospital,
    here: Here,
    facts: Mapping[str, Json],
    run: str,
    floors: Sequence[HomeFloor],
    losses: Mapping[str, str],
) -> SitePage:
    """All but what the ledger says. run: as the call names it, within bounds. losses: epsilon by conversation."""
    cohort, methods, learnt, name = here.cohort, here.methods, learnt_of(facts), str(facts["cohort"])
    of_lines = evidence(hospital, here.lines, whole_of(facts, "copies"))
    variants = [as_mapping(one) for one in as_list(facts.get("variants", []))]
    own, copies = (hospital.name, hospital.name), whole_of(facts, "copies")
    at_home = {one.model.method: {own: evidence_of(hospital, one.scores, copies)} for one in floors}
    tables = {**_own_tables(hospital, [*methods, *variants], facts), **of_lines, **at_home}
    if any(isinstance(one, Counts) == bool(learnt.structures) for table in tables.values() for one in table.values()):
        raise Refused("malformed_request") from ValueError("structures are of models that outline, and of those only")
    classes = Classes(label_names(cohort), facts.get("ordered") is True)
    scored = list_measures(learnt.structures) if learnt.structures else label_measures(tables, classes)
    reference = str(facts["reference"]) if facts["reference"] in tables else None
    rows = score_rows(tables, reference=reference, measures=scored)
    models = (*usable(hospital, facts), *(floor.model for floor in floors))
    recommended = () if here.outside else recommendation(hospital, facts, models, floors, losses)
    decided = () if here.outside else make_decisions(models, rows, recommended)
    words, features = measured(kind_of(cohort)), features_of(cohort)
    positive = (cohort.labels > 0).numpy()
    notes, pictured = noted(hospital, methods), not hospital.simulation or facts.get("pictures") is not False
    sides = _two_sides(classes)
    by_label = (
        [draw_features_by_class(features, positive, examples=words.examples, classes=sides)]
        if features and pictured
        else []
    )
    seen = None if learnt.target is None else targets(cohort, learnt.target)
    return SitePage(
        title=_titled(hospital, facts),
        site=hospital.name,
        run=run,
        date=hospital.now(),
        simulation=hospital.simulation,
        reference=str(facts["reference"] or ""),
        splits=tuple(split_counts(cohort, here.splits)),
        scores=rows,
        left=(),
        quarantine=tuple(Quarantined(r.study, r.reason, r.meaning) for r in rejected_studies(hospital, name)),
        pictured=pictured,
        images=(*by_label, *image_sheets(cohort, seen, here.splits)) if pictured else (),
        maps=_sheets(hospital, cohort, methods, facts) if pictured else (),
        pictures=drawn(hospital, cohort, here.splits, Found(tables, rows, decided, classes), facts, words)
        if pictured
        else (),
        words=words,
        characteristics=compute_characteristics(features, positive),
        commands=_commands(hospital, models),
        harmony=own_harmony(hospital, cohort, name, facts),
        membership=tuple(own_attacks(hospital, methods)),
        noted=notes.pictures if pictured else (),
        warnings=notes.warnings,
        structures=learnt.structures,
        noised=noised_at(hospital, methods),
        models=models,
        optimism=compute_optimism(tables, [hospital.name], DICE if learnt.structures else AUC),
        decisions=decided,
        spaces={str(one["label"]): str(one["space"]) for one in (*methods, *variants) if "space" in one},
        classes=() if learnt.structures else classes.several,
        shares=own_shares(facts, tables, DICE if learnt.structures else AUC),
    )


def _two_sides(classes: Classes) -> tuple[str, str]:
    """The first class, and all others."""
    return (classes.names[0], "all others") if classes.several else ("negative", "positive")


def _beyond(page: SitePage, here: Here, facts: Mapping[str, Json]) -> str:
    """The page of an external site."""
    target, structures = learnt_of(facts)
    went = adapted_lines(here.lines, here.cohort, target, [str(name) for name in as_list(facts["names"])])
    outlines = tuple(adapted_sheets(here.lines, here.cohort, target, structures))
    return render_outside_page(page, OutsideDetails(went, str(facts["field"]), outlines))


def _titled(hospital: Hospital, facts: Mapping[str, Json]) -> str:
    """The run's title, marked as the coordinator's where that is somebody else."""
    title = plain(str(facts["title"]))
    return title if hospital.simulation else f"{title} (title given by the coordinator)"


def _sheets(
    hospital: Hospital, cohort: Cohort, methods: Sequence[Mapping[str, Json]], facts: Mapping[str, Json]
) -> tuple[Picture, ...]:
    """What models look at, or outline, and what attackers draw of the hospital's images."""
    structures = learnt_of(facts).structures
    seen = (
        outline_sheets(hospital, methods, structures, facts.get("window"))
        if structures
        else map_sheets(hospital, cohort, methods)
    )
    return (*seen, *inversion_sheets(hospital, methods))


def _sent(lines: Sequence[Mapping[str, Json]]) -> dict[str, int]:
    """Bytes that left, by run."""
    sent: dict[str, int] = {}
    for line in lines:
        run = str(line["run"])
        sent[run] = sent.get(run, 0) + whole_of(line, "bytes")
    return sent


def _plain(entry: Left) -> Entry:
    """What left in answer to one request, for the coordinator's page."""
    return {
        "request": entry.request,
        "content": entry.content,
        "messages": entry.messages,
        "bytes": entry.bytes,
        "epsilon": entry.epsilon,
        "records": entry.records,
    }


class Learnt(NamedTuple):
    """The masks that the methods of a run outline, and the names of their classes; nothing where they give labels."""

    target: Target | None
    structures: tuple[str, ...]


def learnt_of(facts: Mapping[str, Json]) -> Learnt:
    """What is said of it in a request."""
    return Learnt(TARGET.validate_python(facts.get("target")), tuple(map(str, as_list(facts.get("structures", [])))))


def _own_count(hospital: Hospital, facts: Mapping[str, Json], name: str) -> int:
    """What this hospital counted when it read its files; of an older cohort what the coordinator was told."""
    folder = DiskFolder(hospital.cohort_folder(str(facts["cohort"])))
    own = json.loads(folder.read(COUNTS)) if folder.has(COUNTS) else facts
    return whole_of(own, name, 0)


def released(hospital: Hospital) -> str:
    """Which counts of patients others hear, where these are not the page's own; empty without a budget."""
    told = released_counts(hospital)
    if told is None:
        return ""
    numbers = ", ".join(f"{split} {told.patients(split)}" for split in SPLITS)
    cells = len(SPLITS) * kinds_of(told.classes)
    noise = f"with noise of standard deviation {told.noise:.2g} in each of {cells} cells" if told.noise else "exactly"
    return (
        f"Others hear these numbers of patients instead, counted once on {told.date[:10]} {noise}, whoever has come or "
        f"gone since: {numbers}. To count anew, which is a new release, remove {ASKED} beside the ledger."
    )


def _commands(hospital: Hospital, models: Sequence[Model]) -> tuple[Command, ...]:
    """How to use a finished model, and how to withdraw a patient."""
    lines = [f"python -m pipelines.predict {shlex.quote(model.file)} FOLDER" for model in models if model.file]
    use = "Use a finished model on new patients (FOLDER holds their files); scores and a quarantine are written here"
    out = "Leave out a patient who withdrew: in the run's settings, by identifier or by pseudonym; then run again"
    line = f'sites: {{{hospital.name}: {{exclude: ["IDENTIFIER"]}}}}'
    return (*([Command(use, "\n".join(lines))] if lines else []), Command(out, line))


def split_counts(cohort: Cohort, splits: Sequence[str] = SPLITS) -> list[SplitCount]:
    """Patients, images and positive images of each split."""
    found = []
    for place, split in enumerate(splits):
        chosen = cohort.split == place
        patients = len(torch.unique(cohort.patient[chosen]))
        labels, number = cohort.labels[chosen], len(label_names(cohort))
        each = torch.bincount(labels, minlength=number).tolist() if number > 2 else ()
        found.append(SplitCount(split, patients, int(chosen.sum()), int((labels > 0).sum()), each))
    return found


def _own_tables(
    hospital: Hospital, methods: Sequence[Mapping[str, Json]], facts: Mapping[str, Json]
) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence of this hospital's own models on its own test patients, from the scores that it kept; and of the floor,
    where it was kept beside.
    """
    folder = DiskFolder(hospital.root / "scores")
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    copies, own, low = whole_of(facts, "copies"), (hospital.name, hospital.name), None
    for method in methods:
        name = scores_name(method)
        if not folder.has(name):
            continue  # the central baseline: no model of this hospital's own
        kept = from_bytes(folder.read(name)).tensors
        tables[str(method["label"])] = {own: evidence_of(hospital, kept, copies)}
        low = low or read_patient_scores(kept, FLOOR)
    return {**tables, MEAN_MASK: {own: own_sums(hospital, low, copies)}} if low is not None else tables
