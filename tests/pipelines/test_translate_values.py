"""A translator on a hospital's files: the change that it makes, and nothing else, arrives in every pixel."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st

from harmonize.cyclegan import CycleGan
from harmonize.intensity import HistogramMatch, Identity, Nyul, Percentile, ZScore
from harmonize.randomized import Randomized
from harmonize.reinhard import Reinhard
from harmonize.scale import Scale
from harmonize.translation import AnyTranslator
from pipelines.batch.translated_values import (
    apply_translator,
    build_square_grid,
    depends_on_study,
    translate_in_windows,
)
from pipelines.data.images import Slices
from pipelines.data.nifti.reader import read_nifti, read_volume
from pipelines.data.prepare import prepare_slices
from pipelines.data.sources import NiftiSource
from pipelines.data.study import Volume
from pipelines.data.writing.coding import value_range
from pipelines.runs.exits import Exit
from privacy.deidentify.keyed import make_pseudonym
from translating import (
    KEY,
    NUMBERS,
    SCALE,
    by_position,
    five,
    made,
    nifti,
    oblique,
    only,
    run,
    smooth,
    through,
    translator,
)

GEOMETRY = (
    *("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "SpacingBetweenSlices"),
    *("SliceLocation", "Rows", "Columns", "BitsAllocated", "PixelRepresentation", "PhotometricInterpretation"),
    *("WindowCenter", "WindowWidth", "InstanceNumber", "Modality", "SOPClassUID"),
)


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return five(tmp_path_factory.mktemp("hospital"))


# -- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.repeats(4)
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
    assert path.name.endswith(name[1:]) and path.parent.name == make_pseudonym(KEY, "a")
    old, new = nibabel.load(tmp_path / "in" / name), nibabel.load(path)
    assert np.array_equal(np.asarray(old.dataobj), np.asarray(new.dataobj))
    for field in ("dim", "pixdim", "qform_code", "sform_code", "srow_x", "srow_y", "srow_z", "xyzt_units", "datatype"):
        assert np.array_equal(old.header[field], new.header[field]), field
    data = path.read_bytes()
    assert b"Miller" not in (gzip.decompress(data) if name.endswith(".gz") else data)
    assert bytes(new.header["descrip"]).startswith(b"ADC 1e-6 mm2/s; research use only; translated by identity")


# -- a known change ---------------------------------------------------------------------------------------------------


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
        lowest, highest = value_range(file.BitsStored, bool(file.PixelRepresentation))
        assert lowest <= file.pixel_array.min() and file.pixel_array.max() <= highest
        assert not {"SmallestImagePixelValue", "LargestImagePixelValue"} & set(file.dir())


def test_what_lies_outside_the_scale_stays_as_it_is(monkeypatch):
    values = np.random.default_rng(0).uniform(-1, 6, (70, 60, 2)).astype(np.float32)
    image = Volume(values, np.diag([1.1, 1.2, 3.0, 1.0]))
    for by in (-0.3, 0.3):
        through(monkeypatch, lambda x, by=by: x + by)
        found = apply_translator(image, values == 0, made(CycleGan()), None)
        result = values + found.change
        inside = (values >= 0) & (values <= 3.5)
        assert result[inside].min() >= -1e-6 and result[inside].max() <= 3.5 + 1e-6
        assert (found.change[~inside] == 0).all() and (~inside).sum() > 1000
        assert found.limited > 0


def test_negative_adc_stays_through_the_command(tmp_path, monkeypatch):
    through(monkeypatch, lambda x: x + 0.1)
    rng = np.random.default_rng(0)
    values = rng.integers(-150, 2000, (60, 60, 4)).astype(np.int16)
    values[:5] = rng.integers(3600, 4000, (5, 60, 4))
    image = nibabel.Nifti1Image(values, np.diag([1.5, 1.5, 3.0, 1.0]))
    image.header["descrip"] = "ADC 1e-6 mm2/s"
    (tmp_path / "in").mkdir()
    nibabel.save(image, tmp_path / "in" / "P1.nii.gz")
    file = translator(tmp_path, CycleGan(), source=NiftiSource(folder="."))
    assert run(file, tmp_path / "in", tmp_path / "out", "--keep-names") == Exit.OK
    found = np.asarray(nibabel.load(tmp_path / "out" / "P1.nii.gz").dataobj)
    outside = (values < 0) | (values > 3500)
    assert outside.sum() > 1000 and np.array_equal(found[outside], values[outside])
    assert (found[(values > 0) & ~outside] >= values[(values > 0) & ~outside]).all()


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
    found = apply_translator(image, np.zeros(values.shape, bool), made(settings, params), None)
    x = SCALE.into(torch.from_numpy(prepare_slices(image, lesion=None, gland=None, images=Slices()).images))
    with torch.no_grad():
        y = SCALE.back(settings.translate(params, x, torch.zeros(3, dtype=torch.int64)))
    assert np.abs(values + found.change - y[:, 0].numpy().transpose(2, 1, 0)).max() < 1e-4


@settings_of(max_examples=20)
@given(st.integers(20, 90), st.integers(20, 90), st.integers(0, 5))
def test_windows_of_a_function_of_each_pixel_make_that_function_of_the_whole_slice(height, width, seed):
    x = torch.rand(2, 1, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    found = translate_in_windows(x, lambda part: torch.tanh(part) - part, 48, background=-1.0)
    assert torch.allclose(found, torch.tanh(x) - x, atol=1e-5)


@given(st.floats(0.3, 4), st.floats(0.3, 4), st.integers(8, 90), st.integers(8, 90), st.floats(0.5, 3))
def test_the_networks_pixels_lie_between_the_outer_native_ones_and_leave_less_than_one_free(
    dx, dy, columns, rows, edge
):
    grid, shape = build_square_grid(oblique((dx, dy, 3.0)), (columns, rows), edge)
    index = np.linalg.inv(oblique((dx, dy, 3.0))) @ grid
    for axis, (count, last) in enumerate(zip(shape, (columns - 1, rows - 1), strict=True)):
        first, end = index[axis, 3], index[axis, 3] + index[axis, axis] * (count - 1)
        assert first == pytest.approx(last - end, abs=1e-6) and -1e-6 <= first < index[axis, axis] / 2 + 1e-6
    assert np.linalg.norm(grid[:3, :2], axis=0) == pytest.approx([edge, edge])


@pytest.mark.parametrize(
    "settings",
    [ZScore(), ZScore(over="image"), Percentile(), Percentile(region="centre"), Nyul(), HistogramMatch(), Reinhard()],
    ids=lambda settings: f"{settings.name}-{getattr(settings, 'over', '')}{getattr(settings, 'region', '')}",
)
def test_a_patients_curve_is_measured_as_in_training_and_followed_by_every_native_pixel(settings):
    wide = {"nyul": torch.linspace(-0.9, 0.6, 13)[None], "histogram_match": torch.linspace(-0.9, 0.6, 1024)[None]}
    params = {"numbers": wide.get(settings.name, NUMBERS["numbers"])}
    file, image = (
        made(settings, params),
        Volume(smooth(oblique((0.9, 0.9, 3.0)), (100, 90, 3)).values / 1000, oblique((0.9, 0.9, 3.0))),
    )
    found = apply_translator(image, image.values == 0, file, None)
    seen = prepare_slices(image, lesion=None, gland=None, images=Slices())
    x = SCALE.into(torch.from_numpy(seen.images))
    y = SCALE.back(settings.translate(params, x, torch.zeros(len(x), dtype=torch.int64)))
    # Brought onto the training grid, the native result is the training result: the same curve was followed.
    after = prepare_slices(Volume(image.values + found.change, image.affine), lesion=None, gland=None, images=Slices())
    inner = after.images[:, 0, 2:-2, 2:-2]
    off = np.abs(inner - y[:, 0, 2:-2, 2:-2].numpy())
    assert np.percentile(off, 98) < 0.03 and off.max() < 0.06  # where a curve is steep, smoothing and it do not commute
    assert (found.change[image.values == 0] == 0).all()
    if getattr(settings, "over", "patient") == "patient":
        order = np.argsort(image.values[image.values > 0], kind="stable")
        assert (np.diff((image.values + found.change)[image.values > 0][order]) >= -1e-5).all()


def test_a_translator_that_no_patient_shaped_sees_slices_through_windows_alone():
    """On a study of the training grid the change is T(x) - x, whatever other slices the study has."""
    settings = Randomized(steps=3, width=4)
    params, affine = settings.learn_parameters((1, 48, 48)), oblique((1.5, 1.5, 3.0))
    file, image = made(settings, params), Volume(smooth(affine, (48, 48, 3)).values / 1000, affine)
    found = apply_translator(image, image.values == 0, file, None)
    assert not depends_on_study(file) and np.abs(found.change).max() > 0
    alone = Volume(image.values[:, :, :1], affine)
    first = apply_translator(alone, alone.values == 0, file, None)
    assert np.allclose(first.change[:, :, 0], found.change[:, :, 0], atol=1e-5)
    x = SCALE.into(torch.from_numpy(prepare_slices(image, lesion=None, gland=None, images=Slices()).images))
    expected = SCALE.back(settings.translate(params, x, torch.arange(len(x))))
    after = prepare_slices(Volume(image.values + found.change, affine), lesion=None, gland=None, images=Slices())
    off = np.abs(after.images[:, 0, 2:-2, 2:-2] - expected[:, 0, 2:-2, 2:-2].numpy())
    assert np.percentile(off, 98) < 0.03


def test_a_study_without_a_unit_keeps_its_background_and_has_no_signal_below_its_darkest(tmp_path, monkeypatch):
    """A translation in standard deviations knows no 0; the file's is that of a magnitude, and of what is outside."""
    through(monkeypatch, lambda x: x - 0.5)
    volume = smooth(oblique((1.5, 1.5, 3.0)), (48, 48, 3))
    nifti(tmp_path / "in" / "a.nii.gz", volume)
    more = {"images": Slices(values="standardized"), "scale": Scale(low=-4.0, high=4.0)}
    file = translator(tmp_path, CycleGan(), source=NiftiSource(folder="."), **more)
    assert run(file, tmp_path / "in", tmp_path / "out") == Exit.OK
    before = read_volume(tmp_path / "in" / "a.nii.gz").values
    after = read_volume(next((tmp_path / "out").rglob("*.nii.gz"))).values
    assert np.array_equal(after == 0, before == 0) and after.min() >= 0
    inside = before != 0
    expected = np.maximum(before - 2 * before[inside].std(), before[inside].min())
    assert np.abs(after - expected)[inside].max() <= 1
