"""Give a header's elements the value representation (VR) of the standard's dictionary, PS3.6.

Some archives write a patient's identifier or an age with another VR. A result that copies such an element would break
the standard, and some archives refuse it.
"""

from __future__ import annotations

from typing import Any

from pydicom import config
from pydicom.datadict import dictionary_VR
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue
from pydicom.tag import BaseTag
from pydicom.valuerep import format_number_as_ds, validate_value

WORDS = frozenset({"LO", "LT", "PN", "SH", "ST", "UC", "UT"})
"""VRs of free text: whatever text an element had is kept, also if it is too long."""
CODED = frozenset({"AE", "AS", "CS", "DA", "DS", "DT", "IS", "TM", "UI", "UR"})
WHOLE = frozenset({"SL", "SS", "SV", "UL", "US", "UV"})
REAL = frozenset({"FD", "FL"})


def with_dictionary_vrs(header: Dataset) -> Dataset:
    """The same header, changed in place, at every depth: an element of another VR gets the dictionary's.

    Its value is kept as text or number; where it is no value of that VR, the element is left out. Private and unknown
    elements stay.
    """
    for tag in list(header.keys()):
        allowed = _allowed_vrs(tag)
        if allowed and header.get_item(tag).VR not in (None, *allowed):  # None: implicit, the dictionary's anyway
            element = header[tag]  # what is UN, pydicom reads by the dictionary
            if element.VR not in allowed:
                del header[tag]
                if (value := _convert_value(element, allowed[0])) is not None:
                    header.add(DataElement(tag, allowed[0], value, validation_mode=config.IGNORE))
        if allowed == ("SQ",) and tag in header:
            for item in header[tag].value or []:
                with_dictionary_vrs(item)
    return header


def _allowed_vrs(tag: BaseTag) -> tuple[str, ...]:
    """The VRs that the dictionary allows for a tag; () if it is private or unknown."""
    try:
        return () if tag.is_private else tuple(str(dictionary_VR(tag)).split(" or "))
    except KeyError:
        return ()


def _convert_value(element: DataElement, vr: str) -> list[Any] | str | None:
    """The element's value in another VR; "" if it is empty, None if it has no such value."""
    if vr == "SQ" or element.VR == "SQ":
        return None
    if element.is_empty:
        return ""
    values = list(element.value) if isinstance(element.value, MultiValue | list) else [element.value]
    try:
        texts = [
            value.decode("ascii").strip(" \0") if isinstance(value, bytes) else str(value).strip() for value in values
        ]
        if vr in WORDS:
            return texts
        if vr in CODED:
            texts = [format_number_as_ds(float(text)) if vr == "DS" and len(text) > 16 else text for text in texts]
            for text in texts:
                validate_value(vr, text, config.RAISE)
            return texts
        return [int(text) for text in texts] if vr in WHOLE else [float(text) for text in texts] if vr in REAL else None
    except ValueError:
        return None
