"""Segmentation: the U-Net, its loss, masks under augmentation, and masks with both kinds of data access."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.losses.dice import DiceLoss
from monai.networks.utils import one_hot
from torch import nn
from torch.nn import functional

import methods
from consilium.testing import testbed
from federation.augmentation import AUGMENTATIONS, apply_affine, apply_elastic, flip_images
from federation.calibration import calibrate_model
from federation.descent import Site, Work
from federation.finetuning import Tuning, fine_tuned
from federation.models.cnn import Cnn
from federation.models.unet import UNet
from federation.rehearsal import initial_parameters, rehearse_events
from federation.rounds import Schedule
from federation.task import Output, Task, cross_entropy, dice_loss, overlap_loss, pool_features
from personalize.cusfl import CusFL
from personalize.fedrod import FedRod
from personalize.fenda import Fenda
from privacy.dp.access import Batch, Rows, open_access
from privacy.dp.events import compose_events
from privacy.dp.modules import find_unfit_parts
from privacy.dp.persample import patient_gradients
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

MOVES = [(name, augment) for name, augment in AUGMENTATIONS.items() if augment is not None]
QUIET = Protection(clip=1e2, sampling=1.0, views=1, noise=0.0, validation_noise=0.0, loss_bound=1e6, counts_noise=0.0)


def scattered(*shape: int, classes: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def alone(splits: dict[str, Rows]) -> dict[str, Rows]:
    """In double precision, every row a patient's only one."""
    return {split: Rows(r.x.double(), r.y, torch.arange(len(r.y))) for split, r in splits.items()}


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(
    ("inputs", "levels"), [((1, 16, 16), 4), ((3, 16, 24), 3), ((2, 4, 8, 12), 2), ((1, 6, 4, 2), 1)]
)
def test_a_u_net_gives_a_class_to_every_pixel_or_voxel(inputs, levels, norm):
    task = Task(UNet(width=4, levels=levels, norm=norm), inputs, 5, "segmentation")
    network = task.network()
    output = network(torch.rand(3, *inputs))
    assert output.logits.shape == (3, 5, *inputs[1:]) and output.features.shape == (3, 4, *inputs[1:])
    assert torch.equal(network.head(output.features), output.logits)
    names = [name for name, _ in network.named_children()]
    assert names == ["stem", "blocks", "head"] and len(network.blocks) == 2 * levels
    assert all(p.grad is not None for p in _after_one_step(task, network))
    assert bool(find_unfit_parts(network)) == (norm == "batch")
    for n in (0, 2):
        sure = task.probabilities(network, torch.rand(n, *inputs))
        assert sure.shape == (n, 5, *inputs[1:])
        assert torch.allclose(sure.sum(dim=1), torch.ones(()), atol=1e-5)


def _after_one_step(task: Task, network: nn.Module) -> list[nn.Parameter]:
    y = scattered(3, *task.spatial, classes=task.classes)
    task.objective(network, Batch(torch.rand(3, *task.inputs), y)).mean().backward()
    return list(network.parameters())


def test_channels_double_with_every_level_and_no_group_is_a_single_channel():
    network = UNet(width=12, levels=2, norm="group").build(inputs=(1, 8, 8), classes=2)
    norms = [part for part in network.modules() if isinstance(part, nn.GroupNorm)]
    assert [part.num_channels for part in norms] == [12, 12, 24, 24, 48, 48, 24, 24, 12, 12]
    assert all(part.num_channels // part.num_groups > 1 and part.num_groups > 1 for part in norms)


@pytest.mark.parametrize("inputs", [(1, 20, 16), (1, 16, 24, 4), (1, 0, 16)])
def test_sides_that_cannot_be_halved_often_enough_are_refused_by_name(inputs):
    with pytest.raises(ValueError, match=r"levels 3 needs sides divisible by 2\^3 = 8, found \["):
        UNet(levels=3).build(inputs=inputs, classes=2)
    with pytest.raises(ValueError, match=r"images \(C, H, W\) or volumes \(C, D, H, W\), found shape \[7\]"):
        UNet(levels=3).build(inputs=(7,), classes=2)


def test_settings_that_make_no_network_are_refused_all_at_once():
    with pytest.raises(ValueError, match=r"width must be a multiple of 4, found 6; .*levels .*found 0; .*dropout"):
        UNet(width=6, levels=0, dropout=1.0)


def test_a_model_for_the_other_kind_of_task_is_refused():
    with pytest.raises(ValueError, match="unet is for segmentation, the task is classification"):
        Task(UNet(), (1, 16, 16), 2)
    with pytest.raises(ValueError, match="cnn is for classification, the task is segmentation"):
        Task(Cnn(), (1, 16, 16), 2, "segmentation")
    with pytest.raises(ValueError, match="cnn is for classification"):
        Fenda(local=Cnn()).network(testbed.dense_task())


@given(st.integers(0, 2**30), st.integers(2, 4), st.sampled_from([(3, 5), (2, 3, 4), (1, 1)]), st.floats(0, 30))
@settings(max_examples=30, deadline=None)
def test_the_loss_is_dice_and_cross_entropy_written_out(seed, classes, spatial, scale):
    g = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(2, classes, *spatial, generator=g, dtype=torch.float64)
    y = torch.randint(0, classes, (2, *spatial), generator=g)
    for logit, mask, found in zip(logits, y, overlap_loss(Output(logits, logits), y), strict=True):
        p = logit.flatten(1).softmax(dim=0).T
        expected, places = 0.0, list(zip(p, mask.flatten().tolist(), strict=True))
        for c in range(1, classes):
            both = sum(float(at[c]) for at, truth in places if truth == c)
            either = sum(float(at[c]) for at, _ in places) + sum(truth == c for _, truth in places)
            expected += (1 - (2 * both + 1e-5) / (either + 1e-5)) / (classes - 1)
        expected -= sum(float(at.log_softmax(dim=0)[truth]) for at, truth in _logged(logit, places)) / len(places)
        assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def _logged(logit: torch.Tensor, places: list) -> list:
    return [(at, truth) for at, (_, truth) in zip(logit.flatten(1).T, places, strict=True)]


def test_the_dice_part_is_monais():
    logits, y = torch.randn(4, 3, 6, 7), scattered(4, 6, 7)
    theirs = DiceLoss(include_background=False, to_onehot_y=True, softmax=True)
    assert float(dice_loss(logits, y).mean()) == pytest.approx(float(theirs(logits, y[:, None])), abs=1e-6)
    sure = 50.0 * one_hot(y[:, None], 3)
    assert torch.allclose(overlap_loss(Output(sure, sure), y), torch.zeros(4), atol=1e-5)
    assert overlap_loss(Output(-sure, sure), y).min() > 1


def test_losses_of_examples_do_not_know_of_each_other_and_labels_of_examples_stay_as_they_were():
    logits, y = torch.randn(4, 3, 6, 7), scattered(4, 6, 7)
    alone = [overlap_loss(Output(a[None], a[None]), b[None]) for a, b in zip(logits, y, strict=True)]
    assert torch.allclose(overlap_loss(Output(logits, logits), y), torch.cat(alone), atol=1e-6)
    logits, y = torch.randn(5, 3), scattered(5)
    whole = functional.cross_entropy(logits, y, reduction="none")
    assert torch.equal(cross_entropy(Output(logits, logits), y), whole)
    assert torch.equal(testbed.make_task().comparable_loss(Output(logits, logits), y), whole)


def test_features_are_pooled_over_places_and_features_of_examples_stay():
    assert torch.allclose(pool_features(torch.arange(24.0).view(1, 2, 3, 4)), torch.tensor([[5.5, 17.5]]))
    features = torch.rand(3, 5)
    assert pool_features(features) is features


@pytest.mark.parametrize(("name", "augment"), MOVES)
@pytest.mark.parametrize("spatial", [(16, 16), (3, 16, 16)])
def test_masks_move_with_their_images(name, augment, spatial):
    """An image that is its own mask. In the plane the nearest of four pixels has at least a quarter of their weight, so
    a class with more than three quarters is the nearest pixel's."""
    y = torch.zeros(12, *spatial, dtype=torch.int64)
    y[..., 3:11, 2:8], y[..., 5:9, 10:15] = 1, 2
    x = torch.stack([(y == c).float() for c in range(3)], dim=1)
    moved, along = augment(x, y, torch.Generator().manual_seed(3))
    assert along.dtype == torch.int64 and along.shape == y.shape and set(along.unique().tolist()) == {0, 1, 2}
    assert not torch.equal(along, y)
    sure, which = moved.max(dim=1)
    assert torch.equal(which[sure > 0.76], along[sure > 0.76])
    assert float((sure > 0.76).float().mean()) > 0.8


@pytest.mark.parametrize(("name", "augment"), MOVES)
def test_labels_stay_and_images_move_as_if_there_were_no_masks(name, augment):
    x, labels = torch.rand(8, 1, 16, 16), torch.arange(8)
    with_labels, same = augment(x, labels, torch.Generator().manual_seed(1))
    with_masks, _ = augment(x, scattered(8, 16, 16), torch.Generator().manual_seed(1))
    assert same is labels and torch.equal(with_labels, with_masks)


def test_every_slice_of_a_volume_moves_alike():
    flat, mask = torch.rand(3, 1, 1, 16, 16), scattered(3, 1, 16, 16)
    for augment in (flip_images, apply_affine, apply_elastic):
        x, y = augment(flat.expand(3, 1, 5, 16, 16), mask.expand(3, 5, 16, 16), torch.Generator().manual_seed(0))
        assert torch.equal(x, x[:, :, :1].expand_as(x)) and torch.equal(y, y[:, :1].expand_as(y))


def test_plain_access_draws_masks_with_their_images_and_refuses_to_balance_them():
    rows = testbed.make_scenes(0, n=6)["train"]
    rows = Rows(rows.y[:, None].float(), rows.y, rows.patient)
    draw = open_access({"train": rows}, batch=4, seed=0, augment=flip_images).draw()
    assert draw.y.shape == (4, 8, 8) and torch.equal(draw.x[:, 0].long(), draw.y)
    assert not all(any(torch.equal(one, other) for other in rows.y) for one in draw.y), "some are mirrored"
    with pytest.raises(ValueError, match=r"balance needs a label an example, found masks of \[8, 8\]"):
        open_access({"train": rows}, batch=4, seed=0, balance=True)


def test_shares_are_those_of_pixels_and_behind_private_access_every_patient_has_one_vote():
    y = torch.tensor([[[0, 0], [0, 1]], [[1, 1], [1, 1]], [[2, 2], [0, 0]]])
    rows = {"train": Rows(torch.zeros(3, 1, 2, 2), y, torch.tensor([7, 7, 3]))}
    plain = open_access(rows, batch=2, seed=0).shares(3)
    assert plain.tolist() == pytest.approx([5 / 12, 5 / 12, 2 / 12])
    votes = torch.tensor([3 / 8 + 1 / 2, 5 / 8, 1 / 2], dtype=torch.float64).clamp(min=1.0)
    private = open_private(rows, QUIET).shares(3)
    assert private.tolist() == pytest.approx((votes / votes.sum()).tolist())
    many = {"train": Rows(*(one.repeat_interleave(4, 0) for one in (torch.zeros(3, 1, 2, 2), y)), torch.arange(12))}
    assert open_private(many, QUIET).shares(3).tolist() == pytest.approx([5 / 12, 5 / 12, 2 / 12])


@pytest.mark.parametrize("inputs", [(1, 8, 8), (2, 4, 4, 4)])
def test_a_patients_gradient_is_that_of_the_patient_alone(inputs):
    task = Task(UNet(width=4, levels=2, norm="group"), inputs, 3, "segmentation")
    module = task.network().double()
    x, y = torch.rand(5, 2, *inputs, dtype=torch.float64), scattered(5, 2, *inputs[1:])
    views = [Batch(x[patient], y[patient]) for patient in range(5)]
    for patient, batch in zip(patient_gradients(module, task.objective, views), views, strict=True):
        loss = task.objective(module, batch).mean()
        expected = torch.autograd.grad(loss, list(module.parameters()))
        for (name, _), gradient in zip(module.named_parameters(), expected, strict=True):
            assert torch.allclose(patient[name], gradient, atol=1e-12)


def test_private_access_moves_masks_with_the_views_of_a_patient():
    rows = testbed.make_scenes(0)["train"]
    rows, seen = Rows(rows.y[:, None].double(), rows.y, rows.patient), []

    def noted(x, y, generator):
        seen.append(flip_images(x, y, generator))
        return seen[-1]

    access = open_private({"train": rows}, replace(QUIET, views=3), augment=noted, source=random.Random(0).randbytes)
    task = testbed.dense_task(norm="group")
    access.gradient(task.network().double(), task.objective, access.draw())
    assert len(seen) == len(rows.patient.unique()), "each patient by itself"
    assert all(y.shape == (3, 8, 8) and torch.equal(x[:, 0].long(), y) for x, y in seen)


@pytest.mark.parametrize(
    "algorithm",
    [
        one
        for one in methods.private(testbed.mask_task(norm="group"))
        if one.name in {*methods.SHAPED, "fedavg", "apple"}
    ],
    ids=lambda one: one.name,
)
def test_private_training_on_masks_without_noise_is_plain_training(algorithm, doubles):
    """Same draws (all patients each step), patient-mean loss, huge clip, no noise; and what was done was planned."""
    if algorithm.name == "cusfl":  # by patient its balance is another method, unless the cap binds
        algorithm = replace(algorithm, cap=0.01)
    task, work, schedule = testbed.mask_task(norm="group"), Work(lr=0.02), Schedule(rounds=2)
    if algorithm.name == "cusfl":
        work = Work(optimizer="sgd", lr=0.05)  # Adam would show the rounding of tiny gradients
    sites = {name: alone(testbed.make_scenes(k)) for k, name in enumerate("ab")}
    plain, bare = (testbed.make_federation(algorithm, sites, task=task, work=work) for _ in range(2))
    private = {name: replace(hospital, protection=QUIET) for name, hospital in bare.items()}
    left, right = (testbed.train(algorithm, crew, task=task, work=work, schedule=schedule) for crew in (plain, private))
    planned = rehearse_events(algorithm, task, work, initial_parameters(algorithm, task, seed=0), QUIET)
    for name in sites:
        assert testbed.are_close(testbed.newest_model(plain[name]), testbed.newest_model(private[name]), 1e-8)
        assert right.losses[name]["2"] == pytest.approx(left.losses[name]["2"], abs=1e-8)
        wanted = [planned.introduction, *[planned.training] * 2, *[planned.validation] * 2]
        assert compose_events(private[name].events) == compose_events(wanted)


def test_heads_of_methods_are_1x1_convolutions_and_a_projector_sees_pooled_features():
    task = testbed.dense_task()
    fenda, rod = Fenda().network(task), FedRod().network(task)
    assert fenda.head.weight.shape == (3, 8, 1, 1) and rod.personal_head.weight.shape == (3, 4, 1, 1)
    assert float(rod.personal_head.weight.detach().abs().sum()) == 0
    volumes = Task(UNet(width=4, levels=1), (1, 4, 4, 4), 2, "segmentation")
    assert Fenda().network(volumes).head.weight.shape == (2, 8, 1, 1, 1)
    for depth, width in ((1, 4), (2, 8), (3, 4)):
        assert CusFL(depth=depth).network(task).projector[0].in_features == width


def test_fine_tuning_lowers_the_loss_on_masks_and_calibration_says_that_it_cannot():
    task, splits = testbed.dense_task(), testbed.make_scenes(0, n=12)
    access = open_access(splits, batch=4, seed=0)
    module = task.network()
    before = access.measure(module, task.validation, "train")
    tuned = fine_tuned(Site("a", task, Work(lr=0.02), access), module, Tuning(epochs=8))
    assert access.measure(tuned, task.validation, "train") < 0.8 * before
    with pytest.raises(ValueError, match="needs a class an example, found segmentation"):
        calibrate_model(replace(task, classes=2), module, splits["train"], "centred")


def test_in_evaluation_masks_go_through_in_chunks_and_nothing_changes(monkeypatch):
    monkeypatch.setattr("privacy.dp.chunks.NUMBERS", 2 * 8 * 8)
    task, rows = testbed.dense_task(), testbed.make_scenes(0, n=3)["train"]
    access, network = open_access({"train": rows}, batch=2, seed=0), task.network().eval()
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    assert access.measure(network, task.validation, "train") == pytest.approx(
        access.measure(network, task.validation, "train", chunk=3), abs=1e-6
    )
    assert sizes == [2, 1, 3]
