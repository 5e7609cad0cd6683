"""One attribute that is no sequence: kept, replaced, emptied or removed."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from pydicom.datadict import dictionary_has_tag, dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.multival import MultiValue
from pydicom.tag import BaseTag

from privacy.deidentify.actions import (
    BIRTH,
    CLOSED,
    ESSENTIAL,
    IMAGE_TYPES,
    KEPT_BINARY,
    KEPT_TEXT,
    NOBODYS_TIMES,
    REPLACED_TEXT,
    TABLE,
    TERMS,
)
from privacy.deidentify.identifiers import SIGNIFICANT, Identifiers, list_texts
from privacy.deidentify.profile import NotDeidentifiable
from privacy.deidentify.shift import capped_age, shifted_date, shifted_datetime, time_of_day

FREE = frozenset({"AE", "LO", "LT", "PN", "SH", "ST", "UC", "UR", "UT"})
CODES = {"FL": "f", "FD": "d", "SL": "i", "SS": "h", "UL": "I", "US": "H", "SV": "q", "UV": "Q", "AT": "I"}
NUMERIC = frozenset(CODES) - {"AT"} | {"US or SS"}
BINARY = frozenset({"OB", "OW", "OB or OW", "OF", "OD", "OL", "OV", "US or OW", "US or SS or OW"})
CODED = re.compile(r"[A-Z0-9 _]{0,16}")
LONGEST = 64
LONG_NUMBER = 8  # digits; an orientation 1, 0, 0, 0, 1, 0 is the number 100010, and should not be refused
ICC, IMAGE_TYPE = 0x00282000, 0x00080008
REASONABLE = 1e12  # of a private number; eight letters read as a float are far beyond, or far below
DUMMIES = {
    "AS": "000Y",
    "DA": "19000101",
    "DT": "19000101",
    "TM": "000000",
    "UR": "http://removed.invalid",
    "OB": b"\0\0",
    "UN": b"\0\0",
    "DS": "0",
    "IS": "0",
}


@dataclass(frozen=True)
class Rules:
    """known: identifiers that must not remain. uid: the new UID of an old one. kept: tags that an option retains.

    days: shift of dates near the day `around`; others are not kept. colour: whether an ICC profile is used.
    """

    known: Identifiers
    uid: Callable[[str], str]
    days: int
    times: bool
    kept: frozenset[int]
    around: date | None
    colour: bool


def clean_element(original: DataElement, rules: Rules) -> DataElement | None:
    """The element as it may leave, or None."""
    tag, group = int(original.tag), original.tag.group
    if group % 2 or 0x5000 <= group <= 0x60FF or original.tag.element == 0 or not dictionary_has_tag(tag):
        return None
    if original.VR == "UI":
        return _with_values(original, [rules.uid(text) for text in list_texts(original.value)])
    kept_time = _kept_time(original, rules) if original.VR in {"DA", "DT", "TM"} else None
    if kept_time is not None:
        return kept_time
    if tag in TABLE and tag not in rules.kept:
        return apply_action(original, TABLE[tag])
    if original.VR == "AS":
        return (
            _with_values(original, [capped_age(text) or "" for text in list_texts(original.value)])
            if tag in rules.kept
            else None
        )
    if tag == IMAGE_TYPE and original.VR == "CS":
        return _clean_image_type(original, rules.known)
    if (tag != ICC or rules.colour) and may_stay_unlisted(original, rules.known, free=tag in rules.kept):
        return DataElement(original.tag, original.VR, original.value)
    if tag in ESSENTIAL and original.VR in NUMERIC | {"DS", "IS"}:
        refuse_numbers(original, rules.known)
    if tag in REPLACED_TEXT and original.VR in FREE:
        return apply_action(original, "D")
    return apply_action(original, TABLE[tag]) if tag in TABLE else None


def replacement_of_unparsable(tag: BaseTag) -> DataElement | None:
    """The replacement of a value that cannot be parsed."""
    if not dictionary_has_tag(tag) or int(tag) not in TABLE:
        return None
    vr = dictionary_VR(tag).split(" or ")[0]
    return None if vr in {"SQ", "UI"} else apply_action(DataElement(tag, vr, None), TABLE[int(tag)])


def apply_action(original: DataElement, action: str) -> DataElement | None:
    """The element after an action of the table; of two allowed actions, the one that keeps the file valid in every
    IOD.
    """
    if "D" in action:
        return DataElement(original.tag, original.VR, _dummy_value(original.VR))
    return DataElement(original.tag, original.VR, None) if "Z" in action else None


def may_stay_unlisted(original: DataElement, known: Identifiers, *, free: bool = False) -> bool:
    """Whether an element that the table does not list may stay. free: free text may, if it contains no identifier."""
    tag, vr = int(original.tag), str(original.VR)
    if vr in FREE:
        return (free or tag in KEPT_TEXT) and all(
            len(text) <= LONGEST and not known.within(text)
            for text in [*list_texts(original.value), "\\".join(list_texts(original.value))]
        )
    if vr == "CS":
        return all(_is_coded_word(text, known) for text in list_texts(original.value)) or (
            tag in CLOSED and set(list_texts(original.value)) <= TERMS
        )
    if vr in {"DS", "IS"} or vr in NUMERIC:
        return is_made_of_numbers(original, known)
    if vr in BINARY and tag in KEPT_BINARY:
        return not isinstance(original.value, bytes) or not known.in_bytes(original.value, shortest=5)
    return vr == "AT" and free_of_identifiers(original, known)


def refuse_numbers(original: DataElement, known: Identifiers) -> None:
    """Refuse the file if an essential number is an identifier; a damaged number is none.

    Raises:
        NotDeidentifiable: `identifier`.
    """
    if isinstance(original.value, bytes) or any(
        _parse_float(text) is None for text in list_texts(original.value) if text
    ):
        return
    if not is_made_of_numbers(original, known):
        raise NotDeidentifiable(
            "identifier",
            f"({original.tag.group:04X},{original.tag.element:04X}), which the image needs, has the value of an"
            " identifier of the same file. Look which of the two is wrong.",
        )


def is_made_of_numbers(original: DataElement, known: Identifiers) -> bool:
    """Whether a value is made of numbers, none of which is an identifier, and neither are all digits together."""
    if isinstance(original.value, bytes):
        short = len(original.value) <= 8  # "US or SS", not yet decided
        return short and not known.in_bytes(original.value, shortest=4)
    parts = [text for text in list_texts(original.value) if text]
    digits = re.sub(r"\D", "", "".join(parts)).lstrip("0")[:LONGEST]
    telling = LONG_NUMBER if int(original.tag) in ESSENTIAL else SIGNIFICANT
    if original.VR in {"DS", "IS"} and len(digits) >= telling and known.is_identifier(int(digits)):
        return False
    return all(_is_number(text, known) for text in parts) and free_of_identifiers(original, known)


def free_of_identifiers(original: DataElement, known: Identifiers) -> bool:
    """Whether the bytes of binary numbers contain no identifier as text."""
    code = CODES.get(original.VR)
    if code is None or original.value is None:
        return True
    values = [original.value] if not isinstance(original.value, MultiValue | list) else list(original.value)
    if original.VR == "AT":
        values = [int(value) >> 16 | (int(value) & 0xFFFF) << 16 for value in values]  # group first, each its own bytes
    packed = (struct.pack(f"{order}{len(values)}{code}", *values) for order in "<>")
    return not any(known.in_bytes(data, shortest=4) for data in packed)


def is_plain(original: DataElement, known: Identifiers) -> bool:
    """Whether a private element contains nothing but plausible numbers, or a coded word.

    Raises:
        NotDeidentifiable: `identifier`, if one of the plausible numbers is an identifier.
    """
    if original.VR == "CS":
        return may_stay_unlisted(original, known)
    if original.VR not in NUMERIC | {"DS", "IS"} or isinstance(original.value, bytes):
        return False
    values = [_parse_float(text) for text in list_texts(original.value)]
    if not all(value is not None and (value == 0 or 1 / REASONABLE < abs(value) < REASONABLE) for value in values):
        return False
    if not free_of_identifiers(original, known):  # text in place of numbers
        return False
    refuse_numbers(original, known)
    return True


def _is_coded_word(text: str, known: Identifiers) -> bool:
    """Whether a text has the form of a coded word and contains no identifier."""
    return CODED.fullmatch(text) is not None and not known.within(text)


def _clean_image_type(original: DataElement, known: Identifiers) -> DataElement | None:
    """An image's type, without words that are identifiers."""
    values = [
        text if _is_usual(text, known) or _is_coded_word(text, known) else "REMOVED"
        for text in list_texts(original.value)
    ]
    unusual = [text for text in values if not _is_usual(text, known)]
    return _with_values(original, values) if values and not known.within("_".join(unusual)) else None


def _is_usual(text: str, known: Identifiers) -> bool:
    """Whether a text is a usual word of image types and not, as a whole, an identifier."""
    return text in IMAGE_TYPES and text.lower() not in known.words


def _is_number(text: str, known: Identifiers) -> bool:
    """Whether a text is a number that is no identifier; infinity and NaN are numbers."""
    value = _parse_float(text)
    return value is not None and (math.isinf(value) or math.isnan(value) or not known.is_identifier(value))


def _parse_float(text: str) -> float | None:
    """The number that a text states; None if it states none."""
    try:
        return float(text)
    except ValueError:
        return None


def _dummy_value(vr: str) -> object:
    """The table's dummy value for a value representation; None if it has none."""
    if vr in NUMERIC:
        return 0
    return DUMMIES.get(vr, "REMOVED" if vr in FREE | {"CS"} else None)


def _kept_time(original: DataElement, rules: Rules) -> DataElement | None:
    """A shifted date, or a time that may stay; None leaves it to the table."""
    if int(original.tag) in BIRTH | NOBODYS_TIMES or (original.VR == "TM" and not rules.times):
        return None
    moved = {
        "DA": lambda text: shifted_date(text, rules.days, rules.around),
        "DT": lambda text: shifted_datetime(text, rules.days, rules.around, times=rules.times),
        "TM": time_of_day,
    }[original.VR]
    values = [moved(text) if text else "" for text in list_texts(original.value)]
    complete = [value for value in values if value is not None]
    return _with_values(original, complete) if len(complete) == len(values) else None


def _with_values(original: DataElement, values: list[str]) -> DataElement:
    """The same element with other text values; empty if there are none."""
    return DataElement(
        original.tag, original.VR, MultiValue(str, values) if len(values) > 1 else "".join(values) or None
    )
