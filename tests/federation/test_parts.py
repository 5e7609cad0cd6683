"""Parameters, seeds, settings, augmentation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federation.augmentation import (
    AUGMENTATIONS,
    BEND,
    POINTS,
    apply_affine,
    apply_elastic,
    displace_images,
    flip_images,
)
from federation.descent import Work
from federation.parameters import add_scaled, average_models, prefixed, section, select_parameters, subtract_parameters
from federation.randomness import derive_seed, use_seed
from federation.rounds import Schedule


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(0, 1000))
def test_mean_against_a_loop_and_counters_take_the_maximum(weights, seed):
    g = torch.Generator().manual_seed(seed)
    models = [{"w": torch.randn(3, 2, generator=g), "n": torch.tensor(i)} for i in range(len(weights))]
    merged = average_models(models, weights)
    loop = sum(w * m["w"].double() for w, m in zip(weights, models, strict=True)) / sum(weights)
    assert torch.allclose(merged["w"].double(), loop, atol=1e-6)
    assert int(merged["n"]) == len(weights) - 1


def test_the_mean_of_one_model_is_that_model_bit_for_bit():
    model = {"w": torch.randn(50)}
    assert torch.equal(average_models([model], [0.3])["w"], model["w"])


def test_a_mean_of_nothing_is_refused():
    with pytest.raises(ValueError, match="found 0 models"):
        average_models([], [])
    with pytest.raises(ValueError, match="positive weights"):
        average_models([{"w": torch.ones(1)}], [0.0])


def test_sections_and_prefixes_undo_each_other():
    params = {"a/b": torch.ones(1), "c": torch.zeros(2)}
    both = {**prefixed("model", params), **prefixed("control", params)}
    assert section(both, "model").keys() == params.keys()
    assert select_parameters(params, lambda n: n == "c").keys() == {"c"}
    assert torch.equal(add_scaled(params, plus=params, times=2.0)["a/b"], torch.tensor([3.0]))
    assert torch.equal(subtract_parameters(params, {"c": torch.ones(2)})["c"], -torch.ones(2))


@given(st.integers(0, 2**40), st.text(max_size=5), st.text(max_size=5))
def test_derived_seeds_depend_on_the_parts_and_not_on_their_joining(seed, a, b):
    assert derive_seed(seed, a, b) == derive_seed(seed, a, b)
    assert 0 <= derive_seed(seed, a, b) < 2**63
    if b:
        assert derive_seed(seed, a + b) != derive_seed(seed, a, b)


def test_seeding_a_block_leaves_the_generator_as_it_was():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with use_seed(9):
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)


def test_augmentation_keeps_shapes_and_is_drawn_from_its_generator_alone():
    x = torch.rand(8, 1, 16, 16)
    for name, augment in AUGMENTATIONS.items():
        if augment is None:
            assert name == "none"
            continue
        views = [augment(x, torch.arange(8), torch.Generator().manual_seed(5))[0] for _ in range(2)]
        assert views[0].shape == x.shape and torch.equal(*views)
        assert not torch.equal(views[0], x)
        assert float(views[0].min()) >= float(x.min()) - 1e-6 and float(views[0].max()) <= float(x.max()) + 1e-6


def test_flip_mirrors_or_keeps_and_affine_keeps_most_of_the_mass_in_place():
    x = torch.rand(40, 1, 4, 6)
    y, _ = flip_images(x, torch.arange(40), torch.Generator().manual_seed(0))
    kept = [torch.equal(a, b) for a, b in zip(x, y, strict=True)]
    mirrored = [torch.equal(a.flip(-1), b) for a, b in zip(x, y, strict=True)]
    assert all(k or m for k, m in zip(kept, mirrored, strict=True)) and 5 < sum(kept) < 35
    blob = torch.zeros(16, 1, 33, 33)
    blob[:, :, 13:20, 13:20] = 1.0
    moved, _ = apply_affine(blob, torch.arange(16), torch.Generator().manual_seed(0))
    assert (moved[:, :, 8:25, 8:25].sum(dim=(1, 2, 3)) > 25).all()


def ramps(size: int) -> torch.Tensor:
    """(1, 2, size, size) of each place its column and its row, from 0 to 1: what is shown of it tells where from."""
    line = (torch.arange(size) + 0.5) / size
    return torch.stack([line.expand(size, size), line[:, None].expand(size, size)])[None]


def test_without_a_displacement_nothing_moves():
    x = torch.rand(3, 2, 24, 16)
    for mode in ("bilinear", "nearest"):
        assert torch.allclose(displace_images(x, torch.zeros(3, 2, POINTS, POINTS), mode), x, atol=1e-5)


def test_elastic_bends_every_image_smoothly_in_its_own_way_and_leaves_the_edges():
    places = ramps(64).expand(20, -1, -1, -1)
    shown, _ = apply_elastic(places, torch.arange(20), torch.Generator().manual_seed(2))
    columns = shown[:, 0]
    straight = torch.where((columns[:, 0, :1] < columns[:, 0, -1:])[..., None], columns, columns.flip(-1))
    moved = torch.stack([straight - places[:, 0], shown[:, 1] - places[:, 1]], 1)
    far = moved.abs().amax(dim=(1, 2, 3))
    assert (far > 0.2 * BEND).all() and (far < 1.3 * BEND).all(), "cubic interpolation goes a little beyond its points"
    assert moved[..., [0, -1], :].abs().max() < 1e-2 and moved[..., [0, -1]].abs().max() < 1e-2
    assert torch.cdist(moved.flatten(1), moved.flatten(1)).fill_diagonal_(1).min() > 0.1
    steps = moved.diff(dim=-1).abs().max(), moved.diff(dim=-2).abs().max()
    assert max(steps) < 1 / 64, "neighbours move together"


def test_no_image_folds_even_when_neighbouring_points_move_against_each_other():
    signs = (torch.arange(POINTS)[:, None] + torch.arange(POINTS)) % 2 * 2.0 - 1
    worst = [signs, (torch.arange(POINTS) % 2 * 2.0 - 1).expand(POINTS, -1)]
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randint(2, (POINTS, POINTS), generator=rng) * 2.0 - 1 for _ in range(40)]
    for one, other in zip([*worst, *drawn], [*worst[::-1], *drawn[::-1]], strict=True):
        moves = 2 * BEND * torch.stack([one, other.T])[None]
        moves[..., [0, -1]] = moves[..., [0, -1], :] = 0
        column, row = displace_images(ramps(96), moves, "bilinear")[0]
        inner = slice(2, -2)  # beyond the border its value is repeated
        along, across = (field[inner, inner].diff(dim=-1)[:-1] for field in (column, row))
        down, aside = (field[inner, inner].diff(dim=-2)[:, :-1] for field in (row, column))
        assert float((along * down - across * aside).min()) > 0


@pytest.mark.parametrize(
    ("kind", "settings", "text"),
    [
        (Work, {"lr": 0.0, "batch": 0}, "lr must be > 0, found 0.0; batch must be >= 1, found 0"),
        (Work, {"epochs": 1, "steps": 5}, "either epochs or steps"),
        (Work, {"epochs": None}, "either epochs or steps"),
        (Work, {"momentum": 0.9}, "momentum: belongs to sgd"),
        (Schedule, {"rounds": 0, "participation": 0.0}, "rounds must be >= 1, found 0; participation"),
        (Schedule, {"rounds": 1, "deadline_s": -1.0}, "deadline_s"),
    ],
)
def test_settings_tell_all_their_problems_at_once(kind, settings, text):
    with pytest.raises(ValueError, match=text):
        kind(**settings)
