"""A translator on a hospital's files: the change that it makes, and nothing else, arrives in valid new files."""

from __future__ import annotations

import copy
import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.uid import EnhancedMRImageStorage, RLELossless
from scipy import stats

import pipelines.translate as command
from harmonize.cyclegan import CycleGan
from harmonize.intensity import HistogramMatch, Identity, Nyul, Percentile, ZScore
from harmonize.scale import Scale
from harmonize.translation import AnyTranslator
from pipelines.cohort.dicom import DicomSource, read_dicom
from pipelines.cohort.geometry import resample
from pipelines.cohort.nifti import NiftiSource, read_nifti, read_volume
from pipelines.cohort.phantom import PhantomSource
from pipelines.cohort.phantom_files import write
from pipelines.cohort.prepare import Slices, prepare_slices
from pipelines.cohort.study import Study, Volume
from pipelines.exits import Exit
from pipelines.store import HIDDEN, DiskFolder
from pipelines.translate import main
from pipelines.translated import dicom_writer
from pipelines.translated.coding import Coding, coded, line, span
from pipelines.translated.grid import applied, covering, windowed
from pipelines.translated.translator_file import SETTINGS, TranslatorFile, read_translator, write_translator
from privacy.keyed import new_uid, pseudonym

KEY = bytes(range(32))
SCALE = Scale(low=0, high=3.5)  # 1e-3 mm²/s
SELECT = {"ImageType": "ADC"}
NUMBERS = {"numbers": torch.tensor([[-0.75, 0.25]])}
GEOMETRY = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
    *("SliceLocation", "Rows", "Columns", "BitsAllocated", "PixelRepresentation", "PhotometricInterpretation"),
    *("WindowCenter", "WindowWidth", "InstanceNumber", "Modality", "SOPClassUID"),
)


def translator(
    folder: Path, settings: AnyTranslator, params: dict[str, torch.Tensor] | None = None, **more: Any
) -> str:
    told = {
        "site": "north",
        "scale": SCALE,
        "images": Slices(),
        "source": DicomSource(folder="secret/folder", select={**SELECT, "PatientID": "PH0"}),
        "gland": False,
        "vetoed": (),
        "origin": {"run": "tiny"},
        **more,
    }
    write_translator(DiskFolder(folder), settings.name, settings=settings, params=params or {}, **told)
    return str(folder / f"{settings.name}.safetensors")


def run(file: str, folder: Path, out: Path, *more: str) -> int:
    key = out.parent / "site.key"
    if not key.exists():
        key.write_bytes(KEY)
        key.chmod(0o600)
    return main([file, str(folder), "--out", str(out), "--key", str(key), "--readers", "1", *more])


def table(out: Path, name: str = "translated") -> list[dict[str, str]]:
    with (out.parent / f"{out.name}.{name}.csv").open() as file:
        return list(csv.DictReader(file))


def phantom(folder: Path, scanner: str, patients: int = 1, **more: Any) -> Path:
    write(PhantomSource(scanner=scanner, patients=patients, slices=4, **more), folder)  # type: ignore[arg-type]
    return folder / "images"


def studies(folder: Path) -> list[Study]:
    found, rejected = read_dicom(DicomSource(folder=str(folder), select=SELECT))
    assert not rejected
    return found


def only(folder: Path) -> Study:
    (found,) = studies(folder)
    return found


def by_position(folder: Path) -> dict[tuple[float, ...], Dataset]:
    files = [pydicom.dcmread(path) for path in sorted(folder.rglob("*.dcm"))]
    return {tuple(map(float, file.ImagePositionPatient)): file for file in files}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One patient of each way in which a vendor codes ADC: real-world map, table, nothing, table in 1e-3, slope."""
    folder = tmp_path_factory.mktemp("hospital")
    for scanner in "ABPLE":
        phantom(folder / scanner, scanner)
    return folder


def through(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Let T be a function of a slice instead of a network."""
    monkeypatch.setattr(CycleGan, "translate", lambda self, params, images, patient: change(images))


# -- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scanner", "kind"), [*((scanner, "identity") for scanner in "ABPLE"), ("A", "cyclegan"), ("B", "cyclegan")]
)
def test_a_translator_that_changes_nothing_leaves_values_and_geometry(hospital, tmp_path, monkeypatch, scanner, kind):
    through(monkeypatch, lambda x: x)
    settings: AnyTranslator = CycleGan() if kind == "cyclegan" else Identity()
    images = hospital / scanner / "images"
    assert run(translator(tmp_path, settings), images, tmp_path / "out") == Exit.OK
    before, after = only(images), only(tmp_path / "out")
    assert np.array_equal(before.image.affine, after.image.affine)
    values = np.unique(before.image.values)
    step = float(np.diff(values).min())
    assert np.abs(after.image.values - before.image.values).max() <= step
    assert ((after.image.values == 0) == (before.image.values == 0)).all()
    if scanner in "APE":  # no table: nothing is coded anew
        assert np.array_equal(before.image.values, after.image.values) and after.unit == before.unit
    old, new = by_position(images), by_position(tmp_path / "out")
    assert old.keys() == new.keys()
    for place, file in old.items():
        same = [keyword for keyword in GEOMETRY if file.get(keyword) != new[place].get(keyword)]
        assert same == []


@pytest.mark.parametrize("kind", [np.int16, np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii"])
def test_a_nifti_file_keeps_its_grid_forms_type_and_values(tmp_path, kind, name):
    affine = oblique((1.1, 0.9, 3.0))
    values = np.random.default_rng(0).integers(0, 200, (20, 24, 3)).astype(kind)
    image = nibabel.Nifti1Image(values, affine)
    image.set_qform(affine, code="scanner")
    image.set_sform(affine, code="aligned")
    image.header.set_xyzt_units("mm", "sec")
    image.header.set_slope_inter(8.0, 0)
    image.header["descrip"], image.header["aux_file"] = "Miller 1e-6 mm2/s", b"Miller"
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"Miller"))
    (tmp_path / "in").mkdir()
    raw = image.to_bytes()
    (tmp_path / "in" / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    file = translator(tmp_path, Identity(), source=NiftiSource(folder=".", pattern="a.nii*"))
    assert run(file, tmp_path / "in", tmp_path / "out") == Exit.OK
    (path,) = (path for path in (tmp_path / "out").rglob("*.nii*"))
    assert path.name.endswith(name[1:]) and path.parent.name == pseudonym(KEY, "a")
    old, new = nibabel.load(tmp_path / "in" / name), nibabel.load(path)
    assert np.array_equal(np.asarray(old.dataobj), np.asarray(new.dataobj))
    for field in ("dim", "pixdim", "qform_code", "sform_code", "srow_x", "srow_y", "srow_z", "xyzt_units", "datatype"):
        assert np.array_equal(old.header[field], new.header[field]), field
    data = path.read_bytes()
    assert b"Miller" not in (gzip.decompress(data) if name.endswith(".gz") else data)
    assert bytes(new.header["descrip"]).startswith(b"1e-6 mm2/s; research use only; translated by identity")


# -- a known change ---------------------------------------------------------------------------------------------------


def oblique(spacing: tuple[float, float, float]) -> np.ndarray:
    """Axes turned by 20 degrees about one and 10 about another axis of the patient."""
    a, b = np.radians(20), np.radians(10)
    one = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    two = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = one @ two @ np.diag(spacing)
    affine[:3, 3] = (-30.0, 12.0, 7.0)
    return affine


def smooth(affine: np.ndarray, shape: tuple[int, int, int]) -> Volume:
    """ADC in 1e-6 mm²/s that varies over centimetres, with a corner that the vendor masked."""
    i, j, k = np.meshgrid(
        *(np.arange(size) * step for size, step in zip(shape, spacing(affine), strict=True)), indexing="ij"
    )
    values = 1400 + 500 * np.sin(i / 12) * np.cos(j / 15) + 20 * k
    values[:4, :3] = 0
    return Volume(values.astype(np.float32), affine)


def spacing(affine: np.ndarray) -> np.ndarray:
    return np.linalg.norm(affine[:3, :3], axis=0)


def nifti(path: Path, volume: Volume) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(np.rint(volume.values).astype(np.int16), volume.affine)
    image.set_qform(volume.affine, code="scanner")
    image.header["descrip"] = "ADC 1e-6 mm2/s"
    nibabel.save(image, path)


GRIDS = [
    ((1.5, 1.5, 3.0), (60, 70, 3), "RAS"),
    ((2.0, 2.0, 3.0), (42, 64, 3), "LPS"),
    ((0.8, 0.7, 4.0), (90, 80, 2), "PLS"),
    ((1.2, 1.3, 3.6), (30, 35, 3), "SRA"),  # smaller than a window, and slices come first
]


def reordered(volume: Volume, axes: str) -> Volume:
    image = nibabel.Nifti1Image(volume.values, volume.affine)
    change = nibabel.orientations.ornt_transform(
        nibabel.orientations.io_orientation(volume.affine), nibabel.orientations.axcodes2ornt(axes)
    )
    turned = image.as_reoriented(change)
    return Volume(np.asarray(turned.dataobj), turned.affine)


@pytest.mark.parametrize(("steps", "shape", "axes"), GRIDS)
def test_a_constant_arrives_in_every_pixel_of_oblique_studies_of_any_spacing(tmp_path, monkeypatch, steps, shape, axes):
    through(monkeypatch, lambda x: x + 0.1)  # of the 3.5 that are 2 in network space: 175e-6 mm²/s
    volume = reordered(smooth(oblique(steps), shape), axes)
    nifti(tmp_path / "in" / "a.nii.gz", volume)
    file = translator(tmp_path, CycleGan(), source=NiftiSource(folder="."))
    assert run(file, tmp_path / "in", tmp_path / "out") == Exit.OK
    ((found,), rejected) = read_nifti(NiftiSource(folder=str(tmp_path / "out")))
    assert not rejected
    before = read_volume(tmp_path / "in" / "a.nii.gz")
    assert np.array_equal(found.image.affine, before.affine)
    expected = np.where(before.values == 0, 0, before.values + 175)
    assert np.abs(found.image.values - expected).max() <= 1


@pytest.mark.parametrize(("steps", "shape", "axes"), GRIDS[:3])
def test_a_tone_curve_arrives_on_oblique_studies_of_any_spacing(tmp_path, monkeypatch, steps, shape, axes):
    def curve(x: Any) -> Any:
        return 2 * ((x + 1) / 2) ** 1.3 - 1

    through(monkeypatch, curve)
    volume = smooth(oblique(steps), shape)
    volume.values[volume.values == 0] = 1000  # a masked corner is blurred with what lies beside it; not the matter here
    volume = reordered(volume, axes)
    nifti(tmp_path / "in" / "a.nii.gz", volume)
    file = translator(tmp_path, CycleGan(), source=NiftiSource(folder="."))
    assert run(file, tmp_path / "in", tmp_path / "out") == Exit.OK
    ((found,), _) = read_nifti(NiftiSource(folder=str(tmp_path / "out")))
    before = read_volume(tmp_path / "in" / "a.nii.gz").values
    expected = 3500 * (before / 3500) ** 1.3
    off = np.abs(found.image.values - expected)
    assert float(np.abs(expected - before).mean()) > 200
    assert float(np.percentile(off, 95)) < 6 and float(np.median(off)) < 2


@pytest.mark.parametrize("scanner", list("ABPLE"))
def test_a_constant_arrives_in_dicom_however_the_vendor_codes_values(hospital, tmp_path, monkeypatch, scanner):
    through(monkeypatch, lambda x: x + 0.1)
    images = hospital / scanner / "images"
    assert run(translator(tmp_path, CycleGan()), images, tmp_path / "out") == Exit.OK
    before, after = only(images), only(tmp_path / "out")
    unit = 1e-3 if scanner == "E" else 1.0  # which says no unit
    old, new = before.image.values / unit, after.image.values / unit
    expected = np.where(old == 0, 0, np.where(old > 3500, old, np.minimum(old + 175, 3500)))
    assert np.abs(new - expected).max() <= 1
    for file in by_position(tmp_path / "out").values():
        lowest, highest = span(file.BitsStored, bool(file.PixelRepresentation))
        assert lowest <= file.pixel_array.min() and file.pixel_array.max() <= highest
        assert not {"SmallestImagePixelValue", "LargestImagePixelValue"} & set(file.dir())


def test_what_lies_outside_the_scale_goes_no_farther_out(monkeypatch):
    values = np.random.default_rng(0).uniform(-1, 6, (70, 60, 2)).astype(np.float32)
    image = Volume(values, np.diag([1.1, 1.2, 3.0, 1.0]))
    for by in (-0.3, 0.3):
        through(monkeypatch, lambda x, by=by: x + by)
        found = applied(image, values == 0, made(CycleGan()), None)
        result = values + found.change
        inside = (values >= 0) & (values <= 3.5)
        assert result[inside].min() >= -1e-6 and result[inside].max() <= 3.5 + 1e-6
        assert (result[values > 3.5] <= values[values > 3.5]).all() and (result[values < 0] >= values[values < 0]).all()
        assert found.limited > 0


def made(settings: AnyTranslator, params: dict[str, torch.Tensor] | None = None) -> TranslatorFile:
    """The translator as it is read from its file."""
    known = SETTINGS.validate_json(SETTINGS.dump_json(settings))
    source = DicomSource(folder=".")
    return TranslatorFile("s", "x", known, params or {}, SCALE, Slices(), source, False, (), "0" * 16, {})


# -- what the network says --------------------------------------------------------------------------------------------


def network(keep_mean: str) -> tuple[CycleGan, dict[str, torch.Tensor]]:
    settings = CycleGan(keep_mean=keep_mean)  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = settings.transformer(1)
    params = {f"translator/{name}": value for name, value in net.state_dict().items()}
    return settings, {**params, "keep/own": torch.tensor([-0.2]), "keep/translated": torch.tensor([-0.15])}


@pytest.mark.parametrize("keep_mean", ["none", "patient"])
def test_on_the_networks_own_grid_a_study_becomes_what_the_network_says_of_it(keep_mean):
    settings, params = network(keep_mean)
    values = np.random.default_rng(1).uniform(0.8, 2.0, (48, 48, 3)).astype(np.float32)
    image = Volume(values, np.diag([-1.5, -1.5, 3.0, 1.0]))
    found = applied(image, np.zeros(values.shape, bool), made(settings, params), None)
    x = SCALE.into(torch.from_numpy(prepare_slices(image, lesion=None, gland=None, images=Slices()).images))
    with torch.no_grad():
        y = SCALE.back(settings.translate(params, x, torch.zeros(3, dtype=torch.int64)))
    assert np.abs(values + found.change - y[:, 0].numpy().transpose(2, 1, 0)).max() < 1e-4


@settings_of(max_examples=20)
@given(st.integers(20, 90), st.integers(20, 90), st.integers(0, 5))
def test_windows_of_a_function_of_each_pixel_make_that_function_of_the_whole_slice(height, width, seed):
    x = torch.rand(2, 1, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    found = windowed(x, lambda part: torch.tanh(part) - part, 48, background=-1.0)
    assert torch.allclose(found, torch.tanh(x) - x, atol=1e-5)


@given(st.floats(0.3, 4), st.floats(0.3, 4), st.integers(8, 90), st.integers(8, 90), st.floats(0.5, 3))
def test_the_networks_pixels_lie_between_the_outer_native_ones_and_leave_less_than_one_free(
    dx, dy, columns, rows, edge
):
    grid, shape = covering(oblique((dx, dy, 3.0)), (columns, rows), edge)
    index = np.linalg.inv(oblique((dx, dy, 3.0))) @ grid
    for axis, (count, last) in enumerate(zip(shape, (columns - 1, rows - 1), strict=True)):
        first, end = index[axis, 3], index[axis, 3] + index[axis, axis] * (count - 1)
        assert first == pytest.approx(last - end, abs=1e-6) and -1e-6 <= first < index[axis, axis] / 2 + 1e-6
    assert np.linalg.norm(grid[:3, :2], axis=0) == pytest.approx([edge, edge])


@pytest.mark.parametrize(
    "settings",
    [ZScore(), ZScore(over="image"), Percentile(), Percentile(region="centre"), Nyul(), HistogramMatch()],
    ids=lambda settings: f"{settings.name}-{getattr(settings, 'over', '')}{getattr(settings, 'region', '')}",
)
def test_a_patients_curve_is_measured_as_in_training_and_followed_by_every_native_pixel(settings):
    wide = {"nyul": torch.linspace(-0.9, 0.6, 13)[None], "histogram_match": torch.linspace(-0.9, 0.6, 1024)[None]}
    params = {"numbers": wide.get(settings.name, NUMBERS["numbers"])}
    file, image = (
        made(settings, params),
        Volume(smooth(oblique((0.9, 0.9, 3.0)), (100, 90, 3)).values / 1000, oblique((0.9, 0.9, 3.0))),
    )
    found = applied(image, image.values == 0, file, None)
    seen = prepare_slices(image, lesion=None, gland=None, images=Slices())
    x = SCALE.into(torch.from_numpy(seen.images))
    y = SCALE.back(settings.translate(params, x, torch.zeros(len(x), dtype=torch.int64)))
    # Brought onto the training grid, the native result is the training result: the same curve was followed.
    after = prepare_slices(Volume(image.values + found.change, image.affine), lesion=None, gland=None, images=Slices())
    inner = after.images[:, 0, 2:-2, 2:-2]
    off = np.abs(inner - y[:, 0, 2:-2, 2:-2].numpy())
    assert np.percentile(off, 98) < 0.03 and off.max() < 0.06  # where a curve is steep, smoothing and it do not commute
    assert (found.change[image.values == 0] == 0).all()
    if settings.name != "z_score" or settings.over == "patient":
        order = np.argsort(image.values[image.values > 0], kind="stable")
        assert (np.diff((image.values + found.change)[image.values > 0][order]) >= -1e-5).all()


# -- coding -----------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([8, 12, 16]), st.booleans(), st.floats(-3000, 3000),
    st.sampled_from([1.0, 0.5, 0.001, 7.3]), st.booleans(),
)  # fmt: skip
def test_new_stored_values_are_the_changed_real_ones_within_half_a_step(seed, bits, signed, by, slope, table):
    generator = np.random.default_rng(seed)
    low, high = span(bits, signed)
    stored = [generator.integers(low, high + 1, (6, 5)).astype(np.int32) for _ in range(2)]
    real = [(plane * slope).astype(np.float32) for plane in stored]
    change = [np.full((6, 5), by * slope, np.float32) for _ in stored]
    new, coding = coded(stored, real, change, Coding(bits, signed), 8 if bits == 8 else 16, table=table)
    for before, plane in zip(stored, new, strict=True):
        least, most = span(coding.bits, coding.signed)
        assert least <= plane.min() and plane.max() <= most
        told = plane * coding.slope + coding.intercept
        found = told * slope if coding.relative else told
        step = abs(coding.slope) * (slope if coding.relative else 1)
        assert np.abs(found - (before * slope + by * slope)).max() <= step * 0.51 + 2e-6 * np.abs(found).max()
    if by == 0 and not table:
        assert coding.same and all(np.array_equal(a, b) for a, b in zip(stored, new, strict=True))


def test_a_table_is_no_line_and_one_value_is_no_table():
    stored = np.arange(100).reshape(10, 10)
    assert line(stored, (stored * 0.25 + 3).astype(np.float32)) == pytest.approx(0.25)
    assert line(stored, (stored.astype(np.float32) ** 1.3)) is None
    assert line(np.full((2, 2), 7), np.full((2, 2), 3, np.float32)) == 0.0


def test_values_that_leave_twelve_bits_are_stored_in_sixteen_with_the_same_rescale(tmp_path, monkeypatch):
    images = phantom(tmp_path / "p", "P")
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        values = file.pixel_array.copy()
        values[values > 0] = np.minimum(values[values > 0] + 1500, 4090)
        file.PixelData = values.tobytes()
        file.add_new("SmallestImagePixelValue", "US", 0)
        file.save_as(path)
    through(monkeypatch, lambda x: x + 0.2)
    file_ = translator(tmp_path, CycleGan(), scale=Scale(low=0, high=10))
    assert run(file_, images, tmp_path / "out") == Exit.OK
    after, before = only(tmp_path / "out"), only(images)
    assert after.image.values.max() > 4095
    assert np.array_equal(after.image.values, np.where(before.image.values == 0, 0, before.image.values + 1000))
    for new in by_position(tmp_path / "out").values():
        assert (new.BitsStored, new.HighBit, "RescaleSlope" in new) == (16, 15, False)


def test_a_real_world_map_and_its_range_hold_for_the_new_values(tmp_path, monkeypatch):
    images = phantom(tmp_path / "p", "A")
    through(monkeypatch, lambda x: x + 0.4)
    file = translator(tmp_path, CycleGan(), scale=Scale(low=0, high=10))
    assert run(file, images, tmp_path / "out") == Exit.OK
    before, after = only(images), only(tmp_path / "out")
    assert after.unit == before.unit == "um2/s"
    expected = np.where(before.image.values == 0, 0, before.image.values + 2000)
    assert np.abs(after.image.values - expected).max() <= 0.5 and after.image.values.max() > 3600
    for new in by_position(tmp_path / "out").values():
        (item,) = new.RealWorldValueMappingSequence
        assert item.RealWorldValueFirstValueMapped == 0
        assert item.RealWorldValueLastValueMapped == max(
            one.pixel_array.max() for one in by_position(tmp_path / "out").values()
        )
        assert np.allclose(float(new.RescaleSlope), item.RealWorldValueSlope)


@pytest.mark.parametrize("mapped", [False, True])
def test_eight_bits_that_cannot_hold_the_values_become_sixteen_with_a_slope_of_their_own(tmp_path, monkeypatch, mapped):
    images = phantom(tmp_path / "p", "A")
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        file.PixelData = np.minimum(file.pixel_array // 15, 255).astype(np.uint8).tobytes()
        file.BitsAllocated = file.BitsStored = 8
        file.HighBit, file.RescaleSlope, file.RescaleIntercept, file.RescaleType = 7, "13", "0", "1e-6 mm2/s"
        (item,) = file.RealWorldValueMappingSequence
        item.RealWorldValueSlope, item.RealWorldValueLastValueMapped = 13.0, 255
        if not mapped:
            del file.RealWorldValueMappingSequence
        file.save_as(path)
    through(monkeypatch, lambda x: x + 0.4)
    file_ = translator(tmp_path, CycleGan(), scale=Scale(low=0, high=10))
    assert run(file_, images, tmp_path / "out") == Exit.OK
    before, after = only(images), only(tmp_path / "out")
    assert after.unit == before.unit
    assert np.abs(after.image.values - np.where(before.image.values == 0, 0, before.image.values + 2000)).max() < 0.1
    for new in by_position(tmp_path / "out").values():
        assert (new.BitsAllocated, new.BitsStored, new.HighBit) == (16, 16, 15)


def test_text_that_is_blanked_for_the_reader_is_blanked_in_the_output(tmp_path):
    images = phantom(tmp_path / "p", "P")
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        values = file.pixel_array.copy()
        values[2:5, 3:9] = 4095
        file.PixelData, file.BurnedInAnnotation = values.tobytes(), "YES"
        file.save_as(path)
    plain = translator(tmp_path, Identity())
    assert run(plain, images, tmp_path / "refused") == Exit.DATA
    assert table(tmp_path / "refused", "quarantine")[0]["reason"] == "burned_in"
    source = DicomSource(folder=".", select=SELECT, blank=((3, 2, 9, 5),))
    assert run(translator(tmp_path, Identity(), source=source), images, tmp_path / "out") == Exit.OK
    for place, new in by_position(tmp_path / "out").items():
        old = by_position(images)[place].pixel_array
        assert new.pixel_array.max() < 4095 and len(np.unique(new.pixel_array[2:5, 3:9])) == 1
        assert new.BurnedInAnnotation == "NO" and np.array_equal(new.pixel_array[6:], old[6:])


def test_a_nifti_type_that_cannot_hold_the_values_becomes_float32(tmp_path, monkeypatch):
    through(monkeypatch, lambda x: x + 0.1)
    values = np.random.default_rng(0).integers(200, 255, (50, 50, 2)).astype(np.uint8)
    image = nibabel.Nifti1Image(values, oblique((1.5, 1.5, 3.0)))
    image.header.set_slope_inter(8.0, 0)
    (tmp_path / "in").mkdir()
    nibabel.save(image, tmp_path / "in" / "a.nii.gz")
    assert (
        run(
            translator(tmp_path, CycleGan(), source=NiftiSource(folder=".", unit="1e-6 mm2/s")),
            tmp_path / "in",
            tmp_path / "out",
        )
        == 0
    )
    (path,) = (tmp_path / "out").rglob("*.nii.gz")
    new = nibabel.load(path)
    assert new.get_data_dtype() == np.float32
    assert np.abs(np.asarray(new.dataobj) - (values * 8.0 + 175)).max() < 0.01


# -- identity of files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(hospital, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("done")
    assert run(translator(folder, Percentile(), NUMBERS), hospital / "A" / "images", folder / "out") == Exit.OK
    return folder


def test_uids_are_new_unique_and_follow_from_key_images_and_translator(hospital, done, tmp_path):
    old, new = by_position(hospital / "A" / "images"), by_position(done / "out")
    uids = {file.SOPInstanceUID for file in new.values()}
    assert len(uids) == len(new) and not uids & {file.SOPInstanceUID for file in old.values()}
    for place, file in new.items():
        assert file.file_meta.MediaStorageSOPInstanceUID == file.SOPInstanceUID
        (source,) = file.SourceImageSequence
        original = new_uid(KEY, old[place].SOPInstanceUID)  # as pipelines.deidentify names it
        assert source.ReferencedSOPInstanceUID == original != file.SOPInstanceUID
        assert file.StudyInstanceUID == new_uid(KEY, old[place].StudyInstanceUID)
        assert file.FrameOfReferenceUID == new_uid(KEY, old[place].FrameOfReferenceUID)
        assert file.SeriesInstanceUID not in (old[place].SeriesInstanceUID, new_uid(KEY, old[place].SeriesInstanceUID))
    assert len({file.SeriesInstanceUID for file in new.values()}) == 1
    again, other = tmp_path / "again" / "out", tmp_path / "other" / "out"
    for out, numbers in ((again, NUMBERS), (other, {"numbers": torch.tensor([[-0.7, 0.2]])})):
        file = translator(out.parent, Percentile(), numbers)
        assert run(file, hospital / "A" / "images", out) == Exit.OK
    assert content(again) == content(done / "out")
    assert not {file.SOPInstanceUID for file in by_position(other).values()} & uids
    assert not {file.SeriesInstanceUID for file in by_position(other).values()} & {
        file.SeriesInstanceUID for file in new.values()
    }


def content(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file() and not path.name.startswith(".lock")
    }


def test_the_image_says_that_and_how_it_was_derived(done):
    for file in by_position(done / "out").values():
        assert list(file.ImageType) == ["DERIVED", "SECONDARY", "ADC"]
        assert "translated by percentile of site north" in file.DerivationDescription
        assert file.SeriesDescription == "ADC translated by percentile of site north"
        assert file.PatientIdentityRemoved == "YES" and file.PatientID == pseudonym(KEY, "PH0-0000")
        assert file.file_meta.TransferSyntaxUID == "1.2.840.10008.1.2.1"


def test_nothing_of_a_patient_is_in_the_output_or_in_its_names(hospital, done):
    secrets: set[bytes] = set()
    for file in by_position(hospital / "A" / "images").values():
        for keyword in ("PatientID", "AccessionNumber", "StudyDate", "InstitutionName", "StudyInstanceUID"):
            secrets.add(str(file[keyword].value).encode())
        secrets |= {part.encode() for part in str(file.PatientName).split("^") if len(part) > 4}
        secrets |= {file.SOPInstanceUID.encode(), file.SeriesInstanceUID.encode()}
    for name, data in content(done / "out").items():
        assert not [secret for secret in secrets if secret in data or secret in name.encode()]


def test_a_site_that_is_named_in_the_file_is_not_named_again(hospital, tmp_path):
    file = translator(tmp_path, Identity(), site="Hospital A")
    assert run(file, hospital / "A" / "images", tmp_path / "out") == Exit.OK
    assert all("Hospital" not in str(one.DerivationDescription) for one in by_position(tmp_path / "out").values())


@pytest.mark.parametrize("scanner", list("AP"))
def test_dciodvfy_finds_no_error_that_the_input_has_not(hospital, tmp_path, monkeypatch, scanner):
    through(monkeypatch, lambda x: x + 0.1)
    assert run(translator(tmp_path, CycleGan()), hospital / scanner / "images", tmp_path / "out") == Exit.OK
    assert errors(tmp_path / "out") <= errors(hospital / scanner / "images")


def errors(folder: Path) -> set[str]:
    program = shutil.which("dciodvfy")
    if program is None:
        pytest.skip("dciodvfy (dicom3tools) is not installed")
    found = set()
    for path in sorted(folder.rglob("*.dcm")):
        told = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
        found |= {line for line in (told.stdout + told.stderr).splitlines() if line.startswith("Error")}
    return found


# -- other files ------------------------------------------------------------------------------------------------------


def test_compressed_files_are_written_uncompressed(tmp_path, monkeypatch):
    images = phantom(tmp_path / "p", "P")
    plain = only(images)
    for path in images.rglob("*.dcm"):
        file = pydicom.dcmread(path)
        file.compress(RLELossless, generate_instance_uid=False)
        file.save_as(path)
    assert run(translator(tmp_path, Identity()), images, tmp_path / "out") == Exit.OK
    assert np.array_equal(only(tmp_path / "out").image.values, plain.image.values)


def enhanced(images: Path, folder: Path) -> None:
    """One enhanced file of classic ones, with a slope of its own in each frame."""
    classic = [file for _, file in sorted(by_position(images).items(), key=lambda one: one[0][2])]
    result = copy.deepcopy(classic[0])
    result.SOPClassUID = result.file_meta.MediaStorageSOPClassUID = EnhancedMRImageStorage
    result.NumberOfFrames, groups, pixels = len(classic), [], []
    for number, file in enumerate(classic, 1):
        group = Dataset()
        for macro, keywords in (
            ("PlanePositionSequence", ["ImagePositionPatient"]),
            ("PlaneOrientationSequence", ["ImageOrientationPatient"]),
            ("PixelMeasuresSequence", ["PixelSpacing", "SliceThickness"]),
        ):
            item = Dataset()
            for keyword in keywords:
                setattr(item, keyword, file[keyword].value)
            setattr(group, macro, [item])
        values, kind, slope = Dataset(), Dataset(), Dataset()
        slope.RescaleSlope, slope.RescaleIntercept, slope.RescaleType = str(number), "0", "1e-6 mm2/s"
        kind.FrameType = ["ORIGINAL", "PRIMARY", "ADC", "NONE"]
        values.StackID, values.InStackPositionNumber, values.DimensionIndexValues = "1", number, [1, number]
        group.PixelValueTransformationSequence, group.MRImageFrameTypeSequence = [slope], [kind]
        group.FrameContentSequence = [values]
        groups.append(group)
        pixels.append((file.pixel_array // number).astype("<u2").tobytes())
    result.ImageType = ["ORIGINAL", "PRIMARY", "ADC", "NONE"]
    for keyword in (
        "ImagePositionPatient",
        "ImageOrientationPatient",
        "PixelSpacing",
        "SliceThickness",
        "SliceLocation",
    ):
        del result[keyword]
    result.SharedFunctionalGroupsSequence, result.PerFrameFunctionalGroupsSequence = [Dataset()], groups
    result.PixelData = b"".join(pixels)
    folder.mkdir()
    result.save_as(folder / "one.dcm", enforce_file_format=True)


@pytest.mark.parametrize("by", [0.0, 0.1])
def test_an_enhanced_file_stays_one_file_whose_frames_keep_their_places_and_slopes(hospital, tmp_path, monkeypatch, by):
    through(monkeypatch, lambda x: x + by)
    enhanced(hospital / "P" / "images", tmp_path / "in")
    assert run(translator(tmp_path, CycleGan()), tmp_path / "in", tmp_path / "out") == Exit.OK
    (path,) = (tmp_path / "out").rglob("*.dcm")
    file, before, after = pydicom.dcmread(path), only(tmp_path / "in"), only(tmp_path / "out")
    assert np.array_equal(before.image.affine, after.image.affine)
    allowed = np.arange(1, 5) / 2 + 0.01  # half of each frame's step
    expected = np.where(before.image.values == 0, 0, before.image.values + by * 1750)
    assert (np.abs(after.image.values - expected).max(axis=(0, 1)) <= allowed).all()
    assert list(file.ImageType) == ["DERIVED", "PRIMARY", "ADC", "NONE"]
    frames = file.PerFrameFunctionalGroupsSequence
    assert {tuple(group.MRImageFrameTypeSequence[0].FrameType) for group in frames} == {tuple(file.ImageType)}
    assert errors(tmp_path / "out") <= errors(tmp_path / "in")


def test_a_file_whose_other_frames_are_not_translated_is_refused(hospital, tmp_path):
    enhanced(hospital / "P" / "images", tmp_path / "in")
    path = tmp_path / "in" / "one.dcm"
    file = pydicom.dcmread(path)
    for group in file.PerFrameFunctionalGroupsSequence[2:]:
        group.MRImageFrameTypeSequence[0].FrameType = ["ORIGINAL", "PRIMARY", "OTHER", "NONE"]
    file.save_as(path)
    found = run(translator(tmp_path, Identity()), tmp_path / "in", tmp_path / "out")
    assert found == Exit.DATA
    assert table(tmp_path / "out", "quarantine")[0]["reason"] == "shared_file"


def test_names_of_nifti_files_stay_only_if_that_is_asked_for(tmp_path):
    nifti(tmp_path / "in" / "ward" / "Miller.nii.gz", smooth(oblique((1.5, 1.5, 3.0)), (50, 50, 2)))
    file = translator(tmp_path, Identity(), source=NiftiSource(folder="."))
    assert run(file, tmp_path / "in", tmp_path / "out") == Exit.OK
    assert all("Miller" not in name and "ward" not in name for name in content(tmp_path / "out"))
    kept = main([file, str(tmp_path / "in"), "--out", str(tmp_path / "kept"), "--keep-names"])
    assert kept == Exit.OK and list(content(tmp_path / "kept")) == ["ward/Miller.nii.gz"]


# -- a batch job ------------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path) -> Path:
    """Three patients, four damaged ones, and a localizer."""
    images = phantom(tmp_path / "many", "P", patients=3, damaged=4)
    scout = next(path for path in sorted((images / "PH0-0000").glob("*.dcm")))
    file = pydicom.dcmread(scout)
    file.SeriesInstanceUID, file.SOPInstanceUID = "1.2.3.4.5", "1.2.3.4.6"
    (images / "scout").mkdir()
    file.save_as(images / "scout" / "a.dcm")
    file.SeriesInstanceUID, file.SOPInstanceUID, file.ImageType = "1.2.3.4.7", "1.2.3.4.8", ["ORIGINAL", "PRIMARY", "M"]
    file.save_as(images / "scout" / "b.dcm")
    (images / "letter.txt").write_text("Dear Mr Amsel")
    return images


def test_what_cannot_be_translated_is_told_and_the_rest_is_there(many, tmp_path, capsys):
    file = translator(tmp_path, Identity())
    assert run(file, many, tmp_path / "out", "--json") == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["translated"], told["there"], told["quarantined"]) == (3, 0, 5)
    assert (told["unselected"], told["ignored"], told["exit"]) == (1, 1, 0)
    reasons = {line["reason"] for line in table(tmp_path / "out", "quarantine")}
    assert {"single_slice", "gap", "mixed_orientation", "duplicate_slice"} <= reasons
    assert all(line["detail"] for line in table(tmp_path / "out", "quarantine"))
    files = content(tmp_path / "out")
    assert len(files) == 12 and all(name.endswith(".dcm") for name in files)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.stat().st_mode & 0o077]
    assert run(file, many, tmp_path / "out", "--json", "--readers", "2") == Exit.OK
    assert json.loads(capsys.readouterr().out)["there"] == 3
    assert content(tmp_path / "out") == files
    assert [line["mean_change"] for line in table(tmp_path / "out")] == ["0"] * 3


def test_readers_side_by_side_write_the_same_files(many, tmp_path):
    file = translator(tmp_path, Percentile(), NUMBERS)
    assert run(file, many, tmp_path / "one") == run(file, many, tmp_path / "two", "--readers", "3") == Exit.OK
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert table(tmp_path / "one") == table(tmp_path / "two")


def test_nothing_that_could_be_translated_is_code_3(many, tmp_path):
    for folder in many.iterdir():
        if folder.is_dir() and folder.name < "PH0-0003":
            shutil.rmtree(folder)
    assert run(translator(tmp_path, Identity()), many, tmp_path / "out") == Exit.DATA


def test_a_full_disk_leaves_no_half_study_and_the_same_command_goes_on(many, tmp_path, monkeypatch):
    file, calls = translator(tmp_path, Identity()), []

    def full(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) >= 7:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    real = dicom_writer._file
    monkeypatch.setattr(dicom_writer, "_file", full)
    assert run(file, many, tmp_path / "out") == Exit.DISK
    assert len(content(tmp_path / "out")) == 4
    assert not list((tmp_path / "out").rglob(f"{HIDDEN}*"))
    monkeypatch.undo()
    assert run(file, many, tmp_path / "out") == Exit.OK
    assert len(content(tmp_path / "out")) == 12


def test_what_a_killed_run_left_is_removed_by_the_next(many, tmp_path):
    left = tmp_path / "out" / "abc" / f"{HIDDEN}123"
    left.mkdir(parents=True)
    (left / "half.dcm").write_bytes(b"half")
    assert run(translator(tmp_path, Identity()), many, tmp_path / "out") == Exit.OK
    assert not left.exists()


def test_a_stop_that_was_asked_for_ends_after_the_study_at_hand(many, tmp_path, monkeypatch):
    real = command.translate

    def stopping(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    monkeypatch.setattr(command, "translate", stopping)
    file = translator(tmp_path, Identity())
    assert run(file, many, tmp_path / "out") == Exit.STOPPED
    assert 4 <= len(content(tmp_path / "out")) < 12
    monkeypatch.undo()
    assert run(file, many, tmp_path / "out") == Exit.OK
    assert len(content(tmp_path / "out")) == 12 and len(table(tmp_path / "out")) == 3


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_vetoed_translator_is_refused_unless_it_is_asked_for(hospital, tmp_path, capsys):
    file = translator(tmp_path, Identity(), vetoed=("lesion_order", "cnr"))
    assert run(file, hospital / "P" / "images", tmp_path / "out") == Exit.CONFIG
    assert "lesion_order, cnr" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert run(file, hospital / "P" / "images", tmp_path / "out", "--even-if-vetoed") == Exit.OK
    assert all(
        "vetoed it: lesion_order, cnr" in one.DerivationDescription for one in by_position(tmp_path / "out").values()
    )


def test_a_translator_that_measures_about_the_gland_needs_masks_or_a_word(hospital, tmp_path, capsys):
    file = translator(tmp_path, Percentile(), NUMBERS, gland=True, images=Slices(slices="gland"))
    images, masks = hospital / "P" / "images", hospital / "P" / "masks" / "gland"
    assert run(file, images, tmp_path / "out") == Exit.CONFIG
    assert "--no-gland" in capsys.readouterr().err
    assert run(file, images, tmp_path / "out", "--gland", str(masks)) == Exit.OK
    assert float(table(tmp_path / "out")[0]["gland_order"]) > 0.999
    assert run(file, images, tmp_path / "other", "--no-gland") == Exit.OK
    about_gland, about_middle = only(tmp_path / "out").image.values, only(tmp_path / "other").image.values
    assert not np.array_equal(about_gland, about_middle)


def test_all_that_is_wrong_is_told_at_once(hospital, tmp_path, capsys):
    file = translator(tmp_path, Identity(), vetoed=("cnr",))
    images = hospital / "P" / "images"
    arguments = [file, str(images), "--out", str(images / "out"), "--readers", "-1", "--gland", "x", "--no-gland"]
    assert main(arguments) == Exit.CONFIG
    said = capsys.readouterr().err
    for part in ("--out must not lie in FOLDER", "--readers must be >= 0", "vetoed", "contradict", "--key is needed"):
        assert part in said
    assert not (images / "out").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"source": NiftiSource(folder=".")}, "--select"),
        ({"source": DicomSource(folder=".", derive="adc")}, "fitted to diffusion-weighted images"),
    ],
)
def test_a_translator_that_does_not_suit_the_folder_is_refused(hospital, tmp_path, capsys, more, said):
    file = translator(tmp_path, Identity(), **more)
    kind = ["--kind", "dicom"]
    assert run(file, hospital / "P" / "images", tmp_path / "out", *kind) == Exit.CONFIG
    assert said in capsys.readouterr().err
    assert run(file, hospital / "P" / "images", tmp_path / "out", *kind, "--select", "ImageType=ADC") == Exit.OK


def test_a_translator_file_says_what_it_needs_and_names_no_place(tmp_path):
    path = Path(translator(tmp_path, Percentile(low=2.0), NUMBERS, gland=True, vetoed=("cnr",)))
    found = read_translator(path)
    assert (found.settings, found.scale, found.images) == (Percentile(low=2.0), SCALE, Slices())
    assert (found.site, found.label, found.gland, found.vetoed) == ("north", "percentile", True, ("cnr",))
    assert torch.equal(found.params["numbers"], NUMBERS["numbers"]) and found.facts["origin"] == {"run": "tiny"}
    assert isinstance(found.source, DicomSource) and (found.source.folder, found.source.select) == (".", SELECT)
    assert b"secret" not in path.read_bytes() and b"PH0" not in path.read_bytes()


@pytest.mark.parametrize("damage", ["short", "flipped", "later", "foreign"])
def test_a_file_that_is_no_translator_is_refused_in_words(tmp_path, damage, monkeypatch):
    if damage == "later":
        monkeypatch.setattr("pipelines.translated.translator_file.FORMAT", 2)
    path = Path(translator(tmp_path, Identity()))
    monkeypatch.undo()
    data = path.read_bytes()
    middle = len(data) // 2
    changed = {"short": data[:-5], "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]}
    path.write_bytes(changed.get(damage, b"letter" if damage == "foreign" else data))
    with pytest.raises(ValueError, match=r"is not a translator .*; give a file of a site's translators/"):
        read_translator(path)


# -- real data --------------------------------------------------------------------------------------------------------


def test_real_adc_keeps_its_geometry_and_the_order_of_gland_and_lesion(data, tmp_path):
    if not (data / "prostatex").is_dir():
        pytest.skip(f"no ProstateX below {data}")
    labels, source = data / "prostatex" / "labels", data / "prostatex" / "dicom" / "ProstateX-0000"
    assert run(translator(tmp_path, Percentile(), NUMBERS), source, tmp_path / "out", "--json") == Exit.OK
    before, after = only(source), only(tmp_path / "out")
    old, new = before.image, after.image
    assert np.array_equal(old.affine, new.affine) and old.values.shape == new.values.shape == (84, 128, 19)
    assert after.patient == pseudonym(KEY, before.patient)
    gland = on(read_volume(labels / "whole_gland_Bosma22b" / "11373_1001396.nii.gz"), old)
    lesion = on(read_volume(labels / "lesion_expert" / "11373_1001396.nii.gz"), old)
    assert float(old.values[gland].mean()) == pytest.approx(1454, rel=0.01)
    assert float(stats.spearmanr(old.values[gland], new.values[gland]).statistic) > 0.999
    assert abs(float(new.values[gland].mean() - old.values[gland].mean())) > 50  # something was translated
    assert new.values[lesion].mean() < 0.9 * new.values[gland].mean()
    assert errors(tmp_path / "out") <= errors(source)
    joined = b"".join(content(tmp_path / "out").values())
    assert b"ProstateX-000" not in joined and b"1.3.6.1.4.1.14519" not in joined


def on(mask: Volume, image: Volume) -> np.ndarray:
    flags = Volume((mask.values > 0).astype(np.uint8), mask.affine)
    return resample(flags, image.affine, image.values.shape, 0) > 0  # type: ignore[arg-type,operator]
