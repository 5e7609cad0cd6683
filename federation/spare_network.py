"""One network of a process that is filled again in place of a new one: to build one takes a millisecond, which is much
of a short round.

Hospitals of a simulation share it, so nothing of one may be in it when the next gets it. Three things see to that.
Only layers of torch, of MONAI and of the modules in `PLAIN` are used again, whose objects hold nothing but parameters
and buffers: not those of somebody's own class, which may keep what it saw. A network goes back only if the work on it
ended without an error, without a hook or a gradient, with every layer, attribute and tensor that it was built with and
no other, and with every number set to zero. And it is filled with all parameters and buffers before anybody gets it.
While it is in use it is nobody else's.

Whether a network was used before shows in no number that is drawn afterwards: to build one that can be used again takes
nothing from torch's generator. Those with dropout are built anew, and dropout goes on from there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
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
    """A network, and what of it may change while it is in use, listed once. tensors: its parameters and buffers by
    name. places: each of them as its layer has it, and as `tensors` has it. layers: the attributes of each layer, and
    mappings among them, with a copy of what they held when they were built. empty: mappings that hold nothing, as those
    of hooks.
    """

    module: nn.Module
    tensors: Params
    parameters: tuple[nn.Parameter, ...]
    places: tuple[tuple[Tensor, Tensor], ...]
    layers: tuple[tuple[dict[str, object], dict[str, object]], ...]
    empty: tuple[dict[str, object], ...]


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
    yield spare.module
    if _clear_network(spare):
        _SPARE.clear()
        _SPARE[key] = spare


def can_be_spare(module: nn.Module) -> bool:
    """Whether a network's layers hold nothing but parameters and buffers that its state has, and draw nothing."""
    tensors = module.state_dict()
    named = _name_tensors(module)
    has_hidden = {name for name, _ in named} != tensors.keys() or len({id(tensor) for _, tensor in named}) < len(named)
    is_large = sum(tensor.nbytes for tensor in tensors.values()) > LARGE  # it would lie in memory between two rounds
    return not (has_hidden or is_large) and not any(
        (isinstance(part, _DropoutNd) and part.p > 0) or not type(part).__module__.startswith(PLAIN)
        for part in module.modules()
    )


def list_parts(module: nn.Module) -> Spare:
    """A network to be used again."""
    tensors, attributes = module.state_dict(), [vars(part) for part in module.modules()]
    places = tuple((tensor, tensors[name]) for name, tensor in _name_tensors(module))
    named = [(name, value) for each in attributes for name, value in each.items() if isinstance(value, dict)]
    full = [mapping for name, mapping in named if mapping and not name.endswith("_hooks")]
    layers = tuple((mapping, dict(mapping)) for mapping in (*attributes, *full))
    empty = tuple(mapping for name, mapping in named if not mapping or name.endswith("_hooks"))
    return Spare(module, tensors, tuple(module.parameters()), places, layers, empty)


def _name_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    """All parameters and buffers by name; one that several layers share has several names."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


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
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return False
    if any(spare.empty) or not all(_is_as_built(*layer) for layer in spare.layers):
        return False
    if any(used.data_ptr() != listed.data_ptr() for used, listed in spare.places):  # a tensor has other memory now
        return False
    for tensor in spare.tensors.values():
        tensor.zero_()
    return True


def _is_as_built(now: dict[str, object], before: dict[str, object]) -> bool:
    """Whether a layer's attributes are the objects that they were. Its mode is set to what it was."""
    if "training" in before:
        now["training"] = before["training"]
    return now.keys() == before.keys() and all(map(operator.is_, now.values(), before.values()))
