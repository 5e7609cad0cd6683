"""Rows in a file are those of a copy, whatever is asked of them, and only what is asked for is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from federation import patches
from federation.models.planned import Planned
from federation.patches import build_patch_views
from federation.task import IGNORED, Task
from pipelines.models.answers import predict_classes
from privacy.dp import chunks, stored_rows
from privacy.dp.access import Rows, open_access
from privacy.dp.stored_rows import StoredRows, select_rows, split_rows

STORED = torch.randn(10, 2, 3, generator=torch.Generator().manual_seed(0))
OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x * 2,
    lambda x: x.flatten(1),
    lambda x: x.mean(dim=(1, 2)),
    lambda x: x[..., 1],
    lambda x: x[:, None],
    lambda x: x[None],
    lambda x: torch.cat([x, x]),
    lambda x: torch.stack([*x]),
    lambda x: torch.cat(torch.split(x, 3)),
    lambda x: torch.from_numpy(x.cpu().numpy()),
    lambda x: torch.from_numpy(np.asarray(x)),
    lambda x: torch.tensor(x.tolist(), dtype=x.dtype),
    lambda x: x.float(),
    lambda x: x.clone(),
    lambda x: x[0:4, 1],
    lambda x: torch.cat([x[part] for part in split_rows(x, 3)]),
)
PLAN = Planned(patch=(4, 4), kernels=((3, 3),) * 2, strides=((1, 1), (2, 2)), filters=(8, 8))


@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    asked=st.lists(st.integers(0, 7), max_size=5),
    ends=st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_rows_of_a_file_are_those_of_a_copy(
    rows: list[int], asked: list[int], ends: tuple[int, int], dtype: torch.dtype
) -> None:
    index = torch.tensor(rows)
    stored, copy = StoredRows(STORED, index, dtype), STORED[index].to(dtype)
    some = torch.tensor([number % len(rows) for number in asked], dtype=torch.int64)
    ways = (
        lambda x: x[some],
        lambda x: x.index_select(0, some),
        lambda x: x[ends[0] : ends[1]],
        lambda x: x[:: 1 + abs(ends[0])],
        lambda x: x[ends[0] % len(rows)],
        lambda x: x[-1],
        lambda x: x[torch.arange(len(rows)) % 2 == 0],
        *OTHERS,
    )
    for number, way in enumerate(ways):
        found, expected = way(stored), way(copy)
        assert found.dtype == expected.dtype and torch.equal(found, expected), number
    assert (len(stored), stored.shape, stored.dim(), stored.device) == (len(copy), copy.shape, 3, copy.device)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.__setitem__(0, 1),
        lambda x: x.__setitem__(x > 3, 1),
        lambda x: x.add_(1),
        lambda x: x.fill_(0),
        lambda x: x.copy_(x[:]),
    ],
)
def test_a_change_in_place_is_refused_and_never_lost(change: Callable[[Tensor], Tensor]) -> None:
    """A transform of somebody's own may write into masks; what was read for it would be changed, and nothing else."""
    stored = StoredRows(STORED, torch.tensor([2, 0]), torch.float32)
    before = stored[:]
    with pytest.raises(TypeError, match="give changed rows back"):
        change(stored)
    assert torch.equal(stored[:], before) and not isinstance(stored.clone(), StoredRows)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the rows that are read at a time, where nothing is small enough to be held."""
    numbers, read = list[int](), StoredRows.read

    def note(stored: StoredRows, rows: Tensor) -> Tensor:
        numbers.append(len(rows))
        return read(stored, rows)

    monkeypatch.setattr(StoredRows, "read", note)
    monkeypatch.setattr(stored_rows, "MOST_BYTES", 0)
    monkeypatch.setattr(chunks, "NUMBERS", 3 * 64)  # three images of the test pass at a time
    return numbers


def test_small_rows_are_copied_and_large_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    index = torch.tensor([1, 3])
    monkeypatch.setattr(stored_rows, "MOST_BYTES", 2 * 6 * 4)
    assert type(select_rows(STORED, index, torch.float32)) is Tensor
    assert isinstance(select_rows(STORED, index, torch.float64), StoredRows)


def test_training_validating_and_predicting_read_a_batch_at_a_time_and_compute_the_same(reads: list[int]) -> None:
    """Before, all training images and masks lay in memory, the masks as int64 and twice."""
    images = torch.randn(9, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    masks = (images[:, 0] > 0.5).to(torch.uint8)
    index, task = torch.tensor([8, 0, 3, 1, 5, 7, 2]), Task(PLAN, (1, 8, 8), 2, "segmentation")
    copies = Rows(images[index], masks[index].long(), index)
    stored = replace(copies, x=select_rows(images, index, torch.float32), y=select_rows(masks, index, torch.int64))
    torch.manual_seed(0)
    module, results = task.network(), []
    for rows in (copies, stored):
        splits = {"train": rows, "validation": rows}
        access = open_access(splits, batch=2, seed=3, augment=build_patch_views(PLAN.patch, 0.5, 2))
        draws = [access.draw() for _ in range(4)]
        gradient = access.gradient(module.train(), task.objective, draws[0])
        loss = access.measure(module, task.validation, "validation")
        shares, predicted = access.shares(2), predict_classes(task, module, rows.x)
        results.append((draws, gradient, loss, shares, predicted))
    (draws, gradient, loss, shares, predicted), (others, other_gradient, other_loss, other_shares, other) = results
    for draw, again in zip(draws, others, strict=True):
        assert torch.equal(draw.x, again.x) and torch.equal(draw.y, again.y) and again.y.dtype == torch.int64
    assert all(torch.equal(tensor, other_gradient.gradient[name]) for name, tensor in gradient.gradient.items())
    assert loss == other_loss and torch.equal(shares, other_shares) and torch.equal(predicted, other)
    assert reads and max(reads) <= 3, reads


def test_patches_are_cut_without_reading_a_whole_example(reads: list[int]) -> None:
    images = torch.randn(5, 1, 8, 8)
    masks = (images[:, 0] > 0.5).to(torch.uint8)
    index = torch.arange(5)
    rows = Rows(select_rows(images, index, torch.float32), select_rows(masks, index, torch.int64), index)
    access = open_access({"train": rows}, batch=5, seed=0, augment=build_patch_views(PLAN.patch, 0.5, 2))
    draw = access.draw()
    assert draw.x.shape == (5, 1, 4, 4) and draw.y.dtype == torch.int64 and not reads
    assert not isinstance(open_access({"train": rows}, batch=4, seed=0).draw().x, StoredRows)


def _slow_corner(
    mask: np.ndarray[Any, Any], patch: tuple[int, ...], foreground: float, generator: torch.Generator
) -> list[int]:
    """The first voxel of a patch, by a list of all voxels that may be its middle."""
    drawn = torch.rand(3 + mask.ndim, generator=generator, dtype=torch.float64).tolist()
    rooms = [side - length for side, length in zip(mask.shape, patch, strict=True)]
    present = sorted({*mask.flatten().tolist()} - {0, IGNORED})
    middles = np.argwhere(mask != IGNORED)
    is_centred = 0 < len(middles) < mask.size
    if drawn[0] < foreground and present:
        middles, is_centred = np.argwhere(mask == present[int(drawn[1] * len(present))]), True
    if not is_centred:
        return [int(share * (room + 1)) for share, room in zip(drawn[3:], rooms, strict=True)]
    middle = middles[int(drawn[2] * len(middles))].tolist()
    return [min(max(at - length // 2, 0), room) for at, length, room in zip(middle, patch, rooms, strict=True)]


@pytest.mark.parametrize("deferred", [False, True])
@given(seed=st.integers(0, 10**6), foreground=st.sampled_from((0.0, 0.5, 1.0)), flat=st.booleans())
def test_patches_lie_where_a_list_of_all_voxels_puts_them(
    deferred: bool, seed: int, foreground: float, flat: bool
) -> None:
    """Of one function, drawn again and again from studies of two hospitals in turn."""
    numbers = np.random.default_rng(seed)
    sides, patch = ((6, 7), (2, 3)) if flat else ((4, 5, 6), (2, 3, 2))
    shares = ([1, 0, 0, 0], [0.7, 0.2, 0.1, 0], [0.4, 0.3, 0, 0.3], [0, 0, 0, 1])
    splits = [
        torch.from_numpy(np.stack([numbers.choice([0, 1, 2, IGNORED], sides, p=share) for share in shares]))
        for _ in range(2)
    ]
    augment = build_patch_views(patch, foreground, 3)
    ours, slow = (torch.Generator().manual_seed(seed) for _ in range(2))
    for turn in range(6):
        masks, index = splits[turn // 2 % 2], torch.from_numpy(numbers.integers(0, 4, 3))
        images = masks[:, None].float()
        taken = [StoredRows(x, index, x.dtype) if deferred else x[index] for x in (images, masks)]
        x, y = augment(*taken, ours)
        for row, mask in zip(range(3), masks[index].numpy(), strict=True):
            corner = _slow_corner(mask, patch, foreground, slow)
            cut = mask[tuple(slice(at, at + length) for at, length in zip(corner, patch, strict=True))]
            assert np.array_equal(y[row].numpy(), cut) and np.array_equal(x[row, 0].numpy(), cut)


def test_a_mask_that_is_drawn_again_is_not_looked_at_as_a_whole_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "LARGE", 1)
    counted, count = list[Tensor](), patches._count_voxels
    monkeypatch.setattr(patches, "_count_voxels", lambda mask, classes: (counted.append(mask), count(mask, classes))[1])
    masks, every = (torch.randn(3, 8, 8) > 0.5).long(), torch.arange(3)
    rows = Rows(masks[:, None].float(), masks, every)
    access = open_access({"train": rows}, batch=2, seed=0, augment=build_patch_views(PLAN.patch, 0.5, 2))
    draws = [access.draw() for _ in range(9)]
    assert len(counted) == 3 and all(type(draw.x) is Tensor and draw.x.shape[1:] == (1, 4, 4) for draw in draws)
