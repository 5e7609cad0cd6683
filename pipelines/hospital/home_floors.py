"""Floors of a private run, at home: what this hospital reaches alone without noise, for its own page.

Scores of a model that learnt without noise tell of training patients, so no private run may ask for them
(`federation.alone`). The hospital itself may: its models, scores and files stay here, and only its own page and
recommendation use them. They are learnt on the fixed features of a method of the run; without such a method there are
none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from evaluation.records import Model
from federation.alone import Alone, fit_machine
from federation.calibration import Calibrated
from federation.models.features import Features
from pipelines.hospital.finished_models import has_noised_scores
from pipelines.hospital.hospital import Hospital, rows_of
from pipelines.hospital.kept import cohort_of
from pipelines.hospital.model_file import make_ready
from pipelines.hospital.opening import Opening, read_opening
from pipelines.hospital.validation_scores import scores_at_home
from pipelines.models.file import READY
from pipelines.requests.methods import TableLine
from privacy.message import Malformed
from privacy.release.gate import Refused

RIDGE, SVM = "ridge_at_home", "svm_at_home"


class HomeFloor(NamedTuple):
    """A model learnt here alone. scores: of test and validation rows, as a model's file of scores holds them."""

    model: Model
    scores: Mapping[str, Tensor]


def home_floors(hospital: Hospital, methods: Sequence[TableLine]) -> tuple[HomeFloor, ...]:
    """Floors on the features of the first private method that has any; none where the run is not private."""
    if not has_noised_scores(hospital, methods):
        return ()
    for method in methods:
        with suppress(Refused, Malformed):
            start = read_opening(hospital, method["train_run"])
            if start.protection is not None and isinstance(start.task.model, Features):
                return tuple(_learn_floors(hospital, start, method["train_run"]))
    return ()


def _learn_floors(hospital: Hospital, start: Opening, run: str) -> list[HomeFloor]:
    """Learn the floors of one training's cohort, and score them."""
    cohort, floors = cohort_of(hospital, start.cohort), []
    splits, task = rows_of(cohort, scratch=hospital.scratch()), start.task
    if not len(splits["train"].y) or not len(splits["test"].y):
        return []
    for label, algorithm in ((SVM, Alone(name="local_svm")), (RIDGE, Alone(name="local_ridge"))):
        rows, module = splits["train"], algorithm.network(task)
        # A reply that failed would tell of patients what no noise hides; the page goes without this line.
        with suppress(Exception):
            fit_machine(module, rows.x, rows.y, rows.patient, task.classes, task.kind)
            served = Calibrated(module.eval())
            alone = replace(start, algorithm=algorithm, protection=None)
            make_ready(hospital, label, alone, served, cohort, {"run": run, "checkpoint": "latest", "round": 1})
            file = str(hospital.root / READY / f"{label}.safetensors")
            floors.append(HomeFloor(Model(hospital.name, label, file=file), scores_at_home(task, served, splits)))
    return floors
