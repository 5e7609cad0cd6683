"""Dates shifted by whole days, as DICOM writes them (PS3.5 6.2). A value that does not parse is removed: it may be any
text.

A date that everybody knows must not be shifted, because it would reveal the shift: placeholders (19000101), and dates
far from the study.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date, timedelta

DATE = re.compile(r"(\d{4})([.\-]?)(\d{2})\2(\d{2})")  # with dots: ACR-NEMA, before DICOM
DATETIME = re.compile(r"(\d{4})(\d{2})(\d{2})(\d{2}(?:\d{2}(?:\d{2}(?:\.\d{1,6})?)?)?)?(?:[+\-]\d{4})?")
TIME = re.compile(r"([01]\d|2[0-3]):?(?:[0-5]\d:?(?:(?:[0-5]\d|60)(?:\.\d{1,6})?)?)?")
AGE = re.compile(r"\d{3}[DWMY]")
FAR = 20 * 366  # days; patients' dates in an image are nearer to its study
FIRST, LAST = date(1901, 1, 2), date(2199, 12, 31)  # outside are placeholders
RESETS = {(1970, 1, 1), (1980, 1, 1), (2000, 1, 1)}  # of clocks
OLDEST = 90  # years; ages above 89 identify a person (45 CFR 164.514 (b)(2)(i)(C))


def is_plausible(day: date) -> bool:
    """Whether a day may be a patient's date and not a placeholder."""
    return FIRST <= day <= LAST and (day.year, day.month, day.day) != (1970, 1, 1)


def central_day(study: Collection[date], other_days: Collection[date]) -> date | None:
    """The central day of a file's dates: that of the study, else the median of all; None if there is none."""
    days = sorted(filter(is_plausible, study)) or sorted(filter(is_plausible, other_days))
    return days[(len(days) - 1) // 2] if days else None


def shifted_date(text: str, days: int, around: date | None) -> str | None:
    """YYYYMMDD, `days` later; None if the text is no date, or one that must not be shifted."""
    match = DATE.fullmatch(text.strip())
    return _shift_day(match[1], match[3], match[4], days, around) if match else None


def shifted_datetime(text: str, days: int, around: date | None, *, times: bool) -> str | None:
    """A DT `days` later, with its time of day or without; the time zone, which reveals a place, is left out.

    None if the text is no DT, less precise than a day, or must not be shifted.
    """
    match = DATETIME.fullmatch(text.strip())
    moved = _shift_day(match[1], match[2], match[3], days, around) if match else None
    if match is None or moved is None or not times or not match[4]:
        return moved
    return moved + match[4] if TIME.fullmatch(match[4]) else None


def time_of_day(text: str) -> str | None:
    """The time itself, if it is valid."""
    plain = text.strip()
    return plain if TIME.fullmatch(plain) else None


def capped_age(text: str) -> str | None:
    """An age of at most 90 years; None if the text is no age."""
    plain = text.strip()
    if not AGE.fullmatch(plain):
        return None
    years = int(plain[:3]) / {"D": 365.25, "W": 52.18, "M": 12, "Y": 1}[plain[3]]
    return f"{OLDEST:03d}Y" if years >= OLDEST else plain


def _shift_day(year: str, month: str, day: str, days: int, around: date | None) -> str | None:
    """The shifted day as YYYYMMDD; None if it is no day, or one that must not be shifted."""
    try:
        original_day = date(int(year), int(month), int(day))
        moved = original_day + timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    if around is None or not is_plausible(original_day) or abs((original_day - around).days) > FAR:
        return None
    if original_day != around and (original_day.year, original_day.month, original_day.day) in RESETS:
        return None
    return f"{moved.year:04d}{moved.month:02d}{moved.day:02d}"
