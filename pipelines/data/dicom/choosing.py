"""Choose the images that a source reads: by header texts, by the kind of image, and without objects that are no image.

A series may hold more than its slices: raw data, presentation states, reports, screenshots. Such an object is set aside
alone, by name; it says nothing against the slices beside it.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydicom.uid import EnhancedUSVolumeStorage, ParametricMapStorage, UID_dictionary

from pipelines.data.dicom.frames import series_of
from pipelines.data.headers import Frame, text_of
from pipelines.data.quantity import of_headers
from pipelines.data.sources import KIND, ImageKind
from pipelines.data.study import Rejected

IMAGE_NAME = "Image Storage"
"""Part of the name of each SOP class of images in PS3.6, table A-1, but for `ALSO_IMAGES`."""
ALSO_IMAGES = frozenset({str(ParametricMapStorage), str(EnhancedUSVolumeStorage)})
SCREENSHOT_NAME = "Secondary Capture"


def with_kinds(frames: Sequence[Frame]) -> list[Frame]:
    """The frames, each with its `ImageKind` as the header text `KIND` if it has one. They need their b-values.

    An ADC map is what the header says to be one (`of_headers`). Diffusion-weighted images have a b-value, in a series
    with a b-value above 0 or with DIFFUSION in its ImageType.
    """
    maps = [of_headers(frame.values).adc is True for frame in frames]
    weighted = {
        series_of(frame)
        for frame, is_map in zip(frames, maps, strict=True)
        if not is_map and frame.b_value is not None
        if frame.b_value > 0 or "DIFFUSION" in text_of(frame.values.get("ImageType")).upper()
    }
    return [
        _of_kind(frame, "adc")
        if is_map
        else _of_kind(frame, "dwi")
        if frame.b_value is not None and series_of(frame) in weighted
        else frame
        for frame, is_map in zip(frames, maps, strict=True)
    ]


def _of_kind(frame: Frame, kind: ImageKind) -> Frame:
    return replace(frame, values=ChainMap({KIND: kind}, cast(dict[str, Any], frame.values)))


def selected(frame: Frame, select: Mapping[str, str]) -> bool:
    """Whether an image's header contains every text of `select`; numbers must be equal."""
    return all(_matches(frame.values.get(keyword), text) for keyword, text in select.items())


def _matches(value: object, text: str) -> bool:
    if isinstance(value, int | float):  # "0" is not in b = 800
        try:
            return math.isclose(value, float(text), rel_tol=1e-6)
        except ValueError:
            return False
    return text.lower() in text_of(value).lower()


def is_wanted(frame: Frame, select: Mapping[str, str]) -> bool:
    """Whether a frame is selected, or its header has no Rows: it is cut short and may lack the keyword, or no image."""
    return selected(frame, select) or "Rows" not in frame.values


def object_name(values: Mapping[str, object]) -> str:
    """The name of an object that holds no slices, as in "Raw Data"; "" if it may hold some.

    Objects of private classes are judged by whether they have Rows.
    """
    uid = text_of(values.get("SOPClassUID")).strip()
    known = UID_dictionary.get(uid)
    if known is None:
        return f"object of the private class {uid}" if uid and "Rows" not in values else ""
    return "" if IMAGE_NAME in known[0] or uid in ALSO_IMAGES else str(known[0]).removesuffix(" Storage")


def without_objects(group: Sequence[Frame]) -> tuple[list[Frame], list[tuple[Frame, str]]]:
    """The slices of a series, and other objects in it with what they are, in words.

    Screenshots (Secondary Capture, or a colour image among grey ones) are objects beside measured images; alone they
    are the series. A series without any image stays whole, to be refused as such.
    """
    ranks = [_rank(frame.values) for frame in group]
    least = min(rank for rank, _ in ranks)
    if least == NO_IMAGE:
        return list(group), []
    images = [frame for frame, (rank, _) in zip(group, ranks, strict=True) if rank == least]
    return images, [(frame, name) for frame, (rank, name) in zip(group, ranks, strict=True) if rank > least]


MEASURED, SCREENSHOT, NO_IMAGE = range(3)


def _rank(values: Mapping[str, object]) -> tuple[int, str]:
    if name := object_name(values):
        return NO_IMAGE, name
    known = UID_dictionary.get(text_of(values.get("SOPClassUID")).strip(), ("",))[0]
    if SCREENSHOT_NAME in known:
        return SCREENSHOT, "screenshot (Secondary Capture)"
    colour = text_of(values.get("PhotometricInterpretation")) or "MONOCHROME2"
    return (MEASURED, "") if colour.startswith("MONOCHROME") else (SCREENSHOT, f"colour image ({colour})")


def set_aside(name: str, what: str) -> Rejected:
    """The entry of an object beside the slices of its series. name: of its file. what: as of `without_objects`."""
    detail = f"No slice of its series, but of the kind {what}; the images beside it are read. Nothing is to be done."
    return Rejected(name, "not_an_image", detail)
