"""The header of a translated DICOM image: its pixels' coding and meaning, its identity, and its derivation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydicom.dataset import Dataset
from pydicom.uid import ExplicitVRLittleEndian

from pipelines.data.adc import PATTERN
from pipelines.data.dicom.frames import PER_FRAME, SHARED, list_macros, transform_of
from pipelines.data.dicom.stored_values import find_rescale, scale_vendor_slopes
from pipelines.data.quantity import HEADERS, decide_from_headers
from pipelines.data.writing.coding import Coding, Whole
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, as_bytes
from privacy.deidentify.identifiers import find_identifiers
from privacy.deidentify.keyed import new_uid
from privacy.deidentify.layouts import Layout
from privacy.deidentify.leftovers import find_leftovers
from privacy.deidentify.quiet import silence_warnings
from privacy.deidentify.stored_values import PADDING_ENDS, RESCALE

LONGEST_NUMBER = 99999
NOTICE = "For research use only, not for diagnosis."
UNTRUE = (  # of the old pixels
    *("SmallestImagePixelValue", "LargestImagePixelValue", "SmallestPixelValueInSeries", "LargestPixelValueInSeries"),
    *("SmallestImagePixelValueInPlane", "LargestImagePixelValueInPlane"),
)
OPTIONAL = (  # sequences that de-identification empties, but that must not be empty if present
    *("ReferencedStudySequence", "ReferencedPatientSequence", "ReferencedPerformedProcedureStepSequence"),
    *("RequestAttributesSequence", "ProcedureCodeSequence", "ReferencedImageSequence", "ReferencedVisitSequence"),
    *("ReferencedRequestSequence", "AdmittingDiagnosesCodeSequence", "ReferencedInstanceSequence", "Laterality"),
)
ACQUIRED = (  # MR Pulse Sequence module (PS3.3 C.8.13.4): of enhanced images that were acquired, not of derived ones
    *("PulseSequenceName", "MRAcquisitionType", "EchoPulseSequence", "MultipleSpinEcho", "MultiPlanarExcitation"),
    *("PhaseContrast", "VelocityEncodingAcquisitionSequence", "TimeOfFlightContrast", "SteadyStatePulseSequence"),
    *("ArterialSpinLabelingContrast", "EchoPlanarPulseSequence", "SaturationRecovery", "CoverageOfKSpace"),
    *("SpectrallySelectedSuppression", "OversamplingPhase", "GeometryOfKSpaceTraversal", "NumberOfKSpaceTrajectories"),
    *("RectilinearPhaseEncodeReordering", "SegmentedKSpaceTraversal"),
)
CONCATENATION = ("ConcatenationUID", "SOPInstanceUIDOfConcatenationSource")
PADDING = PADDING_ENDS[0]
MAPPED = ("RealWorldValueFirstValueMapped", "RealWorldValueLastValueMapped")
MAPPED_DOUBLE = ("DoubleFloatRealWorldValueFirstValueMapped", "DoubleFloatRealWorldValueLastValueMapped")


@dataclass(frozen=True)
class Maker:
    """The origin of the files. key: the hospital's secret. digest: of the translator's file. vetoed: vetoes against it.
    blank: the regions that the reader blanks, by layout.
    """

    key: bytes
    profile: Profile
    site: str
    label: str
    digest: str
    vetoed: tuple[str, ...] = ()
    blank: tuple[Layout, ...] = ()


class Meant(NamedTuple):
    """The meaning of new stored values. span: the smallest and the largest that is no padding. unit: of the reader's
    values, as the old header gives it.
    """

    coding: Coding
    span: tuple[int, int]
    unit: str | None


def checked_bytes(original: Dataset, made: Dataset, profile: Profile) -> bytes:
    """The de-identified image as a file, after a check that none of the original's identifiers is left.

    Raises:
        NotDeidentifiable: `leftover`, or it cannot be written.
    """
    data = as_bytes(made)
    keeps_characteristics = profile.keep_device or profile.keep_characteristics or profile.keep_times
    if left := find_leftovers(original, data, private=profile.keep_private, retains_attributes=keeps_characteristics):
        raise NotDeidentifiable("leftover", "; ".join(left[:5]))
    return data


def file_name(made: Dataset) -> str:
    """The file name of a de-identified image: its instance number, and 8 letters of a hash of its SOP instance UID."""
    number = str(made.get("InstanceNumber") or 0)
    plain = min(int(number), LONGEST_NUMBER) if number.isdecimal() else 0
    return f"{plain:05d}-{hashlib.sha256(str(made.SOPInstanceUID).encode()).hexdigest()[:8]}.dcm"


def put_pixels(made: Dataset, planes: list[Whole], coding: Coding) -> None:
    """Set the pixels, uncompressed, and their coding. Header values about the old pixels are removed."""
    allocated = max(int(made.BitsAllocated), 8 if coding.bits <= 8 else 16) if coding.same else coding.bits
    kind = np.dtype(f"<{'i' if coding.signed else 'u'}{allocated // 8}")
    data = b"".join(plane.astype(kind).tobytes() for plane in planes)
    made.BitsAllocated, made.BitsStored, made.HighBit = allocated, coding.bits, coding.bits - 1
    made.PixelRepresentation = int(coding.signed)
    if "PixelData" in made:
        del made["PixelData"]
    made.add_new("PixelData", "OB" if allocated == 8 else "OW", data + b"\0" * (len(data) % 2))
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    for keyword in UNTRUE if coding.same else (*UNTRUE, *PADDING):
        for holder in (made, *(item for group in _list_groups(made)[1:] for item in list_macros(group))):
            holder.pop(keyword, None)
    if coding.padding is not None:
        made.add_new("PixelPaddingValue", "US", coding.padding)


def _list_groups(made: Dataset) -> list[Dataset]:
    """The dataset itself, and the items of its functional groups."""
    return [made, *(made.get(SHARED) or []), *(made.get(PER_FRAME) or [])]


def put_meaning(made: Dataset, meant: Meant) -> None:
    """Adapt the header's conversion of stored values to the new ones."""
    coding = meant.coding
    if not coding.relative:  # the new values are the reader's: inverted and in the vendor's scale where necessary
        made.PhotometricInterpretation = "MONOCHROME2"
        if "PresentationLUTShape" in made:
            made.PresentationLUTShape = "IDENTITY"
        _put_line(made, coding, meant.unit)
        scale_vendor_slopes(_list_groups(made), None)
        return
    if not coding.same:
        _recode_rescale(made, coding)
    scale_vendor_slopes(_list_groups(made), 1 / coding.slope)
    for group in _list_groups(made):
        value_maps = [
            item for item in group.get("RealWorldValueMappingSequence") or [] if _adapt_map(item, coding, meant.span)
        ]
        if value_maps:
            group.RealWorldValueMappingSequence = value_maps
        else:
            group.pop("RealWorldValueMappingSequence", None)


def _recode_rescale(made: Dataset, coding: Coding) -> None:
    """Set the rescale of each image such that new stored values give the real values of the old ones."""
    headers = [transform_of(made, index) for index in range(len(made.get(PER_FRAME) or [made]))]
    lines = [find_rescale(header) for header in headers]
    if not any(lines):
        _put_line(made, coding, str(headers[0].get("RescaleType") or ""))
        return
    new = [
        (_format_decimal(a * coding.slope), _format_decimal(b + a * coding.intercept))
        for a, b in (line or (1.0, 0.0) for line in lines)
    ]
    if PER_FRAME not in made:
        ((made.RescaleSlope, made.RescaleIntercept),) = new
        return
    types = [str(header.get("RescaleType") or "US") for header in headers]
    _remove_rescale(made)
    for group, (slope, intercept), rescale_type in zip(made[PER_FRAME].value, new, types, strict=True):
        item = Dataset()
        item.RescaleIntercept, item.RescaleSlope, item.RescaleType = intercept, slope, rescale_type
        group.PixelValueTransformationSequence = [item]


def _remove_rescale(made: Dataset) -> None:
    """Remove the rescale from functional groups, and from unassigned elements of a converted file."""
    for group in _list_groups(made)[1:]:
        group.pop("PixelValueTransformationSequence", None)
        for item in list_macros(group):
            for keyword in (*RESCALE, "RescaleType", "ModalityLUTSequence"):
                item.pop(keyword, None)


def _adapt_map(item: Dataset, coding: Coding, span: tuple[int, int]) -> bool:
    """Whether a real-world value map is kept: it is a line, or a table that still covers all values."""
    line = "RealWorldValueSlope" in item
    for first, last in (MAPPED, MAPPED_DOUBLE):
        if first not in item or last not in item:
            continue
        low, high = float(item[first].value), float(item[last].value)
        if not line and (not coding.same or span[0] < low or high < span[1]):
            return False
        bounds = (min(low, span[0]), max(high, span[1])) if coding.same else span
        is_integer = first == MAPPED[0]
        vr = (
            ("SS" if coding.signed else "US") if is_integer else "FD"
        )  # the new values may have another sign than the old
        for keyword, end in zip((first, last), bounds, strict=True):
            item.add_new(keyword, vr, int(end) if is_integer else float(end))
    if line and not coding.same:
        slope, intercept = float(item.RealWorldValueSlope), float(item.get("RealWorldValueIntercept") or 0)
        item.RealWorldValueSlope = slope * coding.slope
        item.RealWorldValueIntercept = intercept + slope * coding.intercept
    return line or coding.same


def _put_line(made: Dataset, coding: Coding, unit: str | None) -> None:
    """Set one slope and intercept for all frames; they replace a lookup table, if any. unit: of the resulting values.

    Value maps stay where the new values are to be converted to the old ones (`relative`): they were adapted.
    """
    unit_match = PATTERN.search((unit or "").lower())
    _remove_rescale(made)
    for group in _list_groups(made):
        group.pop("ModalityLUTSequence", None)
        if not coding.relative:
            group.pop("RealWorldValueMappingSequence", None)
    holder = Dataset() if SHARED in made else made
    holder.RescaleIntercept, holder.RescaleSlope = _format_decimal(coding.intercept), _format_decimal(coding.slope)
    holder.RescaleType = unit_match[0].strip() if unit_match else "HU" if unit == "HU" else "US"
    if SHARED in made:
        made[SHARED].value[0].PixelValueTransformationSequence = [holder]


def _format_decimal(value: float) -> str:
    """A decimal string of at most 16 characters."""
    return next(text for digits in range(12, 0, -1) if len(text := f"{value:.{digits}g}") <= 16)


def put_identity(made: Dataset, original: Dataset, series: str, maker: Maker) -> None:
    """Set new UIDs of the image and its series, and a reference to the original, whose UIDs `made` still has."""
    source = Dataset()
    source.ReferencedSOPClassUID, source.ReferencedSOPInstanceUID = made.SOPClassUID, made.SOPInstanceUID
    source.PurposeOfReferenceCodeSequence = [_code_item("121322", "Source image for image processing operation")]
    made.SourceImageSequence = [source]
    for keyword in OPTIONAL:
        if keyword in made and not made[keyword].value:
            del made[keyword]
    for keyword in ACQUIRED if PER_FRAME in made else ():
        made.pop(keyword, None)
    made.SeriesInstanceUID = series
    made.SOPInstanceUID = new_uid(maker.key, f"{original.SOPInstanceUID}/{maker.digest}")
    made.file_meta.MediaStorageSOPInstanceUID = made.SOPInstanceUID
    for keyword in CONCATENATION:
        if keyword in original:
            setattr(made, keyword, new_uid(maker.key, f"{original[keyword].value}/{maker.digest}"))


def put_words(made: Dataset, original: Dataset, maker: Maker) -> None:
    """Set the kind of image, and its derivation. Words that occur in the original's identifiers are left out."""
    classic = PER_FRAME not in made
    for holder in (
        made,
        *(item for group in _list_groups(made) for item in group.get("MRImageFrameTypeSequence") or []),
    ):
        for keyword in ("ImageType", "FrameType"):
            if keyword in holder:
                old = list(np.atleast_1d(holder[keyword].value))
                # Enhanced images are PRIMARY always (PS3.3 C.8.16.1).
                second = "SECONDARY" if classic else str(old[1]) if len(old) > 1 else "PRIMARY"
                setattr(holder, keyword, ["DERIVED", second, *map(str, old[2:])])
    if "ImageType" not in made:
        made.ImageType = ["DERIVED", "SECONDARY"]
    known = find_identifiers(original)
    label, site = ("" if known.within(name) else name for name in (maker.label, maker.site))
    by = " ".join(part for part in (f"by {label}" if label else "", f"of site {site}" if site else "") if part)
    vetoes = f" Quality control vetoed it: {', '.join(maker.vetoed)}." if maker.vetoed else ""
    made.DerivationDescription = f"Intensities translated {by} (translator {maker.digest}).{vetoes} {NOTICE}"
    kind = "ADC" if _says_adc(original) else str(made.ImageType[2]) if len(made.ImageType) > 2 else ""
    made.SeriesDescription = " ".join(part for part in (kind, "translated", by) if part)[:64]


def put_evidence(made: Dataset, original: Dataset) -> None:
    """Mark a classic image as an ADC map by a code, if the words that did so were removed (PS3.16 CID 7203).

    The frames of an enhanced file keep their own coded words.
    """
    if PER_FRAME in original or not _says_adc(original) or _says_adc(made) is not None:
        return
    derivation_codes = list(made.get("DerivationCodeSequence") or [])
    made.DerivationCodeSequence = [*derivation_codes, _code_item("113041", "Apparent Diffusion Coefficient")]


def _says_adc(header: Dataset) -> bool | None:
    """Whether the header alone shows an ADC map; None if it is unknown or cannot be read."""
    try:
        with silence_warnings():
            return decide_from_headers({keyword: header.get(keyword) for keyword in HEADERS}).adc
    except Exception:  # a value that cannot be read says nothing
        return None


def _code_item(value: str, meaning: str) -> Dataset:
    """The item of a DCM code."""
    item = Dataset()
    item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "DCM", meaning
    return item
