"""Write a segmentation model's masks of new studies, each in the study's format: DICOM, NIfTI or picture.

Masks go into the folder `masks`, named like the NIfTI file or picture, or by the UID of the DICOM series. They are maps
of classes; of regions, which may overlap, a DICOM mask has a segment each, and beside the others there is a mask of 0
and 1 of each region in `regions/REGION`. For patient
data in DICOM masks see `pipelines.data.writing.dicom_segmentation`; NIfTI and PNG masks have none except in their
names.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.masks import is_any_of
from pipelines.batch.reports import series_name
from pipelines.data.folder import read_steadily
from pipelines.data.grids.geometry import Grid
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.data.index import Candidate
from pipelines.data.labels import Masks, find_mask, open_masks
from pipelines.data.nifti.reader import SUFFIXES, read_volume
from pipelines.data.restore import to_source_grid
from pipelines.data.sources import DicomSource, GlandMask, NiftiSource, PictureSource
from pipelines.data.studies import index_volumes
from pipelines.data.study import Array, Volume
from pipelines.data.writing.dicom_segmentation import seg_bytes
from pipelines.data.writing.dicom_source import Pseudonymous, ResultMaker
from pipelines.data.writing.nifti_mask import mask_bytes
from pipelines.data.writing.picture_mask import picture_mask, png_bytes
from pipelines.models.largest import keep_largest
from privacy.durable import write_whole

MASKS, REGIONS = "masks", "regions"
CUBIC_MM = 1000  # in a millilitre


@dataclass(frozen=True)
class MaskWriter:
    """Settings for writing masks of a folder's studies.

    images, names: settings of the examples, and names of classes 1, 2, ... out: the folder of results. folder: of the
    studies. candidates: by study; none for pictures. gland: the masks about which studies are cropped. visits: number
    of sessions of each patient. pseudonymous: None = DICOM masks name the patient as the images do. regions: region ->
    its classes, where a model has regions. largest: structures, by their classes, of which only the largest component
    is written.
    """

    images: Slices | Volumes | Pictures
    names: tuple[str, ...]
    maker: ResultMaker
    out: Path
    folder: Path
    candidates: Mapping[str, Candidate]
    gland: Masks | None
    visits: Mapping[str, int]
    pseudonymous: Pseudonymous | None = None
    regions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class WrittenMask:
    """sizes: of each region or else class, in ml, or for a picture as a share of its pixels. file: path below the
    folder of results. regions: those of the regions' own masks, if these are files of their own.
    """

    sizes: tuple[float, ...]
    file: str
    regions: tuple[str, ...] = ()


def open_mask_writer(
    images: Slices | Volumes | Pictures,
    names: tuple[str, ...],
    maker: ResultMaker,
    out: Path,
    *,
    source: DicomSource | NiftiSource | PictureSource,
    gland: str | None,
) -> MaskWriter:
    """Find the studies to segment, reading headers only. gland: folder of the masks about which they are cropped.

    Raises:
        ValueError: a folder is missing, or nothing fits.
    """
    root = Path(source.folder).resolve()
    if isinstance(images, Pictures) or isinstance(source, PictureSource):
        return MaskWriter(images, names, maker, out, root, {}, None, {})
    index = index_volumes(source, adc=images.values == "adc", each=True)
    visits = Counter(
        patient for patient, _ in {(candidate.patient, candidate.session) for candidate in index.candidates}
    )
    masks = None if gland is None else open_masks(GlandMask(folder=gland), "--gland")
    return MaskWriter(
        images, names, maker, out, root, {candidate.study: candidate for candidate in index.candidates}, masks, visits
    )


def write_mask(
    study: str,
    probabilities: Array,
    position: NDArray[np.float32],
    masks: MaskWriter,
    *,
    unlike: bool | None = None,
) -> WrittenMask:
    """Write the mask of one study.

    probabilities: (n, C, *spatial) of its examples. position: (n,), as in `Examples`. unlike: whether the study is
    unlike the training studies, which a DICOM mask states.

    Raises:
        Unusable: a reason of the writer.
        OSError: the disk.
    """
    if isinstance(masks.images, Pictures):
        mask = keep_largest(picture_mask(masks.folder / study, probabilities[0], masks.images), masks.largest)
        name, unit_size, encode = f"{study}.png", 1 / mask.size, png_bytes
    else:
        candidate, name = masks.candidates[study], file_name(study, masks, ".dcm")
        grid, gland = read_study_grid(study, masks)
        on_grid = to_source_grid(probabilities, position, grid, masks.images, gland)
        mask = keep_largest(on_grid.values.astype(np.uint8), masks.largest)
        grid_mask = Volume(mask, on_grid.affine)
        unit_size = abs(float(np.linalg.det(grid_mask.affine[:3, :3]))) / CUBIC_MM
        if candidate.stack is not None:
            stack = candidate.stack
            maker_settings = (stack, masks.names, masks.maker, masks.pseudonymous)
            named: dict[str, Any] = {"unlike": unlike, "regions": masks.regions or None}
            data = read_steadily(candidate.files, lambda: seg_bytes(grid_mask, *maker_settings, **named))
            write_whole(masks.out / MASKS / name, data)
            return WrittenMask(_measure_structures(mask, masks, unit_size), f"{MASKS}/{name}")
        encode = partial(mask_bytes, affine=grid_mask.affine, packed=name.lower().endswith(".gz"))
    write_whole(masks.out / MASKS / name, encode(mask))
    for region, numbers in masks.regions.items():
        write_whole(masks.out / REGIONS / region / name, encode(is_any_of(mask, numbers).astype(np.uint8)))
    places = tuple(f"{REGIONS}/{region}/{name}" for region in masks.regions)
    return WrittenMask(_measure_structures(mask, masks, unit_size), f"{MASKS}/{name}", places)


def _measure_structures(mask: NDArray[np.uint8], masks: MaskWriter, unit_size: float) -> tuple[float, ...]:
    """The size of each region, or else of each class, in a map of classes."""
    counts = np.bincount(mask.ravel(), minlength=len(masks.names) + 1)
    structures = [*masks.regions.values()] or [(number,) for number in range(1, len(masks.names) + 1)]
    return tuple(float(counts[[*numbers]].sum()) * unit_size for numbers in structures)


def read_study_grid(study: str, masks: MaskWriter) -> tuple[Grid, Volume | None]:
    """The study's own grid, and the mask about which it is cropped.

    Raises:
        Unusable: there is no such mask, or it cannot be read.
    """
    candidate = masks.candidates[study]
    grid = Grid(candidate.affine, (candidate.shape[0], candidate.shape[1], candidate.shape[2]))
    return grid, _read_gland(candidate, masks)


def file_name(study: str, masks: MaskWriter, ending: str) -> str:
    """The name of a study's result: that of its NIfTI file, or of its DICOM series with an ending."""
    if masks.candidates[study].stack is not None:
        return f"{series_name(study, masks.pseudonymous)}{ending}"
    return study if study.lower().endswith(SUFFIXES) else f"{study}.nii.gz"


def _read_gland(candidate: Candidate, masks: MaskWriter) -> Volume | None:
    """The gland mask of a candidate's patient; None if studies are not cropped about masks."""
    if masks.gland is None:
        return None
    visits = masks.visits[candidate.patient]
    path = find_mask(masks.gland, candidate.patient, missing="no_gland", session=candidate.session, visits=visits)
    return read_volume(path)


def is_mixed_with_studies(out: Path, folder: Path) -> bool:
    """Whether masks written below `out` would be read as studies of `folder`, or overwrite one."""
    out, folder = out.resolve(), folder.resolve()
    return out.is_relative_to(folder) or any(folder.is_relative_to(out / place) for place in (MASKS, REGIONS))


def remove_named_files(out: Path, names: Iterable[str], folder: str = MASKS) -> None:
    """Remove files of an earlier run, by their names below `out`; files outside `folder` stay. folder: of masks,
    regions, maps, reports or captures.

    Raises:
        OSError: the disk.
    """
    masks = (out / folder).resolve()
    for name in names:
        path = out / name
        if path.parent.resolve().is_relative_to(masks):
            path.unlink(missing_ok=True)


def build_result_maker(label: str, digest: str, when: datetime) -> ResultMaker:
    """The maker of a run's results. UIDs follow from the model's file, the images, the result and the time. They need
    no secret, since a result names its images.
    """
    return ResultMaker(hashlib.sha256(f"masks {digest}".encode()).digest(), label, digest, when)
