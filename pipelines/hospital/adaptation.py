"""Results of adaptation at an external site: `route` stores them there, for the site's own page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.findings import count_findings
from evaluation.histograms import count_scores
from evaluation.masks import Values
from evaluation.numbers import sum_errors
from evaluation.protocols import Evidence
from federation.task import STEPS, Task
from personalize.adaptation import Adapted
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.released_scores import split_findings
from pipelines.hospital.segmentation import (
    compute_sums,
    most_of,
    read_patient_scores,
    score_patients,
    select_shown_patients,
)
from pipelines.models.answers import predict_classes
from pipelines.requests.report import Outside
from pipelines.requests.route import Route
from pipelines.runs.store import DiskFolder
from privacy.dp.access import Rows
from privacy.message import Json, Message, from_bytes
from privacy.release.form import value_or_none

EVERYBODY = ("all patients",)
"""The only split of an external site, where nothing is trained."""
GLOBAL, SHARED = "*", "(shared)"
"""The federation's shared model among the experts, as key and in words; no site can have either name."""
COEFFICIENTS, SPREAD = "mixed/mean", "mixed/deviation"
SHOWN, BEFORE, AFTER, SCORES = "shown/rows", "shown/before", "shown/after", "shown/scores"
Tables: TypeAlias = dict[str, dict[tuple[str, str], Evidence]]


def file_of(run: str) -> str:
    """The file in a hospital's `scores` with the result of a conversation with `route`."""
    return f"{run.rpartition('/')[2]}.safetensors"


def summarize_coefficients(coefficients: Tensor) -> dict[str, Tensor]:
    """Mean and standard deviation over images of their coefficients (n, L, K + 1)."""
    return {COEFFICIENTS: coefficients.mean(dim=0).cpu(), SPREAD: coefficients.std(dim=0, correction=0).cpu()}


def adaptation_facts(question: Route, adapted: Adapted | None, layers: Sequence[str]) -> dict[str, Json]:
    """Facts on an adaptation. layers: names of the mixed layers, if models were mixed."""
    shared = value_or_none(question.shared)
    adaptation: dict[str, Json] = {
        "line": question.line,
        "way": question.how.name,
        "experts": [*question.experts],
        "shared": None if shared is None else shared.get("label"),
        "layers": list(layers),
    }
    if adapted is not None:
        losses: list[Json] = [loss if math.isfinite(loss) else None for loss in adapted.losses]
        shares: list[Json] = [list(share) for share in adapted.shares]
        adaptation |= {"losses": losses, "shares": shares, "epoch": adapted.epoch, "why": adapted.why}
        adaptation["online"] = adapted.probabilities is not None
    return adaptation


def select_masks_to_show(
    cohort: Cohort, rows: Rows, predicted: Tensor, scored: Values, before: nn.Module | None, task: Task
) -> dict[str, Tensor]:
    """Masks of a few images of the best, the median and the worst patient, for pictures.

    Args:
        cohort, rows: all of the hospital's images, in the cohort's order.
        found: the masks (n, *spatial) that were scored.
        scored: their scores by patient.
        before: the model that adaptation began with, where there is one.
    """
    whose, chosen = rows.patient.cpu(), [int(scored.patients[place]) for _, place in select_shown_patients(scored)]
    if not chosen:
        return {}
    shown = torch.cat(most_of(rows.y.cpu(), [(whose == patient).nonzero()[:, 0] for patient in chosen]))
    tensors = {SHOWN: shown, AFTER: predicted[shown].to(torch.uint8)}
    if before is not None:
        masks = predict_classes(task, before, rows.x)
        then = score_patients(cohort, rows, masks, task.classes)
        places = np.searchsorted(then.patients, chosen)
        tensors |= {BEFORE: masks[shown].to(torch.uint8), SCORES: torch.from_numpy(then.scores[places])}
    return tensors


def read_lines(hospital: Hospital, lines: Sequence[Outside]) -> dict[str, Message]:
    """The stored result of each line, by label."""
    folder = DiskFolder(hospital.root / "scores")
    file_of_line = {line["label"]: file_of(line["run"]) for line in lines}
    return {label: from_bytes(folder.read(name)) for label, name in file_of_line.items() if folder.has(name)}


def read_line_evidence(
    hospital: Hospital, lines: Mapping[str, Message], copies: int, *, ordered: bool = False
) -> Tables:
    """Exact scores by line, as tables. ordered: as of `evidence_of`."""
    pair = (hospital.name, hospital.name)
    return {
        label: {pair: evidence_of(hospital, scores.tensors, copies, ordered=ordered)} for label, scores in lines.items()
    }


def evidence_of(
    hospital: Hospital,
    scores: Mapping[str, Tensor],
    copies: int,
    *,
    ordered: bool = False,
    are_findings: bool = False,
) -> Evidence:
    """Evidence from the stored scores of single patients, with the hospital's own bootstrap copies. ordered: whether
    each class is more than the one before it. are_findings: whether there are several findings in the place of classes.
    """
    if (values := read_patient_scores(scores)) is not None:
        return compute_sums(hospital, values, copies)
    if are_findings:
        seed = hospital.bootstrap_seed()
        return count_findings(*split_findings(scores), copies=copies, seed=seed, site=hospital.name)
    y, p, patient = (scores[name].numpy() for name in ("y", "probabilities", "patient"))
    if p.shape[1] == 1:
        return sum_errors(
            y / STEPS, p[:, 0], patient, copies=copies, seed=hospital.bootstrap_seed(), site=hospital.name
        )
    seed = hospital.bootstrap_seed()
    return count_scores(y, p, patient, copies=copies, seed=seed, site=hospital.name, ordered=ordered)
