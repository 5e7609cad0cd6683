"""Stored pixels become the same values whatever compressed them; what would change them is refused."""

from __future__ import annotations

import pickle
import shutil
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_file
from pydicom.dataset import FileDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import get_decoder, iter_pixels
from pydicom.uid import DeflatedExplicitVRLittleEndian, JPEG2000Lossless, JPEGBaseline8Bit, JPEGLSLossless, RLELossless

from pipelines.data.dicom import codestream
from pipelines.data.dicom.codestream import check_codestream, image_size
from pipelines.data.dicom.pixels import DECODERS, decode_real_values
from pipelines.data.dicom.reader import index_dicom, read_dicom
from pipelines.data.sources import DicomSource
from pipelines.data.study import Rejected, Study, Unusable
from pipelines.loader.document import ConfigError, read_yaml
from pipelines.loader.validation import validate_settings
from pipelines.phantom.files import write
from pipelines.phantom.patients import PhantomSource
from privacy.deidentify.layouts import Layout, Rectangle

SIBLINGS = ["RLE", "jp2klossless", "jpeg_ls_lossless", "bigendian", "implicit"]


def bundled(name: str) -> FileDataset:
    return pydicom.dcmread(str(get_testdata_file(name, download=False)))


def values(dataset: FileDataset) -> np.ndarray:
    ((plane, _),) = decode_real_values(dataset)
    return plane


@pytest.fixture
def series(tmp_path: Path) -> list[FileDataset]:
    write(PhantomSource(scanner="P", patients=1, slices=5), tmp_path / "phantom")
    return [pydicom.dcmread(path) for path in sorted((tmp_path / "phantom" / "images").rglob("*.dcm"))]


def read(folder: Path, datasets: list[FileDataset], **options: Any) -> tuple[list[Study], list[Rejected]]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for index, dataset in enumerate(datasets):
        dataset.save_as(folder / f"{index}.dcm", enforce_file_format=True)
    return read_dicom(DicomSource(folder=str(folder), **options))


def only(folder: Path, datasets: list[FileDataset], **options: Any) -> np.ndarray:
    studies, rejected = read(folder, datasets, **options)
    assert not rejected
    return np.asarray(studies[0].image.values)


def refused(folder: Path, datasets: list[FileDataset], **options: Any) -> str:
    studies, (found,) = read(folder, datasets, **options)
    assert not studies
    assert found.detail.endswith(".")
    return found.reason


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_compressed_image_has_the_values_of_its_uncompressed_sibling(name: str) -> None:
    plain = bundled("MR_small.dcm")
    assert np.array_equal(
        values(bundled(f"MR_small_{name}.dcm")), np.frombuffer(plain.PixelData, "<i2").reshape(64, 64)
    )


def test_one_image_in_nine_transfer_syntaxes_is_one_image(data: Path) -> None:
    paths = sorted((data / "dicom_zoo" / "transfer_syntaxes").glob("*.dcm"))
    planes = [values(pydicom.dcmread(path)) for path in paths]
    stored = np.frombuffer(pydicom.dcmread(paths[0]).PixelData, "<u2").reshape(384, 384)
    assert len({pydicom.dcmread(path).file_meta.TransferSyntaxUID for path in paths}) >= 7
    assert all(np.array_equal(plane, stored) for plane in planes)


@pytest.mark.parametrize(
    "name", ["MR2_J2KR.dcm", "JLSL_16_15_1_1F.dcm", "explicit_VR-UN.dcm", "JPEG-LL.dcm", "bad_sequence.dcm"]
)
def test_every_installed_decoder_gives_the_same_stored_values(data: Path, name: str) -> None:
    dataset = pydicom.dcmread(data / "dicom_zoo" / "odd" / name)
    uid = dataset.file_meta.TransferSyntaxUID
    found = [
        next(iter(iter_pixels(dataset, indices=[0], raw=True, decoding_plugin=plugin)))
        for plugin in get_decoder(uid).available_plugins
    ]
    assert DECODERS[uid] in get_decoder(uid).available_plugins
    assert all(np.array_equal(plane, found[0]) for plane in found)
    assert image_size(next(generate_frames(dataset.PixelData, number_of_frames=1))) == found[0].shape


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
def test_a_whole_series_may_be_compressed_without_loss(tmp_path: Path, series: list[FileDataset], syntax: str) -> None:
    plain = only(tmp_path / "a", series)
    for dataset in series:
        dataset.compress(syntax)
    assert np.array_equal(only(tmp_path / "a", series), plain)


def test_a_deflated_series_is_read(tmp_path: Path, series: list[FileDataset]) -> None:
    plain = only(tmp_path / "a", series)
    for dataset in series:
        dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    assert np.array_equal(only(tmp_path / "a", series), plain)


def test_bits_above_the_stored_ones_are_no_part_of_the_value(tmp_path: Path, series: list[FileDataset]) -> None:
    plain = only(tmp_path / "a", series)
    for dataset in series:
        stored = np.frombuffer(dataset.PixelData, "<u2")
        dataset.PixelData = (stored | 0x8000).tobytes()  # bit 15 holds an overlay, 12 bits hold the value
    assert np.array_equal(only(tmp_path / "a", series), plain)


def test_an_overlay_of_a_real_file_leaves_its_values_alone(data: Path) -> None:
    dataset = pydicom.dcmread(data / "dicom_zoo" / "odd" / "MR-SIEMENS-DICOM-WithOverlays.dcm")
    assert (0x6000, 0x3000) in dataset
    stored = np.frombuffer(dataset.PixelData, "<u2").reshape(dataset.Rows, dataset.Columns)
    assert np.array_equal(values(dataset), stored & 0x0FFF)


def test_float_pixels_are_values_as_they_are(data: Path) -> None:
    dataset = pydicom.dcmread(data / "dicom_zoo" / "odd" / "parametric_map_float.dcm")
    expected = np.frombuffer(dataset.FloatPixelData, "<f4").reshape(dataset.Rows, dataset.Columns)
    assert np.array_equal(values(dataset), expected)


@pytest.mark.parametrize("how", ["header", "syntax"])
def test_lossy_compression_is_refused_unless_the_settings_allow_it(
    tmp_path: Path, series: list[FileDataset], how: str
) -> None:
    plain = only(tmp_path / "a", series)
    for dataset in series:
        if how == "header":
            dataset.LossyImageCompression = "01"
        else:
            dataset.compress(JPEG2000Lossless)
            dataset.file_meta.TransferSyntaxUID = "1.2.840.10008.1.2.4.91"  # may be lossy, and says nothing
    assert refused(tmp_path / "a", series) == "lossy"
    assert np.array_equal(only(tmp_path / "a", series, lossy="allow"), plain)
    for dataset in series:
        dataset.LossyImageCompression = "00"
    assert np.array_equal(only(tmp_path / "a", series), plain)


def test_baseline_jpeg_is_lossy_whatever_the_header_says(tmp_path: Path, series: list[FileDataset]) -> None:
    for dataset in series:
        dataset.compress(RLELossless)
        dataset.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
        dataset.LossyImageCompression = "00"
    assert refused(tmp_path / "a", series) == "lossy"


def test_burned_in_text_is_refused_until_it_is_blanked(tmp_path: Path, series: list[FileDataset]) -> None:
    plain = only(tmp_path / "a", series)
    for dataset in series:
        dataset.BurnedInAnnotation = "YES"
        stored = dataset.pixel_array.copy()
        stored[2:5, 10:20] = 4000
        dataset.PixelData = stored.tobytes()
    assert refused(tmp_path / "a", series) == "burned_in"
    known = layout(series[0])
    blanked = only(tmp_path / "a", series, blank=(known,))
    expected = plain.copy()
    expected[10:20, 2:5, :] = [stored_minimum(dataset) for dataset in sorted(series, key=place)]
    assert np.array_equal(blanked, expected)
    for other in ({"manufacturer": "Other"}, {"model": "Other"}, {"rows": known.rows + 1}):
        assert refused(tmp_path / "a", series, blank=(replace(known, **other),)) == "burned_in"
    for dataset in series:
        dataset.BurnedInAnnotation = "NO"
    assert np.array_equal(only(tmp_path / "a", series, blank=(known,)), expected)


def layout(dataset: FileDataset) -> Layout:
    """Of one image, with a rectangle of rows 2 to 4 and columns 10 to 19."""
    return Layout(
        manufacturer=str(dataset.get("Manufacturer", "")).upper(),
        model=f" {dataset.get('ManufacturerModelName', '')} ",
        rows=dataset.Rows,
        columns=dataset.Columns,
        rectangles=(Rectangle(top=2, left=10, bottom=5, right=20),),
    )


def place(dataset: FileDataset) -> float:
    return float(dataset.SliceLocation)


def stored_minimum(dataset: FileDataset) -> float:
    return float(dataset.pixel_array.min())


def test_rectangles_outside_and_layouts_twice_are_settings_that_are_wrong() -> None:
    text = """
kind: dicom
folder: .
blank:
  - {manufacturer: A, model: "", rows: 10, columns: 20, rectangles: [{top: 0, left: 0, bottom: 11, right: 21}]}
  - {manufacturer: B, model: "", rows: 10, columns: 20, rectangles: [{top: 5, left: 3, bottom: 5, right: 2}]}
  - {manufacturer: C, model: "", rows: 10, columns: 20, rectangles: [[0, 0, 9, 9]]}
  - [10, 2, 20, 5]
"""
    with pytest.raises(ConfigError) as wrong:
        validate_settings(read_yaml(text, environment={}), DicomSource)
    said = str(wrong.value)
    for part in (
        "most 10, the rows",
        "most 20, the columns",
        "more than top, 5, found 5",
        "more than left, 3, found 2",
    ):
        assert part in said, said
    assert said.count("corners have names") == 2
    once = Layout(manufacturer="A", model="", rows=10, columns=20, rectangles=())
    with pytest.raises(ValueError, match=r"blank\[1\]: the same layout as blank\[0\]"):
        DicomSource(folder=".", blank=(once, replace(once, manufacturer="a ")))


def test_a_fitted_adc_has_its_unit() -> None:
    with pytest.raises(ValueError, match="unit: a fitted ADC"):
        DicomSource(folder=".", derive="adc", unit="1e-3 mm2/s")


@pytest.mark.parametrize("syntax", [RLELossless, JPEGLSLossless, JPEG2000Lossless])
def test_a_compressed_image_of_another_size_is_refused(tmp_path: Path, series: list[FileDataset], syntax: str) -> None:
    for dataset in series:
        dataset.compress(syntax)
        dataset.Rows = dataset.Rows * 2
    assert refused(tmp_path / "a", series) == "unreadable"


def test_sizes_of_damaged_codestreams_are_not_guessed() -> None:
    assert image_size(b"") is None
    assert image_size(b"\xff\xd8\xff") is None
    assert image_size(b"\xff\x4f\xff\x51\0\0") is None
    assert image_size(b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xf7\0\x0b\x10\0\x20\0\x30\x01") == (32, 48)


def test_a_small_deflated_file_cannot_fill_the_memory(
    tmp_path: Path, series: list[FileDataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codestream, "UNPACKED", 2**25)
    for dataset in series:
        dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
        dataset.save_as(tmp_path / "bomb.dcm", enforce_file_format=True)
    raw = (tmp_path / "bomb.dcm").read_bytes()
    start = 144 + int.from_bytes(raw[140:144], "little")
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = b"".join(packer.compress(bytes(2**24)) for _ in range(4)) + packer.flush()
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "bomb.dcm").write_bytes(raw[:start] + body)
    tracemalloc.start()
    (found,) = index_dicom(DicomSource(folder=str(folder))).rejected
    assert found.reason == "too_large"
    assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    tracemalloc.stop()


def test_candidates_can_be_sent_to_another_process(tmp_path: Path, series: list[FileDataset]) -> None:
    only(tmp_path / "a", series)
    (candidate,) = index_dicom(DicomSource(folder=str(tmp_path / "a"))).candidates
    again = pickle.loads(pickle.dumps(candidate))  # noqa: S301
    assert np.array_equal(again.load().image.values, candidate.load().image.values)


@pytest.mark.parametrize("name", ["MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm"])
def test_compressed_pixels_of_another_size_do_not_reach_a_decoder(name: str) -> None:
    dataset = bundled(name)
    check_codestream(dataset)
    dataset.Rows = 65
    with pytest.raises(Unusable, match=r"size \(64, 64\)"):
        check_codestream(dataset)


HARD = pytest.param(7, 200, marks=pytest.mark.slow)  # JPEG-LS, whose decoder looks for the lost bytes for seconds


@pytest.mark.parametrize(
    ("number", "cut"), [(4, 200), (5, 200), HARD, (9, 200), *((number, 20000) for number in (4, 5, 7, 9))]
)
def test_compressed_pixels_that_are_cut_short_are_not_filled_up(data: Path, number: int, cut: int) -> None:
    dataset = pydicom.dcmread(data / "dicom_zoo" / "transfer_syntaxes" / f"{number}.dcm")
    (frame,) = generate_frames(dataset.PixelData, number_of_frames=1)
    assert values(dataset).shape == (384, 384)
    dataset.PixelData = encapsulate([frame[:-cut]])
    with pytest.raises(Exception, match=r"(?i)decod"):
        values(dataset)
