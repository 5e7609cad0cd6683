"""Tensors that the author of a network fixed: frozen parameters, and buffers that training does not change.

They are removed from the parameters and buffers of the network and become plain attributes. So no method trains, clips,
noises or sends them, and `state_dict` does not contain them. Fixed are

* parameters that do not require a gradient;
* buffers inside a submodule whose parameters are all frozen; the submodule with these buffers stays in
  evaluation mode (as a layer in Keras that is not trainable), because updates of a running mean, or of the vector of a
  spectral norm, are training, too;
* buffers of a submodule that `train()` leaves in evaluation mode, because its author overrode it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privacy.message import Params


@dataclass(frozen=True)
class Fixed:
    """parameters, buffers: names of fixed tensors. still: paths of submodules that stay in evaluation mode because
    their buffers are fixed. passing: names of fixed buffers that are not persistent, so never in `state_dict`.
    """

    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fixed tensors."""
        return self.parameters + self.buffers


def find_fixed(network: nn.Module) -> Fixed:
    """Find the fixed tensors of a network as its author built it."""
    frozen = [f"{path}." if path else "" for path, part in network.named_modules() if _is_frozen(part)]
    resting = _find_resting_paths(network)
    parameters, buffers, still, passing = list[str](), list[str](), list[str](), list[str]()
    for path, part in network.named_modules():  # a submodule with two paths is listed once
        inside, prefix = f"{path}.".startswith(tuple(frozen)), f"{path}." if path else ""
        parameters += [prefix + name for name, p in part._parameters.items() if p is not None and not p.requires_grad]
        buffer_names = [name for name, value in part._buffers.items() if value is not None]
        if buffer_names and (inside or path in resting):
            buffers += [prefix + name for name in buffer_names]
            passing += [prefix + name for name in buffer_names if name in part._non_persistent_buffers_set]
            still.append(path)
    return Fixed(tuple(parameters), tuple(buffers), tuple(still), tuple(passing))


def hide_fixed(network: nn.Module, fixed: Fixed) -> None:
    """Turn fixed tensors into plain attributes."""
    for name in fixed.names:
        part, last = _find_owner(network, name)
        registered = part._parameters if name in fixed.parameters else part._buffers
        tensor = registered.pop(last)
        setattr(part, last, None if tensor is None else tensor.detach())


def show_fixed(network: nn.Module, fixed: Fixed) -> None:
    """Turn fixed tensors into parameters and buffers again, so that `state_dict` and `parameters` contain them."""
    for name in fixed.names:
        part, last = _find_owner(network, name)
        tensor = getattr(part, last)
        delattr(part, last)
        if name in fixed.parameters:
            part.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
        else:
            part.register_buffer(last, tensor, persistent=name not in fixed.passing)


def read_fixed(network: nn.Module, fixed: Fixed) -> Params:
    """The fixed tensors by name."""
    return {name: getattr(*_find_owner(network, name)) for name in fixed.names}


def write_fixed(network: nn.Module, values: Params) -> None:
    """Set fixed tensors by name."""
    for name, value in values.items():
        part, last = _find_owner(network, name)
        setattr(part, last, value)


def apply_to_fixed(network: nn.Module, fixed: Fixed, function: Callable[[Tensor], Tensor]) -> None:
    """Apply a function to fixed tensors, as `nn.Module._apply` does to parameters: to change device or type."""
    write_fixed(network, {name: function(value) for name, value in read_fixed(network, fixed).items()})


def copy_network(network: nn.Module, fixed: Fixed) -> nn.Module:
    """A copy for one pass: gradients reach the parameters of the network, but the pass changes nothing else in it.

    Raises:
        ValueError: the network contains an object that cannot be copied.
    """
    tensors = [*network.parameters(), *network.buffers(), *read_fixed(network, fixed).values()]
    copies: dict[int, Any] = {id(tensor): tensor.clone() for tensor in tensors if tensor is not None}
    try:
        return copy.deepcopy(network, copies)
    except Exception as error:  # of the author's objects
        raise ValueError(
            f"the network cannot be copied ({type(error).__name__}: {error}), and privately each patient passes "
            "through a copy of it; make what it holds in forward, or as parameters and buffers"
        ) from error


def has_fixed_statistics(norm: nn.Module) -> bool:
    """Whether the running statistics of a norm are fixed, so that nothing may change them."""
    return getattr(norm, "running_mean", None) is not None and "running_mean" not in norm._buffers


def compute_fixed_digest(fixed: Params) -> str:
    """A digest of the names, types, shapes and bits of fixed tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(fixed.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _is_frozen(part: nn.Module) -> bool:
    """Whether a module has parameters and none requires a gradient."""
    parameters = list(part.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _find_resting_paths(network: nn.Module) -> set[str]:
    """Paths of submodules that stay in evaluation mode after `network.train()`."""
    before = [(part, part.training) for part in network.modules()]
    network.train()
    resting = {path for path, part in network.named_modules() if not part.training}
    for part, training in before:
        part.training = training
    return resting


def _find_owner(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that holds a tensor, and the last part of its name."""
    above, _, last = name.rpartition(".")
    return network.get_submodule(above), last
