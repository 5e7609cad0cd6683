"""Arithmetic on parameters by name, and sections of a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from privacy.message import Params

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
"""Layers that normalize."""
PIECE = 2**20
"""Numbers of a tensor that are computed with at a time, where a result beside it would take as much memory again."""


def read_parameters(module: nn.Module) -> Params:
    """Parameters and buffers of a module, copied: later training does not change them."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def loaded(module: nn.Module, params: Params) -> nn.Module:
    """The module with these parameters and buffers copied in, on the device of the tensors.

    Raises:
        RuntimeError: a name or a shape does not fit (torch's own message names them all).
    """
    module_tensors, first = module.state_dict(), next(iter(params.values()), None)
    if first is not None and any(tensor.device != first.device for tensor in module_tensors.values()):
        module = module.to(first.device)
        module_tensors = module.state_dict()
    if module_tensors.keys() == params.keys() and all(
        tensor.shape == params[name].shape for name, tensor in module_tensors.items()
    ):
        for name, tensor in module_tensors.items():
            tensor.copy_(params[name])
    else:
        module.load_state_dict(dict(params))  # whose error says what does not fit
    return module


def section(tensors: Params, name: str) -> Params:
    """The tensors whose names begin with `name/`, without that prefix."""
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}/")}


def prefixed(name: str, tensors: Params) -> Params:
    """The same tensors under `name/`."""
    return {f"{name}/{key}": value for key, value in tensors.items()}


def select_parameters(params: Params, predicate: Callable[[str], bool]) -> Params:
    """The parameters whose names the predicate accepts."""
    return {name: value for name, value in params.items() if predicate(name)}


def average_models(models: Sequence[Params], weights: Sequence[float]) -> Params:
    """Weighted mean of models. Floats in float64, rounded once; integer buffers (counters) take the maximum.

    Raises:
        ValueError: no models, or weights that do not sum to a positive number.
    """
    total = float(sum(weights))
    if not models or not total > 0:
        raise ValueError(f"a mean needs models and positive weights, found {len(models)} models, weights {weights}")
    return {
        name: _average_tensors([model[name] for model in models], [w / total for w in weights]) for name in models[0]
    }


def _average_tensors(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The mean of tensors weighted by shares; of integers the maximum. Large ones are averaged in pieces, each number
    by itself: memory holds no float64 of all.
    """
    first = tensors[0]
    if first.numel() > PIECE and all(tensor.is_contiguous() for tensor in tensors):
        mean = torch.empty_like(first)
        pieces = zip(split_numbers(mean), *map(split_numbers, tensors), strict=True)
        for piece, *parts in pieces:
            piece.copy_(_average_tensors(parts, shares))
        return mean
    if not first.is_floating_point():
        return torch.stack(list(tensors)).amax(dim=0)
    total = torch.zeros_like(first, dtype=torch.float64)
    for tensor, share in zip(tensors, shares, strict=True):
        total += share * tensor.double()
    return total.to(first.dtype)


def split_numbers(tensor: Tensor) -> tuple[Tensor, ...]:
    """The numbers of a tensor in order, in pieces of at most `PIECE`: (m,) each, one of none."""
    return torch.split(tensor.reshape(-1), PIECE)


def add_scaled(params: Params, *, plus: Params, times: float = 1.0) -> Params:
    """params + times * plus, for floats in both; all other tensors as in `params`."""
    return {
        name: value + times * plus[name] if name in plus and value.is_floating_point() else value
        for name, value in params.items()
    }


def subtract_parameters(left: Params, right: Params) -> Params:
    """left - right, for names in both."""
    return {name: left[name] - right[name] for name in left if name in right}


def parameter_distance(left: Params, right: Params, names: Iterable[str]) -> float:
    """Euclidean distance over the parameters of these names, added up in their order."""
    return float(sum(float((left[name] - right[name]).square().sum()) for name in names) ** 0.5)


def make_zeros(params: Params) -> Params:
    """Zeros of the same names and shapes."""
    return {name: torch.zeros_like(value) for name, value in params.items()}


def trainable_parameters(module: nn.Module) -> Mapping[str, nn.Parameter]:
    """Parameters (not buffers) by name."""
    return dict(module.named_parameters())


def count_values(params: Params) -> int:
    """Total number of values."""
    return sum(value.numel() for value in params.values())


def mark_buffers(module: nn.Module, tensors: Params) -> Params:
    """`model/...` of a whole module with its buffers under `buffer/...`, because the coordinator has no module to tell
    them from parameters.
    """
    names = trainable_parameters(module)
    return {
        (key if (name := key.removeprefix("model/")) in names else f"buffer/{name}"): value
        for key, value in tensors.items()
    }
