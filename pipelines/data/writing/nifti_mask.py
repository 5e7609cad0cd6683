"""Encode a label map, or a map of numbers, as a NIfTI file without text."""

from __future__ import annotations

import gzip

import nibabel
import numpy as np
from numpy.typing import NDArray

from pipelines.data.grids.geometry import corner_distance, is_invertible, spacing_of
from pipelines.data.study import Affine

EXACT = 1e-3  # voxels by which a qform may differ from the affine to be written, too
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
    if affine.shape != (4, 4) or not is_invertible(affine):
        problems.append(f"the affine must be (4, 4) and invertible, found {np.round(affine, 3).tolist()}")
    if problems:
        raise ValueError("; ".join(problems))
    return _encode_image(mask.astype(np.uint8), affine, "label", packed)


def map_bytes(values: NDArray[np.float32], affine: Affine, *, packed: bool) -> bytes:
    """A map (I, J, K) of numbers as a file of float32 NIfTI-1. affine, packed: as in `mask_bytes`.

    Raises:
        ValueError: not three axes, or an affine that cannot be inverted.
    """
    if values.ndim != 3 or affine.shape != (4, 4) or not is_invertible(affine):
        raise ValueError(f"a map has three axes and an affine that can be inverted, found {values.shape}")
    return _encode_image(values.astype(np.float32, copy=False), affine, "estimate", packed)


def image_bytes(values: NDArray[np.float32], affine: Affine) -> bytes:
    """An image (I, J, K) as a packed file of float32 NIfTI-1. affine: as in `mask_bytes`; a file holds float32 of it.

    Raises:
        ValueError: not three axes, or an affine that cannot be inverted.
    """
    if values.ndim != 3 or affine.shape != (4, 4) or not is_invertible(affine):
        raise ValueError(f"an image has three axes and an affine that can be inverted, found {values.shape}")
    data = _encode_image(values.astype(np.float32, copy=False), affine, "none", packed=False)
    return gzip.compress(data, 1, mtime=0)  # noise packs badly, and slowly at higher levels


def _encode_image(values: NDArray[np.generic], affine: Affine, intent: str, packed: bool) -> bytes:
    """The bytes of a NIfTI-1 file with this affine and intent, packed if asked."""
    image = nibabel.Nifti1Image(values, None)
    image.header.set_xyzt_units("mm")
    image.header.set_intent(intent)
    image.set_sform(affine, code=SCANNER)
    image.header.set_qform(affine, code=SCANNER, strip_shears=True)
    if corner_distance(affine, image.header.get_qform(), values.shape) > EXACT * float(spacing_of(affine).min()):
        image.header.set_qform(None, code=0)
        image.header.set_zooms(spacing_of(affine))
    data: bytes = image.to_bytes()
    return gzip.compress(data, mtime=0) if packed else data
