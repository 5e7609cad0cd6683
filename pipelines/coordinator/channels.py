"""The moments of a model's channels, from all hospitals that sent theirs with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from federation.matching import ChannelMoments
from pipelines.requests.export import Exported
from privacy.release.form import Absent


def average_moments(replies: Mapping[str, Exported]) -> ChannelMoments:
    """The mean of hospitals' moments, each weighing as its number of patients.

    Raises:
        ValueError: a hospital sent none, or those of another network.
    """
    sent, weights = list[ChannelMoments](), list[float]()
    for site, reply in sorted(replies.items()):
        mean, square, patients = reply.channel_mean, reply.channel_square, reply.channel_patients
        if isinstance(mean, Absent) or isinstance(square, Absent) or isinstance(patients, Absent):
            raise ValueError(f"{site} sent its model without the moments of its channels; it has an older version")
        noise = 0.0 if isinstance(reply.channel_noise, Absent) else reply.channel_noise
        sent.append(ChannelMoments(mean.double(), square.double(), noise))
        weights.append(float(max(1, patients)))
    if len({(len(moments.mean), len(moments.square)) for moments in sent}) != 1:
        raise ValueError(
            f"hospitals sent moments of {sorted({len(moments.mean) for moments in sent})} channels for one model"
        )
    shares = [weight / math.fsum(weights) for weight in weights]
    deviation = math.sqrt(
        math.fsum((share * moments.deviation) ** 2 for share, moments in zip(shares, sent, strict=True))
    )
    return ChannelMoments(
        _mean([moments.mean for moments in sent], shares),
        _mean([moments.square for moments in sent], shares),
        deviation,
    )


def _mean(parts: list[Tensor], shares: list[float]) -> Tensor:
    """The weighted mean of tensors of one shape."""
    return (torch.stack(parts) * torch.tensor(shares, dtype=torch.float64)[:, None]).sum(dim=0)
