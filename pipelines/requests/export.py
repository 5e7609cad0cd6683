"""A hospital hands out a model of its own."""

from __future__ import annotations

from dataclasses import dataclass

from federation.participant import Checkpoint
from pipelines.requests.fields import Name, Parameters, Round, Run
from pipelines.requests.request import Request
from privacy.release.form import ABSENT, Absent


@dataclass(frozen=True, kw_only=True)
class Export:
    """label: of the method. recipient: `outside` for external sites."""

    label: Name | Absent = ABSENT
    train_run: Run
    checkpoint: Checkpoint
    best: Round | Absent | None = ABSENT
    recipient: Name | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The model."""

    parameters: Parameters


EXPORT: Request[Export, Exported] = Request(
    name="export",
    question=Export,
    replies=(Exported,),
    says="its model, to be tested at other hospitals",
    brief="model parameters",
)
