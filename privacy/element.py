"""One attribute that is no sequence: kept, replaced, emptied or removed."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from pydicom.datadict import dictionary_has_tag, dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.multival import MultiValue
from pydicom.tag import BaseTag

from privacy.actions import BIRTH, KEPT_BINARY, KEPT_TEXT, TABLE
from privacy.identifiers import Identifiers, texts
from privacy.shift import shifted_date, shifted_datetime, time_of_day, told_age

FREE = frozenset({"AE", "LO", "LT", "PN", "SH", "ST", "UC", "UR", "UT"})
CODES = {"FL": "f", "FD": "d", "SL": "i", "SS": "h", "UL": "I", "US": "H", "SV": "q", "UV": "Q", "AT": "I"}
NUMERIC = frozenset(CODES) - {"AT"} | {"US or SS"}
BINARY = frozenset({"OB", "OW", "OB or OW", "OF", "OD", "OL", "OV", "US or OW", "US or SS or OW"})
CODED = re.compile(r"[A-Z0-9 _]{0,16}")
LONGEST = 64
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
    """known: what must not remain. uid: the new UID of an old one. days: shift. kept: tags that an option retains."""

    known: Identifiers
    uid: Callable[[str], str]
    days: int
    times: bool
    kept: frozenset[int]


def cleaned(found: DataElement, rules: Rules) -> DataElement | None:
    """The element as it may leave, or None."""
    tag, group = int(found.tag), found.tag.group
    if group % 2 or 0x5000 <= group <= 0x60FF or found.tag.element == 0 or not dictionary_has_tag(tag):
        return None
    if found.VR == "UI":
        return _mapped(found, [rules.uid(text) for text in texts(found.value)])
    kept = _kept_time(found, rules) if found.VR in {"DA", "DT", "TM"} else None
    if kept is not None:
        return kept
    if tag in TABLE and tag not in rules.kept:
        return acted(found, TABLE[tag])
    if found.VR == "AS":
        return _mapped(found, [told_age(text) or "" for text in texts(found.value)]) if tag in rules.kept else None
    if unnamed(found, rules.known, free=tag in rules.kept):
        return DataElement(found.tag, found.VR, found.value)
    return acted(found, TABLE[tag]) if tag in TABLE else None


def lost(tag: BaseTag) -> DataElement | None:
    """What stands for a value that cannot be parsed."""
    if not dictionary_has_tag(tag) or int(tag) not in TABLE:
        return None
    vr = dictionary_VR(tag).split(" or ")[0]
    return None if vr in {"SQ", "UI"} else acted(DataElement(tag, vr, None), TABLE[int(tag)])


def acted(found: DataElement, action: str) -> DataElement | None:
    """The element after an action of the table: of two, the one that fits every IOD."""
    if "D" in action:
        return DataElement(found.tag, found.VR, _dummy(found.VR))
    return DataElement(found.tag, found.VR, None) if "Z" in action else None


def unnamed(found: DataElement, known: Identifiers, *, free: bool = False) -> bool:
    """Whether an element that the table does not name may stay. free: free text may, if it names nobody."""
    tag, vr = int(found.tag), str(found.VR)
    if vr in FREE:
        return (free or tag in KEPT_TEXT) and all(
            len(text) <= LONGEST and not known.within(text)
            for text in [*texts(found.value), "\\".join(texts(found.value))]
        )
    if vr == "CS":
        return all(CODED.fullmatch(text) and not known.within(text, shortest=4) for text in texts(found.value))
    if vr in {"DS", "IS"} or vr in NUMERIC:
        return numbers(found, known)
    if vr in BINARY and tag in KEPT_BINARY:
        return not isinstance(found.value, bytes) or not known.within(found.value.decode("latin-1"), shortest=5)
    return vr == "AT" and unspoken(found, known)


def numbers(found: DataElement, known: Identifiers) -> bool:
    """Whether a value is made of numbers, none of which is an identifier."""
    if isinstance(found.value, bytes):
        short = len(found.value) <= 8  # "US or SS", not yet told apart
        return short and not known.within(found.value.decode("latin-1"), shortest=4)
    return all(text == "" or _number(text, known) for text in texts(found.value)) and unspoken(found, known)


def unspoken(found: DataElement, known: Identifiers) -> bool:
    """Whether the bytes of binary numbers are no text that names somebody."""
    code = CODES.get(found.VR)
    if code is None or found.value is None:
        return True
    values = [found.value] if not isinstance(found.value, MultiValue | list) else list(found.value)
    if found.VR == "AT":
        values = [int(value) >> 16 | (int(value) & 0xFFFF) << 16 for value in values]  # group first, each its own bytes
    packed = (struct.pack(f"{order}{len(values)}{code}", *values) for order in "<>")
    return not any(known.within(data.decode("latin-1"), shortest=4) for data in packed)


def plain(found: DataElement, known: Identifiers) -> bool:
    """Whether a private element holds nothing but reasonable numbers, or a coded word."""
    if found.VR == "CS":
        return unnamed(found, known)
    if found.VR not in NUMERIC | {"DS", "IS"} or isinstance(found.value, bytes) or not numbers(found, known):
        return False
    return all(value == 0 or 1 / REASONABLE < abs(value) < REASONABLE for value in map(float, texts(found.value)))


def _number(text: str, known: Identifiers) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isinf(value) or math.isnan(value) or not known.among(value)


def _dummy(vr: str) -> object:
    if vr in NUMERIC:
        return 0
    return DUMMIES.get(vr, "REMOVED" if vr in FREE | {"CS"} else None)


def _kept_time(found: DataElement, rules: Rules) -> DataElement | None:
    """A date that was moved, or a time that may stay; None leaves it to the table."""
    if int(found.tag) in BIRTH or (found.VR == "TM" and not rules.times):
        return None
    moved = {
        "DA": lambda text: shifted_date(text, rules.days),
        "DT": lambda text: shifted_datetime(text, rules.days, times=rules.times),
        "TM": time_of_day,
    }[found.VR]
    values = [moved(text) if text else "" for text in texts(found.value)]
    whole = [value for value in values if value is not None]
    return _mapped(found, whole) if len(whole) == len(values) else None


def _mapped(found: DataElement, values: list[str]) -> DataElement:
    return DataElement(found.tag, found.VR, MultiValue(str, values) if len(values) > 1 else "".join(values) or None)
