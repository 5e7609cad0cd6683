"""The scale of scores: rising, exact without noise, and bins that hold what they should."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evaluation.scale import (
    BRANCH,
    CELLS,
    HALF,
    LEVELS,
    TREE,
    cell_of,
    cells_at_level,
    compute_density,
    compute_edges,
    steps,
    tree_levels,
)

PROBABILITIES = hnp.arrays(np.float64, st.integers(1, 50), elements=st.floats(0, 1))
COUNTS = hnp.arrays(np.float64, CELLS, elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, 3.5, 40.0]))


@given(PROBABILITIES)
def test_a_larger_probability_is_never_in_a_lower_cell_and_half_is_an_edge(p):
    cells = cell_of(np.sort(p))
    assert (np.diff(cells) >= 0).all()
    assert ((cells >= HALF) == (np.sort(p) >= 0.5)).all()
    assert cells.min() >= 0 and cells.max() < CELLS


def test_the_ends_of_the_scale_and_what_it_tells_apart():
    p = [0.0, 5e-324, 1e-4, 1e-3, 0.499, np.nextafter(0.5, 0), 0.5, 0.501, 1 - 1e-16, 1.0]
    cells = cell_of(p)
    assert cells[0] == 0 and cells[-1] == CELLS - 1 and cells[5] == HALF - 1 and cells[6] == HALF
    assert cells[3] - cells[2] > 10 and cells[4] < HALF - 1 < HALF < cells[7]


@given(PROBABILITIES)
def test_a_class_and_its_complement_are_mirror_images(p):
    p = np.round(p * 2**20) / 2**20  # whose complement is exact
    assert (np.abs(cell_of(1 - p) - (CELLS - 1 - cell_of(p))) <= 1).all()


@given(PROBABILITIES)
def test_without_noise_the_density_is_the_count_of_each_cell(p):
    cells = cell_of(p)
    levels = [np.bincount(cells_at_level(cells, k), minlength=BRANCH**k).astype(float) for k in range(1, LEVELS + 1)]
    assert compute_density(levels, len(p)) == pytest.approx(np.bincount(cells, minlength=CELLS))
    flat = np.concatenate(levels)
    assert len(flat) == TREE and all(np.array_equal(a, b) for a, b in zip(levels, tree_levels(flat), strict=True))


@given(st.integers(0, 2**31), st.floats(0, 50), st.integers(0, 60))
def test_whatever_the_noise_the_density_is_that_of_so_many_patients(seed, noise, patients):
    levels = tree_levels(np.random.default_rng(seed).normal(0, noise, TREE))
    found = compute_density(levels, patients)
    assert found.min() >= 0 and found.sum() == pytest.approx(patients)


@given(COUNTS, st.floats(0, 1), st.booleans())
def test_edges_rise_leave_a_cell_to_each_bin_and_hold_one_half_where_asked(where, share, half):
    found = compute_edges(where, 8, share=share, half=half)
    assert found.shape == (7,) and (np.diff(found) > 0).all() and found[0] >= 1 and found[-1] < CELLS
    assert not half or HALF in found


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.5, 0.7, 1.0])
def test_bins_hold_equally_many_where_classes_are_equal_and_fewer_where_the_rare_one_is(share):
    ends = np.concatenate([[0], steps(8, share), [1]])
    sizes = np.diff(ends)
    assert (sizes > 0).all() and sizes.sum() == pytest.approx(1)
    assert np.allclose(sizes, 1 / 8) if share == 0.5 else (np.diff(sizes) * (0.5 - share) < 0).all()
    assert np.allclose(steps(8, share), 1 - steps(8, 1 - share)[::-1])
    even = compute_edges(np.ones(CELLS), 8, share=share, half=False) / CELLS
    assert np.allclose(even, steps(8, share), atol=1 / CELLS)
