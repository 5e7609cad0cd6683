"""Sort the images of a series into stacks along their normal, with their position in the patient, and check for gaps.

A series may hold several stacks, of different orientations; and a stack may hold several volumes, one for each b-value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pipelines.data.dicom.diffusion import select_b_values
from pipelines.data.dicom.series import check_thinning
from pipelines.data.grids.geometry import (
    COSINE_TOLERANCE,
    SAME_POSITION_MM,
    Floats,
    is_same_grid,
    spacing_of,
    stack_slices,
    unit_normal,
)
from pipelines.data.headers import Frame, Stack, text_of
from pipelines.data.study import Unusable


def separate_stacks(group: Sequence[Frame]) -> dict[str, list[Frame]]:
    """The images of one series by stack, if an enhanced file names several stacks of different orientations.

    Returns:
        Stack -> its images. One unnamed stack if all orientations are the same, or stacks are not named.
    """
    orientations = [frame.values.get("ImageOrientationPatient") for frame in group]
    stacks: dict[str, list[Frame]] = {}
    for frame in group:
        stacks.setdefault(str(frame.values.get("StackID", "")), []).append(frame)
    if "" in stacks or all(_is_same_orientation(orientation, orientations[0]) for orientation in orientations):
        return {"": list(group)}
    return stacks


def _is_same_orientation(orientation: object, other: object) -> bool:
    """Whether two orientations are equal to within the tolerance; False if one is no set of numbers."""
    try:
        return bool(
            np.allclose(np.asarray(orientation, float), np.asarray(other, float), rtol=0, atol=COSINE_TOLERANCE)
        )
    except (TypeError, ValueError):
        return False


def build_plain_stack(group: Sequence[Frame], *, full_series: bool) -> Stack:
    """The stack of images with one image per position.

    full_series: whether these are all images of their series.

    Raises:
        Unusable: as `geometry.stack`; and `gap` if the header counts more slices.
    """
    order, affine = stack_slices(_first_orientation(group), _frame_positions(group), _pixel_spacing(group))
    _check_extent(group, len(group), full_series)
    check_thinning(group[0].values, float(spacing_of(affine)[2]))
    return Stack((tuple(group[position] for position in order),), affine)


def build_diffusion_stack(group: Sequence[Frame], *, full_series: bool) -> Stack:
    """The stack of diffusion-weighted images: one volume for each b-value, or several for several directions.

    Images that take no part in the fit are left out: those without a b-value (maps that the scanner computed), and
    those with one that `fit_adc` does not use.

    Raises:
        Unusable: as `build_plain_stack`; and `b_values` if there are fewer than two, or a position lacks one.
    """
    weighted = [frame for frame in group if frame.b_value is not None]
    b_values = sorted({float(frame.b_value) for frame in weighted if frame.b_value is not None})
    if len(b_values) < 2:
        raise Unusable(
            "b_values",
            f"the headers of {len(group)} images say these b-values: {b_values}; at least two are needed for "
            "derive: adc. Narrow `select` down to diffusion-weighted images, or use derive: none for ADC maps.",
        )
    used = select_b_values(b_values)
    place = _slice_positions(weighted)
    parts = {b: _split_volumes(weighted, place, b) for b in used}
    stacks = {
        b: [build_plain_stack(volume, full_series=full_series) for volume in volumes] for b, volumes in parts.items()
    }
    first = stacks[used[0]][0]
    for b, b_stacks in stacks.items():
        if not all(is_same_grid((first.affine, first.shape), (other.affine, other.shape)) for other in b_stacks):
            raise Unusable("b_values", f"the volumes of b = {used[0]:g} and {b:g} are not on one grid. Export again.")
    volumes = [(b, other.volumes[0]) for b, b_stacks in stacks.items() for other in b_stacks]
    return Stack(tuple(volume for _, volume in volumes), first.affine, tuple(b for b, _ in volumes))


def _slice_positions(group: Sequence[Frame]) -> NDArray[np.intp]:
    """The slice position (N,) of each image, counted from 0 along the normal."""
    along = _frame_positions(group) @ unit_normal(_first_orientation(group))
    order = np.argsort(along, kind="stable")
    place = np.empty(len(group), np.intp)
    place[order] = np.cumsum(np.diff(along[order], prepend=along[order[0]]) > SAME_POSITION_MM)
    return place


def _split_volumes(group: Sequence[Frame], place: NDArray[np.intp], b: float) -> list[list[Frame]]:
    """The volumes of one b-value, in the order of files and frames."""
    stacked: list[list[Frame]] = [[] for _ in range(int(place.max()) + 1)]
    for frame, position in zip(group, place, strict=True):
        if frame.b_value == b:
            stacked[position].append(frame)
    counts = sorted({len(images) for images in stacked})
    if len(counts) > 1:
        raise Unusable(
            "b_values",
            f"{len(stacked)} slice positions have {counts[0]} to {counts[-1]} images of b = {b:g}; each must have the "
            "same number. Send the whole series.",
        )
    return [list(volume) for volume in zip(*stacked, strict=True)]


def _check_extent(group: Sequence[Frame], positions: int, full_series: bool) -> None:
    """Refuse a series with slices missing at an end: they leave no gap, so only a count in the header shows it.

    Counts of slice positions are used, but not counts of images: ImagesInAcquisition counts all acquired images, of
    which series, reformats and maps hold a part. Computed images keep their source's count, so only original ones are
    compared with the vendor's count; a frame's number in its stack is always valid.
    """
    values = group[0].values
    numbers = [int(frame.values.get("InStackPositionNumber", 0)) for frame in group]
    declared = max(numbers)
    if full_series and text_of(values.get("ImageType")).upper().startswith("ORIGINAL"):
        declared = max(declared, group[0].slices or 0, int(values.get("NumberOfSlices", 0)))
    if declared > positions:
        raise Unusable(
            "gap",
            f"the header says that there are {declared} slice positions, but {positions} were found: slices are "
            "missing "
            "at an end. Send the whole series.",
        )


def _first_orientation(group: Sequence[Frame]) -> Floats:
    """ImageOrientationPatient (6,) of the first image."""
    return np.array(group[0].values["ImageOrientationPatient"], float)


def _frame_positions(group: Sequence[Frame]) -> Floats:
    """ImagePositionPatient (N, 3) of each image, mm."""
    return np.array([frame.values["ImagePositionPatient"] for frame in group], float)


def _pixel_spacing(group: Sequence[Frame]) -> tuple[float, float]:
    """The distance between rows, and between columns, of the first image, mm."""
    rows, columns = (float(number) for number in group[0].values["PixelSpacing"])
    return rows, columns
