from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harmonize.elastic import make_deformed_copies


def images(n: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, 2, 16, 24, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 3), copies=st.integers(1, 3), seed=st.integers(0, 2**63 - 1))
def test_an_images_copies_depend_on_its_place_and_the_seed_alone(n: int, copies: int, seed: int) -> None:
    x = images(4)
    many = make_deformed_copies(x, 3, seed=seed).unflatten(0, (4, 3))
    few = make_deformed_copies(x[:n], copies, seed=seed).unflatten(0, (n, copies))
    assert torch.equal(few, many[:n, :copies])


def test_copies_differ_from_the_image_and_from_each_other() -> None:
    x = images(2)
    made = make_deformed_copies(x, 2, seed=1)
    rows = torch.cat([x, made, make_deformed_copies(x, 2, seed=2)])
    assert torch.cdist(rows.flatten(1), rows.flatten(1)).fill_diagonal_(1).min() > 0.1


def test_without_displacement_nothing_changes() -> None:
    x = images(3)
    assert torch.allclose(
        make_deformed_copies(x, 2, seed=1, max_displacement=0.0), x.repeat_interleave(2, 0), atol=1e-6
    )


def test_channels_move_together_and_values_stay_inside() -> None:
    x = images(3)[:, :1].expand(-1, 2, -1, -1)
    made = make_deformed_copies(x, 4, seed=1, max_displacement=0.1)
    assert torch.equal(made[:, 0], made[:, 1])
    assert made.min() >= x.min() - 1e-6 and made.max() <= x.max() + 1e-6


def test_nothing_moves_by_more_than_the_largest_displacement() -> None:
    column = torch.linspace(-1, 1, 48).expand(1, 1, 48, 48).contiguous()
    pixel = 2 / 47
    moved = (make_deformed_copies(column, 8, seed=3, max_displacement=0.06) - column).abs().max()
    assert 0.5 * pixel < moved <= 0.06 * 48 * pixel


def test_the_callers_random_numbers_go_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_deformed_copies(images(2), 2, seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_no_copies_are_an_empty_stack() -> None:
    assert make_deformed_copies(images(2), 0, seed=1).shape == (0, 2, 16, 24)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"images must be .* copies must be .* control_points must be"):
        make_deformed_copies(torch.zeros(3, 3), -1, seed=0, control_points=5)
    with pytest.raises(ValueError, match=r"max_displacement must lie in \[0, 0.1\].*folds"):
        make_deformed_copies(images(1), 1, seed=0, max_displacement=0.2)
