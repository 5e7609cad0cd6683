"""What of a patient's and a study's identity may leave the hospital: a keyed pseudonym, and a few headers.

Pseudonyms are HMAC-SHA256 (RFC 2104): without the key nobody can test whether a known identifier is in a cohort, which
a plain hash would allow. Headers pass by an allow-list; whatever is not on it is not read into a study's facts.
"""

from __future__ import annotations

from collections.abc import Mapping

from privacy.deidentify.keyed import normalized as normalized
from privacy.deidentify.keyed import pseudonym as pseudonym

LONGEST_TEXT = 64  # as DICOM's LO allows

TEXT_HEADERS = ("Modality", "Manufacturer", "ManufacturerModelName", "SoftwareVersions")
NUMBER_HEADERS = ("MagneticFieldStrength", "SliceThickness", "SpacingBetweenSlices", "EchoTime", "RepetitionTime")
ALLOWED_HEADERS = TEXT_HEADERS + NUMBER_HEADERS
VENDORS = (
    "Siemens", "GE", "Philips", "Canon", "Toshiba", "Hitachi", "Fujifilm", "United Imaging", "UIH", "Bruker", "Esaote",
    "Hologic", "Agfa", "Carestream", "Samsung", "Mindray", "Neusoft", "Varian", "Elekta", "Hyperfine",
    "Nordlicht Medical", "Meridian Imaging", "Solstice Systems",  # the phantom's
)  # fmt: skip


def allowed_facts(headers: Mapping[str, object]) -> dict[str, str | float]:
    """Those DICOM headers (keyword -> value) that may be kept; nothing in them tells a patient, a time or a place."""
    facts: dict[str, str | float] = {}
    for keyword in TEXT_HEADERS:
        text = " ".join(str(headers.get(keyword) or "").split())[:LONGEST_TEXT]
        if text:
            facts[keyword] = text
    for keyword in NUMBER_HEADERS:
        try:
            facts[keyword] = float(str(headers[keyword]))
        except (KeyError, ValueError):
            continue
    return facts


def scanner(facts: Mapping[str, str | float]) -> str:
    """Vendor and field strength, "Siemens 3 T": what may be counted and told of a scanner.

    Vendors come from a list and all else is a number: a header field is free text, and a name that someone typed into
    it must not leave the hospital by way of a scanner's model.
    """
    words = f" {facts.get('Manufacturer', '')} ".lower().replace(",", " ").replace(".", " ").replace("_", " ")
    vendor = next((vendor for vendor in VENDORS if f" {vendor.lower()} " in words), "unknown")
    tesla = facts.get("MagneticFieldStrength")
    return f"{vendor} {round(tesla, 1):g} T" if isinstance(tesla, float) and 0 < tesla < 30 else vendor
