"""DP-SGD: clip every patient, add noise once (Abadi et al., CCS 2016, algorithm 1).

This is what Opacus's `DPOptimizer` does, and a test compares them; here small tensors are joined, so that a step asks
for a norm, a sum and noise once instead of once for each parameter, and nothing is built for each step. The noise comes
from the operating system (`privacy/dp/entropy.py` says why).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from privacy.dp.entropy import Source, gaussians
from privacy.message import Params

JOINED = 2**12  # numbers of one patient: tensors are joined up to this size
TINY = 1e-6  # added to a norm before dividing by it, as in Opacus


def private_gradient(
    params: Mapping[str, nn.Parameter],
    parts: Iterable[Mapping[str, Tensor]],
    *,
    clip: float,
    noise: float,
    expected: float,
    source: Source = os.urandom,
    strays: Callable[[int], None] | None = None,
) -> Params:
    """(sum of clipped gradients of patients + noise) / expected, by name.

    Args:
        parts: gradients of the patients of one sample, by name (U, *shape), in chunks that fit into memory; a sample
            without patients is one part of length 0, and gets noise like any other.
        clip: C, the largest L2 norm, over all parameters, of one patient's gradient. noise: the multiplier of C.
        expected: the expected number of patients in a sample, q N.
        strays: told how many patients of a part have a gradient without a finite norm. They count as zero.

    Raises:
        ValueError: no part at all, or a part without a name.
    """
    blocks = _blocks(params)
    total: list[Tensor] | None = None
    for part in parts:
        if set(part) != set(params):
            raise ValueError(f"gradients of patients for {sorted(part)}, needed are {sorted(params)}")
        joined = [_joined([part[name].detach() for name in block]) for block in blocks]
        of_part, wild = clipped_sum(joined, clip)
        if wild and strays is not None:
            strays(wild)
        total = of_part if total is None else [whole + own for whole, own in zip(total, of_part, strict=True)]
    if total is None:
        raise ValueError(f"gradients of patients for [], needed are {sorted(params)}")
    drawn = gaussians([p.numel() for p in params.values()], noise * clip, source)
    found: dict[str, Tensor] = {}
    for block, exact, own in zip(blocks, total, torch.split(drawn, [len(exact) for exact in total]), strict=True):
        noised = (exact.double() + own.to(exact.device)).to(exact.dtype) / expected  # in float64, rounded once
        sizes = [params[name].numel() for name in block]
        for name, value in zip(block, torch.split(noised, sizes), strict=True):
            found[name] = value.view(params[name].shape).to(params[name].dtype)
    return found


def clipped_sum(gradients: Sequence[Tensor], clip: float) -> tuple[list[Tensor], int]:
    """The sum over patients of their gradients, each cut to an L2 norm of `clip`; and the number of strays.

    A patient whose gradient has no finite norm counts as zero: clipping does not help against them, because one NaN,
    times any factor, would make everybody's sum NaN.

    Args:
        gradients: blocks (U, n) of patients' gradients; the norm is over all of them.
    """
    each = [torch.linalg.vector_norm(block, dim=1) for block in gradients]
    norms = each[0] if len(each) == 1 else torch.linalg.vector_norm(torch.stack(each), dim=0)
    factors = (clip / (norms + TINY)).clamp(max=1.0)
    if math.isfinite(float(norms.sum())):  # then every number is finite
        return [block.t().mv(factors.to(block.dtype)) for block in gradients], 0
    good = norms.isfinite()
    return [block[good].t().mv(factors[good].to(block.dtype)) for block in gradients], int((~good).sum())


def _blocks(params: Mapping[str, nn.Parameter]) -> list[list[str]]:
    """The names in order, those of small tensors together."""
    blocks: list[list[str]] = []
    room = 0
    for name, p in params.items():
        if p.numel() > room:
            blocks.append([])
            room = JOINED
        blocks[-1].append(name)
        room -= p.numel()
    return blocks


def _joined(gradients: Sequence[Tensor]) -> Tensor:
    """(U, n) of tensors (U, *shape); the largest of their types."""
    flat = [gradient.flatten(1) if gradient.dim() > 1 else gradient[:, None] for gradient in gradients]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)
