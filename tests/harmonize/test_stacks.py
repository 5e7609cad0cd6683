"""A prior's pictures as slices among neighbours and as volumes."""

from __future__ import annotations

import pytest
import torch

from harmonize.prior import PRIORS, draw_pictures
from harmonize.stacks import draw_in_form, find_form_problems

PROSTATE, SKIN = PRIORS["prostate_adc"], PRIORS["skin_lesion"]
Y = torch.arange(6) % 2


def whole(y: torch.Tensor, inputs: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    return torch.cat(list(draw_in_form(PROSTATE, y, inputs, seed)))


def test_planes_are_the_prior_s_own():
    assert torch.equal(whole(Y, (1, 24, 24)), draw_pictures(PROSTATE, Y, (1, 24, 24), 0))


@pytest.mark.parametrize("inputs", [(3, 24, 24), (1, 8, 24, 24)])
def test_a_stack_is_of_one_anatomy_and_its_slices_differ(inputs):
    found = whole(Y, inputs)
    assert found.shape == (6, *inputs) and bool((found.abs() <= 1).all())
    planes = found[:, 0] if len(inputs) == 4 else found
    apart = (planes[:, 0] - planes[:, 1]).abs().mean()
    others = (planes[:1, 0] - planes[1:, 0]).abs().mean()
    assert 0 < apart < others
    assert torch.equal(found, whole(Y, inputs)) and not torch.equal(found, whole(Y, inputs, seed=1))


def test_a_lesion_is_in_some_slices_of_a_volume_and_in_none_of_class_0():
    """Only the class differs: where the two volumes differ, the lesion is."""
    ill, well = (whole(torch.full((8,), label), (1, 10, 24, 24)) for label in (1, 0))
    slices = (ill != well).flatten(3).any(dim=3)[:, 0].sum(dim=1)
    assert bool((slices >= 1).all()) and bool((slices <= 4).all())


def test_forms_that_a_prior_has_not_are_told():
    assert not find_form_problems(PROSTATE, (3, 24, 24), "slices") and not find_form_problems(
        SKIN, (3, 24, 24), "pictures"
    )
    for prior, inputs, kind in (
        (SKIN, (3, 24, 24), "slices"), (PROSTATE, (3, 24, 24), "pictures"), (SKIN, (1, 8, 24, 24), "volumes")
    ):  # fmt: skip
        assert f"images are {list(inputs)}" in find_form_problems(prior, inputs, kind)[0]
