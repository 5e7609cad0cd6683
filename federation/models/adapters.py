"""Adapters of low rank beside the frozen layers of a network: W x + (alpha / rank) B A x.

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022,
section 4.1; `alpha` and `rank` are its names, and those of the library PEFT. B begins with zeros, so that the network
begins as it was. Of a convolution A has the kernel of the layer and `rank` channels, B is a 1x1 convolution.

Convolutions in groups have no adapter. Of a depthwise one the weights of a channel are a single row of k x k numbers,
whose rank is 1: an adapter of it would be as large as the layer.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeGuard, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)
Layer: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


class Adapter(nn.Module):
    """A frozen layer with an adapter. down: A; up: B."""

    def __init__(self, layer: Layer, rank: int, alpha: float) -> None:
        super().__init__()
        self.layer, self.factor = layer.requires_grad_(False), alpha / rank
        self.down, self.up = _make_matrices(layer, rank)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """As the layer's."""
        output: Tensor = self.layer(x)
        correction: Tensor = self.up(self.down(x))
        return output + self.factor * correction

    @torch.no_grad()
    def merge(self) -> Layer:
        """The layer itself, with the adapter added to its weights."""
        product = torch.tensordot(self.up.weight.flatten(1), self.down.weight, dims=1)
        self.layer.weight.add_(self.factor * product)
        return self.layer


def add_adapters(network: Network, *, rank: int = 4, alpha: float = 4.0) -> Network:
    """Freeze a network and put an adapter beside each linear layer and each convolution that has no groups.

    The network is changed. What is to be trained beside the adapters, as a new head, gets its gradient back afterwards
    (`requires_grad_(True)`), or is added afterwards. rank: of each adapter. alpha: by alpha / rank its output is
    multiplied.

    Raises:
        ValueError: rank is below 1, alpha is not positive, or there is no such layer.
    """
    if rank < 1 or not alpha > 0:
        raise ValueError(f"an adapter needs a rank of at least 1 and an alpha above 0, found {rank} and {alpha}")
    network.requires_grad_(False)
    places = _list_places(network)
    if not any(is_adaptable(child) for _, _, child in places):
        what = type(network).__name__
        raise ValueError(f"{what} has no linear layer and no convolution without groups, beside which adapters stand")
    made: dict[int, Adapter] = {}  # a layer in two places has one adapter
    for part, name, child in places:
        if is_adaptable(child):
            if id(child) not in made:
                made[id(child)] = Adapter(child, rank, alpha)
            setattr(part, name, made[id(child)])
    return network


def merge_adapters(network: Network) -> Network:
    """Add each adapter to the weights of its layer, which takes its place. The network is changed and computes the same
    but for rounding.
    """
    merged: dict[int, nn.Module] = {}
    for part, name, child in _list_places(network):
        if isinstance(child, Adapter):
            if id(child) not in merged:
                merged[id(child)] = child.merge()
            setattr(part, name, merged[id(child)])
    return network


def is_adaptable(layer: nn.Module) -> TypeGuard[Layer]:
    """Whether a layer can have an adapter."""
    return isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.groups == 1)


def _list_places(network: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Each submodule's parent, its name there, and itself, as often as it has places; none within adapters."""
    parents = [part for part in network.modules() if not isinstance(part, Adapter)]
    modules = [(part, name, child) for part in parents for name, child in part._modules.items()]
    return [(part, name, child) for part, name, child in modules if child is not None]


def _make_matrices(layer: Layer, rank: int) -> tuple[Layer, Layer]:
    """A and B for a layer, drawn from torch's generator."""
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)
    pointwise: Any = next(kind for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d) if isinstance(layer, kind))
    kind: Any = type(layer)  # a subclass may pad in its own way
    down: Layer = kind(
        layer.in_channels, rank, layer.kernel_size, layer.stride, layer.padding, layer.dilation, bias=False,
        padding_mode=layer.padding_mode,
    )  # fmt: skip
    return down, pointwise(rank, layer.out_channels, 1, bias=False)
