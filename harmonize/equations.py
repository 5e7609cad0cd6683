"""The losses of VAFL's modified CycleGAN, section II.C, on given tensors.

As printed, equation 3 has Dis maximize E[Dis(x^)]^2 + E[1 - Dis(T(x))]^2, which has no maximum for a linear output and
no useful gradient for a bounded one. It is read as least-squares adversarial training (Mao et al., LSGAN, ICCV 2017):
T's part is as in the paper, E[.]^2 means E[(.)^2], and Dis minimizes LSGAN's loss of real against translated.
"""

from __future__ import annotations

from torch import Tensor


def adversarial_loss(scores: Tensor) -> Tensor:
    """Equation 3 for T: E[(1 - Dis(T(x)))^2], of scores of any shape."""
    return (1.0 - scores).square().mean()


def discrimination_loss(real: Tensor, translated: Tensor) -> Tensor:
    """Equation 3 for Dis, as LSGAN: E[(Dis(x^) - 1)^2] + E[Dis(T(x))^2]."""
    return (real - 1.0).square().mean() + translated.square().mean()


def cycle_loss(returned: Tensor, x: Tensor) -> Tensor:
    """Equation 4: E ||F(T(x)) - x||_1, per pixel."""
    return (returned - x).abs().mean()


def classification_loss(probability: Tensor, y: Tensor) -> Tensor:
    """Equation 5: E[(y - C_T(T(x)))^2]; probability and y: (b,)."""
    return (y.to(probability.dtype) - probability).square().mean()


def identity_loss(translated: Tensor, x: Tensor) -> Tensor:
    """Equation 6: E ||T(x^) - x^||_1 over shared images x^, per pixel."""
    return (translated - x).abs().mean()
