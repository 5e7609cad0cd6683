"""Scores of single patients, as they are kept at home beside a model."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from federation.calibration import Calibrated
from federation.task import Kind, Task
from privacy.dp.access import Rows, Split

VALIDATED = "validation/"
"""Prefix of the tensors of validation rows; those of test rows have none."""


def validation_scores(task: Task, served: Calibrated, rows: Rows) -> dict[str, Tensor]:
    """Classes, patients and probabilities of validation rows."""
    return {
        f"{VALIDATED}{name}": tensor
        for name, tensor in keep_scores(rows, served.probabilities(task, rows.x), task.kind).items()
    }


def scores_at_home(task: Task, served: Calibrated, splits: Mapping[Split, Rows]) -> dict[str, Tensor]:
    """The same of test rows, and of validation rows."""
    tested = keep_scores(splits["test"], served.probabilities(task, splits["test"].x), task.kind)
    return {**tested, **validation_scores(task, served, splits["validation"])}


def keep_scores(rows: Rows, probabilities: Tensor, kind: Kind = "classification") -> dict[str, Tensor]:
    """Classes, patients and probabilities (n, classes) of rows, on the CPU."""
    # NaN counts as no decision; failing here instead would reveal one bit about a patient. A number is a place in its
    # range, and 0.5 its middle, as it is of a finding.
    undecided = 0.5 if kind in ("regression", "findings") else 1.0 / probabilities.shape[1]
    known = probabilities.cpu().nan_to_num(nan=undecided)
    return {"y": rows.y.cpu(), "probabilities": known, "patient": rows.patient.cpu()}
