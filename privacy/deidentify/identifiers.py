"""Identifiers of a file: names, numbers, places, UIDs and dates, gathered at any depth; and whether text contains
one of them, in any case, with or without accents.

Words that are common in headers (ORIGINAL, HOSPITAL, MR) are no identifiers, even if a name contains them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property

from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag
from pydicom.uid import UID_dictionary

from privacy.deidentify.actions import parse_tags, split_words
from privacy.deidentify.shift import is_plausible
from privacy.deidentify.spelling import (
    compact_text,
    day_digits,
    day_pattern,
    days_of,
    fold_text,
    joined_names,
    list_spellings,
    name_words,
    number_forms,
)

DEEPEST = 40  # sequences within sequences; a file that goes deeper is an attack or damage
SHORT = 5  # shorter words must stand alone to be found
SIGNIFICANT = 6  # least digits of a number that counts as an identifier; shorter ones are everywhere in an image
LONG_UID = 12  # characters; a shorter one must stand alone, because a version number looks the same

PATIENT_NAMES = parse_tags("PatientName OtherPatientNames PatientBirthName PatientMotherBirthName")
PLACES = parse_tags(
    "InstitutionName InstitutionAddress InstitutionalDepartmentName PatientAddress CountryOfResidence "
    "RegionOfResidence PatientInstitutionResidence CurrentPatientLocation ReferringPhysicianAddress "
    "StationName ResponsibleOrganization PersonAddress CustodialOrganizationSequence VerifyingOrganization"
)
NUMBERS = parse_tags(
    "PatientID OtherPatientIDs AccessionNumber StudyID IssuerOfPatientID MedicalRecordLocator AdmissionID "
    "PatientTelephoneNumbers ReferringPhysicianTelephoneNumbers PersonTelephoneNumbers "
    "DeviceSerialNumber MilitaryRank InsurancePlanIdentification RequestedProcedureID ScheduledProcedureStepID "
    "PerformedProcedureStepID PlacerOrderNumberImagingServiceRequest FillerOrderNumberImagingServiceRequest "
    "ServiceEpisodeID OrderCallbackPhoneNumber NetworkID ScheduledStationName PerformedStationName PlateID DetectorID "
    "GantryID ClinicalTrialSubjectID ClinicalTrialSiteName PatientBirthName SpecimenIdentifier ContainerIdentifier "
    "BarcodeValue UniqueDeviceIdentifier PatientTelecomInformation PersonTelecomInformation"
)
COMMON = split_words(
    "the and for von van der den del des dos los las mac mrs miss prof doctor doc test patient patients new unknown "
    "none null anonymous anonymized removed original derived primary secondary axial coronal sagittal oblique other "
    "hospital hospitals clinic clinical clinique klinik klinikum university universitat center centre central medical "
    "medicine health healthcare care imaging radiology radiologie department general institute institut saint street "
    "strasse road avenue left right male female head neck chest prostate brain phantom diffusion system systems "
    "siemens philips healthineers canon toshiba hitachi fujifilm united mono monochrome monochrome2 adc dwi default "
    "physician operator software version real world value values mr ms dr jr sr md phd ii iii"
)


def walk_dataset(dataset: Dataset, depth: int = 0) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (tag, VR, texts) of every element at any depth; bytes are decoded as text as far as possible.

    Raises:
        RecursionError: sequences are nested deeper than 40 levels.
    """
    if depth > DEEPEST:
        raise RecursionError(f"sequences lie deeper than {DEEPEST} levels")
    for tag in list_tags(dataset):
        try:
            element = dataset[tag]
        except Exception:  # an unparsable value is still read as text
            raw = dataset.get_item(tag)
            if isinstance(raw, RawDataElement) and isinstance(raw.value, bytes):
                yield int(tag), raw.VR or "UN", [raw.value.decode("utf-8", "replace")]
            continue
        if element.VR == "SQ":
            for item in element.value or ():
                yield from walk_dataset(item, depth + 1)
        elif element.VR not in {"OB", "OW", "OB or OW", "OF", "OD", "OL", "OV"}:
            yield int(tag), str(element.VR), list_texts(element.value)


def list_tags(dataset: Dataset) -> list[BaseTag]:
    """The tags of a dataset in their order; iterating over the dataset itself would parse every value."""
    return sorted(dataset.keys())


def list_texts(value: object) -> list[str]:
    """A value's parts as text."""
    if value is None:
        return []
    if isinstance(value, bytes):
        return [value.decode("utf-8", "replace")]
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return [str(value)]
    return [str(part) for part in value] if not hasattr(value, "components") else [str(value)]


@dataclass(frozen=True)
class Identifiers:
    """words: folded names and numbers. joined: those of them, and dates, that match with any separators between their
    parts.

    uids: as written. numbers: forbidden numeric values. days: in any usual spelling.
    """

    words: frozenset[str]
    joined: frozenset[str]
    uids: frozenset[str]
    numbers: frozenset[int] = field(default=frozenset())
    days: frozenset[date] = field(default=frozenset())

    @cached_property
    def _alone_pattern(self) -> re.Pattern[str]:
        """A pattern of the words that count only where they stand alone: short ones in ASCII."""
        return _match_any(word for word in self.words if len(word) < SHORT and word.isascii())

    @cached_property
    def _anywhere_pattern(self) -> re.Pattern[str]:
        """A pattern of the words that count also inside other words: long ones, and those of other scripts."""
        return _match_any(word for word in self.words if len(word) >= SHORT or not word.isascii())

    @cached_property
    def _joined_pattern(self) -> re.Pattern[str]:
        """A pattern of the forms in `joined`, for text without separators."""
        return _match_any(self.joined)

    @cached_property
    def _days_pattern(self) -> re.Pattern[str]:
        """A pattern of every day in its usual spellings."""
        return re.compile("|".join(map(day_pattern, sorted(self.days))) or r"(?!)")

    @cached_property
    def _uids_pattern(self) -> re.Pattern[str]:
        """A pattern of the UIDs; a short one counts only where no digit or dot is next to it."""
        patterns = (rf"(?<![\d.]){re.escape(uid)}(?![\d.])" for uid in sorted(self.uids) if len(uid) <= LONG_UID)
        long = (re.escape(uid) for uid in sorted(self.uids) if len(uid) > LONG_UID)
        return re.compile("|".join([*long, *patterns]) or r"(?!)")

    def within(self, text: str, *, shortest: int = 2) -> bool:
        """Whether the text contains an identifier of at least `shortest` characters."""
        return bool(self._uids_pattern.search(text)) or any(
            self._contains_folded(folded, shortest) for folded in list_spellings(text)
        )

    def _contains_folded(self, folded: str, shortest: int) -> bool:
        """Whether folded text contains a word, a joined form or a day. shortest: of words that must stand alone."""
        return bool(
            self._anywhere_pattern.search(folded)
            or self._joined_pattern.search(compact_text(folded))
            or self._days_pattern.search(folded)
            or any(
                len(match[0]) >= shortest and _stands_alone(folded, match)
                for match in self._alone_pattern.finditer(folded)
            )
        )

    def in_bytes(self, data: bytes, *, shortest: int) -> bool:
        """Whether bytes contain an identifier as text: one byte per character, UTF-8, or UTF-16 at any offset."""
        read = {data.decode("latin-1"), data.replace(b"\0", b"").decode("latin-1"), data.decode("utf-8", "ignore")}
        wide = {data[at:].decode(code, "ignore") for at in (0, 1) for code in ("utf-16-le", "utf-16-be")}
        return any(self.within(text, shortest=shortest) for text in read | wide)

    def is_identifier(self, number: float) -> bool:
        """Whether a number is an identifier, ignoring its sign and decimals."""
        return int(abs(number)) in self.numbers


def find_identifiers(dataset: Dataset, *, but: frozenset[int] = frozenset()) -> Identifiers:
    """All identifiers in a dataset, at any depth, except in the attributes `but`, which are meant to stay."""
    names: set[str] = set()
    joined: set[str] = set()
    uids: set[str] = set()
    days: set[date] = set()
    for tag, vr, values in walk_dataset(dataset):
        for value in values if tag not in but else ():
            if vr == "PN" or tag in PATIENT_NAMES:
                names |= name_words(value, 2)
                together = joined_names(value, COMMON)
                joined |= {word for word in together if len(word) >= SHORT or not word.isascii()}
                names |= together - joined
            elif tag in PLACES:
                names |= {fold_text(value).strip()} if len(value.strip()) >= 4 else set()
                names |= name_words(value, 4)
            elif tag in NUMBERS:
                joined |= number_forms(value)
                names |= {fold_text(value).strip()} if len(value.strip()) >= 3 else set()
            elif vr in {"DA", "DT"}:
                days |= set(filter(is_plausible, days_of(value)))
            elif vr == "UI" and len(value) >= 6 and value.count(".") >= 3 and value not in UID_dictionary:
                uids.add(value)
    joined |= {form for day in days for form in day_digits(day)}
    names -= COMMON
    numbers = {int(form) for form in joined | names if form.isascii() and form.isdigit()}
    numbers = {number for number in numbers if number >= 10 ** (SIGNIFICANT - 1)}
    return Identifiers(
        frozenset(names), frozenset(joined - COMMON), frozenset(uids), frozenset(numbers), frozenset(days)
    )


def _match_any(parts: Iterator[str] | frozenset[str]) -> re.Pattern[str]:
    """A pattern of any of these words, longer ones first; of no word, a pattern that never matches."""
    ordered = sorted((word for word in parts if word), key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    """Whether a short word stands alone; digits after a word of three letters do not make it another word."""
    before, after = text[: match.start()][-1:], text[match.end() :]
    if len(match[0]) > 2 and match[0].isalpha():
        after = after.lstrip("0123456789")
    return not before.isalnum() and not after[:1].isalnum()
