"""What is hidden beside the pixels, in compressed streams, unused bits and colour profiles, does not leave."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import JPEG2000, JPEGBaseline8Bit

from dicom_with_identifiers import HOMER, KEY, file_of, image, insert_raw
from privacy.deidentify.dicom_image import NotDeidentifiable, Profile, as_bytes, deidentify_image
from privacy.deidentify.quiet import silence_warnings
from privacy.deidentify.streams import Unknown, strip_stream

NOTE = b"by Ludmilla Featherstone 2019-05-07 "
EXIF = b"Exif\0\0" + "Featherstone".encode("utf-16-le")
SQUARE = (np.arange(32 * 32) // 5 % 256).astype(np.uint8).reshape(32, 32)


def cleaned(dataset: Dataset, **profile: object) -> tuple[bytes, Dataset]:
    data = as_bytes(deidentify_image(dataset, key=KEY, profile=Profile(**profile)))
    return data, pydicom.dcmread(io.BytesIO(data))


def segment(marker: int, data: bytes) -> bytes:
    return bytes((0xFF, marker)) + (len(data) + 2).to_bytes(2, "big") + data


def encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(SQUARE).save(stream, kind, **({"no_jp2": True} if kind == "JPEG2000" else {}))
    return stream.getvalue()


def compressed(kind: str, *frames: bytes, behind: bytes = b"") -> Dataset:
    made = image(Rows=32, Columns=32, BitsAllocated=8, BitsStored=8, HighBit=7)
    made.NumberOfFrames = len(frames)
    made.PixelData = encapsulate(list(frames)) + behind
    made["PixelData"].VR = "OB"
    made["PixelData"].is_undefined_length = True
    made.file_meta.TransferSyntaxUID = JPEGBaseline8Bit if kind == "JPEG" else JPEG2000
    return made


HIDDEN = {
    "comment": lambda frame: frame[:2] + segment(0xFE, NOTE) + frame[2:],
    "EXIF": lambda frame: frame[:2] + segment(0xE1, EXIF) + frame[2:],
    "APP13": lambda frame: frame[:2] + segment(0xED, NOTE) + frame[2:],
    "JFIF with a thumbnail": lambda frame: frame[:2] + segment(0xE0, b"JFIF\0" + NOTE) + frame[2:],
    "behind the end": lambda frame: frame + NOTE,
    "comment before the scan": lambda frame: frame.replace(b"\xff\xda", segment(0xFE, NOTE) + b"\xff\xda", 1),
}


@pytest.mark.parametrize("how", HIDDEN)
@pytest.mark.parametrize("count", [1, 3])
def test_what_a_jpeg_stream_holds_beside_the_image_is_cut(how, count) -> None:
    frame = encoded("JPEG")
    dataset = compressed("JPEG", *[HIDDEN[how](frame)] * count)
    data, again = cleaned(dataset)
    assert b"Featherstone" not in data.replace(b"\0", b"") and b"2019-05-07" not in data
    assert again.file_meta.TransferSyntaxUID == JPEGBaseline8Bit
    assert np.array_equal(again.pixel_array, compressed("JPEG", *[frame] * count).pixel_array)


@pytest.mark.parametrize("how", ["comment", "behind the end"])
def test_what_a_jpeg_2000_stream_holds_beside_the_image_is_cut(how) -> None:
    frame = encoded("JPEG2000")
    at = frame.index(b"\xff\x52")
    hidden = frame + NOTE if how == "behind the end" else frame[:at] + segment(0x64, b"\0\1" + NOTE) + frame[at:]
    data, again = cleaned(compressed("JPEG2000", hidden))
    assert b"Featherstone" not in data and again.file_meta.TransferSyntaxUID == JPEG2000
    assert np.array_equal(again.pixel_array, SQUARE)


def test_a_stream_that_cannot_be_walked_is_decoded_or_the_file_refused() -> None:
    stream = io.BytesIO()
    Image.fromarray(SQUARE).save(stream, "JPEG2000")  # with the boxes of a JP2 file, which may hold text
    _data, again = cleaned(compressed("JPEG2000", stream.getvalue()))
    assert not again.file_meta.TransferSyntaxUID.is_compressed and np.array_equal(again.pixel_array, SQUARE)
    with pytest.raises(NotDeidentifiable, match="undecodable"):
        deidentify_image(compressed("JPEG", NOTE), key=KEY)


def test_more_fragments_than_frames_and_offset_tables_do_not_leave() -> None:
    dataset = compressed("JPEG", encoded("JPEG"))
    dataset.PixelData += b"\xfe\xff\x00\xe0" + len(NOTE).to_bytes(4, "little") + NOTE
    dataset.add_new(0x7FE00001, "OV", b"Featherstone    ")
    data, again = cleaned(dataset)
    assert b"Featherstone" not in data and again.pixel_array.shape == (32, 32)


@given(st.binary(max_size=200), st.sampled_from([JPEGBaseline8Bit, JPEG2000]), st.booleans())
def test_walking_a_damaged_stream_ends(noise, syntax, headed) -> None:
    head = (b"\xff\xd8" if syntax == JPEGBaseline8Bit else b"\xff\x4f") if headed else b""
    with contextlib.suppress(Unknown):
        assert strip_stream(head + noise, syntax)[-2:] == b"\xff\xd9"


def floats(behind: bytes, kind: str = "<f4") -> Dataset:
    made = image(BitsAllocated=32 if kind == "<f4" else 64)
    for keyword in ("PixelData", "BitsStored", "HighBit", "PixelRepresentation"):
        delattr(made, keyword)
    data = np.arange(24, dtype=kind).tobytes() + behind
    made.add_new(*((0x7FE00008, "OF") if kind == "<f4" else (0x7FE00009, "OD")), data)
    return made


@pytest.mark.parametrize("kind", ["<f4", "<f8"])
def test_bytes_behind_the_last_float_are_cut(kind) -> None:
    data, again = cleaned(floats(b"Featherstone 2019-05-07 ", kind))
    assert b"Featherstone" not in data and np.array_equal(again.pixel_array.ravel(), np.arange(24))


def test_fewer_pixels_than_the_header_says_are_refused() -> None:
    dataset = image(NumberOfFrames=3)
    dataset.PixelData += b"Featherstone"
    with pytest.raises(NotDeidentifiable, match=r"undecodable.*fewer"):
        deidentify_image(dataset, key=KEY)


@given(st.lists(st.integers(0, 0xFFFF), min_size=24, max_size=24), st.integers(1, 16), st.integers(0, 8), st.booleans())
def test_bits_outside_the_stored_ones_are_cut_and_the_values_kept(words, held, low, signed) -> None:
    if held + low > 16:
        return
    dataset = image(BitsStored=held, HighBit=held + low - 1, PixelRepresentation=int(signed))
    dataset.PixelData = np.array(words, "<u2").tobytes()
    values = [word >> low & (1 << held) - 1 for word in words]
    values = [value - (1 << held) if signed and value >> held - 1 else value for value in values]
    if low and any(word & 0xFFFF != value << low & 0xFFFF for word, value in zip(words, values, strict=True)):
        with pytest.raises(NotDeidentifiable, match="undecodable"):
            cleaned(dataset)
        return
    _, again = cleaned(dataset)
    found = np.frombuffer(again.PixelData, "<i2" if signed else "<u2").astype(int)
    assert found.tolist() == [value << low for value in values]


@pytest.mark.parametrize("text", ["Featherstone".encode("utf-16-be"), b"somebody else's", b"Lee Bo"])
def test_grey_images_keep_no_colour_profile(text) -> None:
    dataset = image()
    dataset.add_new(0x00282000, "OB", b"\0" * 128 + text + b"\0" * (len(text) % 2))
    assert "ICCProfile" not in cleaned(dataset)[1]


@pytest.mark.parametrize("code", ["latin-1", "utf-8", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("keyword", ["ICCProfile", "RedPaletteColorLookupTableData"])
def test_tables_and_profiles_of_colour_images_are_searched_in_every_encoding(code, shift, keyword) -> None:
    dataset = image(PhotometricInterpretation="RGB", SamplesPerPixel=3, PlanarConfiguration=0)
    dataset.PixelData = dataset.PixelData * 3
    text = b"\0" * (128 + shift) + HOMER.given.encode(code) + b"\0" * shift
    insert_raw(dataset, pydicom.tag.Tag(keyword), "OB", text)
    assert keyword not in cleaned(dataset)[1]
    insert_raw(dataset, pydicom.tag.Tag(keyword), "OB", bytes(range(200)))
    assert keyword in cleaned(dataset)[1]


def test_streams_of_real_files_decode_to_the_same_pixels(data: Path) -> None:
    seen = 0
    for path in sorted(path for path in (data / "dicom_zoo").rglob("*") if path.is_file()):
        try:
            with silence_warnings():
                dataset = pydicom.dcmread(path)
                before = dataset.pixel_array
                _, again = cleaned(dataset)
        except Exception:  # noqa: S112 - refused, or nothing that can be decoded
            continue
        assert np.array_equal(again.pixel_array, before, equal_nan=before.dtype.kind == "f"), path.name
        seen += 1
    assert seen > 20


def test_a_written_file_is_read_back_by_another_run() -> None:
    first, again = cleaned(compressed("JPEG", encoded("JPEG")))
    assert file_of(again) == first
