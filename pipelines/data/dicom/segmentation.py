"""Read a DICOM Segmentation as a label map on its own grid (PS3.3 A.51 and C.8.20; LABELMAP: supplement 243).

Each frame has a position and a segment, in any order; empty frames may be missing, so the grid is computed from the
existing ones. Pixels are decoded frame by frame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import iter_pixels
from pydicom.uid import UID, SegmentationStorage

from pipelines.data.contents import read_dataset
from pipelines.data.dicom.codestream import check_codestream, check_deflated
from pipelines.data.dicom.concepts import class_concept
from pipelines.data.dicom.frame_grid import PLACE, FrameGrid, frame_grid
from pipelines.data.dicom.frames import read_frames
from pipelines.data.dicom.pixels import DECODERS
from pipelines.data.dicom.series import LARGEST
from pipelines.data.headers import Frame
from pipelines.data.index import convert_read_errors
from pipelines.data.sources import MOST_SEGMENTS
from pipelines.data.study import Unusable, Volume

LABEL_MAP = UID("1.2.840.10008.5.1.4.1.1.66.7")  # Label Map Segmentation Storage, which pydicom 3.0 does not name
KINDS = ("BINARY", "FRACTIONAL", "LABELMAP")
SEGMENT = "ReferencedSegmentNumber"
MOST_CLASSES = 255


class Segments(NamedTuple):
    """classes: number of a segment -> class, for wanted segments. described: numbers of all segments."""

    classes: Mapping[int, int]
    described: frozenset[int]


def read_segmentation(
    path: Path, names: Sequence[str] | None = None, *, threshold: float = 0.5, overlapping: bool = False
) -> Volume:
    """Read a segmentation.

    names: of class 1, 2, ...; a segment has the class whose name is its label, or whose concept is its coded type
    (`concepts.concept`), and other segments are ignored. None = a segment's number is its class.
    threshold: of a fractional segmentation; if several segments reach it, the highest wins, then the lowest class.
    overlapping: of a binary one, whether a voxel may be of several classes; then values are uint16, and bit c - 1 is
    set where class c is, of 16 at most.

    Returns:
        (I, J, K) uint8 label map of columns, rows and slices, 0 = background, with its affine in RAS mm. It extends
        from the first to the last slice with a frame, and is zero in slices between them without one.

    Raises:
        Unusable: `unreadable`, `not_a_segmentation`, `segmentation_type`, `multi_frame` (frames are not described),
            `no_frames`, `no_segment` (none of the wanted ones), `bad_segment` (a frame of a segment that is not
            described, or a number above 255), `overlap` (two classes in one voxel of a binary segmentation),
            `missing_tag`, `bad_tag`, `too_large`, `non_orthogonal`, `mixed_orientation`, `mixed_spacing`, `gap`,
            `not_collinear` or `duplicate_slice`.
    """
    with convert_read_errors(path.name):
        check_deflated(path)
        dataset = read_dataset(path)
        kind = _segmentation_type(dataset, path.name)
        segments = _select_segments(dataset, names)
        frames = _read_described_frames(path, kind)
        columns, rows = int(dataset.Columns), int(dataset.Rows)
        grid = frame_grid(frames)
        if grid.slices * columns * rows > LARGEST or len(frames) * columns * rows > LARGEST:
            raise Unusable("too_large", f"{path.name}: {columns} x {rows} x {grid.slices} voxels; {LARGEST} are read.")
        _check_once(frames, grid, kind)
        check_codestream(dataset)
        shape = (columns, rows, grid.slices)
        if overlapping:
            return Volume(_segment_sets(dataset, frames, segments, grid, shape, kind), grid.affine)
        if kind == "LABELMAP":
            values = _label_map_from_labels(dataset, segments, grid, shape)
        elif kind == "BINARY":
            values = _label_map_from_flags(dataset, frames, segments, grid, shape)
        else:
            values = _label_map_from_shares(dataset, frames, segments, grid, shape, threshold)
        return Volume(values, grid.affine)


def _segmentation_type(dataset: Dataset, name: str) -> str:
    """The SegmentationType of a valid segmentation's header. Raises: Unusable."""
    uid = str(dataset.get("SOPClassUID", ""))
    if uid not in (SegmentationStorage, LABEL_MAP):
        class_name = UID(uid).name if uid else "nothing"
        raise Unusable("not_a_segmentation", f"{name} says that it is {class_name}. Give a DICOM Segmentation.")
    kind = str(dataset.get("SegmentationType", ""))
    if kind not in KINDS:
        raise Unusable("segmentation_type", f"SegmentationType is {kind!r}; {', '.join(KINDS)} are read. Export again.")
    if missing := [key for key in ("Rows", "Columns", "SegmentSequence", "PixelData") if not dataset.get(key)]:
        raise Unusable("missing_tag", f"without a value: {', '.join(missing)}. Export with complete headers.")
    return kind


def _select_segments(dataset: Dataset, names: Sequence[str] | None) -> Segments:
    """The class of each segment that is read, by number or by name. Raises: Unusable: `no_segment`, `bad_segment`."""
    items = {int(item.SegmentNumber): item for item in dataset.SegmentSequence}
    if names is None:
        classes = {number: number for number in items if number}
    else:
        classes = {number: place for number, item in items.items() if (place := _segment_class(item, names))}
    if not classes:
        labels = sorted({str(item.get("SegmentLabel", "")) for item in items.values()})[:5]
        names_text = "" if names is None else f" that is called {' or '.join(names)}"
        raise Unusable(
            "no_segment", f"there is no segment{names_text}; labels are {labels}. Give the file that has it."
        )
    if max(classes.values()) > MOST_CLASSES:
        raise Unusable("bad_segment", f"segment number {max(classes)}; up to {MOST_CLASSES} are read. Give names.")
    return Segments(classes, frozenset(items))


def _segment_class(item: Dataset, names: Sequence[str]) -> int:
    """The class of a segment, counted from 1; 0 = none."""
    label = str(item.get("SegmentLabel", "")).strip().lower()
    for place, name in enumerate(names, start=1):
        if label == name.strip().lower():
            return place
    kinds = [(str(code.get("CodeValue")), str(code.get("CodingSchemeDesignator"))) for code in _type_codes(item)]
    for place, name in enumerate(names, start=1):
        if tuple(class_concept(name).kind[:2]) in kinds:
            return place
    return 0


def _type_codes(item: Dataset) -> Sequence[Dataset]:
    """The items of a segment's coded type."""
    type_codes: Sequence[Dataset] = item.get("SegmentedPropertyTypeCodeSequence") or []
    return type_codes


def _read_described_frames(path: Path, kind: str) -> list[Frame]:
    """The frames' headers; each has a position, and a segment unless it is a label map. Raises: Unusable."""
    keywords = (*PLACE, SEGMENT, "NumberOfFrames", "SeriesInstanceUID")
    frames = read_frames(path, keywords, diffusion=False, seen={})
    if len(frames) != int(frames[0].values.get("NumberOfFrames", 0)):
        raise Unusable("multi_frame", f"{path.name} does not describe each of its frames. Export it again.")
    if kind != "LABELMAP" and any(SEGMENT not in frame.values for frame in frames):
        raise Unusable("missing_tag", f"{path.name}: a frame does not say which segment it shows. Export it again.")
    return frames


def _check_once(frames: Sequence[Frame], grid: FrameGrid, kind: str) -> None:
    """Refuse two frames of one segment at one position."""
    numbers = [0 if kind == "LABELMAP" else int(frame.values[SEGMENT]) for frame in frames]
    if len(set(zip(numbers, grid.places, strict=True))) < len(frames):
        raise Unusable("duplicate_slice", "two frames of one segment lie at one position. Export it again.")


def _read_planes(dataset: Dataset, indices: Sequence[int]) -> Iterator[NDArray[np.generic]]:
    """Stored frames as (columns, rows)."""
    syntax = dataset.file_meta.TransferSyntaxUID
    if dataset.BitsAllocated == 1 and not syntax.is_encapsulated and syntax.is_little_endian:
        yield from _unpack_flags(dataset, indices)
        return
    plugin = DECODERS.get(syntax, "")
    for plane in iter_pixels(dataset, indices=list(indices), raw=True, decoding_plugin=plugin):
        yield plane.T


def _unpack_flags(dataset: Dataset, indices: Sequence[int]) -> Iterator[NDArray[np.generic]]:
    """Frames with one bit per pixel, packed without gaps (PS3.5 8.1.1).

    pydicom 3.0 reads single frames of these only if each ends at a byte boundary.
    """
    rows, columns = int(dataset.Rows), int(dataset.Columns)
    packed, size = np.frombuffer(dataset.PixelData, np.uint8), rows * columns
    needed = -(-int(dataset.NumberOfFrames) * size // 8)
    if len(packed) < needed:
        raise Unusable("unreadable", f"{len(packed)} bytes of pixels, {needed} are promised. Copy or export it again.")
    for index in indices:
        first = index * size
        bits = np.unpackbits(packed[first // 8 : -(-(first + size) // 8)], bitorder="little")
        yield bits[first % 8 : first % 8 + size].reshape(rows, columns).T


def _select_frames(frames: Sequence[Frame], segments: Segments) -> list[tuple[int, int]]:
    """Frames of wanted segments as (index, class), by class."""
    numbers = [int(frame.values[SEGMENT]) for frame in frames]
    if strange := set(numbers) - segments.described:
        raise Unusable("bad_segment", f"frames show segments {sorted(strange)[:5]}, which are not described.")
    selected = [(index, segments.classes[number]) for index, number in enumerate(numbers) if number in segments.classes]
    return sorted(selected, key=lambda pair: pair[1])


def _label_map_from_flags(
    dataset: Dataset, frames: Sequence[Frame], segments: Segments, grid: FrameGrid, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """The label map of a BINARY segmentation. Raises: Unusable: `overlap`."""
    values = np.zeros(shape, np.uint8)
    chosen = _select_frames(frames, segments)
    for (index, number), plane in zip(chosen, _read_planes(dataset, [index for index, _ in chosen]), strict=True):
        old, inside = values[:, :, grid.places[index]], plane.astype(np.bool_)
        if (other := old[inside & (old > 0) & (old != number)]).size:
            raise Unusable(
                "overlap",
                f"{other.size} voxels are of class {other[0]} and of class {number}; a voxel may have one. Name the "
                "segments that are meant.",
            )
        old[inside] = number
    return values


def _segment_sets(
    dataset: Dataset,
    frames: Sequence[Frame],
    segments: Segments,
    grid: FrameGrid,
    shape: tuple[int, int, int],
    kind: str,
) -> NDArray[np.uint16]:
    """In each voxel the classes of a BINARY segmentation, as bits. Raises: Unusable: `segmentation_type`,
    `bad_segment`.
    """
    if kind != "BINARY":
        text = (
            f"SegmentationType is {kind}, and segments overlap in BINARY ones alone. Name values instead of segments."
        )
        raise Unusable("segmentation_type", text)
    if (most := max(segments.classes.values())) > MOST_SEGMENTS:
        raise Unusable("bad_segment", f"segment number {most}; up to {MOST_SEGMENTS} may overlap. Export fewer.")
    values = np.zeros(shape, np.uint16)
    chosen = _select_frames(frames, segments)
    for (index, number), plane in zip(chosen, _read_planes(dataset, [index for index, _ in chosen]), strict=True):
        values[:, :, grid.places[index]] |= plane.astype(np.bool_) * np.uint16(1 << number - 1)
    return values


def _label_map_from_shares(
    dataset: Dataset,
    frames: Sequence[Frame],
    segments: Segments,
    grid: FrameGrid,
    shape: tuple[int, int, int],
    threshold: float,
) -> NDArray[np.uint8]:
    """The label map of a FRACTIONAL segmentation: in each voxel the largest share from `threshold` on."""
    values, highest = np.zeros(shape, np.uint8), np.zeros(shape, np.float32)
    most = int(dataset.get("MaximumFractionalValue") or 0)
    if not 1 <= most <= 255:
        raise Unusable("bad_tag", f"MaximumFractionalValue is {most}; 1 to 255 are allowed. Export it again.")
    chosen = _select_frames(frames, segments)
    for (index, number), plane in zip(chosen, _read_planes(dataset, [index for index, _ in chosen]), strict=True):
        share = plane.astype(np.float32) / np.float32(most)
        place = grid.places[index]
        better = (share >= threshold) & (share > highest[:, :, place])
        values[:, :, place][better] = number
        highest[:, :, place][better] = share[better]
    return values


def _label_map_from_labels(
    dataset: Dataset, segments: Segments, grid: FrameGrid, shape: tuple[int, int, int]
) -> NDArray[np.uint8]:
    """The label map of a LABELMAP segmentation, whose pixels are segment numbers."""
    values = np.zeros(shape, np.uint8)
    for index, plane in enumerate(_read_planes(dataset, range(len(grid.places)))):
        numbers, where = np.unique(plane, return_inverse=True)
        if strange := {int(number) for number in numbers} - segments.described - {0}:
            raise Unusable("bad_segment", f"pixels show segments {sorted(strange)[:5]}, which are not described.")
        classes = np.array([segments.classes.get(int(number), 0) for number in numbers], np.uint8)
        values[:, :, grid.places[index]] = classes[where].reshape(plane.shape)
    return values
