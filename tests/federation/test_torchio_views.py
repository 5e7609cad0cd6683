"""Views by TorchIO: they are TorchIO's own, masks go with their images, and each follows from its seed alone."""

from __future__ import annotations

import subprocess
import sys
import typing
import warnings
from dataclasses import fields
from typing import Any

import pytest
import torch
import torchio
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from federation.algorithm import find_work_problems
from federation.augmentation import flip_images
from federation.descent import Work
from federation.fedavg import FedAvg
from federation.fedsgd import FedSGD
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.randomness import use_seed
from federation.task import Task
from federation.torchio_views import (
    Affine,
    Anisotropy,
    BiasField,
    Blur,
    ElasticDeformation,
    Flip,
    Gamma,
    Ghosting,
    Motion,
    Noise,
    Spike,
    View,
    build_torchio_function,
    find_view_problems,
)
from federation.transforms import build_views, compute_view
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.settings_error import SettingsError

KINDS = typing.get_args(View)
SHAPES = {"slice": (1, 24, 30), "neighbours": (3, 16, 16), "volume": (2, 8, 24, 30)}
SPACINGS = {"slice": (0.5, 0.5, 1.0), "neighbours": (1.0, 1.0, 1.0), "volume": (1.5, 1.5, 3.0)}
CLASSES = 4
SMALL: dict[type, dict[str, Any]] = {ElasticDeformation: {"max_displacement": 0.5}, Affine: {"translation": 1.0}}
"""Arguments with which small images do not fold, and something moves."""


def example(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    """An image whose mask follows from its values: bands, so that a mask that stays behind is seen."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(shape, generator=g)
    place = torch.arange(shape[-1]) * CLASSES // shape[-1]
    return x, place.expand(shape[1:]).clone().to(torch.int64)


def call_torchio(view: Any, x: Tensor, mask: Tensor, seed: int, spacing: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """TorchIO called by hand, on axes that are turned by hand."""
    flat = x.dim() == 3
    arguments = {field.name: getattr(view, field.name) for field in fields(view) if field.name != "name"}
    if flat:  # an image of one slice has nothing along or out of the third axis
        match view:
            case Ghosting() | Anisotropy() | Flip():
                arguments["axes"] = [axis for axis in view.axes if axis < 2]
            case ElasticDeformation():
                arguments["max_displacement"] = (view.max_displacement, view.max_displacement, 0)
            case Affine():
                t = view.translation
                arguments["translation"] = (-t, t, -t, t, 0, 0)
    transform = getattr(torchio, "Random" + "".join(part.title() for part in view.name.split("_")))(**arguments)
    axes = "chw->cwh" if flat else "cdhw->cwhd"
    before, after = axes.split("->")
    turned = torch.einsum(axes, x).contiguous()  # how an image lies decides how it is rounded
    labels = torch.einsum(axes, mask[None].float()).contiguous()
    affine = torch.diag(torch.tensor([*spacing, 1.0], dtype=torch.float64)).numpy()
    subject = torchio.Subject(
        image=torchio.ScalarImage(tensor=turned[..., None] if flat else turned, affine=affine),
        labels=torchio.LabelMap(tensor=labels[..., None] if flat else labels, affine=affine),
    )
    with use_seed(seed):
        made = transform(subject)
    parts = [made.image.data[..., 0], made.labels.data[..., 0]] if flat else [made.image.data, made.labels.data]
    image, labels = (torch.einsum(f"{after}->{before}", part) for part in parts)
    return image, labels[0].long()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_view_is_what_torchio_makes_of_the_same_image_and_its_mask(kind, shape):
    view, (x, mask), spacing = kind(**SMALL.get(kind, {})), example(SHAPES[shape]), SPACINGS[shape]
    function = build_torchio_function([view], flat=x.dim() == 3, spacing=spacing)
    changed = 0
    for seed in range(4):
        image, labels = compute_view(function, x, mask, seed)
        expected = call_torchio(view, x, mask, seed, spacing)
        assert torch.equal(image, expected[0]) and torch.equal(labels, expected[1])
        assert labels.dtype == mask.dtype and set(labels.unique().tolist()) <= set(range(CLASSES))
        alone, label = compute_view(function, x, torch.tensor(2), seed)
        assert torch.equal(alone, image) and label == 2, "the mask changes nothing in the image"
        changed += not torch.equal(image, x)
    assert changed


@pytest.mark.parametrize("shape", SHAPES)
def test_masks_go_where_their_images_go(shape):
    """An image that shows its own mask, moved: nearest neighbours of the image and the mask agree."""
    _, mask = example(SHAPES[shape])
    x = mask[None].float()
    moves = [Affine(image_interpolation="nearest", translation=2.0), Flip(axes=(0, 1), flip_probability=0.7)]
    moves += [ElasticDeformation(max_displacement=0.5, image_interpolation="nearest")]
    function = build_torchio_function(moves, flat=x.dim() == 3)
    views = [compute_view(function, x, mask, seed) for seed in range(5)]
    assert all(torch.equal(image[0].long(), labels) for image, labels in views)
    assert any(not torch.equal(labels, mask) for _, labels in views)


def test_axis_0_is_left_to_right_axis_1_up_and_down_and_axis_2_through_the_slices():
    x, mask = example((1, 4, 6, 8))
    for axis, side in ((0, -1), (1, -2), (2, -3)):
        function = build_torchio_function([Flip(axes=(axis,), flip_probability=1.0)], flat=False)
        image, labels = compute_view(function, x, mask, 0)
        assert torch.equal(image, x.flip(side)) and torch.equal(labels, mask.flip(side))


def test_a_slice_stays_in_its_plane_whatever_is_drawn():
    """Out of it, it would be gone: nothing but the value for what comes from outside."""
    x = 1 + example(SHAPES["slice"])[0]
    function = build_torchio_function([Affine(translation=3.0, degrees=40.0, default_pad_value=0.0)], flat=True)
    for seed in range(10):
        view, _ = compute_view(function, x, torch.tensor(0), seed)
        assert float((view > 0.5).float().mean()) > 0.5


def test_a_volume_turns_in_the_plane_alone_where_only_the_third_axis_has_a_range():
    """Where each slice is of one value, turning in the plane moves nothing, and turning about all axes does."""
    x = torch.arange(1.0, 6.0)[None, :, None, None].expand(1, 5, 24, 24)
    middle = (slice(None), slice(None), slice(8, 16), slice(8, 16))
    for degrees, is_flat in (((0.0, 0.0, 0.0, 0.0, -180.0, 180.0), True), (40.0, False)):
        function = build_torchio_function([Affine(scales=0.0, degrees=degrees)], flat=False, spacing=(1.0, 1.0, 3.0))
        views = [compute_view(function, x, torch.tensor(0), seed)[0] for seed in range(5)]
        assert all(torch.allclose(view[middle], x[middle], atol=1e-4) for view in views) == is_flat


def test_a_turn_in_the_plane_by_a_right_angle_is_that_of_every_slice_whatever_their_distance():
    x = example((1, 5, 24, 24))[0]
    function = build_torchio_function(
        [Affine(scales=0.0, degrees=(0.0, 0.0, 0.0, 0.0, 90.0, 90.0))], flat=False, spacing=(0.7, 0.7, 3.0)
    )
    view, _ = compute_view(function, x, torch.tensor(0), 0)
    turned = [torch.rot90(x, times, (2, 3)) for times in (1, 3)]
    assert not torch.allclose(x, turned[0], atol=1e-3)
    assert any(torch.allclose(view[..., 1:-1, 1:-1], each[..., 1:-1, 1:-1], atol=1e-3) for each in turned)


CHAIN = (BiasField(p=0.5), Gamma(p=0.5), Noise(std=0.1), Flip(), Affine(p=0.5))


@settings(deadline=None, max_examples=10)
@given(st.permutations(range(5)), st.integers(1, 5), st.integers(0, 2**30))
def test_a_view_follows_from_its_example_and_its_seed_whatever_the_batch_and_the_order(order, size, start):
    x = torch.stack([example(SHAPES["neighbours"], seed)[0] for seed in range(5)])
    y = torch.arange(5)
    function = build_torchio_function(CHAIN, flat=True)
    augment = build_views(function)
    whole, labels = augment(x, y, torch.Generator().manual_seed(start))
    again, parts = torch.Generator().manual_seed(start), []
    for part in x.split(size):
        parts.append(augment(part, y[: len(part)], again)[0])
    assert torch.equal(torch.cat(parts), whole) and torch.equal(labels, y)
    seeds = torch.randint(2**62, (5,), generator=torch.Generator().manual_seed(start)).tolist()
    for row in order:
        assert torch.equal(compute_view(function, x[row], y[row], seeds[row])[0], whole[row])


def test_views_come_before_what_the_batch_gets():
    x, mask = (part[None] for part in example(SHAPES["slice"]))
    twice = build_views(build_torchio_function([Flip(flip_probability=1.0)], flat=True), after=flip_images)
    seen = set()
    for seed in range(8):
        image, labels = twice(x, mask, torch.Generator().manual_seed(seed))
        seen.add("as it was" if torch.equal(image, x) else "mirrored" if torch.equal(image, x.flip(-1)) else "else")
        assert torch.equal(labels, mask if torch.equal(image, x) else mask.flip(-1))
    assert seen == {"as it was", "mirrored"}


def make_rows(first: int = 0) -> Rows:
    x = torch.stack([example((1, 8, 8), first + seed)[0] for seed in range(6)])
    return Rows(x, torch.arange(6) % 2, torch.arange(6) // 2)


def test_only_training_draws_get_views():
    splits = {"train": make_rows(), "validation": make_rows(10), "test": make_rows(20)}
    access = open_access(splits, batch=6, seed=0, augment=build_views(build_torchio_function([Noise()], flat=True)))
    drawn = access.draw().x
    assert not any(torch.equal(row, other) for row in drawn for other in splits["train"].x)
    assert torch.equal(access.draw(full=True).x, make_rows().x)
    assert torch.equal(access.splits["validation"].x, make_rows(10).x)


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(64, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).double() @ self.w


def test_privately_views_are_of_one_patient_and_before_the_clip():
    """Whatever TorchIO makes of a patient, what leaves moves by the clip at most; and views are made of each alone."""
    seen: list[Tensor] = []
    strong = build_views(build_torchio_function([Noise(std=1000.0), Spike(intensity=10.0)], flat=True))

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        seen.append(x.clone())
        return strong(x, y, generator)

    rows = make_rows()
    protection = Protection(noise=0.0, clip=0.5, sampling=1.0, views=3)
    access = open_private({"train": rows}, protection, augment=augment, sizes={"train": 1})
    total = access.gradient(Weighted(), lambda forward, batch: forward(batch.x), access.draw()).gradient["w"]
    assert 0 < float(total.norm()) <= 3 * 0.5 * (1 + 1e-6)
    assert [len(views) for views in seen] == [3, 3, 3]
    for patient, views in enumerate(seen):
        own = {bytes(row.numpy()) for row in rows.x[2 * patient : 2 * patient + 2]}
        assert {bytes(row.numpy()) for row in views} <= own
    one_patient = Rows(rows.x[:2], rows.y[:2], rows.patient[:2])
    access = open_private({"train": one_patient}, protection, augment=strong, sizes={"train": 1})
    alone = access.gradient(Weighted(), lambda forward, batch: forward(batch.x), access.draw()).gradient["w"]
    assert float(alone.norm()) == pytest.approx(0.5, rel=1e-6)


# Settings.


def test_each_class_is_a_transform_of_torchio_with_its_arguments_and_defaults():
    import inspect

    for kind in KINDS:
        theirs = inspect.signature(getattr(torchio, f"Random{kind.__name__}").__init__).parameters
        view = kind()
        for field in fields(view):
            if field.name in ("name", "p"):
                continue
            ours, default = getattr(view, field.name), theirs[field.name].default
            assert ours == ((default,) if field.name == "axes" and isinstance(default, int) else default), field.name
        assert view.name == "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).strip("_")


spans = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(lambda ends: tuple(sorted(ends)))
VIEWS = st.one_of(
    st.builds(BiasField, coefficients=st.floats(0, 1) | spans, order=st.integers(0, 5)),
    st.builds(Gamma, log_gamma=st.floats(0, 2) | spans),
    st.builds(Noise, mean=spans, std=st.floats(0, 1000)),
    st.builds(Blur, std=st.floats(0, 100) | spans),
    st.builds(Motion, degrees=st.floats(0, 180), translation=st.floats(0, 100), num_transforms=st.integers(1, 4)),
    st.builds(Ghosting, num_ghosts=st.integers(0, 100), intensity=st.floats(0, 10), restore=st.none() | spans),
    st.builds(Spike, num_spikes=st.integers(0, 100), intensity=st.floats(0, 10)),
    st.builds(Anisotropy, downsampling=st.floats(1, 10) | st.just((10.0, 10.0))),
    st.builds(
        Affine,
        scales=st.floats(0, 0.9) | st.just((0.1, 10.0)),
        degrees=st.floats(0, 180) | st.tuples(spans, spans, spans).map(lambda each: each[0] + each[1] + each[2]),
    ),
    st.builds(
        ElasticDeformation,
        num_control_points=st.integers(5, 8),
        max_displacement=st.floats(0, 1000),
        locked_borders=st.sampled_from([0, 1, 2]),
    ),
    st.builds(Flip, axes=st.sampled_from([(0,), (1, 0), (2,)]), flip_probability=st.floats(0, 1)),
)


@settings(deadline=None, max_examples=60)
@given(VIEWS, st.sampled_from([(1, 8, 8), (2, 9, 13), (1, 4, 8, 8)]), st.integers(0, 2**60))
def test_whatever_settings_allow_torchio_takes_and_the_view_is_finite(view, shape, seed):
    x, mask = example(shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of images that fold, which `--check` refuses
        image, labels = compute_view(build_torchio_function([view], flat=len(shape) == 3), 8 * x - 4, mask, seed)
    assert image.shape == x.shape and bool(image.isfinite().all()) and labels.shape == mask.shape


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        (BiasField, {"coefficients": 2.0}, r"coefficients must be a number in \[0, 1\], or two in \[-1, 1\]"),
        (BiasField, {"order": 9, "p": 2.0}, r"order must be in \[0, 5\], found 9; p must be in \[0, 1\], found 2"),
        (Gamma, {"log_gamma": (0.3, -0.3)}, "log_gamma must be .* the lower first, found"),
        (Noise, {"std": -0.1}, r"std must be a number in \[0, 1000\]"),
        (Blur, {"std": (-1.0, 2.0)}, r"or two in \[0, 100\]"),
        (Motion, {"num_transforms": 0, "degrees": 400.0}, "degrees must be .*; num_transforms must be"),
        (Ghosting, {"axes": ()}, "axes must be one to three of 0, 1, 2, each once"),
        (Ghosting, {"restore": 1.5}, r"restore must be a number in \[0, 1\]"),
        (Spike, {"num_spikes": -1}, "num_spikes must be"),
        (Anisotropy, {"downsampling": 0.5, "axes": (1, 1)}, "downsampling must be .*; axes must be"),
        (Affine, {"degrees": (0.0, 0.0, 5.0, -5.0, 0.0, 0.0)}, "degrees must be .* the lower first"),
        (Affine, {"scales": 1.0}, r"scales must be a number in \[0, 0.9\]"),
        (ElasticDeformation, {"num_control_points": 4}, r"in \[5, 100\] with locked_borders: 2"),
        (ElasticDeformation, {"max_displacement": -1.0}, "max_displacement must be in"),
        (Flip, {"flip_probability": 1.2}, "flip_probability must be in"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_wrong_arguments_are_told_all_at_once_with_what_is_allowed(kind, wrong, words):
    with pytest.raises(SettingsError, match=words):
        kind(**wrong)


@settings(deadline=None, max_examples=20)
@given(
    st.floats(0.5, 1.5),
    st.integers(5, 9),
    st.sampled_from([((1, 32, 20), (2.0, 2.0, 1.0)), ((1, 8, 16, 20), (1.5, 1.5, 3.0))]),
)
def test_a_deformation_is_refused_where_torchio_would_say_that_the_image_folds(factor, points, images):
    inputs, spacing = images
    sides = (1, *inputs[1:])[-3:][::-1]
    bounds = [side * length / (points - 3) / 2 for side, length in zip(sides, spacing, strict=True)]
    if abs(factor - 1) < 1e-6:
        return
    reaches = (factor * bounds[0], factor * bounds[1], factor * bounds[2])
    view = ElasticDeformation(num_control_points=points, max_displacement=reaches)
    problems = find_view_problems([view], inputs, spacing)
    function = build_torchio_function([view], flat=len(inputs) == 3, spacing=spacing)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        function(torch.zeros(inputs))
    folds = any("folding may occur" in str(each.message) for each in told)
    assert bool(problems) == folds == (factor > 1)
    assert find_view_problems([view], inputs, None) == []


@pytest.mark.parametrize("inputs", [(4,), (2, 30), (8,)])
def test_what_is_no_image_is_refused_in_every_method_that_draws_batches(inputs):
    task, work = Task(Mlp(), inputs, 2), Work(torchio=(Noise(), Blur()))
    (problem,) = find_work_problems(FedAvg(), task, work)
    assert problem.path == "torchio" and f"examples are {list(inputs)}" in problem.message
    assert "tables, cached features and the vectors of prompts" in problem.message
    assert find_work_problems(FedSGD(), task, work) == [], "a method without batches draws no views"
    assert find_work_problems(FedAvg(), Task(Cnn(), (1, 32, 32), 2), work) == []


def test_axes_through_one_slice_are_refused():
    views = (Noise(), Ghosting(axes=(2,)), Anisotropy(axes=(2, 0)), Flip(axes=(2,)))
    found = find_view_problems(views, (1, 32, 32), None)
    assert [problem.where for problem in found] == [(1, "axes"), (3, "axes")]
    assert "an example is one slice" in found[0].message
    assert find_view_problems(views, (1, 16, 32, 32), None) == []


def test_torchio_is_not_imported_where_it_is_not_used():
    code = "import sys; import federation.descent, federation.torchio_views as v; v.Noise(); "
    code += "v.find_view_problems([v.Blur()], (1, 8, 8), None); print('torchio' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
