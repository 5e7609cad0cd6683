"""Scores of somebody else's signed model on all patients of a hospital."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import torch
from pydantic import Field
from torch import Tensor

from pipelines.models.signed import TENSOR
from pipelines.requests.fields import BootstrapCopies, Line
from pipelines.requests.request import Repeat, Request
from pipelines.requests.scores import FindingScores, LabelScores, MaskScores, NoisedFindingScores, NoisedScores
from privacy.message import Params
from privacy.release.form import ABSENT, Absent, Of, Shape
from privacy.release.signature import Signature


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """model (n,) uint8: the file. epsilon: what the release may cost a patient, where privacy is promised."""

    cohort: Line
    signature: Signature
    copies: BootstrapCopies
    epsilon: Annotated[float, Field(gt=0, le=100)] | Absent | None = ABSENT
    model: Annotated[Tensor, Shape(axes=1, whole=True)]


ModelDigest = Annotated[Line, Of.NAME]


@dataclass(frozen=True, kw_only=True)
class LabelsBenchmarked(LabelScores):
    """model: the digest of the file that was scored."""

    model: ModelDigest


@dataclass(frozen=True, kw_only=True)
class MasksBenchmarked(MaskScores):
    """model: the digest of the file that was scored."""

    model: ModelDigest


@dataclass(frozen=True, kw_only=True)
class NoisedLabelsBenchmarked(NoisedScores):
    """model: the digest of the file that was scored."""

    model: ModelDigest


@dataclass(frozen=True, kw_only=True)
class FindingsBenchmarked(FindingScores):
    """model: the digest of the file that was scored."""

    model: ModelDigest


@dataclass(frozen=True, kw_only=True)
class NoisedFindingsBenchmarked(NoisedFindingScores):
    """model: the digest of the file that was scored."""

    model: ModelDigest


Scored: TypeAlias = (
    LabelsBenchmarked | MasksBenchmarked | NoisedLabelsBenchmarked | FindingsBenchmarked | NoisedFindingsBenchmarked
)


def file_problem(tensors: Params) -> str | None:
    """Why these are not the bytes of one file: (n,) uint8."""
    file = tensors.get(TENSOR)
    if len(tensors) != 1 or file is None or file.dtype != torch.uint8 or file.dim() != 1:
        return f"benchmark takes one tensor, {TENSOR}: a file's bytes"
    return None


BENCHMARK: Request[Benchmark, Scored] = Request(
    name="benchmark",
    question=Benchmark,
    replies=(
        LabelsBenchmarked,
        MasksBenchmarked,
        NoisedLabelsBenchmarked,
        FindingsBenchmarked,
        NoisedFindingsBenchmarked,
    ),
    says="scores of a signed model on all of its patients, and the model's digest; noised where it promises",
    brief="scores on test patients",
    repeat=Repeat.RESTORED,
    writes=True,
    problem=file_problem,
)
