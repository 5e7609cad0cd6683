"""What harmonization did, in the first sentences of a page: what acted and what it is worth, what was refused and why.

The share of the oracle gap that a line closes (`evaluation.gap_rows`) is known only in simulations, where patients can
be imaged by another scanner; the gain at outside hospitals is given wherever there are any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from evaluation.harmony import Harmony
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN, GapRow, ScoreRow
from evaluation.wording import format_hundredths, format_signed

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
            gains = "; ".join(
                f"{row.method} {_format_gain(row.gain, row.gain_low, row.gain_high)}" for row in line_rows
            )
            yield f"{opening}; {first.why}, so no share of it can be told. Gains over {raw}: {gains}."


def format_share(row: GapRow) -> str:
    """A share with its interval."""
    if row.why:
        return "not known"
    return f"{format_hundredths(row.share)} ({format_hundredths(row.share_low)} to {format_hundredths(row.share_high)})"


def _format_gain(value: float, low: float, high: float) -> str:
    """A gain with its interval."""
    return f"{format_signed(value)} ({format_signed(low)} to {format_signed(high)})"


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
