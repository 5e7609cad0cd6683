"""A phantom hospital's series as classic single-frame DICOM, with the headers that a scanner would write.

Names, dates and institutions are invented, as input for de-identification. Headers follow DICOM PS3.3 C.8.3 (MR image),
C.11.1 (modality LUT) and C.7.6.16.2.11 (real-world values, with UCUM units). UIDs are hashes of the instances' names.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid

from pipelines.data.study import Affine, Array
from pipelines.phantom.patients import SLICE_SPACING_MM, SLICE_THICKNESS_MM, Defect, PhantomSource, patient_name
from pipelines.phantom.scanner import SCANNERS, Acquired, Scanner, scanner_of
from pipelines.phantom.t2w import PROTOCOLS

Stored: TypeAlias = NDArray[np.uint16]

STORED_MAX = 4095  # 12 bits
TO_LPS = np.diag([-1.0, -1.0, 1.0])  # NIfTI's axes point to the patient's right and anterior, DICOM's to the opposite
SURNAMES = ("Amsel", "Birke", "Castor", "Distel", "Eiche", "Falke", "Ginster", "Habicht", "Iltis", "Kranich", "Luchs")
FIRST_NAMES = (
    "Anton",
    "Bruno",
    "Carlo",
    "David",
    "Emil",
    "Frank",
    "Georg",
    "Hugo",
    "Ivo",
    "Jakob",
    "Karl",
    "Leo",
    "Max",
)


def dicom_series(
    source: PhantomSource, patient: int, acquired: Acquired, *, wrong: Defect | None = None, again: Array | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield (file name, bytes) per slice; neither names nor instance numbers follow the slices' positions.

    wrong: the defect to simulate, one of `DEFECTS["dicom"]`. again: the image of a second scan, for the pixels of
    "duplicate_slice".
    """
    scanner, header = scanner_of(source), _study_header(source, patient)
    export = partial(_export, scanner) if source.contrast == "adc" else _grey
    stored = export(acquired.image, header)
    generator = np.random.default_rng([source.seed, patient, 4])
    planes = list(enumerate(stored))
    victim = 1 + int(generator.integers(len(planes) - 2))
    if wrong == "missing_slice":
        del planes[victim]
    if wrong == "duplicate_slice" and again is not None:
        planes.append((victim, export(again, Dataset())[victim]))
    names, numbers = generator.permutation(len(planes)), generator.permutation(len(planes))
    for (index, plane), name, number in zip(planes, names, numbers, strict=True):
        dataset = _instance(header, acquired.affine, index, plane, int(number) + 1)
        if wrong == "mixed_orientation" and index == victim:
            dataset.ImageOrientationPatient = [1, 0, 0, 0, 0, -1]  # a coronal image sent into the axial series
        data = _dicom_bytes(dataset)
        yield f"IM{name + 1:04d}.dcm", data[: -plane.nbytes // 2] if wrong == "truncated" and index == victim else data


def _study_header(source: PhantomSource, patient: int) -> Dataset:
    """The header elements that all slices of a study share."""
    scanner, name = SCANNERS[source.scanner], patient_name(source, patient)
    key = f"{source.scanner}/{name}"
    header = Dataset()
    header.SpecificCharacterSet = "ISO_IR 100"
    header.SOPClassUID, header.Modality = MRImageStorage, "MR"
    header.StudyInstanceUID = _uid(key, "study")
    header.SeriesInstanceUID = _uid(key, "series" if source.contrast == "adc" else source.contrast)
    header.FrameOfReferenceUID = _uid(key, "frame")
    header.StudyID, header.AcquisitionNumber = "1", "1"
    header.PositionReferenceIndicator = ""
    header.BodyPartExamined, header.PatientPosition = "PROSTATE", "HFS"
    (_of_adc if source.contrast == "adc" else _of_t2w)(header, source)
    header.MRAcquisitionType = "2D"
    header.SliceThickness, header.SpacingBetweenSlices = f"{SLICE_THICKNESS_MM:g}", f"{SLICE_SPACING_MM:g}"
    header.MagneticFieldStrength = f"{scanner.field_strength_t:g}"
    header.Manufacturer, header.ManufacturerModelName = scanner.manufacturer, scanner.model
    header.SoftwareVersions = "1.0"
    header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 12, 11, 0
    _identify(header, source, patient)
    return header


def _of_adc(header: Dataset, source: PhantomSource) -> None:
    """Add what an ADC map's header says of its acquisition."""
    scanner = scanner_of(source)
    header.ImageType, header.SeriesNumber = ["DERIVED", "PRIMARY", "ADC"], "7"
    header.SeriesDescription = header.ProtocolName = "ep2d_diff_tra_ADC"
    header.ScanningSequence, header.SequenceVariant, header.ScanOptions = "EP", "SK", "FS"
    header.RepetitionTime, header.EchoTime, header.NumberOfAverages = "3200", "66", str(scanner.averages)
    header.EchoTrainLength = str(scanner.matrix)
    shown = 1.0 if scanner.gamma != 1 else scanner.per_unit  # windows are in units of the modality transform's output
    header.WindowCenter, header.WindowWidth = f"{1200 * shown:g}", f"{2400 * shown:g}"


def _of_t2w(header: Dataset, source: PhantomSource) -> None:
    """Add what the header of a turbo spin echo says of its acquisition."""
    protocol = PROTOCOLS[source.scanner]
    header.ImageType, header.SeriesNumber = ["ORIGINAL", "PRIMARY", "M"], "4"
    header.SeriesDescription = header.ProtocolName = "t2_tse_tra"
    header.ScanningSequence, header.SequenceVariant, header.ScanOptions = "SE", ["SK", "SP"], ""
    header.RepetitionTime, header.EchoTime = f"{protocol.repetition_ms:g}", f"{protocol.echo_ms:g}"
    header.NumberOfAverages, header.EchoTrainLength = str(protocol.averages), str(protocol.echo_train)
    header.FlipAngle = "160"
    bright = protocol.gain * protocol.window
    header.WindowCenter, header.WindowWidth = f"{0.5 * bright:g}", f"{bright:g}"


def _identify(header: Dataset, source: PhantomSource, patient: int) -> None:
    """Add the identifiers that de-identification must remove, one of them hidden in a private tag."""
    generator = np.random.default_rng([source.seed, patient, 5])
    year, month, date, age, weight = (
        int(generator.integers(*r)) for r in ((2018, 2024), (1, 13), (1, 29), (48, 79), (62, 110))
    )
    day = f"{year}{month:02d}{date:02d}"
    header.StudyDate = header.SeriesDate = header.AcquisitionDate = header.ContentDate = day
    header.StudyTime = header.SeriesTime = header.AcquisitionTime = header.ContentTime = "101500"
    header.PatientID = patient_name(source, patient)
    header.PatientName = f"{generator.choice(SURNAMES)}^{generator.choice(FIRST_NAMES)}"
    header.PatientBirthDate = f"{year - age}{month:02d}{date:02d}"
    header.PatientSex, header.PatientAge, header.PatientWeight = "M", f"{age:03d}Y", str(weight)
    header.PatientComments = "Simulated: no such person exists."
    header.AccessionNumber = f"{zlib.crc32(str(header.StudyInstanceUID).encode()):010d}"
    header.StudyDescription = f"MR prostate {header.PatientID}"
    header.ReferringPhysicianName = f"{generator.choice(SURNAMES)}^Doctor"
    header.OperatorsName = f"{generator.choice(SURNAMES)}^Operator"
    header.InstitutionName = SCANNERS[source.scanner].institution
    header.InstitutionAddress = "1 Phantom Street, Nowhere"
    header.StationName, header.DeviceSerialNumber = f"MR{source.scanner}1", f"{ord(source.scanner):05d}"
    private = header.private_block(0x0031, "PHANTOM ARCHIVE 1.0", create=True)
    private.add_new(0x10, "LO", f"{header.PatientName} {day}")


def _uid(*parts: str) -> str:
    return str(generate_uid(entropy_srcs=list(parts)))


def _export(scanner: Scanner, adc: Array, header: Dataset) -> Stored:
    """Stored values (slices, rows, columns); adds to `header` how to convert them to ADC."""
    clipped = np.clip(adc, 0, scanner.window)
    if scanner.gamma != 1:
        _add_lut(scanner, header)
        stored = STORED_MAX * (clipped / scanner.window) ** (1 / scanner.gamma)
    elif scanner.rescale:
        step = round(scanner.window / STORED_MAX, 6)
        stored = clipped / step
        slope = f"{step * scanner.per_unit:.10g}"
        header.RescaleIntercept, header.RescaleSlope, header.RescaleType = "0", slope, "US"
        if scanner.real_world:
            _add_real_world_value(header, step)
    else:
        stored = clipped
    rounded: Stored = np.rint(stored).clip(0, STORED_MAX).astype(np.uint16)
    return rounded


def _grey(image: Array, header: Dataset) -> Stored:
    """Stored values (slices, rows, columns) of grey values in no unit, for which `header` gets no conversion."""
    rounded: Stored = np.rint(image).clip(0, STORED_MAX).astype(np.uint16)
    return rounded


def _add_lut(scanner: Scanner, header: Dataset) -> None:
    item = Dataset()
    item.LUTDescriptor = [STORED_MAX + 1, 0, 16]
    item.LUTExplanation = "ADC 1e-6 mm2/s"
    item.ModalityLUTType = "US"
    table = scanner.window * (np.arange(STORED_MAX + 1) / STORED_MAX) ** scanner.gamma
    item.add_new("LUTData", "OW", np.rint(table).astype("<u2").tobytes())
    header.ModalityLUTSequence = [item]


def _add_real_world_value(header: Dataset, slope: float) -> None:
    unit = Dataset()
    unit.CodeValue, unit.CodingSchemeDesignator, unit.CodeMeaning = "um2/s", "UCUM", "um2/s"
    item = Dataset()
    item.RealWorldValueFirstValueMapped, item.RealWorldValueLastValueMapped = 0, STORED_MAX
    item.RealWorldValueIntercept, item.RealWorldValueSlope = 0.0, slope
    item.LUTExplanation, item.LUTLabel = "Apparent diffusion coefficient", "ADC"
    item.MeasurementUnitsCodeSequence = [unit]
    header.RealWorldValueMappingSequence = [item]


def _instance(header: Dataset, affine: Affine, index: int, plane: Stored, number: int) -> Dataset:
    """One slice: `header` with its position in the patient and its pixels."""
    lps = TO_LPS @ affine[:3]
    spacing = np.linalg.norm(lps[:, :2], axis=0)
    position = lps @ [0, 0, index, 1]
    dataset = Dataset(dict(header.items()))  # Dataset(header) would share its elements
    dataset.InstanceNumber = str(number)
    dataset.SOPInstanceUID = _uid(str(header.SeriesInstanceUID), str(number))
    dataset.ImagePositionPatient = [f"{value:.9g}" for value in position]
    dataset.ImageOrientationPatient = [f"{value:.9g}" for value in (lps[:, :2] / spacing).T.ravel()]
    dataset.SliceLocation = f"{position @ np.cross(*(lps[:, :2] / spacing).T):.9g}"
    dataset.PixelSpacing = [f"{spacing[1]:.9g}", f"{spacing[0]:.9g}"]
    dataset.Rows, dataset.Columns = plane.shape
    dataset.PixelData = plane.astype("<u2").tobytes()
    return dataset


def _dicom_bytes(dataset: Dataset) -> bytes:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = dataset.SOPClassUID, dataset.SOPInstanceUID
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.ImplementationClassUID = _uid("consilium phantom")
    meta.ImplementationVersionName = "CONSILIUM"
    stream = io.BytesIO()
    FileDataset(stream, dataset, file_meta=meta, preamble=b"\0" * 128).save_as(stream, enforce_file_format=True)
    return stream.getvalue()
