"""What pages say of harmonization: whose images became the target, what was shared, what each translation did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluation.drawing import Picture

COLUMNS: Mapping[str, str] = {
    "sw_before": "distance before",
    "sw_after": "distance after",
    "cycle_mae": "cycle error",
    "gradient_correlation": "edges kept",
    "contrast_ratio": "lesion contrast",
    "lesion_correlation": "lesion order",
    "gland_correlation": "patient order",
    "drift": "class drift",
    "hallucinated": "new dark spots",
}
"""Figure of a translation's quality -> head of its column. `harmonize/quality.py` defines them."""


@dataclass(frozen=True)
class SpaceRow:
    """One hospital's images in one space. vetoed: why the hospital uses its raw images instead; empty = it does not.
    quality: figures by the names of `COLUMNS`; NaN = not computable or not told. note: what stands instead of them.
    sentences: what was found against it, and what could not be judged, for the hospital's own page."""

    site: str
    space: str
    translator: str
    vetoed: tuple[str, ...]
    quality: Mapping[str, float]
    note: str = ""
    sentences: tuple[str, ...] = ()

    def figure(self, name: str) -> float:
        """One figure, NaN where there is none."""
        return float(self.quality.get(name, math.nan))


@dataclass(frozen=True)
class ScoreLine:
    """How hard a hospital's images are to imitate. deviation: over seeds; NaN where it was computed once."""

    site: str
    score: float
    deviation: float = math.nan


@dataclass(frozen=True)
class Harmony:
    """target: the hospital whose images were imitated; release: how it was chosen (exact, dp, public). synthesis: how,
    in a sentence with its epsilon. shared: pictures of what was shared: made-up images, no patient's. maps: pictures of
    real beside made-up images, for a hospital's own page. translations: the same, before and after.
    """

    target: str
    release: str
    synthesis: str
    selected: str
    scores: tuple[ScoreLine, ...] = ()
    rows: tuple[SpaceRow, ...] = ()
    shared: tuple[Picture, ...] = ()
    maps: tuple[Picture, ...] = ()
    translations: tuple[Picture, ...] = ()
    columns: Mapping[str, str] = field(default_factory=lambda: COLUMNS)


def vetoed(rows: Sequence[SpaceRow]) -> list[SpaceRow]:
    """The translations that are not used."""
    return [row for row in rows if row.vetoed]
