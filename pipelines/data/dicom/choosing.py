"""Choose the images that a source reads: by header texts and kind, without objects that are not images.

A series may hold more than its slices: raw data, presentation states, reports, screenshots. Such an object is rejected
alone, by name; the slices of its series stay valid.
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
from pipelines.data.quantity import decide_from_headers
from pipelines.data.sources import KIND, ImageKind
from pipelines.data.study import Rejected

IMAGE_NAME = "Image Storage"
"""Part of the name of each SOP class of images in PS3.6, table A-1, but for `ALSO_IMAGES`."""
ALSO_IMAGES = frozenset({str(ParametricMapStorage), str(EnhancedUSVolumeStorage)})
SCREENSHOT_NAME = "Secondary Capture"


def add_kinds(frames: Sequence[Frame]) -> list[Frame]:
    """The frames, each with its `ImageKind` as the header text `KIND` if it has one. They need their b-values.

    An image is an ADC map if its header says so (`decide_from_headers`). Diffusion-weighted images have a b-value, in a
    series with a b-value above 0 or with DIFFUSION in its ImageType.
    """
    maps = [decide_from_headers(frame.values).adc is True for frame in frames]
    weighted = {
        series_of(frame)
        for frame, is_map in zip(frames, maps, strict=True)
        if not is_map and frame.b_value is not None
        if frame.b_value > 0 or "DIFFUSION" in text_of(frame.values.get("ImageType")).upper()
    }
    return [
        _set_kind(frame, "adc")
        if is_map
        else _set_kind(frame, "dwi")
        if frame.b_value is not None and series_of(frame) in weighted
        else frame
        for frame, is_map in zip(frames, maps, strict=True)
    ]


def _set_kind(frame: Frame, kind: ImageKind) -> Frame:
    """The frame with its kind as the header text `KIND`."""
    return replace(frame, values=ChainMap({KIND: kind}, cast(dict[str, Any], frame.values)))


def is_selected(frame: Frame, select: Mapping[str, str]) -> bool:
    """Whether an image's header contains every text of `select`; numbers must be equal."""
    return all(_contains_text(frame.values.get(keyword), text) for keyword, text in select.items())


def _contains_text(value: object, text: str) -> bool:
    """Whether a header value equals a number, or contains a text in upper or lower case."""
    if isinstance(value, int | float):  # "0" is not in b = 800
        try:
            return math.isclose(value, float(text), rel_tol=1e-6)
        except ValueError:
            return False
    return text.lower() in text_of(value).lower()


def is_wanted(frame: Frame, select: Mapping[str, str]) -> bool:
    """Whether a frame is selected, or its header has no Rows: it is cut short and may lack the keyword, or no image."""
    return is_selected(frame, select) or "Rows" not in frame.values


def object_name(values: Mapping[str, object]) -> str:
    """The name of an object that holds no slices, as in "Raw Data"; "" if it may hold some.

    Objects of private classes are judged by whether they have Rows.
    """
    uid = text_of(values.get("SOPClassUID")).strip()
    known = UID_dictionary.get(uid)
    if known is None:
        return f"object of the private class {uid}" if uid and "Rows" not in values else ""
    return "" if IMAGE_NAME in known[0] or uid in ALSO_IMAGES else str(known[0]).removesuffix(" Storage")


def split_off_objects(group: Sequence[Frame]) -> tuple[list[Frame], list[tuple[Frame, str]]]:
    """The slices of a series; and its other objects, each with a description.

    Screenshots (Secondary Capture, or a colour image among grey ones) count as objects if the series has measured
    images, else as its slices. A series without any image is returned unchanged, and refused later.
    """
    ranks = [_rank_object(frame.values) for frame in group]
    least = min(rank for rank, _ in ranks)
    if least == NO_IMAGE:
        return list(group), []
    images = [frame for frame, (rank, _) in zip(group, ranks, strict=True) if rank == least]
    return images, [(frame, name) for frame, (rank, name) in zip(group, ranks, strict=True) if rank > least]


MEASURED, SCREENSHOT, NO_IMAGE = range(3)


def _rank_object(values: Mapping[str, object]) -> tuple[int, str]:
    """`MEASURED`, `SCREENSHOT` or `NO_IMAGE`, and the name of an object that is no measured image."""
    if name := object_name(values):
        return NO_IMAGE, name
    known = UID_dictionary.get(text_of(values.get("SOPClassUID")).strip(), ("",))[0]
    if SCREENSHOT_NAME in known:
        return SCREENSHOT, "screenshot (Secondary Capture)"
    colour = text_of(values.get("PhotometricInterpretation")) or "MONOCHROME2"
    return (MEASURED, "") if colour.startswith("MONOCHROME") else (SCREENSHOT, f"colour image ({colour})")


def reject_object(name: str, what: str) -> Rejected:
    """The rejection of an object that is no slice of its series. name: of its file. what: its description."""
    detail = f"No slice of its series, but of the kind {what}; the images beside it are read. Nothing is to be done."
    return Rejected(name, "not_an_image", detail)
