"""Models come to an external site, are adapted to its images, and scored there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from pipelines.requests.fields import AnyTensors, BootstrapCopies, Line, Settings
from pipelines.requests.request import Repeat, Request
from pipelines.requests.scores import LabelScores, MaskScores
from pipelines.settings.route import How
from privacy.release.form import ABSENT, Absent, Code, Shape

ROUTE_CODE = Code("malformed_route")


@dataclass(frozen=True, kw_only=True)
class Route:
    """Which models come, and what is done with them.

    experts: their names in order, the shared one last where it is among them. shared, personal: the openings of the
    methods that they are of. how: the way; line: its label. scored: which patients. tensors: `<expert>/<parameter>`.
    channel_mean, channel_square, channel_noise: of the last expert, for the way `matched`.
    """

    cohort: Annotated[Line, ROUTE_CODE]
    experts: Annotated[list[Line], Field(min_length=1, max_length=1000), ROUTE_CODE]
    shared: Settings | Absent = ABSENT
    personal: Settings | Absent = ABSENT
    how: Annotated[How, ROUTE_CODE]
    line: Annotated[Line, ROUTE_CODE]
    copies: BootstrapCopies
    seed: Annotated[int, ROUTE_CODE]
    scored: Literal["all", "test"] | Absent = ABSENT
    channel_mean: Annotated[Tensor, Shape(axes=1), ROUTE_CODE] | Absent = ABSENT
    channel_square: Annotated[Tensor, Shape(axes=1), ROUTE_CODE] | Absent = ABSENT
    channel_noise: Annotated[float, ROUTE_CODE] | Absent = ABSENT
    tensors: AnyTensors | Absent = ABSENT


ROUTE: Request[Route, LabelScores | MaskScores] = Request(
    name="route",
    question=Route,
    replies=(LabelScores, MaskScores),
    says="scores on its patients, as an external site",
    brief="scores on test patients",
    repeat=Repeat.RESTORED,
    writes=True,
)
