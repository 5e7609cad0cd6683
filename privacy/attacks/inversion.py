"""Inversion attacks: reconstruct a patient's image from its gradient or from its features.

An attacker has the model and the gradient or the features, and optimizes an image until it gives the same, with a
smoothness penalty:
gradients by their cosine (Geiping et al., Inverting gradients - how easy is it to break privacy in federated learning?,
NeurIPS 2020, equation 4), features by their distance (Mahendran and Vedaldi, Understanding deep image representations
by inverting them, CVPR 2015; on medical images Subbanna et al., Sensors 21(11):3874, 2021).

The attacker here knows more than a coordinator of a federation: the gradient of a single image, where a round sums up
many images over many steps; its label, or its mask; the range of the images; and the network in evaluation mode, with
running statistics of batch norm that were sent with the model. In training mode the image would be normalized by its
own statistics, which are not sent: that hides information. So a bad reconstruction here would be no better there.

A good reconstruction shows that an image leaks. A bad one does not show that it does not leak; a better attack may
exist. A baseline needs no attack: the mean of other patients' images.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from privacy.dp.access import Batch, Objective, Rows, open_access
from privacy.dp.entropy import Source
from privacy.dp.protection import Protection
from privacy.message import Params
from privacy.settings_error import out_of_range, refuse

Features: TypeAlias = Callable[[Tensor], Tensor]
"""features(x (1, ...)) -> the known features of x, of any shape."""
FADING = (3 / 8, 5 / 8, 7 / 8)  # of the steps, after which the rate is a tenth of what it was (Geiping's code)
IMAGES, STEPS = 16, 2000
GRAIN = 0.1  # of the first image: from coarse noise, as in Geiping et al., inversion of a U-Net's features failed
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """Effort of the attack. Pixels are scaled to [-1, 1] during optimization, whatever their unit; lr and tv are in
    that unit.

    images: how many, each of another patient. steps: of Adam. lr: its initial rate. tv: weight of the total variation.
    sign: for gradients only: use only the signs of the derivatives, as Geiping et al. do.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    images: int = 4
    steps: int = 300
    lr: float = 0.1
    tv: float = 0.1
    sign: bool = True

    def __post_init__(self) -> None:
        refuse(out_of_range(self, images=(1, IMAGES), steps=(1, STEPS), lr=(1e-6, 10.0), tv=(0.0, 1e3)))


class Pixels(NamedTuple):
    """Prior knowledge of an image's values: bounds, and the mean, where the optimization begins."""

    low: float = -1.0
    high: float = 1.0
    mean: float = 0.0


UNIT = Pixels()


class Likeness(NamedTuple):
    """psnr: dB. ssim: at most 1. Both are NaN for a constant image."""

    psnr: float
    ssim: float

    def is_above(self, other: Likeness) -> bool:
        """Whether both figures are higher: one alone can rise by blurring, or by guessing the background."""
        return self.psnr > other.psnr and self.ssim > other.ssim


def shown_gradient(
    module: nn.Module,
    objective: Objective,
    x: Tensor,
    y: Tensor,
    protection: Protection | None = None,
    *,
    source: Source = os.urandom,
) -> Params:
    """The gradient of one example, as the data access of a training round gives it.

    x: (C, *spatial). y: (), the label, or (*spatial), the mask.
    protection: clipped and noised by private data access, for a patient with only this image, in a draw without
    other patients: an attacker who knows all others can subtract them.

    Raises:
        ValueError: the network cannot be trained privately (all reasons).
    """
    rows = Rows(x[None], y[None], torch.zeros(1, dtype=torch.long, device=x.device))
    module.eval()
    if protection is None:
        plain = open_access({"train": rows}, batch=1, seed=0)
        return plain.gradient(module, objective, plain.draw(full=True)).gradient
    from privacy.dp.private_access import (
        open_private,  # Opacus takes seconds to import; plain training does not need it
    )

    private = open_private({"train": rows}, replace(protection, sampling=1.0, views=1), source=source)
    return private.gradient(module, objective, private.draw(full=True)).gradient


def invert_gradient(
    module: nn.Module,
    objective: Objective,
    target: Params,
    shape: tuple[int, ...],
    y: Tensor,
    settings: Inversion,
    generator: torch.Generator,
    *,
    pixels: Pixels = UNIT,
) -> Tensor:
    """An image whose gradient has the same direction: (*shape), like the target's device.

    Args:
        module: it is put into evaluation mode. objective: of the target gradient.
        target: by name of a parameter; only its direction matters.
        shape: (C, *spatial). y: (), the label, or (*spatial), the mask.
        generator: of the noise in the first image.
    """
    named = {name: p for name, p in module.named_parameters() if name in target}
    goals = [target[name] for name in named]
    length = _compute_norm(goals)

    def compute_distance(x: Tensor) -> Tensor:
        loss = objective(module, Batch(x, y[None])).mean()
        parts = torch.autograd.grad(loss, list(named.values()), create_graph=True, allow_unused=True)
        reached = [(part, goal) for part, goal in zip(parts, goals, strict=True) if part is not None]
        along = torch.stack([(part * goal).sum() for part, goal in reached]).sum()
        return 1 - along / (_compute_norm([part for part, _ in reached]) * length).clamp(min=TINY)

    module.eval()
    return _optimize_image(compute_distance, shape, settings, generator, pixels, goals[0])


def invert_features(
    module: nn.Module,
    features: Features,
    target: Tensor,
    shape: tuple[int, ...],
    settings: Inversion,
    generator: torch.Generator,
    *,
    pixels: Pixels = UNIT,
) -> Tensor:
    """An image with the same features: (*shape). See `invert_gradient`.

    Args:
        module: it is put into evaluation mode. features: of a batch of one, by this module.
        target: the features of the image, (1, ...). Their distance is relative to their norm.
    """
    goal = target.detach()

    def compute_distance(x: Tensor) -> Tensor:
        return (features(x) - goal).square().sum() / goal.square().sum().clamp(min=TINY)

    module.eval()
    return _optimize_image(compute_distance, shape, replace(settings, sign=False), generator, pixels, goal)


def compute_likeness(original: Tensor, reconstruction: Tensor) -> Likeness:
    """Similarity of two images (C, *spatial), in the range of the original one.

    PSNR and SSIM (Wang et al., Image quality assessment, IEEE TIP 2004) of scikit-image. The window of SSIM is 7 wide,
    or as wide as the image.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity  # a second that a run without it saves

    truth, guess = (image.detach().cpu().double().numpy() for image in (original, reconstruction))
    span = float(truth.max() - truth.min())
    if not (span > 0 and math.isfinite(span)):
        return Likeness(math.nan, math.nan)
    side = min(7, *truth.shape[1:])
    wide = side if side % 2 else side - 1
    ssim = (
        structural_similarity(truth, guess, data_range=span, channel_axis=0, win_size=wide) if wide >= 3 else math.nan
    )
    with np.errstate(divide="ignore"):  # the same image: infinity
        psnr = peak_signal_noise_ratio(truth, guess, data_range=span)
    return Likeness(float(psnr), float(ssim))


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, summed over the axes: x (b, C, *spatial)."""
    axes = range(2, x.dim())
    return torch.stack([x.diff(dim=axis).abs().mean() for axis in axes if x.shape[axis] > 1] or [x.sum() * 0]).sum()


def _optimize_image(
    compute_distance: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    settings: Inversion,
    generator: torch.Generator,
    pixels: Pixels,
    like: Tensor,
) -> Tensor:
    """The image with the lowest objective during the optimization, which starts at grey."""
    middle, half = (pixels.high + pixels.low) / 2, max((pixels.high - pixels.low) / 2, TINY)
    first = (pixels.mean - middle) / half + GRAIN * torch.randn((1, *shape), generator=generator)
    u = first.to(like).clamp(-1, 1).requires_grad_()
    rule = torch.optim.Adam([u], lr=settings.lr)
    fading = torch.optim.lr_scheduler.MultiStepLR(rule, [int(part * settings.steps) for part in FADING], gamma=0.1)
    best, lowest = u.detach().clone(), math.inf
    for _ in range(settings.steps):
        total = compute_distance(middle + half * u) + settings.tv * total_variation(u)
        value = float(total.detach())
        if not math.isfinite(value):
            break  # the network's output is not finite
        if value < lowest:
            best, lowest = u.detach().clone(), value
        (u.grad,) = torch.autograd.grad(total, u)
        u.grad = u.grad.sign() if settings.sign else u.grad
        rule.step()
        fading.step()
        u.data.clamp_(-1, 1)
    return (middle + half * best)[0]


def _compute_norm(parts: list[Tensor]) -> Tensor:
    """The L2 norm of several tensors taken together."""
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()
