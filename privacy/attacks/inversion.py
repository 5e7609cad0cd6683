"""What does a patient's image look like to somebody who sees its gradient, or its features? Attacks that draw it.

Whoever holds a model and one of the two moves an image until it gives the same, and keeps it smooth on the way:
gradients by their cosine (Geiping et al., Inverting gradients - how easy is it to break privacy in federated learning?,
NeurIPS 2020, equation 4), features by their distance (Mahendran and Vedaldi, Understanding deep image representations
by inverting them, CVPR 2015; on medical images Subbanna et al., Sensors 21(11):3874, 2021).

The attacker here has more than a coordinator of a federation has: the gradient of a single image, where a round sums up
many images over many steps; its label, or its mask; the range of the images; and the network in evaluation mode, with
running statistics of batch norm that came along with the model. In training mode the image would be normalized by its
own statistics, which nobody sent: that hides something. So what is drawn badly here is drawn no better there.

What such an attack can show: that an image leaks, if it is drawn. What it cannot: that it does not, if it is not; a
better attack may come. Beside it stands a floor that needs no attack: the mean of other patients' images.
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
"""features(x (1, ...)) -> what is known of it, of any shape."""
FADING = (3 / 8, 5 / 8, 7 / 8)  # of the steps, after which the rate is a tenth of what it was (Geiping's code)
IMAGES, STEPS = 16, 2000
GRAIN = 0.1  # of the first image: from coarse noise, as in Geiping et al., a U-Net's features led nowhere
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """How hard is tried. A pixel runs from -1 to 1 while it is moved, whatever its unit: lr and tv are in these units.

    images: how many, a patient each. steps: of Adam. lr: its rate at first. tv: weight of the total variation. sign:
    of gradients only: it follows the signs of the derivatives alone, as Geiping et al. do.
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
    """What is known of an image's values beforehand: bounds, within which they stay, and the mean, where it begins."""

    low: float = -1.0
    high: float = 1.0
    mean: float = 0.0


UNIT = Pixels()


class Likeness(NamedTuple):
    """psnr: dB. ssim: at most 1. Of an image without any range both are NaN."""

    psnr: float
    ssim: float

    def above(self, other: Likeness) -> bool:
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
    protection: clipped and noised by private data access, as of a patient whose only image this is, in a draw in which
    nobody else is: whoever knows all others can subtract them.

    Raises:
        ValueError: the network cannot be trained privately (all reasons).
    """
    rows = Rows(x[None], y[None], torch.zeros(1, dtype=torch.long, device=x.device))
    module.eval()
    if protection is None:
        plain = open_access({"train": rows}, batch=1, seed=0)
        return plain.gradient(module, objective, plain.draw(full=True)).gradient
    from privacy.dp.private_access import open_private  # Opacus: seconds that plain training saves

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
    """An image whose gradient points the same way: (*shape), like the target's device.

    Args:
        module: it is put into evaluation mode. objective: whose gradient it was.
        target: by name of a parameter; of any length, since only its direction counts.
        shape: (C, *spatial). y: (), the label, or (*spatial), the mask.
        generator: of the grain of the first image.
    """
    named = {name: p for name, p in module.named_parameters() if name in target}
    goals = [target[name] for name in named]
    length = _norm(goals)

    def apart(x: Tensor) -> Tensor:
        loss = objective(module, Batch(x, y[None])).mean()
        parts = torch.autograd.grad(loss, list(named.values()), create_graph=True, allow_unused=True)
        reached = [(part, goal) for part, goal in zip(parts, goals, strict=True) if part is not None]
        along = torch.stack([(part * goal).sum() for part, goal in reached]).sum()
        return 1 - along / (_norm([part for part, _ in reached]) * length).clamp(min=TINY)

    module.eval()
    return _moved(apart, shape, settings, generator, pixels, goals[0])


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
        target: the features of the image, (1, ...). The distance to them is taken in units of their length.
    """
    goal = target.detach()

    def apart(x: Tensor) -> Tensor:
        return (features(x) - goal).square().sum() / goal.square().sum().clamp(min=TINY)

    module.eval()
    return _moved(apart, shape, replace(settings, sign=False), generator, pixels, goal)


def likeness(original: Tensor, found: Tensor) -> Likeness:
    """How alike two images (C, *spatial) are, in the range of the original one.

    PSNR and SSIM (Wang et al., Image quality assessment, IEEE TIP 2004) of scikit-image. The window of SSIM is 7 wide,
    or as wide as the image.
    """
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity  # a second that a run without it saves

    truth, guess = (image.detach().cpu().double().numpy() for image in (original, found))
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


def _moved(
    apart: Callable[[Tensor], Tensor],
    shape: tuple[int, ...],
    settings: Inversion,
    generator: torch.Generator,
    pixels: Pixels,
    like: Tensor,
) -> Tensor:
    """The image with the lowest objective on the way, from an even grey one."""
    middle, half = (pixels.high + pixels.low) / 2, max((pixels.high - pixels.low) / 2, TINY)
    first = (pixels.mean - middle) / half + GRAIN * torch.randn((1, *shape), generator=generator)
    u = first.to(like).clamp(-1, 1).requires_grad_()
    rule = torch.optim.Adam([u], lr=settings.lr)
    fading = torch.optim.lr_scheduler.MultiStepLR(rule, [int(part * settings.steps) for part in FADING], gamma=0.1)
    best, lowest = u.detach().clone(), math.inf
    for _ in range(settings.steps):
        total = apart(middle + half * u) + settings.tv * total_variation(u)
        value = float(total.detach())
        if not math.isfinite(value):
            break  # a network that gives no number shows nothing
        if value < lowest:
            best, lowest = u.detach().clone(), value
        (u.grad,) = torch.autograd.grad(total, u)
        u.grad = u.grad.sign() if settings.sign else u.grad
        rule.step()
        fading.step()
        u.data.clamp_(-1, 1)
    return (middle + half * best)[0]


def _norm(parts: list[Tensor]) -> Tensor:
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()
