"""Read the headers of each image in a DICOM file: a classic file holds one image, an enhanced file many frames.

An enhanced file has the values that its frames share in SharedFunctionalGroupsSequence, and each frame's own values in
PerFrameFunctionalGroupsSequence (DICOM PS3.3 C.7.6.16). Here both become one flat set of keywords for each frame, with
the names of classic files, so that all later code is the same for both kinds.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydicom.datadict import dictionary_VR, tag_for_keyword
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.multival import MultiValue
from pydicom.sequence import Sequence as Items
from pydicom.tag import Tag
from pydicom.uid import MediaStorageDirectoryStorage
from pydicom.valuerep import AMBIGUOUS_VR

from pipelines.data.contents import parse_dataset
from pipelines.data.dicom.codestream import check_unpacked
from pipelines.data.dicom.diffusion import B_VALUE_TAGS, b_value
from pipelines.data.dicom.real_world import unused_scales
from pipelines.data.dicom.stored_values import MAPS, VENDOR_TAGS, vendor_slope
from pipelines.data.dicom.uncompressed import NEEDED, find_pixels
from pipelines.data.headers import Frame
from pipelines.data.study import Unusable
from privacy.deidentify.stored_values import (
    FIRST_BLOCKS,
    KEYWORDS,
    RESCALE,
    SLICE_COUNTS,
    TILES,
    Private,
    private_element,
)

SHARED, PER_FRAME = "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"
SHARED_TAG, OWN_TAG = 0x52009229, 0x52009230
UNASSIGNED = ("UnassignedSharedConvertedAttributesSequence", "UnassignedPerFrameConvertedAttributesSequence")
CLASSIC_NAMES = {"FrameType": "ImageType", "EffectiveEchoTime": "EchoTime"}  # name in groups -> classic name
STACK = ("StackID", "InStackPositionNumber")
OF_FRAME = (*RESCALE, "RescaleType")  # in an enhanced file only frames have them
GRID = "United Imaging GRID"
"""A key of a frame's values in addition to keywords: its one image holds many slices as tiles."""


def read_frames(
    path: Path, keywords: Sequence[str], *, diffusion: bool, seen: dict[tuple[object, ...], Any]
) -> list[Frame]:
    """Read the headers of one file.

    keywords: of the values to keep. diffusion: whether to read b-values. seen: values of earlier files; those with
    equal type and text are kept once, since a hospital's index holds many files.

    Returns:
        One frame per image; none for a DICOMDIR. A multi-frame file without a functional group for each of its frames
        is one image, with NumberOfFrames.

    Raises:
        Exception: whatever the parser raises for damaged headers; the caller turns it into `Unusable`.
    """
    with path.open("rb") as file:
        check_unpacked(file)
        dataset = parse_dataset(file, stop_before_pixels=True, specific_tags=_tags_to_read(tuple(keywords), diffusion))
        if dataset.file_meta.get("MediaStorageSOPClassUID") == MediaStorageDirectoryStorage:
            return []
        raw = {int(element.tag): element for element in dataset.values()}  # by numbers: pydicom's tags compare slowly
        pixels = find_pixels(file, dataset, raw, os.fstat(file.fileno()).st_size, seen)
    common = _values(dataset, raw, tuple(keywords), seen)
    if "SeriesInstanceUID" not in common:
        raise Unusable("missing_tag", "there is no SeriesInstanceUID; the file may be cut short. Export it again.")
    syntax = str(dataset.file_meta.get("TransferSyntaxUID", ""))
    groups = dataset[OWN_TAG].value or [] if OWN_TAG in raw else []
    slices, slope = _vendor_slice_count(dataset), vendor_slope(dataset) if VENDOR_TAGS & raw.keys() else None
    if not groups or len(groups) != int(dataset.get("NumberOfFrames") or 1):
        if SHARED_TAG in raw:
            common[SHARED] = True
        if (_private_count(dataset, TILES) or 1) > 1:
            common[GRID] = True
        b = b_value(dataset) if diffusion else None
        return [Frame(path, syntax, common, b_value=b, slices=slices, pixels=pixels, vendor_slope=slope)]
    shared = next(iter(dataset.get(SHARED) or []), Dataset())
    group_keywords = frozenset((*keywords, *STACK))
    known: ChainMap[str, Any] = ChainMap(
        _flatten_group(shared, group_keywords), {k: v for k, v in common.items() if k not in RESCALE}
    )
    frames: list[Frame] = []
    for index, frame_group in enumerate(groups):
        b = _frame_b_value(dataset, shared, frame_group) if diffusion else None
        maps = functional_groups(dataset, index, "RealWorldValueMappingSequence")
        values, scale = (
            known.new_child(_flatten_group(frame_group, group_keywords)),
            vendor_slope(frame_group) or vendor_slope(shared) or slope,
        )
        if scales := unused_scales(maps):
            values[MAPS] = scales
        frames.append(Frame(path, syntax, values, index, len(groups), b, slices, vendor_slope=scale))
    return frames


def series_of(frame: Frame) -> str:
    """The SeriesInstanceUID of a frame; every frame has one."""
    return str(frame.values["SeriesInstanceUID"])


def functional_groups(dataset: Dataset, index: int, name: str) -> list[Dataset]:
    """All items of a functional group macro such as PixelValueTransformationSequence: shared ones, then the frame's."""
    shared, frame_groups = dataset.get(SHARED) or [], dataset.get(PER_FRAME) or []
    return [item for group in (*shared[:1], *frame_groups[index : index + 1]) for item in group.get(name) or []]


def transform_of(dataset: Dataset, index: int) -> Dataset:
    """The header elements that give a frame's stored values their meaning, as in a classic file."""
    if not dataset.get(PER_FRAME):
        return dataset
    transform = Dataset()
    transform.set_original_encoding(*dataset.original_encoding)
    for keyword in KEYWORDS:
        if keyword in dataset and keyword not in OF_FRAME:
            transform[keyword] = dataset[keyword]
    for group in (*(dataset.get(SHARED) or [])[:1], *dataset[PER_FRAME].value[index : index + 1]):
        for item in list_macros(group):
            for keyword in KEYWORDS:
                if keyword in item and keyword != "MeasurementUnitsCodeSequence":
                    transform[keyword] = item[keyword]
    if maps := functional_groups(dataset, index, "RealWorldValueMappingSequence"):
        transform.RealWorldValueMappingSequence = maps
    return transform


@cache
def _known_tags(keywords: tuple[str, ...]) -> Mapping[str, int]:
    """Tags of those keywords that DICOM knows."""
    tags = {keyword: tag_for_keyword(keyword) for keyword in keywords}
    return {keyword: tag for keyword, tag in tags.items() if tag is not None}


@cache
def _tags_to_read(keywords: tuple[str, ...], diffusion: bool) -> tuple[int, ...]:
    """Tags of all elements that are read."""
    private = (*SLICE_COUNTS, TILES)
    counts = [
        Tag(group, tag) for _, group, low in private for block in FIRST_BLOCKS for tag in (block, block << 8 | low)
    ]
    tags = [*_known_tags(keywords).values(), *_known_tags((SHARED, PER_FRAME, *NEEDED)).values(), *counts]
    return (*tags, *map(Tag, VENDOR_TAGS), *(B_VALUE_TAGS if diffusion else ()))


@cache
def _is_self_contained(tag: int) -> bool:
    """Whether an element's bytes alone give its value: it is no sequence, and its type depends on no other element."""
    vr = dictionary_VR(tag)
    return vr not in AMBIGUOUS_VR and vr != "SQ"


def _values(
    dataset: Dataset, raw: Mapping[int, Any], keywords: tuple[str, ...], seen: dict[tuple[object, ...], Any]
) -> dict[str, Any]:
    """keyword -> value, without those that are missing or empty; an empty number of a rescale is kept, to be refused.

    Files of a series have most elements in common, so bytes that were seen before are not converted again.
    """
    charset, values = str(dataset.original_character_set), dict[str, Any]()
    for keyword, tag in _known_tags(keywords).items():
        if (element := raw.get(tag)) is None:
            continue
        key = None
        if isinstance(element, RawDataElement) and _is_self_contained(tag) and element.VR != "SQ":
            key = (_values, tag, element.VR, element.value, element.is_implicit_VR, element.is_little_endian, charset)
            if key in seen:
                if (value := seen[key]) is not None:
                    values[keyword] = value
                continue
        value = dataset.get(keyword)
        if _is_empty(value) and keyword in RESCALE:
            values[keyword] = ""
            continue
        shared_value = None if _is_empty(value) else seen.setdefault((keyword, *_value_types(value), str(value)), value)
        if key is not None:
            seen[key] = shared_value
        if shared_value is not None:
            values[keyword] = shared_value
    return values


def _value_types(value: object) -> tuple[type, ...]:
    """A value's type and those of its parts: 80 is a number in one archive and text in another."""
    return (type(value), *map(type, value)) if isinstance(value, MultiValue) else (type(value),)


def _is_empty(value: object) -> bool:
    """Whether a value is missing, blank, or a sequence without items."""
    if isinstance(value, Items):
        return len(value) == 0
    return value is None or str(value).strip() == ""


def _flatten_group(group: Dataset, wanted_keywords: frozenset[str]) -> dict[str, Any]:
    """The values of `wanted_keywords` in one item of functional groups, with the names of classic files."""
    values: dict[str, Any] = {}
    for item in list_macros(group):
        for element in item:
            name = CLASSIC_NAMES.get(element.keyword, element.keyword)
            for keyword in {name, element.keyword} & wanted_keywords:
                if not _is_empty(element.value):
                    values[keyword] = element.value
                elif keyword in RESCALE:
                    values[keyword] = ""
    return values


def list_macros(group: Dataset) -> Iterator[Dataset]:
    """The first item of each public macro; those with unassigned converted attributes come first.

    Private macros are not read: vendors keep a copy of their classic header in them, with other positions.
    """
    public = [element for element in group if element.VR == "SQ" and not element.tag.is_private and element.value]
    for element in sorted(public, key=lambda element: element.keyword not in UNASSIGNED):
        yield element.value[0]


def _frame_b_value(dataset: Dataset, shared: Dataset, frame_group: Dataset) -> float | None:
    """A frame's b-value from its own and the shared groups combined."""
    merged = Dataset()
    for group in (shared, frame_group):
        for name in UNASSIGNED:
            for item in group.get(name) or []:
                merged.update(item)
        merged.update(group)
    if "MRImageFrameTypeSequence" not in merged and "ImageType" in dataset:
        merged.ImageType = dataset.ImageType
    return b_value(merged)


def _vendor_slice_count(dataset: Dataset) -> int | None:
    """The number of slice positions by the first private element that gives one."""
    counts = (_private_count(dataset, place) for place in SLICE_COUNTS)
    return next((count for count in counts if count is not None), None)


def _private_count(dataset: Dataset, place: Private) -> int | None:
    """The whole number in a private element; None if there is none."""
    element = private_element(dataset, place)
    try:
        return None if element is None else int(element.value)
    except (TypeError, ValueError):
        return None
