"""Scores of single patients, as they are kept at home beside a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from federation.calibration import Calibrated
from federation.task import Task
from privacy.dp.access import Rows, Split

VALIDATED = "validation/"
"""Prefix of the tensors of validation rows; those of test rows have none."""


def validation_scores(task: Task, served: Calibrated, rows: Rows) -> dict[str, Tensor]:
    """Classes, patients and probabilities of validation rows."""
    return {f"{VALIDATED}{name}": tensor for name, tensor in _score_rows(task, served, rows).items()}


def scores_at_home(task: Task, served: Calibrated, splits: Mapping[Split, Rows]) -> dict[str, Tensor]:
    """The same of test rows, and of validation rows."""
    return {**_score_rows(task, served, splits["test"]), **validation_scores(task, served, splits["validation"])}


def _score_rows(task: Task, served: Calibrated, rows: Rows) -> dict[str, Tensor]:
    probabilities = served.probabilities(task, rows.x).cpu().nan_to_num(nan=1.0 / task.classes)
    return {"y": rows.y.cpu(), "probabilities": probabilities, "patient": rows.patient.cpu()}
