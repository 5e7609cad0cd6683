"""What harmonization did, in the first sentences of a page: what acted and what it is worth, what was refused and why.

The share of the oracle gap that a line closes (`evaluation.gap_rows`) is told where patients can be imaged by another
scanner, in simulations; the gain at hospitals outside wherever there are any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from evaluation.harmony import Harmony
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN, GapRow, ScoreRow
from evaluation.wording import hundredths, signed

REMEDY = (
    "What helps: a translator that no patient shapes (harmonize.translate: randomized), other images to imitate "
    "(harmonize.synthesis), more patients; or, if you know that what the veto measured does no harm, wider limits "
    "(harmonize.veto)."
)


def harmonized(
    harmony: Harmony | None,
    shares: Sequence[GapRow],
    spaces: Mapping[str, str],
    outside: Sequence[ScoreRow] = (),
    untreated: str = "",
) -> tuple[str, ...]:
    """The sentences; none without harmonization. spaces: method -> space of images. untreated: as in `RunPage`."""
    if harmony is None:
        return ()
    return (*_worth(shares), *_beyond(outside, untreated), *_refused(harmony, spaces))


def whole(shares: Sequence[GapRow]) -> list[GapRow]:
    """The rows over all hospitals, or of the only one: the mean if there is one."""
    held = {row.protocol for row in shares}
    chosen = next((name for name in (PRIVATE_MEAN, OVERALL, PRIVATE) if name in held), "")
    return [row for row in shares if row.protocol == chosen]


def _worth(shares: Sequence[GapRow]) -> Iterator[str]:
    rows = whole(shares)
    for raw in dict.fromkeys(row.untranslated for row in rows):
        own = [row for row in rows if row.untranslated == raw]
        first = own[0]
        gap = _between(first.gap, first.gap_low, first.gap_high)
        there = f"The same patients on one scanner ({first.oracle}) would gain {gap} {first.measure} over {raw}"
        closed = [f"{row.method} {told(row)}" for row in own if not row.why]
        if closed:
            yield f"{there}. Of this gap are closed: {'; '.join(closed)}."
        else:
            gains = "; ".join(f"{row.method} {_between(row.gain, row.gain_low, row.gain_high)}" for row in own)
            yield f"{there}; {first.why}, so no share of it can be told. Gains over {raw}: {gains}."


def told(row: GapRow) -> str:
    """A share with its interval."""
    if row.why:
        return "not known"
    return f"{hundredths(row.share)} ({hundredths(row.share_low)} to {hundredths(row.share_high)})"


def _between(value: float, low: float, high: float) -> str:
    return f"{signed(value)} ({signed(low)} to {signed(high)})"


def _beyond(outside: Sequence[ScoreRow], untreated: str) -> Iterator[str]:
    measure = outside[0].measure if outside else ""
    protocol = OUTSIDE_MEAN if any(row.protocol == OUTSIDE_MEAN for row in outside) else OUTSIDE
    gains = [
        f"{row.method} {_between(row.gain, row.gain_low, row.gain_high)}"
        for row in outside
        if row.protocol == protocol and row.measure == measure and row.method != untreated and math.isfinite(row.gain)
    ]
    if untreated and gains:
        yield f"Hospitals outside gain over {untreated}, in {measure}: {'; '.join(gains)}."


def _refused(harmony: Harmony, spaces: Mapping[str, str]) -> Iterator[str]:
    refused = [row for row in harmony.rows if row.vetoed]
    for space in dict.fromkeys(row.space for row in refused):
        by = "; ".join(f"{row.site} ({', '.join(row.reasons)})" for row in refused if row.space == space)
        learns = [method for method, own in spaces.items() if own == space]
        there = f"{' and '.join(learns)} learns there from" if learns else "methods there learn from"
        yield f"The translation {space} is refused at {by}: {there} images as they were read."
    if refused:
        yield REMEDY
