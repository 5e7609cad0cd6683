"""Spellings of names, numbers and days: texts that mean the same to a reader are made equal here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from datetime import date
from itertools import permutations

# Letters that Unicode does not decompose, in the usual two spellings.
PLAIN = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ı": "i", "þ": "th", "ð": "d", "æ": "ae", "œ": "oe", "ħ": "h"})
LONG = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "đ": "dj", "ð": "dh", "ñ": "ny", "ё": "е", "ş": "sh"}
)
KATAKANA = {code: code - 0x60 for code in range(0x30A1, 0x30F7)}  # read as hiragana
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
GAP = r"[\W_]*"


def fold_text(text: str) -> str:
    """Text for comparison: lower case, no accents, one form of each character, no zero-width characters."""
    plain = unicodedata.normalize("NFKC", text).casefold().translate(PLAIN)
    parts = unicodedata.normalize("NFKD", plain)
    base_characters = "".join(part for part in parts if unicodedata.category(part) not in {"Mn", "Mc", "Me", "Cf"})
    return unicodedata.normalize("NFC", base_characters.casefold()).translate(PLAIN).translate(KATAKANA)


def list_spellings(text: str) -> set[str]:
    """The folded text with ü as u, and as ue."""
    if text.isascii():
        return {fold_text(text)}
    return {fold_text(text), fold_text(unicodedata.normalize("NFKC", text).casefold().translate(LONG))}


def compact_text(text: str) -> str:
    """Only the letters and digits of folded text: 12-34 56 and 123456 are one number."""
    return re.sub(r"[\W_]+", "", fold_text(text))


def split_parts(text: str) -> list[str]:
    """The words of folded text."""
    return [part for part in re.split(r"[\W_]+", text) if part]


def name_words(value: str, shortest: int) -> set[str]:
    """The words of a name; in another script also those of two characters."""
    return {
        part
        for text in list_spellings(value)
        for part in split_parts(text)
        if len(part) >= shortest or _is_foreign(part)
    }


def joined_names(value: str, common: frozenset[str]) -> set[str]:
    """Two parts of a person's name written as one word, in both orders: DEWIT, DeWitJan, annlee, 山田太郎.

    Pairs of common words are left out, and so are those of less than four letters.
    """
    joined_words = set()
    for group in value.split("="):
        for text in list_spellings(group.replace("^", "\0")):
            components = [split_parts(component) for component in text.split("\0")]
            units = dict.fromkeys(
                [word for words in components for word in words] + ["".join(words) for words in components if words]
            )
            pairs = [first + second for first, second in permutations(list(units)[:12], 2) if {first, second} - common]
            joined_words |= {
                *pairs,
                *("".join(words) for words in components if set(words) - common and len(words) > 1),
            }
    return {word for word in joined_words if len(word) >= 4 or (len(word) >= 2 and not word.isascii())}


def number_forms(value: str) -> set[str]:
    """A number as written, without leading zeros, and the runs of digits in it, from five characters on."""
    compact_form = compact_text(value)
    runs = {compact_form, *re.findall(r"\d+", fold_text(value))}
    return {form for run in runs for form in (run, run.lstrip("0")) if len(form) >= 5 and form.strip("0")}


def days_of(value: str) -> set[date]:
    """The days that a date's value may mean; a malformed one may mean two."""
    match = re.match(r"\s*(\d{4})[.\-/:]?(\d{1,2})[.\-/:]?(\d{1,2})", value)
    if match:
        return set(_list_valid_days((match[1], match[2], match[3])))
    match = re.match(r"\s*(\d{1,2})[.\-/: ](\d{1,2})[.\-/: ](\d{4})", value)
    return set(_list_valid_days((match[3], match[2], match[1]), (match[3], match[1], match[2]))) if match else set()


def day_digits(day: date) -> set[str]:
    """A day as eight digits, in the three usual orders."""
    return {f"{day:{form}}".zfill(8) for form in ("%Y%m%d", "%d%m%Y", "%m%d%Y")}


def day_pattern(day: date) -> str:
    """A pattern of a day in folded text: 07MAY2019, May 7, 2019, 7.5.2019, 5/7/19, 190507 as a word of its own."""
    month = MONTHS[day.month - 1] + "[a-z]*"
    d, m, year, short = f"0?{day.day}", f"0?{day.month}", f"{day.year:04d}", f"{day.year % 100:02d}"
    dd, mm, any_year = f"{day.day:02d}", f"{day.month:02d}", f"(?:{day.year // 100:02d})?{day.year % 100:02d}"
    gap = r"[\W_]{1,2}"
    spelled = [f"{d}{GAP}{month}{GAP}{any_year}", f"{month}{GAP}{d}{GAP}{year}", f"{any_year}{GAP}{month}{GAP}{dd}"]
    separated = [gap.join(order) for y in (year, short) for order in ((d, m, y), (m, d, y), (y, m, d))]
    closed = ["".join(order) for order in ((short, mm, dd), (dd, mm, short), (mm, dd, short))]
    return rf"(?<!\d)(?:{'|'.join([*spelled, *separated])})(?!\d)|(?<![0-9a-z])(?:{'|'.join(closed)})(?![0-9a-z])"


def _is_foreign(word: str) -> bool:
    """Whether a word of two or more characters is not all ASCII."""
    return len(word) >= 2 and not word.isascii()


def _list_valid_days(*candidates: tuple[str, str, str]) -> Iterator[date]:
    """The dates among these (year, month, day); impossible ones are left out."""
    for year, month, day in candidates:
        try:
            yield date(int(year), int(month), int(day))
        except ValueError:
            continue
