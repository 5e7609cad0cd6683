"""How a hospital's files become a cohort: the question of `moments` and of `ingest`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.data.images import AnyImages, Target
from pipelines.data.label_numbers import LabelRange
from pipelines.requests.fields import WITHOUT_NULLS, Line
from pipelines.settings.learning import Split
from privacy.release.form import ABSENT, Absent


@dataclass(frozen=True, kw_only=True)
class Reading:
    """independent: whether each patient's split depends on that patient alone. target: the masks that every study must
    have. classes: names of what is learnt. regions: of structures that are scored, each its name and those of its
    classes. number: the range of labels that are numbers. findings: names of several,
    where an example has several. unlabelled: whether studies may have no labels, because no model is trained.
    """

    images: Annotated[AnyImages, WITHOUT_NULLS]
    split: Annotated[Split, WITHOUT_NULLS]
    seed: int
    independent: bool | Absent = ABSENT
    target: Target | Absent | None = ABSENT
    classes: list[Line] | Absent = ABSENT
    number: LabelRange | Absent = ABSENT
    findings: list[Line] | Absent = ABSENT
    unlabelled: bool | Absent = ABSENT
    regions: list[list[Line]] | Absent = ABSENT
