"""Words on the pages: names of examples and studies, and numbers, sizes and times as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

READABLE, LISTED = 12, 9
"""Names that are all listed; how many are where there are more."""


@dataclass(frozen=True)
class Words:
    """Names of an example and of a study, singular and plural. looked_at: whether an example is a picture. length: the
    unit of distances. unit: of the number that is predicted; empty = none, or none is.
    """

    example: str = "image"
    examples: str = "images"
    study: str = "study"
    studies: str = "studies"
    looked_at: bool = True
    length: str = "mm"
    unit: str = ""


def format_value(value: float, form: str) -> str:
    """A number by a format of Python's, with a true minus; an en dash for NaN and infinity. Every number on a page that
    may be negative is written here: what is rounded to zero has no sign, neither − nor +.
    """
    if not math.isfinite(value):
        return "–"
    text = f"{value:{form}}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


format_number = partial(format_value, form=".3f")
"""Three decimals."""
format_signed = partial(format_value, form="+.3f")
"""Three decimals with a sign."""
format_hundredths = partial(format_value, form=".2f")
"""Two decimals."""
format_figures = partial(format_value, form=".4g")
"""Four significant figures."""


def format_decibel(value: float) -> str:
    """One decimal; "∞" where two images are equal."""
    return "∞" if value == math.inf else format_value(value, ".1f")


def format_estimate(value: float, low: float, high: float, write: Callable[[float], str] = format_number) -> str:
    """A value with its interval in brackets."""
    return f"{write(value)} ({write(low)} to {write(high)})"


def format_whole(value: int) -> str:
    """An integer, thousands set apart by a thin space."""
    return f"{value:,}".replace(",", "\u202f")


def format_size(value: int) -> str:
    """Bytes in decimal units (IEC 80000-13: 1 kB = 1000 B)."""
    power = min(3, max(0, (len(str(value)) - 1) // 3))
    amount = value / 1000**power
    digits = 0 if power == 0 or amount >= 100 else 1
    return f"{amount:.{digits}f}\u202f{('B', 'kB', 'MB', 'GB')[power]}"


def format_duration(seconds: float) -> str:
    """Seconds as "4.2 s", "3 min 05 s" or "2 h 10 min"."""
    if not math.isfinite(seconds):
        return "–"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_moment(text: str) -> str:
    """An ISO time as "21 November 2026, 12:07 UTC"; any other text as it is."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = f" {when.tzname()}" if when.tzinfo else ""
    return f"{when.day} {when:%B %Y, %H:%M}{zone}"


def format_count(value: int, singular: str, plural: str) -> str:
    """A number and its noun, singular or plural."""
    return f"{format_whole(value)} {singular if value == 1 else plural}"


def format_span(pair: tuple[int, int], write: Callable[[int], str] = format_whole) -> str:
    """A number, or the least and the most of several."""
    least, most = map(write, pair)
    return least if pair[0] == pair[1] else f"{least} – {most}"


def format_list(names: Sequence[str]) -> str:
    """Names, separated by commas; of more than can be read the first, and how many others there are."""
    if len(names) <= READABLE:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED])} and {format_whole(len(names) - LISTED)} others"
