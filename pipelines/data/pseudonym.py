"""The identity of a patient and study that may leave the hospital: a keyed pseudonym, and a few headers.

Pseudonyms are HMAC-SHA256 (RFC 2104): without the key nobody can test whether a known identifier is in a cohort, which
a plain hash would allow. Only headers on an allow-list are read into a study's facts.
"""

from __future__ import annotations

from collections.abc import Mapping

from privacy.deidentify.keyed import make_pseudonym as make_pseudonym
from privacy.deidentify.keyed import normalize_identifier as normalize_identifier

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
    """The DICOM headers (keyword -> value) that may be kept; none of them identifies a patient, a time or a place."""
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


def describe_scanner(facts: Mapping[str, str | float]) -> str:
    """Vendor and field strength, "Siemens 3 T": the description of a scanner that may be counted and shown.

    The vendor comes from a list and the rest is a number: a header field is free text, and a name that someone typed
    into it must not leave the hospital as a scanner's model.
    """
    words = f" {facts.get('Manufacturer', '')} ".lower().replace(",", " ").replace(".", " ").replace("_", " ")
    vendor = next((vendor for vendor in VENDORS if f" {vendor.lower()} " in words), "unknown")
    tesla = facts.get("MagneticFieldStrength")
    return f"{vendor} {round(tesla, 1):g} T" if isinstance(tesla, float) and 0 < tesla < 30 else vendor
