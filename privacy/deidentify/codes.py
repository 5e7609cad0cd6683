"""Coded entries (PS3.3 8.8): a code of a public scheme stays; any other may contain any text and becomes "Unknown".

It is replaced by a standard code, because an item without a code is invalid where the standard requires one.
"""

from __future__ import annotations

from pydicom.dataset import Dataset

from privacy.deidentify.actions import PUBLIC_SCHEMES, parse_tags

UNKNOWN = "261665006"  # of SNOMED CT, as PS3.16 uses it
CODE = parse_tags("CodeValue LongCodeValue URNCodeValue CodeMeaning")
SCHEME = parse_tags("CodingSchemeDesignator CodingSchemeVersion")
CONTEXT = parse_tags(
    "ContextIdentifier ContextUID MappingResource MappingResourceUID MappingResourceName ContextGroupVersion "
    "ContextGroupExtensionFlag ContextGroupLocalVersion ContextGroupExtensionCreatorUID EquivalentCodeSequence"
)


def unknown_code() -> Dataset:
    """A coded entry with the code "Unknown"."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = UNKNOWN, "SCT", "Unknown"
    return item


def make_public(original: Dataset, cleaned: Dataset) -> None:
    """Leave `cleaned` alone if its code is of a public scheme and complete; otherwise make its code the unknown one.

    original: the item before cleaning. A scheme that is not public is removed even if there is no code.
    """
    code = CODE & set(map(int, original.keys()))
    if not code and not SCHEME & set(map(int, original.keys())):
        return
    public = str(cleaned.get("CodingSchemeDesignator")) in PUBLIC_SCHEMES
    if public and all(tag in cleaned and cleaned[tag].value for tag in code):
        return
    for tag in CODE | SCHEME | CONTEXT:
        cleaned.pop(tag, None)
    if code:
        cleaned.update(unknown_code())
