"""Several findings of one example, each yes, no or unknown, as chest X-rays have them; and their loss.

All findings of an example are one whole number: the digits of its base 3, the first finding the lowest. So labels stay
one number an example wherever they are kept, pooled, drawn and clipped, and 3 ** `MOST_FINDINGS` fits into 64 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

NO, YES, UNKNOWN = 0, 1, 2
STATES = 3
MOST_FINDINGS = 30


def encode_findings(states: Tensor) -> Tensor:
    """The numbers (...,) int64 of examples with these findings (..., K), each `NO`, `YES` or `UNKNOWN`."""
    return (states.long() * _powers(states.shape[-1], states)).sum(dim=-1)


def decode_findings(codes: Tensor, number: int) -> Tensor:
    """The findings (..., K) int64 of examples with these numbers (...,). number: K, of findings."""
    return torch.div(codes[..., None], _powers(number, codes), rounding_mode="floor") % STATES


def findings_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of each example (b,): the mean over its known findings, 0 where none is known.

    So an example, and a patient whose gradient is clipped, weighs the same however many findings are known, and a
    finding that is unknown moves no weight.

    Args:
        logits: (b, K), a logit of each finding. y: (b,) numbers of `encode_findings`.
    """
    states = decode_findings(y, logits.shape[1])
    known = (states != UNKNOWN).to(logits.dtype)
    losses = functional.softplus(logits) - logits * (states == YES).to(logits.dtype)
    return (losses * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)


def _powers(number: int, like: Tensor) -> Tensor:
    """1, 3, 9, ... (number,) int64, on the device of another tensor."""
    return STATES ** torch.arange(number, device=like.device)
