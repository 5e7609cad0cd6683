"""Small DICOM images with identifiers inserted as raw bytes, which pydicom does not check."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace

import numpy as np
import pydicom
from hypothesis import strategies as st
from pydicom.datadict import DicomDictionary
from pydicom.dataelem import DataElement, RawDataElement
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.tag import Tag
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage

from privacy.deidentify.actions import ESSENTIAL, parse_tags
from privacy.deidentify.dicom_image import blank_image
from privacy.deidentify.layouts import Layout, Rectangle
from privacy.deidentify.profile import Profile

KEY = bytes(range(32))
TEXT_VRS = re.split(r"\s", "AE AS CS DA DS DT IS LO LT PN SH ST TM UC UI UR UT UN OB")
STRUCTURE = parse_tags(
    "SpecificCharacterSet SOPClassUID SOPInstanceUID PatientID PatientName Rows Columns BitsAllocated "
    "BitsStored HighBit PixelRepresentation SamplesPerPixel PhotometricInterpretation PixelData "
    "NumberOfFrames PixelSpacing ImagePositionPatient ImageOrientationPatient PlanarConfiguration "
    "RescaleSlope RescaleIntercept BurnedInAnnotation RecognizableVisualFeatures Modality ImageType "
    "ConversionType FloatPixelData StudyDate DoubleFloatPixelData DiffusionBValue StudyInstanceUID "
    "AccessionNumber ReferringPhysicianName InstitutionName"
)
STRUCTURE |= ESSENTIAL  # an identifier there is a reason to refuse, which has tests of its own
BY_VR = {
    vr: sorted(
        tag
        for tag, (own, _, _, _, keyword) in DicomDictionary.items()
        if vr in own.split(" or ") and keyword and tag >> 16 >= 8 and tag >> 16 < 0xFFF0 and tag not in STRUCTURE
    )
    for vr in TEXT_VRS
}
SEQUENCES = sorted(tag for tag, row in DicomDictionary.items() if row[0] == "SQ" and tag >> 16 >= 8)


@dataclass(frozen=True)
class Person:
    """The identifiers of a patient and a visit."""

    surname: str
    given: str
    number: str
    accession: str
    doctor: str
    hospital: str
    uid: str
    day: str

    @property
    def secrets(self) -> tuple[str, ...]:
        return (
            self.surname, self.given, self.number, self.accession, self.doctor, self.hospital, self.uid, self.day,
        )  # fmt: skip


HOMER = Person(
    "Zwetschgenmüller", "Aloysius", "70417762", "ACC5518832", "Quackenbush", "Evergreen Spital Oberland",
    "1.2.276.0.7230010.3.1.4.7791", "20190507",
)  # fmt: skip


def image(person: Person = HOMER, **more: object) -> Dataset:
    """A complete MR image with a b-value, read back from a file as a reader would."""
    made = Dataset()
    made.SpecificCharacterSet = "ISO_IR 192"
    made.SOPClassUID, made.SOPInstanceUID = MRImageStorage, person.uid + ".9"
    made.StudyInstanceUID, made.SeriesInstanceUID = person.uid, person.uid + ".3"
    made.PatientName, made.PatientID = f"{person.surname}^{person.given}", person.number
    made.ReferringPhysicianName, made.AccessionNumber = person.doctor, person.accession
    made.InstitutionName, made.StudyDate, made.ContentDate = person.hospital, person.day, person.day
    made.PatientBirthDate, made.PatientAge, made.PatientSex = "19290307", "092Y", "M"
    made.StudyTime, made.AcquisitionDateTime = "171923.5", person.day + "171923.5+0100"
    made.Modality, made.ImageType, made.Manufacturer = "MR", ["ORIGINAL", "PRIMARY"], "ACME"
    made.ImagePositionPatient, made.ImageOrientationPatient = [1.5, -20.25, 7], [1, 0, 0, 0, 1, 0]
    made.PixelSpacing, made.DiffusionBValue = [1.25, 1.25], 800.0
    made.Rows, made.Columns, made.SamplesPerPixel, made.PhotometricInterpretation = 4, 6, 1, "MONOCHROME2"
    made.BitsAllocated, made.BitsStored, made.HighBit, made.PixelRepresentation = 16, 12, 11, 0
    made.PixelData = np.arange(24, dtype="<u2").tobytes()
    block = made.private_block(0x0019, "SIEMENS MR HEADER", create=True)
    block.add_new(0x0C, "IS", "800")
    for keyword, value in more.items():
        setattr(made, keyword, value)
    return pydicom.dcmread(io.BytesIO(file_of(made)))


def file_of(dataset: Dataset, syntax: str = ExplicitVRLittleEndian) -> bytes:
    if not hasattr(dataset, "file_meta"):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
        meta.TransferSyntaxUID = syntax
        dataset = FileDataset(io.BytesIO(), dataset, file_meta=meta, preamble=b"\0" * 128)
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def confirmed(dataset: Dataset, *boxes: tuple[int, int, int, int], **more: object) -> Profile:
    """A profile with rectangles (top, left, bottom, right) for an image's layout, and the result confirmed."""
    maker, model = (str(dataset.get(keyword) or "") for keyword in ("Manufacturer", "ManufacturerModelName"))
    rectangles = tuple(Rectangle(**dict(zip(("top", "left", "bottom", "right"), box, strict=True))) for box in boxes)
    size = {"rows": int(dataset.Rows), "columns": int(dataset.Columns)}
    profile = Profile(blank=(Layout(manufacturer=maker, model=model, **size, rectangles=rectangles),), **more)
    found = blank_image(dataset, KEY, profile)
    return replace(profile, confirmed=frozenset([found.digest] if found else []))


def insert_raw(dataset: Dataset, tag: int, vr: str, text: str | bytes) -> None:
    """Insert an element as raw bytes, as in a file that was read; they are not validated."""
    data = text if isinstance(text, bytes) else text.encode()
    data += b" " * (len(data) % 2)
    dataset[tag] = RawDataElement(Tag(tag), vr, len(data), data, 0, False, True)


def payloads(person: Person) -> st.SearchStrategy[str]:
    """An identifier, alone or in a text, in any case, with and without accents, or in another spelling."""
    plain = st.sampled_from(person.secrets)
    turned = st.sampled_from(
        [str, str.upper, str.lower, lambda text: text.replace("ü", "ue"), lambda t: t.replace("ü", "u")]
    )
    spelled = st.builds(lambda text, turn: turn(text), plain, turned)
    around = st.sampled_from(["{}", " {} ", "seen by {} today", "{}^X", "A\\{}", "_{}_", "({})", "x{}y"])
    day, number = person.day, person.number
    other = st.sampled_from(
        [
            f"{day[:4]}-{day[4:6]}-{day[6:]}", f"{day[6:]}.{day[4:6]}.{day[:4]}", f"{number[:4]} {number[4:]}",
            f"00{number}", f"{number[:3]}-{number[3:]}", f"{person.given}{person.surname}",
        ]
    )  # fmt: skip
    return st.builds(str.format, around, spelled | other)


@st.composite
def images_with_identifiers(draw: st.DrawFn, person: Person = HOMER) -> Dataset:
    """An image with identifiers in attributes of every text VR, nested and private."""
    made = image(person)
    for vr in draw(st.permutations(TEXT_VRS)):
        _insert_some(draw, made, vr, person)
    for _ in range(draw(st.integers(1, 3))):
        _nest(draw, made, person, draw(st.integers(1, 4)))
    for creator, group in draw(
        st.lists(
            st.sampled_from([("ACME 1", 0x0009), ("SIEMENS MR HEADER", 0x0019), ("GEMS_PARM_01", 0x0043)]), max_size=3
        )
    ):
        _private(draw, made, creator, group, person)
    insert_raw(
        made, draw(st.sampled_from([0x00080FF1, 0x30150001, 0x60001500, 0x50000020, 0xFFFCFFFC])), "LO", person.surname
    )
    return made


def _insert_some(draw: st.DrawFn, dataset: Dataset, vr: str, person: Person) -> None:
    known = BY_VR[vr] or BY_VR["LO"]
    for tag in draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)):
        insert_raw(dataset, tag, vr, draw(payloads(person)))


def _nest(draw: st.DrawFn, dataset: Dataset, person: Person, depth: int) -> None:
    inner = Dataset()
    for vr in draw(st.lists(st.sampled_from(TEXT_VRS), min_size=1, max_size=3)):
        _insert_some(draw, inner, vr, person)
    if draw(st.booleans()):
        _private(draw, inner, "SIEMENS MR HEADER", 0x0019, person)
    if depth > 1:
        _nest(draw, inner, person, depth - 1)
    tag = draw(st.sampled_from(SEQUENCES))
    dataset[tag] = DataElement(Tag(tag), "SQ", Sequence([inner]))


def _private(draw: st.DrawFn, dataset: Dataset, creator: str, group: int, person: Person) -> None:
    number = draw(st.integers(0x20, 0x2F))
    insert_raw(dataset, group << 16 | number, "LO", creator)
    element = draw(st.sampled_from([0x0C, 0x0D, 0x0E, 0x27, 0x39, 0x77]))
    vr = draw(st.sampled_from([*TEXT_VRS, "FD", "FL"]))
    insert_raw(dataset, group << 16 | number << 8 | element, vr, (draw(payloads(person)).encode() * 8)[:32])
