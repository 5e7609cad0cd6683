"""A hospital attacks its own models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.requests.fields import Line, Name, Settings
from pipelines.requests.model import Model
from pipelines.requests.request import Repeat, Request
from privacy.attacks.inversion import Inversion
from privacy.release.form import ABSENT, Absent, Code, Of


@dataclass(frozen=True, kw_only=True)
class Audit(Model):
    """membership: whether to infer who trained the model. inversion: whether to reconstruct images, and how.
    calibration: none; a model is attacked as it was trained.
    """

    label: Name | Absent = ABSENT
    cohort: Line
    membership: bool | Absent = ABSENT
    inversion: Annotated[Inversion | None, Code("malformed_inversion")] | Absent = ABSENT
    calibration: Absent | None = ABSENT


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """found: of membership inference. inversion: of reconstructions. None where a guarantee is given: then results stay
    on the hospital's own page.
    """

    found: Annotated[Settings | None, Of.SCORE]
    inversion: Annotated[Settings | None, Of.SCORE] | Absent = ABSENT


AUDIT: Request[Audit, Attacked] = Request(
    name="audit",
    question=Audit,
    replies=(Attacked,),
    says="how well an attack tells training patients from others, or draws their images, if nothing is guaranteed",
    brief="results of attacks",
    repeat=Repeat.RESTORED,
    writes=True,
)
