"""Normalization by the test images' statistics, and networks of which only some parts adapt at test time.

A batch norm's running statistics are those of the sites where it was trained. At an external site, its mean and
variance come from that site's images (IOP-FL, section III.C; Tent, section 3.2); its scale and shift stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from federation.models.fixed import has_fixed_statistics
from federation.parameters import NORMS
from federation.task import Output

Statistics: TypeAlias = Literal["image", "set"]
"""image: each image's own mean and variance; set: the batch's during adaptation, then those of all test images."""
Affine: TypeAlias = Literal["fixed", "trained"]


class ImageNorm(nn.Module):
    """A batch norm that takes the mean and variance of each image's own feature map (b, C, *spatial).

    A prediction then does not depend on the other images of the batch. Maps need more than one place: the error names
    the layer (`name`) where an image has only one, for example in front of a classifier's head.
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
    """A batch norm that uses the batch's statistics in training mode, and in evaluation mode the mean of the statistics
    of all batches since `reset`.

    `calibrate` weights a batch by its number of images. The variance is the mean of the batches' variances; variance
    between batches is not included.
    """

    adapts = True

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.norm = type(norm)(norm.num_features, norm.eps, momentum=None, affine=norm.affine)
        self.norm.weight, self.norm.bias = norm.weight, norm.bias
        self.norm.to(next(norm.buffers(), norm.weight).device)

    def forward(self, x: Tensor) -> Tensor:
        normalized: Tensor = self.norm(x)
        return normalized

    def reset(self) -> None:
        """Forget the statistics of earlier batches."""
        self.norm.reset_running_stats()


class AtTest(nn.Module):
    """A network at test time. Training mode applies only to parts with `adapts = True`: dropout elsewhere stays off.

    forward: the network's Output.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.train(False)

    def forward(self, x: Tensor) -> Output:
        output: Output = self.network(x)
        return output

    def train(self, mode: bool = True) -> AtTest:
        """Set the mode of the parts that adapt, and of their submodules."""
        super().train(False)
        for part in self.modules():
            if getattr(part, "adapts", False):
                part.train(mode)
        return self


def by_test_statistics(network: nn.Module, statistics: Statistics, affine: Affine) -> None:
    """Make a network's batch norms use the test images' statistics, in place, and freeze all other parameters.

    Statistics that the network's author fixed stay as they are.
    affine: whether scales and shifts of all normalization layers, group norms included, may be trained.
    """
    for p in network.parameters():
        p.requires_grad_(False)
    for part in network.modules():
        if isinstance(part, NORMS):
            for p in part.parameters():
                p.requires_grad_(affine == "trained")
    for name, part in list(network.named_modules()):
        if isinstance(part, _BatchNorm) and not has_fixed_statistics(part):
            replace(network, name, ImageNorm(part, name) if statistics == "image" else SetNorm(part))


def replace(network: nn.Module, name: str, part: nn.Module) -> None:
    """Replace the submodule `name` by `part`."""
    above, _, name_of_part = name.rpartition(".")
    setattr(network.get_submodule(above), name_of_part, part)


def batches(rows: Tensor, batch: int) -> Sequence[Tensor]:
    """Parts of `batch` rows, the last one shorter; a single row at the end joins the part before it, because a norm
    cannot compute a variance of one value.
    """
    parts = list(torch.split(rows, batch))
    if batch > 1 and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def calibrate(module: nn.Module, images: Tensor, batch: int) -> None:
    """Compute the statistics of every SetNorm from all images (n, C, *spatial), without gradients; then evaluation
    mode.

    One pass fills all norms; in it each norm normalizes by the batch.
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
