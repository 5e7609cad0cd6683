"""De-identifies one DICOM image: PS3.15's Basic Application Confidentiality Profile, with shifted dates.

The action for each attribute is that of table E.1-1, at any depth; of two allowed actions the one that keeps the file
valid in every IOD is taken (X/Z empties, X/D and Z/D replace). Decisions beyond the table, each on the safe side:

* Private attributes, curves, overlays, group lengths, unknown attributes, UN and padding are removed; a few private
  ones with b-values, a scale of the values or a number of slices are kept, if they are numbers.
* UIDs are replaced by keyed ones, unless PS3.6 registers them. Dates are shifted by a number of days computed from key
  and patient; birth dates and times of day are removed. Patient ID and name become the pseudonym of a cohort of that
  key.
* Attributes that the table does not list are kept if they are numbers or coded words, or on a list of technical text;
  codes of a hospital's own scheme are removed. All of it is searched for the file's own names, numbers, places, dates
  and UIDs, and removed if one is found.
* Files without pixels (structured reports, encapsulated documents, presentation states, DICOMDIR) are refused, as are
  images that may show text, unless the place of the text is known and a person confirmed the blanked result.
* Of compressed streams only the parts that decoding needs are kept: comments, application segments and bytes after the
  image are cut, and a stream that cannot be parsed is written uncompressed. Of uncompressed pixels, bytes after the
  last and bits outside the stored ones are cut. The preamble is zeros, and file meta information is written anew.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial

from pydicom.datadict import dictionary_has_tag
from pydicom.dataelem import DataElement
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    UID_dictionary,
)

from privacy.deidentify import burned, element
from privacy.deidentify.actions import CHARACTERISTICS, DEVICE, MAY_BE_EMPTY, NEEDED, PER_FRAME, PIXELS, TABLE
from privacy.deidentify.codes import make_public, unknown_code
from privacy.deidentify.identifiers import DEEPEST, Identifiers, find_identifiers, list_tags, list_texts
from privacy.deidentify.keyed import checked_key, days_of_shift, make_pseudonym, new_uid, normalize_identifier
from privacy.deidentify.profile import NotDeidentifiable, Profile
from privacy.deidentify.quiet import silence_warnings
from privacy.deidentify.shift import central_day
from privacy.deidentify.spelling import days_of
from privacy.deidentify.stored_values import find_listed_creator
from privacy.deidentify.streams import cleaned_streams

__all__ = ["NotDeidentifiable", "Profile", "as_bytes", "blank_image", "deidentify_image"]

METHOD = "PS3.15 2026c Basic Profile; Consilium"
GREY = ("MONOCHROME1", "MONOCHROME2")
REWRITTEN = (ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian)  # written as Explicit VR Little Endian
CODES = {
    "113100": "Basic Application Confidentiality Profile",
    "113101": "Clean Pixel Data Option",
    "113107": "Retain Longitudinal Temporal Information Modified Dates Option",
    "113108": "Retain Patient Characteristics Option",
    "113109": "Retain Device Identity Option",
    "113111": "Retain Safe Private Option",
}


def deidentify_image(dataset: Dataset, *, key: bytes, profile: Profile | None = None) -> Dataset:
    """A new dataset with file meta information and without identifiers; `dataset` is not changed.

    key: the hospital's secret, at least 16 bytes; the same key gives the same pseudonyms, UIDs and shifts.

    Raises:
        NotDeidentifiable: `no_patient`, `not_image`, `burned_in`, `unconfirmed`, `recognizable`, `overlay_in_pixels`,
            `undecodable`, `identifier` or `unparsable`.
        ValueError: the key is too short.
    """
    checked_key(key)
    try:
        with silence_warnings():
            return _deidentify_dataset(dataset, key, profile or Profile())
    except (NotDeidentifiable, MemoryError):
        raise
    except RecursionError:
        raise NotDeidentifiable("unparsable", f"Sequences lie deeper than {DEEPEST} levels.") from None
    except Exception as error:  # damaged files raise all kinds of exceptions, and messages may quote values
        raise NotDeidentifiable(
            "unparsable", f"The headers cannot be read ({type(error).__name__}). Export the image again."
        ) from None


def as_bytes(cleaned: Dataset) -> bytes:
    """The DICOM file of a result of `deidentify_image`: a preamble of zeros, file meta information, the dataset.

    Raises:
        NotDeidentifiable: `unparsable`, if it cannot be written.
    """
    stream = io.BytesIO()
    try:
        with silence_warnings():
            cleaned.save_as(stream, enforce_file_format=True)
    except MemoryError:
        raise
    except Exception as error:
        raise NotDeidentifiable("unparsable", f"The result cannot be written ({type(error).__name__}).") from None
    return stream.getvalue()


def _deidentify_dataset(dataset: Dataset, key: bytes, profile: Profile) -> Dataset:
    """The result of `deidentify_image`, whose caller converts all other exceptions."""
    patient = _patient_identifier(dataset)
    blank = blank_image(dataset, key, profile)
    if blank is not None and blank.digest not in profile.confirmed:
        raise NotDeidentifiable(
            "unconfirmed",
            "Nobody has confirmed that no text is left when the rectangles are blanked. Look at the sheet, confirm it.",
        )
    rules = _build_context(dataset, key, patient, profile)
    cleaned = _clean_dataset(dataset, rules, 0)
    syntax = _copy_pixels(dataset, cleaned, blank)
    missing = sorted(tag for tag in NEEDED if not _has_value(cleaned, tag))
    if missing:
        tags_text = ", ".join(f"({tag >> 16:04X},{tag & 0xFFFF:04X})" for tag in missing)
        raise NotDeidentifiable("unparsable", f"{tags_text} missing or not readable. Export the image again.")
    cleaned.PatientID = cleaned.PatientName = make_pseudonym(key, patient)
    if "BodyPartExamined" in dataset and "BodyPartExamined" not in cleaned and "Laterality" not in cleaned:
        cleaned.Laterality = (
            None  # type 2C: required, possibly empty, unless the image is known to show no paired body part
        )
    _declare_deidentification(
        cleaned, profile, blank is not None, kept_private=any(tag.is_private for tag in list_tags(cleaned))
    )
    _add_meta(cleaned, syntax)
    return cleaned


@dataclass(frozen=True)
class _Context:
    rules: element.Rules
    known: Identifiers
    keep: frozenset[tuple[str, int, int]]


def _text_of(dataset: Dataset, keyword: str) -> str:
    """An attribute's value as text; empty if it is missing or cannot be read."""
    try:
        return str(dataset.get(keyword) or "")
    except Exception:  # an unreadable value counts as empty
        return ""


def _patient_identifier(dataset: Dataset) -> str:
    """The normalized PatientID. Raises: NotDeidentifiable: `no_patient`: it is missing or empty."""
    patient = normalize_identifier(_text_of(dataset, "PatientID"))
    if not patient:
        raise NotDeidentifiable("no_patient", "PatientID is missing or empty: dates and names need one. Fill it in.")
    return patient


def blank_image(dataset: Dataset, key: bytes, profile: Profile) -> burned.Blanked | None:
    """The pixels before and after blanking; None if they may leave as they are.

    Raises:
        NotDeidentifiable: `not_image`, `burned_in`, `recognizable`, `overlay_in_pixels` or `undecodable`.
    """
    if not any(tag in dataset for tag in PIXELS):
        raise NotDeidentifiable("not_image", "There are no pixels: reports and documents are not de-identified here.")
    if str(dataset.get("SOPClassUID", "")) not in UID_dictionary:
        raise NotDeidentifiable("not_image", "The SOP class is missing or private: nobody can say what it holds.")
    rectangles = burned.to_blank(dataset, profile.blank)
    return burned.blank_pixels(dataset, rectangles, key) if rectangles else None


def _build_context(dataset: Dataset, key: bytes, patient: str, profile: Profile) -> _Context:
    """The identifiers of a file, its rules of cleaning, and the private attributes that may stay."""
    kept_tags = (DEVICE if profile.keep_device else frozenset()) | (
        CHARACTERISTICS if profile.keep_characteristics else frozenset()
    )
    known = find_identifiers(dataset, but=kept_tags)
    rules = element.Rules(
        known=known,
        uid=partial(new_uid, key),
        days=days_of_shift(key, patient, *profile.shift_days),
        times=profile.keep_times,
        kept=kept_tags,
        around=central_day(
            days_of(_text_of(dataset, "StudyDate")), known.days - days_of(_text_of(dataset, "PatientBirthDate"))
        ),
        colour=_text_of(dataset, "PhotometricInterpretation") not in GREY,
    )
    return _Context(rules, known, profile.keep_private)


def _clean_dataset(dataset: Dataset, context: _Context, depth: int) -> Dataset:
    """A dataset or an item as it may leave, without pixels. depth: of sequences around it; 0 = the file itself."""
    if depth > DEEPEST:
        raise RecursionError
    made = Dataset()
    for tag in list_tags(dataset):
        if tag in PIXELS or tag.group < 8 or tag.is_private:
            continue
        try:
            original = dataset[tag]
            replacement = (
                _clean_sequence(original, context, depth)
                if original.VR == "SQ"
                else element.clean_element(original, context.rules)
            )
        except (RecursionError, NotDeidentifiable, MemoryError):
            raise
        except Exception:  # a value that cannot be parsed may be any text
            replacement = element.replacement_of_unparsable(tag)
        if replacement is not None:
            made.add(replacement)
    _copy_private(dataset, made, context)
    if depth:
        make_public(dataset, made)
        made.pop("SpecificCharacterSet", None)
    return made


def _clean_sequence(sequence: DataElement, context: _Context, depth: int) -> DataElement | None:
    """A sequence as it may leave; no item and no sequence becomes empty that was not, unless PS3.3 allows it."""
    action = TABLE.get(int(sequence.tag), "")
    if not dictionary_has_tag(sequence.tag):
        return None
    if action == "D":
        return DataElement(sequence.tag, "SQ", Sequence([unknown_code()]))
    if "Z" in action and "U" not in action and (action == "Z" or int(sequence.tag) in MAY_BE_EMPTY):
        return DataElement(sequence.tag, "SQ", Sequence([]))
    if action and "U" not in action:
        return None
    items = list(sequence.value or ())
    made = [_clean_dataset(item, context, depth + 1) for item in items]
    if int(sequence.tag) not in PER_FRAME:  # one item per frame, even if it is empty
        made = [new for old, new in zip(items, made, strict=True) if new or not old]
    return DataElement(sequence.tag, "SQ", Sequence(made)) if made or not items else None


def _copy_private(dataset: Dataset, made: Dataset, context: _Context) -> None:
    """Copy the allowed private elements, each with its creator, into the block where they were."""
    for tag in [tag for tag in list_tags(dataset) if tag.is_private and tag.element >= 0x1000]:
        try:
            creator = find_listed_creator(dataset[tag.group, tag.element >> 8].value, int(tag), context.keep)
            if creator is None or context.known.within(creator):
                continue
            original = dataset[tag]
            if (value := _private_value(original, context)) is not None:
                made.add_new((tag.group, tag.element >> 8), "LO", creator)
                made.add_new(tag, original.VR, value)
        except (NotDeidentifiable, MemoryError):
            raise
        except Exception:  # noqa: S112 - without a creator, or damaged: not kept
            continue


def _private_value(original: DataElement, context: _Context) -> object:
    """The value of an allowed private element as it may leave; for a sequence, the allowed elements of its items."""
    if original.VR != "SQ":
        return original.value if element.is_plain(original, context.known) else None
    items = [Dataset() for _ in original.value or ()]
    for item, new in zip(original.value or (), items, strict=True):
        _copy_private(item, new, context)
    return Sequence(items) if any(items) else None


def _copy_pixels(dataset: Dataset, cleaned: Dataset, blank: burned.Blanked | None) -> UID:
    """Put the pixels into `cleaned`, and return the transfer syntax that fits them."""
    syntax = UID(getattr(dataset, "file_meta", Dataset()).get("TransferSyntaxUID") or ExplicitVRLittleEndian)
    if syntax.is_private or syntax not in UID_dictionary:
        raise NotDeidentifiable("undecodable", "The transfer syntax is not a standard one. Export the image again.")
    for keyword in ("ExtendedOffsetTable", "ExtendedOffsetTableLengths"):
        cleaned.pop(keyword, None)
    streams = cleaned_streams(dataset, syntax) if blank is None and syntax.is_encapsulated else None
    if streams is not None:
        cleaned.add(streams)
        return syntax
    if blank is None and not syntax.is_encapsulated:
        for tag in sorted(PIXELS & set(map(int, list_tags(dataset)))):
            original = dataset[tag]
            data = burned.only_pixels(dataset, tag, original.value, "<" if syntax.is_little_endian else ">")
            cleaned.add(DataElement(original.tag, original.VR, data))
        return ExplicitVRLittleEndian if syntax in REWRITTEN else syntax
    values = burned.decode_pixels(dataset) if blank is None else blank.after
    cleaned.update(dict(burned.build_stored(dataset, values).items()))
    return ExplicitVRLittleEndian


def _has_value(dataset: Dataset, tag: int) -> bool:
    """Whether the cleaned dataset has this element, with a value that is not empty."""
    return tag in dataset and dataset[tag].value not in (None, "", [])


def _declare_deidentification(cleaned: Dataset, profile: Profile, blank: bool, *, kept_private: bool) -> None:
    """Record in the file what was done (PS3.15 E.1.1)."""
    moved = any(map(_is_day, cleaned.iterall()))
    chosen = {
        "113107": moved,
        "113101": blank,
        "113108": profile.keep_characteristics,
        "113109": profile.keep_device,
        "113111": kept_private,
    }
    items = []
    for value, meaning in CODES.items():
        if chosen.get(value, True):
            item = Dataset()
            item.CodeValue, item.CodingSchemeDesignator, item.CodeMeaning = value, "DCM", meaning
            items.append(item)
    cleaned.SpecificCharacterSet = "ISO_IR 192"
    cleaned.PatientIdentityRemoved = "YES"
    cleaned.DeidentificationMethod = [METHOD, "times of day kept"] if profile.keep_times else METHOD
    cleaned.DeidentificationMethodCodeSequence = items
    cleaned.LongitudinalTemporalInformationModified = "MODIFIED" if moved else "REMOVED"
    if blank:
        cleaned.BurnedInAnnotation = "NO"


def _is_day(text: DataElement) -> bool:
    """Whether an element holds a shifted date; the table's dummy value does not count."""
    return text.VR in {"DA", "DT"} and any(text[:8] != element.DUMMIES["DA"] for text in list_texts(text.value) if text)


def _add_meta(cleaned: Dataset, syntax: UID) -> None:
    """Add the file meta information and a preamble of zeros."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = cleaned.SOPClassUID
    meta.MediaStorageSOPInstanceUID = cleaned.SOPInstanceUID
    meta.TransferSyntaxUID = syntax
    meta.ImplementationClassUID = "2.25.142365870316412570391284712895327601945"
    meta.ImplementationVersionName = "CONSILIUM"
    cleaned.file_meta = meta
    cleaned.preamble = b"\0" * 128
