"""Patients' files become a cohort at the hospital, and are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NotRequired

from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from pipelines.requests.fields import CohortName, Count, Counts, KeyedDigest, Line, Whole
from pipelines.requests.reading import Reading
from pipelines.requests.request import Request
from pipelines.settings.learning import Split
from privacy.message import Params
from privacy.release.form import ABSENT, Absent, Of, Shape

SCALE = frozenset({"count", "total", "squares"})


@dataclass(frozen=True, kw_only=True)
class Ingest(Reading):
    """count (1,), total (F,), squares (F,): the moments of all hospitals' training patients, by which features are
    scaled; none of them, or all.
    """

    count: Annotated[Tensor, Shape(axes=1, numbers=1)] | Absent = ABSENT
    total: Annotated[Tensor, Shape(axes=1)] | Absent = ABSENT
    squares: Annotated[Tensor, Shape(axes=1)] | Absent = ABSENT


@dataclass(frozen=True, kw_only=True)
class BenchmarkIngest(Ingest):
    """As a benchmark asks: the split is sent with its nulls, as it always was. A hospital that counted its patients
    once compares the facts, and would take it for another question without them.
    """

    split: Split


class SplitCounts(TypedDict):
    """Counts of one split. classes: by class, where they have names."""

    patients: Whole
    images: Whole
    positives: Whole
    classes: NotRequired[list[Whole]]


Splits = Annotated[dict[Line, SplitCounts], Of.COUNT]


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Exact counts. cohort, sha256, cut: keyed names of the cohort, its bytes, and its division into splits. dealing:
    of a partitioned source, a digest of all patients' parts.
    """

    cohort: CohortName
    sha256: KeyedDigest
    cut: Annotated[Line, Of.NAME]
    files: Count
    used_files: Count
    quarantined_files: Count
    unselected_files: Count
    ignored_files: Count
    patients_without_use: Count
    unselected_series: Count
    studies: Count
    patients: Count
    images: Count
    positives: Count
    classes: Annotated[list[Whole], Of.COUNT] | Absent = ABSENT
    splits: Splits
    rejected_by_reason: Counts
    scanners: Counts
    excluded: Count
    unmatched_exclusions: Count
    unmatched_tests: Count
    source_studies: Count | Absent = ABSENT
    dealing: Annotated[Line, Of.NAME] | Absent = ABSENT
    rejected: Count
    max_rejected: Annotated[float, Field(ge=0), Of.NAME]
    too_many_rejected: Annotated[bool, Of.COUNT]


class Release(TypedDict):
    """How the counts were released, once. noise: standard deviation in each cell."""

    noise: float
    date: Line


@dataclass(frozen=True, kw_only=True)
class CountedOnce:
    """Counts of a hospital that promises privacy: those that it released once, whatever it has today."""

    cohort: CohortName
    sha256: KeyedDigest
    cut: Annotated[Line, Of.NAME]
    patients: Count
    images: Count
    positives: Count
    splits: Splits
    released: Annotated[Release, Of.NAME]
    min_patients: Annotated[Whole, Of.NAME]


def scale_problem(tensors: Params) -> str | None:
    """Why these are no moments: there are some, and one is missing."""
    return f"ingest takes the tensors {', '.join(sorted(SCALE))}" if tensors and tensors.keys() != SCALE else None


INGEST: Request[Ingest, Counted | CountedOnce] = Request(
    name="ingest",
    question=Ingest,
    replies=(Counted, CountedOnce),
    says="counts by split, by reason of rejection and by scanner; digest of the cohort",
    writes=True,
    cohort=True,
    problem=scale_problem,
)
