"""Test-time routing, the network: every layer's kernel is mixed anew for each image from K + 1 models of one
architecture.

Jiang, Yang, Cheng, Dou: IOP-FL, IEEE Transactions on Medical Imaging 2023, section III.C, equations 5 and 6:
W_o = sum_k r_k W_k with r = sigmoid(theta(psi(h))), psi the mean over all places of the layer's input h. The models are
the K sites' personal ones and, last, the global one. What the paper leaves open or contradicts, and our readings:

* Algorithm 1 starts at r = 1/(K + 1), while the sigmoid of equation 6 starts at 1/2: theta's last bias starts at -ln K
  and its last weights at zero, which gives 1/(K + 1) for every image. The first map of theta starts random: with both
  at zero its weights would never get a gradient.
* Coefficients are neither normalized nor tied between layers; each image has its own.
* theta is a "multi-layer linear network": C -> 2C -> K + 1 without a nonlinearity, as in the released code.
* All convolutions, transposed ones, the bottleneck, the head and linear layers are mixed, weights and biases. The
  released code mixes and trains fewer: a fifth site's model is dropped, the bottleneck's coefficients stay random.
* Norms: the scale and shift are the global model's, for group norms too; batch norms take the test images' statistics
  (see adaptation_norms).

Kernels are mixed first and all images then go through one grouped convolution: its time and memory hardly grow with K,
while a convolution with every model would take K + 1 times both (benchmarks/speed/routing.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.parameters import NORMS
from federation.task import pool_features
from personalize.adaptation_norms import Affine, AtTest, Statistics, by_test_statistics, replace

Layer: TypeAlias = nn.Conv2d | nn.Conv3d | nn.ConvTranspose2d | nn.ConvTranspose3d | nn.Linear
CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Router(nn.Module):
    """theta of one layer: maps its pooled input (b, C) to coefficients (b, K + 1), each in (0, 1)."""

    adapts = True

    def __init__(self, inputs: int, experts: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        self.widen, self.choose = nn.Linear(inputs, 2 * inputs), nn.Linear(2 * inputs, experts)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            for p in self.widen.parameters():
                p.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
            self.choose.weight.zero_()
            self.choose.bias.fill_(-math.log(experts - 1))

    def forward(self, h: Tensor) -> Tensor:
        coefficients: Tensor = self.choose(self.dropout(self.widen(h))).sigmoid()
        return coefficients


class OneRouter(nn.Module):
    """The same coefficients for all layers and images: the global combination of table III."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.full((experts,), -math.log(experts - 1)))

    def forward(self, h: Tensor) -> Tensor:
        return self.logits.sigmoid().expand(len(h), -1)


class Mixed(nn.Module):
    """One layer mixed from all models' layers. used: (b, K + 1), the last coefficients; fixed: (K + 1,), used instead
    of theta's if set.
    """

    def __init__(self, layers: Sequence[Layer], router: nn.Module) -> None:
        super().__init__()
        self.router = router
        self.fixed: Tensor | None = None
        self.used: Tensor | None = None
        self.apply_kernels = _apply_kernels_of(layers[-1])
        self.shape = layers[-1].weight.shape
        self.out_features = self.shape[0]  # a network may read its head's number of logits
        self.weights: Tensor
        self.biases: Tensor | None
        self.register_buffer("weights", torch.stack([layer.weight.detach().flatten() for layer in layers]))
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        self.register_buffer("biases", torch.stack(biases) if biases else None)

    def forward(self, x: Tensor) -> Tensor:
        r = self.router(pool_features(x)) if self.fixed is None else self.fixed.to(x).expand(len(x), -1)
        self.used = r.detach()
        biases = None if self.biases is None else r @ self.biases
        return self.apply_kernels(x, (r @ self.weights).view(len(x), *self.shape), biases)


class Routed(AtTest):
    """K + 1 models as one network with the same inputs and outputs as each of them; see `routed`."""

    def __init__(self, network: nn.Module, experts: int) -> None:
        super().__init__(network)
        self.experts = experts

    @property
    def layers(self) -> dict[str, Mixed]:
        """The mixed layers by name, in the network's order."""
        return {name: part for name, part in self.network.named_modules() if isinstance(part, Mixed)}


def build_routed(
    experts: Sequence[nn.Module],
    *,
    layerwise: bool = True,
    statistics: Statistics = "image",
    affine: Affine = "fixed",
    dropout: float = 0.0,
    seed: int = 0,
) -> Routed:
    """A network mixed from models of one architecture, on the device of the last. The models are not changed.

    Args:
        experts: the K sites' models, and last the global one, whose norms are used.
        layerwise: whether each layer has its own coefficients; otherwise one vector serves all layers and images.
        statistics: those that batch norms use. affine: whether norms' scales and shifts may be trained.
        dropout: between the two maps of theta, in training mode (released code: 0.2).
        seed: of theta's first maps.

    Raises:
        ValueError: fewer than two models, different ones, or layers that cannot be mixed; all are named.
    """
    problems = _architecture_problems(experts) or _layer_problems(experts[-1])
    if problems:
        raise ValueError("; ".join(problems))
    network, generator = deepcopy(experts[-1]), torch.Generator().manual_seed(seed)
    by_test_statistics(network, statistics, affine)
    single_router = None if layerwise else OneRouter(len(experts))
    made: dict[nn.Module, Mixed] = {}
    for name, part in list(network.named_modules(remove_duplicate=False)):
        if isinstance(part, Layer) and part not in made:
            layers = [_layer(expert, name) for expert in experts]
            inputs = part.in_features if isinstance(part, nn.Linear) else part.in_channels
            made[part] = Mixed(layers, single_router or Router(inputs, len(experts), dropout, generator))
        if isinstance(part, Layer):
            replace(network, name, made[part])
    first = next(experts[-1].parameters())
    return Routed(network, len(experts)).to(device=first.device, dtype=first.dtype)


def set_coefficients(module: Routed, r: Tensor | None) -> None:
    """Use these coefficients for every image: (K + 1,) for all layers, (L, K + 1) by layer; None: the routers' again.

    Raises:
        ValueError: another shape.
    """
    layers = module.layers
    shapes = [(module.experts,), (len(layers), module.experts)]
    if r is not None and tuple(r.shape) not in shapes:
        raise ValueError(f"coefficients must have shape {shapes[0]} or {shapes[1]}, found {tuple(r.shape)}")
    for index, layer in enumerate(layers.values()):
        layer.fixed = None if r is None else (r if r.dim() == 1 else r[index]).detach().clone()


def coefficients(module: Routed, x: Tensor) -> Tensor:
    """The routing matrix of each image x (n, C, *spatial): (n, L, K + 1), layers in the order of `module.layers`."""
    module.eval()
    with torch.no_grad():
        module(x)
    return torch.stack([layer.used for layer in module.layers.values() if layer.used is not None], dim=1)


def _apply_kernels_of(layer: Layer) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """(x, kernels (b, *shape), biases (b, out)) -> the layer's output if each image has its own kernel."""
    if isinstance(layer, nn.Linear):

        def multiply(x: Tensor, kernels: Tensor, biases: Tensor | None) -> Tensor:
            y = torch.einsum("bi,boi->bo", x, kernels)
            return y if biases is None else y + biases

        return multiply
    settings = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
    if isinstance(layer, nn.ConvTranspose2d | nn.ConvTranspose3d):
        settings["output_padding"] = layer.output_padding
    name = f"conv{'_transpose' * layer.transposed}{len(layer.kernel_size)}d"
    convolve: Callable[..., Tensor] = getattr(functional, name)
    groups, outputs = layer.groups, layer.out_channels

    def apply_grouped(x: Tensor, kernels: Tensor, biases: Tensor | None) -> Tensor:
        b = len(x)
        flat = None if biases is None else biases.flatten()
        y = convolve(x.reshape(1, -1, *x.shape[2:]), kernels.flatten(0, 1), flat, groups=b * groups, **settings)
        return y.view(b, outputs, *y.shape[2:])

    return apply_grouped


def _layer(expert: nn.Module, name: str) -> Layer:
    """A submodule of an expert. Raises: ValueError: in this model it is no layer."""
    layer = expert.get_submodule(name)
    if not isinstance(layer, Layer):
        raise ValueError(f"{name} is a {type(layer).__name__} in one model and a layer to mix in another")
    return layer


def _architecture_problems(experts: Sequence[nn.Module]) -> list[str]:
    """Why these models cannot be routed: too few, or of different shapes."""
    if len(experts) < 2:
        return [f"routing needs the models of a site and of all, at least two, found {len(experts)}"]
    shapes = [{name: tuple(value.shape) for name, value in expert.state_dict().items()} for expert in experts]
    return [
        f"model {k + 1} of {len(experts)} is not the last one's kind: {', '.join(sorted(odd)[:3])} differ"
        for k, expert_shapes in enumerate(shapes[:-1])
        if (odd := {name for name, _ in expert_shapes.items() ^ shapes[-1].items()})
    ]


def _layer_problems(network: nn.Module) -> list[str]:
    """Names layers with parameters that are neither mixable nor norms, and paddings other than zeros."""
    known = (*CONVOLUTIONS, nn.Linear, *NORMS)
    parts = [(name, part) for name, part in network.named_modules() if list(part.parameters(recurse=False))]
    odd = [f"{name} ({type(part).__name__})" for name, part in parts if not isinstance(part, known)]
    padded = [(name, part) for name, part in parts if isinstance(part, CONVOLUTIONS)]
    odd += [f"{name} (padding {part.padding_mode})" for name, part in padded if part.padding_mode != "zeros"]
    if not any(isinstance(part, Layer) for _, part in parts):
        return [f"{type(network).__name__} has no convolution and no linear layer: there is nothing to mix"]
    return [f"routing cannot mix {', '.join(odd)}: choose another network"] if odd else []
