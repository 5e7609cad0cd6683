"""Which of its models this hospital should use, from scores of its validation patients, which stay here.

`compare` tells the gains that the hospital measured over its own model, for the other hospitals' recommendations,
where nothing is promised; a private run never asks, and each hospital then recommends from its own patients alone, on
its own page, and says nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from evaluation.choice import Choice
from evaluation.decision import Decision, to_facts
from evaluation.histograms import Floats
from evaluation.recommendation import (
    Gain,
    Measured,
    OtherGains,
    Recommendation,
    Sums,
    Validated,
    measure_gains,
    recommend_model,
    score_models,
)
from evaluation.records import Model
from federation.alone import Alone
from federation.findings import decode_findings
from federation.models.features import Features
from federation.models.mlp import Mlp
from federation.task import STEPS
from personalize import AnyAlgorithm
from personalize.at_home import is_trained_alone, method_itself
from personalize.dp_head import DpHead
from personalize.moments import Moments
from pipelines.hospital.finished_models import has_noised_scores, list_usable_models
from pipelines.hospital.home_floors import HomeFloor
from pipelines.hospital.hospital import Context, Done, Hospital
from pipelines.hospital.kept import scores_name_of
from pipelines.hospital.opening import Opening, read_opening
from pipelines.hospital.validation_scores import VALIDATED
from pipelines.models.recommended import RECOMMENDED, is_newer, to_bytes
from pipelines.requests.compare import Compare, Compared
from pipelines.requests.methods import TableLine
from pipelines.requests.report import Others, Report
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, NOTHING, describe_event
from privacy.message import Json, Malformed, from_bytes
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

LARGEST = 2.0**64  # of numbers that others measured


def compare_models(hospital: Hospital, context: Context[Compare]) -> Done[Compared]:
    """On validation patients, by label: gains over the hospital's own model, value and variance, and each score.

    Empty where anything is promised to patients, or nothing could be
    measured.
    """
    question = context.question
    if _is_promised(hospital, question):
        return Done(Compared(), describe_event(NOTHING))
    models = list_usable_models(hospital, question.methods, value_or_none(question.variants) or ())
    compared = _read_lines_at_home(hospital, question, models, ())
    measured_gains = _measure_gains(hospital, compared)
    gains = {
        label: (gain.value, gain.variance)
        for label, gain in measured_gains.gains.items()
        if math.isfinite(gain.variance)
    }
    scores = {} if compared is None else score_models(compared.validated)
    return Done(Compared(gains=gains, scores=scores), describe_event(NON_PRIVATE))


def make_recommendation(
    hospital: Hospital,
    question: Report,
    models: Sequence[Model],
    floors: Sequence[HomeFloor],
    losses: Mapping[str, str],
) -> tuple[Recommendation, ...]:
    """This hospital's recommendation; empty if there is none.

    Args:
        question: its `others` are sums of gains that other hospitals measured.
        models: which of the run's models are files here; floors: learnt at home. losses: a method's epsilon here, by
        run of its training.
    """
    if value_or_none(question.structures):
        return ()
    gains_of_others = _read_gains_of_others(value_or_none(question.others))
    measured = _measure_gains(hospital, _read_lines_at_home(hospital, question, models, floors))
    model_choice = recommend_model(hospital.name, measured, gains_of_others)
    return (
        ()
        if model_choice is None
        else (replace(model_choice, epsilon=losses.get(_run_of(question, model_choice.method), "")),)
    )


def keep_decision(hospital: Hospital, question: Report, decision: Decision, choice: Choice) -> None:
    """Write the decision into this hospital's folder, but not over one of a newer program, which `predict` refuses by
    name. choice: the same in words.
    """
    if is_newer(hospital.root):
        return
    content = to_bytes(decision, choice.said, _run_of(question, decision.method), choice.file)
    DiskFolder(hospital.root).write(RECOMMENDED, content)


def released_decision_facts(hospital: Hospital, question: Report, decision: Decision | None) -> dict[str, Json] | None:
    """What the coordinator hears of a decision; None where anything is promised to patients."""
    return None if decision is None or _is_promised(hospital, question) else to_facts(decision)


def _run_of(question: Report, method: str) -> str:
    """The run of a method's training; empty for a floor of this hospital's own, which is of no run."""
    return {line["label"]: line["train_run"] for line in _list_lines(question)}.get(method, "")


def _is_promised(hospital: Hospital, question: Compare | Report) -> bool:
    """Whether anything is promised to this hospital's patients, by its policy or by the run."""
    return hospital.policy.promises or has_noised_scores(hospital, question.methods)


def _list_lines(question: Compare | Report) -> list[TableLine]:
    """All lines of a run's tables."""
    return [*question.methods, *(value_or_none(question.variants) or ())]


class _AtHome(NamedTuple):
    """What the models here say of validation patients. own: labels of those that no other hospital had a part in.
    heads: of those on features that no patient of the run shaped.
    """

    validated: Validated
    own: Sequence[str]
    heads: Collection[str]


def choose_own_reference(
    hospital: Hospital, question: Report, models: Sequence[Model], floors: Sequence[HomeFloor]
) -> str:
    """The line with the best score on validation patients of those that this hospital learnt alone; without scores the
    first of `floors`.
    """
    compared = _read_lines_at_home(hospital, question, models, floors)
    first = floors[0].model.method
    if compared is None:
        return first
    scores = score_models(compared.validated)
    own_lines = [label for label in compared.own if label in scores]
    return max(own_lines, key=lambda label: (scores[label], -own_lines.index(label)), default=first)


def _read_lines_at_home(
    hospital: Hospital, question: Compare | Report, models: Sequence[Model], floors: Sequence[HomeFloor]
) -> _AtHome | None:
    """What this hospital's models and floors say of its validation patients; None without such scores."""
    folder, filed = (
        DiskFolder(hospital.root / "scores"),
        {model.method for model in models if model.file and not model.ended},
    )
    scores_by_label, home_labels = (
        {floor.model.method: floor.scores for floor in floors},
        [floor.model.method for floor in floors],
    )
    heads, ordered = {*home_labels}, isinstance(question, Report) and question.ordered is True
    are_findings = False
    for line in _list_lines(question):
        label, name, start = line["label"], scores_name_of(line), _read_start(hospital, line["train_run"])
        are_findings = are_findings or (start is not None and start.task.kind == "findings")
        if label in filed and folder.has(name):
            scores_by_label[label] = from_bytes(folder.read(name)).tensors
            home_labels += [label] if start is not None and is_trained_alone(start.algorithm) else []
            ordered = ordered or (start is not None and start.task.ordered)
            heads |= {label} if start is not None and is_head(start.algorithm, start.task.model) else set()
    rows, scores = dict[str, Tensor](), dict[str, Floats]()
    for label, tensors in scores_by_label.items():
        validation_rows = {part: tensors.get(f"{VALIDATED}{part}", torch.zeros(0)) for part in ("y", "patient")}
        rows = rows or (validation_rows if len(validation_rows["y"]) else {})
        # Others were scored on other patients, as those whose images another space keeps.
        if rows and all(tensor.equal(validation_rows[part]) for part, tensor in rows.items()):
            scores[label] = tensors[f"{VALIDATED}probabilities"].double().numpy()
    if not rows:
        return None
    truth = rows["y"].numpy()
    if are_findings:
        truth = decode_findings(rows["y"], next(iter(scores.values())).shape[1]).numpy()
    elif any(score.shape[1] == 1 for score in scores.values()):
        truth = truth / STEPS
    return _AtHome(Validated(truth, rows["patient"].numpy(), scores, ordered), home_labels, heads)


def _measure_gains(hospital: Hospital, compared: _AtHome | None) -> Measured:
    """Gains over the models that this hospital learns alone, on its validation patients. Of numbers none: what is
    assumed of gains before anything is measured was learnt of the AUC (`evaluation.recommendation`).
    """
    if compared is None or compared.validated.are_numbers:
        return Measured("", {})
    return measure_gains(compared.validated, compared.own, compared.heads, seed=hospital.bootstrap_seed())


def list_lines_alone(hospital: Hospital, lines: Sequence[TableLine]) -> tuple[str, ...]:
    """The labels of lines that this hospital learnt alone."""
    starts = {line["label"]: _read_start(hospital, line["train_run"]) for line in lines}
    return tuple(label for label, start in starts.items() if start is not None and is_trained_alone(start.algorithm))


def _read_start(hospital: Hospital, run: str) -> Opening | None:
    """What a training began with; None where this hospital had no part in it."""
    try:
        return read_opening(hospital, run)
    except (Refused, Malformed):
        return None  # the central baseline is trained at the pooled site


def is_head(algorithm: AnyAlgorithm, model: object) -> bool:
    """Whether a method learns on features that no patient of the run shaped, by an equation or a linear model."""
    itself = method_itself(algorithm)
    return isinstance(itself, Alone | Moments | DpHead) or (isinstance(model, Features | Mlp) and not model.hidden)


def _read_gains_of_others(others: Others | None) -> OtherGains:
    """Gains that other hospitals measured; sums that cannot be are left out."""
    if others is None:
        return OtherGains(0, {})
    sums = {label: Sums(*pair) for label, pair in others["sums"].items() if _is_usable(pair) and pair[1] > 0}
    return OtherGains(others["hospitals"], sums)


def read_gains(question: Compare, reply: Compared) -> dict[str, Gain]:
    """The gains that a hospital told of the lines of its question; ones that cannot be are left out."""
    gains = value_or_none(reply.gains) or {}
    labels = [line["label"] for line in (*question.methods, *(value_or_none(question.variants) or ()))]
    usable_gains = {label: Gain(*gains[label]) for label in labels if label in gains and _is_usable(gains[label])}
    return {label: gain for label, gain in usable_gains.items() if abs(gain.value) <= 1 and gain.variance > 0}


def read_scores(question: Compare, reply: Compared) -> dict[str, float]:
    """The scores that a hospital told of the lines of its question; ones that cannot be are left out."""
    scores = value_or_none(reply.scores) or {}
    return {
        line["label"]: scores[line["label"]]
        for line in _list_lines(question)
        if 0 <= scores.get(line["label"], -1) <= 1
    }


def _is_usable(pair: tuple[float, float]) -> bool:
    """Whether both numbers are finite and of a size that can be summed."""
    return all(abs(number) < LARGEST for number in pair)
