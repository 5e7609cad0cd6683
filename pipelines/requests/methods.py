"""Lines of a run's tables, as `compare` and `report` ask of them."""

from __future__ import annotations

from typing import NotRequired, TypeAlias

from typing_extensions import TypedDict

from federation.participant import Checkpoint
from pipelines.requests.fields import Line, Name, Round, Run, Whole
from pipelines.settings.variants import Variant as Scored


class Trained(TypedDict):
    """Which model of a run."""

    train_run: Run
    checkpoint: Checkpoint
    best: Round | None


class Method(Trained):
    """A method. cohort: the images that its model sees."""

    label: Name
    cohort: Line
    rounds: NotRequired[Whole]
    space: NotRequired[Line]
    calibration: NotRequired[None]


class Variant(Trained):
    """A method as a variant scores it."""

    label: Name
    cohort: Line
    rounds: NotRequired[Whole]
    space: NotRequired[Line]
    calibration: Scored


TableLine: TypeAlias = Method | Variant
