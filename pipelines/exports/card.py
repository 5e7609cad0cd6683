"""A model card, written by the machine: every figure is one that the coordinator's page of the run holds.

What a hospital did not release is not there: counts of patients, scores and ε are taken from `report.json` of the run,
which holds what left hospitals and nothing else, and of it this hospital's own lines alone. Figures of other hospitals
are theirs to hand on. Without a report the card says so and gives none.

The headings follow Mitchell et al., Model Cards for Model Reporting, FAT* 2019.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from evaluation.records import RunPage, SplitCount
from evaluation.rows import PRIVATE, from_json, plain_json
from federation.models.adapted import fixed_in
from federation.parameters import count_values, read_parameters
from pipelines.exports.network import describe_preparation
from pipelines.hospital.beginnings import START, describe_beginnings
from pipelines.loader.validation import to_plain
from pipelines.models.file import ALGORITHM, Ready
from privacy.message import Json

INTENDED = "Research on images that are prepared as stated below. Not a medical device, not for diagnosis."
LIMITS = (
    "It was scored on test patients of the hospital named here; elsewhere it may be worse.",
    "Its probabilities are not calibrated for another hospital, unless the settings below say how.",
    "Images that were prepared in another way get a score as well, and it means nothing.",
)


@dataclass(frozen=True)
class AboutModel:
    """What the model is. training: of its rounds. network: its settings."""

    label: str
    digest: str
    site: str
    run: str | None
    round: int | None
    training: Mapping[str, Json]
    program: str | None
    checkpoint: str | None
    parameters: int
    network: Json


@dataclass(frozen=True)
class AboutMethod:
    """How the model was trained. what: the first sentence of the method's docstring."""

    settings: Json
    what: str
    calibration: Json


@dataclass(frozen=True)
class TrainingData:
    """This hospital's counts as it released them, and how many hospitals took part."""

    hospitals: int
    site: str
    splits: tuple[SplitCount, ...]
    counted: str


@dataclass(frozen=True)
class CardScore:
    """Of a row of scores, what the card quotes."""

    measure: str
    value: float
    low: float
    high: float
    patients: int
    images: int
    positives: int
    assessable: bool
    noise: float


@dataclass(frozen=True)
class Claim:
    """Of a privacy statement, what the card quotes."""

    unit: str
    adjacency: str
    epsilon: float | Literal["Infinity"]
    delta: float
    accountant: str
    meaning: str
    outside: tuple[str, ...]
    first: str
    last: str
    lines: int


@dataclass(frozen=True)
class Attack:
    """How well the hospital's own membership attack tells training patients from others."""

    auc: float
    low: float
    high: float
    note: str


@dataclass(frozen=True)
class Privacy:
    """training: the settings of its protection; None: without. attack: None = it was not tried."""

    training: Json
    statement: Claim | None
    attack: Attack | None


@dataclass(frozen=True)
class RunSettings:
    """sha256: of the run's settings. stages: the artifact of each."""

    sha256: str
    stages: Mapping[str, str]


@dataclass(frozen=True)
class Source:
    """The run whose report is quoted."""

    run: str
    date: str


@dataclass(frozen=True, kw_only=True)
class Card:
    """What is None was not stated, because there was no report. scores: empty = the hospital released none."""

    format: int = 1
    model: AboutModel
    method: AboutMethod
    training_data: TrainingData | None
    scores: tuple[CardScore, ...] | None
    privacy: Privacy
    settings: RunSettings | None
    preparation: Mapping[str, Json]
    unlike_studies: str
    intended_use: str = INTENDED
    limits: tuple[str, ...]
    leaves: str
    licence: str
    report: Source | None

    def to_json(self) -> str:
        """The card for machines."""
        return f"{json.dumps(plain_json(self), indent=1)}\n"


class Report(NamedTuple):
    """The coordinator's page. verified: whether the training that it reports is the one that made the model; None if
    the run's other artifacts are not there to tell.
    """

    page: RunPage
    verified: bool | None


def find_report(model: Path) -> Path | None:
    """`report.json` of the run in whose folder a model lies, the newest; None if there is none."""
    folders = model.resolve().parents
    reports = [] if len(folders) < 4 else [*(folders[3] / "report").glob("*/report.json")]
    return max(reports, key=lambda path: path.stat().st_mtime, default=None)


def read_report(path: Path, ready: Ready) -> Report:
    """Read a run's report, and check that it reports this model's run.

    Raises:
        ValueError: it is none, or of another run, hospital, method or training.
        OSError: it cannot be read.
    """
    site, label, run = ready.origin.site, ready.origin.label, ready.origin.run or ""
    try:
        page = from_json(RunPage, path.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{path} is no report.json of a run ({error}); give runs/NAME/report/DIGEST/report.json"
        ) from error
    name, wrong = run.partition("/")[0], list[str]()
    wrong += [] if name == page.run else [f"it is of the run {page.run}, the model of {name}"]
    wrong += [] if site in {counts.site for counts in page.sites} else [f"it knows no hospital {site}"]
    wrong += [] if label in {model.method for model in page.models} else [f"it knows no method {label}"]
    verified = None if wrong else _same_training(path, page, ready)
    if verified is False:
        wrong.append("it reports another training of this method; make the report again")
    if wrong:
        raise ValueError(f"--report {path}: {'; '.join(wrong)}")
    return Report(page, verified)


def _same_training(path: Path, page: RunPage, ready: Ready) -> bool | None:
    """Whether the stage `train` that the report names made this model; None if its artifact is not there."""
    run = path.resolve().parents[2]
    train = next((stage.why for stage in page.stages if stage.stage == "train"), "")
    results = [] if not train else sorted((run / train).glob("*.json"))
    runs = {json.loads(path.read_bytes()).get("train_run") for path in results if path.name != "manifest.json"}
    return ready.origin.run in runs if runs else None


def build_card(ready: Ready, report: Report | None, *, licence: str, leaves: str) -> Card:
    """The card. licence: of the model; empty = none was given. leaves: who may get it, in words."""
    origin, site, label = ready.origin, ready.origin.site, ready.origin.label
    page = None if report is None else report.page
    scores = None if page is None else _list_scores(page, site, label)
    return Card(
        model=AboutModel(
            label=label,
            digest=ready.digest,
            site=site,
            run=origin.run,
            round=origin.round,
            training={"rounds_trained": origin.rounds_trained, "rounds": origin.rounds, "ended": origin.ended},
            program=origin.program,
            checkpoint=origin.checkpoint,
            parameters=count_values({**read_parameters(ready.module), **fixed_in(ready.module)}),
            network=to_plain(ready.task.model),
        ),
        method=AboutMethod(origin.algorithm, _describe_method(origin.algorithm), origin.calibration),
        training_data=None if page is None else _describe_data(page, site),
        scores=scores,
        privacy=Privacy(
            origin.privacy,
            None if page is None else _select_statement(page, site),
            None if page is None else _select_attack(page, site, label),
        ),
        settings=None if page is None else _select_settings(page),
        preparation=describe_preparation(ready),
        unlike_studies=_describe_likeness(ready),
        limits=(*LIMITS, *_list_limits(ready, report, scores or ())),
        leaves=leaves,
        licence=licence or "none was given: ask the hospital before any use",
        report=None if page is None else Source(page.run, page.date),
    )


def _describe_method(settings: Mapping[str, Json] | None) -> str:
    """The first sentence on the method in the code."""
    method = None if settings is None else ALGORITHM.validate_json(json.dumps(settings), strict=True)
    lines = "" if method is None else (type(method).__doc__ or "").strip().split("\n\n")[0]
    return " ".join(lines.split())


def _describe_data(page: RunPage, site: str) -> TrainingData:
    """This hospital's counts as it released them, and how many hospitals took part."""
    counts = next(counts for counts in page.sites if counts.site == site)
    return TrainingData(len(page.sites), site, counts.splits, counts.released or "exact")


def _list_scores(page: RunPage, site: str, label: str) -> tuple[CardScore, ...]:
    """This hospital's scores of this model, with intervals."""
    own_rows = (row for row in page.scores if row.method == label and row.protocol == PRIVATE and row.sites == (site,))
    return tuple(CardScore(**_quote(row, CardScore)) for row in own_rows)


def _select_statement(page: RunPage, site: str) -> Claim | None:
    """Of this hospital's privacy statement the claim itself; in the report an infinite ε is no number."""
    statement = next((statement for statement in page.statements if statement.site == site), None)
    if statement is None:
        return None
    claim = Claim(**_quote(statement, Claim))
    return claim if math.isfinite(statement.epsilon) else replace(claim, epsilon="Infinity")


def _select_attack(page: RunPage, site: str, label: str) -> Attack | None:
    """The hospital's own membership attack on this model; None: it was not tried."""
    attack = next((row for row in page.membership if row.site == site and row.method == label), None)
    return None if attack is None else Attack(attack.auc, attack.low, attack.high, attack.note)


def _quote(record: object, kind: type) -> dict[str, Any]:
    """The fields of a record that a smaller kind of record has."""
    return {field.name: getattr(record, field.name) for field in fields(kind)}


def _select_settings(page: RunPage) -> RunSettings:
    """Digest of the run's settings, and why each stage ran."""
    digest = hashlib.sha256(page.settings.encode()).hexdigest()
    return RunSettings(digest, {stage.stage: stage.why for stage in page.stages})


def _describe_likeness(ready: Ready) -> str:
    """How the model tells studies unlike those that it learnt from."""
    if isinstance(ready.likeness, str):
        return f"Whether a study is like those that the model learnt from cannot be told: {ready.likeness}."
    return (
        "The hospital's own copy marks studies that are unlike its training studies. The statistics for that come from "
        "training patients without noise and stay there, so an exported file cannot mark them."
    )


def _list_limits(ready: Ready, report: Report | None, scores: Sequence[CardScore]) -> Sequence[str]:
    """Limits that follow from the figures."""
    limits = []
    if report is None:
        limits.append("No scores are stated: the card was written without the report of the run.")
    elif not scores:
        limits.append("No scores are stated: the hospital released none of this model.")
    if any(not score.assessable for score in scores):
        limits.append("Some scores rest on too few test patients to be judged; they are marked.")
    if report is not None and report.verified is None:
        limits.append("Whether the report is of this very training could not be checked: its other artifacts are away.")
    if ready.origin.privacy is None:
        limits.append("It was trained without differential privacy: it may tell of single training patients.")
    if began := describe_beginnings({"": {START: ready.origin.start}}):
        limits.append(f"{began[0].upper()}{began[1:]}.")
    if ready.scale is not None:
        limits.append("It holds mean and spread of the training patients' columns, without noise.")
    return limits
