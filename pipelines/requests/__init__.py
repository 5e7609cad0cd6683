"""Every request that a coordinator may make of a hospital, each declared in one file, in the order of a run.

What a hospital checks, commits, repeats and lets leave, and what its pages say of it, follows from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.requests.audit import AUDIT
from pipelines.requests.augment import AUGMENT
from pipelines.requests.benchmark import BENCHMARK
from pipelines.requests.compare import COMPARE
from pipelines.requests.evaluate import EVALUATE
from pipelines.requests.export import EXPORT
from pipelines.requests.extract import EXTRACT
from pipelines.requests.figures import FIGURES
from pipelines.requests.fingerprint import FINGERPRINT
from pipelines.requests.holds import HOLDS
from pipelines.requests.ingest import INGEST
from pipelines.requests.moments import MOMENTS
from pipelines.requests.pool import POOL
from pipelines.requests.report import REPORT
from pipelines.requests.request import Repeat, Request
from pipelines.requests.route import ROUTE
from pipelines.requests.sample import SAMPLE
from pipelines.requests.score import SCORE
from pipelines.requests.survey import SURVEY
from pipelines.requests.synthesize import SYNTHESIZE
from pipelines.requests.track import TRACK
from pipelines.requests.train import FINISH, INTRODUCE, TRAIN
from pipelines.requests.translate import TRANSLATE

__all__ = [
    "AUDIT",
    "AUGMENT",
    "BENCHMARK",
    "COMPARE",
    "EVALUATE",
    "EXPORT",
    "EXTRACT",
    "FIGURES",
    "FINGERPRINT",
    "FINISH",
    "HOLDS",
    "INGEST",
    "INTRODUCE",
    "MOMENTS",
    "POOL",
    "REPORT",
    "REQUESTS",
    "ROUTE",
    "SAMPLE",
    "SCORE",
    "SURVEY",
    "SYNTHESIZE",
    "TRACK",
    "TRAIN",
    "TRANSLATE",
    "Repeat",
    "Request",
]

REQUESTS: Mapping[str, Request[Any, Any]] = {
    request.name: request
    for request in (
        SURVEY, FINGERPRINT, MOMENTS, INGEST, SCORE, SYNTHESIZE, SAMPLE, TRANSLATE, AUGMENT, EXTRACT, INTRODUCE, TRAIN,
        FINISH, FIGURES, EXPORT, EVALUATE, AUDIT, POOL, ROUTE, BENCHMARK, COMPARE, TRACK, REPORT, HOLDS,
    )
}  # fmt: skip
"""By name."""
