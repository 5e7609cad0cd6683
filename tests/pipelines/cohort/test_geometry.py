"""Laws of grids in the patient, and a slow second resampling."""

from __future__ import annotations

import itertools

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.spatial.transform import Rotation

from pipelines.data.grids.geometry import (
    LPS_TO_RAS,
    corner_distance,
    is_invertible,
    is_same_grid,
    reading_order,
    resample_volume,
    slice_grid,
    spacing_of,
    stack_slices,
)
from pipelines.data.study import Unusable, Volume

seeds = st.integers(0, 2**32 - 1)


def random_affine(rng: np.random.Generator, *, tilt: float = np.pi) -> np.ndarray:
    """Rotated by up to `tilt`, spacing 0.5..4 mm, axes in any order and direction."""
    axes = Rotation.from_rotvec(rng.uniform(-1, 1, 3) * tilt / np.sqrt(3)).as_matrix()
    affine = np.eye(4)
    signs = rng.choice([-1, 1], 3)
    affine[:3, :3] = (axes * signs)[:, rng.permutation(3)] * rng.uniform(0.5, 4, 3)
    affine[:3, 3] = rng.uniform(-200, 200, 3)
    return affine


def world(affine: np.ndarray, index: np.ndarray) -> np.ndarray:
    return index @ affine[:3, :3].T + affine[:3, 3]


def indices(shape: tuple[int, ...]) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, shape))), float)


def random_series(rng: np.random.Generator, slices: int) -> tuple[np.ndarray, np.ndarray, tuple[float, float], float]:
    axes = Rotation.random(random_state=rng).as_matrix()
    gap = float(rng.uniform(1, 6))
    positions = rng.uniform(-100, 100, 3) + np.arange(slices)[:, None] * gap * np.cross(axes[0], axes[1])
    return np.concatenate([axes[0], axes[1]]), positions, (float(rng.uniform(0.3, 3)), float(rng.uniform(0.3, 3))), gap


@settings(deadline=None, max_examples=60)
@given(seeds, st.integers(2, 12))
def test_stack_places_every_pixel_as_the_standard_says(seed: int, slices: int) -> None:
    rng = np.random.default_rng(seed)
    orientation, positions, spacing, gap = random_series(rng, slices)
    shuffled = rng.permutation(slices)
    order, affine = stack_slices(orientation, positions[shuffled], spacing)
    assert np.allclose(positions[shuffled][order], positions)
    assert np.allclose(spacing_of(affine), (spacing[1], spacing[0], gap))
    column, row, k = (int(rng.integers(0, n)) for n in (9, 9, slices))
    # PS3.3 equation C.7.6.2.1-1: columns move along the first three cosines, by the second spacing
    lps = positions[k] + orientation[:3] * spacing[1] * column + orientation[3:] * spacing[0] * row
    assert np.allclose(affine @ [column, row, k, 1], LPS_TO_RAS @ [*lps, 1])


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_stack_does_not_depend_on_the_order_of_files(seed: int) -> None:
    rng = np.random.default_rng(seed)
    orientation, positions, spacing, _ = random_series(rng, 7)
    _, affine = stack_slices(orientation, positions, spacing)
    shuffled = rng.permutation(7)
    order, again = stack_slices(orientation, positions[shuffled], spacing)
    assert np.array_equal(affine, again)
    assert np.array_equal(shuffled[order], np.arange(7))


def series(*distances: float) -> np.ndarray:
    return np.array([[0, 0, z] for z in distances], float)


AXIAL = np.array([1, 0, 0, 0, 1, 0], float)


@pytest.mark.parametrize(
    ("orientation", "positions", "reason"),
    [
        (AXIAL, series(0), "single_slice"),
        (AXIAL, series(5, 5, 5), "single_slice"),
        (AXIAL, series(0, 3, 3, 6), "duplicate_slice"),
        (AXIAL, series(0, 0, 3, 3, 6, 6), "several_volumes"),
        (AXIAL, series(0, 3, 9, 12, 15), "gap"),
        (AXIAL, series(0, 3, 6.31, 9.31), "gap"),
        (AXIAL, np.array([[0, 0, 0], [2, 0, 3], [0, 0, 6]], float), "not_collinear"),
        (np.array([1, 0, 0, 0.1, 0.99, 0]), series(0, 3), "non_orthogonal"),
        (np.array([1.1, 0, 0, 0, 1, 0]), series(0, 3), "non_orthogonal"),
    ],
)
def test_stack_refuses(orientation: np.ndarray, positions: np.ndarray, reason: str) -> None:
    with pytest.raises(Unusable) as caught:
        stack_slices(orientation, positions, (1, 1))
    assert caught.value.reason == reason


def test_the_gap_tolerance_is_ten_percent_of_the_median_and_told() -> None:
    stack_slices(AXIAL, series(0, 3, 6.29, 9.29), (1, 1))
    with pytest.raises(Unusable, match=r"3\.000 mm apart \(median\).*3\.400.*10%"):
        stack_slices(AXIAL, series(0, 3, 6.4, 9.4), (1, 1))


def test_a_tilted_stack_keeps_its_true_positions() -> None:
    positions = np.array([[0, 0.5 * k, 3 * k] for k in range(4)], float)
    _, affine = stack_slices(AXIAL, positions, (1, 1))
    assert np.allclose(affine @ [0, 0, 3, 1], LPS_TO_RAS @ [0, 1.5, 9, 1])


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_reading_order_moves_no_voxel(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 6, 3))
    before = Volume(rng.permutation(int(np.prod(shape))).reshape(shape), random_affine(rng))
    after = reading_order(before)
    where = {int(before.values[tuple(i.astype(int))]): world(before.affine, i) for i in indices(shape)}
    for i in indices(after.values.shape):
        assert np.allclose(world(after.affine, i), where[int(after.values[tuple(i.astype(int))])], atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(seeds)
def test_reading_order_is_the_same_however_the_volume_was_stored(seed: int) -> None:
    rng = np.random.default_rng(seed)
    affine = np.diag([-2.0, -3.0, 4.0, 1.0]) @ random_small_tilt(rng)
    image = nibabel.Nifti1Image(rng.integers(0, 99, (4, 5, 6)).astype(np.int16), affine)
    axes, flips = rng.permutation(3), rng.choice([-1, 1], 3)
    other = image.as_reoriented(np.stack([axes, flips], axis=1))
    one, two = (reading_order(Volume(np.asarray(x.dataobj), x.affine)) for x in (image, other))
    assert nibabel.aff2axcodes(one.affine) == ("L", "P", "S")
    assert np.array_equal(one.values, two.values)
    assert np.allclose(one.affine, two.affine)


def random_small_tilt(rng: np.random.Generator) -> np.ndarray:
    tilt = np.eye(4)
    tilt[:3, :3] = Rotation.from_rotvec(rng.uniform(-0.3, 0.3, 3)).as_matrix()
    tilt[:3, 3] = rng.uniform(-50, 50, 3)
    return tilt


def slow_smooth(volume: Volume, affine: np.ndarray) -> np.ndarray:
    """Along each axis, a weighted sum of shifted copies whose weights fall off with the distance."""
    out = np.asarray(volume.values, float)
    steps = np.linalg.solve(volume.affine, affine)[:3, :3]
    for axis in range(3):
        sigma = max(0.0, (np.sqrt((steps[axis] ** 2).sum()) - 1) / 2)
        reach = int(4 * sigma + 0.5)
        last = out.shape[axis] - 1
        total, weights = np.zeros_like(out), 0.0
        for shift in range(-reach, reach + 1):
            weight = np.exp(-0.5 * (shift / sigma) ** 2) if shift else 1.0
            total += weight * np.take(out, np.clip(np.arange(last + 1) + shift, 0, last), axis)
            weights += weight
        out = total / weights
    return out


def slow_resample(volume: Volume, affine: np.ndarray, shape: tuple[int, int, int], order: int) -> np.ndarray:
    """One voxel at a time: world point, index in the source, weighted neighbours, zero outside."""
    out = np.zeros(shape)
    source = volume.values if order == 0 else slow_smooth(volume, affine)
    for target in indices(shape):
        point = np.linalg.solve(volume.affine, np.append(world(affine, target), 1))[:3]
        if order == 0:
            neighbours = [(np.floor(point + 0.5), 1.0)]
        else:
            low = np.floor(point)
            neighbours = [
                (low + step, float(np.prod(np.where(step, point - low, 1 - (point - low)))))
                for step in indices((2, 2, 2))
            ]
        for index, weight in neighbours:
            if (index >= 0).all() and (index < volume.values.shape).all():
                out[tuple(target.astype(int))] += weight * source[tuple(index.astype(int))]
    return out


@settings(deadline=None, max_examples=25)
@given(seeds, st.sampled_from([0, 1]))
def test_resampling_equals_a_slow_loop(seed: int, order: int) -> None:
    rng = np.random.default_rng(seed)
    affine = random_affine(rng)
    values = rng.uniform(1, 9, (5, 4, 6)).astype(np.float32)
    other = random_affine(rng)
    middle = world(affine, np.array([[2.0, 1.5, 2.5]]))[0] - world(other, np.array([[1.5, 2.0, 1.0]]))[0]
    other[:3, 3] += middle + rng.uniform(-0.5, 0.5, 3)
    found = resample_volume(Volume(values, affine), other, (4, 5, 3), order)
    assert np.allclose(found, slow_resample(Volume(values, affine), other, (4, 5, 3), order), atol=1e-4)


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from([0, 1]))
def test_resampling_onto_itself_is_the_identity_edges_included(seed: int, order: int) -> None:
    rng = np.random.default_rng(seed)
    volume = Volume(rng.uniform(1, 2, (3, 4, 5)).astype(np.float32), random_affine(rng))
    assert np.allclose(resample_volume(volume, volume.affine, (3, 4, 5), order), volume.values, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(seeds)
def test_linear_resampling_is_exact_for_a_linear_image(seed: int) -> None:
    rng = np.random.default_rng(seed)
    affine, slope = random_affine(rng), rng.uniform(-1, 1, 3)
    values = (world(affine, indices((8, 8, 8))) @ slope).reshape(8, 8, 8).astype(np.float32)
    grid = affine @ np.array([[0.5, 0, 0, 2], [0, 0.5, 0, 2], [0, 0, 0.5, 2], [0, 0, 0, 1]])
    expected = (world(grid, indices((5, 5, 5))) @ slope).reshape(5, 5, 5)
    assert np.allclose(resample_volume(Volume(values, affine), grid, (5, 5, 5), 1), expected, atol=1e-2)


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(1, 4))
def test_a_constant_stays_constant_inside_however_coarse_the_grid(seed: int, factor: int) -> None:
    affine = random_affine(np.random.default_rng(seed))
    volume = Volume(np.full((12, 12, 12), 7.0, np.float32), affine)
    found = resample_volume(volume, affine @ np.diag([factor, factor, factor, 1.0]), (3, 3, 3), 1)
    assert np.allclose(found, 7, rtol=1e-5)


def wave(period: float, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """A sinusoid along the first axis, read at every `factor`-th voxel; and those voxels as they were."""
    line = np.cos(2 * np.pi * np.arange(120) / period).astype(np.float32)
    volume = Volume(np.broadcast_to(line[:, None, None], (120, 3, 3)), np.eye(4))
    found = resample_volume(volume, np.diag([factor, 1, 1, 1]), (int(120 / factor), 3, 3), 1)
    inside = slice(3, -3)
    return np.asarray(found)[inside, 1, 1], line[:: int(factor)][inside]


@pytest.mark.parametrize(("factor", "period", "left"), [(2, 2.5, 0.65), (3, 2.5, 0.1), (3, 4, 0.35), (4, 5, 0.2)])
def test_what_the_coarser_grid_cannot_show_is_damped(factor: int, period: float, left: float) -> None:
    found, before = wave(period, factor)
    assert period < 2 * factor
    assert np.ptp(found) < left * np.ptp(before)


def test_what_the_coarser_grid_can_show_is_kept() -> None:
    found, before = wave(40, 3)
    assert np.allclose(found, before, atol=0.02)


@settings(deadline=None, max_examples=30)
@given(seeds, st.floats(0.3, 1.0))
def test_an_equal_or_finer_grid_is_read_without_smoothing(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    values, affine = rng.uniform(1, 9, (9, 9, 9)).astype(np.float32), random_affine(rng)
    index = np.diag([factor, factor, factor, 1.0])
    index[:3, 3] = rng.uniform(0, 1, 3)
    target = affine @ index
    index = np.linalg.inv(affine) @ target
    plain = ndimage.affine_transform(
        values, index[:3, :3], index[:3, 3], (8, 8, 8), order=1, mode="grid-constant", prefilter=False
    )
    assert np.array_equal(resample_volume(Volume(values, affine), target, (8, 8, 8), 1), plain)


@given(seeds)
def test_masks_are_never_smoothed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = Volume(rng.integers(0, 2, (12, 12, 12)).astype(np.uint8), np.eye(4))
    assert np.array_equal(resample_volume(mask, np.diag([3.0, 3, 3, 1]), (4, 4, 4), 0), mask.values[::3, ::3, ::3])


def test_only_the_coarser_axis_is_smoothed() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(1, 9, (12, 12, 12)).astype(np.float32)
    found = resample_volume(Volume(values, np.eye(4)), np.diag([1.0, 3, 1, 1]), (12, 4, 12), 1)
    expected = ndimage.gaussian_filter1d(values, 1.0, axis=1, mode="nearest")[:, ::3]
    assert np.allclose(found, expected, atol=1e-5)


def test_nearest_keeps_the_type_and_other_orders_are_refused() -> None:
    mask = Volume(np.ones((2, 2, 2), np.uint8), np.eye(4))
    assert resample_volume(mask, np.eye(4), (3, 3, 3), 0).dtype == np.uint8
    assert resample_volume(mask, np.eye(4), (3, 3, 3), 0).sum() == 8
    with pytest.raises(ValueError, match="order must be 0"):
        resample_volume(mask, np.eye(4), (3, 3, 3), 3)


@settings(deadline=None, max_examples=40)
@given(seeds, st.floats(0.3, 3), st.integers(8, 20))
def test_a_slice_grid_is_square_centred_and_on_the_same_slices(seed: int, spacing_mm: float, size: int) -> None:
    rng = np.random.default_rng(seed)
    affine, centre = random_affine(rng), rng.uniform(0, 30, 2)
    grid = slice_grid(affine, (centre[0], centre[1]), spacing_mm, size)
    assert np.allclose(spacing_of(grid), (spacing_mm, spacing_mm, spacing_of(affine)[2]))
    middle = (size - 1) / 2
    for k in (0, 5):
        assert np.allclose(grid @ [middle, middle, k, 1], affine @ [*centre, k, 1], atol=1e-6)


def test_what_is_not_invertible() -> None:
    flat = np.eye(4)
    flat[2] = flat[1]
    broken = np.eye(4)
    broken[0, 3] = np.nan
    assert is_invertible(np.diag([0.1, 0.1, 0.1, 1.0]))
    assert not is_invertible(flat)
    assert not is_invertible(broken)
    assert not is_invertible(np.diag([1.0, 0.0, 1.0, 1.0]))


def test_same_grid() -> None:
    moved = np.eye(4)
    moved[0, 3] = 0.02
    assert corner_distance(np.eye(4), moved, (4, 4, 4)) == pytest.approx(0.02)
    assert is_same_grid((np.eye(4), (4, 4, 4)), (np.eye(4), (4, 4, 4)))
    assert not is_same_grid((np.eye(4), (4, 4, 4)), (moved, (4, 4, 4)))
    assert not is_same_grid((np.eye(4), (4, 4, 4)), (np.eye(4), (4, 4, 5)))
