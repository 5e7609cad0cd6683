"""A mask of a volume, in whatever format a hospital keeps it."""

from __future__ import annotations

from pathlib import Path

from pipelines.data.contents import HEAD, is_dicom
from pipelines.data.dicom.reader import SUFFIXES
from pipelines.data.dicom.segmentation import read_seg
from pipelines.data.nifti.reader import read_volume
from pipelines.data.study import Volume


def read_mask(path: Path, segment: str | None = None) -> Volume:
    """Read one mask: a DICOM Segmentation, or else a NIfTI file; inside is wherever it is above 0.

    segment: of a DICOM Segmentation, which of its segments; None = all of them, which then must not overlap.

    Raises:
        Unusable: as `read_seg` and `read_volume`.
        OSError: the file is gone.
    """
    with path.open("rb") as file:
        named = is_dicom(file.read(HEAD))
    if named or path.suffix.lower() in SUFFIXES:
        return read_seg(path, None if segment is None else (segment,))
    return read_volume(path)
