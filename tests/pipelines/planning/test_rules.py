"""nnU-Net's rules: laws, nnU-Net's own plans, and a network whose feature maps are counted one by one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.studies.planned import KINDS, draw_studies, plan_by_rules, tell_figures
from federation.models.planned import Planned
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.planning.fingerprint import Common, merge_fingerprints
from pipelines.planning.memory import count_values
from pipelines.planning.rules import (
    ANISOTROPY,
    LEAST_BATCH,
    MOST_SHARE,
    NoPlan,
    build_topology,
    find_target_spacing,
    fit_network,
    list_topologies,
    resample_shape,
)
from pipelines.planning.settings import FOREGROUND, Effort, plan_settings, share_about_foreground
from privacy.release.form import ABSENT

MEASURED = json.loads((Path(__file__).parents[3] / "benchmarks/measured/planned.json").read_text())
SIDES, STEPS = st.integers(8, 400), st.floats(0.2, 8.0)
SHAPES = st.integers(2, 3).flatmap(
    lambda axes: st.tuples(st.lists(STEPS, min_size=axes, max_size=axes), st.lists(SIDES, min_size=axes, max_size=axes))
)
MEMORIES = st.floats(0.5, 64.0)


@pytest.mark.parametrize("name", MEASURED["nnunet"]["plans"])
def test_the_rules_plan_what_nnunet_itself_plans(name: str) -> None:
    """Of the same studies: spacing, patch, batch, strides and kernels, as nnU-Net 2.8.1 planned them."""
    kind = KINDS[name.split()[0]]
    common = merge_fingerprints({"all": tell_figures(draw_studies(kind), kind)})
    ours, theirs = plan_by_rules(common, kind, flat=name.endswith("2d")), MEASURED["nnunet"]["plans"][name]
    assert ours["spacing"] == pytest.approx(theirs["spacing"], rel=1e-3)
    assert {key: ours[key] for key in ("patch", "batch", "strides", "kernels")} == {
        key: theirs[key] for key in ("patch", "batch", "strides", "kernels")
    }


@pytest.mark.parametrize("name", MEASURED["nnunet"]["plans"])
def test_merged_hospitals_give_the_same_spacing_and_a_patch_within_a_step(name: str) -> None:
    ours, theirs = MEASURED["ours"][name]["merged"], MEASURED["nnunet"]["plans"][name]
    assert ours["spacing"] == pytest.approx(theirs["spacing"], rel=0.05)
    assert all(abs(a - b) <= step for a, b, step in zip(ours["patch"], theirs["patch"], ours["step"], strict=True))


@given(SHAPES)
def test_every_patch_is_divided_by_what_strides_divide_and_leaves_four_voxels(shape) -> None:
    spacing, median = shape
    for network in list_topologies(spacing, median, 32):
        assert len(network.kernels) == len(network.strides) == len(network.filters)
        for axis, (side, divisor) in enumerate(zip(network.patch, network.divisor, strict=True)):
            assert side % divisor == 0
            assert side // divisor >= 4 or all(stride[axis] == 1 for stride in network.strides)


@given(SHAPES, MEMORIES, st.floats(1.0, 4.0))
def test_more_memory_gives_no_smaller_patch(shape, memory, more) -> None:
    spacing, median = shape
    patches = []
    for size in (memory, memory * more):
        try:
            fitted = fit_network(spacing, median, classes=2, voxels=1e9, memory_gib=size)
        except NoPlan:
            patches.append(0)
        else:
            patches.append(math.prod(fitted.network.patch))
    assert patches[0] <= patches[1]


@given(SHAPES, MEMORIES, st.floats(1e3, 1e11))
def test_a_batch_fits_the_memory_and_has_two_examples_or_a_small_share(shape, memory, voxels) -> None:
    spacing, median = shape
    fitted = fit_network(spacing, median, classes=3, voxels=voxels, memory_gib=memory)
    whole = fit_network(spacing, median, classes=3, voxels=1e15, memory_gib=memory)
    assert fitted.batch >= LEAST_BATCH and fitted.batch <= whole.batch
    share = fitted.batch * math.prod(fitted.network.patch) / voxels
    rounded = 0.5 * math.prod(fitted.network.patch) / voxels
    assert fitted.batch == LEAST_BATCH or share <= MOST_SHARE + rounded + 1e-9


@given(SHAPES)
def test_a_kernel_stays_three_and_is_so_at_last(shape) -> None:
    network = build_topology(*shape)
    for before, after in zip(network.kernels, network.kernels[1:], strict=False):
        assert all(a >= b for a, b in zip(after, before, strict=True))
    assert set(network.kernels[-1]) == {3} and max(network.kernels[0]) == 3


@given(st.lists(STEPS, min_size=3, max_size=3), st.lists(SIDES, min_size=3, max_size=3), st.floats(0.1, 1.0))
def test_only_a_coarse_axis_of_few_voxels_gets_a_finer_spacing(spacing, voxels, share) -> None:
    fine = [step * share for step in spacing]
    target = find_target_spacing(spacing, voxels, fine)
    for axis in range(3):
        if axis != target.coarse:
            assert target.spacing[axis] == spacing[axis]
    if target.coarse is None:
        return
    rest = [axis for axis in range(3) if axis != target.coarse]
    coarsest = max(spacing[axis] for axis in rest)
    assert spacing[target.coarse] > ANISOTROPY * coarsest
    assert voxels[target.coarse] * ANISOTROPY < min(voxels[axis] for axis in rest)
    assert coarsest <= target.spacing[target.coarse] <= spacing[target.coarse]


@given(st.lists(st.floats(1, 900), min_size=3, max_size=3), st.lists(STEPS, min_size=3, max_size=3))
def test_a_shape_covers_its_extent_to_half_a_voxel(extent, spacing) -> None:
    for side, length, step in zip(resample_shape(extent, spacing), extent, spacing, strict=True):
        assert side == 1 or abs(side - length / step) <= 0.5


def test_too_little_memory_is_told_with_what_would_do() -> None:
    with pytest.raises(NoPlan, match=r"0\.001 GiB hold no patch; ([0-9.]+) GiB hold the smallest") as told:
        fit_network((1.0, 1.0, 1.0), (100, 100, 100), classes=2, voxels=1e9, memory_gib=0.001)
    enough = float(str(told.value).split("; ")[1].split()[0])
    fit_network((1.0, 1.0, 1.0), (100, 100, 100), classes=2, voxels=1e9, memory_gib=enough)


@pytest.mark.parametrize(
    ("spacing", "patch"), [((1.0, 1.0, 1.0), (32, 40, 24)), ((3.6, 0.6, 0.6), (12, 64, 48)), ((1.0, 1.0), (96, 64))]
)
def test_values_are_those_that_the_layers_of_a_network_make(spacing, patch) -> None:
    """Of the network that is built of the plan, without the answers at lower resolutions, which are small."""
    planned = build_topology(spacing, patch, filters=8)
    model = Planned(patch=planned.patch, kernels=planned.kernels, strides=planned.strides, filters=planned.filters)
    counted = 0

    def count(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        nonlocal counted
        counted += output.numel()

    with torch.device("meta"):
        network = model.build(inputs=(1, *planned.patch), classes=3).eval()
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d):
                module.register_forward_hook(count)
        answer = network(torch.zeros(1, 1, *planned.patch))
    assert answer.logits.shape == (1, 3, *planned.patch) and counted == count_values(planned, classes=3)


def test_so_many_patches_are_about_foreground_as_nnunet_takes() -> None:
    """nnU-Net asks patch by patch: not number < round(batch * (1 - share))."""
    for batch in range(2, 60):
        theirs = sum(not number < round(batch * (1 - FOREGROUND)) for number in range(batch))
        assert round(share_about_foreground(batch) * batch) == theirs
    assert share_about_foreground(2) == 0.5


@pytest.mark.parametrize("images", [Volumes(values="standardized"), Slices(values="standardized")])
def test_hospitals_that_are_alike_plan_the_network_and_the_batch_that_one_of_them_plans(images) -> None:
    """Each draws batches from its own studies alone, so that others' leave no room for a larger one."""
    kind = KINDS["hippocampus"]
    said = tell_figures(draw_studies(kind)[:90], kind)
    fitted = [
        plan_settings(merge_fingerprints({str(site): said for site in range(sites)}), images, 3, Effort()).fitted
        for sites in (1, 2, 5)
    ]
    assert fitted[0] == fitted[1] == fitted[2] and fitted[0].batch > 2
    alone = plan_settings(merge_fingerprints({"a": tell_figures(draw_studies(kind), kind)}), images, 3, Effort())
    assert alone.fitted.batch > fitted[0].batch, "it is the studies that bound the batch, and not the memory"


@pytest.mark.parametrize(("boxes", "nonzero"), [((0.74, 0.7), True), ((0.75, 0.76), False), ((), False)])
def test_a_mean_is_over_what_is_not_0_where_that_is_less_than_three_quarters(boxes, nonzero) -> None:
    """nnU-Net's rule for use_mask_for_norm; who has an older program says nothing."""
    said = tell_figures(draw_studies(KINDS["brain"]), KINDS["brain"])
    replies = {str(box): replace(said, box_share=box) for box in boxes} or {"older": replace(said, box_share=ABSENT)}
    plan = plan_settings(merge_fingerprints(replies), Volumes(values="standardized"), 2, Effort())
    (line,) = (line for line in plan.images if line.key == "nonzero")
    assert line.value is nonzero


def test_narrow_networks_keep_the_ratio_of_the_widest_to_the_first() -> None:
    wide = build_topology((1.0, 1.0, 1.0), (128, 128, 128), 32)
    narrow = build_topology((1.0, 1.0, 1.0), (128, 128, 128), 8)
    assert [4 * width for width in narrow.filters] == [*wide.filters] and max(wide.filters) == 320


@given(
    st.tuples(*3 * [st.floats(0.02, 20.0)]), st.tuples(*3 * [st.floats(1.0, 4000.0)]), st.sampled_from([1.0, 8.0, 80.0])
)
def test_every_plan_is_one_that_settings_accept(spacing, extent, memory) -> None:
    """However large and fine studies are: a mammogram has 4000 pixels a side, and images 1024 at most."""
    common = Common(
        studies=30,
        spacing=spacing,
        fine=spacing,
        voxels=tuple(length / step for length, step in zip(extent, spacing, strict=True)),
        extent=extent,
        cover=extent,
        intensity={},
        volumes={},
        modality="MR",
        box_share=0.9,
        sites=("a",),
    )
    flat = replace(common, spacing=(1.0, 1.0), fine=(1.0, 1.0), voxels=extent[1:], extent=extent[1:], cover=extent[1:])
    for images, told in ((Volumes(), common), (Slices(), common), (Pictures(), flat)):
        try:
            plan = plan_settings(told, images, 2, Effort(memory_gib=memory))
        except NoPlan:
            continue
        type(images)(**{line.key: line.value for line in plan.images})
        network = plan.fitted.network
        assert all(side >= patch for side, patch in zip(plan.sides, network.patch, strict=True))
        assert all(side % step == 0 for side, step in zip(plan.sides, network.divisor, strict=True))
