"""What a mask ignores changes no loss, no gradient, no share, no score and no patch; without it nothing changes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.losses.dice import DiceLoss
from torch import Tensor
from torch.nn import functional

from evaluation import by_round
from evaluation.masks import DICE_AT, HD95_AT, score_masks
from federation.models.planned import Planned
from federation.patches import build_patch_views
from federation.task import (
    IGNORED,
    SMOOTH,
    Output,
    Task,
    cross_entropy,
    overlap_by_slabs,
    overlap_loss,
    smoothing_term,
)
from privacy.dp.access import Batch, Rows, open_access

CLASSES = 3
PLAN = Planned(patch=(4, 4), kernels=((3, 3),) * 3, strides=((1, 1), (2, 2), (1, 2)), filters=(8, 8, 8))
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "overlap": lambda logits, y: overlap_loss(Output(logits, logits), y),
    "slabs": lambda logits, y: overlap_by_slabs([(0, logits)], y),
    "smoothing": lambda logits, y: smoothing_term(Output(logits, logits), y),
    "planned": lambda logits, y: PLAN.losses(Output(logits, logits, deep=(logits[..., ::2, ::2],)), y),
}


def draw_masks(seed: int, rows: int = 2, share: float = 0.4) -> tuple[Tensor, Tensor]:
    """Logits (rows, classes, 6, 8), and masks with ignored pixels."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, CLASSES, 6, 8, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (rows, 6, 8), generator=generator)
    return logits, y.masked_fill(torch.rand(y.shape, generator=generator) < share, IGNORED)


@pytest.mark.parametrize("name", ["overlap", "slabs", "smoothing"])
@given(st.integers(0, 200))
def test_what_a_network_says_of_ignored_pixels_changes_no_loss_and_gets_no_gradient(name: str, seed: int) -> None:
    logits, y = draw_masks(seed)
    unknown = (y == IGNORED)[:, None].expand_as(logits)
    logits.requires_grad_()
    losses = LOSSES[name](logits, y)
    if name != "slabs":
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        assert not gradient[unknown].any() and gradient[~unknown].any()
    other = torch.where(unknown, 5 * torch.randn_like(logits), logits)
    assert torch.allclose(LOSSES[name](other, y), losses, atol=1e-12)


@pytest.mark.parametrize("name", ["overlap", "slabs", "smoothing"])
@given(st.integers(0, 200), st.integers(1, 7))
def test_the_loss_is_that_of_what_is_left(name: str, seed: int, first: int) -> None:
    """Columns that are ignored may as well be cut off."""
    logits, y = draw_masks(seed, share=0.0)
    rest = LOSSES[name](logits[..., :first], y[..., :first])
    y[..., first:] = IGNORED
    assert torch.allclose(LOSSES[name](logits, y), rest, atol=1e-12)


@given(st.integers(0, 200), st.sampled_from([torch.float32, torch.float64]))
def test_without_ignored_pixels_losses_are_what_they_were_bit_for_bit(seed: int, dtype: torch.dtype) -> None:
    logits, y = draw_masks(seed, share=0.0)
    logits = logits.to(dtype)
    dice = DiceLoss(include_background=False, softmax=True, reduction="none", smooth_nr=SMOOTH, smooth_dr=SMOOTH)
    true = functional.one_hot(y, CLASSES).movedim(-1, 1).to(dtype)
    entropy = functional.cross_entropy(logits, y, reduction="none").flatten(1).mean(dim=1)
    assert torch.equal(cross_entropy(Output(logits, logits), y), entropy)
    expected = dice(logits, true).flatten(1).mean(dim=1) + entropy
    assert torch.equal(overlap_loss(Output(logits, logits), y), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_an_image_that_is_ignored_as_a_whole_has_a_loss_of_0(name: str) -> None:
    logits, y = draw_masks(0)
    y[0] = IGNORED
    losses = LOSSES[name](logits, y)
    assert losses[0] == 0 and losses[1].abs() > 1e-4


def test_the_class_of_a_label_may_have_the_number_of_what_masks_ignore() -> None:
    logits = torch.zeros(1, IGNORED + 1)
    assert math.isclose(
        cross_entropy(Output(logits, logits), torch.tensor([IGNORED])).item(), math.log(IGNORED + 1), rel_tol=1e-6
    )


@given(st.integers(0, 200), st.floats(0, 1))
def test_patches_lie_about_what_is_known(seed: int, foreground: float) -> None:
    _, y = draw_masks(seed, share=0.8)
    known = (y != IGNORED).flatten(1).any(dim=1)
    cut = build_patch_views((1, 1), foreground, CLASSES)
    _, voxels = cut(torch.zeros(len(y), 1, *y.shape[1:]), y, torch.Generator().manual_seed(seed))
    assert ((voxels[:, 0, 0] != IGNORED) == known).all()


def test_training_and_validation_see_them_and_shares_do_not() -> None:
    _, y = draw_masks(3, rows=4)
    x = torch.randn(4, 1, 6, 8)
    rows = Rows(x, y, torch.arange(4))
    access = open_access(
        {"train": rows, "validation": rows}, batch=2, seed=0, augment=build_patch_views((4, 4), 0.5, CLASSES)
    )
    task = Task(PLAN, (1, 6, 8), CLASSES, "segmentation")
    torch.manual_seed(0)
    module = task.network()
    assert all(g.isfinite().all() for g in access.gradient(module, task.objective, access.draw()).gradient.values())
    counts = torch.stack([(y == number).sum() for number in range(CLASSES)]).double()
    assert torch.allclose(access.shares(CLASSES), counts / counts.sum())
    before = task.validation(module.eval(), Batch(x, y))
    blank = task.validation(module, Batch(x, y.masked_fill(y == IGNORED, 0)))
    assert before.isfinite().all() and not torch.allclose(before, blank)


def test_where_masks_ignore_every_pixel_classes_are_equally_common() -> None:
    """No number would reach the method's prior, and from there its network."""
    rows = Rows(torch.zeros(2, 1, 4, 4), torch.full((2, 4, 4), IGNORED), torch.arange(2))
    assert open_access({"train": rows}, batch=2, seed=0).shares(4).tolist() == [0.25] * 4


@given(st.integers(0, 200))
def test_scores_do_not_count_them(seed: int) -> None:
    logits, y = draw_masks(seed, rows=4, share=0.3)
    y[3] = y[3].masked_fill(y[3] == IGNORED, 1)
    predicted, patients = logits.argmax(dim=1), np.array([0, 0, 1, 2])
    truth, unknown = y.numpy(), (y == IGNORED).numpy()
    settings = {"spacing_mm": (1.0, 1.0), "classes": CLASSES}
    values = score_masks(truth, predicted.numpy(), patients, **settings, ignored=IGNORED)  # type: ignore[arg-type]
    blank = np.where(unknown, 0, truth), np.where(unknown, 0, predicted.numpy())
    expected = score_masks(*blank, patients, **settings)  # type: ignore[arg-type]
    assert np.array_equal(values.scores[..., DICE_AT], expected.scores[..., DICE_AT], equal_nan=True)
    assert np.array_equal(values.present, expected.present)
    assert np.array_equal(values.scores[2], expected.scores[2], equal_nan=True)  # this patient's image is whole
    partly = [unknown[:2].any(axis=(1, 2)).all(), unknown[2].any()]
    assert np.isnan(values.scores[:2, :, HD95_AT][partly]).all()
    rounds = by_round.score_masks(truth, predicted.numpy(), patients, CLASSES, IGNORED)
    assert rounds.tables.sum() == (~unknown).sum()
    assert rounds.scores == by_round.score_masks(*blank, patients, CLASSES).scores
    if unknown.any():
        with pytest.raises(ValueError, match="goes from 0 to 255, allowed is 0 to 2"):
            score_masks(truth, predicted.numpy(), patients, **settings)  # type: ignore[arg-type]
