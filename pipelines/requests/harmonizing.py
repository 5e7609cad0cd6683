"""What every question of harmonization holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pipelines.requests.fields import SETTINGS, DeformedCopies, Line, Packages, Seed, ValueScale
from privacy.release.form import ABSENT, Absent


@dataclass(frozen=True, kw_only=True)
class Harmonizing:
    """cohort: whose images. copies: deformed copies of each training image. private: whether patients have a guarantee.
    packages: code of others that takes part, by source: its digest.
    """

    cohort: Line
    scale: ValueScale
    copies: DeformedCopies
    seed: Seed
    private: bool | Absent = ABSENT
    packages: Annotated[Packages, SETTINGS] | Absent = ABSENT
