"""Ask hospitals to evaluate signed models; collect each hospital's replies, or the codes of its refusals.

Each hospital reads its files as a model needs them (`ingest`), and then gets the model itself (`benchmark`). Both are
done once and committed at the hospital: the same command, after a kill or on another day, gets the same answers back.
A hospital that refuses or is not reachable is asked again by the next command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from evaluation.evidence import parse_evidence
from evaluation.overlap import Overlaps
from evaluation.protocols import Evidence
from federation.engine import Engine
from pipelines.loader.validation import to_plain
from pipelines.models.signed import TENSOR, Signed, reading_of, to_tensor
from pipelines.runs.store import digest_json, short_digest
from pipelines.runs.witness import build_survey_questions, remember_answers
from pipelines.settings.benchmark import BenchmarkSettings
from pipelines.settings.learning import Split
from privacy.message import Call, Json, Message, as_mapping
from privacy.pickled import reduce_error

VERSION = 1
TOO_MANY = "too_many_rejected"
UNEXPECTED = "unexpected_reply"
SEED = 0
"""The seed of the splits. All splits are scored, so nothing depends on it."""


@dataclass
class HospitalAnswers:
    """The answers of a hospital. counts: facts of its last `ingest`. replies, evidence: by model. refused: model ->
    request and code.
    """

    site: str
    counts: Mapping[str, Json] = field(default_factory=dict)
    replies: dict[str, Message] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)


class NoAnswer(Exception):
    """A hospital did not answer a request; `code` says why."""

    def __init__(self, request: str, code: str) -> None:
        super().__init__(f"{request}: {code}")
        self.request, self.code = request, code

    __reduce__ = reduce_error


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
    ledger that was restored from an older copy. check: called between requests; raises `Stopped` on request. version:
    part of the questions' names; a run that pays keeps it (`pipelines.runs.read_kept_versions`).
    """
    answers_of_site = HospitalAnswers(site)
    last: dict[str, Message] = {}

    def ask(name: str, request: str, message: Message) -> Message:
        check()
        answers = engine.ask(Call(f"{settings.name}/{name}", 0, request, {}), {site: message})
        check()  # a hospital that was stopped during its work has not replied
        if site in answers.missing:
            raise NoAnswer(request, answers.missing[site])
        last[site] = answers.replies[site]
        return answers.replies[site]

    first = build_survey_questions(root, [site])[site]
    try:
        for label, model in models.items():
            try:
                cohort = _ask_ingest(answers_of_site, ask, first, reading_of(model.ready), version)
                reply = _ask_benchmark(settings, ask, model, cohort, version)
                answers_of_site.evidence[label] = _parse_scores(settings, model, reply)
                answers_of_site.replies[label] = reply
            except NoAnswer as no_answer:
                answers_of_site.refused[label] = (no_answer.request, no_answer.code)
    finally:
        remember_answers(root, last)
    return answers_of_site


Ask = Callable[[str, str, Message], Message]


def _ask_ingest(
    answers_of_site: HospitalAnswers, ask: Ask, first: Message, reading: Mapping[str, Json], version: int
) -> str:
    """The name of the hospital's cohort, read as a model needs it. first: the question `survey`. Raises: NoAnswer."""
    facts = {**reading, "split": to_plain(Split()), "seed": SEED, "independent": True}
    files_digest = str(ask("survey", "survey", first).facts.get("digest"))
    name = f"ingest-{short_digest(digest_json({'asked': facts, 'files': files_digest, 'version': version}))}"
    answers_of_site.counts = ask(name, "ingest", Message({}, facts)).facts
    if answers_of_site.counts.get("too_many_rejected"):
        raise NoAnswer("ingest", TOO_MANY)
    return str(answers_of_site.counts["cohort"])


def _ask_benchmark(settings: BenchmarkSettings, ask: Ask, model: Signed, cohort: str, version: int) -> Message:
    """The hospital's reply to the evaluation of a model. Raises: NoAnswer."""
    plan = settings.benchmark
    facts: dict[str, Json] = {"cohort": cohort, "copies": plan.copies, "epsilon": plan.epsilon}
    name = f"{model.sha256}-{short_digest(digest_json({**facts, 'version': version}))}"
    signature = as_mapping(to_plain(model.signature))
    return ask(name, "benchmark", Message({TENSOR: to_tensor(model.data)}, {**facts, "signature": signature}))


def _parse_scores(settings: BenchmarkSettings, model: Signed, reply: Message) -> Evidence:
    """The scores in a reply. Raises: NoAnswer: it is malformed, of another model, or of another number of classes."""
    try:
        if reply.facts.get("model") != model.sha256:
            raise ValueError("it is of another model")
        evidence = parse_evidence(reply.tensors, reply.facts, copies=settings.benchmark.copies, seed=settings.seed)
        if _evidence_shape(evidence) != _expected_shape(model, settings.benchmark.copies):
            raise ValueError(f"it has classes and copies {_evidence_shape(evidence)}")
    except ValueError as error:
        raise NoAnswer("benchmark", UNEXPECTED) from error
    return evidence


def _evidence_shape(evidence: Evidence) -> tuple[bool, int, int]:
    """Whether masks were scored; classes, without the background of masks; copies of the bootstrap."""
    masks = isinstance(evidence, Overlaps)
    return (
        masks,
        len(evidence.class_patients),
        len(evidence.totals if isinstance(evidence, Overlaps) else evidence.scores) - 1,
    )


def _expected_shape(model: Signed, copies: int) -> tuple[bool, int, int]:
    """As `_evidence_shape`, for a model and the requested copies."""
    masks = model.ready.task.kind == "segmentation"
    return masks, model.ready.task.classes - masks, copies
