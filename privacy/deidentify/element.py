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
from privacy.deidentify.identifiers import SIGNIFICANT, Identifiers, texts
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


def cleaned(found: DataElement, rules: Rules) -> DataElement | None:
    """The element as it may leave, or None."""
    tag, group = int(found.tag), found.tag.group
    if group % 2 or 0x5000 <= group <= 0x60FF or found.tag.element == 0 or not dictionary_has_tag(tag):
        return None
    if found.VR == "UI":
        return _with_values(found, [rules.uid(text) for text in texts(found.value)])
    kept = _kept_time(found, rules) if found.VR in {"DA", "DT", "TM"} else None
    if kept is not None:
        return kept
    if tag in TABLE and tag not in rules.kept:
        return apply_action(found, TABLE[tag])
    if found.VR == "AS":
        return (
            _with_values(found, [capped_age(text) or "" for text in texts(found.value)]) if tag in rules.kept else None
        )
    if tag == IMAGE_TYPE and found.VR == "CS":
        return _clean_image_type(found, rules.known)
    if (tag != ICC or rules.colour) and may_stay_unlisted(found, rules.known, free=tag in rules.kept):
        return DataElement(found.tag, found.VR, found.value)
    if tag in ESSENTIAL and found.VR in NUMERIC | {"DS", "IS"}:
        refuse_numbers(found, rules.known)
    if tag in REPLACED_TEXT and found.VR in FREE:
        return apply_action(found, "D")
    return apply_action(found, TABLE[tag]) if tag in TABLE else None


def replacement_of_unparsable(tag: BaseTag) -> DataElement | None:
    """The replacement of a value that cannot be parsed."""
    if not dictionary_has_tag(tag) or int(tag) not in TABLE:
        return None
    vr = dictionary_VR(tag).split(" or ")[0]
    return None if vr in {"SQ", "UI"} else apply_action(DataElement(tag, vr, None), TABLE[int(tag)])


def apply_action(found: DataElement, action: str) -> DataElement | None:
    """The element after an action of the table: of two, the one that fits every IOD."""
    if "D" in action:
        return DataElement(found.tag, found.VR, _dummy(found.VR))
    return DataElement(found.tag, found.VR, None) if "Z" in action else None


def may_stay_unlisted(found: DataElement, known: Identifiers, *, free: bool = False) -> bool:
    """Whether an element that the table does not list may stay. free: free text may, if it contains no identifier."""
    tag, vr = int(found.tag), str(found.VR)
    if vr in FREE:
        return (free or tag in KEPT_TEXT) and all(
            len(text) <= LONGEST and not known.within(text)
            for text in [*texts(found.value), "\\".join(texts(found.value))]
        )
    if vr == "CS":
        return all(_coded(text, known) for text in texts(found.value)) or (
            tag in CLOSED and set(texts(found.value)) <= TERMS
        )
    if vr in {"DS", "IS"} or vr in NUMERIC:
        return numbers(found, known)
    if vr in BINARY and tag in KEPT_BINARY:
        return not isinstance(found.value, bytes) or not known.in_bytes(found.value, shortest=5)
    return vr == "AT" and free_of_identifiers(found, known)


def refuse_numbers(found: DataElement, known: Identifiers) -> None:
    """Refuse the file if an essential number is an identifier; a damaged number is none.

    Raises:
        NotDeidentifiable: `identifier`.
    """
    if isinstance(found.value, bytes) or any(_float(text) is None for text in texts(found.value) if text):
        return
    if not numbers(found, known):
        raise NotDeidentifiable(
            "identifier",
            f"({found.tag.group:04X},{found.tag.element:04X}), which the image needs, has the value of an identifier "
            "of the same file. Look which of the two is wrong.",
        )


def numbers(found: DataElement, known: Identifiers) -> bool:
    """Whether a value is made of numbers, none of which is an identifier, and neither are all digits together."""
    if isinstance(found.value, bytes):
        short = len(found.value) <= 8  # "US or SS", not yet decided
        return short and not known.in_bytes(found.value, shortest=4)
    parts = [text for text in texts(found.value) if text]
    digits = re.sub(r"\D", "", "".join(parts)).lstrip("0")[:LONGEST]
    telling = LONG_NUMBER if int(found.tag) in ESSENTIAL else SIGNIFICANT
    if found.VR in {"DS", "IS"} and len(digits) >= telling and known.among(int(digits)):
        return False
    return all(_number(text, known) for text in parts) and free_of_identifiers(found, known)


def free_of_identifiers(found: DataElement, known: Identifiers) -> bool:
    """Whether the bytes of binary numbers contain no identifier as text."""
    code = CODES.get(found.VR)
    if code is None or found.value is None:
        return True
    values = [found.value] if not isinstance(found.value, MultiValue | list) else list(found.value)
    if found.VR == "AT":
        values = [int(value) >> 16 | (int(value) & 0xFFFF) << 16 for value in values]  # group first, each its own bytes
    packed = (struct.pack(f"{order}{len(values)}{code}", *values) for order in "<>")
    return not any(known.in_bytes(data, shortest=4) for data in packed)


def plain(found: DataElement, known: Identifiers) -> bool:
    """Whether a private element contains nothing but plausible numbers, or a coded word.

    Raises:
        NotDeidentifiable: `identifier`, if one of the plausible numbers is an identifier.
    """
    if found.VR == "CS":
        return may_stay_unlisted(found, known)
    if found.VR not in NUMERIC | {"DS", "IS"} or isinstance(found.value, bytes):
        return False
    values = [_float(text) for text in texts(found.value)]
    if not all(value is not None and (value == 0 or 1 / REASONABLE < abs(value) < REASONABLE) for value in values):
        return False
    if not free_of_identifiers(found, known):  # text in place of numbers
        return False
    refuse_numbers(found, known)
    return True


def _coded(text: str, known: Identifiers) -> bool:
    return CODED.fullmatch(text) is not None and not known.within(text)


def _clean_image_type(found: DataElement, known: Identifiers) -> DataElement | None:
    """An image's type, without words that are identifiers."""
    values = [text if _usual(text, known) or _coded(text, known) else "REMOVED" for text in texts(found.value)]
    others = [text for text in values if not _usual(text, known)]
    return _with_values(found, values) if values and not known.within("_".join(others)) else None


def _usual(text: str, known: Identifiers) -> bool:
    return text in IMAGE_TYPES and text.lower() not in known.words


def _number(text: str, known: Identifiers) -> bool:
    value = _float(text)
    return value is not None and (math.isinf(value) or math.isnan(value) or not known.among(value))


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _dummy(vr: str) -> object:
    if vr in NUMERIC:
        return 0
    return DUMMIES.get(vr, "REMOVED" if vr in FREE | {"CS"} else None)


def _kept_time(found: DataElement, rules: Rules) -> DataElement | None:
    """A shifted date, or a time that may stay; None leaves it to the table."""
    if int(found.tag) in BIRTH | NOBODYS_TIMES or (found.VR == "TM" and not rules.times):
        return None
    moved = {
        "DA": lambda text: shifted_date(text, rules.days, rules.around),
        "DT": lambda text: shifted_datetime(text, rules.days, rules.around, times=rules.times),
        "TM": time_of_day,
    }[found.VR]
    values = [moved(text) if text else "" for text in texts(found.value)]
    whole = [value for value in values if value is not None]
    return _with_values(found, whole) if len(whole) == len(values) else None


def _with_values(found: DataElement, values: list[str]) -> DataElement:
    return DataElement(found.tag, found.VR, MultiValue(str, values) if len(values) > 1 else "".join(values) or None)
