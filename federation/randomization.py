"""Pictures disturbed on purpose, so that a network begun on drawn ones does not rely on how they look.

Domain randomization (Tobin et al., IROS 2017; for medical images Billot et al., SynthSeg, Med Image Anal 2023), by
MONAI's transforms: contrast, gain, colour, a bias field, blur and noise, after a mirror image.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from federation.augmentation import flip
from privacy.dp.access import Augment

CONTRAST, GAIN, COLOUR, FIELD, BLUR, NOISE = 0.35, 0.25, 0.1, 0.1, 1.2, 0.08
"""At strength 1: exponents and gains lie within e^±these, COLOUR is of single channels; FIELD bounds the coefficients
of a quadratic bias field, BLUR the Gaussian's pixels, NOISE its standard deviation, of values from 0 to 1."""


def disturbances(strength: float, low: float, high: float) -> Augment:
    """A function that disturbs batches (b, C, [D,] H, W). strength: 0 = mirror images only. low, high: the values that
    are 0 and 1 for the disturbance, in the images' unit; what leaves them is cut.
    """

    def disturbed(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x, y = flip(x, y, generator)
        if strength == 0:
            return x, y
        from monai.transforms import (  # MONAI takes seconds to import
            Compose,
            RandAdjustContrast,
            RandBiasField,
            RandGaussianNoise,
            RandGaussianSmooth,
            RandScaleIntensity,
        )

        def around(reach: float) -> tuple[float, float]:
            return math.exp(-reach * strength) - 1, math.exp(reach * strength) - 1

        exponents = (math.exp(-CONTRAST * strength), math.exp(CONTRAST * strength))
        sides = ("sigma_x", "sigma_y", "sigma_z")[: x.dim() - 2]
        steps = Compose(
            [
                RandAdjustContrast(prob=1.0, gamma=exponents),
                RandScaleIntensity(factors=around(GAIN), prob=1.0),
                *([RandScaleIntensity(factors=around(COLOUR), prob=1.0, channel_wise=True)] if x.shape[1] > 1 else []),
                RandBiasField(degree=2, coeff_range=(-FIELD * strength, FIELD * strength), prob=1.0),
                RandGaussianSmooth(prob=0.5, **dict.fromkeys(sides, (0.0, BLUR * strength + 0.001))),
                RandGaussianNoise(prob=0.5, std=NOISE * strength),
            ]
        )
        steps.set_random_state(seed=int(torch.randint(2**31, (), generator=generator)))
        parts = [torch.as_tensor(steps(one)) for one in ((x - low) / (high - low)).clamp(0, 1)]
        return torch.stack(parts).clamp(0, 1).to(x) * (high - low) + low, y

    return disturbed
