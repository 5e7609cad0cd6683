"""Models come to an external site, are adapted to its images, and scored there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipelines.requests.fields import AnyTensors, Line
from pipelines.requests.request import Repeat, Request
from pipelines.requests.scores import LabelScores, MaskScores
from privacy.release.form import ABSENT, Absent


@dataclass(frozen=True, kw_only=True)
class Route:
    """tensors: `<expert>/<parameter>`."""

    cohort: Line | Absent = ABSENT
    experts: list[Line] | Absent = ABSENT
    line: Line | Absent = ABSENT
    scored: Literal["all", "test"] | Absent = ABSENT
    tensors: AnyTensors | Absent = ABSENT


ROUTE = Request(
    name="route",
    question=Route,
    replies=(LabelScores, MaskScores),
    says="scores on its patients, as an external site",
    brief="scores on test patients",
    repeat=Repeat.RESTORED,
    writes=True,
)
