"""A segmenting model's masks of new studies, each as a file of the kind that the study is: DICOM, NIfTI or a picture.

Masks lie in the folder `masks`. A NIfTI file and a picture give theirs their name; that of a DICOM series is named by
the series' UID. What they say of patients: see `seg_writer`; NIfTI and PNG say nothing beside their names.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipelines.data.folder import steady
from pipelines.data.grids.source_grid import Grid, to_source_grid
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.data.index import Candidate
from pipelines.data.labels import Masks, find_mask, open_masks
from pipelines.data.nifti.reader import SUFFIXES, read_volume
from pipelines.data.sources import DicomSource, GlandMask, NiftiSource
from pipelines.data.studies import index_volumes
from pipelines.data.study import Array, Unusable, Volume
from pipelines.data.writing.dicom_segmentation import SegMaker, seg_bytes
from pipelines.data.writing.nifti_mask import mask_bytes
from pipelines.data.writing.picture_mask import picture_mask, png_bytes
from pipelines.runs.store import HIDDEN

MASKS = "masks"
ODD = re.compile(r"[^A-Za-z0-9._-]")
CUBIC_MM = 1000  # in a millilitre


@dataclass(frozen=True)
class Masking:
    """How masks of a folder's studies are written.

    images, names: what the network sees, and what its classes 1, 2, ... are called. out: the folder of results. folder:
    of the studies. candidates: by study; none for pictures. gland: the masks about which studies are cut. visits:
    sessions of each patient.
    """

    images: Slices | Volumes | Pictures
    names: tuple[str, ...]
    maker: SegMaker
    out: Path
    folder: Path
    candidates: Mapping[str, Candidate]
    gland: Masks | None
    visits: Mapping[str, int]


@dataclass(frozen=True)
class Masked:
    """sizes: of each class, in ml, or for a picture as a share of its pixels. file: below the folder of results."""

    sizes: tuple[float, ...]
    file: str


def open_masking(
    images: Slices | Volumes | Pictures,
    names: tuple[str, ...],
    maker: SegMaker,
    out: Path,
    *,
    folder: Path,
    source: DicomSource | NiftiSource | None,
    gland: str | None,
) -> Masking:
    """Find the studies that will be segmented, reading headers only.

    source: None for pictures. gland: folder of the masks about which studies are cut.

    Raises:
        ValueError: a folder is missing, or nothing fits.
    """
    root = folder.resolve()
    if source is None:
        return Masking(images, names, maker, out, root, {}, None, {})
    index = index_volumes(source, adc=not isinstance(images, Pictures) and images.values == "adc")
    visits = Counter(patient for patient, _ in {(one.patient, one.session) for one in index.candidates})
    masks = None if gland is None else open_masks(GlandMask(folder=gland), "--gland")
    return Masking(images, names, maker, out, root, {one.study: one for one in index.candidates}, masks, visits)


def write_masked(study: str, probabilities: Array, position: NDArray[np.float32], masking: Masking) -> Masked:
    """Write the mask of one study.

    probabilities: (n, C, *spatial) of its examples. position: (n,), as in `Examples`.

    Raises:
        Unusable: `not_finite` (the network gives no numbers), or a reason of the writer.
        OSError: the disk.
    """
    if not np.isfinite(probabilities).all():
        raise Unusable("not_finite", "the network gives no number for some pixels. Check the study's values.")
    if isinstance(masking.images, Pictures):
        mask = picture_mask(masking.folder / study, probabilities[0], masking.images)
        data, name, each = png_bytes(mask), f"{study}.png", 1 / mask.size
    else:
        candidate = masking.candidates[study]
        grid = Grid(candidate.affine, (candidate.shape[0], candidate.shape[1], candidate.shape[2]))
        found = to_source_grid(probabilities, position, grid, masking.images, _gland(candidate, masking))
        mask = found.values.astype(np.uint8)
        each = abs(float(np.linalg.det(found.affine[:3, :3]))) / CUBIC_MM
        if candidate.stack is not None:
            stack, name = candidate.stack, _series_name(study)
            data = steady(candidate.files, lambda: seg_bytes(found, stack, masking.names, masking.maker))
        else:
            name = study if study.lower().endswith(SUFFIXES) else f"{study}.nii.gz"
            data = mask_bytes(mask, found.affine, packed=name.lower().endswith(".gz"))
    _put(masking.out / MASKS / name, data)
    counts = np.bincount(mask.ravel(), minlength=len(masking.names) + 1)
    return Masked(tuple(float(count) * each for count in counts[1:]), f"{MASKS}/{name}")


def _gland(candidate: Candidate, masking: Masking) -> Volume | None:
    if masking.gland is None:
        return None
    visits = masking.visits[candidate.patient]
    path = find_mask(masking.gland, candidate.patient, missing="no_gland", session=candidate.session, visits=visits)
    return read_volume(path)


def _series_name(study: str) -> str:
    """The series' UID, and 8 letters, since one series may hold several stacks, and UIDs may be no UIDs."""
    told = hashlib.sha256(study.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    parts = [part for part in study.split("/") if part]
    return f"{ODD.sub('_', parts[-1])[:64].lstrip('.')}-{told}.dcm"


def lies_in(out: Path, folder: Path) -> bool:
    """Whether masks written below `out` would be read as studies of `folder`, or stand in the place of one."""
    out, folder = out.resolve(), folder.resolve()
    return out.is_relative_to(folder) or folder.is_relative_to(out / MASKS)


def forget_masks(out: Path, names: Iterable[str]) -> None:
    """Remove masks of an earlier run, by their names below `out`; what lies elsewhere is left alone.

    Raises:
        OSError: the disk.
    """
    masks = (out / MASKS).resolve()
    for name in names:
        path = out / name
        if path.parent.resolve().is_relative_to(masks):
            path.unlink(missing_ok=True)


def _put(path: Path, data: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{HIDDEN}{secrets.token_hex(8)}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def maker_of(label: str, digest: str, when: datetime) -> SegMaker:
    """Who makes the masks of a run. UIDs follow from the model's file, the images, the mask and the time: there is
    nothing to hide in them, since a segmentation names its images.
    """
    return SegMaker(hashlib.sha256(f"masks {digest}".encode()).digest(), label, digest, when)
