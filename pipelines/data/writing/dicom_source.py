"""Copy patient and study of a DICOM result from its images, as they are or de-identified.

A result belongs to the patient's study. So it copies the modules Patient, Patient Study, General Study and those of
clinical trials (PS3.3 C.7.1.1, C.7.1.3, C.7.2.1 to C.7.2.3), element by element, with the character set in which they
are written: the archive must find both under one name, however odd that is.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, time, timedelta
from typing import Any, NamedTuple

from pydicom.dataset import Dataset

from pipelines.data.contents import read_dataset
from pipelines.data.headers import Frame
from pipelines.data.study import Unusable
from pipelines.data.writing.representations import with_dictionary_vrs
from pipelines.loader.command_line import installed_version
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, deidentify_image
from privacy.deidentify.keyed import days_of_shift
from privacy.deidentify.leftovers import find_leftovers
from privacy.deidentify.quiet import silence_warnings

NOTICE = "For research use only, not for diagnosis."
PUBLISHER = "Consilium"
LONGEST_NUMBER = 2**31 - 1
UNLIKE_TRAINING = "UNLIKE TRAINING: "
"""The first words in the series description of an unreliable result; every list of series shows them."""
LONGEST_DESCRIPTION = 64
EMPTY_ALLOWED = (  # type 2: must be there, and may be empty
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "StudyID"),
    *("ReferringPhysicianName", "AccessionNumber"),
)
PATIENT_AND_STUDY = (
    *EMPTY_ALLOWED,
    *("IssuerOfPatientID", "TypeOfPatientID", "IssuerOfPatientIDQualifiersSequence", "OtherPatientIDsSequence"),
    *("OtherPatientIDs", "OtherPatientNames", "PatientBirthTime", "EthnicGroup", "PatientComments"),
    *(
        "PatientIdentityRemoved",
        "DeidentificationMethod",
        "DeidentificationMethodCodeSequence",
        "QualityControlSubject",
    ),
    *("PatientSpeciesDescription", "PatientSpeciesCodeSequence", "PatientBreedDescription", "PatientBreedCodeSequence"),
    *("BreedRegistrationSequence", "ResponsiblePerson", "ResponsiblePersonRole", "ResponsibleOrganization"),
    *("StrainDescription", "StrainCodeSequence", "LongitudinalTemporalInformationModified"),
    *("StudyInstanceUID", "StudyDescription", "PhysiciansOfRecord", "NameOfPhysiciansReadingStudy"),
    *("IssuerOfAccessionNumberSequence", "ProcedureCodeSequence", "ReferencedStudySequence"),
    *("AdmittingDiagnosesDescription", "PatientAge", "PatientSize", "PatientWeight", "Occupation", "SmokingStatus"),
    *("PregnancyStatus", "PatientSexNeutered", "AdditionalPatientHistory", "AdmissionID", "MedicalAlerts", "Allergies"),
    *("ClinicalTrialSponsorName", "ClinicalTrialProtocolID", "ClinicalTrialProtocolName", "ClinicalTrialSiteID"),
    *("ClinicalTrialSiteName", "ClinicalTrialSubjectID", "ClinicalTrialSubjectReadingID", "ClinicalTrialTimePointID"),
    "ClinicalTrialTimePointDescription",
)
NEVER_EMPTY = ("ProcedureCodeSequence", "ReferencedStudySequence")  # de-identification empties them


@dataclass(frozen=True)
class Pseudonymous:
    """Results without the patient's identity, as `deidentify` and `translate` write images. key: the hospital's."""

    key: bytes
    profile: Profile


@dataclass(frozen=True)
class ResultMaker:
    """The origin and time of a result. label: of the model; digest: of its file. key: for the UIDs, at least 16 bytes:
    the same key, images, content and time give the same UIDs and bytes.
    """

    key: bytes
    label: str
    digest: str
    when: datetime


class Images(NamedTuple):
    """headers: of the files, without pixels, in the order of their slices, one enhanced file once. original: the first
    one before it was de-identified; None if it was not. profile: as it was de-identified.
    """

    headers: list[Dataset]
    original: Dataset | None = None
    profile: Profile | None = None

    @property
    def first(self) -> Dataset:
        """The header that stands for all: they are of one series."""
        return self.headers[0]


def read_image_headers(frames: Sequence[Frame], pseudonymous: Pseudonymous | None = None) -> Images:
    """The headers of a stack's files.

    Raises:
        Unusable: `missing_tag`, or a reason of de-identification.
        Exception: whatever the parser raises for damaged files; use `readable`.
    """
    paths = list(dict.fromkeys(frame.path for frame in frames))
    if pseudonymous is None:
        return Images([_check_header(read_dataset(path, stop_before_pixels=True)) for path in paths])
    headers, original = [], None
    for path in paths:
        dataset = read_dataset(path)
        try:
            made = deidentify_image(dataset, key=pseudonymous.key, profile=pseudonymous.profile)
        except NotDeidentifiable as error:
            raise Unusable(error.reason, f"{path.name}: {error.detail}") from error
        for keyword in ("PixelData", "FloatPixelData", "DoubleFloatPixelData"):
            made.pop(keyword, None)
            dataset.pop(keyword, None)
        original = original or dataset
        headers.append(_check_header(made))
    return Images(headers, original, pseudonymous.profile)


def _check_header(header: Dataset) -> Dataset:
    """The header with standard VRs, if it has the UIDs that a result needs. Raises: Unusable: `missing_tag`."""
    missing = [key for key in ("SOPClassUID", "StudyInstanceUID", "SeriesInstanceUID") if not header.get(key)]
    if missing:
        raise Unusable("missing_tag", f"without a value: {', '.join(missing)}. Export with complete headers.")
    return with_dictionary_vrs(header)


def strip_identity(header: Dataset) -> Dataset:
    """A copy with an empty patient and study, except for the UIDs, for a library that checks their values. Invalid
    values in the archive must not prevent a result; `belong` restores them.
    """
    made = copy.deepcopy(header)
    for keyword in PATIENT_AND_STUDY:
        if keyword != "StudyInstanceUID":
            made.pop(keyword, None)
    for keyword in EMPTY_ALLOWED:
        setattr(made, keyword, "")
    made.pop("SpecificCharacterSet", None)
    return made


def copy_uids(header: Dataset) -> Dataset:
    """The header with only the UIDs that a reference to its image needs."""
    made = Dataset()
    for keyword in ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID"):
        setattr(made, keyword, header[keyword].value)
    return made


def assign_to_study(made: Dataset, images: Images, maker: ResultMaker) -> None:
    """Give a result the patient, study and character set of its images, and one time of making.

    It replaces the times and random UIDs of the library, so that the same input gives the same bytes.
    """
    for keyword in (*PATIENT_AND_STUDY, "SpecificCharacterSet"):
        made.pop(keyword, None)
        if keyword in images.first and (images.first[keyword].value or keyword not in NEVER_EMPTY):
            made.add(copy.deepcopy(images.first[keyword]))
    for keyword in EMPTY_ALLOWED:
        if keyword not in made:
            setattr(made, keyword, None)
    day, hour = maker.when.strftime("%Y%m%d"), maker.when.strftime("%H%M%S")
    made.InstanceCreationDate, made.InstanceCreationTime = day, hour
    for item in made.get("ContributingEquipmentSequence") or []:
        if "ContributionDateTime" in item:
            item.ContributionDateTime = f"{day}{hour}"


def shift_maker_time(maker: ResultMaker, images: Images, pseudonymous: Pseudonymous | None) -> ResultMaker:
    """The maker with a time that may be written. The night of a result reveals the day of the study, which
    de-identification shifts: so the result's day is shifted, too, and its hour is removed unless hours are kept.
    """
    if pseudonymous is None or images.original is None:
        return maker
    patient = str(images.original.get("PatientID") or "")
    when = maker.when + timedelta(days=days_of_shift(pseudonymous.key, patient, *pseudonymous.profile.shift_days))
    if not pseudonymous.profile.keep_times:
        when = datetime.combine(when.date(), time(0, 0, 0))
    return replace(maker, key=pseudonymous.key, when=when)


def check_leftovers(data: bytes, images: Images) -> bytes:
    """A result's bytes, after a check that none of the patient's identifiers is left in a de-identified one.

    Raises:
        Unusable: `leftover`.
    """
    if images.original is None or images.profile is None:
        return data
    profile = images.profile
    keeps_characteristics = profile.keep_device or profile.keep_characteristics or profile.keep_times
    with silence_warnings():
        left = find_leftovers(
            images.original, data, private=profile.keep_private, retains_attributes=keeps_characteristics
        )
    if left:
        raise Unusable("leftover", "; ".join(left[:5]))
    return data


def equipment_elements(maker: ResultMaker) -> dict[str, Any]:
    """The equipment elements of every kind of result (PS3.3 C.7.5.1)."""
    return {
        "manufacturer": PUBLISHER,
        "manufacturer_model_name": maker.label[:64],
        "software_versions": (maker.digest[:64], f"{PUBLISHER} {installed_version()}"),
        "device_serial_number": maker.digest[:64],
    }


def describe_series(before: str, label: str, after: str, unlike: bool | None) -> str:
    """The description of a result's series; the model's label is cut if there is no room for it."""
    before = f"{UNLIKE_TRAINING if unlike else ''}{before}"
    return f"{before}{label[: max(0, LONGEST_DESCRIPTION - len(before) - len(after))]}{after}"[:LONGEST_DESCRIPTION]


def series_number(header: Dataset, above: int) -> int:
    """A number for a result's series: that of the images' plus `above`, as large as DICOM allows."""
    try:
        image_number = max(0, int(header.get("SeriesNumber") or 0))
    except (TypeError, ValueError):
        image_number = 0
    return min(above + image_number, LONGEST_NUMBER)
