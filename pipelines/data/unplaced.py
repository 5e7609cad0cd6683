"""A source without its places: what a model may take along of how its training images were found."""

from __future__ import annotations

from pipelines.data.sources import Files
from pipelines.loader.validation import to_plain
from privacy.message import Json

TECHNICAL = (
    *("Modality", "ImageType", "FrameType", "SeriesDescription", "ProtocolName", "SequenceName", "ScanningSequence"),
    *("DiffusionBValue", "EchoTime", "EffectiveEchoTime", "RepetitionTime", "MagneticFieldStrength", "Manufacturer"),
)
"""Keywords of `select` that cannot name anybody."""


def unplaced(source: Files) -> dict[str, Json]:
    """Its settings without folders, files and named patients, and of what selects DICOM files the technical words."""
    plain = to_plain(source)
    found = dict(plain) if isinstance(plain, dict) else {}
    found |= {key: "." for key in ("folder", "file", "table") if found.get(key) is not None}
    found |= {"where": {}} if "where" in found else {}
    masks = found.get("masks")
    found |= {"masks": {**masks, "folder": "."}} if isinstance(masks, dict) else {}
    select = found.get("select")
    if isinstance(select, dict):
        found["select"] = {keyword: text for keyword, text in select.items() if keyword in TECHNICAL}
    return found
