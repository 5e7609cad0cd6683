"""Federated training: `introduce`, `train` and `finish`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Tag
from torch import Tensor
from typing_extensions import TypedDict

from pipelines.data.images import Target
from pipelines.requests.extract import Public
from pipelines.requests.fields import AnyTensors, Count, Digest, Name, Parameters, Round, Settings, SumKey
from pipelines.requests.request import Repeat, Request
from privacy.release.form import ABSENT, Absent, Code, Of, Shape, Text

KEYS = Code("malformed_keys")
OPENING = Code("malformed_opening")
METHOD = Text(2**20)
"""Of what a method says beside its tensors."""


class PublicStart(TypedDict):
    """Weights with which networks begin, by their digest, and the public pictures on which they were trained."""

    public: Public
    sha256: Digest


class FileWeights(TypedDict):
    """Whether weights of a file are public, and whether the network keeps their last layer or begins with a new one."""

    public: bool
    head: Literal["kept", "fresh"]


class FileStart(TypedDict):
    """Weights of a file with which networks begin, by their digest."""

    weights: FileWeights
    sha256: Digest


def _name_start(start: object) -> str:
    """Which of the two a start is."""
    return "file" if isinstance(start, Mapping) and "weights" in start else "public"


Start: TypeAlias = Annotated[
    Annotated[PublicStart, Tag("public")] | Annotated[FileStart, Tag("file")], Discriminator(_name_start)
]


@dataclass(frozen=True, kw_only=True)
class Introduce:
    """A run's settings for a hospital, which parses their groups as strictly as YAML before it reads a patient
    (`pipelines.hospital.opening`).

    label: of the method in the run. inputs, classes: of a network. target: of masks. ordered: whether classes are;
    findings: whether they are several findings. shared: if hospitals have networks of their own, the names of what
    these have in common. start: of networks that begin with given weights. rounds: over which a learning rate changes.
    averaged: whether the average of models over rounds is kept. figures: whether each round is measured. secure_sum:
    whether replies are hidden in sums, with the `bound` of an update's norm. upload: how they are packed. privacy: the
    fields of `Protection`, or None. evaluation_noise: of test histograms, in patients.
    """

    label: Annotated[str, OPENING]
    algorithm: Annotated[Settings, METHOD, OPENING]
    model: Annotated[Settings, METHOD, OPENING]
    inputs: Annotated[list[int], OPENING]
    classes: Annotated[int, OPENING]
    work: Annotated[Settings, OPENING]
    seed: Annotated[int, OPENING]
    cohort: Annotated[str, OPENING]
    shared: Annotated[list[str], METHOD, OPENING] | Absent = ABSENT
    target: Annotated[Target, OPENING] | Absent = ABSENT
    ordered: Annotated[bool, OPENING] | Absent = ABSENT
    findings: Annotated[bool, OPENING] | Absent = ABSENT
    start: Annotated[Start, OPENING] | Absent = ABSENT
    rounds: Annotated[int, OPENING] | Absent = ABSENT
    averaged: Annotated[bool, OPENING] | Absent = ABSENT
    figures: Annotated[bool, OPENING] | Absent = ABSENT
    privacy: Annotated[Settings | None, OPENING] | Absent = ABSENT
    evaluation_noise: Annotated[float, OPENING] | Absent = ABSENT
    secure_sum: Annotated[bool, OPENING] | Absent = ABSENT
    bound: Annotated[float | None, OPENING] | Absent = ABSENT
    upload: Annotated[Settings, OPENING] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Introduced:
    """What the method must know before its first round. fixed: digest of what the author of the network fixed. key: the
    public key for this run's secure sums.
    """

    algorithm: Annotated[Settings, Of.PARAMETER, METHOD]
    fixed: Annotated[Digest, Of.NAME] | Absent = ABSENT
    key: Annotated[SumKey, Of.NAME] | Absent = ABSENT
    parameters: Parameters | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Train:
    """A round, or the last merge. best: the globally best round so far. score: False = the last round's model is not
    scored. keys: hospital -> public key, of those in whose sum the reply shall be hidden.
    """

    algorithm: Settings | Absent = ABSENT
    best: Round | Absent | None = ABSENT
    keys: Annotated[dict[Name, SumKey], KEYS] | Absent = ABSENT
    score: bool | Absent = ABSENT
    tensors: AnyTensors | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Trained:
    """loss: of the last round's model on `n` validation examples; None without any."""

    algorithm: Annotated[Settings, Of.PARAMETER, METHOD]
    loss: Annotated[float | None, Of.SCORE]
    n: Count
    parameters: Parameters | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """As `Trained`, with parameters that only the sum over hospitals reveals."""

    algorithm: Annotated[Settings, Of.NAME]
    loss: Annotated[float | None, Of.SCORE]
    n: Count
    masked: Annotated[Tensor, Of.MASKED, Shape(axes=1, whole=True)]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """As `Trained`, without parameters."""

    algorithm: Annotated[Settings, Of.NAME]
    loss: Annotated[float | None, Of.SCORE]
    n: Count


HIDDEN_SAYS = "parameters of the method, hidden in a sum over hospitals; validation loss, number of examples"
HIDDEN_BRIEF = "sums of model parameters over hospitals"
"""What replies hold, in words, where nothing but sums of parameters can be read (`Hidden`)."""
SILENT_SAYS = "validation loss, number of examples; no parameters, because the methods send none"
SILENT_BRIEF = "validation losses"
"""What they hold of methods at home, which reply nothing of their own."""
SILENT = ("local", "local_ridge", "local_svm", "as_begun", "at_home", "zero_shot")
"""The names of these methods."""

INTRODUCE: Request[Introduce, Introduced] = Request(
    name="introduce",
    question=Introduce,
    replies=(Introduced,),
    says="that it takes part, and what the method must know first",
    repeat=Repeat.ONCE,
)
TRAIN: Request[Train, Trained | Hidden] = Request(
    name="train",
    question=Train,
    replies=(Hidden, Trained),
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
    repeat=Repeat.ONCE,
    rounds=True,
)
