"""DP-SGD: clip every patient, add noise once (Abadi et al., CCS 2016, algorithm 1), by Opacus's optimizer.

Opacus clips, sums over chunks that fit into memory, and divides by the expected number of patients. Its noise is
replaced, because that must come from the operating system (`privacy/dp/entropy.py` says why). Small tensors are joined
before, so that it is asked for a norm and a sum once instead of once for each parameter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.optim import SGD

from privacy.dp.entropy import Source, gaussians
from privacy.message import Params

JOINED = 2**12  # numbers of one patient: tensors are joined up to this size


class _Noised(DPOptimizer):  # type: ignore[misc]
    """Opacus's optimizer with noise from a source of bytes. sizes: of the tensors of which its parameters consist."""

    source: Source = staticmethod(os.urandom)
    sizes: Sequence[int] = ()

    def add_noise(self) -> None:
        """In float64, rounded once."""
        drawn = gaussians(self.sizes, self.noise_multiplier * self.max_grad_norm, self.source)
        for p, own in zip(self.params, torch.split(drawn, [len(p) for p in self.params]), strict=True):
            p.grad = (p.summed_grad.double() + own.to(p.device)).to(p.dtype)


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
    rule, waiting = None, list[Tensor]()
    for part in parts:
        if set(part) != set(params):
            raise ValueError(f"gradients of patients for {sorted(part)}, needed are {sorted(params)}")
        joined, wild = without_strays([_joined([part[name].detach() for name in block]) for block in blocks])
        if wild and strays is not None:
            strays(wild)
        if rule is None:
            rule = _rule(joined, clip, noise, expected)
        else:
            _accumulate(rule, waiting)
        waiting = joined
    if rule is None:
        raise ValueError(f"gradients of patients for [], needed are {sorted(params)}")
    rule.source, rule.sizes = source, [p.numel() for p in params.values()]
    _set_gradients(rule, waiting)
    rule.pre_step()
    found: dict[str, Tensor] = {}
    for block, p in zip(blocks, rule.params, strict=True):
        for name, value in zip(block, torch.split(p.grad, [params[name].numel() for name in block]), strict=True):
            found[name] = value.view(params[name].shape).to(params[name].dtype)
    return found


def without_strays(gradients: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Gradients of patients without a finite norm are taken out; also returns how many. They count as zero.

    Clipping does not help against them, because one NaN, times any factor, would make everybody's sum NaN.

    Args:
        gradients: blocks (U, n) of patients' gradients; the norm is over all of them.
    """
    each = [torch.linalg.vector_norm(block, dim=1) for block in gradients]
    norms = torch.linalg.vector_norm(torch.stack(each), dim=0)
    good = norms.isfinite()
    wild = int((~good).sum())
    return ([block[good] for block in gradients] if wild else list(gradients)), wild


def _rule(joined: Sequence[Tensor], clip: float, noise: float, expected: float) -> _Noised:
    shells = [nn.Parameter(block.new_zeros(block.size(1))) for block in joined]  # Opacus writes into parameters
    return _Noised(SGD(shells, lr=0.0), noise_multiplier=noise, max_grad_norm=clip, expected_batch_size=expected)


def _accumulate(rule: _Noised, part: Sequence[Tensor]) -> None:
    _set_gradients(rule, part)
    rule.signal_skip_step()
    rule.pre_step()
    rule.zero_grad()


def _set_gradients(rule: _Noised, part: Sequence[Tensor]) -> None:
    for p, block in zip(rule.params, part, strict=True):
        p.grad_sample = block


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
