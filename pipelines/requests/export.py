"""A hospital hands out a model of its own, and if it is asked for them the moments of its channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from federation.participant import Checkpoint
from pipelines.requests.fields import Count, Name, Number, Parameters, Round, Run
from pipelines.requests.request import Request
from pipelines.settings.route import Matched
from privacy.release.form import ABSENT, Absent, Code, Of, Shape

MATCHED = Code("malformed_moments")


@dataclass(frozen=True, kw_only=True)
class Export:
    """label: of the method. recipient: `outside` for external sites. moments: how those of its channels are released
    with it.
    """

    label: Name | Absent = ABSENT
    train_run: Run
    checkpoint: Checkpoint
    best: Round | Absent | None = ABSENT
    recipient: Name | Absent = ABSENT
    moments: Annotated[Matched, MATCHED] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The model; and if they were asked for, the moments of its channels over training patients, as
    `federation.matching.ChannelMoments`: channel_mean, channel_square (channels,), channel_noise the deviation of the
    noise in each number. channel_patients: over how many.
    """

    parameters: Parameters
    channel_mean: Annotated[Tensor, Of.SUM, Shape(axes=1, numbers=2**20)] | Absent = ABSENT
    channel_square: Annotated[Tensor, Of.SUM, Shape(axes=1, numbers=2**20)] | Absent = ABSENT
    channel_noise: Number | Absent = ABSENT
    channel_patients: Count | Absent = ABSENT


EXPORT: Request[Export, Exported] = Request(
    name="export",
    question=Export,
    replies=(Exported,),
    says="its model, to be tested at other hospitals; if asked, the means and squares of its channels",
    brief="model parameters",
)
