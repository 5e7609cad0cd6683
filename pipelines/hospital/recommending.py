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
from pipelines.hospital.finished_models import noised, usable
from pipelines.hospital.home_floors import HomeFloor
from pipelines.hospital.hospital import Asked, Done, Hospital
from pipelines.hospital.kept import scores_name
from pipelines.hospital.opening import Opening, opened
from pipelines.hospital.validation_scores import VALIDATED
from pipelines.models.recommended import RECOMMENDED, of_newer, to_bytes
from pipelines.requests.compare import Compare, Compared
from pipelines.runs.store import DiskFolder
from privacy.dp.events import NON_PRIVATE, NOTHING, describe
from privacy.message import Json, Malformed, as_list, as_mapping, from_bytes, whole_of
from privacy.release.form import value_or_none
from privacy.release.gate import Refused

LARGEST = 2.0**64  # of numbers that others measured


def compare(hospital: Hospital, asked: Asked[Compare]) -> Done[Compared]:
    """Gains over the hospital's own model on validation patients, by label: facts `gains`, value and variance of each.

    Empty where anything is promised to patients, or nothing could be
    measured.
    """
    facts = asked.message.facts
    if _promised(hospital, facts):
        return Done(Compared(), describe(NOTHING))
    found = _measured(hospital, facts, usable(hospital, facts), ())
    gains = {label: (gain.value, gain.variance) for label, gain in found.gains.items() if math.isfinite(gain.variance)}
    return Done(Compared(gains=gains), describe(NON_PRIVATE))


def recommendation(
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
    others = _others(as_mapping(facts.get("others")))
    found = recommend_model(hospital.name, _measured(hospital, facts, models, floors), others)
    return () if found is None else (replace(found, epsilon=losses.get(_run_of(facts, found.method), "")),)


def keep_decision(hospital: Hospital, facts: Mapping[str, Json], decision: Decision, choice: Choice) -> None:
    """Write the decision into this hospital's folder, but not over one of a newer program, which `predict` refuses by
    name. choice: the same in words. facts: of `report`.
    """
    if of_newer(hospital.root):
        return
    content = to_bytes(decision, choice.said, _run_of(facts, decision.method), choice.file)
    DiskFolder(hospital.root).write(RECOMMENDED, content)


def told(hospital: Hospital, facts: Mapping[str, Json], found: Decision | None) -> dict[str, Json] | None:
    """What the coordinator hears of a decision; None where anything is promised to patients."""
    return None if found is None or _promised(hospital, facts) else to_facts(found)


def _run_of(facts: Mapping[str, Json], method: str) -> str:
    """The run of a method's training; empty for a floor of this hospital's own, which is of no run."""
    return {str(one["label"]): str(one["train_run"]) for one in _lines(facts)}.get(method, "")


def _promised(hospital: Hospital, facts: Mapping[str, Json]) -> bool:
    return hospital.policy.promises or noised(hospital, [as_mapping(one) for one in as_list(facts["methods"])])


def _lines(facts: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return [as_mapping(one) for name in ("methods", "variants") for one in as_list(facts.get(name, []))]


def _measured(
    hospital: Hospital, facts: Mapping[str, Json], models: Sequence[Model], floors: Sequence[HomeFloor]
) -> Measured:
    folder, filed = DiskFolder(hospital.root / "scores"), {one.method for one in models if one.file and not one.ended}
    held, own = {floor.model.method: floor.scores for floor in floors}, [floor.model.method for floor in floors]
    heads = {*own}
    for line in _lines(facts):
        label, name = str(line["label"]), scores_name(line)
        if label in filed and folder.has(name):
            held[label] = from_bytes(folder.read(name)).tensors
            start = _start(hospital, str(line["train_run"]))
            own += [label] if start is not None and alone(start.algorithm) else []
            heads |= {label} if start is not None and is_head(start.algorithm, start.task.model) else set()
    rows, scores = dict[str, Tensor](), dict[str, Floats]()
    for label, kept in held.items():
        here = {part: kept.get(f"{VALIDATED}{part}", torch.zeros(0)) for part in ("y", "patient")}
        rows = rows or (here if len(here["y"]) else {})
        # Others were scored on other patients, as those whose images another space keeps.
        if rows and all(tensor.equal(here[part]) for part, tensor in rows.items()):
            scores[label] = kept[f"{VALIDATED}probabilities"].double().numpy()
    if not rows:
        return Measured("", {})
    found = Validated(rows["y"].numpy(), rows["patient"].numpy(), scores)
    return measure_gains(found, own, heads, seed=hospital.bootstrap_seed())


def _start(hospital: Hospital, run: str) -> Opening | None:
    try:
        return opened(hospital, run)
    except (Refused, Malformed):
        return None  # the central baseline is trained at the pooled site


def is_head(algorithm: AnyAlgorithm, model: object) -> bool:
    """Whether a method learns on features that no patient of the run shaped, by an equation or a linear model."""
    return isinstance(algorithm, Alone | Moments | DpHead) or (isinstance(model, Features | Mlp) and not model.hidden)


def alone(algorithm: AnyAlgorithm) -> bool:
    """Whether no other hospital has a part in a method's models."""
    if isinstance(algorithm, Moments):
        return algorithm.others_gram == 0 and algorithm.others_classes == 0
    return isinstance(algorithm, Alone | Local) or (
        isinstance(algorithm, DpHead) and algorithm.others == 0 and algorithm.rounds == 1
    )


def _others(said: Mapping[str, Json]) -> OtherGains:
    pairs = {label: _pair(pair) for label, pair in as_mapping(said.get("sums")).items()}
    sums = {label: Sums(*pair) for label, pair in pairs.items() if pair is not None and pair[1] > 0}
    return OtherGains(whole_of(said, "hospitals", 0), sums)


def read_gains(question: Compare, reply: Compared) -> dict[str, Gain]:
    """The gains that a hospital told of the lines of its question; ones that cannot be are left out."""
    gains = value_or_none(reply.gains) or {}
    labels = [line["label"] for line in (*question.methods, *(value_or_none(question.variants) or ()))]
    pairs = {label: _pair([*gains[label]]) for label in labels if label in gains}
    found = {label: Gain(*pair) for label, pair in pairs.items() if pair is not None}
    return {label: gain for label, gain in found.items() if abs(gain.value) <= 1 and gain.variance > 0}


def _pair(said: Json) -> tuple[float, float] | None:
    """Two numbers that are finite; None if something else was said."""
    numbers = [float(one) for one in as_list(said) if isinstance(one, int | float) and abs(one) < LARGEST]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None
