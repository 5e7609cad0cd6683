"""The hospital's own page: pictures of its patients, its quarantine, its scores, its releases. It stays there."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from evaluation.answers import list_choices
from evaluation.attacks import MembershipRow
from evaluation.cases import Cases
from evaluation.choice import compute_optimism, make_decisions, select_primary
from evaluation.classes import Classes
from evaluation.drawing import Picture
from evaluation.findings import Several, list_finding_measures
from evaluation.leaving import Left
from evaluation.metrics import Measure
from evaluation.numbers import Number, list_number_measures
from evaluation.overlap import Overlaps, list_measures
from evaluation.patients import compute_characteristics, draw_features_by_class
from evaluation.protocols import Evidence, Table
from evaluation.records import Command, Model, Quarantined, SitePage, SplitCount, Withdrawn
from evaluation.report import render_site_page, write_site_json
from evaluation.rivals import find_rivals
from evaluation.rows import MEAN_MASK, MEDIAN, group_by
from evaluation.scoring import label_measures, score_rows
from evaluation.site_page import OutsideDetails, select_best_rows
from evaluation.volumes import SizeSection
from pipelines.data.cohort import Cohort
from pipelines.data.images import Target
from pipelines.data.label_numbers import read_range
from pipelines.data.stored import class_numbers, finding_names, label_names, target_masks
from pipelines.hospital.adaptation import EVERYBODY, evidence_of, read_line_evidence, read_lines
from pipelines.hospital.attacks import read_membership
from pipelines.hospital.finished_models import has_noised_scores as noised_at
from pipelines.hospital.finished_models import list_usable_models
from pipelines.hospital.home_floors import RIDGE, SVM, HomeFloor, home_floors
from pipelines.hospital.hospital import SPLITS, Context, Done, Hospital, keyed_digest
from pipelines.hospital.intake import rejected_studies
from pipelines.hospital.inversion import inversion_sheets
from pipelines.hospital.kept import COUNTS, cohort_of, scores_name_of
from pipelines.hospital.numbers import describe_number
from pipelines.hospital.page.adaptation import adapted_lines, adapted_sheets
from pipelines.hospital.page.cases import list_cases, list_mask_cases
from pipelines.hospital.page.curves import PageScores, draw_curves
from pipelines.hospital.page.harmonization import build_site_harmony, compute_gap_shares
from pipelines.hospital.page.notes import collect_notes
from pipelines.hospital.page.outlines import kept_values, outline_sheets
from pipelines.hospital.page.pictures import image_sheets, map_sheets
from pipelines.hospital.page.table import read_features
from pipelines.hospital.page.volumes import compare_page_sizes
from pipelines.hospital.quarantine import LINKAGE
from pipelines.hospital.recommending import (
    choose_own_reference,
    keep_decision,
    list_lines_alone,
    make_recommendation,
    released_decision_facts,
)
from pipelines.hospital.released_counts import COUNTED_FILE, read_released_counts
from pipelines.hospital.segmentation import FLOOR, compute_sums, kind_of, read_patient_scores, words_of_kind
from pipelines.hospital.statement import build_own_statement, delta_of, list_left
from pipelines.hospital.withdrawn import known_outside, list_earlier_uses
from pipelines.requests.methods import Method, TableLine
from pipelines.requests.report import Entry, OutsideReport, Report, Reported
from pipelines.reviews.marks import show_marks
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, describe_event
from privacy.message import Message, as_mapping, from_bytes, whole_of
from privacy.release import ledger as ledgers
from privacy.release.bounds import remove_controls
from privacy.release.form import Absent, value_or_none
from privacy.release.gate import Refused
from privacy.release.statement import to_json
from privacy.release.statement_markdown import render_markdown

AT_HOME = (RIDGE, SVM)
PAGE, CONTENT, STATEMENT, UNMATCHED = "report.html", "report.json", "statement.md", "unmatched_exclusions"


def write_report(hospital: Hospital, context: Context[Report]) -> Done[Reported]:
    """Write the page; say what left and in how many messages and bytes, by request and by run (not yet this one).

    Returns also the names of earlier runs that patients had a part in who are excluded now.
    """
    call, question = context.call, context.question
    scope = _build_scope(hospital, question)
    lines = [line for line in ledgers.read_lines(hospital.ledger) if not line.get("torn")]
    statement, known = build_own_statement(hospital, lines), list_earlier_uses(hospital)
    floors = () if scope.outside else home_floors(hospital, scope.methods)
    losses = {run.run: "∞" if math.isinf(run.epsilon) else f"{run.epsilon:g}" for run in statement.runs}
    page = _build_page(hospital, scope, question, call.run.partition("/")[0], floors, losses)
    page = replace(
        page,
        left=tuple(list_left(hospital, lines, delta=delta_of(hospital))),
        withdrawn=Withdrawn(
            _read_count(hospital, question.cohort, "excluded", question.excluded),
            _read_count(hospital, question.cohort, UNMATCHED, question.unmatched_exclusions),
            known,
        ),
        released=describe_released_counts(hospital),
        statement=statement,
        sizes=_compare_sizes(hospital, scope, question, page),
        cases=_list_cases(hospital, scope, question, page, floors),
    )
    details, folder = _describe_outside(scope, question), DiskFolder(hospital.root)
    folder.write(STATEMENT, render_markdown(statement).encode())
    text = render_site_page(page, details)
    folder.write(PAGE, show_marks(text, hospital.root).encode())
    folder.write(CONTENT, write_site_json(page, details).encode())
    for decision, in_words in zip(page.decisions, list_choices(page), strict=True):
        keep_decision(hospital, question, decision, in_words)
    head = ledgers.read_head(hospital.ledger)
    released_decision = released_decision_facts(hospital, question, next(iter(page.decisions), None))
    by_run = group_by(lines, lambda line: str(line["run"]))
    reply = Reported(
        left=[_build_entry(entry) for entry in page.left],
        sent={run: sum(whole_of(line, "bytes") for line in each) for run, each in by_run.items()},
        page=keyed_digest(hospital.key(), hashlib.sha256(text.encode()).hexdigest()),
        knew=[*known_outside(known)] if not hospital.policy.promises else [],  # which split a patient was in
        ready=[model.method for model in page.models if model.file and model.method not in AT_HOME],
        statement=as_mapping(to_json(statement)),
        decision=released_decision,
        ledger=(head.lines, head.sha256),  # whoever keeps it can prove that history was not rewritten
    )
    return Done(reply, describe_event(hospital.counts if released_decision is None else NON_PRIVATE))


class Scope(NamedTuple):
    """What a page is of. splits: their names. methods: of a run that it took part in; lines: what is kept of the lines
    of one that it did not.
    """

    cohort: Cohort
    splits: Sequence[str]
    methods: Sequence[Method]
    lines: Mapping[str, Message]
    outside: bool


def _build_scope(hospital: Hospital, question: Report) -> Scope:
    """The cohort, splits and methods that a page is about; all patients of an external site in one split."""
    cohort = cohort_of(hospital, question.cohort)
    if not isinstance(question, OutsideReport):
        return Scope(cohort, SPLITS, question.methods, {}, outside=False)
    one_split_cohort = replace(cohort, split=torch.zeros_like(cohort.split))
    return Scope(one_split_cohort, EVERYBODY, (), read_lines(hospital, question.lines), outside=True)


def _build_page(
    hospital: Hospital, scope: Scope, question: Report, run: str, floors: Sequence[HomeFloor], losses: Mapping[str, str]
) -> SitePage:
    """All but what the ledger says. run: as the call names it, within bounds. losses: epsilon by conversation."""
    cohort, methods, copies = scope.cohort, scope.methods, question.copies
    variants, structures = value_or_none(question.variants) or [], _list_structures(question)
    classes, at_home = Classes(label_names(cohort), question.ordered is True), [floor.model.method for floor in floors]
    labels = None if structures else read_range(cohort.recipe)
    number, findings = None if labels is None else describe_number(labels), _read_findings(cohort, structures)
    kind: Mapping[str, bool] = {"ordered": classes.ordered, "are_findings": bool(findings.names)}
    tables = _read_all_tables(hospital, scope, [*methods, *variants], floors, copies, **kind)
    evidence = [each for table in tables.values() for each in table.values()]
    if any(isinstance(each, Overlaps) != bool(structures) for each in evidence):
        raise Refused("malformed_request") from ValueError("structures are of models that outline, and of those only")
    scored = _choose_measures(structures, classes, number, findings, tables)
    models = (*list_usable_models(hospital, question.methods, variants), *(floor.model for floor in floors))
    if question.reference is None and floors:  # the best line at home
        question = replace(question, reference=choose_own_reference(hospital, question, models, floors))
    reference = question.reference if question.reference in tables else None
    rows = score_rows(tables, reference=reference, measures=scored)
    recommended = () if scope.outside else make_recommendation(hospital, question, models, floors, losses)
    decided = () if scope.outside else make_decisions(models, rows, recommended)
    words = replace(words_of_kind(kind_of(cohort)), unit="" if number is None else number.unit)
    rejected = rejected_studies(hospital, question.cohort)
    notes, pictured = collect_notes(hospital, methods), not hospital.simulation or question.pictures is not False
    page = SitePage(
        title=_page_title(hospital, question.title),
        site=hospital.name,
        run=run,
        date=hospital.now(),
        simulation=hospital.simulation,
        reference=question.reference or "",
        splits=tuple(split_counts(cohort, scope.splits)),
        scores=rows,
        left=(),
        quarantine=tuple(Quarantined(r.study, r.reason, r.meaning) for r in rejected),
        pictured=pictured,
        words=words,
        characteristics=compute_characteristics(read_features(cohort), (class_numbers(cohort) > 0).numpy()),
        commands=_list_commands(hospital, models),
        harmony=build_site_harmony(hospital, cohort, question),
        membership=tuple(_list_attacks(hospital, methods)),
        noted=notes.pictures if pictured else (),
        warnings=notes.warnings,
        structures=structures,
        noised=noised_at(hospital, methods),
        models=models,
        optimism=compute_optimism(tables, [hospital.name], select_primary(scored)),
        decisions=decided,
        rivals=find_rivals(tables, decided, models, select_primary(scored)),
        spaces={line["label"]: line["space"] for line in (*methods, *variants) if "space" in line},
        classes=() if structures or number or findings.names else classes.several,
        shares=compute_gap_shares(value_or_none(question.compared) or [], tables, select_primary(scored)),
        at_home=(*at_home, *list_lines_alone(hospital, [*methods, *variants])),
        home_floors=tuple(at_home),
        number=number,
        ordered=classes.ordered,
        findings=findings,
        lookup=f"grep -A 3 CODE {shlex.quote(str(hospital.root / LINKAGE))}",
    )
    scores = PageScores(tables, rows, decided, classes, number, findings.names)
    return _add_pictures(hospital, scope, question, page, scores) if pictured else page


def _add_pictures(hospital: Hospital, scope: Scope, question: Report, page: SitePage, scores: PageScores) -> SitePage:
    """The page with images of patients, what models look at or outline, and figures."""
    cohort, classes, features = scope.cohort, scores.classes, read_features(scope.cohort)
    sides = (classes.names[0], "all others") if classes.several else ("negative", "positive")
    positive, by_label = (class_numbers(cohort) > 0).numpy(), list[Picture]()
    if features:
        by_label = [draw_features_by_class(features, positive, examples=page.words.examples, classes=sides)]
    target: Target | None = value_or_none(question.target)
    seen = None if target is None else target_masks(cohort, target)
    return replace(
        page,
        images=(*by_label, *image_sheets(cohort, seen, scope.splits)),
        maps=_draw_sheets(hospital, cohort, scope.methods, question),
        pictures=draw_curves(hospital, cohort, scope.splits, scores, question, page.words),
    )


def _list_cases(
    hospital: Hospital, scope: Scope, question: Report, page: SitePage, floors: Sequence[HomeFloor]
) -> Cases | None:
    """On whom the hospital's model is wrong most; None at an external site, and on a page without pictures."""
    if scope.outside or not page.pictured:
        return None
    if page.structures:
        window = value_or_none(question.window)
        return list_mask_cases(hospital, scope.cohort, page.run, page.decisions, scope.methods, page.structures, window)
    variants = value_or_none(question.variants) or []
    return list_cases(hospital, scope.cohort, page.run, page.decisions, scope.methods, variants, floors)


def _read_findings(cohort: Cohort, structures: Sequence[str]) -> Several:
    """What is predicted, if that is several findings."""
    names = () if structures else finding_names(cohort)
    return Several(names, label_names(cohort)) if names else Several()


def _compare_sizes(hospital: Hospital, scope: Scope, question: Report, page: SitePage) -> SizeSection:
    """How large masks are by this hospital's own models, and by the lines of an external site."""
    if not page.structures:
        return SizeSection()
    own_lines = [*scope.methods, *(value_or_none(question.variants) or ())]
    known = {line["label"]: (cohort_of(hospital, line["cohort"]), kept_values(hospital, line)) for line in own_lines}
    known |= {label: (scope.cohort, read_patient_scores(scores.tensors)) for label, scores in scope.lines.items()}
    shown = [page.reference, *(decision.method for decision in page.decisions)]
    if scope.outside:
        shown = [row.method for row in select_best_rows(page.scores)]
    return compare_page_sizes(hospital, known, page.structures, question.copies, shown)


def _choose_measures(
    structures: Sequence[str], classes: Classes, number: Number | None, findings: Several, tables: Mapping[str, Table]
) -> tuple[Measure, ...]:
    """The measures of what models predict."""
    if findings.names:
        return list_finding_measures(findings.names, exact=True)
    if number is not None:
        return list_number_measures(number)
    return list_measures(structures) if structures else label_measures(tables, classes)


def _describe_outside(scope: Scope, question: Report) -> OutsideDetails | None:
    """How models were adapted to an external site; None for a hospital of the federation."""
    if not isinstance(question, OutsideReport):
        return None
    target: Target | None = value_or_none(question.target)
    went = adapted_lines(scope.lines, scope.cohort, target, question.names)
    outlines = tuple(adapted_sheets(scope.lines, scope.cohort, target, _list_structures(question)))
    return OutsideDetails(went, question.field, outlines)


def _page_title(hospital: Hospital, title_of_run: str) -> str:
    """The run's title, marked as the coordinator's where that is somebody else."""
    title = remove_controls(title_of_run)
    return title if hospital.simulation else f"{title} (title given by the coordinator)"


def _draw_sheets(
    hospital: Hospital, cohort: Cohort, methods: Sequence[Method], question: Report
) -> tuple[Picture, ...]:
    """What models look at, or outline, and what attackers draw of the hospital's images."""
    structures = _list_structures(question)
    seen = (
        outline_sheets(hospital, methods, structures, value_or_none(question.window))
        if structures
        else map_sheets(hospital, cohort, methods)
    )
    return (*seen, *inversion_sheets(hospital, methods))


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


def _list_attacks(hospital: Hospital, methods: Sequence[TableLine]) -> Iterator[MembershipRow]:
    """What the hospital's attacks on its own models found; it stays here where the models have a guarantee."""
    for method in methods:
        if (attack := read_membership(hospital, method)) is not None:
            areas = (attack.auc, attack.low, attack.high, attack.control_auc)
            yield MembershipRow(
                hospital.name, method["label"], *areas, attack.members, attack.others, attack.reason or ""
            )


def _list_structures(question: Report) -> tuple[str, ...]:
    """Names of the classes that the methods of a run outline; none where they give labels."""
    return tuple(value_or_none(question.structures) or ())


def _read_count(hospital: Hospital, cohort: str, name: str, released: int | Absent) -> int:
    """What this hospital counted when it read its files; of an older cohort what the coordinator was told."""
    folder = DiskFolder(hospital.cohort_folder(cohort))
    if folder.has(COUNTS):
        return whole_of(json.loads(folder.read(COUNTS)), name, 0)
    return value_or_none(released) or 0


def describe_released_counts(hospital: Hospital) -> str:
    """Which counts of patients others hear, where these are not the page's own; empty without a budget."""
    counted = read_released_counts(hospital)
    if counted is None:
        return ""
    numbers = ", ".join(f"{split} {counted.patients(split)}" for split in SPLITS)
    cells = f"in each of {counted.histogram_cells} cells"
    noise = f"with noise of standard deviation {counted.noise:.2g} {cells}" if counted.noise else "exactly"
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
        labels, number = class_numbers(cohort)[chosen], len(label_names(cohort))
        each = torch.bincount(labels, minlength=number).tolist() if number > 2 else ()
        counts.append(SplitCount(split, patients, int(chosen.sum()), int((labels > 0).sum()), each))
    return counts


def _read_all_tables(
    hospital: Hospital, scope: Scope, lines: Sequence[TableLine], floors: Sequence[HomeFloor], copies: int, **kind: bool
) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence of lines, as `_read_tables`; of an external site's lines; and of those that this hospital learnt at home
    for its page alone. kind: of labels, as `evidence_of` has it.
    """
    pair = (hospital.name, hospital.name)
    return {
        **_read_tables(hospital, lines, copies, **kind),
        **read_line_evidence(hospital, scope.lines, copies, ordered=kind["ordered"]),
        **{floor.model.method: {pair: evidence_of(hospital, floor.scores, copies, **kind)} for floor in floors},
    }


def _read_tables(
    hospital: Hospital, lines: Sequence[TableLine], copies: int, **kind: bool
) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence of this hospital's own models on its own test patients, from the scores that it kept; and of the floor,
    where it was kept beside. kind: of labels, as `evidence_of` has it.
    """
    folder = DiskFolder(hospital.root / "scores")
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    home_pair, low, guess = (hospital.name, hospital.name), None, dict[str, Tensor]()
    for line in lines:
        name = scores_name_of(line)
        if not folder.has(name):
            continue  # the central baseline: no model of this hospital's own
        tensors = from_bytes(folder.read(name)).tensors
        if "y" in tensors and not len(tensors["y"]):
            continue  # its test patients are gone, and it answered by released counts
        tables[line["label"]] = {home_pair: evidence_of(hospital, tensors, copies, **kind)}
        low = low or read_patient_scores(tensors, FLOOR)
        guess = guess or {n.removeprefix(FLOOR): t for n, t in tensors.items() if n.startswith(f"{FLOOR}prob")}
        guess = {**guess, "y": tensors["y"], "patient": tensors["patient"]} if guess else guess
    if guess:
        return {**tables, MEDIAN: {home_pair: evidence_of(hospital, guess, copies)}}
    return {**tables, MEAN_MASK: {home_pair: compute_sums(hospital, low, copies)}} if low is not None else tables
