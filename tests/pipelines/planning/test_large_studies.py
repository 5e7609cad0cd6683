"""Large studies: what is held in memory follows a patch and a few studies, not all that there are."""

from __future__ import annotations

import math
import threading
from typing import NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation.models.planned import Planned, PlannedModule
from federation.task import Output, Task, overlap_by_slabs, overlap_loss
from federation.windows import average_by_slabs, average_windows
from pipelines.data import intake
from pipelines.data.intake import WaitingStudy, limit_readers, read_studies
from pipelines.data.study import Rejected, Unusable
from pipelines.settings.run_settings import try_network

PLAN = Planned(patch=(4, 8, 8), kernels=((3, 3, 3),) * 2, strides=((1, 1, 1), (2, 2, 2)), filters=(8, 8))


def test_settings_are_tried_with_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, two whole studies passed: 18 GiB for a computed tomography, to check a file of settings."""
    seen, forward = list[tuple[int, ...]](), PlannedModule.forward

    def note(module: PlannedModule, x: torch.Tensor) -> Output:
        seen.append(tuple(x.shape))
        return forward(module, x)

    monkeypatch.setattr(PlannedModule, "forward", note)
    try_network.__wrapped__(Task(PLAN, (1, 64, 512, 512), 3, "segmentation"))
    assert seen == [(2, 1, 4, 8, 8)]


@given(
    st.integers(1, 3), st.integers(2, 4), st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)), st.data()
)
def test_a_loss_by_slabs_is_the_loss(rows: int, classes: int, sides: tuple[int, ...], data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    for shape in (sides, sides[1:]):
        logits = 3 * torch.randn(rows, classes, *shape, generator=generator, dtype=torch.float64)
        y = torch.randint(data.draw(st.integers(1, classes)), (rows, *shape), generator=generator)
        assert torch.allclose(
            overlap_by_slabs([(0, logits[:, :, :1]), (1, logits[:, :, 1:])], y),
            overlap_loss(Output(logits, logits), y),
            atol=1e-12,
        )


@given(st.integers(1, 2), st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(3, 5)), st.booleans())
def test_slabs_of_averaged_windows_are_their_average(rows: int, sides: tuple[int, ...], flat: bool) -> None:
    """MONAI's own sliding windows hold the whole answer."""
    shape, window = (sides[1:], (4, 3)) if flat else (sides, (4, 3, 3))
    x = torch.randn(rows, 1, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(sides)))
    places = torch.arange(math.prod(window), dtype=torch.float64).reshape(window)

    def predict(pieces: torch.Tensor) -> torch.Tensor:
        return torch.cat([pieces * places, pieces.cumsum(dim=2)], dim=1)

    slabs = list(average_by_slabs(predict, x, window))
    whole = average_windows(predict, x, window)
    assert [start for start, _ in slabs] == [sum(slab.shape[2] for _, slab in slabs[:k]) for k in range(len(slabs))]
    assert torch.allclose(torch.cat([slab for _, slab in slabs], dim=2), whole, atol=1e-12)
    fits = all(side >= length for side, length in zip(shape, window, strict=True))
    assert not fits or max(slab.shape[2] for _, slab in slabs) <= 4


@given(st.integers(0, 8))
def test_what_is_no_number_in_one_slab_stays_in_the_windows_that_see_it(place: int) -> None:
    """A study with a damaged slice, or an overflow: the rest of it keeps its answer, as in MONAI's windows."""
    x = torch.randn(1, 1, 9, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(place))
    x[0, 0, place, 1, 1] = math.nan

    def predict(pieces: torch.Tensor) -> torch.Tensor:
        return pieces + pieces.mean(dim=(2, 3, 4), keepdim=True)

    whole = average_windows(predict, x, (4, 3, 3))
    slabs = torch.cat([slab for _, slab in average_by_slabs(predict, x, (4, 3, 3))], dim=2)
    assert not whole.isnan().all() and torch.allclose(slabs, whole, atol=1e-12, equal_nan=True)


def waiting_study(voxels: int, at_once: list[int], lock: threading.Lock) -> WaitingStudy:
    """A study that notes how many are read at a time, and is refused."""

    def read() -> NoReturn:
        with lock:
            at_once.append(1)
        threading.Event().wait(0.02)
        with lock:
            at_once.append(-1)
        raise Unusable("no_mask", "none")

    return WaitingStudy("p", "s", read, voxels=voxels)


@pytest.mark.parametrize(("voxels", "most"), [(0, 4), (20, 4), (30, 2), (60, 1), (1000, 1)])
def test_as_many_studies_are_read_at_a_time_as_fit(voxels: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "VOXELS", 100)
    notes, lock = list[int](), threading.Lock()
    waiting = [waiting_study(number, notes, lock) for number in (1, voxels, 1, 1, 1, 1, 1, 1)]
    results = list(read_studies(waiting, readers=4))
    assert all(isinstance(result, Rejected) for result in results) and len(results) == len(waiting)
    together = max(sum(notes[:place]) for place in range(len(notes) + 1))
    assert together <= most + (most > 1) and limit_readers(waiting, 4) == most


def test_small_studies_are_read_as_before() -> None:
    lock = threading.Lock()
    assert limit_readers([], 0) == 0 and limit_readers([waiting_study(2**20, [], lock)], 0) == 0
    assert limit_readers([waiting_study(2**27, [], lock)], 0) == 1
