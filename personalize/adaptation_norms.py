"""Normalization by the test images, and networks of which only some parts adapt at test time.

A batch norm's running statistics are those of the sites it was trained at. At a hospital outside, its mean and
variance come from that hospital's images (IOP-FL, section III.C; Tent, section 3.2), its scale and shift stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from federation.task import Output
from personalize.sharing import NORMS

Statistics: TypeAlias = Literal["image", "set"]
"""image: each image by its own mean and variance; set: by the batch while it adapts, then by all test images."""
Affine: TypeAlias = Literal["fixed", "trained"]


class ImageNorm(nn.Module):
    """A batch norm that takes the mean and variance of each image's own feature map (b, C, *spatial).

    A prediction then does not depend on who else is in the batch. It needs more than one place: `name` is told where
    an image has but one, as in front of a classifier's head.
    """

    def __init__(self, norm: _BatchNorm, name: str) -> None:
        super().__init__()
        self.name, self.eps = name, norm.eps
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:].numel() < 2:
            raise ValueError(
                f"{self.name}: one image has no variance of its own here, input shape {list(x.shape)}: choose "
                "statistics: set, or larger images"
            )
        return functional.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)


class SetNorm(nn.Module):
    """A batch norm by the batch in training mode; in evaluation mode by the mean of what batches showed since `reset`.

    `calibrate` weighs a batch by its images. The variance is the mean of the batches' variances: what lies between
    batches is not in it.
    """

    adapts = True

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norm = type(norm)(norm.num_features, norm.eps, momentum=None, affine=norm.affine)
        self.norm.weight, self.norm.bias = norm.weight, norm.bias
        self.norm.to(next(norm.buffers(), norm.weight).device)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x)
        return found

    def reset(self) -> None:
        """Forget the statistics of earlier batches."""
        self.norm.reset_running_stats()


class AtTest(nn.Module):
    """A network at test time. Training mode reaches only the parts that say `adapts`: its dropout stays off.

    forward: what the network gives, an Output.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(False)

    def forward(self, x: Tensor) -> Output:
        output: Output = self.network(x)
        return output

    def train(self, mode: bool = True) -> AtTest:
        """Switch the parts that adapt, and what they hold."""
        super().train(False)
        for part in self.modules():
            if getattr(part, "adapts", False):
                part.train(mode)
        return self


def by_test_statistics(network: nn.Module, statistics: Statistics, affine: Affine) -> None:
    """Let a network's batch norms take the test images' statistics, in place, and freeze all but what adapts.

    affine: whether scales and shifts of all normalization layers, group norms included, may be trained.
    """
    for p in network.parameters():
        p.requires_grad_(False)
    for part in network.modules():
        if isinstance(part, NORMS):
            for p in part.parameters():
                p.requires_grad_(affine == "trained")
    for name, part in list(network.named_modules()):
        if isinstance(part, _BatchNorm):
            replace(network, name, ImageNorm(part, name) if statistics == "image" else SetNorm(part))


def replace(network: nn.Module, name: str, part: nn.Module) -> None:
    """Put another part where `name` is."""
    above, _, own = name.rpartition(".")
    setattr(network.get_submodule(above), own, part)


def batches(rows: Tensor, batch: int) -> Sequence[Tensor]:
    """Parts of `batch` rows, the last one shorter; a single row at the end joins the part before it, because a norm has
    no variance of one value.
    """
    parts = list(torch.split(rows, batch))
    if batch > 1 and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def calibrate(module: nn.Module, images: Tensor, batch: int) -> None:
    """Fill the statistics of every SetNorm from all images (n, C, *spatial), without a gradient; then evaluation mode.

    All norms are filled in one pass, each while those before it work by the batch.
    """
    norms = [part for part in module.modules() if isinstance(part, SetNorm)]
    module.eval()
    if not norms:
        return
    for norm in norms:
        norm.reset()
        norm.train()
    seen = 0
    with torch.no_grad():
        for part in batches(images, batch):
            seen += len(part)
            for norm in norms:  # a short last batch counts by its images
                norm.norm.momentum = len(part) / seen
            module(part)
    for norm in norms:
        norm.norm.momentum = None
    module.eval()
