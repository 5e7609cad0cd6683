"""Federated training: `introduce`, `train` and `finish`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.requests.fields import AnyTensors, Count, Digest, Parameters, Round, Settings
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Of, Text

METHOD = Text(2**20)
"""Of what a method says beside its tensors."""


@dataclass(frozen=True, kw_only=True)
class Introduce:
    """A run's settings, which `pipelines.hospital.opening` parses before it reads a patient."""


@dataclass(frozen=True, kw_only=True)
class Introduced:
    """What the method must know before its first round. fixed: digest of what the author of the network fixed."""

    algorithm: Annotated[Settings, Of.PARAMETER, METHOD]
    fixed: Annotated[Digest, Of.NAME] | Absent = ABSENT
    parameters: Parameters | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Train:
    """A round, or the last merge. best: the globally best round so far."""

    algorithm: Settings | Absent = ABSENT
    best: Round | Absent | None = ABSENT
    tensors: AnyTensors | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Trained:
    """loss: of the last round's model on `n` validation examples; None without any."""

    algorithm: Annotated[Settings, Of.PARAMETER, METHOD]
    loss: Annotated[float | None, Of.SCORE]
    n: Count
    parameters: Parameters | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Finished:
    """As `Trained`, without parameters."""

    algorithm: Annotated[Settings, Of.NAME]
    loss: Annotated[float | None, Of.SCORE]
    n: Count


INTRODUCE: Request[Introduce, Introduced] = Request(
    name="introduce",
    question=Introduce,
    replies=(Introduced,),
    says="that it takes part, and what the method must know first",
    repeat=Repeat.ONCE,
)
TRAIN: Request[Train, Trained] = Request(
    name="train",
    question=Train,
    replies=(Trained,),
    says="parameters of the method, validation loss, number of examples",
    brief="model parameters",
    repeat=Repeat.ONCE,
    rounds=True,
)
FINISH: Request[Train, Finished] = Request(
    name="finish",
    question=Train,
    replies=(Finished,),
    says="the last round's validation loss",
    brief="model parameters",
    repeat=Repeat.ONCE,
    rounds=True,
)
