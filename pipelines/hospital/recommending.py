"""Which of its models this hospital should use, from scores of its validation patients, which stay here.

`compare` tells the gains that the hospital measured over its own model, for the other hospitals' recommendations,
where nothing is promised; a private run never asks, and each hospital then recommends from its own patients alone, on
its own page, and says nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
)
from evaluation.records import Model
from federation.alone import Alone
from federation.local import Local
from federation.models.features import Features
from federation.models.mlp import Mlp
from personalize import AnyAlgorithm
from personalize.dp_head import DpHead
from personalize.moments import Moments
from pipelines.hospital.finished_models import has_noised_scores, list_usable_models
from pipelines.hospital.home_floors import HomeFloor
from pipelines.hospital.hospital import Context, Done, Hospital
from pipelines.hospital.kept import scores_name
from pipelines.hospital.opening import Opening, read_opening
from pipelines.hospital.validation_scores import VALIDATED
from pipelines.models.recommended import RECOMMENDED, is_newer, to_bytes
from pipelines.requests.compare import Compare, Compared
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, NOTHING, describe_event
from privacy.message import Json, Malformed, as_list, as_mapping, from_bytes, whole_of
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

LARGEST = 2.0**64  # of numbers that others measured


def compare_models(hospital: Hospital, context: Context[Compare]) -> Done[Compared]:
    """Gains over the hospital's own model on validation patients, by label: facts `gains`, value and variance of each.

    Empty where anything is promised to patients, or nothing could be
    measured.
    """
    facts = context.message.facts
    if _is_promised(hospital, facts):
        return Done(Compared(), describe_event(NOTHING))
    measured_gains = _measure_gains(hospital, facts, list_usable_models(hospital, facts), ())
    gains = {
        label: (gain.value, gain.variance)
        for label, gain in measured_gains.gains.items()
        if math.isfinite(gain.variance)
    }
    return Done(Compared(gains=gains), describe_event(NON_PRIVATE))


def make_recommendation(
    hospital: Hospital,
    facts: Mapping[str, Json],
    models: Sequence[Model],
    floors: Sequence[HomeFloor],
    losses: Mapping[str, str],
) -> tuple[Recommendation, ...]:
    """This hospital's recommendation; empty if there is none.

    Args:
        facts: of `report`; `others` are sums of gains that other hospitals measured, as `others_to_facts` has them.
        models: which of the run's models are files here; floors: learnt at home. losses: a method's epsilon here, by
        run of its training.
    """
    if facts.get("structures"):
        return ()
    gains_of_others = _read_gains_of_others(as_mapping(facts.get("others")))
    model_choice = recommend_model(hospital.name, _measure_gains(hospital, facts, models, floors), gains_of_others)
    return (
        ()
        if model_choice is None
        else (replace(model_choice, epsilon=losses.get(_run_of(facts, model_choice.method), "")),)
    )


def keep_decision(hospital: Hospital, facts: Mapping[str, Json], decision: Decision, choice: Choice) -> None:
    """Write the decision into this hospital's folder, but not over one of a newer program, which `predict` refuses by
    name. choice: the same in words. facts: of `report`.
    """
    if is_newer(hospital.root):
        return
    content = to_bytes(decision, choice.said, _run_of(facts, decision.method), choice.file)
    DiskFolder(hospital.root).write(RECOMMENDED, content)


def released_decision_facts(
    hospital: Hospital, facts: Mapping[str, Json], decision: Decision | None
) -> dict[str, Json] | None:
    """What the coordinator hears of a decision; None where anything is promised to patients."""
    return None if decision is None or _is_promised(hospital, facts) else to_facts(decision)


def _run_of(facts: Mapping[str, Json], method: str) -> str:
    """The run of a method's training; empty for a floor of this hospital's own, which is of no run."""
    return {str(line["label"]): str(line["train_run"]) for line in _list_lines(facts)}.get(method, "")


def _is_promised(hospital: Hospital, facts: Mapping[str, Json]) -> bool:
    return hospital.policy.promises or has_noised_scores(
        hospital, [as_mapping(method) for method in as_list(facts["methods"])]
    )


def _list_lines(facts: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return [as_mapping(line) for name in ("methods", "variants") for line in as_list(facts.get(name, []))]


def _measure_gains(
    hospital: Hospital, facts: Mapping[str, Json], models: Sequence[Model], floors: Sequence[HomeFloor]
) -> Measured:
    folder, filed = (
        DiskFolder(hospital.root / "scores"),
        {model.method for model in models if model.file and not model.ended},
    )
    scores_by_label, home_labels = (
        {floor.model.method: floor.scores for floor in floors},
        [floor.model.method for floor in floors],
    )
    heads = {*home_labels}
    for line in _list_lines(facts):
        label, name = str(line["label"]), scores_name(line)
        if label in filed and folder.has(name):
            scores_by_label[label] = from_bytes(folder.read(name)).tensors
            start = _read_start(hospital, str(line["train_run"]))
            home_labels += [label] if start is not None and is_trained_alone(start.algorithm) else []
            heads |= {label} if start is not None and is_head(start.algorithm, start.task.model) else set()
    rows, scores = dict[str, Tensor](), dict[str, Floats]()
    for label, tensors in scores_by_label.items():
        validation_rows = {part: tensors.get(f"{VALIDATED}{part}", torch.zeros(0)) for part in ("y", "patient")}
        rows = rows or (validation_rows if len(validation_rows["y"]) else {})
        # Others were scored on other patients, as those whose images another space keeps.
        if rows and all(tensor.equal(validation_rows[part]) for part, tensor in rows.items()):
            scores[label] = tensors[f"{VALIDATED}probabilities"].double().numpy()
    if not rows:
        return Measured("", {})
    validated = Validated(rows["y"].numpy(), rows["patient"].numpy(), scores)
    return measure_gains(validated, home_labels, heads, seed=hospital.bootstrap_seed())


def _read_start(hospital: Hospital, run: str) -> Opening | None:
    try:
        return read_opening(hospital, run)
    except (Refused, Malformed):
        return None  # the central baseline is trained at the pooled site


def is_head(algorithm: AnyAlgorithm, model: object) -> bool:
    """Whether a method learns on features that no patient of the run shaped, by an equation or a linear model."""
    return isinstance(algorithm, Alone | Moments | DpHead) or (isinstance(model, Features | Mlp) and not model.hidden)


def is_trained_alone(algorithm: AnyAlgorithm) -> bool:
    """Whether no other hospital has a part in a method's models."""
    if isinstance(algorithm, Moments):
        return algorithm.others_gram == 0 and algorithm.others_classes == 0
    return isinstance(algorithm, Alone | Local) or (
        isinstance(algorithm, DpHead) and algorithm.others == 0 and algorithm.rounds == 1
    )


def _read_gains_of_others(facts: Mapping[str, Json]) -> OtherGains:
    pairs = {label: _parse_pair(pair) for label, pair in as_mapping(facts.get("sums")).items()}
    sums = {label: Sums(*pair) for label, pair in pairs.items() if pair is not None and pair[1] > 0}
    return OtherGains(whole_of(facts, "hospitals", 0), sums)


def read_gains(question: Compare, reply: Compared) -> dict[str, Gain]:
    """The gains that a hospital told of the lines of its question; ones that cannot be are left out."""
    gains = value_or_none(reply.gains) or {}
    labels = [line["label"] for line in (*question.methods, *(value_or_none(question.variants) or ()))]
    pairs = {label: _parse_pair([*gains[label]]) for label in labels if label in gains}
    finite_gains = {label: Gain(*pair) for label, pair in pairs.items() if pair is not None}
    return {label: gain for label, gain in finite_gains.items() if abs(gain.value) <= 1 and gain.variance > 0}


def _parse_pair(value: Json) -> tuple[float, float] | None:
    """Two numbers that are finite; None if something else was said."""
    numbers = [float(number) for number in as_list(value) if isinstance(number, int | float) and abs(number) < LARGEST]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
