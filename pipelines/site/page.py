"""The hospital's own page: pictures of its patients, its quarantine, its scores, what left it. It stays there."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter

from evaluation.drawing import Picture
from evaluation.figures import Curve, learning_curves, roc_curves
from evaluation.floors import MEAN_MASK
from evaluation.histograms import Counts, count
from evaluation.overlap import measures
from evaluation.panels import parts
from evaluation.patients import by_class, characteristics, intensities
from evaluation.protocols import Evidence, Table
from evaluation.report import Command, Left, Quarantined, SitePage, SplitCount, Withdrawn, site_page
from evaluation.rows import MEASURES, score_rows
from evaluation.statement_page import MechanismAudit, MembershipRow, site_statement
from federation.conversation import newest
from pipelines.cohort.cohort import Cohort
from pipelines.cohort.targets import Target, targets
from pipelines.site.admit import cohort_of, rejected_studies
from pipelines.site.attack import found_at_home
from pipelines.site.harmony import own_harmony
from pipelines.site.hospital import SPLITS, Done, Hospital, keyed
from pipelines.site.inversion import inversion_sheets
from pipelines.site.learn import TARGET
from pipelines.site.notes import noted
from pipelines.site.outlines import outline_sheets
from pipelines.site.ready import READY
from pipelines.site.score import scores_name
from pipelines.site.segmenting import FLOOR, kind_of, measured, own_sums, read_kept
from pipelines.site.sheets import image_sheets, map_sheets
from pipelines.site.stated import left, own_statement
from pipelines.site.table import features_of
from pipelines.site.withdrawn import knew, known_outside
from pipelines.store import DiskFolder
from privacy import ledger as book
from privacy.events import describe
from privacy.message import Call, Json, Message, as_list, as_mapping, from_bytes
from privacy.statement import markdown, to_json

PAGE, STATEMENT = "report.html", "statement.md"
DELTA = 1e-5  # at which costs are told where nobody names one


def report(hospital: Hospital, call: Call, message: Message, memory: Message) -> Done:
    """Write the page; say what left and in how many messages and bytes, by request and by run (not yet this one).

    Facts: `title`, `run`, `date`, `cohort`, `reference`, `copies`, `excluded`, `unmatched_exclusions`, and `methods`,
    each with `label`, `train_run`, `checkpoint` and `best`. Where the methods outline: `structures`, their names;
    `target`, which masks they are; `window`, as in `evaluate`. Returns also the names of earlier runs that patients had
    a part in who are excluded now.
    """
    facts = message.facts
    cohort = cohort_of(hospital, str(facts["cohort"]))
    methods = _methods(facts)
    tables = _own_tables(hospital, methods, facts)
    learnt = learnt_of(facts)
    lines = [line for line in book.lines(hospital.ledger) if not line.get("torn")]
    delta = float(str(facts.get("delta", DELTA)))
    said = own_statement(
        hospital, lines, delta=delta, unit=str(facts.get("unit", "patient")), audit=_audit(facts.get("audit"))
    )
    stated = to_json(said)
    known = knew(hospital)
    words, features = measured(kind_of(cohort)), features_of(cohort)
    positive = (cohort.labels == 1).numpy()
    notes = noted(hospital, methods)
    page = SitePage(
        title=str(facts["title"]),
        site=hospital.name,
        run=str(facts["run"]),
        date=str(facts["date"]),
        simulation=True,
        reference=str(facts["reference"] or ""),
        splits=tuple(split_counts(cohort)),
        scores=score_rows(
            tables,
            reference=str(facts["reference"]) if facts["reference"] in tables else None,
            measures=measures(learnt.structures) if learnt.structures else MEASURES,
        ),
        left=tuple(left(hospital, lines, delta=delta)),
        quarantine=tuple(
            Quarantined(r.study, r.reason, r.meaning) for r in rejected_studies(hospital, str(facts["cohort"]))
        ),
        images=(
            *([by_class(features, positive, examples=words.examples)] if features else []),
            *image_sheets(cohort, None if learnt.target is None else targets(cohort, learnt.target)),
        ),
        maps=_sheets(hospital, cohort, methods, facts),
        pictures=(*_rocs(hospital.name, tables, facts), *_curves(hospital, facts), *_intensities(cohort)),
        words=words,
        withdrawn=Withdrawn(_count(facts, "excluded"), _count(facts, "unmatched_exclusions"), known),
        characteristics=characteristics(features, positive),
        commands=_commands(hospital, methods),
        statement=site_statement(stated),
        harmony=own_harmony(hospital, cohort, str(facts["cohort"]), [str(s) for s in as_list(facts.get("spaces"))]),
        membership=tuple(_attacks(hospital, methods)),
        noted=notes.pictures,
        warnings=notes.warnings,
        structures=learnt.structures,
    )
    DiskFolder(hospital.root).write(STATEMENT, markdown(said).encode())
    text = site_page(page).encode()
    DiskFolder(hospital.root).write(PAGE, text)
    head = book.head(hospital.ledger)
    reply: dict[str, Json] = {
        "left": [_plain(entry) for entry in page.left],
        "sent": _sent(lines),
        "page": keyed(hospital.key(), hashlib.sha256(text).hexdigest()),
        "knew": [*known_outside(known)],
        "statement": stated,
        "ledger": [head.lines, head.sha256],  # whoever keeps it can prove that history was not rewritten
    }
    return Done(Message({}, reply), describe(hospital.counts))


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


def _sent(lines: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Bytes that left, by run."""
    sent: dict[str, Json] = {}
    for line in lines:
        run = str(line["run"])
        sent[run] = int(str(sent.get(run, 0))) + int(str(line["bytes"]))
    return sent


def _plain(entry: Left) -> dict[str, Json]:
    """What left in answer to one request, for the coordinator's page."""
    names = ("request", "content", "messages", "bytes", "epsilon")
    return {name: getattr(entry, name) for name in names}


def _audit(said: Json) -> MechanismAudit | None:
    return TypeAdapter(MechanismAudit).validate_python(said) if isinstance(said, dict) else None


def _attacks(hospital: Hospital, methods: Sequence[Mapping[str, Json]]) -> Iterator[MembershipRow]:
    """What the hospital's attacks on its own models found; it stays here where the models have a guarantee."""
    for method in methods:
        found = found_at_home(hospital, method)
        if found is not None:
            yield MembershipRow(
                hospital.name,
                str(method["label"]),
                found.auc,
                found.low,
                found.high,
                found.control_auc,
                found.members,
                found.others,
                found.reason or "",
            )


class Learnt(NamedTuple):
    """The masks that the methods of a run outline, and the names of their classes; nothing where they give labels."""

    target: Target | None
    structures: tuple[str, ...]


def learnt_of(facts: Mapping[str, Json]) -> Learnt:
    """What is said of it in a request."""
    return Learnt(TARGET.validate_python(facts.get("target")), tuple(map(str, as_list(facts.get("structures", [])))))


def _count(facts: Mapping[str, Json], name: str) -> int:
    return int(str(facts.get(name, 0)))


def _commands(hospital: Hospital, methods: Sequence[Mapping[str, Json]]) -> tuple[Command, ...]:
    """How to use a finished model, and how to withdraw a patient."""
    models = [hospital.root / READY / f"{method['label']}.safetensors" for method in methods]
    lines = [f"python -m pipelines.predict {shlex.quote(str(path))} FOLDER" for path in models if path.exists()]
    use = "Use a finished model on new patients (FOLDER holds their files); scores and a quarantine are written here"
    out = "Leave out a patient who withdrew: in the run's settings, by identifier or by pseudonym; then run again"
    line = f'sites: {{{hospital.name}: {{exclude: ["IDENTIFIER"]}}}}'
    return (*([Command(use, "\n".join(lines))] if lines else []), Command(out, line))


def split_counts(cohort: Cohort) -> list[SplitCount]:
    """Patients, images and positive images of each split."""
    found = []
    for number, split in enumerate(SPLITS):
        chosen = cohort.split == number
        patients = len(torch.unique(cohort.patient[chosen]))
        found.append(SplitCount(split, patients, int(chosen.sum()), int(cohort.labels[chosen].sum())))
    return found


def _own_tables(
    hospital: Hospital, methods: Sequence[Mapping[str, Json]], facts: Mapping[str, Json]
) -> dict[str, dict[tuple[str, str], Evidence]]:
    """Evidence of this hospital's own models on its own test patients, from the scores that it kept; and of the floor,
    where it was kept beside.
    """
    folder = DiskFolder(hospital.root / "scores")
    tables: dict[str, dict[tuple[str, str], Evidence]] = {}
    copies, own, low = int(str(facts["copies"])), (hospital.name, hospital.name), None
    for method in methods:
        name = scores_name(method)
        if not folder.has(name):
            continue  # the central baseline: no model of this hospital's own
        kept = from_bytes(folder.read(name)).tensors
        if (values := read_kept(kept)) is not None:
            tables[str(method["label"])] = {own: own_sums(hospital, values, copies)}
            low = low or read_kept(kept, FLOOR)
            continue
        y, patient = kept["y"].numpy(), kept["patient"].numpy()
        counts = count(
            y,
            kept["probabilities"].numpy(),
            patient,
            copies=copies,
            seed=hospital.bootstrap_seed(),
            site=hospital.name,
        )
        tables[str(method["label"])] = {own: counts}
    return {**tables, MEAN_MASK: {own: own_sums(hospital, low, copies)}} if low is not None else tables


def _rocs(site: str, tables: Mapping[str, Table], facts: Mapping[str, Json]) -> list[Picture]:
    own = {method: table[site, site] for method, table in tables.items()}
    order, lines = _order(facts), {m: counts.scores[0, 0] for m, counts in own.items() if isinstance(counts, Counts)}
    return [
        roc_curves({site: {name: lines[name] for name in names}}, order=order, part=part)
        for part, names in parts([name for name in order if name in lines], str(facts["reference"]))
    ]


def _order(facts: Mapping[str, Json]) -> list[str]:
    """All methods of the run, so that each looks here as on the coordinator's page."""
    return [str(method["label"]) for method in _methods(facts)]


def _methods(facts: Mapping[str, Json]) -> list[dict[str, Json]]:
    return [method for method in as_list(facts["methods"]) if isinstance(method, dict)]


def _curves(hospital: Hospital, facts: Mapping[str, Json]) -> list[Picture]:
    """Validation losses here, by round, from what this hospital remembers."""
    curves: dict[str, Curve] = {}
    for method in _methods(facts):
        losses = as_mapping(newest(hospital.conversation(str(method["train_run"]))).facts.get("losses"))
        finite = {int(r): float(str(v)) for r, v in losses.items() if v is not None}
        if finite:
            curves[str(method["label"])] = Curve(tuple(sorted(finite)), tuple(finite[r] for r in sorted(finite)))
    return [
        learning_curves({hospital.name: {name: curves[name] for name in names}}, order=_order(facts), part=part)
        for part, names in parts(list(curves), str(facts["reference"]))
    ]


def _intensities(cohort: Cohort) -> list[Picture]:
    values: dict[str, NDArray[np.generic]] = {}
    for number, split in enumerate(SPLITS):
        images = cohort.images[cohort.split == number]
        if len(images) and cohort.images.dim() > 2:
            values[split] = images[images != 0].numpy()
    return [intensities(values, unit=cohort.unit)] if values else []
