"""The planned network against MONAI's own DynUNet and slow sums, patches, windows, and every method of masks on it."""

from __future__ import annotations

import itertools
import math
import random
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.inferers.inferer import SlidingWindowInferer
from monai.networks.nets.dynunet import DynUNet
from torch.nn import functional

import methods
from consilium.testing import testbed
from federation.algorithm import find_class_needs, find_work_problems
from federation.calibration import calibrate_model
from federation.descent import Site, Work
from federation.matching import measure_channels, order_norms, weigh_rows
from federation.models.planned import Planned
from federation.parameters import loaded
from federation.patches import build_patch_views
from federation.rehearsal import initial_parameters, rehearse_events, zero_patients
from federation.rounds import Schedule
from federation.task import IGNORED, Output, Task, overlap_loss
from federation.windows import cut_windows
from privacy.dp.access import Batch, Rows, open_access
from privacy.dp.events import compose_events
from privacy.dp.modules import find_unfit_parts
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

FLAT = Planned(patch=(8, 8), kernels=((3, 3),) * 4, strides=((1, 1), (2, 2), (2, 2), (1, 2)), filters=(8, 8, 16, 16))
DEEP = Planned(
    patch=(4, 8, 8),
    kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
    strides=((1, 1, 1), (1, 2, 2), (2, 2, 2), (1, 2, 2)),
    filters=(8, 16, 24, 32),
)
PLANS = {"2-D": (FLAT, (2, 16, 24)), "3-D": (DEEP, (1, 6, 16, 24))}
QUIET = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, counts_noise=0.0)


def task_of(plan: Planned, inputs: tuple[int, ...], classes: int = 3) -> Task:
    return Task(plan, inputs, classes, "segmentation")


def seeded(task: Task) -> torch.nn.Module:
    torch.manual_seed(0)
    network = task.network().double()
    with torch.no_grad():
        for p in network.parameters():  # norms too, or what they do would not show
            p.add_(0.1 * torch.randn_like(p))
    return network


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("norm", ["instance", "batch", "group"])
def test_it_computes_what_monais_network_computes_with_the_same_weights(plan, norm):
    axes = len(plan[0].patch)
    same = ((3,) * axes,) * 4  # MONAI's upward path has the kernels of the stage below, nnU-Net's and ours of its own
    how, inputs = replace(plan[0], norm=norm, kernels=same), plan[1]
    ours = seeded(task_of(how, inputs))
    theirs = DynUNet(
        spatial_dims=axes,
        in_channels=inputs[0],
        out_channels=3,
        kernel_size=[*how.kernels],
        strides=[*how.strides],
        upsample_kernel_size=[*how.strides[1:]],
        filters=[*how.filters],
        norm_name=("group", {"num_groups": 8}) if norm == "group" else (norm, {"affine": True}),
    ).double()
    stages = len(how.filters)
    names = {"stem.": "input_block.", "head.": "output_block.conv.conv."}
    names |= {f"blocks.{k}.": f"downsamples.{k}." for k in range(stages - 2)}
    names |= {f"blocks.{stages - 2}.": "bottleneck."}
    names |= {f"blocks.{stages - 1 + k}.up.": f"upsamples.{k}." for k in range(stages - 1)}
    values = {
        theirs_at + name.removeprefix(ours_at): value
        for name, value in ours.state_dict().items()
        for ours_at, theirs_at in names.items()
        if name.startswith(ours_at)
    }
    missing, unexpected = theirs.load_state_dict(values, strict=False)
    assert not unexpected and all(name.startswith("skip_layers") for name in missing)
    x = torch.randn(2, inputs[0], *how.patch, dtype=torch.float64)
    assert torch.allclose(ours.train()(x).logits, theirs.train()(x), atol=1e-12)
    assert torch.allclose(ours.eval()(x).logits, theirs.eval()(x), atol=1e-12)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_weights_begin_as_nnunets_do(plan):
    """nnU-Net: normal numbers with the variance 2 / (1.0001 fan-in) of He et al. (ICCV 2015), and biases of 0."""
    torch.manual_seed(0)
    module = replace(plan[0], filters=(32, 32, 32, 32)).build(inputs=plan[1], classes=3)
    convolutions = [part for part in module.modules() if hasattr(part, "kernel_size")]
    assert len(convolutions) == 2 * 4 + 3 * 3 + 1 + 1  # a stage down, one up, supervised in the middle, the head
    for part in convolutions:
        weight = part.weight.detach()
        expected = math.sqrt(2 / (1 + 0.01**2) / weight[0].numel())
        error = 5 * expected / math.sqrt(2 * weight.numel())  # of a deviation, five times its own
        assert abs(float(weight.std()) - expected) < error and float(weight.abs().max()) > 1.8 * expected
        assert part.bias is None or not part.bias.any()


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_images_are_predicted_and_scored_by_monais_windows_and_nothing_larger_passes(plan):
    how, inputs = plan
    task = task_of(how, inputs)
    network = seeded(task).eval()
    x, y = torch.randn(2, *inputs, dtype=torch.float64), torch.randint(0, 3, (2, *inputs[1:]))
    windows = SlidingWindowInferer(how.patch, sw_batch_size=1, overlap=0.5, mode="gaussian")
    with torch.no_grad():
        expected = windows(x, lambda part: network(part).logits.softmax(dim=1))
        logits = windows(x, lambda part: network(part).logits)
    sizes = set()
    network.register_forward_pre_hook(lambda _, inputs: sizes.add(tuple(inputs[0].shape[2:])))
    assert torch.allclose(task.probabilities(network, x), expected, atol=1e-10)
    with torch.no_grad():
        losses = task.validation(network, Batch(x, y))
    assert torch.allclose(losses, overlap_loss(Output(logits, logits), y), atol=1e-10)
    assert sizes == {how.patch}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_windows_cover_every_voxel_and_are_as_few_as_can_be(data):
    axes = data.draw(st.integers(2, 3))
    window = [data.draw(st.integers(1, 5)) for _ in range(axes)]
    sides = [data.draw(st.integers(side, 3 * side)) for side in window]
    n = data.draw(st.integers(1, 3))
    x = torch.arange(n * math.prod(sides)).reshape(n, 1, *sides)
    pieces = cut_windows(x, window)
    each = math.prod(-(-side // length) for side, length in zip(sides, window, strict=True))
    assert pieces.shape == (n * each, 1, *window)
    by_image = pieces.reshape(n, -1)
    for image, its_pieces in zip(x, by_image, strict=True):
        assert set(its_pieces.tolist()) == set(image.flatten().tolist())
    assert cut_windows(x, None) is x


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_norms_are_adapted_and_matched_by_patches_of_each_patient(plan):
    how, inputs = replace(plan[0], norm="batch"), plan[1]
    task = task_of(how, inputs)
    network = seeded(task).float().eval()
    rows = Rows(
        torch.randn(3, *inputs),
        torch.randint(0, 3, (3, *inputs[1:])),
        torch.tensor([0, 1, 1]),
    )
    pieces = task.cut_rows(rows)
    each = len(pieces.x) // 3
    assert each > 1 and pieces.patient.tolist() == [0] * each + [1] * 2 * each
    for number, (image, mask) in enumerate(zip(rows.x, rows.y, strict=True)):
        at = slice(number * each, (number + 1) * each)
        both = torch.stack([pieces.x[at, 0].flatten(), pieces.y[at].flatten().float()])
        pairs = torch.stack([image[0].flatten(), mask.flatten().float()])
        assert torch.equal(torch.unique(both, dim=1), torch.unique(pairs, dim=1)), "each voxel with its own class"
    sizes = set()
    handle = network.register_forward_pre_hook(lambda _, inputs: sizes.add(tuple(inputs[0].shape[2:])))
    adapted = calibrate_model(task, network, rows, "adabn").module
    norms = order_norms(network, task.trained_inputs)
    moments = measure_channels(network, pieces.x, weigh_rows(pieces.patient), norms)
    matched = calibrate_model(task, network, rows, "matched", moments=moments).module
    handle.remove()
    assert sizes == {how.patch}
    assert not torch.equal(adapted.stem.norm1.running_mean, network.stem.norm1.running_mean)
    with torch.no_grad():  # the moments are its own, so nothing is left to match
        assert torch.allclose(matched(pieces.x).logits, network(pieces.x).logits, atol=1e-4)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_mirrored_predictions_do_not_depend_on_which_way_the_image_lies(plan):
    how, inputs = replace(plan[0], mirror=True), plan[1]
    task = task_of(how, inputs)
    mirrored, plain = (seeded(replace(task, model=replace(how, mirror=mirror))) for mirror in (True, False))
    x = torch.randn(1, *inputs, dtype=torch.float64)
    for axis in range(2, x.dim()):
        upright, flipped = (task.probabilities(mirrored, part) for part in (x, x.flip(axis)))
        assert torch.allclose(upright, flipped.flip(axis), atol=1e-9)
        left, right = (task.probabilities(plain, part) for part in (x, x.flip(axis)))
        assert not torch.allclose(left, right.flip(axis), atol=1e-3)


def test_the_loss_is_the_weighted_mean_over_resolutions():
    network, y = seeded(task_of(*PLANS["3-D"])), torch.randint(0, 3, (2, *DEEP.patch))
    output = network(torch.randn(2, 1, *DEEP.patch, dtype=torch.float64))
    assert [tuple(logits.shape[2:]) for logits in output.deep] == [(4, 4, 4)], "neither the first nor the lowest"
    small = y[:, :, 1::2, 1::2]
    expected = (overlap_loss(output, y) + overlap_loss(Output(*output.deep * 2), small) / 2) / 1.5
    assert torch.allclose(DEEP.losses(output, y), expected, atol=1e-12)
    five = Planned(patch=(32, 32), kernels=((3, 3),) * 5, strides=((1, 1), *((2, 2),) * 4), filters=(8,) * 5)
    assert len(five.build(inputs=(1, 32, 32), classes=2)(torch.zeros(1, 1, 32, 32)).deep) == 2
    bare = replace(DEEP, deep_supervision=False)
    names = {name for name, _ in bare.build(inputs=PLANS["3-D"][1], classes=3).named_parameters()}
    assert not any("supervised" in name for name in names)
    assert bare.build(inputs=PLANS["3-D"][1], classes=3)(torch.zeros(1, 1, *DEEP.patch)).deep == ()


@settings(max_examples=40, deadline=None)
@given(
    sides=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=2, max_size=3),
    foreground=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    filled=st.booleans(),
)
def test_a_patch_is_a_part_of_the_image_with_its_own_mask(sides, foreground, seed, filled):
    patch, whole = tuple(a for a, _ in sides), tuple(a + b for a, b in sides)
    number = torch.arange(1, 1 + whole[0] * (whole[1] if len(whole) == 2 else whole[1] * whole[2])).view(whole)
    x, y = torch.stack([number, -number])[None].double(), (number[None] if filled else torch.zeros(1, *whole).long())
    cut, mask = build_patch_views(patch, foreground, 3)(x, y, torch.Generator().manual_seed(seed))
    assert cut.shape == (1, 2, *patch) and mask.shape == (1, *patch)
    assert torch.equal(cut[0, 0], -cut[0, 1])
    corner = (number == cut[0, 0].flatten()[0].long()).nonzero()[0].tolist()
    place = tuple(slice(at, at + length) for at, length in zip(corner, patch, strict=True))
    assert torch.equal(cut[0, 0].long(), number[place]) and torch.equal(mask[0], y[0][place])


def slow_corner(mask, patch, foreground, classes, generator) -> list[int]:
    """Voxel by voxel, in Python."""
    rooms = [side - length for side, length in zip(mask.shape, patch, strict=True)]
    which, label, voxel, *places = torch.rand(3 + mask.dim(), generator=generator, dtype=torch.float64).tolist()
    every = [*itertools.product(*map(range, mask.shape))]
    voxels = [at for at in every if mask[at] != IGNORED]
    present = [number for number in range(1, classes) if any(mask[at] == number for at in every)]
    if which < foreground and present:
        voxels = [at for at in every if mask[at] == present[int(label * len(present))]]
    elif len(voxels) in (0, len(every)):
        return [int(place * (room + 1)) for place, room in zip(places, rooms, strict=True)]
    middle = [at - length // 2 for at, length in zip(voxels[int(voxel * len(voxels))], patch, strict=True)]
    return [min(max(0, at), room) for at, room in zip(middle, rooms, strict=True)]


@settings(max_examples=100, deadline=None)
@given(
    sides=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=2, max_size=3),
    foreground=st.sampled_from([0.0, 0.4, 1.0]),
    classes=st.integers(2, 4),
    ignored=st.sampled_from([0.0, 0.5, 0.9]),
    dtype=st.sampled_from([torch.uint8, torch.int64]),
    seed=st.integers(0, 2**32),
)
def test_patches_lie_where_a_search_voxel_by_voxel_finds_them(sides, foreground, classes, ignored, dtype, seed):
    """Which is sought on the device, without reading a mask. Some masks are empty, lack a class or ignore all."""
    patch, whole = tuple(a for a, _ in sides), tuple(a + b for a, b in sides)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (5, *whole), generator=generator)
    y = y.masked_fill(torch.rand(y.shape, generator=generator) < ignored, IGNORED)
    y[0], y[1], y[2] = 0, IGNORED, y[2].masked_fill(y[2] == 1, 0)
    y = y.to(dtype)
    places = torch.arange(y[0].numel()).view(1, 1, *whole).expand(len(y), 1, *whole)
    cut, _ = build_patch_views(patch, foreground, classes)(places, y, torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(seed)
    corners = [slow_corner(mask, patch, foreground, classes, generator) for mask in y]
    assert [int(part.flatten()[0]) for part in cut] == [int(places[0, 0][tuple(corner)]) for corner in corners]


@pytest.mark.chance
def test_patches_about_foreground_see_small_and_large_structures_equally_often():
    y = torch.zeros(1, 40, 40, dtype=torch.long)
    y[0, 5, 5], y[0, 20:36, 20:36] = 1, 2
    generator, draws = torch.Generator().manual_seed(0), 3000
    x = torch.zeros(1, 1, 40, 40)

    def share(foreground: float, label: int) -> float:
        views = build_patch_views((5, 5), foreground, 3)
        return sum(label in views(x, y, generator)[1] for _ in range(draws)) / draws

    assert share(1.0, 1) == pytest.approx(0.5, abs=0.05) and share(1.0, 2) == pytest.approx(0.5, abs=0.05)
    by_place = 25 / 36**2
    assert share(0.0, 1) == pytest.approx(by_place, abs=0.015)
    assert share(0.4, 1) == pytest.approx(0.4 * 0.5 + 0.6 * by_place, abs=0.05)


def scenes(seed: int, side: int, depth: int | None = None) -> dict[str, Rows]:
    """Four patients in training and four in validation; the foreground is brighter."""
    generator = torch.Generator().manual_seed(seed)
    shape = (4, side, side) if depth is None else (4, depth, side, side)

    def rows() -> Rows:
        y = torch.randint(0, 3, shape, generator=generator)
        noise = torch.randn(4, 1, *shape[1:], generator=generator)
        return Rows(y[:, None] + 0.3 * noise, y, torch.arange(4))

    return {"train": rows(), "validation": rows()}


VOLUMES = task_of(replace(DEEP, norm="group", filters=(8, 8, 8, 8)), (1, 6, 8, 16))
PICTURES = task_of(replace(FLAT, norm="batch", filters=(8, 8, 8, 8)), (1, 16, 16))
BOTH = {"pictures": PICTURES, "volumes": VOLUMES}


PLAIN = Work(lr=0.02, batch=2, foreground=0.5)
DESCENT = Work(optimizer="sgd", lr=0.02, batch=2, foreground=0.5)
UNFIT = {"local_ridge", "local_svm", "fedsgd", "fedsld", "dp_head", "moments"}
"""Methods that refuse it: they learn from rows of features, a linear head, or one label an example."""


@pytest.mark.parametrize(
    ("algorithm", "work"),
    [pytest.param(one, work, id=one.name) for one in methods.ALL for work in [methods.work_of(one, PLAIN, DESCENT)]],
)
@pytest.mark.parametrize("task", BOTH.values(), ids=BOTH)
def test_every_method_of_masks_is_trained_on_patches_and_predicts_whole_images(algorithm, work, task):
    needs = algorithm.name in methods.ON_PROMPTS or find_class_needs(algorithm, task)
    if needs or algorithm.complaints(algorithm.network(task), work, False):
        turns = {"fedavg_turns"} if task is VOLUMES else set()  # it turns square images
        assert needs or algorithm.name in UNFIT | turns
        return
    depth = None if task is PICTURES else 6
    rows = {name: scenes(seed, 16, depth) for seed, name in enumerate("ab")}
    if task is VOLUMES:
        rows = {
            name: {split: Rows(r.x[:, :, :, :8], r.y[:, :, :8], r.patient) for split, r in splits.items()}
            for name, splits in rows.items()
        }
    crew = testbed.make_federation(algorithm, rows, task=task, work=work)
    testbed.train(algorithm, crew, task=task, work=work, schedule=Schedule(rounds=2))
    for name in rows:
        network = loaded(algorithm.network(task), testbed.newest_model(crew[name]))
        probabilities = task.probabilities(network, rows[name]["train"].x)
        assert probabilities.shape == (4, 3, *task.inputs[1:]) and torch.isfinite(probabilities).all()


@pytest.mark.parametrize(
    "algorithm",
    [one for one in methods.private(VOLUMES) if one.name in {*methods.SHAPED, "fedavg", "fedper", "ditto"}],
    ids=lambda one: one.name,
)
def test_private_training_takes_patches_and_costs_what_was_planned(algorithm):
    work, protection = Work(lr=0.02, foreground=0.5), replace(QUIET, noise=1.0)
    rows = {k: Rows(r.x[:, :, :, :8], r.y[:, :, :8], r.patient) for k, r in scenes(0, 16, 6).items()}
    crew = testbed.make_federation(algorithm, {"a": rows, "b": rows}, task=VOLUMES, work=work)
    crew = {name: replace(hospital, protection=protection) for name, hospital in crew.items()}
    testbed.train(algorithm, crew, task=VOLUMES, work=work, schedule=Schedule(rounds=1))
    plan = rehearse_events(algorithm, VOLUMES, work, initial_parameters(algorithm, VOLUMES, seed=0), protection)
    wanted = compose_events([plan.introduction, plan.training, plan.validation])
    assert compose_events(crew["a"].events) == wanted


@pytest.mark.parametrize("norm", ["instance", "group"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_patients_gradient_is_that_of_the_patient_alone(plan, norm):
    how = replace(plan[0], norm=norm)
    task = task_of(how, plan[1])
    module = seeded(task).train()
    assert not find_unfit_parts(module)
    x, y = torch.rand(3, 2, plan[1][0], *how.patch).double(), torch.randint(0, 3, (3, 2, *how.patch))
    views = [Batch(x[patient], y[patient]) for patient in range(3)]
    for patient, batch in zip(patient_gradients(module, task.objective, views), views, strict=True):
        expected = torch.autograd.grad(task.objective(module, batch).mean(), list(module.parameters()))
        for (name, _), gradient in zip(module.named_parameters(), expected, strict=True):
            assert torch.allclose(patient[name], gradient, atol=1e-10), name


def test_private_training_draws_patches_of_each_patient_by_itself():
    task, rows = VOLUMES, {k: Rows(r.x[:, :, :, :8], r.y[:, :, :8], r.patient) for k, r in scenes(0, 16, 6).items()}
    shapes = []
    views = build_patch_views(task.patch, 0.5, task.classes)

    def watched(x, y, generator):
        x, y = views(x, y, generator)
        shapes.append(tuple(x.shape))
        return x, y

    access = open_private(rows, replace(QUIET, views=3), augment=watched, source=random.Random(0).randbytes)
    access.gradient(task.network(), task.objective, access.draw())
    assert shapes == [(3, 1, *task.patch)] * 4


def test_rehearsals_see_patches_and_not_whole_volumes():
    large = task_of(DEEP, (1, 64, 512, 512))
    rows = zero_patients(large)["train"]
    assert rows.x.shape == (2, 1, *DEEP.patch) and rows.y.shape == (2, *DEEP.patch)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"patch": (8,)}, "must be (D, H, W) or (H, W)"),
        ({"patch": (8, 12)}, "must be multiples of what strides halve, [4, 8], found [8, 12]"),
        ({"strides": ((2, 2), (2, 2), (2, 2), (1, 2))}, "must begin with 1 along each axis"),
        ({"strides": ((1, 1), (3, 2), (2, 2), (1, 2))}, "must have 2 numbers of 1, 2 for each of 4 stages"),
        ({"kernels": ((3, 3),) * 3}, "must have 2 numbers of 1, 3, 5, 7 for each of 4 stages"),
        ({"filters": (8,)}, "must have 2 to 10 stages"),
        ({"norm": "group", "filters": (8, 8, 12, 16)}, "must be multiples of 8 for norm: group"),
        ({"patch": (4, 8)}, "must leave more than one voxel at the lowest stage, found [4, 8]"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changed, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        replace(FLAT, **changed)


@pytest.mark.parametrize("inputs", [(1, 4, 16), (1, 16, 20), (1, 8, 16, 16)])
def test_images_that_no_patch_fits_into_are_refused(inputs):
    with pytest.raises(ValueError, match=r"at least as large as a patch|needs 2 axes"):
        FLAT.build(inputs=inputs, classes=2)


def test_foreground_is_for_models_that_are_trained_on_patches():
    work = Work(foreground=0.3)
    whole = find_work_problems(methods.ALL[0], testbed.dense_task(), work)
    assert "is for patches" in whole[0].message and not find_work_problems(methods.ALL[0], PICTURES, work)


def test_nesterovs_momentum_is_torchs():
    task, rows = testbed.make_task(), testbed.make_table(0)
    work = Work(optimizer="sgd", lr=0.1, momentum=0.9, nesterov=True, batch=8, epochs=None, steps=5)
    torch.manual_seed(0)
    ours = task.network()
    theirs = task.network()
    theirs.load_state_dict(ours.state_dict())
    Site("a", task, work, open_access(rows, batch=8, seed=3)).descend(ours, task.objective)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    access = open_access(rows, batch=8, seed=3)
    theirs.train()
    for _ in range(5):
        draw = access.draw()
        optimizer.zero_grad()
        functional.cross_entropy(theirs(draw.x).logits, draw.y).backward()
        optimizer.step()
    for left, right in itertools.zip_longest(ours.parameters(), theirs.parameters()):
        assert torch.allclose(left, right, atol=1e-6)
    with pytest.raises(ValueError, match="needs a momentum above 0"):
        Work(optimizer="sgd", nesterov=True)
