"""Ask hospitals to evaluate signed models; collect each hospital's replies, or the codes of its refusals.

Each hospital reads its files as a model needs them (`ingest`), and then gets the model itself (`benchmark`). Both are
done once and committed at the hospital: the same command, after a kill or on another day, gets the same answers back.
A hospital that refuses or is not reachable is asked again by the next command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from evaluation.findings import Findings
from evaluation.histograms import Counts
from evaluation.numbers import Errors
from evaluation.overlap import Overlaps
from evaluation.protocols import Evidence, parse_evidence
from federation.engine import Engine
from pipelines.models.signed import Signed, Wanted, reading_of, to_tensor
from pipelines.requests.asking import UNEXPECTED, ask
from pipelines.requests.benchmark import BENCHMARK, Benchmark, Scored
from pipelines.requests.ingest import INGEST, BenchmarkIngest, Counted, CountedOnce
from pipelines.requests.request import Request
from pipelines.requests.survey import SURVEY, build_surveys
from pipelines.requests.writing import to_facts, to_message
from pipelines.runs.store import digest_json, short_digest
from pipelines.runs.witness import remember_answers
from pipelines.settings.benchmark import BenchmarkSettings, Models
from pipelines.settings.learning import Split
from privacy.message import Json, Message
from privacy.pickled import reduce_error
from privacy.release.form import ABSENT

Q = TypeVar("Q")
R = TypeVar("R")
VERSION = 1
TOO_MANY = "too_many_rejected"
SEED = 0
"""The seed of the splits. All splits are scored, so nothing depends on it."""


@dataclass
class HospitalAnswers:
    """The answers of a hospital. counts: of its last `ingest`; None: it answered none. replies, evidence: by model.
    refused: model -> request and code.
    """

    site: str
    counts: Counted | CountedOnce | None = None
    replies: dict[str, Scored] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)


class NoAnswer(Exception):
    """A hospital did not answer a request; `code` says why."""

    def __init__(self, request: str, code: str) -> None:
        super().__init__(f"{request}: {code}")
        self.request, self.code = request, code

    __reduce__ = reduce_error


@dataclass(frozen=True)
class Conversation:
    """With one hospital. run: the benchmark's name, with which names of questions begin. check: called before and after
    each question; raises `Stopped` on request. version: part of the questions' names. last: its last answer, by site.
    """

    engine: Engine
    site: str
    run: str
    check: Callable[[], None]
    version: int
    last: dict[str, Message] = field(default_factory=dict)

    def ask(self, request: Request[Q, R], name: str, question: Q) -> R:
        """The hospital's reply. Raises: NoAnswer."""
        self.check()
        answers = ask(self.engine, request, {self.site: f"{self.run}/{name}"}, {self.site: question})
        self.check()  # a hospital that was stopped during its work has not replied
        self.last.update(answers.messages)
        if self.site in answers.missing:
            raise NoAnswer(request.name, answers.missing[self.site])
        return answers.replies[self.site]

    def name_question(self, facts: Mapping[str, Json]) -> str:
        """The digest by which a question's name ends: the same for the same facts, in the same version."""
        return short_digest(digest_json({**facts, "version": self.version}))


def ask_hospital(
    settings: BenchmarkSettings,
    models: Mapping[str, Signed],
    engine: Engine,
    site: str,
    root: Path,
    check: Callable[[], None],
    version: int = VERSION,
) -> HospitalAnswers:
    """Ask one hospital for everything. root: the run's folder, which remembers the hospital's last answer, to notice a
    ledger that was restored from an older copy. check, version: as in `Conversation`; a run that pays keeps its version
    (`pipelines.runs.read_kept_versions`).
    """
    answers_of_site = HospitalAnswers(site)
    conversation = Conversation(engine, site, settings.name, check, version)
    survey = build_surveys(root, [site])[site]
    try:
        for label, model in models.items():
            try:
                files_digest = conversation.ask(SURVEY, SURVEY.name, survey).digest
                counts = answers_of_site.counts = _ask_ingest(conversation, files_digest, reading_of(model.ready))
                if isinstance(counts, Counted) and counts.too_many_rejected:
                    raise NoAnswer(INGEST.name, TOO_MANY)
                reply = _ask_benchmark(conversation, settings.benchmark, model, counts.cohort)
                answers_of_site.evidence[label] = _parse_scores(settings, model, reply)
                answers_of_site.replies[label] = reply
            except NoAnswer as no_answer:
                answers_of_site.refused[label] = (no_answer.request, no_answer.code)
    finally:
        remember_answers(root, conversation.last)
    return answers_of_site


def _ask_ingest(conversation: Conversation, files_digest: str, wanted: Wanted) -> Counted | CountedOnce:
    """What the hospital counts, of files with this digest that are read as a model needs them. Raises: NoAnswer."""
    question = BenchmarkIngest(
        images=wanted.images,
        split=Split(),
        seed=SEED,
        independent=True,
        target=ABSENT if wanted.target is None else wanted.target,
        classes=ABSENT if wanted.target is None and not wanted.classes else wanted.classes,
        findings=[*wanted.findings] or ABSENT,
        regions=[[*each] for each in wanted.regions] or ABSENT,
    )
    digest = conversation.name_question({"asked": to_facts(question), "files": files_digest})
    return conversation.ask(INGEST, f"ingest-{digest}", question)


def _ask_benchmark(conversation: Conversation, plan: Models, model: Signed, cohort: str) -> Scored:
    """The hospital's reply to the evaluation of a model. Raises: NoAnswer."""
    facts: dict[str, Json] = {"cohort": cohort, "copies": plan.copies, "epsilon": plan.epsilon}
    digest = conversation.name_question(facts | ({"by": "cut"} if model.ready.ordered else {}))
    question = Benchmark(
        cohort=cohort,
        signature=model.signature,
        copies=plan.copies,
        epsilon=plan.epsilon,
        model=to_tensor(model.data),
    )
    return conversation.ask(BENCHMARK, f"{model.sha256}-{digest}", question)


def _parse_scores(settings: BenchmarkSettings, model: Signed, reply: Scored) -> Evidence:
    """The scores in a reply. Raises: NoAnswer: it is malformed, of another model, or of another number of classes."""
    message = to_message(reply)
    try:
        if reply.model != model.sha256:
            raise ValueError("it is of another model")
        evidence = parse_evidence(message.tensors, message.facts, copies=settings.benchmark.copies, seed=settings.seed)
        if _evidence_shape(evidence) != _expected_shape(model, settings.benchmark.copies):
            raise ValueError(f"it has kind, cuts, classes and copies {_evidence_shape(evidence)}")
    except ValueError as error:
        raise NoAnswer(BENCHMARK.name, UNEXPECTED) from error
    return evidence


def _evidence_shape(evidence: Evidence) -> tuple[str, bool, int, int]:
    """What was scored, and whether by cuts; classes, without the background of masks, or findings; copies of the
    bootstrap.

    Raises:
        ValueError: numbers were scored, which no model of a benchmark predicts.
    """
    if isinstance(evidence, Errors):
        raise ValueError("it scores a number")
    if isinstance(evidence, Findings):
        return "findings", False, len(evidence.each), len(evidence.each[0].scores) - 1
    return (
        "segmentation" if isinstance(evidence, Overlaps) else "classification",
        isinstance(evidence, Counts) and evidence.has_cuts,
        len(evidence.class_patients),
        len(evidence.totals if isinstance(evidence, Overlaps) else evidence.scores) - 1,
    )


def _expected_shape(model: Signed, copies: int) -> tuple[str, bool, int, int]:
    """As `_evidence_shape`, for a model and the requested copies."""
    ready, kind = model.ready, model.ready.task.kind
    return kind, ready.ordered, len(ready.structures) if kind == "segmentation" else ready.task.classes, copies
