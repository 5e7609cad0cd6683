"""The WGAN-GP of VAFL as published, and the noise that the paper adds to it (PPWGAN-GP): settings and equation 2.

Yan et al., IEEE JBHI 2021: equation 1 and section II.A (WGAN-GP for the complexity score), section II.B and equation 2
(noise), section III.C (Adam, learning rate 1e-4, batch 24, 100 epochs). What is stated is fixed: lambda = 10, n_d = 5
steps of the critic per step of the generator, random weights at the start, no classes, no running mean, no public
start. Adam's betas are not stated; they are those of Gulrajani et al. (the paper's [19]), algorithm 1: 0 and 0.9. Both
networks, z, the number of steps and the number of deformed copies are free, because the paper does not say.

Equation 2 adds N(0, sigma^2 c_g^2) to every coordinate of the critic's gradient, with

    sigma = 2 q sqrt(n_d ln(1 / delta)) / epsilon,    n_d = 5, c_g = 1, delta = 1e-5, epsilon = 10

and claims (epsilon, delta) for it. That formula is of one generator step, not of a training run (Xie et al., DPGAN,
2018, lemma 2), and it needs gradients that no record exceeds by c_g. The gradient penalty does not bound them: it is on
the slope for the image, not for the weights. So, as printed, there is no finite epsilon. Two readings:

* `wgan_gp` with an epsilon, as printed: nothing is clipped, a record is an image that is trained on, deformed copies
  included, and q = batch / images. The ledger has it as non-private.
* `dp_wgan_gp`, the paper's premise made true: each patient's gradient is clipped to c_g, a record is a patient, and the
  noise is added to the mean (added to the sum it would be smaller still, with almost no guarantee). Its true epsilon
  is finite, and `harmonize.wgan.compute_true_cost` computes it. With tens of patients the noise is many times the
  gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

CRITIC_STEPS, CLIP, BATCH = 5, 1.0, 24
BETAS = (0.0, 0.9)

PAPER: Mapping[str, Any] = {
    "learns": "whole", "critic_steps": CRITIC_STEPS, "clip": CLIP, "lr": 1e-4, "batch": BATCH, "ema": 0.0,
    "gp_weight": 10.0, "prior": None,
}  # fmt: skip
"""What the paper fixes, by the name of a field of `harmonize.wgan.WganGp`."""
FIXED = PAPER.keys() - {"lr"}
"""Of these, the fields that may not be set. lr may be: 1e-4 goes with the paper's 30,000 steps, and fewer need more."""


class Drawn(NamedTuple):
    """Of private data access: the probability with which a patient is drawn, and its images in a step."""

    sampling: float
    views: int


def plan_draws(patients: int) -> Drawn:
    """About 24 images a step: one each of 24 patients, or several of each if there are fewer."""
    return Drawn(min(1.0, BATCH / patients), max(1, BATCH // patients))


def noise_sigma(q: float, *, epsilon: float, delta: float) -> float:
    """Equation 2: sigma_n for the sampling probability q, of noise on a gradient that one record bounds by c_g = 1."""
    return 2 * q * math.sqrt(CRITIC_STEPS * math.log(1 / delta)) / epsilon


def noise_multiplier(q: float, batch: float, *, epsilon: float, delta: float) -> float:
    """Standard deviation / clip of the noise on the sum of a batch's clipped gradients.

    The noise of sigma_n is added to the mean over the batch: on the sum it is batch * sigma_n. In the other reading,
    noise of sigma_n on the sum, the multiplier is sigma_n itself, and 100 epochs of the paper's size cost an epsilon of
    tens of thousands.

    Args:
        q: batch / records, the probability with which a record is drawn. batch: expected records per step.

    Raises:
        ValueError: not 0 < q <= 1, or batch is not positive.
    """
    if not (0 < q <= 1 and batch > 0):
        raise ValueError(f"q must be in (0, 1] and batch above 0, found {q} and {batch}")
    return batch * noise_sigma(q, epsilon=epsilon, delta=delta)
