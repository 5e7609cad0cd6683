"""Scores of a model on a hospital's test patients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.requests.fields import AnyTensors, Line, Name, Settings, Window
from pipelines.requests.model import Model
from pipelines.requests.request import Repeat, Request
from pipelines.requests.scores import LabelScores, MaskScores, NoisedScores, RoundScored
from privacy.release.form import ABSENT, Absent


@dataclass(frozen=True, kw_only=True)
class Evaluate(Model):
    """A model to score: the hospital's own, or with tensors that of another hospital, with its opening."""

    label: Name
    cohort: Line
    copies: Any
    opening: Settings | Absent = ABSENT
    window: Window | Absent = ABSENT
    central: bool | Absent = ABSENT
    floor: bool | Absent = ABSENT
    tensors: AnyTensors | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class LabelsScored(LabelScores):
    """With the model's round."""

    round: RoundScored


@dataclass(frozen=True, kw_only=True)
class MasksScored(MaskScores):
    """With the model's round."""

    round: RoundScored


@dataclass(frozen=True, kw_only=True)
class NoisedLabelsScored(NoisedScores):
    """With the model's round."""

    round: RoundScored


EVALUATE = Request(
    name="evaluate",
    question=Evaluate,
    replies=(LabelsScored, MasksScored, NoisedLabelsScored),
    says="scores on test patients: noised histograms; or exact ones, or sums of overlaps, and bootstrap copies",
    brief="scores on test patients",
    repeat=Repeat.RESTORED,
    writes=True,
)
