"""A transform of one's own is called for each training draw, for nobody else, and repeats with its seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from federation import augmentation
from federation.augmentation import apply_affine, flip_images
from federation.transforms import Transform, build_views, compute_view, find_function, register_transform
from privacy.dp.access import Augment, Rows, Split, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

X = torch.arange(24.0).reshape(6, 1, 2, 2)


def with_torch(x: Tensor) -> Tensor:
    return x + torch.rand(())


def with_numpy(x: Tensor) -> np.ndarray[Any, Any]:
    return x.numpy() + np.random.rand()


def with_python(x: Tensor) -> Tensor:
    return x + random.random()


class WithState:
    """As MONAI's: a generator of its own, which can be seeded."""

    def __init__(self) -> None:
        self.chance = np.random.RandomState(None)

    def set_random_state(self, seed: int) -> None:
        self.chance = np.random.RandomState(seed)

    def __call__(self, x: Tensor) -> Tensor:
        return x + float(self.chance.rand())


KINDS: dict[str, Callable[[Tensor], Any]] = {
    "torch": with_torch,
    "numpy": with_numpy,
    "python": with_python,
    "own": WithState(),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_view_follows_from_its_seed_and_global_generators_stay_as_they_were(name: str) -> None:
    augment = build_views(register_transform(KINDS[name]))
    y = torch.zeros(6, dtype=torch.int64)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    once, again, other = (augment(X, y, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(once, again) and not torch.equal(once, other)
    moved = (once - X).flatten(1)
    assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-5) and len(moved[:, 0].unique()) == 6
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[2]
    assert np.random.get_state()[1].tolist() == before[1]


def test_masks_move_with_their_images_and_what_comes_after_sees_the_views() -> None:
    masks = (X[:, 0] % 3).to(torch.uint8)
    turned = build_views(register_transform(lambda x, mask: (x.flip(-1), mask.flip(-1))))
    x, y = turned(X, masks, torch.Generator())
    assert torch.equal(x, X.flip(-1)) and torch.equal(y, masks.flip(-1)) and y.dtype == masks.dtype
    both = build_views(register_transform(lambda x, mask: (x.flip(-1), mask.flip(-1))), after=flip_images)
    x, y = both(X, masks, torch.Generator().manual_seed(0))
    seen = [torch.equal(row, before) for row, before in zip(x, X, strict=True)]
    assert True in seen and False in seen
    assert all(torch.equal(y[row], masks[row] if same else masks[row].flip(-1)) for row, same in enumerate(seen))


def test_an_affine_view_is_that_of_monais_transform_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second implementation, which is not used because MONAI takes ten seconds to import."""
    from monai.networks.layers import AffineTransform

    def as_monai(x: Tensor, theta: Tensor, mode: str) -> Tensor:
        warp = AffineTransform(mode=mode, padding_mode="border", normalized=True, align_corners=False)
        moved: Tensor = warp(x.reshape(len(x), -1, *x.shape[-2:]), theta)
        return moved.reshape(x.shape)

    seeded = torch.Generator().manual_seed(3)
    for shape in ((4, 1, 16, 16), (3, 2, 9, 17), (2, 1, 3, 8, 11)):
        x, y = torch.rand(shape, generator=seeded), torch.randint(3, (shape[0], *shape[2:]), generator=seeded)
        ours = apply_affine(x, y, torch.Generator().manual_seed(5))
        with monkeypatch.context() as patch:
            patch.setattr(augmentation, "_warp_images", as_monai)
            theirs = apply_affine(x, y, torch.Generator().manual_seed(5))
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_what_a_transform_does_to_its_argument_stays_with_it() -> None:
    def wipe(x: Tensor) -> Tensor:
        return x.zero_()

    whole = X.clone()
    made, _ = build_views(register_transform(wipe))(whole, torch.zeros(6, dtype=torch.int64), torch.Generator())
    assert torch.equal(whole, X) and not made.any()


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "fails": (lambda x: x.nonsense, r"the transform fails \(AttributeError"),
    "shape": (lambda x: x[..., :1], r"keep the shape of x, \[1, 2, 2\], found \[1, 2, 1\]"),
    "finite": (lambda x: x / 0, "not finite"),
    "pair": (lambda x: None, r"keep the shape of x, \[1, 2, 2\], found \[\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_transform_does_wrong_is_told(name: str) -> None:
    function, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        compute_view(function, X[0], torch.tensor(0), 1)
    with pytest.raises(ValueError, match=r"must give \(x, mask\)"):
        compute_view(lambda x, mask: x, X[0], X[0, 0], 1)


def test_names_and_code_tell_transforms_apart() -> None:
    def named(by: float) -> Callable[[Tensor], Tensor]:
        def shift(x: Tensor) -> Tensor:
            return x + by

        return shift

    one, other = register_transform(named(1.0)), register_transform(named(2.0))
    assert one.function == other.function == "shift" and one.code != other.code
    assert one == register_transform(named(1.0))
    assert float(find_function(one)(X)[0, 0, 0, 0]) == 1.0
    with pytest.raises(ValueError, match="has other code"):
        find_function(replace(one, code="0" * 64))
    with pytest.raises(ValueError, match="no transform 'nowhere' is registered here"):
        build_views(Transform(function="nowhere", code=""))
    with pytest.raises(TypeError, match="must be a function"):
        register_transform(WithState)  # type: ignore[arg-type]


def test_where_a_generator_stands_is_no_part_of_the_code() -> None:
    used = WithState()
    before = register_transform(used)
    used(X)
    assert register_transform(used) == before == register_transform(WithState())


def marked(x: Tensor) -> Tensor:
    return x + 1000


def rows(first: int) -> Rows:
    return Rows(X + first, torch.arange(6) % 2, torch.arange(6) // 2)


def test_only_training_draws_are_transformed() -> None:
    splits = {"train": rows(0), "validation": rows(100), "test": rows(200)}
    augment = build_views(register_transform(marked))
    plain = open_access(splits, batch=6, seed=0, augment=augment)
    assert float(plain.draw().x.min()) >= 1000 and torch.equal(plain.draw(full=True).x, X)
    assert torch.equal(plain.splits["validation"].x, X + 100) and torch.equal(plain.splits["train"].x, X)


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).double() @ self.w


def inner(forward: Callable[[Tensor], Tensor], batch: Any) -> Tensor:
    return forward(batch.x)


def clipped_sum(splits: dict[Split, Rows], augment: Augment, *, full: bool = False) -> Tensor:
    protection = Protection(noise=0.0, clip=1.0, sampling=1.0, views=3)
    access = open_private(splits, protection, augment=augment, sizes={"train": 1, "validation": 1, "test": 1})
    return access.gradient(Weighted(), inner, access.draw(full=full)).gradient["w"]


def wild(x: Tensor) -> Tensor:
    return 1e9 * (x - 7) ** 3


def test_privately_a_view_is_of_one_patient_and_before_the_clip() -> None:
    """Remove any patient: what leaves moves by the clip at most, whatever the transform gives."""
    augment, everybody = build_views(register_transform(wild)), Rows(X, torch.arange(6) % 2, torch.arange(6))
    whole = clipped_sum({"train": everybody}, augment)
    for patient in range(6):
        keep = everybody.patient != patient
        less = Rows(everybody.x[keep], everybody.y[keep], torch.unique(everybody.patient[keep], return_inverse=True)[1])
        assert float((whole - clipped_sum({"train": less}, augment)).norm()) <= 1 + 1e-9
    views: list[Tensor] = []
    seen = clipped_sum({"train": rows(0), "test": rows(200)}, noting(views))
    assert len(views) == 3 and {len(view) for view in views} == {3} and seen.shape == (4,)
    for patient, view in enumerate(views):
        assert {bytes(row.numpy()) for row in view} <= {bytes(row.numpy()) for row in X[2 * patient : 2 * patient + 2]}
    untouched: list[Tensor] = []
    clipped_sum({"train": everybody}, noting(untouched), full=True)
    assert not untouched


def noting(views: list[Tensor]) -> Augment:
    by = build_views(register_transform(marked))

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        views.append(x.clone())
        return by(x, y, generator)

    return augment


class Keeps:
    """Gives the sum of all examples so far."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return torch.stack(self.seen).sum(dim=0)


def test_an_object_that_keeps_examples_meets_each_alone() -> None:
    x, y = torch.arange(6.0).reshape(3, 2), torch.zeros(3, dtype=torch.int64)
    views, _ = build_views(register_transform(Keeps()))(x, y, torch.Generator().manual_seed(0))
    assert torch.equal(views, x)
