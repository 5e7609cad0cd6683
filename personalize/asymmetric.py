"""AsymFedAvg: hospitals with networks of their own average what all of these have in the same shape.

Skorupko, Avgoustidis, Martín-Isla et al.: Federated nnU-Net for privacy-preserving medical image segmentation
(FednnU-Net), Scientific Reports 15, 38312, 2025, and its released code. There each hospital plans an nnU-Net by the
fingerprint of its own data, so that spacings, patches, kernels and depths differ. In the released code a parameter is
averaged if every hospital has one of its name and shape, and the mean is not weighted; all others stay where they are,
also where some of the hospitals agree. The first round begins with the network of one client. The published abstract
says no more; read were abstract and code, not the paper's equations.

Read here: what is shared follows from the plans before round 1 (`list_shared`), so that it does not depend on who
answers in a round; the code decides it anew from what arrived. Nothing else leaves: there a hospital sends its whole
network. What is shared begins alike everywhere, as at the first hospital; a hospital draws the rest by its own seed.
Parts are known by name, as there, although a name can mean other depths in two networks.

Where all hospitals have the same network everything is shared: that is FedAvg with uniform weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import nn

from federation.algorithm import Memory
from federation.descent import Site
from federation.fedavg import FedAvg, Weights, descend_from
from federation.parameters import loaded, section
from federation.task import Task
from personalize import sharing
from personalize.sharing import split_model
from privacy.message import Call, Message, Params


@dataclass(frozen=True, kw_only=True)
class Asymmetric:
    """w_p <- mean over hospitals of w_p,k, for each parameter p that all of them have in the same shape.

    weights: `uniform`, as in the released code, or `size`: by number of training examples.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True
    own_networks: ClassVar = True

    name: Literal["asymmetric"] = "asymmetric"
    weights: Weights = "uniform"

    network = FedAvg.network
    complaints = FedAvg.complaints
    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), self.model(site, received, memory))
        descent = descend_from(site, module, memory)
        return split_model(module, lambda name: is_shared(site.task, name), site, descent.optimizer)

    merge = sharing.merge

    def model(self, site: Site, received: Message, memory: Memory) -> Params:
        params = sharing.model(self, site, received, memory)
        return params if section(memory.tensors, "personal") else site.task.complete(params, site.device)


def is_shared(task: Task, name: str) -> bool:
    """Whether the networks of all hospitals have this parameter or buffer in the same shape."""
    return task.shared is None or name in task.shared


def list_shared(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Names of parameters and buffers that the networks of these tasks have in the same shape and type, sorted.

    Raises:
        RuntimeError, OverflowError, ValueError: a network cannot be built.
    """
    forms = [set(_read_forms(task)) for task in tasks]
    return tuple(sorted(name for name, _, _ in set.intersection(*forms)))


@lru_cache(maxsize=64)
def _read_forms(task: Task) -> tuple[tuple[str, torch.Size, torch.dtype], ...]:
    """Name, shape and type of each parameter and buffer of the task's network, of which nothing is allocated."""
    with torch.device("meta"):
        module: nn.Module = task.model.build(inputs=task.inputs, classes=task.classes)
    return tuple((name, value.shape, value.dtype) for name, value in module.state_dict().items())
