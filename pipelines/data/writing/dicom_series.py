"""Encode a DICOM series with changed values: the same geometry, de-identified, and valid as a derived image.

Every file is first de-identified by `privacy.deidentify.dicom_image`; then its pixels, identity and description are
replaced (PS3.3 C.7.6.1 and C.12.4: ImageType DERIVED, DerivationDescription, SourceImageSequence). New UIDs are derived
from the hospital's key, the old ones and the translator, so a second run makes the same files; the series refers to the
de-identified original, which `pipelines.deidentify` writes with the same key. Stored values keep their coding if the
file's bits suffice, so rescale, real-world values and windows stay valid; otherwise see `coding`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import iter_pixels

from pipelines.data.contents import read_dataset
from pipelines.data.dicom.frames import transform_of
from pipelines.data.dicom.pixels import DECODERS, blank_rectangles, find_outside_map, is_table
from pipelines.data.dicom.stored_values import find_padding, padding_range
from pipelines.data.headers import Frame, Stack
from pipelines.data.index import Candidate, convert_read_errors
from pipelines.data.study import Array, Study, Unusable
from pipelines.data.writing.coding import Coding, Padding, Stored, Whole, encode_values
from pipelines.data.writing.dicom_header import (
    Maker,
    Meant,
    checked_bytes,
    file_name,
    put_identity,
    put_meaning,
    put_pixels,
    put_words,
)
from pipelines.data.writing.representations import with_dictionary_vrs
from privacy.deidentify.dicom_image import NotDeidentifiable, deidentify_image
from privacy.deidentify.keyed import make_pseudonym, new_uid
from privacy.deidentify.layouts import Layout, kind_of, rectangles_of
from privacy.deidentify.quiet import silence_warnings
from privacy.system_errors import of_machine


def candidate_stack(candidate: Candidate) -> Stack:
    """The sorted images of a DICOM candidate.

    Raises:
        TypeError: it is not one.
    """
    if candidate.stack is None:
        raise TypeError(f"{candidate.study}: a candidate of DICOM files is needed, which holds the stack of its images")
    return candidate.stack


def series_folder(candidate: Candidate, maker: Maker) -> str:
    """The folder of the new series: <pseudonym>/<study>/<series>, with the new UIDs."""
    frames = candidate_stack(candidate).volumes[0]
    study = new_uid(maker.key, str(frames[0].values["StudyInstanceUID"]))
    return f"{make_pseudonym(maker.key, candidate.patient)}/{study}/{_series_uid(frames, maker)}"


def series_files(candidate: Candidate, study: Study, change: Array, maker: Maker) -> Iterator[tuple[str, bytes]]:
    """The series' files, each with its name.

    change: (I, J, K) float32, added to the study's values, in the files' own unit.

    Raises:
        Unusable: `shared_file`, `float_pixels`, or a reason of de-identification.
    """
    frames = candidate_stack(candidate).volumes[0]
    places: dict[Path, list[tuple[Frame, int]]] = {}
    for position, frame in enumerate(frames):
        places.setdefault(frame.path, []).append((frame, position))
    _check_all_frames(places)
    new, coding, ends = _new_values(places, study, change, maker)
    series = _series_uid(frames, maker)
    for path, members in places.items():
        members.sort(key=lambda member: member[0].index)
        planes = [new[position] for _, position in members]
        yield _build_file(path, planes, Meant(coding, ends, study.unit), series, maker)


def _check_all_frames(places: dict[Path, list[tuple[Frame, int]]]) -> None:
    """Refuse a multi-frame file of which only some frames belong to the series."""
    for path, members in places.items():
        if len(members) != members[0][0].frames:
            raise Unusable(
                "shared_file",
                f"{path.name} holds {members[0][0].frames} frames, of which {len(members)} are of this series: the "
                "others cannot be left out of it. Export one series per file.",
            )


def _series_uid(frames: tuple[Frame, ...], maker: Maker) -> str:
    """The new series' UID, derived from its images: another set of images gives another UID."""
    images = sorted(f"{frame.values['SOPInstanceUID']}/{frame.index}" for frame in frames)
    images_digest = hashlib.sha256("\n".join(images).encode()).hexdigest()
    return new_uid(maker.key, f"{frames[0].values['SeriesInstanceUID']}/{images_digest}/{maker.digest}")


def _new_values(
    places: dict[Path, list[tuple[Frame, int]]], study: Study, change: Array, maker: Maker
) -> tuple[dict[int, Whole], Coding, tuple[int, int]]:
    """New stored values (rows, columns) by position, and the smallest and the largest that is no padding."""
    stored: dict[int, Stored] = {}
    padding: dict[int, Padding | None] = {}
    bits: set[tuple[int, int, bool]] = set()
    table = False
    for path, members in places.items():
        with convert_read_errors(path.name):
            dataset = read_dataset(path)
            planes = _read_stored(dataset, [frame.index for frame, _ in members], maker.blank)
            for (frame, position), plane in zip(members, planes, strict=True):
                header = transform_of(dataset, frame.index)
                stored[position] = plane
                outside_map = find_outside_map(plane, header)
                table = table or outside_map is not None or is_table(header)
                if outside_map is not None:
                    outside_map &= np.asarray(study.image.values[:, :, position]).T == 0
                padding[position] = _find_padding(plane, header, outside_map)
            bits.add((int(dataset.BitsStored), int(dataset.BitsAllocated), bool(dataset.PixelRepresentation)))
    order = sorted(stored)
    real = np.asarray(study.image.values, np.float32)
    stored_bits, allocated, signed = (max(b[0] for b in bits), max(b[1] for b in bits), any(b[2] for b in bits))
    if len({(b[1], b[2]) for b in bits}) > 1:
        raise Unusable("mixed_bits", f"the files of the series store values in {len(bits)} ways. Export it again.")
    made, coding = encode_values(
        [stored[place] for place in order],
        [real[:, :, place].T for place in order],
        [change[:, :, place].T for place in order],
        Coding(stored_bits, signed),
        allocated,
        table=table,
        padding=[padding[place] for place in order],
    )
    seen = [
        plane if plane_padding is None else plane[~plane_padding.pixels]
        for plane, plane_padding in zip(made, map(padding.get, order), strict=True)
    ]
    ends = [int(end) for plane in seen if plane.size for end in (plane.min(), plane.max())] or [0]
    return dict(zip(order, made, strict=True)), coding, (min(ends), max(ends))


def _read_stored(dataset: Dataset, indices: list[int], blank: tuple[Layout, ...]) -> Iterator[Stored]:
    """The stored values (rows, columns) of a file's frames, blanked as the reader blanks them."""
    plugin = DECODERS.get(dataset.file_meta.TransferSyntaxUID, "")
    for plane in iter_pixels(dataset, indices=indices, raw=True, decoding_plugin=plugin):
        if plane.dtype.kind not in "iu":
            raise Unusable("float_pixels", "the pixels are no whole numbers, which cannot be written. Export as such.")
        yield blank_rectangles(plane, rectangles_of(blank, kind_of(dataset)))  # as the reader does


def _find_padding(stored: Stored, header: Dataset, outside_map: NDArray[np.bool_] | None) -> Padding | None:
    """The pixels that the reader takes for padding. outside_map: pixels outside a value map that it reads as
    background; such a series gets a new coding, with a new padding value.
    """
    pixels, ends = find_padding(stored, header), padding_range(header)
    if outside_map is not None:
        return Padding(outside_map if pixels is None else outside_map | pixels, ends or (0, 0))
    return None if pixels is None or ends is None else Padding(pixels, ends)


def _build_file(path: Path, planes: list[Whole], meant: Meant, series: str, maker: Maker) -> tuple[str, bytes]:
    """The name and the bytes of one new file. Raises: Unusable."""
    try:
        with silence_warnings():
            original = read_dataset(path)
        made = deidentify_image(original, key=maker.key, profile=maker.profile)
        with silence_warnings():
            with_dictionary_vrs(made)
            put_pixels(made, planes, meant.coding)
            put_meaning(made, meant)
            put_identity(made, original, series, maker)
            put_words(made, original, maker)
        data = checked_bytes(original, made, maker.profile)
    except NotDeidentifiable as error:
        raise Unusable(error.reason, f"{path.name}: {error.detail}") from error
    except Exception as error:  # malformed headers cause exceptions of many types
        if of_machine(error):
            raise
        raise Unusable(
            "unparsable",
            f"{path.name}: the header cannot be rewritten ({type(error).__name__}). Export the image again.",
        ) from error
    return file_name(made), data
