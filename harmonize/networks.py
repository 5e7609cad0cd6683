"""Small networks for images (n, C, H, W) in [-1, 1]: a generator, a critic, a classifier.

Small on purpose: under differential privacy noise is added to every coordinate of the critic's gradient, so its norm
grows with the number of parameters while the signal does not; and one core has to train them in minutes. Images are
halved until the shorter side is 4 to 7 pixels (at least three times), so that larger images do not mean larger layers
at the ends.

No network here has buffers. The critic uses patients, and a buffer's memory of them would bypass clipping and noise
(`privacy.dp.modules.find_unfit_parts`). The generator uses none, but has group norms as well, so that an image does not
depend on its batch.
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
    """A generator, class-conditional unless classes=0. latent: length of z. inputs: (C, H, W). width: a quarter of the
    channels of the smallest layer; each doubling of size halves the channels, because the large layers dominate the
    cost. A dense layer of 16 width units takes z first, at almost no cost.
    """

    def __init__(self, latent: int, inputs: Inputs, width: int = 16, classes: int = CLASSES) -> None:
        super().__init__()
        _check_inputs(inputs, width)
        self.latent, self.classes = latent, classes
        self.sizes = halve_sizes(inputs)[::-1]
        channels = [max(4 * width // 2**layer, LEAST_CHANNELS) for layer in range(len(self.sizes))]
        self.read = nn.Linear(latent + classes, 16 * width)
        self.first = nn.Linear(16 * width, channels[0] * math.prod(self.sizes[0]))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ConvTranspose2d(a, b, 4, 2, padding=1), nn.GroupNorm(group_count(b), b), nn.LeakyReLU(SLOPE)
            )
            for a, b in itertools.pairwise(channels)
        )
        self.last = nn.Conv2d(channels[-1], inputs[0], 3, padding=1)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        """Z (b, latent) and classes y (b,) to images (b, C, H, W) in [-1, 1]."""
        h = torch.cat([z, one_hot(y, z)], dim=1) if self.classes else z
        h = functional.leaky_relu(self.read(h), SLOPE)
        h = functional.leaky_relu(self.first(h), SLOPE)
        h = h.view(len(h), -1, *self.sizes[0])
        for (height, width), block in zip(self.sizes[1:], self.blocks, strict=True):
            h = block(h)[:, :, :height, :width]
        return torch.tanh(self.last(h))


class Critic(nn.Module):
    """A critic: a linear score of features, with one more for each class (projection: Miyato and Koyama, cGANs with
    projection discriminator, ICLR 2018, equation 3) unless classes=0. inputs: (C, H, W). width: of the first layer.

    Features keep their position, because organs have one. No norm, because the penalty already bounds the slope: fewer
    parameters get noise.
    """

    def __init__(self, inputs: Inputs, width: int = 16, classes: int = CLASSES) -> None:
        super().__init__()
        _check_inputs(inputs, width)
        sizes = halve_sizes(inputs)
        channels = [inputs[0], *_layer_widths(width, len(sizes) - 1)]
        convolutions = [nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(channels)]
        features = channels[-1] * math.prod(sizes[-1])
        self.score = nn.Linear(features, 1)
        self.of_class = nn.Linear(features, classes, bias=False) if classes else None
        for convolution in convolutions:  # torch's default gives slopes of hundredths, and the penalty aims at 1
            nn.init.kaiming_normal_(convolution.weight, a=SLOPE)
            nn.init.zeros_(cast(Tensor, convolution.bias))
        self.convolutions = nn.ModuleList(convolutions)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Images x (b, C, H, W) and classes y (b,) to unbounded scores (b,)."""
        for convolution in self.convolutions:
            x = functional.leaky_relu(convolution(x), SLOPE)
        h = x.flatten(1)
        score: Tensor = self.score(h)[:, 0]
        return score if self.of_class is None else score + (self.of_class(h) * one_hot(y, h)).sum(dim=1)


class Moments(nn.Module):
    """A critic that is linear in public features: coordinates p_j of an image in a public basis, and their squares.

    D(x, y) = score f(x) + (y - 1/2) (of_class f(x) / 2 + share), with f = (sqrt(d_1 / d_j) p_j / unit) for all j, then
    sqrt(d_1 d_j) ((p_j / d_j)^2 - 1) / (sqrt(8) unit), where d are the deviations of public images along the basis,
    and unit makes the norm of f for the median public image 1. The root gives components of small variance less weight
    than whitening would: noise is equal in all coordinates. Only the three weights are trained: 121 numbers for 30
    components, against the tens of thousands of `Critic`.
    """

    class_weight = 0.5  # class differences are weighted by half, and so is their sensitivity to a patient

    def __init__(self, inputs: Inputs, components: int) -> None:
        super().__init__()
        _check_inputs(inputs, components)
        size = math.prod(inputs)  # parameters that are never trained: private data access refuses buffers
        self.mean = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.components = nn.Parameter(torch.zeros(components, size), requires_grad=False)
        self.deviation = nn.Parameter(torch.ones(components), requires_grad=False)
        self.unit = nn.Parameter(torch.ones(1), requires_grad=False)
        self.score = nn.Linear(2 * components, 1, bias=False)
        self.of_class = nn.Linear(2 * components, 1, bias=False)
        self.share = nn.Linear(1, 1, bias=False)
        for layer in (self.score, self.of_class, self.share):
            nn.init.zeros_(layer.weight)

    def features(self, x: Tensor) -> Tensor:
        """f of images x (b, C, H, W): (b, 2 components)."""
        along = (x.flatten(1) - self.mean) @ self.components.T
        weight = (self.deviation[0] / self.deviation).sqrt()
        square = weight * self.deviation * ((along / self.deviation).square() - 1) / math.sqrt(8)
        return torch.cat([weight * along, square], dim=1) / self.unit

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Images x (b, C, H, W) and classes y (b,) to scores (b,)."""
        f, side = self.features(x), (y.to(x.dtype) - 0.5)[:, None]
        scores: Tensor = (self.score(f) + self.class_weight * side * self.of_class(f) + self.share(side))[:, 0]
        return scores


class Classifier(nn.Module):
    """Logit of class 1. inputs: (C, H, W). width: of the first layer.

    The logit is a linear function of the mean and of the maximum of each feature over the image, so that a small lesion
    counts wherever it is.
    """

    def __init__(self, inputs: Inputs, width: int = 16) -> None:
        super().__init__()
        _check_inputs(inputs, width)
        channels = [inputs[0], *_layer_widths(width, 3)]
        self.features = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(group_count(b), b), nn.ReLU(), nn.MaxPool2d(2)
                )
                for a, b in itertools.pairwise(channels)
            )
        )
        self.head = nn.Linear(2 * channels[-1], 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images x (b, C, H, W) to logits (b,)."""
        h = self.features(x)
        logit: Tensor = self.head(torch.cat([h.mean(dim=(2, 3)), h.amax(dim=(2, 3))], dim=1))[:, 0]
        return logit


def initialise_module(build: Callable[[], Module], seed: int) -> Module:
    """The module that `build` makes with torch's random state seeded by `seed`; the caller's random state is not
    changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build()


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """Classes (b,) as (b, 2), of the type of `like`. Torch's own one_hot reads the values, which vmap forbids."""
    return (y[:, None] == torch.arange(CLASSES, device=y.device)).to(like.dtype)


def halve_sizes(inputs: Inputs) -> list[tuple[int, int]]:
    """(H, W) halved and rounded up at least three times and until the shorter side is below 8."""
    sizes = [inputs[1:]]
    while len(sizes) < 4 or min(sizes[-1]) >= 8:
        sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
    return sizes


def group_count(channels: int) -> int:
    """Number of groups of a group norm: groups of about four channels, and a divisor of their number."""
    return math.gcd(channels, max(1, channels // 4))


def _layer_widths(width: int, layers: int) -> list[int]:
    """Channels by layer: doubled at each, up to four times the width."""
    return [width * min(2**layer, 4) for layer in range(layers)]


def _check_inputs(inputs: Inputs, width: int) -> None:
    """Raises ValueError if these networks cannot take such images, or if the width is below 1."""
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
