"""Encode a label map on a DICOM series' grid as a DICOM Segmentation (PS3.3 A.51), by highdicom.

The result is not de-identified: a segmentation belongs to the patient and the study of its images, so it has their
names, numbers and dates (modules Patient and Study), as in the hospital's images, and stays with them. Segmentations of
de-identified images name nobody.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes

from pipelines.data.contents import read_dataset
from pipelines.data.dicom.concepts import SCHEME, concept
from pipelines.data.grids.geometry import same_grid, spacing_of
from pipelines.data.headers import Frame, Stack
from pipelines.data.index import readable
from pipelines.data.study import Unusable, Volume
from privacy.deidentify.keyed import new_uid

if TYPE_CHECKING:
    from highdicom.seg import Segmentation, SegmentDescription

NOTICE = "For research use only, not for diagnosis."
SERIES_NUMBER = 9000
"""Added to the series number of the images, to be higher than the numbers of a scanner."""
LONGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class SegMaker:
    """The origin and time of the segmentation. label: of the model; digest: of its file. key: for the UIDs, at least
    16 bytes: the same key, images, mask and time give the same UIDs.
    """

    key: bytes
    label: str
    digest: str
    when: datetime


def seg_bytes(mask: Volume, images: Stack, classes: Sequence[str], maker: SegMaker) -> bytes:
    """A binary segmentation with a segment for each class, as a file.

    Empty slices get no frame, unless the whole mask is empty: then every slice gets one.

    mask: (I, J, K) label map, 0 = background, 1 = the first of `classes`, on the grid of `images`. images: a stack from
    `pipelines.data.dicom.reader`; of an enhanced file its frames.

    Raises:
        ValueError: the mask is not on the grid or has values without a class, or there are no classes.
        Unusable: `missing_tag`, `several_files` (slices of more than one multi-frame file), or `unreadable` (the
            images' header values cannot be written).
    """
    values = _checked(mask, images, classes)
    frames = images.volumes[0]
    with readable(frames[0].path.name):
        sources = _sources(frames)
        made = _segmentation(values, mask, frames, sources, classes, maker)
        data = io.BytesIO()
        made.save_as(data, enforce_file_format=True)
    return data.getvalue()


def _checked(mask: Volume, images: Stack, classes: Sequence[str]) -> NDArray[np.uint8]:
    problems = []
    if not same_grid((mask.affine, mask.values.shape), (images.affine, images.shape)):
        problems.append(
            f"the mask has the shape {mask.values.shape} and is not on the grid of the images, {images.shape}; bring "
            "it there with to_source_grid"
        )
    if mask.values.dtype.kind not in "iub":
        problems.append(f"the mask is of type {mask.values.dtype}; a label map of whole numbers is needed")
    elif mask.values.size and not 0 <= int(mask.values.min()) <= int(mask.values.max()) <= min(len(classes), 255):
        problems.append(
            f"the mask has numbers from {mask.values.min()} to {mask.values.max()}; 0 to {len(classes)} are named"
        )
    if not classes:
        problems.append("classes: empty; name at least one")
    if problems:
        raise ValueError("; ".join(problems))
    return np.asarray(mask.values, np.uint8)


def _sources(frames: Sequence[Frame]) -> list[Dataset]:
    """The headers of the files, in the order of their slices; one enhanced file once."""
    sources = [read_dataset(path, stop_before_pixels=True) for path in dict.fromkeys(one.path for one in frames)]
    if len(sources) > 1 and len(sources) != len(frames):
        raise Unusable(
            "several_files", f"{len(frames)} slices lie in {len(sources)} multi-frame files; one is needed. Export so."
        )
    missing = [key for key in ("FrameOfReferenceUID", "StudyInstanceUID") if not all(one.get(key) for one in sources)]
    if missing:
        raise Unusable("missing_tag", f"without a value: {', '.join(missing)}. Export with complete headers.")
    return sources


def _segmentation(
    values: NDArray[np.uint8],
    mask: Volume,
    frames: Sequence[Frame],
    sources: list[Dataset],
    classes: Sequence[str],
    maker: SegMaker,
) -> Segmentation:
    from highdicom.seg import Segmentation  # slow to import

    first = sources[0]
    known = f"{first.SeriesInstanceUID}/{maker.digest}/{maker.when.isoformat()}"
    known += f"/{hashlib.sha256(values.tobytes()).hexdigest()}/{'/'.join(classes)}"
    made = Segmentation(
        source_images=sources,
        pixel_array=np.ascontiguousarray(values.transpose(2, 1, 0)),
        segmentation_type="BINARY",
        segment_descriptions=[_segment(number, name, maker) for number, name in enumerate(classes, start=1)],
        series_instance_uid=new_uid(maker.key, f"series/{known}"),
        series_number=min(SERIES_NUMBER + int(first.get("SeriesNumber") or 0), LONGEST_NUMBER),
        sop_instance_uid=new_uid(maker.key, f"instance/{known}"),
        instance_number=1,
        manufacturer="Consilium",
        manufacturer_model_name=maker.label[:64],
        software_versions=maker.digest[:64],
        device_serial_number=maker.digest[:64],
        content_label="SEGMENTATION",
        content_description=f"By the model {maker.label}. {NOTICE}"[:64],
        series_description=f"{', '.join(classes)} by {maker.label}"[:64],
        omit_empty_frames=bool(values.any()),
        content_date=maker.when.date(),
        content_time=maker.when.time(),
        coding_schemes=_schemes(classes),
        **_geometry(mask, frames),
    )
    _settle(made, new_uid(maker.key, f"dimensions/{known}"), maker.when)
    return made


def _settle(made: Segmentation, dimensions: str, when: datetime) -> None:
    """Replace the library's times and random UIDs, so that the same input gives the same bytes."""
    made.InstanceCreationDate, made.InstanceCreationTime = made.ContentDate, made.ContentTime
    for item in made.get("ContributingEquipmentSequence") or []:
        if "ContributionDateTime" in item:
            item.ContributionDateTime = when.strftime("%Y%m%d%H%M%S")
    for item in (*made.DimensionOrganizationSequence, *made.DimensionIndexSequence):
        item.DimensionOrganizationUID = dimensions


def _geometry(mask: Volume, frames: Sequence[Frame]) -> dict[str, Any]:
    """The position of each slice, from its own header."""
    import highdicom  # slow to import

    values, spacing = frames[0].values, float(spacing_of(mask.affine)[2])
    return {
        "pixel_measures": highdicom.PixelMeasuresSequence(
            pixel_spacing=[float(number) for number in values["PixelSpacing"]],
            slice_thickness=float(values.get("SliceThickness") or spacing),
            spacing_between_slices=spacing,
        ),
        "plane_orientation": highdicom.PlaneOrientationSequence(
            "PATIENT", [float(number) for number in values["ImageOrientationPatient"]]
        ),
        "plane_positions": [
            highdicom.PlanePositionSequence("PATIENT", [float(number) for number in one.values["ImagePositionPatient"]])
            for one in frames
        ],
    }


def _segment(number: int, name: str, maker: SegMaker) -> SegmentDescription:
    import highdicom  # slow to import
    from highdicom.seg import SegmentDescription  # slow to import

    meant = concept(name)
    return SegmentDescription(
        segment_number=number,
        segment_label=name[:64],
        segmented_property_category=meant.category,
        segmented_property_type=meant.kind,
        algorithm_type="AUTOMATIC",
        algorithm_identification=highdicom.AlgorithmIdentificationSequence(
            name=maker.label[:64], version=maker.digest[:64], family=codes.cid7162.ArtificialIntelligence
        ),
    )


def _schemes(classes: Sequence[str]) -> list[Any] | None:
    """The description of our own coding scheme, if it is used."""
    from highdicom.coding_schemes import CodingSchemeIdentificationItem  # slow to import

    if all(concept(name).kind.scheme_designator != SCHEME for name in classes):
        return None
    return [CodingSchemeIdentificationItem(designator=SCHEME, name="Names of classes in Consilium")]
