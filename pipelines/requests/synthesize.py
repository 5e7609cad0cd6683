"""A hospital learns to imitate its training images; its networks stay there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from harmonize.synthesis import AnySynthesis
from pipelines.requests.fields import SETTINGS
from pipelines.requests.harmonizing import Harmonizing
from pipelines.requests.request import Repeat, Request


@dataclass(frozen=True, kw_only=True)
class Synthesize(Harmonizing):
    """synthesis: how it learns."""

    synthesis: Annotated[AnySynthesis, SETTINGS]


@dataclass(frozen=True, kw_only=True)
class Synthesized:
    """Nothing."""


SYNTHESIZE: Request[Synthesize, Synthesized] = Request(
    name="synthesize",
    question=Synthesize,
    replies=(Synthesized,),
    says="that it has learnt to imitate its images; nothing of what it learnt",
    repeat=Repeat.ONCE,
    shapes=True,
)
