"""What pages say of harmonization: whose images became the target, what was shared, what each translation did."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
REASONS: Mapping[str, str] = {
    "no_effect": "no nearer to the target",
    "contrast": "lesion contrast",
    "cnr": "lesion contrast to noise",
    "lesion_order": "lesion order",
    "gland_order": "patient order",
    "edges": "edges kept",
    "cycle": "cycle error",
    "class_drift": "class drift",
    "prevalence": "new dark spots",
}
"""Veto (`harmonize/veto.py`) -> the same in the words of the columns."""


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

    @property
    def reasons(self) -> tuple[str, ...]:
        """`vetoed` in words."""
        return tuple(REASONS.get(name, name) for name in self.vetoed)

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
    in a sentence with its epsilon. shared: pictures of what was shared: synthetic images, no patient's. maps: pictures
    of real beside synthetic images, for a hospital's own page. translations: the same, before and after.
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

    @property
    def columns(self) -> Mapping[str, str]:
        """Those of `COLUMNS` in which some row has a figure."""
        return {name: head for name, head in COLUMNS.items() if any(not math.isnan(r.figure(name)) for r in self.rows)}

    @property
    def absent(self) -> tuple[str, ...]:
        """Heads of the other columns, where anything was judged at all."""
        return tuple(head for name, head in COLUMNS.items() if self.columns and name not in self.columns)


def as_number(value: object) -> float:
    """A figure that was told; NaN where there is none, as JSON knows no NaN."""
    return float(value) if isinstance(value, int | float) else math.nan
