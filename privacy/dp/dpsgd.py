"""DP-SGD: clip every patient, add noise once (Abadi et al., CCS 2016, algorithm 1), by Opacus's optimizer.

Opacus clips one patient at a time, in float64, and divides by the expected number of patients. Two things are ours. The
sum is exact: each patient's clipped gradient is rounded to a multiple of 2^-40 of the clipping norm first, and whole
numbers are added. So neither the order of patients nor their number changes how a patient's part is rounded
(Casacuberta et al., Widespread underestimation of sensitivity in differentially private libraries, CCS 2022). And noise
comes from the operating system (`privacy/dp/entropy.py` says why). Rounding moves a patient's norm by 2^-41 for each
root of its numbers, 2e-9 for eleven million; `SLACK` covers it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.optim import SGD

from privacy.dp.access import SUM_UNIT
from privacy.dp.discrete_gaussian import LARGEST_SIGMA, draw_discrete_gaussian
from privacy.dp.entropy import Source, draw_gaussians
from privacy.dp.moments import SLACK, UNIT
from privacy.message import Params

LEAST_SIGMA = 2.0**20


class _Noised(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimizer for one vector, with noise from a source of bytes. sizes: of the tensors in the vector."""

    source: Source = staticmethod(os.urandom)
    sizes: Sequence[int] = ()

    def add_noise(self) -> None:
        """In float64."""
        (p,) = self.params
        drawn = draw_gaussians(self.sizes, SLACK * self.noise_multiplier * self.max_grad_norm, self.source)
        p.grad = p.summed_grad + drawn.to(p.device)

    def clip(self, gradient: Tensor) -> Tensor:
        """One patient's gradient (n,), clipped."""
        (p,) = self.params
        p.grad_sample = gradient[None]
        self.clip_and_accumulate()
        clipped: Tensor = p.summed_grad
        p.summed_grad = None
        return clipped

    def add_noise_and_scale(self, total: Tensor) -> Tensor:
        """(the sum of clipped gradients (n,) + noise) / the expected number of patients."""
        (p,) = self.params
        p.grad_sample, p.summed_grad = torch.zeros_like(total)[None], total
        self.add_noise()
        self.scale_grad()
        noised: Tensor = p.grad
        return noised


def private_gradient(
    params: Mapping[str, nn.Parameter],
    patients: Iterable[Params],
    *,
    clip: float,
    noise: float,
    expected: float,
    source: Source = os.urandom,
    strays: Callable[[int], None] | None = None,
) -> Params:
    """(sum of clipped gradients of patients + noise) / expected, by name.

    Args:
        patients: the gradient of each patient of one sample, by name; a sample without patients gets noise too.
        clip: C, the largest L2 norm, over all parameters, of one patient's gradient. noise: the multiplier of C.
        expected: the expected number of patients in a sample, q N.
        strays: called with the number of patients whose gradient is not finite. They count as zero: clipping does not
            help against them, because one NaN, times any factor, would make everybody's sum NaN.

    Raises:
        ValueError: a patient's gradient has other names.
    """
    sizes = [p.numel() for p in params.values()]
    rule = _open_rule(params, sizes, clip=clip, noise=noise, expected=expected, source=source)
    total = _sum_clipped(rule, params, patients, steps=UNIT / clip, strays=strays)
    parts = torch.split(rule.add_noise_and_scale(total.double() * (clip / UNIT)), sizes)
    return {name: part.view(p.shape).to(p.dtype) for (name, p), part in zip(params.items(), parts, strict=True)}


def private_gradient_sum(
    params: Mapping[str, nn.Parameter],
    patients: Iterable[Params],
    *,
    clip: float,
    noise: float,
    source: Source = os.urandom,
    strays: Callable[[int], None] | None = None,
) -> Params:
    """The sum of clipped gradients of patients + noise of the discrete Gaussian distribution, int64 of SUM_UNIT.

    Clipped gradients are rounded before they are added, and whole numbers are added to whole numbers: nothing is
    rounded after the noise. Rounding moves a patient's norm by half a unit for each root of its numbers, which the
    noise is made larger for. Sums of such noise over hospitals: Kairouz, Liu, Steinke: The distributed discrete
    Gaussian mechanism for federated learning with secure aggregation, ICML 2021, theorem 1: Renyi divergences are those
    of Gaussian noise up to exp(-pi^2 sigma^2), sigma in units. Delta at a given epsilon is a sum over a lattice in
    place of an integral, which differs by about 1 / sigma^2: 2^-40 for the least sigma that is allowed here.

    Args:
        As `private_gradient`.

    Raises:
        ValueError: a patient's gradient has other names; or the noise is no multiple of clip that units can hold.
    """
    sizes = [p.numel() for p in params.values()]
    sigma = discrete_sigma(clip, noise, sum(sizes))
    rule = _open_rule(params, sizes, clip=clip, noise=noise, expected=1.0, source=source)
    total = _sum_clipped(rule, params, patients, steps=1 / SUM_UNIT, strays=strays)
    total = total + torch.from_numpy(draw_discrete_gaussian(sum(sizes), sigma, source)).to(total.device)
    return {name: part.view(p.shape) for (name, p), part in zip(params.items(), torch.split(total, sizes), strict=True)}


def discrete_sigma(clip: float, noise: float, numbers: int) -> float:
    """Sigma, in units, of the noise on a sum of clipped gradients of so many numbers; 0 without noise.

    Raises:
        ValueError: it is too small to pass for Gaussian noise, or too large to be drawn.
    """
    sigma = SLACK * noise * (clip / SUM_UNIT + math.sqrt(numbers) / 2)
    if noise and not LEAST_SIGMA <= sigma <= LARGEST_SIGMA:
        low, high = LEAST_SIGMA * SUM_UNIT, LARGEST_SIGMA * SUM_UNIT
        raise ValueError(
            f"the noise of a summed gradient is noise x clip = {noise * clip:.4g}; allowed is {low:g} to {high:g}: "
            "choose another clip"
        )
    return sigma


def _open_rule(
    params: Params, sizes: Sequence[int], *, clip: float, noise: float, expected: float, source: Source
) -> _Noised:
    """Opacus's optimizer for one vector of all parameters."""
    shell = nn.Parameter(next(iter(params.values())).new_zeros(sum(sizes), dtype=torch.float64))
    rule = _Noised(SGD([shell], lr=0.0), noise_multiplier=noise, max_grad_norm=clip, expected_batch_size=expected)
    rule.source, rule.sizes = source, sizes
    return rule


def _sum_clipped(
    rule: _Noised, params: Params, patients: Iterable[Params], *, steps: float, strays: Callable[[int], None] | None
) -> Tensor:
    """The exact sum of clipped gradients, each rounded: (n,) int64. steps: how many units a gradient of 1 has."""
    (shell,) = rule.params
    total = torch.zeros_like(shell, dtype=torch.int64)
    wild = torch.zeros((), dtype=torch.int64, device=shell.device)  # read once: a GPU need not wait for each patient
    # Memory that each patient's numbers fill again: to get it anew for each takes longer than to compute with it.
    flat, units = torch.empty_like(shell.detach()), torch.empty_like(total)
    places = dict(zip(params, torch.split(flat, list(rule.sizes)), strict=True))
    for gradient in patients:
        if set(gradient) != set(params):
            raise ValueError(f"a patient's gradient for {sorted(gradient)}, needed are {sorted(params)}")
        for name, place in places.items():
            place.copy_(gradient[name].detach().flatten())
        is_finite = torch.stack(torch.aminmax(flat)).isfinite().all()
        units.copy_(rule.clip(flat).mul_(steps).round_())
        total += units.mul_(is_finite)
        wild += ~is_finite
    if strays is not None and (number := int(wild)):
        strays(number)
    return total
