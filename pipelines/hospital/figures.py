"""Scores, confusion and seconds by round: measured while a hospital trains, and released when a stage asks for them.

A run asks for them in its opening (`evaluate: {rounds: true}`). Each model that the hospital scores on its validation
patients after a merge is then measured once more, in evaluation mode and without a random number, so that training is
the same bit for bit. What was measured stays in the memory of the conversation, as the losses do. A private run
measures nothing and releases nothing: each round's counts would be a release of its own that patients pay for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from evaluation.by_round import RoundScores, score_classes, score_findings, score_masks, score_numbers
from federation.conversation import load_newest_intact_memory
from federation.findings import decode_findings
from federation.participant import FIGURES, SECONDS, Look
from federation.task import IGNORED, STEPS, Task
from pipelines.data.label_numbers import read_range
from pipelines.data.stored import structures_of
from pipelines.hospital.hospital import Context, Done, Hospital, rows_of
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.opening import Opening, read_opening
from pipelines.hospital.private_limits import check_paid
from pipelines.hospital.validation_scores import keep_scores
from pipelines.models.answers import predict_classes
from pipelines.requests.figures import Figures, Told
from privacy.dp.access import Rows
from privacy.dp.events import NON_PRIVATE, describe_event
from privacy.message import Json, as_mapping
from privacy.release.form import ABSENT
from privacy.release.gate import Refused

Structures: TypeAlias = Sequence[Sequence[int]]
SCORES, CONFUSION = "scores", "confusion"


def make_look(hospital: Hospital, start: Opening) -> Look | None:
    """What measures a model of a run on this hospital's validation patients; None where the run does not ask for it, or
    is private.
    """
    if not start.figures or start.protection is not None or hospital.policy.promises:
        return None
    cohort = cohort_of(hospital, start.cohort)
    rows = rows_of(cohort, hospital.device, start.target, scratch=hospital.scratch())["validation"]
    number = read_range(cohort.recipe) if start.task.kind == "regression" else None
    structures = structures_of(cohort, start.task.classes) if start.task.kind == "segmentation" else ()
    width = 1.0 if number is None else number.width
    return partial(measure_model, start.task, rows, width=width, structures=structures)


def measure_model(
    task: Task, rows: Rows, module: nn.Module, *, width: float = 1.0, structures: Structures = ()
) -> dict[str, Json]:
    """Facts of a model on rows: scores by measure, null where one is not defined, and tables of confusion. width: of
    the range of a number, in its unit. structures: of masks, the classes of each; () = each class is one.
    """
    measured = _score_model(task, rows, module, width, structures)
    scores = {name: value if math.isfinite(value) else None for name, value in measured.scores.items()}
    return {SCORES: scores, CONFUSION: measured.tables.tolist()}


def _score_model(task: Task, rows: Rows, module: nn.Module, width: float, structures: Structures) -> RoundScores:
    """By the task: classes, findings, a number or masks. A value that is not finite counts as no decision."""
    if task.kind == "segmentation":
        masks = predict_classes(task, module, rows.x).numpy()
        patients = rows.patient.cpu().numpy()
        return score_masks(rows.y.cpu().numpy(), masks, patients, task.classes, IGNORED, structures or None)
    scores = keep_scores(rows, task.probabilities(module, rows.x), task.kind)
    y, p = scores["y"], scores["probabilities"].double().numpy()
    if task.kind == "findings":
        return score_findings(decode_findings(y, task.classes).numpy(), p)
    if task.kind == "regression":
        return score_numbers(y.double().numpy() / STEPS * width, p[:, 0] * width)
    return score_classes(y.numpy(), p, ordered=task.ordered)


def release_figures(hospital: Hospital, context: Context[Figures]) -> Done[Told]:
    """Release what was measured by round.

    Raises:
        Refused: `not_introduced`; `unprotected_figures`: the run is private, or this hospital promises privacy;
            `no_figures`: the training did not ask for them when it began.
    """
    run = context.question.train_run
    if hospital.policy.promises or read_opening(hospital, run).protection is not None:
        raise Refused("unprotected_figures") from ValueError(
            "scores and counts of each round are exact, and patients are promised privacy; leave evaluate.rounds out"
        )
    memory = load_newest_intact_memory(hospital.conversation(run))
    check_paid(hospital, memory)
    by_round = as_mapping(memory.facts.get(FIGURES))
    measured = {int(name): figures for name, each in by_round.items() if SCORES in (figures := as_mapping(each))}
    if not measured:
        raise Refused("no_figures") from ValueError(f"{run} began without evaluate.rounds; --fresh trains anew with it")
    return Done(_build_reply(dict(sorted(measured.items()))), describe_event(NON_PRIVATE))


def _build_reply(by_round: Mapping[int, Mapping[str, Json]]) -> Told:
    """What was measured in each round, as tensors."""
    scores = [as_mapping(figures[SCORES]) for figures in by_round.values()]
    tables = np.array([figures[CONFUSION] for figures in by_round.values()], dtype=np.int64)
    return Told(
        rounds=[*by_round],
        measures=[*scores[0]],
        scores=torch.tensor([[_number(value) for value in each.values()] for each in scores], dtype=torch.float64),
        confusion=torch.from_numpy(tables) if tables.size else ABSENT,
        seconds=torch.tensor([_number(figures.get(SECONDS)) for figures in by_round.values()], dtype=torch.float64),
    )


def read_main_scores(facts: Mapping[str, Json]) -> tuple[str, dict[int, float]]:
    """The first measure of a training's memory, and its values by round where they are defined; empty without any."""
    by_round = {
        int(name): as_mapping(as_mapping(each).get(SCORES)) for name, each in as_mapping(facts.get(FIGURES)).items()
    }
    measure = next((name for scores in by_round.values() for name in scores), "")
    values = {number: scores.get(measure) for number, scores in sorted(by_round.items())}
    return measure, {number: float(value) for number, value in values.items() if isinstance(value, int | float)}


def _number(value: Json) -> float:
    """A number of the memory; NaN for null."""
    return float(value) if isinstance(value, int | float) else math.nan
