"""Trimmed mean: of each parameter the largest and smallest values are left out before averaging.

Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning, ICML 2018, definition 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from federation.algorithm import State
from federation.fedavg import FedAvg
from federation.parameters import prefixed, section
from privacy.message import Message
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class TrimmedMean:
    """share: of the hospitals that are left out at each end; 0 is the plain mean."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["trimmed_mean"] = "trimmed_mean"
    share: float = 0.1

    def __post_init__(self) -> None:
        refuse(unmet(self, share=(0 <= self.share < 0.5, "in [0, 0.5)")))

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send
    train = FedAvg.train

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        models = [section(reply.tensors, "model") for reply in replies.values()]
        cut = int(self.share * len(models))
        stacked = {name: torch.stack([model[name] for model in models]).sort(dim=0).values for name in models[0]}
        kept = {name: values[cut : len(models) - cut] for name, values in stacked.items()}
        counters = {name: values[-1] for name, values in kept.items() if not values.is_floating_point()}
        means = {name: values.mean(dim=0) for name, values in kept.items() if values.is_floating_point()}
        return Message(prefixed("model", means | counters))

    model = FedAvg.model
