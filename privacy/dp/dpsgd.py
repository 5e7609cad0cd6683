"""DP-SGD: clip every patient, add noise once (Abadi et al., CCS 2016, algorithm 1), by Opacus's optimizer.

Opacus clips, sums over chunks that fit into memory, and divides by the expected number of patients. Only its
noise is replaced, because that must come from the operating system (`privacy/dp/entropy.py` says why).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.optim import SGD

from privacy.dp.entropy import Source, gaussian
from privacy.message import Params


class _Noised(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimizer with noise from a source of bytes."""

    source: Source = staticmethod(os.urandom)

    def add_noise(self) -> None:
        """In float64, rounded once."""
        for p in self.params:
            noise = gaussian(tuple(p.shape), self.noise_multiplier * self.max_grad_norm, self.source)
            p.grad = (p.summed_grad.double() + noise.to(p.device)).to(p.dtype)


def private_gradient(
    params: Mapping[str, nn.Parameter],
    parts: Iterable[Mapping[str, Tensor]],
    *,
    clip: float,
    noise: float,
    expected: float,
    source: Source = os.urandom,
) -> Params:
    """(sum of clipped gradients of patients + noise) / expected, by name.

    Args:
        parts: gradients of the patients of one sample, by name (U, *shape), in chunks that fit into memory; a sample
            without patients is one part of length 0, and gets noise like any other.
        clip: C, the largest L2 norm, over all parameters, of one patient's gradient. noise: the multiplier of C.
        expected: the expected number of patients in a sample, q N.

    Raises:
        ValueError: no part at all, or a part without a name.
    """
    shells = {name: nn.Parameter(p.detach()) for name, p in params.items()}  # Opacus writes into parameters
    rule = _Noised(
        SGD(list(shells.values()), lr=0.0),
        noise_multiplier=noise,
        max_grad_norm=clip,
        expected_batch_size=expected,
    )
    rule.source = source
    waiting: Mapping[str, Tensor] | None = None
    for part in parts:
        if waiting is not None:
            _accumulate(rule, shells, waiting)
        waiting = part
    if waiting is None or set(waiting) != set(shells):
        raise ValueError(f"gradients of patients for {sorted(waiting or {})}, needed are {sorted(shells)}")
    _set_gradients(shells, waiting)
    rule.pre_step()
    return {name: shell.grad.detach() for name, shell in shells.items() if shell.grad is not None}


def _accumulate(rule: _Noised, shells: Mapping[str, nn.Parameter], part: Mapping[str, Tensor]) -> None:
    _set_gradients(shells, part)
    rule.signal_skip_step()
    rule.pre_step()
    rule.zero_grad()


def _set_gradients(shells: Mapping[str, nn.Parameter], part: Mapping[str, Tensor]) -> None:
    for name, shell in shells.items():
        shell.grad_sample = part[name]  # type: ignore[attr-defined]
