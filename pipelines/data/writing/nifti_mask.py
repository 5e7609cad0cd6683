"""Encode a label map as a NIfTI file without text."""

from __future__ import annotations

import gzip

import nibabel
import numpy as np
from numpy.typing import NDArray

from pipelines.data.grids.geometry import corner_distance, invertible, spacing_of
from pipelines.data.study import Affine

EXACT = 1e-3  # voxels by which a qform may differ from the affine to be written beside it
SCANNER = 1  # both forms are in the coordinates of the scan (NIFTI_XFORM_SCANNER_ANAT)


def mask_bytes(mask: NDArray[np.integer], affine: Affine, *, packed: bool) -> bytes:
    """A label map (I, J, K), 0 = background, as a file of uint8 NIfTI-1. packed: by gzip.

    affine: (4, 4) RAS, mm. It becomes the sform, and also the qform if the axes are orthogonal, as a qform requires.
    The header has no text, and the packed file no name and no time.

    Raises:
        ValueError: not three axes, values outside 0 .. 255, or an affine that cannot be inverted; all at once.
    """
    problems = []
    if mask.ndim != 3:
        problems.append(f"a label map has three axes, found shape {mask.shape}")
    if mask.dtype.kind not in "iub" or (mask.size and not 0 <= int(mask.min()) <= int(mask.max()) <= 255):
        problems.append(f"a label map has whole numbers from 0 to 255, found {mask.dtype}")
    if affine.shape != (4, 4) or not invertible(affine):
        problems.append(f"the affine must be (4, 4) and invertible, found {np.round(affine, 3).tolist()}")
    if problems:
        raise ValueError("; ".join(problems))
    image = nibabel.Nifti1Image(mask.astype(np.uint8), None)
    image.header.set_xyzt_units("mm")
    image.header.set_intent("label")
    image.set_sform(affine, code=SCANNER)
    image.header.set_qform(affine, code=SCANNER, strip_shears=True)
    if corner_distance(affine, image.header.get_qform(), mask.shape) > EXACT * float(spacing_of(affine).min()):
        image.header.set_qform(None, code=0)
        image.header.set_zooms(spacing_of(affine))
    data: bytes = image.to_bytes()
    return gzip.compress(data, mtime=0) if packed else data
