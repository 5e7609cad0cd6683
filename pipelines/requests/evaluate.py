"""Scores of a model on a hospital's test patients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from torch import Tensor

from pipelines.requests.fields import AnyTensors, BootstrapCopies, Line, Name, Settings, Whole, Window
from pipelines.requests.model import Model
from pipelines.requests.request import Repeat, Request
from pipelines.requests.scores import (
    FindingScores,
    LabelScores,
    MaskScores,
    NoisedFindingScores,
    NoisedNumberScores,
    NoisedScores,
    NumberScores,
    RoundScored,
)
from pipelines.settings.variants import Variant
from privacy.release.form import ABSENT, Absent, Code, Shape

CALIBRATION = Code("malformed_calibration")


@dataclass(frozen=True, kw_only=True)
class Evaluate(Model):
    """A model to score: the hospital's own, or with tensors that of another hospital, with its opening.

    copies: bootstrap copies of the patients; their seed never leaves the hospital. calibration: on its own training
    images before it is scored; variant: what such a line of the tables is called. window: of a model that segments, the
    sides of what it sees at once, where that is less than an image. central: whether it is the central baseline.
    floor: whether the mean mask, or the median guess, is scored too. rounds: of the training. channel_mean,
    channel_square: of the model on its training images, for the calibration `matched`.
    """

    label: Name
    cohort: Line
    copies: BootstrapCopies
    opening: Settings | Absent = ABSENT
    window: Window | Absent = ABSENT
    central: bool | Absent = ABSENT
    floor: bool | Absent = ABSENT
    calibration: Annotated[Variant | None, CALIBRATION] | Absent = ABSENT
    variant: Annotated[Name, CALIBRATION] | Absent = ABSENT
    rounds: Whole | Absent | None = ABSENT
    channel_mean: Annotated[Tensor, Shape(axes=1), CALIBRATION] | Absent = ABSENT
    channel_square: Annotated[Tensor, Shape(axes=1), CALIBRATION] | Absent = ABSENT
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


@dataclass(frozen=True, kw_only=True)
class NumbersScored(NumberScores):
    """With the model's round."""

    round: RoundScored


@dataclass(frozen=True, kw_only=True)
class NoisedNumbersScored(NoisedNumberScores):
    """With the model's round."""

    round: RoundScored


@dataclass(frozen=True, kw_only=True)
class FindingsScored(FindingScores):
    """With the model's round."""

    round: RoundScored


@dataclass(frozen=True, kw_only=True)
class NoisedFindingsScored(NoisedFindingScores):
    """With the model's round."""

    round: RoundScored


Scored: TypeAlias = (
    LabelsScored
    | MasksScored
    | NoisedLabelsScored
    | NumbersScored
    | NoisedNumbersScored
    | FindingsScored
    | NoisedFindingsScored
)

EVALUATE: Request[Evaluate, Scored] = Request(
    name="evaluate",
    question=Evaluate,
    replies=(
        LabelsScored,
        MasksScored,
        NoisedLabelsScored,
        NumbersScored,
        NoisedNumbersScored,
        FindingsScored,
        NoisedFindingsScored,
    ),
    says="scores on test patients: noised histograms; or exact ones, or sums of overlaps or errors, and bootstrap "
    "copies",
    brief="scores on test patients",
    repeat=Repeat.RESTORED,
    writes=True,
)
