"""Encode a label map on a DICOM series' grid as a DICOM Segmentation (PS3.3 A.51), by highdicom.

A segmentation belongs to the patient and the study of its images, so it has their names, numbers and dates (modules
Patient and Study), as in the hospital's images, and stays with them; or, where that is wanted, those of the images as
de-identification writes them. Segmentations of de-identified images name nobody.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.sr.codedict import codes

from evaluation.masks import is_any_of
from pipelines.data.dicom.concepts import SCHEME, SCHEME_NAME, class_concept
from pipelines.data.grids.geometry import is_same_grid, spacing_of
from pipelines.data.headers import Frame, Stack
from pipelines.data.index import convert_read_errors
from pipelines.data.study import Unusable, Volume
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
    from highdicom.seg import Segmentation, SegmentDescription

SERIES_NUMBER = 9000
"""Added to the series number of the images, to be higher than the numbers of a scanner."""


def seg_bytes(
    mask: Volume,
    images: Stack,
    classes: Sequence[str],
    maker: ResultMaker,
    pseudonymous: Pseudonymous | None = None,
    *,
    unlike: bool | None = None,
    regions: Mapping[str, Sequence[int]] | None = None,
) -> bytes:
    """A binary segmentation with a segment for each class, or else for each region, as a file.

    Empty slices get no frame, unless the whole mask is empty: then every slice gets one.

    mask: (I, J, K) label map, 0 = background, 1 = the first of `classes`, on the grid of `images`. images: a stack from
    `pipelines.data.dicom.reader`; of an enhanced file its frames. pseudonymous: None = as the images are. unlike:
    whether the study is unlike the training studies, which the series' description then says. regions: region -> its
    classes; segments of regions may overlap.

    Raises:
        ValueError: the mask is not on the grid or has values without a class, or there are no classes.
        Unusable: `missing_tag`, `several_files` (slices of more than one multi-frame file), `unreadable` (the
            images' header values cannot be written), or a reason of de-identification.
    """
    values = _check_mask(mask, images, classes)
    frames = images.volumes[0]
    with convert_read_errors(frames[0].path.name):
        source = read_image_headers(frames, pseudonymous)
        _check_sources(source.headers, frames)
        when = shift_maker_time(maker, source, pseudonymous)
        shown = values if regions is None else _stack_regions(values, regions)
        names = classes if regions is None else [*regions]
        made = _build_segmentation(shown, mask, frames, source, names, when, unlike)
        data = io.BytesIO()
        made.save_as(data, enforce_file_format=True)
    return check_leftovers(data.getvalue(), source)


def _check_mask(mask: Volume, images: Stack, classes: Sequence[str]) -> NDArray[np.uint8]:
    """The mask as uint8. Raises: ValueError: it does not fit the images or the classes; all problems at once."""
    problems = []
    if not is_same_grid((mask.affine, mask.values.shape), (images.affine, images.shape)):
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


def _stack_regions(values: NDArray[np.uint8], regions: Mapping[str, Sequence[int]]) -> NDArray[np.uint8]:
    """The masks of regions (I, J, K, regions), 0 or 1, of a label map (I, J, K)."""
    return np.stack([is_any_of(values, numbers) for numbers in regions.values()], axis=-1).astype(np.uint8)


def _check_sources(sources: Sequence[Dataset], frames: Sequence[Frame]) -> None:
    """Refuse slices in several multi-frame files, and headers without a frame of reference."""
    if len(sources) > 1 and len(sources) != len(frames):
        raise Unusable(
            "several_files", f"{len(frames)} slices lie in {len(sources)} multi-frame files; one is needed. Export so."
        )
    if not all(header.get("FrameOfReferenceUID") for header in sources):
        raise Unusable("missing_tag", "without a value: FrameOfReferenceUID. Export with complete headers.")


def _build_segmentation(
    values: NDArray[np.uint8],
    mask: Volume,
    frames: Sequence[Frame],
    images: Images,
    classes: Sequence[str],
    maker: ResultMaker,
    unlike: bool | None,
) -> Segmentation:
    """The segmentation, with UIDs that its content determines. values: (I, J, K) numbers of segments, or (I, J, K,
    segments) of 0 and 1.
    """
    from highdicom.seg import Segmentation  # slow to import

    uid_text = f"{images.first.SeriesInstanceUID}/{maker.digest}/{maker.when.isoformat()}"
    uid_text += f"/{hashlib.sha256(values.tobytes()).hexdigest()}/{'/'.join(classes)}{'/unlike' if unlike else ''}"
    made = Segmentation(
        source_images=_align_headers(images.headers),
        pixel_array=np.ascontiguousarray(values.transpose(2, 1, 0, *range(3, values.ndim))),
        segmentation_type="BINARY",
        segment_descriptions=[_describe_segment(number, name, maker) for number, name in enumerate(classes, start=1)],
        series_instance_uid=new_uid(maker.key, f"series/{uid_text}"),
        series_number=series_number(images.first, SERIES_NUMBER),
        sop_instance_uid=new_uid(maker.key, f"instance/{uid_text}"),
        instance_number=1,
        **equipment_elements(maker),
        content_label="SEGMENTATION",
        content_description=f"By the model {maker.label}. {NOTICE}"[:64],
        series_description=describe_series(f"{', '.join(classes)} by ", maker.label, "", unlike),
        omit_empty_frames=bool(values.any()),
        content_date=maker.when.date(),
        content_time=maker.when.time(),
        coding_schemes=_coding_schemes(classes),
        **_slice_geometry(mask, frames),
    )
    assign_to_study(made, images, maker)
    for item in (*made.DimensionOrganizationSequence, *made.DimensionIndexSequence):
        item.DimensionOrganizationUID = new_uid(maker.key, f"dimensions/{uid_text}")
    return made


def _align_headers(headers: Sequence[Dataset]) -> list[Dataset]:
    """Headers for the library, which requires directions that are equal to the last digit. Scanners round them slice by
    slice; the reader accepts differences within its tolerance.
    """
    sources = [strip_identity(header) for header in headers]
    for source in sources[1:]:
        for keyword in ("ImageOrientationPatient", "PixelSpacing"):
            setattr(source, keyword, sources[0].get(keyword))
    return sources


def _slice_geometry(mask: Volume, frames: Sequence[Frame]) -> dict[str, Any]:
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
            highdicom.PlanePositionSequence(
                "PATIENT", [float(number) for number in frame.values["ImagePositionPatient"]]
            )
            for frame in frames
        ],
    }


def _describe_segment(number: int, name: str, maker: ResultMaker) -> SegmentDescription:
    """The description of one segment: its concept, and the model that made it."""
    import highdicom  # slow to import
    from highdicom.seg import SegmentDescription  # slow to import

    meant = class_concept(name)
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


def _coding_schemes(classes: Sequence[str]) -> list[Any] | None:
    """The description of our own coding scheme, if it is used."""
    from highdicom.coding_schemes import CodingSchemeIdentificationItem  # slow to import

    if all(class_concept(name).kind.scheme_designator != SCHEME for name in classes):
        return None
    return [CodingSchemeIdentificationItem(designator=SCHEME, name=SCHEME_NAME)]
