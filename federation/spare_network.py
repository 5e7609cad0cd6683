"""One network of a process that is filled again in place of a new one: to build one takes a millisecond, which is much
of a short round.

Hospitals of a simulation share it, so nothing of one may be in it when the next gets it. Three things see to that.
Only layers of torch, of MONAI and of the modules in `PLAIN` are used again, whose objects hold nothing but parameters
and buffers: not those of somebody's own class, which may keep what it saw. A network goes back only if the work on it
ended without an error, without a hook or a gradient, and with every number set to zero. And it is filled with all
parameters and buffers before anybody gets it. While it is in use it is nobody else's.

Whether a network was used before shows in no number that is drawn afterwards: to build one that can be used again takes
nothing from torch's generator. Those with dropout are built anew, and dropout goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from federation.algorithm import Algorithm
from federation.parameters import loaded
from federation.task import Task
from privacy.message import LARGE, Params

Key: TypeAlias = tuple[Algorithm, Task, torch.dtype]
MODELS = "federation.models."
PLAIN = (
    "torch.nn.modules.",
    "monai.networks.",
    *(MODELS + name for name in ("cam", "cnn", "mlp", "planned", "resnet", "unet")),
)
"""How the names of modules begin whose layers hold nothing but parameters and buffers."""


class Spare(NamedTuple):
    """A network, and what of it changes while it is in use, listed once. tensors: its parameters and buffers by name.
    hooks: the mappings in which its layers keep hooks.
    """

    module: nn.Module
    tensors: Params
    parameters: tuple[nn.Parameter, ...]
    hooks: tuple[Mapping[int, object], ...]


_SPARE: dict[Key, Spare] = {}
"""The network that was used last, filled with zeros; none while it is in use."""


@contextmanager
def borrow_network(algorithm: Algorithm, task: Task, params: Params) -> Iterator[nn.Module]:
    """A network of this algorithm and task with these parameters and buffers, for a block. What is read of it in the
    block must be copied: afterwards it is zero.

    Raises:
        RuntimeError: a name or a shape does not fit (`federation.parameters.loaded`).
    """
    key = algorithm, task, torch.get_default_dtype()
    spare = _SPARE.pop(key, None)
    if spare is None or not _fits(spare.tensors, params):
        before = torch.get_rng_state()
        module = loaded(algorithm.network(task), params)
        spare = list_parts(module) if task.frozen is None and can_be_spare(module) else None
        if spare is None:
            yield module
            return
        torch.set_rng_state(before)
    else:
        for name, tensor in spare.tensors.items():
            tensor.copy_(params[name])
        if not spare.module.training:
            spare.module.train()
    yield spare.module
    if _clear_network(spare):
        _SPARE.clear()
        _SPARE[key] = spare


def can_be_spare(module: nn.Module) -> bool:
    """Whether a network's layers hold nothing but parameters and buffers that its state has, and draw nothing."""
    tensors = module.state_dict()
    has_hidden = len(tensors) != sum(1 for _ in (*module.parameters(), *module.buffers()))
    is_large = sum(tensor.nbytes for tensor in tensors.values()) > LARGE  # it would lie in memory between two rounds
    return not (has_hidden or is_large) and not any(
        (isinstance(part, _DropoutNd) and part.p > 0) or not type(part).__module__.startswith(PLAIN)
        for part in module.modules()
    )


def list_parts(module: nn.Module) -> Spare:
    """A network to be used again."""
    parts = [value for part in module.modules() for name, value in vars(part).items() if name.endswith("_hooks")]
    return Spare(module, module.state_dict(), tuple(module.parameters()), tuple(parts))


def _fits(tensors: Params, params: Params) -> bool:
    """Whether parameters can be copied into a network's tensors where they lie."""
    return tensors.keys() == params.keys() and all(
        (tensor.shape, tensor.device) == (params[name].shape, params[name].device) for name, tensor in tensors.items()
    )


def _clear_network(spare: Spare) -> bool:
    """Set a network's numbers to zero and forget its gradients; whether nothing else was left in it."""
    for parameter in spare.parameters:
        parameter.grad = None
        if vars(parameter) or not parameter.requires_grad:  # as per-patient gradients of some libraries
            return False
    for tensor in spare.tensors.values():
        tensor.zero_()
    return not any(spare.hooks)
