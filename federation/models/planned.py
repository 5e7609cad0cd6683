"""The network of nnU-Net: a U-Net that is described by a plan, trained on patches of images, with deep supervision.

Isensee, Jaeger, Kohl, Petersen, Maier-Hein: nnU-Net: a self-configuring method for deep learning-based biomedical image
segmentation, Nature Methods 18, 2021. Blocks are MONAI's (those of its DynUNet). As in nnU-Net's own network
(PlainConvUNet), each stage has two convolutions, of which the first halves the axes that `strides` names, each with a
norm and a leaky ReLU; transposed convolutions double them again, and the upward path has the kernels of its own
resolution, where DynUNet has those of the stage below. Weights begin as in nnU-Net. Differences from nnU-Net: losses
are those of each example, where nnU-Net's Dice loss in 2-D is of the batch; convolutions before a norm have no bias.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.task import Kind, Output, overlap_loss
from privacy.settings_error import Problem, refuse

Sides: TypeAlias = tuple[int, ...]
GROUPS = 8
SLOPE = 0.01  # of the leaky ReLU
WIDEST, MOST_STAGES, LARGEST_PATCH = 2048, 10, 2**25


@dataclass(frozen=True, kw_only=True)
class Planned:
    """patch: sides of what the network is trained on, (D, H, W) or (H, W); images are cut into patches, and predicted
    by half-overlapping windows of this size. kernels, strides, filters: one of each a stage, the first at full
    resolution, whose strides are 1; a kernel and a stride have one number an axis. norm: `instance` or `group` (8
    groups) can be trained privately; `batch` is for methods that keep norms at home. deep_supervision: losses at lower
    resolutions too, each with half the weight of the one above, except at the lowest of the upward path. mirror:
    predictions are means over mirrored passes, 4 of an image and 8 of a volume. up_bias: whether transposed
    convolutions have a bias, as nnU-Net's have, for a network that begins with nnU-Net's weights.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    kind: ClassVar[Kind] = "segmentation"

    name: Literal["planned"] = "planned"
    patch: Sides
    kernels: tuple[Sides, ...]
    strides: tuple[Sides, ...]
    filters: tuple[int, ...]
    norm: Literal["instance", "batch", "group"] = "instance"
    deep_supervision: bool = True
    mirror: bool = False
    up_bias: bool = False

    def __post_init__(self) -> None:
        refuse([*self._find_problems()])

    def _find_problems(self) -> Iterator[Problem]:
        axes, stages = len(self.patch), len(self.filters)
        if axes not in (2, 3) or any(side < 1 for side in self.patch) or prod(self.patch) > LARGEST_PATCH:
            text = f"must be (D, H, W) or (H, W), of at most {LARGEST_PATCH} voxels, found {list(self.patch)}"
            yield Problem(("patch",), text)
            return
        if not 2 <= stages <= MOST_STAGES:
            yield Problem(("filters",), f"must have 2 to {MOST_STAGES} stages, found {stages}")
        if any(not 1 <= width <= WIDEST for width in self.filters):
            yield Problem(("filters",), f"must be in [1, {WIDEST}], found {list(self.filters)}")
        elif self.norm == "group" and any(width % GROUPS for width in self.filters):
            text = f"must be multiples of {GROUPS} for norm: group, found {list(self.filters)}"
            yield Problem(("filters",), text, needs=(("norm",),))
        for name, rows, fitting in (("kernels", self.kernels, (1, 3, 5, 7)), ("strides", self.strides, (1, 2))):
            if len(rows) != stages or any(len(row) != axes or not set(row) <= {*fitting} for row in rows):
                text = (
                    f"must have {axes} numbers of {', '.join(map(str, fitting))} for each of {stages} stages, found "
                    f"{[list(row) for row in rows]}"
                )
                yield Problem((name,), text, needs=(("patch",), ("filters",)))
                return
        if set(self.strides[0]) != {1}:
            yield Problem(("strides",), f"must begin with 1 along each axis, found {list(self.strides[0])}")
        if any(side % step for side, step in zip(self.patch, self.steps, strict=True)):
            text = f"must be multiples of what strides halve, {list(self.steps)}, found {list(self.patch)}"
            yield Problem(("patch",), text, needs=(("strides",),))
        elif prod(self.patch) == prod(self.steps):
            text = f"must leave more than one voxel at the lowest stage, found {list(self.patch)}, where strides halve"
            yield Problem(("patch",), f"{text} {list(self.steps)}", needs=(("strides",),))

    @property
    def steps(self) -> Sides:
        """Of how many voxels along each axis the lowest stage makes one."""
        return tuple(prod(column) for column in zip(*self.strides, strict=True))

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A network for images (C, H, W) or volumes (C, D, H, W).

        Raises:
            ValueError: another number of axes than the patch has, an image smaller than a patch, or of sides that the
                strides do not divide.
        """
        sides = inputs[1:]
        if len(sides) != len(self.patch):
            text = f"a patch of {list(self.patch)} needs {len(self.patch)} axes beside channels"
            raise ValueError(f"{text}, found shape {list(inputs)}: change images.kind, or plan anew")
        if any(side < least or side % step for side, least, step in zip(sides, self.patch, self.steps, strict=True)):
            raise ValueError(
                f"images must be at least as large as a patch, {list(self.patch)}, and multiples of {list(self.steps)},"
                f" found {list(sides)}: change images.size and images.depth, or model.patch"
            )
        return PlannedModule(inputs[0], classes, self)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Soft Dice loss plus cross-entropy of each example (b,), the weighted mean over resolutions: 1, 1/2, 1/4 ...

        Masks are brought to a lower resolution by the nearest voxel.
        """
        weight, total, losses = 1.0, 1.0, overlap_loss(output, y)
        for logits in output.deep:
            weight /= 2
            total += weight
            small = functional.interpolate(y.unsqueeze(1).float(), size=logits.shape[2:], mode="nearest-exact")
            losses = losses + weight * overlap_loss(Output(logits, logits), small[:, 0].to(y.dtype))
        return losses / total


class UpBlock(nn.Module):
    """A stage of the upward path, and its 1x1 convolution to classes where it is supervised."""

    def __init__(self, up: nn.Module, supervised: nn.Module | None) -> None:
        super().__init__()
        self.up, self.supervised = up, supervised

    def forward(self, h: Tensor, skip: Tensor) -> Tensor:
        raised: Tensor = self.up(h, skip)
        return raised


class PlannedModule(nn.Module):
    """See `Planned`. Input (b, C, *spatial); `blocks` are the downward path, then the upward path.

    Output: logits (b, classes, *spatial), features (b, filters[0], *spatial), which are the head's input, and in
    training mode `deep`, logits of lower resolutions.
    """

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, channels: int, classes: int, plan: Planned) -> None:
        # MONAI takes seconds to import
        from monai.networks.blocks.dynunet_block import UnetBasicBlock, UnetUpBlock

        super().__init__()
        axes, stages = len(plan.patch), len(plan.filters)
        norm = ("group", {"num_groups": GROUPS}) if plan.norm == "group" else (plan.norm, {"affine": True})
        act = ("leakyrelu", {"inplace": False, "negative_slope": SLOPE})  # in place, per-patient gradients are wrong
        conv = nn.Conv3d if axes == 3 else nn.Conv2d
        self.plan = plan
        widths = [channels, *plan.filters]
        downs = [
            UnetBasicBlock(axes, wide, width, kernel, stride, norm, act)
            for (wide, width), kernel, stride in zip(
                itertools.pairwise(widths), plan.kernels, plan.strides, strict=True
            )
        ]
        ups = []
        for stage in reversed(range(1, stages)):
            low, high = plan.filters[stage], plan.filters[stage - 1]
            up = UnetUpBlock(
                axes, low, high, plan.kernels[stage - 1], 1, plan.strides[stage], norm, act, None, plan.up_bias
            )
            is_supervised = plan.deep_supervision and 1 < stage < stages - 1  # neither the last, which has the head
            ups.append(UpBlock(up, conv(high, classes, kernel_size=1) if is_supervised else None))
        self.stem, self.blocks = downs[0], nn.ModuleList([*downs[1:], *ups])
        self.head = conv(plan.filters[0], classes, kernel_size=1)
        self.downs = stages - 1
        self.apply(_begin_weights)

    def forward(self, x: Tensor) -> Output:
        if self.training or not self.plan.mirror:
            h, deep = self._pass(x)
            return Output(self.head(h), h, deep=deep)
        h = self._average_mirrored(x)
        return Output(self.head(h), h)

    def _pass(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Features (b, filters[0], *spatial), and in training mode logits of lower resolutions, the highest first."""
        h = self.stem(x)
        skips, deep = list[Tensor](), list[Tensor]()
        for place, block in enumerate(self.blocks):  # a method may remove the last blocks
            if place < self.downs:
                skips.append(h)
                h = block(h)
                continue
            h = block(h, skips.pop())
            if self.training and isinstance(block, UpBlock) and block.supervised is not None:
                deep.insert(0, block.supervised(h))
        return h, tuple(deep)

    def _average_mirrored(self, x: Tensor) -> Tensor:
        """Features of images, the mean over mirrored passes; logits follow, because the head is linear."""
        axes = range(2, x.dim())
        flips = [which for count in range(len(axes) + 1) for which in itertools.combinations(axes, count)]
        passes = [self._pass(x.flip(which))[0].flip(which) for which in flips]
        return torch.stack(passes).mean(dim=0)


def _begin_weights(part: nn.Module) -> None:
    """Begin a convolution as nnU-Net does: by normal numbers for its leaky ReLU (He, Zhang, Ren, Sun: Delving deep into
    rectifiers, ICCV 2015), with biases of 0. PyTorch's own have a sixth of the variance.
    """
    if isinstance(part, nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        nn.init.kaiming_normal_(part.weight, a=SLOPE)
        if part.bias is not None:
            nn.init.zeros_(part.bias)
