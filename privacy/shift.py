"""Dates moved by whole days, as DICOM writes them (PS3.5 6.2). What does not parse is not kept: it may be anything."""

from __future__ import annotations

import re
from datetime import date, timedelta

DATE = re.compile(r"(\d{4})([.\-]?)(\d{2})\2(\d{2})")  # with dots: ACR-NEMA, before DICOM
DATETIME = re.compile(r"(\d{4})(\d{2})(\d{2})(\d{2}(?:\d{2}(?:\d{2}(?:\.\d{1,6})?)?)?)?(?:[+\-]\d{4})?")
TIME = re.compile(r"([01]\d|2[0-3]):?(?:[0-5]\d:?(?:(?:[0-5]\d|60)(?:\.\d{1,6})?)?)?")
AGE = re.compile(r"\d{3}[DWMY]")
OLDEST = 90  # years; above 89 an age tells who it is (45 CFR 164.514 (b)(2)(i)(C))


def shifted_date(text: str, days: int) -> str | None:
    """YYYYMMDD, `days` later; None if the text is no date."""
    match = DATE.fullmatch(text.strip())
    return _moved(match[1], match[3], match[4], days) if match else None


def shifted_datetime(text: str, days: int, *, times: bool) -> str | None:
    """A DT `days` later, with its time of day or without; the time zone, which tells a place, is left out.

    None if the text is no DT, or less precise than a day.
    """
    match = DATETIME.fullmatch(text.strip())
    moved = _moved(match[1], match[2], match[3], days) if match else None
    if match is None or moved is None or not times or not match[4]:
        return moved
    return moved + match[4] if TIME.fullmatch(match[4]) else None


def time_of_day(text: str) -> str | None:
    """The time itself, if it is one."""
    plain = text.strip()
    return plain if TIME.fullmatch(plain) else None


def told_age(text: str) -> str | None:
    """An age of at most 90 years; None if the text is no age."""
    plain = text.strip()
    if not AGE.fullmatch(plain):
        return None
    years = int(plain[:3]) / {"D": 365.25, "W": 52.18, "M": 12, "Y": 1}[plain[3]]
    return f"{OLDEST:03d}Y" if years >= OLDEST else plain


def _moved(year: str, month: str, day: str, days: int) -> str | None:
    try:
        moved = date(int(year), int(month), int(day)) + timedelta(days=days)
    except (ValueError, OverflowError):
        return None
    return f"{moved.year:04d}{moved.month:02d}{moved.day:02d}"
