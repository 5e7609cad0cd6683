"""Encode a picture of a result as a DICOM Secondary Capture Image (PS3.3 A.8.1), by highdicom.

Every viewer shows such an image; few show a parametric map, which would keep the numbers. The image is in colour and
not compressed, refers to the image that it was drawn on (SourceImageSequence), and describes its derivation.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes
from pydicom.uid import ExplicitVRLittleEndian

from pipelines.data.headers import Frame, Stack
from pipelines.data.index import convert_read_errors
from pipelines.data.writing.dicom_source import (
    NOTICE,
    Images,
    Pseudonymous,
    ResultMaker,
    assign_to_study,
    check_leftovers,
    describe_series,
    equipment_elements,
    read_image_headers,
    series_number,
    shift_maker_time,
    strip_identity,
)
from privacy.deidentify.keyed import new_uid

if TYPE_CHECKING:
    from highdicom.sc import SCImage

SERIES_NUMBER = 9200
"""Added to the series number of the images."""


def capture_bytes(
    picture: NDArray[np.uint8],
    drawn_on: Frame,
    images: Stack,
    maker: ResultMaker,
    *,
    derivation: str,
    unlike: bool | None = None,
    pseudonymous: Pseudonymous | None = None,
) -> bytes:
    """A picture as a file of the study.

    picture: (rows, columns, 3) RGB, with the words that it is for research only. drawn_on: the image of `images` that
    it shows, in its file's orientation. derivation: how it was made, a sentence. unlike: whether the study is unlike
    the training studies.

    Raises:
        ValueError: not such a picture.
        Unusable: as of `report_bytes`.
    """
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise ValueError(f"a picture is (rows, columns, 3) uint8, found {picture.shape} {picture.dtype}")
    with convert_read_errors(drawn_on.path.name):
        source = read_image_headers([drawn_on], pseudonymous)
        made = _build_capture(
            picture, drawn_on, source, images, shift_maker_time(maker, source, pseudonymous), derivation, unlike
        )
        data = io.BytesIO()
        made.save_as(data, enforce_file_format=True)
    return check_leftovers(data.getvalue(), source)


def _build_capture(
    picture: NDArray[np.uint8],
    drawn_on: Frame,
    source: Images,
    images: Stack,
    maker: ResultMaker,
    derivation: str,
    unlike: bool | None,
) -> SCImage:
    """The Secondary Capture Image, with UIDs that its content determines."""
    from highdicom.sc import SCImage  # slow to import

    digest = hashlib.sha256(picture.tobytes() + f"{derivation}{unlike}".encode()).hexdigest()
    seed = f"capture/{source.first.SOPInstanceUID}/{drawn_on.index}/{maker.digest}/{maker.when.isoformat()}/{digest}"
    made = SCImage.from_ref_dataset(
        strip_identity(source.first),
        pixel_array=picture,
        photometric_interpretation="RGB",
        bits_allocated=8,
        coordinate_system="PATIENT",
        patient_orientation=_patient_orientation(images),
        series_instance_uid=new_uid(maker.key, f"series/{seed}"),
        series_number=series_number(source.first, SERIES_NUMBER),
        sop_instance_uid=new_uid(maker.key, f"instance/{seed}"),
        instance_number=1,
        **equipment_elements(maker),
        series_description=describe_series("Map by ", maker.label, ", research use only", unlike),
        content_date=maker.when.date(),
        content_time=maker.when.time(),
        transfer_syntax_uid=ExplicitVRLittleEndian,
    )
    assign_to_study(made, source, maker)
    made.SeriesDate = made.DateOfSecondaryCapture = made.ContentDate
    made.SeriesTime = made.TimeOfSecondaryCapture = made.ContentTime
    _put_body_part(made, source.first)
    made.ConversionType = "WSD"
    made.ImageType = ["DERIVED", "SECONDARY"]
    made.BurnedInAnnotation = "NO"  # none that identifies the patient
    made.DerivationDescription = f"{derivation} {NOTICE}"
    made.SourceImageSequence = [_source_item(source.first, drawn_on)]
    return made


def _put_body_part(made: Dataset, header: Dataset) -> None:
    """As in the image. Laterality is required, possibly empty, unless the body part is known not to be paired."""
    for keyword in ("BodyPartExamined", "Laterality"):
        if header.get(keyword):
            setattr(made, keyword, header[keyword].value)
    if "BodyPartExamined" not in made and "Laterality" not in made:
        made.Laterality = None


def _source_item(header: Dataset, drawn_on: Frame) -> Dataset:
    """The reference to the image on which the picture was drawn."""
    item, purpose, code = Dataset(), Dataset(), codes.DCM.SourceImageForImageProcessingOperation
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = header.SOPClassUID, header.SOPInstanceUID
    if drawn_on.frames > 1:
        item.ReferencedFrameNumber = drawn_on.index + 1
    purpose.CodeValue, purpose.CodingSchemeDesignator, purpose.CodeMeaning = code.value, "DCM", code.meaning
    item.PurposeOfReferenceCodeSequence = [purpose]
    return item


def _patient_orientation(images: Stack) -> tuple[str, str]:
    """The direction of the patient in which the columns and the rows of the images go, as single letters."""
    letters = []
    for axis in images.affine[:3, :2].T:  # RAS
        largest = int(np.abs(axis).argmax())
        letters.append("RAH"[largest] if axis[largest] > 0 else "LPF"[largest])
    return letters[0], letters[1]
