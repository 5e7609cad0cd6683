"""A network's masks on the study's own grid, and as NIfTI files."""

from __future__ import annotations

from itertools import permutations, product
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.dicom.reader import read_dicom
from pipelines.data.grids.geometry import Grid, grid_of, reading_order, resample_volume
from pipelines.data.images import Slices, Volumes
from pipelines.data.labels import find_mask, open_masks
from pipelines.data.nifti.reader import read_volume
from pipelines.data.prepare import prepare_slices, prepare_volume, prepared_grid
from pipelines.data.restore import to_source_grid
from pipelines.data.sources import DicomSource, GlandMask
from pipelines.data.study import Volume
from pipelines.data.writing.nifti_mask import mask_bytes
from pipelines.phantom.files import render
from pipelines.phantom.patients import PhantomSource
from translating import oblique

ORIENTATIONS = list(product(permutations(range(3)), product((1, -1), repeat=3)))


@pytest.fixture(scope="module")
def scan() -> tuple[Volume, Volume]:
    """A phantom's ADC map and its gland."""
    rendered = render(PhantomSource(scanner="A", patients=1, slices=10), 0)
    return rendered.image, rendered.gland


def one_hot(mask: np.ndarray, classes: int = 2) -> np.ndarray:
    """(n, *spatial) classes as probabilities (n, classes, *spatial)."""
    return np.moveaxis(np.eye(classes, dtype=np.float32)[mask], -1, 1)


def dice(one: np.ndarray, other: np.ndarray) -> float:
    return 2 * float((one & other).sum()) / float(one.sum() + other.sum())


def turned(volume: Volume, axes: tuple[int, ...], signs: tuple[int, ...]) -> Volume:
    """The same voxels, stored in another order."""
    values, affine = volume.values.transpose(axes), volume.affine[:, [*axes, 3]].copy()
    for axis, sign in enumerate(signs):
        if sign < 0:
            affine[:, 3] += affine[:, axis] * (values.shape[axis] - 1)
            affine[:, axis] *= -1
            values = np.flip(values, axis)
    return Volume(values, affine)


def inside(mask: Volume, grid: Grid, source: Volume) -> np.ndarray:
    """Which voxels of the source lie in the field that the network sees."""
    field = Volume(np.ones(grid.shape, np.uint8), grid.affine)
    return resample_volume(field, source.affine, source.values.shape, 0).astype(bool)


def there_and_back(image: Volume, gland: Volume, images: Slices | Volumes, centre: Volume | None) -> tuple[float, int]:
    """Dice of a mask that was prepared and brought back with itself, where the network sees; and voxels outside."""
    prepare = prepare_slices if isinstance(images, Slices) else prepare_volume
    examples = prepare(image, lesion=gland, gland=centre, images=images)  # type: ignore[arg-type]
    found = to_source_grid(one_hot(examples.lesion), examples.position, grid_of(image), images, centre)
    truth = resample_volume(gland, image.affine, image.values.shape, 0).astype(bool)
    seen = inside(gland, prepared_grid(grid_of(image), images, centre), image)
    return dice((found.values > 0) & seen, truth & seen), int(((found.values > 0) & ~seen).sum())


@given(turn=st.sampled_from(ORIENTATIONS), spacing=st.floats(0.5, 3), size=st.integers(16, 64), about=st.booleans())
@settings(max_examples=25)
def test_the_grid_is_that_on_which_studies_are_prepared(scan, turn, spacing, size, about):
    """Masks that are read at the grid's voxels are, to the last voxel, those that preparing gives."""
    image, gland = (turned(volume, *turn) for volume in scan)
    for images in (Slices(spacing_mm=spacing, size=size), Volumes(spacing_mm=spacing, size=size, depth=7)):
        prepare = prepare_slices if isinstance(images, Slices) else prepare_volume
        grid = prepared_grid(grid_of(image), images, gland if about else None)
        if about:
            wanted = prepare(image, lesion=None, gland=gland, images=images).gland  # type: ignore[arg-type]
            found = resample_volume(gland, grid.affine, grid.shape, 0).transpose(2, 1, 0)
            assert np.array_equal(found.reshape(wanted.shape), wanted)
        else:
            drawn = Volume(gland.values.astype(np.float32), gland.affine)
            wanted = prepare(drawn, lesion=None, gland=None, images=images).images  # type: ignore[arg-type]
            found = resample_volume(drawn, grid.affine, grid.shape, 1).transpose(2, 1, 0)
            assert np.allclose(found.reshape(wanted.shape), wanted, atol=1e-5)


CUTS: list[tuple[Slices | Volumes, bool]] = [
    (Slices(), True),
    (Slices(), False),
    (Slices(slices="gland", context=3), True),
]
CUTS += [(Volumes(depth=12), True), (Volumes(depth=12), False)]


@pytest.mark.parametrize(("images", "about"), CUTS)
def test_a_phantoms_mask_comes_back(scan, images, about):
    image, gland = scan
    found, outside = there_and_back(image, gland, images, gland if about else None)
    assert found > 0.93
    assert outside == 0


@pytest.mark.parametrize(
    ("select", "images"),
    [
        ("ADC", Slices(size=48, spacing_mm=1.5)),
        ("T2", Slices(size=64, spacing_mm=1.0)),
        ("ADC", Volumes(size=64, spacing_mm=1.0, depth=20)),
    ],
)
def test_real_glands_come_back(data: Path, select, images):
    root = data / "prostatex"
    if not root.is_dir():
        pytest.skip(f"no ProstateX below {data}")
    chosen = {"ImageType": "ADC"} if select == "ADC" else {"SeriesDescription": "t2"}
    settings = GlandMask(
        folder=str(root / "labels" / "whole_gland_Bosma22b"), names=str(root / "labels" / "ProstateX-mapping.json")
    )
    studies, rejected = read_dicom(DicomSource(folder=str(root / "dicom"), select=chosen))
    assert len(studies) == 2 and not rejected
    for study in studies:
        gland = read_volume(find_mask(open_masks(settings, "gland"), study.patient, missing="no_gland"))
        found, outside = there_and_back(study.image, gland, images, gland)
        print(f"{study.patient} {select} {images.kind}: Dice {found:.4f}")  # noqa: T201 - with -s
        assert found > 0.9
        assert outside == 0


@given(turn=st.sampled_from(ORIENTATIONS), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_a_voxel_has_its_class_however_the_source_stores_it(scan, turn, seed):
    image, other = scan[0], turned(scan[0], *turn)
    if not np.allclose(reading_order(other).affine, reading_order(image).affine):
        pytest.fail("turning changed where voxels lie")
    probabilities = np.random.default_rng(seed).dirichlet(np.ones(4), (10, 48, 48)).transpose(0, 3, 1, 2)
    position = np.arange(10, dtype=np.float32)
    one = to_source_grid(probabilities.astype(np.float32), position, grid_of(image), Slices(), None)
    two = to_source_grid(probabilities.astype(np.float32), position, grid_of(other), Slices(), None)
    differing = turned(one, *turn).values != two.values
    assert differing.mean() < 1e-3  # ties of rounding


def test_slices_that_were_not_seen_and_what_lies_outside_are_background(scan):
    image, _ = scan
    images = Slices(size=16)
    everywhere = one_hot(np.ones((2, 16, 16), np.int64))
    found = to_source_grid(everywhere, np.array([3, 5], np.float32), grid_of(image), images, None)
    stack = reading_order(found)
    assert set(np.flatnonzero(stack.values.any(axis=(0, 1)))) == {3, 5}
    area = (stack.values[:, :, 3] > 0).sum() * abs(np.linalg.det(image.affine[:3, :3])) / 3.6
    assert area == pytest.approx((16 * 1.5) ** 2, rel=0.2)


def test_between_two_slices_of_pixels_the_border_runs_where_probabilities_are_equal():
    """A plane x > c, sampled at 1.5 mm as shares of pixels, comes back at 0.25 mm to within half a fine pixel."""
    fine, images = np.diag([-0.25, -0.25, 3.0, 1.0]), Slices(size=16, spacing_mm=1.5)
    source = Grid(fine, (80, 80, 3))
    grid = prepared_grid(source, images, None)
    x = (grid.affine @ np.array([[i, 0, 0, 1] for i in range(16)]).T)[0]
    for border in (-9.3, -8.9, -11.0):
        share = np.clip((border - x) / 1.5 + 0.5, 0, 1)
        planes = np.broadcast_to(share, (3, 16, 16)).astype(np.float32)
        found = to_source_grid(np.stack([1 - planes, planes], 1), np.arange(3, dtype=np.float32), source, images, None)
        edge = -0.25 * np.flatnonzero(found.values[:, 40, 1])[0] + 0.125
        assert edge == pytest.approx(border, abs=0.13)


@pytest.mark.parametrize(
    ("shape", "position"),
    [((2, 2, 48, 47), [0, 1]), ((2, 2, 48, 48), [0]), ((2, 2, 48, 48), [0, 99]), ((2, 2, 48, 48), [1, 1])],
)
def test_shapes_that_do_not_belong_together_are_refused(scan, shape, position):
    with pytest.raises(ValueError, match="positions"):
        to_source_grid(np.zeros(shape, np.float32), np.array(position, np.float32), grid_of(scan[0]), Slices(), None)


# -- NIfTI ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mask.nii", "mask.nii.gz"])
@pytest.mark.parametrize("sheared", [False, True])
def test_a_nifti_mask_is_the_same_for_us_and_for_nibabel(tmp_path, name, sheared):
    affine = oblique((0.7, 0.9, 3.1))
    affine[:3, 2] += 0.4 * affine[:3, 0] * sheared
    values = np.random.default_rng(0).integers(0, 8, (9, 7, 5)).astype(np.uint8)
    (tmp_path / name).write_bytes(mask_bytes(values, affine, packed=name.endswith(".gz")))
    theirs, ours = nibabel.load(tmp_path / name), read_volume(tmp_path / name)
    assert theirs.get_data_dtype() == np.uint8 and np.array_equal(np.asarray(theirs.dataobj), values)
    assert np.allclose(theirs.affine, affine, atol=1e-5) and np.allclose(ours.affine, affine, atol=1e-5)
    assert np.array_equal(ours.values, values)
    assert np.allclose(theirs.header.get_zooms(), np.linalg.norm(affine[:3, :3], axis=0), atol=1e-5)
    assert (theirs.header.get_qform(coded=True)[0] is None) == sheared
    assert theirs.header.get_xyzt_units()[0] == "mm" and theirs.header.get_intent()[0] == "label"


def test_the_header_of_a_nifti_mask_has_no_text_and_the_file_no_time(tmp_path):
    mask, affine = np.ones((3, 4, 5), np.uint8), np.diag([2.0, 2, 3, 1])
    data = mask_bytes(mask, affine, packed=True)
    assert data == mask_bytes(mask, affine, packed=True)
    assert data[3:8] == bytes(5)  # RFC 1952: flags (no name) and time
    (tmp_path / "a.nii.gz").write_bytes(data)
    header = nibabel.load(tmp_path / "a.nii.gz").header
    assert not any(bytes(header[key]).strip(b"\0") for key in ("descrip", "aux_file", "intent_name", "db_name"))


@pytest.mark.parametrize(
    "wrong", [np.full((2, 2, 2), 256), np.full((2, 2, 2), -1), np.ones((2, 2)), np.ones((2, 2, 2))]
)
def test_what_is_no_label_map_is_refused(wrong):
    with pytest.raises(ValueError, match="label map"):
        mask_bytes(wrong, np.eye(4), packed=False)
    with pytest.raises(ValueError, match="invertible"):
        mask_bytes(np.ones((2, 2, 2), np.uint8), np.zeros((4, 4)), packed=False)
