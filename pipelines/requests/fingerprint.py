"""What a hospital's studies are before anything is resampled: spacings, shapes, values, volumes of what masks show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from pipelines.data.images import Target, Values
from pipelines.requests.fields import SETTINGS, Count, Counts, Line
from pipelines.requests.request import Request
from privacy.release.form import ABSENT, Absent, Of

Axes: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=3)]
"""A number for each axis: (depth, rows, columns), or of pictures (rows, columns)."""
Percentiles: TypeAlias = Annotated[dict[Line, Axes], Of.SCORE]
"""By name, as p50."""


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """images: their kind. values: of volumes and slices, whether they are measured as ADC or as they stand in files.
    target: whose masks; studies without one are set aside. classes: names of label maps' classes, in the order of the
    task. Neither a size nor a spacing is among them, so that a run with others asks the same.
    """

    images: Annotated[Literal["volumes", "slices", "pictures"], SETTINGS]
    values: Annotated[Values, SETTINGS]
    target: Annotated[Target, SETTINGS]
    classes: Annotated[list[Line], Field(max_length=64), SETTINGS]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Percentiles over studies (p10, p50, p90, p95) of spacings (mm; of pictures 1), shapes (voxels) and extents (mm,
    or pixels); of all foregrounds' values, of which each study has as many: p0.5, p50, p99.5, mean and sd; over the
    studies that show a class, of its volume (mm³, or pixels). modalities: studies of each. rejected_by_reason: those
    that could not be measured. box_share: the median share of a study's voxels in the bounding box of those that
    are not 0, which older programs do not tell.
    """

    studies: Count
    rejected_by_reason: Counts
    modalities: Counts
    spacing: Percentiles
    voxels: Percentiles
    extent: Percentiles
    intensity: Annotated[dict[Line, float], Of.SCORE]
    volumes: Annotated[dict[Line, dict[Line, float]], Of.SCORE]
    box_share: Annotated[float, Field(ge=0, le=1), Of.SCORE] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class MeasuredWithNoise:
    """Medians over patients of spacings and extents, and the 25th percentile of the spacing between slices (p25), each
    found by comparisons with noise between declared bounds. noised_patients: how many, with noise. noise: standard
    deviation of a comparison, in what one patient can change. In the plane there is one number for rows and columns:
    the geometric mean of spacings, the longer of extents.
    """

    noised_patients: Annotated[float, Of.COUNT]
    noise: Annotated[float, Of.NAME]
    comparisons: Annotated[int, Of.NAME]
    spacing: Percentiles
    extent: Percentiles


FINGERPRINT: Request[Fingerprint, Measured | MeasuredWithNoise] = Request(
    name="fingerprint",
    question=Fingerprint,
    replies=(Measured, MeasuredWithNoise),
    says="percentiles over studies of their spacings, shapes and extents, of the values inside masks and of the "
    "volumes that masks show, and how much of a study is not empty; with a budget of spacings and extents only, with "
    "noise",
    brief="percentiles of spacings, shapes, values and volumes",
)
