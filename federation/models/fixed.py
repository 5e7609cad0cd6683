"""What the author of a network fixed: frozen parameters, and buffers that training does not change.

They are taken out of a network's parameters and buffers and stay with it as plain attributes. So no method trains,
clips, noises or sends them, and `state_dict` does not know them. Fixed are

* parameters that do not require a gradient;
* buffers inside a submodule whose parameters are all frozen; what holds them stays in evaluation mode (as in Keras,
  where a layer that is not trainable infers), for a running mean, or a spectral norm's vector, that goes on is
  training, too;
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
    """parameters, buffers: names of fixed tensors. still: paths of what stays in evaluation mode because its buffers
    are fixed. passing: names of the buffers that `state_dict` never had.
    """

    parameters: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all fixed tensors."""
        return self.parameters + self.buffers


def find_fixed(network: nn.Module) -> Fixed:
    """What of a network, as its author made it, is fixed."""
    frozen = [f"{path}." if path else "" for path, part in network.named_modules() if _is_frozen(part)]
    resting = _resting(network)
    parameters, buffers, still, passing = list[str](), list[str](), list[str](), list[str]()
    for path, part in network.named_modules():  # a part that has two places comes once
        inside, prefix = f"{path}.".startswith(tuple(frozen)), f"{path}." if path else ""
        parameters += [prefix + name for name, p in part._parameters.items() if p is not None and not p.requires_grad]
        held = [name for name, value in part._buffers.items() if value is not None]
        if held and (inside or path in resting):
            buffers += [prefix + name for name in held]
            passing += [prefix + name for name in held if name in part._non_persistent_buffers_set]
            still.append(path)
    return Fixed(tuple(parameters), tuple(buffers), tuple(still), tuple(passing))


def hide_fixed(network: nn.Module, fixed: Fixed) -> None:
    """Make fixed tensors plain attributes."""
    for name in fixed.names:
        part, last = _place(network, name)
        registered = part._parameters if name in fixed.parameters else part._buffers
        tensor = registered.pop(last)
        setattr(part, last, None if tensor is None else tensor.detach())


def show_fixed(network: nn.Module, fixed: Fixed) -> None:
    """Make fixed tensors parameters and buffers again, so that `state_dict` and `parameters` know them."""
    for name in fixed.names:
        part, last = _place(network, name)
        tensor = getattr(part, last)
        delattr(part, last)
        if name in fixed.parameters:
            part.register_parameter(last, nn.Parameter(tensor, requires_grad=False))
        else:
            part.register_buffer(last, tensor, persistent=name not in fixed.passing)


def read_fixed(network: nn.Module, fixed: Fixed) -> Params:
    """Hidden tensors by name."""
    return {name: getattr(*_place(network, name)) for name in fixed.names}


def write_fixed(network: nn.Module, values: Params) -> None:
    """Hidden tensors become those of that name."""
    for name, value in values.items():
        part, last = _place(network, name)
        setattr(part, last, value)


def apply_to_fixed(network: nn.Module, fixed: Fixed, function: Callable[[Tensor], Tensor]) -> None:
    """What `nn.Module._apply` does to parameters: another device, another type."""
    write_fixed(network, {name: function(value) for name, value in read_fixed(network, fixed).items()})


def copy_network(network: nn.Module, fixed: Fixed) -> nn.Module:
    """A copy for one pass: gradients reach the network's own parameters, and nothing else of the pass does.

    Raises:
        ValueError: it holds an object that cannot be copied.
    """
    whole = [*network.parameters(), *network.buffers(), *read_fixed(network, fixed).values()]
    copies: dict[int, Any] = {id(tensor): tensor.clone() for tensor in whole if tensor is not None}
    try:
        return copy.deepcopy(network, copies)
    except Exception as error:  # of the author's objects
        raise ValueError(
            f"the network cannot be copied ({type(error).__name__}: {error}), and privately each patient passes "
            "through a copy of it; make what it holds in forward, or as parameters and buffers"
        ) from error


def has_fixed_statistics(norm: nn.Module) -> bool:
    """Whether a norm's running statistics are fixed: whatever else changes statistics leaves these."""
    return getattr(norm, "running_mean", None) is not None and "running_mean" not in norm._buffers


def digest_of(fixed: Params) -> str:
    """A digest of names, types, shapes and bits."""
    found = hashlib.sha256()
    for name, value in sorted(fixed.items()):
        found.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _is_frozen(part: nn.Module) -> bool:
    parameters = list(part.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _resting(network: nn.Module) -> set[str]:
    """Paths of submodules that stay in evaluation mode when the network is told to train."""
    before = [(part, part.training) for part in network.modules()]
    network.train()
    resting = {path for path, part in network.named_modules() if not part.training}
    for part, training in before:
        part.training = training
    return resting


def _place(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    above, _, last = name.rpartition(".")
    return network.get_submodule(above), last
