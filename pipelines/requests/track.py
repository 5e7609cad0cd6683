"""Whether figures that a hospital released may be copied to tracking tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.requests.fields import Digest, Line
from pipelines.requests.request import Request
from privacy.release.form import Of


@dataclass(frozen=True, kw_only=True)
class Track:
    """places: where to, in words. server: whether one of them is a server. rests_on: digest of what the figures rest
    on.
    """

    places: list[Line]
    server: bool
    rests_on: Digest


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What was asked, again."""

    places: Annotated[list[Line], Of.NAME]
    rests_on: Annotated[Digest, Of.NAME]


TRACK: Request[Track, Agreed] = Request(
    name="track",
    question=Track,
    replies=(Agreed,),
    says="that figures which it released may be copied to tracking tools; nothing new",
)
