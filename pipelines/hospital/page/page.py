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
from pipelines.data.stored import label_names, target_classes
from pipelines.hospital.adaptation import EVERYBODY, evidence_of, read_line_evidence, read_lines
from pipelines.hospital.finished_models import has_noised_scores as noised_at
from pipelines.hospital.finished_models import list_usable_models
from pipelines.hospital.home_floors import RIDGE, SVM, HomeFloor, home_floors
from pipelines.hospital.hospital import SPLITS, Context, Done, Hospital, keyed_digest
from pipelines.hospital.intake import rejected_studies
from pipelines.hospital.inversion import inversion_sheets
from pipelines.hospital.kept import COUNTS, cohort_of, scores_name
from pipelines.hospital.opening import TARGET
from pipelines.hospital.page.adaptation import adapted_lines, adapted_sheets
from pipelines.hospital.page.attacks import own_attacks
from pipelines.hospital.page.curves import PageScores, draw_curves, methods_of
from pipelines.hospital.page.harmonization import build_site_harmony, compute_gap_shares
from pipelines.hospital.page.notes import collect_notes
from pipelines.hospital.page.outlines import outline_sheets
from pipelines.hospital.page.pictures import image_sheets, map_sheets
from pipelines.hospital.page.table import read_features
from pipelines.hospital.recommending import keep_decision, make_recommendation, released_decision_facts
from pipelines.hospital.released_counts import COUNTED_FILE, kinds_of, read_released_counts
from pipelines.hospital.segmentation import FLOOR, compute_sums, kind_of, read_patient_scores, words_of_kind
from pipelines.hospital.statement import build_own_statement, delta_of, list_left
from pipelines.hospital.withdrawn import known_outside, list_earlier_uses
from pipelines.requests.report import Entry, Report, Reported
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, describe_event
from privacy.message import Json, Message, as_list, as_mapping, from_bytes, whole_of
from privacy.release import ledger as ledgers
from privacy.release.bounds import remove_controls
from privacy.release.gate import Refused
from privacy.release.statement import Statement, to_json
from privacy.release.statement_markdown import render_markdown

AT_HOME = (RIDGE, SVM)
PAGE, STATEMENT, UNMATCHED = "report.html", "statement.md", "unmatched_exclusions"


def write_report(hospital: Hospital, context: Context[Report]) -> Done[Reported]:
    """Write the page; say what left and in how many messages and bytes, by request and by run (not yet this one).

    Returns also the names of earlier runs that patients had a part in who are excluded now.
    """
    call, facts = context.call, context.message.facts
    scope = _build_scope(hospital, facts)
    lines = [line for line in ledgers.read_lines(hospital.ledger) if not line.get("torn")]
    statement, known = build_own_statement(hospital, lines), list_earlier_uses(hospital)
    floors = () if scope.outside else home_floors(hospital, scope.methods)
    page = _build_page(hospital, scope, facts, call.run.partition("/")[0], floors, _epsilon_texts(statement))
    page = replace(
        page,
        left=tuple(list_left(hospital, lines, delta=delta_of(hospital))),
        withdrawn=Withdrawn(_read_count(hospital, facts, "excluded"), _read_count(hospital, facts, UNMATCHED), known),
        released=describe_released_counts(hospital),
        statement=statement,
    )
    DiskFolder(hospital.root).write(STATEMENT, render_markdown(statement).encode())
    text = (_render_outside_page(page, scope, facts) if scope.outside else render_site_page(page)).encode()
    DiskFolder(hospital.root).write(PAGE, text)
    for decision, in_words in zip(page.decisions, list_choices(page), strict=True):
        keep_decision(hospital, facts, decision, in_words)
    head, released_decision = (
        ledgers.read_head(hospital.ledger),
        released_decision_facts(hospital, facts, next(iter(page.decisions), None)),
    )
    reply = Reported(
        left=[_build_entry(entry) for entry in page.left],
        sent=_sum_bytes_by_run(lines),
        page=keyed_digest(hospital.key(), hashlib.sha256(text).hexdigest()),
        knew=[*known_outside(known)] if not hospital.policy.promises else [],  # which split a patient was in
        ready=[model.method for model in page.models if model.file and model.method not in AT_HOME],
        statement=as_mapping(to_json(statement)),
        decision=released_decision,
        ledger=(head.lines, head.sha256),  # whoever keeps it can prove that history was not rewritten
    )
    return Done(reply, describe_event(hospital.counts if released_decision is None else NON_PRIVATE))


def _epsilon_texts(statement: Statement) -> dict[str, str]:
    """A patient's epsilon by conversation, as a text."""
    return {run.run: "∞" if math.isinf(run.epsilon) else f"{run.epsilon:g}" for run in statement.runs}


class Scope(NamedTuple):
    """What a page is of. splits: their names. methods: of a run that it took part in; lines: what is kept of the lines
    of one that it did not.
    """

    cohort: Cohort
    splits: Sequence[str]
    methods: Sequence[dict[str, Json]]
    lines: Mapping[str, Message]
    outside: bool


def _build_scope(hospital: Hospital, facts: Mapping[str, Json]) -> Scope:
    """The cohort, splits and methods that a page is about; all patients of an external site in one split."""
    cohort, outside = cohort_of(hospital, str(facts["cohort"])), "lines" in facts
    if not outside:
        return Scope(cohort, SPLITS, methods_of(facts), {}, outside)
    one_split_cohort = replace(cohort, split=torch.zeros_like(cohort.split))
    return Scope(one_split_cohort, EVERYBODY, (), read_lines(hospital, facts), outside)


def _build_page(
    hospital: Hospital,
    scope: Scope,
    facts: Mapping[str, Json],
    run: str,
    floors: Sequence[HomeFloor],
    losses: Mapping[str, str],
) -> SitePage:
    """All but what the ledger says. run: as the call names it, within bounds. losses: epsilon by conversation."""
    cohort, methods, learnt_masks, name = scope.cohort, scope.methods, read_learnt_masks(facts), str(facts["cohort"])
    of_lines = read_line_evidence(hospital, scope.lines, whole_of(facts, "copies"))
    variants = [as_mapping(item) for item in as_list(facts.get("variants", []))]
    home_pair, copies = (hospital.name, hospital.name), whole_of(facts, "copies")
    at_home = {floor.model.method: {home_pair: evidence_of(hospital, floor.scores, copies)} for floor in floors}
    tables = {**_read_tables(hospital, [*methods, *variants], facts), **of_lines, **at_home}
    if any(
        isinstance(evidence, Counts) == bool(learnt_masks.structures)
        for table in tables.values()
        for evidence in table.values()
    ):
        raise Refused("malformed_request") from ValueError("structures are of models that outline, and of those only")
    classes = Classes(label_names(cohort), facts.get("ordered") is True)
    scored = list_measures(learnt_masks.structures) if learnt_masks.structures else label_measures(tables, classes)
    reference = str(facts["reference"]) if facts["reference"] in tables else None
    rows = score_rows(tables, reference=reference, measures=scored)
    models = (*list_usable_models(hospital, facts), *(floor.model for floor in floors))
    recommended = () if scope.outside else make_recommendation(hospital, facts, models, floors, losses)
    decided = () if scope.outside else make_decisions(models, rows, recommended)
    words, features = words_of_kind(kind_of(cohort)), read_features(cohort)
    positive = (cohort.labels > 0).numpy()
    notes, pictured = collect_notes(hospital, methods), not hospital.simulation or facts.get("pictures") is not False
    by_label = []
    if features and pictured:
        by_label = [draw_features_by_class(features, positive, examples=words.examples, classes=_two_sides(classes))]
    seen = None if learnt_masks.target is None else target_classes(cohort, learnt_masks.target)
    return SitePage(
        title=_page_title(hospital, facts),
        site=hospital.name,
        run=run,
        date=hospital.now(),
        simulation=hospital.simulation,
        reference=str(facts["reference"] or ""),
        splits=tuple(split_counts(cohort, scope.splits)),
        scores=rows,
        left=(),
        quarantine=tuple(Quarantined(r.study, r.reason, r.meaning) for r in rejected_studies(hospital, name)),
        pictured=pictured,
        images=(*by_label, *image_sheets(cohort, seen, scope.splits)) if pictured else (),
        maps=_draw_sheets(hospital, cohort, methods, facts) if pictured else (),
        pictures=(
            draw_curves(hospital, cohort, scope.splits, PageScores(tables, rows, decided, classes), facts, words)
            if pictured
            else ()
        ),
        words=words,
        characteristics=compute_characteristics(features, positive),
        commands=_list_commands(hospital, models),
        harmony=build_site_harmony(hospital, cohort, name, facts),
        membership=tuple(own_attacks(hospital, methods)),
        noted=notes.pictures if pictured else (),
        warnings=notes.warnings,
        structures=learnt_masks.structures,
        noised=noised_at(hospital, methods),
        models=models,
        optimism=compute_optimism(tables, [hospital.name], DICE if learnt_masks.structures else AUC),
        decisions=decided,
        spaces={str(line["label"]): str(line["space"]) for line in (*methods, *variants) if "space" in line},
        classes=() if learnt_masks.structures else classes.several,
        shares=compute_gap_shares(facts, tables, DICE if learnt_masks.structures else AUC),
    )


def _two_sides(classes: Classes) -> tuple[str, str]:
    """The first class, and all others."""
    return (classes.names[0], "all others") if classes.several else ("negative", "positive")


def _render_outside_page(page: SitePage, scope: Scope, facts: Mapping[str, Json]) -> str:
    """The page of an external site."""
    target, structures = read_learnt_masks(facts)
    went = adapted_lines(scope.lines, scope.cohort, target, [str(name) for name in as_list(facts["names"])])
    outlines = tuple(adapted_sheets(scope.lines, scope.cohort, target, structures))
    return render_outside_page(page, OutsideDetails(went, str(facts["field"]), outlines))


def _page_title(hospital: Hospital, facts: Mapping[str, Json]) -> str:
    """The run's title, marked as the coordinator's where that is somebody else."""
    title = remove_controls(str(facts["title"]))
    return title if hospital.simulation else f"{title} (title given by the coordinator)"


def _draw_sheets(
    hospital: Hospital, cohort: Cohort, methods: Sequence[Mapping[str, Json]], facts: Mapping[str, Json]
) -> tuple[Picture, ...]:
    """What models look at, or outline, and what attackers draw of the hospital's images."""
    structures = read_learnt_masks(facts).structures
    seen = (
        outline_sheets(hospital, methods, structures, facts.get("window"))
        if structures
        else map_sheets(hospital, cohort, methods)
    )
    return (*seen, *inversion_sheets(hospital, methods))


def _sum_bytes_by_run(lines: Sequence[Mapping[str, Json]]) -> dict[str, int]:
    """Bytes that left, by run."""
    sent: dict[str, int] = {}
    for line in lines:
        run = str(line["run"])
        sent[run] = sent.get(run, 0) + whole_of(line, "bytes")
    return sent


def _build_entry(entry: Left) -> Entry:
    """What left in answer to one request, for the coordinator's page."""
    return {
        "request": entry.request,
        "content": entry.content,
        "messages": entry.messages,
        "bytes": entry.bytes,
        "epsilon": entry.epsilon,
        "records": entry.records,
    }


class LearntMasks(NamedTuple):
    """The masks that the methods of a run outline, and the names of their classes; nothing where they give labels."""

    target: Target | None
    structures: tuple[str, ...]


def read_learnt_masks(facts: Mapping[str, Json]) -> LearntMasks:
    """What is said of it in a request."""
    return LearntMasks(
        TARGET.validate_python(facts.get("target")), tuple(map(str, as_list(facts.get("structures", []))))
    )


def _read_count(hospital: Hospital, facts: Mapping[str, Json], name: str) -> int:
    """What this hospital counted when it read its files; of an older cohort what the coordinator was told."""
    folder = DiskFolder(hospital.cohort_folder(str(facts["cohort"])))
    counts = json.loads(folder.read(COUNTS)) if folder.has(COUNTS) else facts
    return whole_of(counts, name, 0)


def describe_released_counts(hospital: Hospital) -> str:
    """Which counts of patients others hear, where these are not the page's own; empty without a budget."""
    counted = read_released_counts(hospital)
    if counted is None:
        return ""
    numbers = ", ".join(f"{split} {counted.patients(split)}" for split in SPLITS)
    cells = len(SPLITS) * kinds_of(counted.classes)
    noise = (
        f"with noise of standard deviation {counted.noise:.2g} in each of {cells} cells" if counted.noise else "exactly"
    )
    return (
        f"Others hear these numbers of patients instead, counted once on {counted.date[:10]} {noise}, whoever has come"
        f" or gone since: {numbers}. To count anew, which is a new release, remove {COUNTED_FILE} beside the ledger."
    )


def _list_commands(hospital: Hospital, models: Sequence[Model]) -> tuple[Command, ...]:
    """How to use a finished model, and how to withdraw a patient."""
    lines = [f"python -m pipelines.predict {shlex.quote(model.file)} FOLDER" for model in models if model.file]
    use = "Use a finished model on new patients (FOLDER holds their files); scores and a quarantine are written here"
    out = "Leave out a patient who withdrew: in the run's settings, by identifier or by pseudonym; then run again"
    line = f'sites: {{{hospital.name}: {{exclude: ["IDENTIFIER"]}}}}'
    return (*([Command(use, "\n".join(lines))] if lines else []), Command(out, line))


def split_counts(cohort: Cohort, splits: Sequence[str] = SPLITS) -> list[SplitCount]:
    """Patients, images and positive images of each split."""
    counts = []
    for place, split in enumerate(splits):
        chosen = cohort.split == place
        patients = len(torch.unique(cohort.patient[chosen]))
        labels, number = cohort.labels[chosen], len(label_names(cohort))
        each = torch.bincount(labels, minlength=number).tolist() if number > 2 else ()
        counts.append(SplitCount(split, patients, int(chosen.sum()), int((labels > 0).sum()), each))
    return counts


def _read_tables(
    hospital: Hospital, methods: Sequence[Mapping[str, Json]], facts: Mapping[str, Json]
) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence of this hospital's own models on its own test patients, from the scores that it kept; and of the floor,
    where it was kept beside.
    """
    folder = DiskFolder(hospital.root / "scores")
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    copies, home_pair, low = whole_of(facts, "copies"), (hospital.name, hospital.name), None
    for method in methods:
        name = scores_name(method)
        if not folder.has(name):
            continue  # the central baseline: no model of this hospital's own
        tensors = from_bytes(folder.read(name)).tensors
        tables[str(method["label"])] = {home_pair: evidence_of(hospital, tensors, copies)}
        low = low or read_patient_scores(tensors, FLOOR)
    return {**tables, MEAN_MASK: {home_pair: compute_sums(hospital, low, copies)}} if low is not None else tables
