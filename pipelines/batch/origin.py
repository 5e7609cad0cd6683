"""The origin of a row in the table of predictions: the archive's identifiers of its images, and the model's."""

from __future__ import annotations

import numpy as np

from pipelines.data.contents import read_dataset
from pipelines.data.grids.geometry import reading_order
from pipelines.data.headers import Frame, text_of
from pipelines.data.index import Candidate, convert_read_errors
from pipelines.data.study import Volume
from pipelines.loader.command_line import installed_version
from pipelines.models.file import Ready

ORIGIN = ("accession_number", "study_date", "study_uid", "series_uid", "sop_instance_uid")
MODEL = ("model", "model_digest", "version")
UPRIGHT = 0.5  # of a unit step: the stack's slices are the slices that were scored


def read_origin(candidate: Candidate | None, highest: Frame | None) -> tuple[str, ...]:
    """The cells of `ORIGIN`; empty if there are no DICOM files. highest: the image with the highest score.

    Raises:
        Unusable: the first file cannot be read any more.
    """
    if candidate is None or candidate.stack is None:
        return ("",) * len(ORIGIN)
    first = candidate.stack.volumes[0][0]
    with convert_read_errors(first.path.name):
        keywords = ["AccessionNumber", "StudyDate", "StudyInstanceUID", "SeriesInstanceUID", "SpecificCharacterSet"]
        header = read_dataset(first.path, stop_before_pixels=True, specific_tags=keywords)
        values = tuple(text_of(header.get(keyword)).strip() for keyword in keywords[:4])
    return (*values, "" if highest is None else str(highest.values["SOPInstanceUID"]))


def model_cells(ready: Ready) -> tuple[str, ...]:
    """The cells of `MODEL`."""
    return ready.origin.label, ready.digest, installed_version()


def find_frame(candidate: Candidate | None, position: float) -> Frame | None:
    """The image on which a scored slice lies.

    position: index of the slice from inferior to superior, as in `Examples`. None if the files' images are not the
    slices that were scored: sagittal images read as axial slices, or no DICOM files.
    """
    if candidate is None or candidate.stack is None:
        return None
    columns, rows, slices = candidate.stack.shape
    stored = Volume(np.broadcast_to(np.uint8(0), (columns, rows, slices)), candidate.affine)
    turned = np.linalg.inv(candidate.affine) @ reading_order(stored).affine
    if abs(turned[2, 2]) < UPRIGHT:
        return None
    index = round(float((turned @ np.array([0.0, 0.0, position, 1.0]))[2]))
    frames = candidate.stack.volumes[0]
    return frames[index] if 0 <= index < len(frames) else None
