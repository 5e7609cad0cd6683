"""What in a file names somebody: names, numbers, places, UIDs and dates, gathered at any depth; and whether text holds
one of them, in any case, with or without accents.

Words that are common in headers (ORIGINAL, HOSPITAL, MR) are no identifiers, even when a name contains them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import BaseTag
from pydicom.uid import UID_dictionary

from privacy.actions import tags, words

DEEPEST = 40  # sequences within sequences; a file that goes deeper is an attack or damage
UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe", "æ": "ae"})
SHORT = 5  # shorter words must stand alone to be found

PATIENT_NAMES = tags("PatientName OtherPatientNames PatientBirthName PatientMotherBirthName")
PLACES = tags(
    "InstitutionName InstitutionAddress InstitutionalDepartmentName PatientAddress CountryOfResidence "
    "RegionOfResidence PatientInstitutionResidence CurrentPatientLocation ReferringPhysicianAddress "
    "StationName ResponsibleOrganization PersonAddress CustodialOrganizationSequence VerifyingOrganization"
)
NUMBERS = tags(
    "PatientID OtherPatientIDs AccessionNumber StudyID IssuerOfPatientID MedicalRecordLocator AdmissionID "
    "PatientTelephoneNumbers ReferringPhysicianTelephoneNumbers PersonTelephoneNumbers "
    "DeviceSerialNumber MilitaryRank InsurancePlanIdentification RequestedProcedureID ScheduledProcedureStepID "
    "PerformedProcedureStepID PlacerOrderNumberImagingServiceRequest FillerOrderNumberImagingServiceRequest "
    "ServiceEpisodeID OrderCallbackPhoneNumber NetworkID ScheduledStationName PerformedStationName PlateID DetectorID "
    "GantryID ClinicalTrialSubjectID ClinicalTrialSiteName PatientBirthName"
)
COMMON = words(
    "the and for von van der den del des dos los las mac mrs miss prof doctor doc test patient patients new unknown "
    "none null anonymous anonymized removed original derived primary secondary axial coronal sagittal oblique other "
    "hospital hospitals clinic clinical clinique klinik klinikum university universitat center centre central medical "
    "medicine health healthcare care imaging radiology radiologie department general institute institut saint street "
    "strasse road avenue left right male female head neck chest prostate brain phantom diffusion system systems "
    "siemens philips healthineers canon toshiba hitachi fujifilm united mono monochrome monochrome2 adc dwi default "
    "physician operator software version real world value values"
)


def fold(text: str) -> str:
    """Text as it is compared: lower case, no accents, no other form of one character."""
    parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return "".join(part for part in parts if not unicodedata.combining(part)).casefold()


def compact(text: str) -> str:
    """Only the letters and digits of folded text: 12-34 56 and 123456 are one number."""
    return re.sub(r"[\W_]+", "", fold(text))


def walk(dataset: Dataset, depth: int = 0) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (tag, VR, texts) of every element at any depth; bytes are read as text as far as they are.

    Raises:
        RecursionError: sequences lie deeper than 40 levels.
    """
    if depth > DEEPEST:
        raise RecursionError(f"sequences lie deeper than {DEEPEST} levels")
    for tag in present(dataset):
        try:
            element = dataset[tag]
        except Exception:  # what cannot be parsed is still read as text
            raw = dataset.get_item(tag)
            if isinstance(raw, RawDataElement) and isinstance(raw.value, bytes):
                yield int(tag), raw.VR or "UN", [raw.value.decode("utf-8", "replace")]
            continue
        if element.VR == "SQ":
            for item in element.value or ():
                yield from walk(item, depth + 1)
        elif element.VR not in {"OB", "OW", "OB or OW", "OF", "OD", "OL", "OV"}:
            yield int(tag), str(element.VR), texts(element.value)


def present(dataset: Dataset) -> list[BaseTag]:
    """The tags of a dataset in their order; iterating over the dataset itself would parse every value."""
    return sorted(dataset.keys())


def texts(value: object) -> list[str]:
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
    """words: folded names and numbers. joined: those of them, and dates, that count with anything between their parts.

    uids: as they stand. numbers: what a numeric value must not be.
    """

    words: frozenset[str]
    joined: frozenset[str]
    uids: frozenset[str]
    numbers: frozenset[int] = field(default=frozenset())

    @cached_property
    def _alone(self) -> re.Pattern[str]:
        return _any(word for word in self.words if len(word) < SHORT)

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        return _any(word for word in self.words if len(word) >= SHORT)

    @cached_property
    def _joined(self) -> re.Pattern[str]:
        return _any(self.joined)

    def within(self, text: str, *, shortest: int = 2) -> bool:
        """Whether the text holds an identifier of at least `shortest` characters."""
        folded = fold(text)
        return bool(
            self._anywhere.search(folded)
            or self._joined.search(compact(text))
            or any(uid in text for uid in self.uids)
            or any(len(match[0]) >= shortest and _stands(folded, match) for match in self._alone.finditer(folded))
        )

    def among(self, number: float) -> bool:
        """Whether a number is an identifier."""
        return number in self.numbers


def identifiers(dataset: Dataset, *, but: frozenset[int] = frozenset()) -> Identifiers:
    """All that names somebody in a dataset, at any depth, `but` those attributes that are meant to stay."""
    names: set[str] = set()
    joined: set[str] = set()
    uids: set[str] = set()
    for tag, vr, values in walk(dataset):
        for value in values:
            if tag in but:
                continue
            if vr == "PN" or tag in PATIENT_NAMES:
                names |= _parts(value, 2 if tag in PATIENT_NAMES else 3)
            elif tag in PLACES:
                names |= {fold(value).strip()} if len(value.strip()) >= 4 else set()
                names |= _parts(value, 4)
            elif tag in NUMBERS:
                joined |= _number_forms(value)
                names |= {fold(value).strip()} if len(value.strip()) >= 3 else set()
            elif vr in {"DA", "DT"}:
                joined |= _date_forms(value)
            elif vr == "UI" and len(value) > 12 and value not in UID_dictionary:
                uids.add(value)
    names -= COMMON
    numbers = {int(form) for form in joined | names if form.isascii() and form.isdigit() and len(form) >= 6}
    return Identifiers(frozenset(names), frozenset(joined - COMMON), frozenset(uids), frozenset(numbers))


def _any(found: Iterator[str] | frozenset[str]) -> re.Pattern[str]:
    ordered = sorted((word for word in found if word), key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")


def _stands(text: str, match: re.Match[str]) -> bool:
    before, after = text[: match.start()][-1:], text[match.end() :][:1]
    return not before.isalnum() and not after.isalnum()


def _parts(value: str, shortest: int) -> set[str]:
    spellings = (fold(value), fold(value.casefold().translate(UMLAUTS)))
    return {part for text in spellings for part in re.split(r"[\W_]+", text) if len(part) >= shortest}


def _number_forms(value: str) -> set[str]:
    found = {compact(value), compact(value).lstrip("0")}
    return {form for form in found if len(form) >= 5}


def _date_forms(value: str) -> set[str]:
    match = re.match(r"\s*(\d{4})[.\-]?(\d{2})[.\-]?(\d{2})", value)
    if not match:
        return set()
    year, month, day = match.groups()
    return {year + month + day, day + month + year, month + day + year}
