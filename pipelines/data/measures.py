"""What a study is before anything is resampled: its spacing, its shape, what is inside its mask. And many in a few
numbers. This module reads no files.

Axes are in the house's reading order: (depth, rows, columns) of a volume, (rows, columns) of a picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from federation.task import IGNORED
from pipelines.data.grids.geometry import (
    classes_on_grid,
    find_bounding_box,
    grid_of,
    mask_on_grid,
    reading_order,
    spacing_of,
)
from pipelines.data.study import Array, Unusable, Volume

POINTS = 1000
"""Of each study's foreground so many values count, evenly spaced in their order, so that all studies count alike."""
SHARES: Mapping[str, float] = {"p10": 10.0, "p50": 50.0, "p90": 90.0, "p95": 95.0}
"""Percentiles over studies, by name. None is the largest or the smallest, which would be one study's."""
INTENSITIES: Mapping[str, float] = {"p0.5": 0.5, "p50": 50.0, "p99.5": 99.5}
"""Percentiles over the foreground's values, by name."""
MODALITIES = frozenset({"CT", "MR", "PT", "US", "NM", "MG", "XA", "CR", "DX", "OP", "OPT", "XC", "ES", "SM"})
"""Values of DICOM's Modality (PS3.3 C.7.3.1.1.1) that may leave; a header can hold any text."""
UNKNOWN = "unknown"


@dataclass(frozen=True)
class MeasuredStudy:
    """One study as it was read. patient: the identifier in the files, which stays inside.

    spacing: of voxels, mm by axis; of pictures 1. voxels: by axis. foreground: (POINTS,) values inside the mask, in
    ascending order, or (0,) where the mask is empty. moments: mean and variance inside the mask; (0, 0) where it is
    empty. volumes: of each class, mm³, or pixels of a picture; 0 where it is not to be seen. modality: as the header
    says, if it is one of `MODALITIES`. box_share: the share of its voxels in the bounding box of those that are not 0.
    """

    patient: str
    study: str
    spacing: tuple[float, ...]
    voxels: tuple[int, ...]
    foreground: Array
    moments: tuple[float, float]
    volumes: tuple[float, ...]
    modality: str = UNKNOWN
    box_share: float = 1.0

    @property
    def extent(self) -> tuple[float, ...]:
        """Its length along each axis, mm, or pixels of a picture."""
        return tuple(step * count for step, count in zip(self.spacing, self.voxels, strict=True))


def measure_volume(
    patient: str, study: str, image: Volume, mask: Volume, modality: str = "", classes: int | None = None
) -> MeasuredStudy:
    """Measure a volume; the mask may lie on another grid, and is then looked up at the image's voxels.

    classes: the mask is a map of so many, 0 = background; None = it is one, wherever it is above 0.

    Raises:
        Unusable: `single_slice`; `not_finite`, inside the mask.
    """
    stack = reading_order(image)
    spacing = tuple(float(length) for length in spacing_of(stack.affine)[::-1])
    voxels = tuple(int(count) for count in stack.values.shape[::-1])
    if voxels[0] < 2:
        raise Unusable("single_slice", "one slice only; a volume needs at least 2. Send the whole series.")
    class_map = mask_on_grid(mask, grid_of(stack)) if classes is None else classes_on_grid(mask, grid_of(stack))
    foreground, moments = _summarize_values(np.asarray(stack.values[_is_inside(class_map)], np.float32))
    volumes = tuple(count * float(np.prod(spacing)) for count in _count_voxels(class_map, classes or 1))
    known_modality = modality.upper() if modality.upper() in MODALITIES else UNKNOWN
    nonzero = stack.values != 0
    box_share = nonzero[find_bounding_box(nonzero)].size / nonzero.size if nonzero.any() else 0.0
    return MeasuredStudy(patient, study, spacing, voxels, foreground, moments, volumes, known_modality, box_share)


def measure_picture(patient: str, study: str, grey: Array, classes: np.ndarray, count: int) -> MeasuredStudy:
    """Measure a picture. grey: (rows, columns), from 0 to 1. classes: of each pixel, 0 = background, to `count`."""
    foreground, moments = _summarize_values(np.asarray(grey[_is_inside(classes)], np.float32))
    rows, columns = grey.shape
    volumes = _count_voxels(classes, count)
    return MeasuredStudy(patient, study, (1.0, 1.0), (rows, columns), foreground, moments, volumes)


def _is_inside(class_map: np.ndarray) -> np.ndarray:
    """Where a class is, beside background and what is ignored."""
    inside: np.ndarray = (class_map > 0) & (class_map != IGNORED)
    return inside


def _count_voxels(class_map: np.ndarray, classes: int) -> tuple[float, ...]:
    """How many voxels, or pixels, each class has, but for the background."""
    return tuple(float(np.count_nonzero(class_map == number)) for number in range(1, classes + 1))


def _summarize_values(values: Array) -> tuple[Array, tuple[float, float]]:
    """`POINTS` of the values, and their mean and variance."""
    if not values.size:
        return np.zeros(0, np.float32), (0.0, 0.0)
    if not np.isfinite(values).all():
        raise Unusable("not_finite", "some values are NaN or infinite; none may be. Set them to 0 in the export.")
    exact = np.asarray(values, np.float64)
    points = np.quantile(exact, (np.arange(POINTS) + 0.5) / POINTS)
    return points.astype(np.float32), (float(exact.mean()), float(exact.var()))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Many studies in a few numbers. spacing, voxels, extent: percentiles over studies (`SHARES`), by axis. intensity:
    percentiles (`INTENSITIES`), mean and sd over the foregrounds of all studies, of which each counts alike; empty
    where no mask shows anything. volumes: class -> percentiles over the studies that show it. modalities: studies of
    each. box_share: median share of voxels in the bounding box of those that are not 0.
    """

    studies: int
    spacing: Mapping[str, list[float]]
    voxels: Mapping[str, list[float]]
    extent: Mapping[str, list[float]]
    intensity: Mapping[str, float]
    volumes: Mapping[str, Mapping[str, float]]
    modalities: Mapping[str, int]
    box_share: float


def summarize_studies(studies: Sequence[MeasuredStudy], classes: Sequence[str]) -> Figures:
    """The figures of at least one study, whatever their order. classes: names of those in `volumes`."""
    by_class = np.array([study.volumes for study in studies])
    return Figures(
        studies=len(studies),
        spacing=_axis_percentiles([study.spacing for study in studies]),
        voxels=_axis_percentiles([study.voxels for study in studies]),
        extent=_axis_percentiles([study.extent for study in studies]),
        intensity=_foreground_figures([study for study in studies if study.foreground.size]),
        volumes={
            name: {share: _round(np.percentile(visible, percent)) for share, percent in SHARES.items()}
            for number, name in enumerate(classes)
            for visible in [by_class[by_class[:, number] > 0, number]]
            if visible.size
        },
        modalities=dict(sorted(Counter(study.modality for study in studies).items())),
        box_share=_round(np.median([study.box_share for study in studies])),
    )


def _axis_percentiles(rows: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Percentiles of each column. rows: (n, axes)."""
    return {
        name: [_round(each) for each in np.percentile(np.array(rows, np.float64), share, axis=0)]
        for name, share in SHARES.items()
    }


def _foreground_figures(studies: Sequence[MeasuredStudy]) -> dict[str, float]:
    """Percentiles, mean and sd of the foregrounds together; empty if there are none."""
    if not studies:
        return {}
    values = np.concatenate([study.foreground for study in studies]).astype(np.float64)
    means, variances = np.array([study.moments for study in studies]).T
    mean = float(means.mean())
    spread = float(np.sqrt(max(0.0, (variances + means**2).mean() - mean**2)))
    percentiles = {name: _round(np.percentile(values, share)) for name, share in INTENSITIES.items()}
    return {**percentiles, "mean": _round(mean), "sd": _round(spread)}


def _round(value: float) -> float:
    """Six significant digits: headers differ beyond them by what converters rounded."""
    return float(f"{value:.6g}")
