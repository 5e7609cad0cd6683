"""CusFL: each site trains its own network, and the federated feature extractor only guides its features.

Wicaksana, Yan, Yang, Liu, Fan, Cheng: Customized Federated Learning for Multi-Source Decentralized Medical Image
Classification, IEEE JBHI 2022, section III, equations 2 to 5, and the ablations of section V.

What the paper leaves open, and our readings.
* Balance. lambda_1 L_task = lambda_2 L_sim "dynamically": lambda_1 = 1 and lambda_2 = r / (1 - r) L_task / L_sim, not
  differentiated (else the guidance would cancel), from the means of a mini-batch; under differential privacy from each
  patient's own losses, which is a different method, CusFL balanced by patient. `paper`: as printed, unbounded; 0 where
  L_sim is 0 up to rounding, as in the first step, where it would be infinite. As its gradient is that of
  r / (1 - r) L_task log L_sim, nothing keeps the projections from collapsing to one vector. `capped` (ours): at most
  `cap`, and 0 in the first round, when the federated part is the untrained common start.
* Equation 5. Delta theta_k is theta_k - xi, over the sites present: xi <- xi + mean_k (theta_k - xi) = mean_k theta_k,
  unweighted. h and all layers after the split never leave a site, and a private network is never overwritten.
* g: mean over all places, then two linear layers with a ReLU between. Without it (`projection: null`) the means are
  aligned.
* Batch norms in frozen parts use the batch's statistics and update none; dropout is off there.
* Not frozen (table X): the site's copy of f_xi, g_xi learns from L_sim beside the private network, and is discarded
  after the round.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from federation.algorithm import Memory, State
from federation.descent import Site, Work, averages
from federation.fedavg import FedAvg, descend_from, merged
from federation.local import Local
from federation.moon import contrast, cosine
from federation.parameters import loaded, prefixed, read, section, select
from federation.task import Output, Task
from personalize.sharing import Headless
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet

TINY = 1e-6  # 1 - cosine below this is rounding
COLLAPSED = 0.98  # a higher mean cosine between projections of different images: they carry no information


@dataclass(frozen=True, kw_only=True)
class CusFL:
    """Equations 4 and 5. r: the share of the guidance in the loss; r = 0 is local training.

    depth: f is the first `depth` of stem and blocks (3 = up to the third block, as in the paper). projection: width of
    g's output. freeze: the federated part is not trained at the site. contrast: L_sim, or MOON's loss instead (table
    IX). resync (ours, for experiments): the site's f and g restart from the federated ones each round.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["cusfl"] = "cusfl"
    r: float = 0.5
    balance: Literal["capped", "paper"] = "capped"
    cap: float = 1.0
    depth: int = 3
    projection: int | None = 128
    freeze: bool = True
    contrast: Literal["similarity", "moon"] = "similarity"
    temperature: float = 0.5
    resync: bool = False

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                r=(0 <= self.r < 1, "in [0, 1)"),
                cap=(self.cap > 0, "> 0"),
                depth=(self.depth >= 1, ">= 1"),
                projection=(self.projection is None or self.projection >= 1, ">= 1 or null"),
                temperature=(self.temperature > 0, "> 0"),
            )
        )

    def network(self, task: Task) -> nn.Module:
        """The task's own network; g is beside it as `projector`, which prediction does not use."""
        module = task.network()
        with torch.no_grad():
            width = at_split(module.eval(), self.depth, torch.zeros(1, *task.inputs))[1].shape[1]
        out = self.projection
        with torch.random.fork_rng(devices=()):  # dropout draws the same numbers as without g
            layers = [] if out is None else [nn.Linear(width, out), nn.ReLU(), nn.Linear(out, out)]
        module.add_module("projector", nn.Sequential(*layers))
        return module.train()

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        parts = parts_of(module)
        if self.depth > len(parts):
            return [
                f"{self.name} would split after part {self.depth}, but {type(module).__name__} has {len(parts)} (stem "
                f"and blocks): set depth to at most {len(parts)}"
            ]
        if any(True for part in parts[: self.depth] for _ in part.parameters()):
            return []
        return [f"{self.name} would share a feature extractor without parameters: choose another network or depth"]

    introduce = FedAvg.introduce
    start = FedAvg.start

    def send(self, state: State, site: str, call: Call) -> Message:
        known = call.merged.get(site, 0) > 0
        return Message(select(state.tensors, lambda name: not (known and name.startswith("model/"))))

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        own, federated = self.model(site, received, memory), section(received.tensors, "federated")
        network = loaded(self.network(site.task), {**own, **federated} if self.resync else own)
        if self.r == 0 or (self.balance == "capped" and not federated):
            optimizer, notes = descend_from(site, network, memory).optimizer, dict[str, float]()
        else:
            guide = self._extractor(network, federated or own)
            past = self._extractor(network, own) if self.contrast == "moon" else None
            optimizer, notes = self._train_guided(site, Guided(network, guide, past, self.depth, self.freeze), memory)
        kept = {**prefixed("model", read(network)), **prefixed("optimizer", optimizer)}
        sent = prefixed("model", select(read(network), self._is_shared))
        return Message(sent), Message(kept, {"notes": {**notes}})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        start = prefixed("model", section(state.tensors, "model"))
        return Message({**start, **prefixed("federated", merged(replies, "uniform"))})

    model = Local.model

    def _is_shared(self, name: str) -> bool:
        part, rest = name.split(".", 1)
        return part in ("stem", "projector") or (part == "blocks" and int(rest.split(".")[0]) < self.depth - 1)

    def _extractor(self, network: nn.Module, params: Params) -> nn.Module:
        """f and g alone, with these parameters."""
        module = copy.deepcopy(network)
        module.blocks = nn.ModuleList(parts_of(module)[1 : self.depth])
        module.head = Headless(module.get_parameter("head.weight").shape[0])
        return loaded(module, select(params, self._is_shared))

    def _train_guided(self, site: Site, module: Guided, memory: Memory) -> tuple[Params, dict[str, float]]:
        """Train one round by equation 4. Returns the private network's optimizer state, and notes for the site."""
        seen: list[Tensor] = []
        trained = ("network.",) if self.freeze else ("network.", "guide.")
        descent = site.descend(
            module,
            self._objective(site.task, seen),
            trainable=lambda name: name.startswith(trained),
            optimizer={f"network.{name}": v for name, v in section(memory.tensors, "optimizer").items()},
        )
        notes = averages(("similarity", "lambda2", "between"), seen, descent)
        if notes:
            notes["collapsed"] = float(notes["between"] > COLLAPSED)
        return {
            name.removeprefix("network."): v for name, v in descent.optimizer.items() if name.startswith("network.")
        }, notes

    def _objective(self, task: Task, seen: list[Tensor]) -> Objective:
        def whole(forward: Forward, batch: Batch) -> Tensor:
            found = forward(batch.x)
            if not isinstance(found, Aligned):
                raise TypeError(f"training is guided by Aligned, found {type(found).__name__}")
            wanted = task.objective(lambda x: found.output, batch)
            apart = 1 - cosine(found.own, found.guide)
            if found.past is not None:
                apart = contrast(found.own, found.guide, found.past, self.temperature)
            weight = self._weight(wanted.detach().mean(), apart.detach().mean())
            if len(batch.x) > 1:
                seen.append(torch.stack([apart.mean(), weight, between(found.guide)]).detach())
            return wanted + weight * apart

        return whole

    def _weight(self, wanted: Tensor, apart: Tensor) -> Tensor:
        """lambda_2, from mean losses that are not differentiated."""
        weight = self.r / (1 - self.r) * wanted / apart.clamp(min=TINY)
        weight = torch.where(apart > TINY, weight, torch.zeros_like(weight))
        return weight.clamp(max=self.cap) if self.balance == "capped" else weight


class Aligned(NamedTuple):
    """output: of the private network; own, guide, past: (b, d) projected features of the private network, of the
    federated part, and of the private network at the start of the round (None without MOON's contrast).
    """

    output: Output
    own: Tensor
    guide: Tensor
    past: Tensor | None


class Guided(nn.Module):
    """A private network and the federated part that guides it; frozen parts stay frozen in training mode, too."""

    def __init__(self, network: nn.Module, guide: nn.Module, past: nn.Module | None, depth: int, freeze: bool) -> None:
        super().__init__()
        self.network, self.guide, self.past, self.depth, self.freeze = network, guide, past, depth, freeze

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for part in (self.guide if self.freeze else None, self.past):
            if part is not None:
                freeze_statistics(part)
        return self

    def forward(self, x: Tensor) -> Aligned:
        output, own = projected(self.network, self.depth, x)
        past = None if self.past is None else projected(self.past, self.depth, x)[1]
        return Aligned(output, own, projected(self.guide, self.depth, x)[1], past)


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Stem and blocks, in their order."""
    return [module.get_submodule("stem"), *module.get_submodule("blocks").children()]


def at_split(module: nn.Module, depth: int, x: Tensor) -> tuple[Output, Tensor]:
    """The network's output, and the output (b, c) of its part number `depth` (or its last part, if there are fewer),
    mean over places.
    """
    caught: list[Tensor] = []
    part = parts_of(module)[:depth][-1]
    handle = part.register_forward_hook(lambda _, __, value: caught.append(value))
    try:
        output = module(x)
    finally:
        handle.remove()
    return output, caught[0].flatten(2).mean(dim=2) if caught[0].dim() > 2 else caught[0]


def projected(module: nn.Module, depth: int, x: Tensor) -> tuple[Output, Tensor]:
    """The network's output, and g(f(x)): (b, projection)."""
    output, features = at_split(module, depth, x)
    return output, module.get_submodule("projector")(features)


def freeze_statistics(module: nn.Module) -> None:
    """Turn dropout off; batch norms normalize by the batch and do not update running statistics."""
    module.eval()
    for part in module.modules():
        if isinstance(part, _BatchNorm):
            part.train()
            part.track_running_stats = False


def between(z: Tensor) -> Tensor:
    """Mean cosine between all pairs of different rows of z (b, d), b >= 2."""
    n = len(z)
    unit = functional.normalize(z, dim=1)
    return (unit.sum(dim=0).square().sum() - unit.square().sum()) / (n * (n - 1))
