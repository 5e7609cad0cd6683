"""The coded concepts of classes: SNOMED CT if DICOM's context groups have the class, else a scheme of our own.

Categories are those of PS3.16 CID 7150, types those of CID 7160 (prostate), 7159 (lesion), 4209 (optic nerve head) and
6300 (zones of the prostate). PS3.16 has no code for the optic cup.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from pydicom.sr.codedict import codes
from pydicom.sr.coding import Code

SCHEME = "99CONSILIUM"
"""Designator of our own scheme: a code is a class' name, or 16 letters of its hash where the name is longer."""
SCHEME_NAME = "Names of classes and scores in Consilium"
LONGEST_CODE = 16  # characters of a code value, PS3.5 table 6.2-1 (SH)
LONGEST_MEANING = 64  # (LO)
TISSUE = codes.SCT.AnatomicalStructure
ABNORMAL = codes.SCT.MorphologicallyAbnormalStructure


class Concept(NamedTuple):
    """The content of a segment. category, kind: SegmentedPropertyCategory and SegmentedPropertyType."""

    category: Code
    kind: Code


KNOWN = {
    "prostate": Concept(TISSUE, codes.SCT.Prostate),
    "gland": Concept(TISSUE, codes.SCT.Prostate),
    "peripheral_zone": Concept(TISSUE, codes.SCT.PeripheralZoneOfTheProstate),
    "transition_zone": Concept(TISSUE, codes.SCT.TransitionZoneOfTheProstate),
    "lesion": Concept(ABNORMAL, codes.SCT.Lesion),
    "disc": Concept(TISSUE, codes.SCT.OpticNerveHead),
    "optic_disc": Concept(TISSUE, codes.SCT.OpticNerveHead),
}


def class_concept(name: str) -> Concept:
    """The concept of a class name, in any case. An unknown name gets a code of the scheme 99CONSILIUM."""
    plain = name.strip().lower()
    if plain in KNOWN:
        return KNOWN[plain]
    code = plain if len(plain) <= LONGEST_CODE else hashlib.sha256(plain.encode()).hexdigest()[:LONGEST_CODE]
    return Concept(TISSUE, Code(code, SCHEME, plain[:LONGEST_MEANING]))
