"""Random disturbances of pictures, so that a network does not depend on their appearance.

Domain randomization (Tobin et al., IROS 2017; for medical images Billot et al., SynthSeg, Med Image Anal 2023), and in
training BigAug (Zhang et al., IEEE TMI 2020), by MONAI's transforms: contrast, gain, colour, a bias field, blur and
noise, then a window: values above a random one are cut, as an export cuts them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from federation.augmentation import flip_images
from privacy.dp.access import Augment

CONTRAST, GAIN, COLOUR, FIELD, BLUR, NOISE, WINDOW = 0.35, 0.25, 0.1, 0.1, 1.2, 0.08, 0.4
"""At strength 1: exponents and gains lie within e^±these, COLOUR is of single channels; FIELD bounds the coefficients
of a quadratic bias field, BLUR the Gaussian's pixels, NOISE its standard deviation, of values from 0 to 1; a window's
top lies between 1 - WINDOW and 1."""


def disturb_images(x: Tensor, strength: float, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Images x (b, C, [D,] H, W), each disturbed at random. strength: 0 = not at all. low, high: the values that become
    0 and 1 for the disturbance, in the unit of the images; values beyond them are cut.
    """
    if strength == 0 or not len(x):
        return x
    from monai.transforms import (  # MONAI takes seconds to import
        Compose,
        RandAdjustContrast,
        RandBiasField,
        RandGaussianNoise,
        RandGaussianSmooth,
        RandScaleIntensity,
    )

    def factor_range(reach: float) -> tuple[float, float]:
        return math.exp(-reach * strength) - 1, math.exp(reach * strength) - 1

    exponents = (math.exp(-CONTRAST * strength), math.exp(CONTRAST * strength))
    sides = ("sigma_x", "sigma_y", "sigma_z")[: x.dim() - 2]
    steps = Compose(
        [
            RandAdjustContrast(prob=1.0, gamma=exponents),
            RandScaleIntensity(factors=factor_range(GAIN), prob=1.0),
            *(
                [RandScaleIntensity(factors=factor_range(COLOUR), prob=1.0, channel_wise=True)]
                if x.shape[1] > 1
                else []
            ),
            RandBiasField(degree=2, coeff_range=(-FIELD * strength, FIELD * strength), prob=1.0),
            RandGaussianSmooth(prob=0.5, **dict.fromkeys(sides, (0.0, BLUR * strength + 0.001))),
            RandGaussianNoise(prob=0.5, std=NOISE * strength),
        ]
    )
    steps.set_random_state(seed=int(torch.randint(2**31, (), generator=generator)))
    share = ((x - low) / (high - low)).clamp(0, 1).cpu()
    parts = torch.stack([torch.as_tensor(steps(image)).as_subclass(Tensor) for image in share])
    top = 1 - min(WINDOW * strength, 0.9) * torch.rand(len(x), generator=generator)
    cut = torch.minimum(parts.clamp(min=0), top.view(-1, *[1] * (x.dim() - 1)))
    return cut.to(x) * (high - low) + low


def build_disturbance(strength: float, low: float, high: float, *, before: Augment | None = flip_images) -> Augment:
    """A function of batches for training: views by `before`, then `disturb_images`."""

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = (x, y) if before is None else before(x, y, generator)
        return disturb_images(x, strength, low, high, generator), y

    return augment
