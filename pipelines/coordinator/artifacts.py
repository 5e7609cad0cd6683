"""Stages' results: their file names, and the replies of hospitals in them, for the stages and pages that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from evaluation.answers import Answers, run_answers
from evaluation.records import RunPage
from evaluation.rows import ScoreRow, from_json, to_json
from pipelines.requests.ingest import INGEST, Counted, CountedOnce
from pipelines.requests.request import Request
from pipelines.requests.score import Scored
from pipelines.requests.writing import read_reply, to_facts
from privacy.message import Json, Message
from privacy.release.form import read_form
from privacy.release.statement import Statement
from privacy.release.statement import from_json as statement_from

T = TypeVar("T")
Counts: TypeAlias = Counted | CountedOnce
CENTRAL = "central"
"""The site, in a simulation, that holds the pooled images of all hospitals."""
SITES = "sites.json"
SCORES = "scores.json"
SYNTHESIS = "synthesis.json"
SHARED = "shared.safetensors"
OUTSIDE_FOLDER = "outside"
"""Folder of the stage `route` with the external sites' counts of their cohorts."""
INDEX, REFUSED = "index.json", "refused.json"
AGREED = "agreed.json"
"""Site -> null, or the code with which it did not let its figures go to tracking tools."""
PAGE, ANSWERS = "report.html", "answers.json"
BY_ROUND = "rounds.json"
"""File of the stage `figures`."""

ROWS, REPORT, STATEMENTS = "scores.json", "report.json", "statement.json"
"""Files of the stage `report`."""


def write_results(folder: Path, page: RunPage) -> None:
    """Write the contents of the page, its scores and its answers into the artifact of the stage `report`."""
    (folder / ROWS).write_text(to_json((*page.scores, *page.outside)))
    (folder / REPORT).write_text(to_json(replace(page, pictures=())))
    (folder / ANSWERS).write_text(to_json(run_answers(page)))


def read_scores(report: Path) -> tuple[ScoreRow, ...]:
    """The scores in an artifact of the stage `report`. Raises: ValueError: it is damaged."""
    return from_json(tuple[ScoreRow, ...], (report / ROWS).read_bytes())


def read_page(report: Path) -> RunPage:
    """The contents of the page, without its pictures, as `read_scores`."""
    return from_json(RunPage, (report / REPORT).read_bytes())


def read_answers(report: Path) -> Answers:
    """The answers at the top of the page, as `read_scores`."""
    return from_json(Answers, (report / ANSWERS).read_bytes())


def write_statements(folder: Path, statements: Mapping[str, Json]) -> None:
    """Write the privacy statements by site, as hospitals sent them."""
    (folder / STATEMENTS).write_text(json.dumps(statements, indent=1))


def read_statements(report: Path) -> dict[str, Statement]:
    """The privacy statements by site, as `read_scores`."""
    return {site: statement_from(content) for site, content in json.loads((report / STATEMENTS).read_bytes()).items()}


@dataclass(frozen=True)
class ScoredFile:
    """A reply with scores in an artifact of the stage `evaluate` or `route`. label: of the line. run: in which it was
    routed; None = `evaluate` has it.
    """

    label: str
    model_site: str
    test_site: str
    file: str
    run: str | None = None


def write_index(folder: Path, index: Sequence[ScoredFile]) -> None:
    """Write what the artifact's files are."""
    entries = [{name: value for name, value in vars(entry).items() if value is not None} for entry in index]
    (folder / INDEX).write_text(json.dumps(entries, indent=1))


def read_index(artifact: Path) -> tuple[ScoredFile, ...]:
    """What the artifact's files are. Raises: ValueError: it is damaged."""
    return from_json(tuple[ScoredFile, ...], (artifact / INDEX).read_bytes())


@dataclass(frozen=True)
class Refusal:
    """A request that a site refused, and its code."""

    site: str
    request: str
    code: str


def write_refused(folder: Path, refused: Sequence[Refusal]) -> None:
    """Write which sites refused to score models."""
    (folder / REFUSED).write_text(json.dumps([vars(refusal) for refusal in refused], indent=1))


def read_refused(artifact: Path) -> tuple[Refusal, ...]:
    """Which sites refused to score models. Raises: ValueError: the file is damaged."""
    return from_json(tuple[Refusal, ...], (artifact / REFUSED).read_bytes())


@dataclass(frozen=True)
class RoundFigures:
    """What a hospital told of the model after one round. training: name of the training. scores: by measure, None where
    one is not defined. confusion: (T, C, C) numbers of validation examples, or of pixels, by true and predicted class;
    of several findings a table each, absent and there; empty for a number. seconds: of local work in the round, None
    where the hospital took no part in it.
    """

    training: str
    site: str
    round: int
    scores: Mapping[str, float | None]
    confusion: list[list[list[int]]]
    seconds: float | None


def write_round_figures(folder: Path, figures: Sequence[RoundFigures]) -> None:
    """Write what hospitals told of rounds into the artifact of the stage `figures`."""
    (folder / BY_ROUND).write_text(json.dumps([vars(each) for each in figures]))


def read_round_figures(artifact: Path | None) -> tuple[RoundFigures, ...]:
    """What hospitals told of rounds; none without an artifact. Raises: ValueError: the file is damaged."""
    return () if artifact is None else from_json(tuple[RoundFigures, ...], (artifact / BY_ROUND).read_bytes())


@dataclass(frozen=True)
class Targeted:
    """What the stage `score` found. target: the hospital whose images are imitated. release: how scores were released.
    scores: of the hospitals that were asked.
    """

    target: str
    release: str
    scores: Mapping[str, Scored]


def read_target(artifact: Path) -> Targeted:
    """What the stage `score` found. Raises: ValueError: the file is damaged."""
    return from_json(Targeted, (artifact / SCORES).read_bytes())


def target_of(artifact: Path) -> str:
    """The hospital whose images are imitated, from the artifact of the stage `score`."""
    return read_target(artifact).target


def write_replies(path: Path, replies: Mapping[str, Any]) -> None:
    """Write the facts of replies, by site, as JSON."""
    path.write_text(json.dumps({site: to_facts(reply) for site, reply in replies.items()}, indent=1, sort_keys=True))


def read_records(form: type[T], path: Path) -> dict[str, T]:
    """The part of written replies that this form has, by site.

    Raises:
        ValueError: the file is damaged.
    """
    return {site: read_form(form, Message({}, facts)) for site, facts in json.loads(path.read_text()).items()}


def read_replies(request: Request[Any, T], path: Path) -> dict[str, T]:
    """Written replies to a request, by site. Raises: ValueError: the file is damaged."""
    return {site: read_reply(request, Message({}, facts)) for site, facts in json.loads(path.read_text()).items()}


def read_counts(ingested: Path) -> dict[str, Counts]:
    """What hospitals counted, by site, from an artifact of the stage `ingest`. Raises: ValueError: it is damaged."""
    return read_replies(INGEST, ingested / SITES)
