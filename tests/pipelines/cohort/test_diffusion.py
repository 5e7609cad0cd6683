"""b-values as five vendors write them, and laws of the fit."""

from __future__ import annotations

import struct
from collections import defaultdict
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence
from scipy.optimize import least_squares

from pipelines.data.dicom.diffusion import B_VALUE_TAGS, b_value, fit_adc
from pipelines.data.grids.geometry import resample_volume, stack_slices
from pipelines.data.labels import find_mask, open_masks
from pipelines.data.nifti.reader import read_volume
from pipelines.data.sources import GlandMask
from pipelines.data.study import Unusable

seeds = st.integers(0, 2**32 - 1)
diffusivities = st.floats(0, 3500)
scales = st.floats(1e-2, 1e5)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True])
CREATORS = {
    "SIEMENS MR HEADER": (0x0019, 0x0C, "IS", 800),
    "GEMS_PARM_01": (0x0043, 0x39, "IS", [800, 8, 0, 0]),
    "Philips Imaging DD 001": (0x2001, 0x03, "FL", 800.0),
    "Image Private Header": (0x0065, 0x09, "FD", 800.0),
}


def header(**values: object) -> Dataset:
    dataset = Dataset()
    for keyword, value in values.items():
        setattr(dataset, keyword, value)
    return dataset


def private(creator: str, value: object = None, vr: str | None = None, blocks_before: int = 0) -> Dataset:
    group, low, usual_vr, usual = CREATORS[creator]
    dataset = Dataset()
    for number in range(blocks_before):
        dataset.private_block(group, f"SOMEBODY {number}", create=True).add_new(low, "LO", "7")
    block = dataset.private_block(group, creator, create=True)
    block.add_new(low, vr or usual_vr, usual if value is None else value)
    return dataset


def on_disk(dataset: Dataset, folder: Path) -> Dataset:
    """Written, and read again with nothing but the tags that an index asks for."""
    dataset.SOPClassUID, dataset.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.4", "1.2.3"
    dataset.ensure_file_meta()
    dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    dataset.save_as(folder / "x.dcm", enforce_file_format=True)
    return pydicom.dcmread(folder / "x.dcm", stop_before_pixels=True, specific_tags=list(B_VALUE_TAGS))


@pytest.mark.parametrize("creator", CREATORS)
@pytest.mark.parametrize("blocks_before", [0, 3])
def test_private_b_values_are_found_by_their_creator(creator: str, blocks_before: int, tmp_path: Path) -> None:
    dataset = private(creator, blocks_before=blocks_before)
    assert b_value(dataset) == 800
    assert b_value(on_disk(dataset, tmp_path)) == 800


@pytest.mark.parametrize("creator", CREATORS)
def test_the_same_element_of_another_creator_says_nothing(creator: str) -> None:
    group, low, vr, value = CREATORS[creator]
    dataset = Dataset()
    dataset.private_block(group, "SOMEBODY ELSE", create=True).add_new(low, vr, value)
    assert b_value(dataset) is None


@pytest.mark.parametrize("b", [0.0, 50.0, 500.0, 1000.0, 1400.0, 2000.0])
def test_values_that_an_archive_kept_as_bytes(b: float) -> None:
    assert b_value(private("SIEMENS MR HEADER", f"{b:.0f} ".encode(), "UN")) == b
    assert b_value(private("GEMS_PARM_01", f"{b:.0f}\\8\\0\\0".encode(), "UN")) == b
    assert b_value(private("Philips Imaging DD 001", struct.pack("<f", b), "UN")) == b
    assert b_value(private("Image Private Header", struct.pack("<d", b), "UN")) == b


def test_ge_may_add_a_billion() -> None:
    assert b_value(private("GEMS_PARM_01", [1_000_000_050, 8, 0, 0])) == 50


def test_the_standard_comes_first_and_the_sequence_name_last() -> None:
    dataset = private("SIEMENS MR HEADER")
    dataset.SequenceName = "*ep_b50t"
    assert b_value(dataset) == 800
    dataset.DiffusionBValue = 810.5
    assert b_value(dataset) == 810.5


@pytest.mark.parametrize(
    ("name", "b"),
    [
        ("*ep_b50t", 50), ("ep_b1000#12", 1000), ("*ez_b0", 0), ("*ep_b50_800", None), ("*tse2d1_25", None),
        ("", None), ("*ep_b99999t", None),
    ],
)  # fmt: skip
def test_the_name_of_siemens_sequences(name: str, b: float | None) -> None:
    assert b_value(header(SequenceName=name)) == b


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e6])
def test_impossible_b_values_are_none(value: float) -> None:
    assert b_value(header(DiffusionBValue=value)) is None
    assert b_value(private("Philips Imaging DD 001", value)) is None


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"abcd\xff", []])
def test_broken_elements_are_none(value: object) -> None:
    assert b_value(private("SIEMENS MR HEADER", value, "UN" if value else "IS")) is None


def test_frames_of_a_multi_frame_file() -> None:
    frame = header(MRDiffusionSequence=Sequence([header(DiffusionBValue=400.0)]))
    assert b_value(frame) == 400
    unweighted = header(MRDiffusionSequence=Sequence([header(DiffusionDirectionality="NONE")]))
    assert b_value(unweighted) == 0
    assert b_value(header(MRDiffusionSequence=Sequence([]))) is None
    assert b_value(Dataset()) is None


def test_computed_maps_have_no_b_value() -> None:
    assert b_value(header(ImageType=["DERIVED", "PRIMARY", "DIFFUSION", "ADC"], DiffusionBValue=800.0)) is None
    assert b_value(header(ImageType=["DERIVED", "PRIMARY", "DIFFUSION", "TRACEW"], DiffusionBValue=800.0)) == 800
    kind = Sequence([header(FrameType=["DERIVED", "PRIMARY", "DIFFUSION", "ADC"])])
    assert b_value(header(MRImageFrameTypeSequence=kind, DiffusionBValue=800.0)) is None


def decay(s0: np.ndarray, adc: np.ndarray, b_values: list[float]) -> np.ndarray:
    """(B, ...) noise-free signal. adc: 1e-6 mm²/s."""
    return np.stack([s0 * np.exp(-b * adc * 1e-6) for b in b_values]).astype(np.float32)


@WEIGHTED
@given(s0=scales, adc=diffusivities, b_values=st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True))
def test_the_fit_is_exact_without_noise(weighted: bool, s0: float, adc: float, b_values: list[float]) -> None:
    assume(max(b_values) - min(b_values) >= 200)
    found = fit_adc(decay(np.array([s0]), np.array([adc]), b_values), b_values, weighted=weighted)
    assert found.dtype == np.float32
    assert found == pytest.approx(adc, rel=1e-3, abs=0.05)


def noisy(seed: int, b_values: list[float], shape: tuple[int, ...] = (3, 2)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    clean = decay(rng.uniform(100, 200, shape), rng.uniform(300, 3000, shape), b_values)
    return np.abs(clean + rng.normal(0, 3, clean.shape)).astype(np.float32)


@WEIGHTED
@given(seed=seeds, scale=st.floats(1e-3, 1e3))
def test_scaling_the_signal_changes_nothing(weighted: bool, seed: int, scale: float) -> None:
    images, b_values = noisy(seed, [50, 400, 800]), [50, 400, 800]
    expected = fit_adc(images, b_values, weighted=weighted)
    found = fit_adc(images * np.float32(scale), b_values, weighted=weighted)
    assert np.allclose(found, expected, rtol=1e-4, atol=0.1)


@WEIGHTED
@given(seed=seeds)
def test_the_order_of_images_does_not_matter(weighted: bool, seed: int) -> None:
    b_values = np.array([50, 50, 400, 800, 800, 800], float)
    images, order = noisy(seed, list(b_values)), np.random.default_rng(seed).permutation(6)
    found = fit_adc(images[order], b_values[order], weighted=weighted)
    assert np.allclose(found, fit_adc(images, b_values, weighted=weighted), rtol=1e-5, atol=1e-2)


@WEIGHTED
@given(seed=seeds)
def test_the_fit_equals_a_search_voxel_by_voxel(weighted: bool, seed: int) -> None:
    b_values = [50.0, 200.0, 400.0, 800.0, 1000.0]
    images = noisy(seed, b_values)
    found = fit_adc(images, b_values, weighted=weighted)
    for place in np.ndindex(found.shape):
        signal = images[(slice(None), *place)].astype(float)
        weight = signal / signal.max() if weighted else 1.0

        def residual(line: np.ndarray, signal: np.ndarray = signal, weight: float | np.ndarray = weight) -> np.ndarray:
            return weight * (line[0] - np.array(b_values) * line[1] * 1e-3 - np.log(signal))

        best = least_squares(residual, [5.0, 1.0], xtol=1e-12, ftol=1e-12, gtol=1e-12)
        assert found[place] == pytest.approx(max(1e3 * best.x[1], 0), rel=1e-4, abs=0.05)


@given(seeds)
def test_several_directions_are_their_geometric_mean(seed: int) -> None:
    images = noisy(seed, [50, 800, 800, 800])
    trace = np.stack([images[0], np.exp(np.log(images[1:]).mean(axis=0))])
    assert np.allclose(fit_adc(images, [50, 800, 800, 800]), fit_adc(trace, [50, 800]), rtol=1e-4, atol=0.1)


def test_directions_whose_b_values_differ_a_little_are_one_b_value() -> None:
    rng = np.random.default_rng(0)
    b_values = np.array([0, *rng.uniform(985, 1003, 30)])
    images = decay(np.full(50, 100.0), np.full(50, 900.0), list(b_values))
    images[1:] *= np.exp(rng.normal(0, 0.1, images[1:].shape)).astype(np.float32)
    slope = -1e6 * (np.log(images[1:]).mean(axis=0) - np.log(100)) / b_values[1:].mean()
    assert np.allclose(fit_adc(images, b_values), slope, rtol=1e-4)
    dense = np.arange(50.0, 1000.0, 10)
    assert fit_adc(decay(np.array([9.0]), np.array([900.0]), list(dense)), dense) == pytest.approx(900, rel=1e-3)


def test_the_mean_of_an_anisotropic_tensor_comes_out() -> None:
    along = np.array([500.0, 1000.0, 1800.0])
    images = np.stack([np.ones(1), *(np.exp(-800e-6 * one) * np.ones(1) for one in along)]).astype(np.float32)
    assert fit_adc(images, [0, 800, 800, 800]) == pytest.approx(along.mean(), rel=1e-4)


@pytest.mark.parametrize("bad", [0.0, -5.0, np.nan, np.inf])
def test_a_voxel_without_signal_is_zero_and_its_neighbours_are_not(bad: float) -> None:
    images = decay(np.full(2, 100.0), np.full(2, 1500.0), [50, 400, 800])
    images[1, 0] = bad
    assert fit_adc(images, [50, 400, 800]) == pytest.approx([0, 1500], rel=1e-3)


def test_signal_that_grows_with_b_is_zero() -> None:
    assert fit_adc(np.array([[100.0], [120.0]], np.float32), [0, 800]) == 0


def test_perfusion_and_kurtosis_stay_out_where_they_can() -> None:
    clean = decay(np.full(1, 100.0), np.full(1, 1200.0), [0, 50, 800, 2000])
    odd = clean.copy()
    odd[0] *= 1.3
    odd[3] *= 2
    assert fit_adc(odd, [0, 50, 800, 2000]) == pytest.approx(1200, rel=1e-3)
    assert fit_adc(clean[[0, 2, 3]], [0, 800, 2000]) == pytest.approx(1200, rel=1e-3)
    assert fit_adc(odd[[0, 2, 3]], [0, 800, 2000]) > 1400
    assert fit_adc(odd, [0, 50, 800, 2000], highest=3000) < 1100


@pytest.mark.parametrize("b_values", [[800], [800, 800], [0, 199], [0, 1400], [0, np.nan], []])
def test_too_few_b_values_are_unusable(b_values: list[float]) -> None:
    with pytest.raises(Unusable) as caught:
        fit_adc(np.ones((len(b_values), 2), np.float32), b_values)
    assert caught.value.reason == "b_values"


def test_one_b_value_per_image() -> None:
    with pytest.raises(ValueError, match="one per image"):
        fit_adc(np.ones((3, 2), np.float32), [0, 800])


def volume(files: list[Dataset]) -> tuple[np.ndarray, np.ndarray]:
    """(columns, rows, slices) float32, and the affine."""
    positions = np.array([one.ImagePositionPatient for one in files], float)
    order, affine = stack_slices(
        np.array(files[0].ImageOrientationPatient, float), positions, tuple(files[0].PixelSpacing)
    )
    return np.stack([files[k].pixel_array.T for k in order], axis=-1).astype(np.float32), affine


@pytest.mark.parametrize("patient", ["ProstateX-0000", "ProstateX-0001"])
def test_the_fit_follows_the_scanners_own_map(data: Path, patient: str) -> None:
    root = data / "prostatex"
    weighted: dict[float, list[Dataset]] = defaultdict(list)
    maps = []
    for path in sorted((root / "dicom" / patient).rglob("*.dcm")):
        b = b_value(pydicom.dcmread(path, stop_before_pixels=True, specific_tags=list(B_VALUE_TAGS)))
        dataset = pydicom.dcmread(path)
        if b is not None:
            weighted[b].append(dataset)
        elif "ADC" in dataset.ImageType:
            maps.append(dataset)
    assert {b: len(files) for b, files in weighted.items()} == {50: 19, 400: 19, 800: 19}
    images = np.stack([volume(files)[0] for files in weighted.values()])
    scanner, affine = volume(maps)
    assert np.allclose(volume(weighted[50])[1], affine, atol=1e-3)
    gland = GlandMask(
        folder=str(root / "labels" / "whole_gland_Bosma22b"), names=str(root / "labels" / "ProstateX-mapping.json")
    )
    mask = read_volume(find_mask(open_masks(gland, "gland"), patient, missing="no_mask"))
    inside = (resample_volume(mask, affine, scanner.shape, 0) > 0) & (scanner > 0)
    plain = fit_adc(images, list(weighted))[inside] / scanner[inside]
    by_signal = fit_adc(images, list(weighted), weighted=True)[inside] / scanner[inside]
    assert np.median(plain) == pytest.approx(1.035, abs=0.005)
    assert np.median(np.abs(plain - np.median(plain))) < 0.02
    assert np.median(by_signal) == pytest.approx(1.075, abs=0.01)


def test_ge_images_say_it_twice(data: Path) -> None:
    paths = sorted((data / "dicom_zoo" / "ge_dwi").iterdir())
    headers = [pydicom.dcmread(path, specific_tags=list(B_VALUE_TAGS)) for path in paths]
    standard = [b_value(one) for one in headers]
    for one in headers:
        if "DiffusionBValue" in one:
            del one.DiffusionBValue
    assert [b_value(one) for one in headers] == standard
    assert sorted(standard) == [0.0] * 2 + [1000.0] * 12


def test_the_mean_of_many_directions_is_dipys_mean_diffusivity() -> None:
    dipy_data = pytest.importorskip("dipy.data", reason="dipy is not installed: pip install dipy to run this test")
    from dipy.core.gradients import gradient_table
    from dipy.reconst.dti import TensorModel

    image, b_file, directions = dipy_data.get_fnames(name="small_64D")
    signals, b_values = nibabel.load(image).get_fdata(dtype=np.float32), np.loadtxt(b_file)
    model = TensorModel(gradient_table(b_values, bvecs=np.loadtxt(directions)), fit_method="OLS")
    expected = 1e6 * model.fit(signals).md
    found = fit_adc(np.moveaxis(signals, -1, 0), b_values)
    tissue = (found > 0) & (expected > 0)
    assert np.median(np.abs(found[tissue] / expected[tissue] - 1)) < 0.005
