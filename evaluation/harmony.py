"""Harmonization on pages: the target hospital, the shared images, and the effect of each translation."""

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
"""Veto (`harmonize/veto.py`) -> the words of its column."""


@dataclass(frozen=True)
class SpaceRow:
    """One hospital's images in one space. vetoed: why the hospital uses its raw images instead; empty = it does not.
    quality: figures by the names of `COLUMNS`; NaN = not computable or not sent. note: replaces them if they are
    missing. sentences: why it was vetoed, and what could not be checked, for the hospital's own page.
    """

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
        """One figure, NaN if it is missing."""
        return float(self.quality.get(name, math.nan))


@dataclass(frozen=True)
class ScoreLine:
    """Complexity of a hospital's images. deviation: over seeds; NaN with one seed."""

    site: str
    score: float
    deviation: float = math.nan


@dataclass(frozen=True)
class Harmony:
    """target: the hospital whose images were imitated; release: how it was chosen (exact, dp, public). synthesis: how,
    in a sentence with its epsilon. shared: pictures of the shared images: synthetic ones, no patient's. maps: pictures
    of images as points: real and synthetic ones on a hospital's own page, shared and public ones on the coordinator's.
    translations: images as they were read and in every space.
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
        """Heads of the other columns, if any translation was measured."""
        return tuple(head for name, head in COLUMNS.items() if self.columns and name not in self.columns)


def as_number(value: object) -> float:
    """A number from JSON; NaN for null."""
    return float(value) if isinstance(value, int | float) else math.nan
