"""Scores of a model on a hospital's patients: what `evaluate`, `route` and `benchmark` let leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from pipelines.requests.fields import Count, Round, Whole
from privacy.release.form import Of, Shape

Histograms = Annotated[
    Mapping[str, Tensor],
    Of.SCORE,
    Shape(axes=3, names="scores|columns|shape|confusion|patients|class_patients", whole=True),
]
"""Of labels, with bootstrap copies (`evaluation.histograms.to_tensors`)."""
Totals = Annotated[Mapping[str, Tensor], Of.SCORE, Shape(axes=3, names="(floor/)?totals", whole=False)]
"""Of masks: sums of overlaps, of the model and of the mean mask (`evaluation.overlap.to_tensors`)."""
Numbers = Annotated[
    Mapping[str, Tensor],
    Of.COUNT,
    Shape(axes=3, names="(floor/)?(known|patients|images|class_patients)", whole=True),
]
NoisedHistograms = Annotated[
    Mapping[str, Tensor], Of.SCORE, Shape(axes=2, names="scale|noised|rest|confusion|cuts", whole=False)
]
"""Of labels, with noise (`evaluation.noised.to_tensors`)."""
ErrorSums = Annotated[Mapping[str, Tensor], Of.SCORE, Shape(axes=2, names="(floor/)?errors", whole=False)]
"""Of numbers: sums of errors, of the model and of the median guess (`evaluation.numbers.to_tensors`)."""
TestedCounts = Annotated[Mapping[str, Tensor], Of.COUNT, Shape(axes=1, names="(floor/)?tested", whole=True)]
NoisedErrors = Annotated[Mapping[str, Tensor], Of.SCORE, Shape(axes=1, names="error_bins", whole=False)]
"""Of numbers, with noise: a histogram of errors (`evaluation.numbers.release_errors`)."""


FindingCounts = Annotated[
    Mapping[str, Tensor], Of.SCORE, Shape(axes=2, names="finding_(scores|columns|shape|numbers)", whole=True)
]
"""Of several findings, with bootstrap copies (`evaluation.findings.to_tensors`)."""
NoisedFindings = Annotated[Mapping[str, Tensor], Of.SCORE, Shape(axes=2, names="finding_(scale|noised)", whole=False)]
"""Of several findings, with noise (`evaluation.findings.release_findings`)."""


@dataclass(frozen=True, kw_only=True)
class LabelScores:
    """Of a model that gives labels."""

    histograms: Histograms


@dataclass(frozen=True, kw_only=True)
class MaskScores:
    """Of a model that gives masks."""

    totals: Totals
    numbers: Numbers


@dataclass(frozen=True, kw_only=True)
class NoisedScores:
    """Of a model that gives labels, with noise. patients, images, class_patients: declared or released counts."""

    histograms: NoisedHistograms
    noise: Annotated[float, Field(ge=0), Of.NAME]
    patients: Count
    images: Count
    class_patients: Annotated[list[Whole], Of.COUNT]


@dataclass(frozen=True, kw_only=True)
class NumberScores:
    """Of a model that gives a number."""

    errors: ErrorSums
    tested: TestedCounts


@dataclass(frozen=True, kw_only=True)
class NoisedNumberScores:
    """Of a model that gives a number, with noise. patients, images: declared or released counts."""

    error_bins: NoisedErrors
    noise: Annotated[float, Field(ge=0), Of.NAME]
    patients: Count
    images: Count


@dataclass(frozen=True, kw_only=True)
class FindingScores:
    """Of a model that gives several findings."""

    findings: FindingCounts


@dataclass(frozen=True, kw_only=True)
class NoisedFindingScores:
    """Of a model that gives several findings, with noise. patients, images, finding_patients: declared counts."""

    findings: NoisedFindings
    noise: Annotated[float, Field(ge=0), Of.NAME]
    patients: Count
    images: Count
    finding_patients: Annotated[list[Whole], Of.COUNT]


RoundScored = Annotated[Round | None, Of.NAME]
"""The round of the model that was scored; None = it is no model of this hospital."""
