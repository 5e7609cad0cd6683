"""Harmonization on pages: the target hospital, the shared images, the effect of each translation; and in the first
sentences of a page what acted and what it is worth, what was refused and why.

The share of the oracle gap that a line closes (`evaluation.oracle_gap`) is known only in simulations, where patients
can be imaged by another scanner; the gain at outside hospitals is given wherever there are any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from evaluation.drawing import Picture
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN, GapRow, ScoreRow
from evaluation.wording import format_estimate, format_hundredths, format_signed

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


REMEDY = (
    "What helps: a translator that no patient shapes (harmonize.translate: randomized), other images to imitate "
    "(harmonize.synthesis), more patients; or, if you know that what the veto measured does no harm, wider limits "
    "(harmonize.veto)."
)


def describe_harmonization(
    harmony: Harmony | None,
    shares: Sequence[GapRow],
    spaces: Mapping[str, str],
    outside: Sequence[ScoreRow] = (),
    untreated: str = "",
) -> tuple[str, ...]:
    """The sentences; none without harmonization. spaces: method -> space of images. untreated: as in `RunPage`."""
    if harmony is None:
        return ()
    return (
        *_describe_worth(shares),
        *_describe_outside_gains(outside, untreated),
        *_describe_refusals(harmony, spaces),
    )


def select_overall_rows(shares: Sequence[GapRow]) -> list[GapRow]:
    """The rows over all hospitals, or of the only one: the mean if there is one."""
    protocols = {row.protocol for row in shares}
    protocol = next((name for name in (PRIVATE_MEAN, OVERALL, PRIVATE) if name in protocols), "")
    return [row for row in shares if row.protocol == protocol]


def _describe_worth(shares: Sequence[GapRow]) -> Iterator[str]:
    """One sentence for each untranslated line: the oracle gap over it, and the shares or gains of its lines."""
    rows = select_overall_rows(shares)
    for raw in dict.fromkeys(row.untranslated for row in rows):
        line_rows = [row for row in rows if row.untranslated == raw]
        first = line_rows[0]
        gap = _format_gain(first.gap, first.gap_low, first.gap_high)
        opening = f"The same patients on one scanner ({first.oracle}) would gain {gap} {first.measure} over {raw}"
        closed = [f"{row.method} {format_share(row)}" for row in line_rows if not row.why]
        if closed:
            yield f"{opening}. Of this gap are closed: {'; '.join(closed)}."
        else:
            gains = "; ".join(f"{r.method} {_format_gain(r.gain, r.gain_low, r.gain_high)}" for r in line_rows)
            yield f"{opening}; {first.why}, so no share of it can be told. Gains over {raw}: {gains}."


def format_share(row: GapRow) -> str:
    """A share with its interval."""
    return "not known" if row.why else format_estimate(row.share, row.share_low, row.share_high, format_hundredths)


_format_gain = partial(format_estimate, write=format_signed)
"""A gain with its interval."""


def find_unadapted_lines(outside: Sequence[ScoreRow], untreated: str) -> dict[str, list[str]]:
    """Line -> the outside hospitals at which all its scores and intervals are those of `untreated`, to the last bit.

    The way changed nothing there.
    """
    scores: dict[tuple[str, str], dict[str, tuple[float, float, float]]] = {}
    for row in outside:
        if row.protocol == OUTSIDE:
            scores.setdefault((row.method, row.sites[0]), {})[row.measure] = (row.value, row.low, row.high)
    lines: dict[str, list[str]] = {}
    for (line, site), values in scores.items():
        if line != untreated and values == scores.get((untreated, site)):
            lines.setdefault(line, []).append(site)
    return lines


def _describe_outside_gains(outside: Sequence[ScoreRow], untreated: str) -> Iterator[str]:
    """The gains at outside hospitals over `untreated`, in one sentence; nothing if there are none."""
    measure = outside[0].measure if outside else ""
    protocol = OUTSIDE_MEAN if any(row.protocol == OUTSIDE_MEAN for row in outside) else OUTSIDE
    gains = [
        f"{row.method} {_format_gain(row.gain, *row.widest_gain)}"
        for row in outside
        if row.protocol == protocol and row.measure == measure and row.method != untreated and math.isfinite(row.gain)
    ]
    if untreated and gains:
        yield f"Hospitals outside gain over {untreated}, in {measure}: {'; '.join(gains)}."


def _describe_refusals(harmony: Harmony, spaces: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each refused space with its hospitals and reasons, and then the remedy."""
    refused = [row for row in harmony.rows if row.vetoed]
    for space in dict.fromkeys(row.space for row in refused):
        by = "; ".join(f"{row.site} ({', '.join(row.reasons)})" for row in refused if row.space == space)
        learns = [method for method, method_space in spaces.items() if method_space == space]
        source = f"{' and '.join(learns)} learns there from images" if learns else "images there stay"
        yield f"The translation {space} is refused at {by}: {source} as they were read."
    if refused:
        yield REMEDY
