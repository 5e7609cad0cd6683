"""Small networks for images (n, C, H, W) in [-1, 1]: a generator, a critic, a classifier.

Small on purpose: under differential privacy noise is added to every coordinate of the critic's gradient, so its norm
grows with the number of parameters while the signal does not; and one core has to train them in minutes. Images are
halved until the shorter side is 4 to 7 pixels (at least three times), so that larger images do not mean larger layers
at the ends.

No network here has buffers. The critic sees patients, and what a buffer keeps of them would pass by clipping and noise
(`privacy.modules.unfit`). The generator sees none, but has group norms as well, so that an image does not depend on the
batch in which it was drawn.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 2
SLOPE = 0.2  # of leaky ReLU below zero
LEAST, MOST = 8, 256
LEAST_CHANNELS = 8

Inputs = tuple[int, int, int]
Module = TypeVar("Module", bound=nn.Module)


class Generator(nn.Module):
    """A class-conditional generator. latent: length of z. inputs: (C, H, W). width: a quarter of the channels of the
    smallest layer; each doubling halves them, because the large layers are what costs time.
    """

    def __init__(self, latent: int, inputs: Inputs, width: int = 16) -> None:
        super().__init__()
        _checked(inputs, width)
        self.latent = latent
        self.sizes = halved(inputs)[::-1]
        channels = [max(4 * width // 2**layer, LEAST_CHANNELS) for layer in range(len(self.sizes))]
        self.first = nn.Linear(latent + CLASSES, channels[0] * math.prod(self.sizes[0]))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.ConvTranspose2d(a, b, 4, 2, padding=1), nn.GroupNorm(groups(b), b), nn.LeakyReLU(SLOPE))
            for a, b in itertools.pairwise(channels)
        )
        self.last = nn.Conv2d(channels[-1], inputs[0], 3, padding=1)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Z (b, latent) and classes y (b,) to images (b, C, H, W) in [-1, 1]."""
        h = functional.leaky_relu(self.first(torch.cat([z, one_hot(y, z)], dim=1)), SLOPE)
        h = h.view(len(h), -1, *self.sizes[0])
        for (height, width), block in zip(self.sizes[1:], self.blocks, strict=True):
            h = block(h)[:, :, :height, :width]
        return torch.tanh(self.last(h))


class Critic(nn.Module):
    """A class-conditional critic: a linear score of features, with one more for each class (projection: Miyato and
    Koyama, cGANs with projection discriminator, ICLR 2018, equation 3). inputs: (C, H, W). width: of the first layer.

    Features keep their place, because organs have one. No norm, as the penalty already bounds the slope: fewer
    parameters that noise is added to.
    """

    def __init__(self, inputs: Inputs, width: int = 16) -> None:
        super().__init__()
        _checked(inputs, width)
        sizes = halved(inputs)
        channels = [inputs[0], *_widths(width, len(sizes) - 1)]
        convolutions = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(channels)]
        features = channels[-1] * math.prod(sizes[-1])
        self.score = nn.Linear(features, 1)
        self.of_class = nn.Linear(features, CLASSES, bias=False)
        for convolution in convolutions:  # torch's own: slopes of hundredths, and the penalty wants 1
            nn.init.kaiming_normal_(convolution.weight, a=SLOPE)
            nn.init.zeros_(cast(Tensor, convolution.bias))
        self.convolutions = nn.ModuleList(convolutions)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Images x (b, C, H, W) and classes y (b,) to scores (b,), without bounds."""
        for convolution in self.convolutions:
            x = functional.leaky_relu(convolution(x), SLOPE)
        h = x.flatten(1)
        score: Tensor = self.score(h)[:, 0] + (self.of_class(h) * one_hot(y, h)).sum(dim=1)
        return score


class Classifier(nn.Module):
    """Logit of class 1. inputs: (C, H, W). width: of the first layer.

    A logit is a linear function of the mean and of the maximum of each feature over the image, so that a small lesion
    counts wherever it is.
    """

    def __init__(self, inputs: Inputs, width: int = 16) -> None:
        super().__init__()
        _checked(inputs, width)
        channels = [inputs[0], *_widths(width, 3)]
        self.features = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(groups(b), b), nn.ReLU(), nn.MaxPool2d(2))
                for a, b in itertools.pairwise(channels)
            )
        )
        self.head = nn.Linear(2 * channels[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images x (b, C, H, W) to logits (b,)."""
        h = self.features(x)
        logit: Tensor = self.head(torch.cat([h.mean(dim=(2, 3)), h.amax(dim=(2, 3))], dim=1))[:, 0]
        return logit


def initialised(build: Callable[[], Module], seed: int) -> Module:
    """What `build` makes when torch's own random numbers start from `seed`; the caller's go on as if nothing was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """Classes (b,) as (b, 2), of the type of `like`. Torch's own looks at the values, which vmap forbids."""
    return (y[:, None] == torch.arange(CLASSES, device=y.device)).to(like.dtype)


def halved(inputs: Inputs) -> list[tuple[int, int]]:
    """(H, W) halved and rounded up at least three times and until the shorter side is below 8."""
    sizes = [inputs[1:]]
    while len(sizes) < 4 or min(sizes[-1]) >= 8:
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    return sizes


def groups(channels: int) -> int:
    """Groups of a group norm: of four channels or so, as many as divide them."""
    return math.gcd(channels, max(1, channels // 4))


def _widths(width: int, layers: int) -> list[int]:
    """Twice as many channels a layer, up to four times."""
    return [width * min(2**layer, 4) for layer in range(layers)]


def _checked(inputs: Inputs, width: int) -> None:
    wrong = []
    if len(inputs) != 3 or inputs[0] < 1 or any(n % 8 or not LEAST <= n <= MOST for n in inputs[1:]):
        wrong.append(
            f"inputs must be (channels, height, width) with sides that are multiples of 8 from {LEAST} to {MOST}, "
            f"found {tuple(inputs)}: crop or resample the images"
        )
    if width < 1:
        wrong.append(f"width must be >= 1, found {width}")
    if wrong:
        raise ValueError("; ".join(wrong))
