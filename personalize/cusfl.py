"""CusFL: each site trains its own network, and the federated feature extractor only guides its features.

Wicaksana, Yan, Yang, Liu, Fan, Cheng: Customized Federated Learning for Multi-Source Decentralized Medical Image
Classification, IEEE JBHI 2022, section III, equations 2 to 5, and the ablations of section V.

What the paper leaves open, and our readings.
* g: mean over all places, then two linear layers with a ReLU between, each followed by a batch norm (`normalize: both`)
  without running statistics, the last without scale and shift. The paper says "2-layer multi-layer-perceptron" in the
  letters of BYOL (Grill et al., NeurIPS 2020), whose g has a batch norm after its first layer (`hidden`). `none`: as
  printed. Pooled outputs of a ReLU are positive, and a group norm gives every image the same mean, so without norms g
  sees the same vector in all images (mean cosine between them .97 to .99): L_sim is near 0 whatever f has learnt, and
  nothing keeps g from one constant vector, where L_sim is 0. Under `both` projections have mean 0 over a batch, so a
  constant is no solution. Without g (`projection: null`) the means are aligned.
* Balance. lambda_1 L_task = lambda_2 L_sim "dynamically": lambda_1 = 1 and lambda_2 = r / (1 - r) L_task / L_sim, not
  differentiated (else the guidance would cancel), from the means of a mini-batch; under differential privacy from each
  patient's own losses, which is a different method, CusFL balanced by patient. `paper`: as printed, unbounded; 0 where
  L_sim is 0 up to rounding, as in the first step, where it would be infinite. `capped` (ours): at most `cap`, and 0 in
  the first round, when the federated part is the untrained common start. A cap that binds makes r meaningless: the note
  `share` is the guidance's part of the loss, which r asks for, and a hospital is warned where it is below half of r.
* Equation 5. Delta theta_k is theta_k - xi, over the sites present: xi <- xi + mean_k (theta_k - xi) = mean_k theta_k,
  unweighted. h and all layers after the split never leave a site, and a private network is never overwritten.
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
from federation.descent import Site, Work, average_records
from federation.fedavg import FedAvg, descend_from, merged
from federation.local import Local
from federation.models.fixed import has_fixed_statistics
from federation.moon import contrastive_loss, feature_cosine
from federation.parameters import loaded, prefixed, read_parameters, section, select_parameters
from federation.task import Output, Task
from personalize.sharing import Headless
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet

TINY = 1e-6  # 1 - cosine below this is rounding
COLLAPSED = 0.98  # a higher mean |cosine| between projections of different images: they carry no information


@dataclass(frozen=True, kw_only=True)
class CusFL:
    """Equations 4 and 5. r: the share of the guidance in the loss; r = 0 is local training.

    depth: f is the first `depth` of stem and blocks (3 = up to the third block, as in the paper). projection: width of
    g's output. normalize: batch norms in g; private training has none. freeze: the federated part is not trained at the
    site. contrast: L_sim, or MOON's loss instead (table IX). resync (ours, for experiments): the site's f and g restart
    from the federated ones each round.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    averaging: ClassVar = True

    name: Literal["cusfl"] = "cusfl"
    r: float = 0.5
    balance: Literal["capped", "paper"] = "capped"
    cap: float = 1000.0
    depth: int = 3
    projection: int | None = 128
    normalize: Literal["both", "hidden", "none"] = "both"
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
            width = at_split(module.eval(), self.depth, torch.zeros(1, *task.trained_inputs))[1].shape[1]
        with torch.random.fork_rng(devices=()):  # dropout draws the same numbers as without g
            module.add_module("projector", self._projector(width))
        return module.train()

    def _projector(self, width: int) -> nn.Sequential:
        """g: (b, width) -> (b, projection)."""
        out = self.projection
        if out is None:
            return nn.Sequential()
        first, last = nn.Linear(width, out), nn.Linear(out, out, bias=self.normalize != "both")
        if self.normalize == "none":
            return nn.Sequential(first, nn.ReLU(), last)
        hidden = nn.Sequential(first, nn.BatchNorm1d(out, track_running_stats=False), nn.ReLU(), last)
        if self.normalize == "both":
            hidden.append(nn.BatchNorm1d(out, affine=False, track_running_stats=False))
        return hidden

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        parts = parts_of(module)
        if private and self.projection is not None and self.normalize != "none":
            return [
                f"{self.name} normalizes its projections by the other images of a batch, which private training does "
                f"not, found normalize: {self.normalize}: say normalize: none, and mind that it then hardly guides"
            ]
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
        return Message(select_parameters(state.tensors, lambda name: not (known and name.startswith("model/"))))

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        personal, federated = self.model(site, received, memory), section(received.tensors, "federated")
        network = loaded(self.network(site.task), {**personal, **federated} if self.resync else personal)
        if self.r == 0 or (self.balance == "capped" and not federated):
            optimizer, notes = descend_from(site, network, memory).optimizer, dict[str, float]()
        else:
            guide = self._extractor(network, federated or personal)
            past = self._extractor(network, personal) if self.contrast == "moon" else None
            optimizer, notes = self._train_guided(site, Guided(network, guide, past, self.depth, self.freeze), memory)
        memory_tensors = {**prefixed("model", read_parameters(network)), **prefixed("optimizer", optimizer)}
        sent = prefixed("model", select_parameters(read_parameters(network), self._is_shared))
        return Message(sent), Message(memory_tensors, {"notes": {**notes}})

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        start = prefixed("model", section(state.tensors, "model"))
        return Message({**start, **prefixed("federated", merged(replies, "uniform"))})

    model = Local.model

    def _is_shared(self, name: str) -> bool:
        """Whether a parameter belongs to the extractor f or the projector g."""
        part, rest = name.split(".", 1)
        return part in ("stem", "projector") or (part == "blocks" and int(rest.split(".")[0]) < self.depth - 1)

    def _extractor(self, network: nn.Module, params: Params) -> nn.Module:
        """f and g alone, with these parameters."""
        module = copy.deepcopy(network)
        module.blocks = nn.ModuleList(parts_of(module)[1 : self.depth])
        module.head = Headless(module.get_parameter("head.weight").shape[0])
        return loaded(module, select_parameters(params, self._is_shared))

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
        notes = average_records(("similarity", "lambda2", "between", "share"), seen, descent)
        if notes:
            notes["collapsed"] = float(notes["between"] > COLLAPSED)
            notes["asleep"] = float(notes["share"] < self.r / 2)
        return {
            name.removeprefix("network."): v for name, v in descent.optimizer.items() if name.startswith("network.")
        }, notes

    def _objective(self, task: Task, seen: list[Tensor]) -> Objective:
        """The task's loss plus lambda_2 times the distance to the guiding features."""

        def total_loss(forward: Forward, batch: Batch) -> Tensor:
            guided = forward(batch.x)
            if not isinstance(guided, Aligned):
                raise TypeError(f"training is guided by Aligned, found {type(guided).__name__}")
            task_loss = task.objective(lambda x: guided.output, batch)
            distance = 1 - feature_cosine(guided.own, guided.guide)
            if guided.past is not None:
                distance = contrastive_loss(guided.own, guided.guide, guided.past, self.temperature)
            weight = self._weight(task_loss.detach().mean(), distance.detach().mean())
            if len(batch.x) > 1:
                guidance = weight * distance.mean()
                share = guidance / (task_loss.mean() + guidance)
                seen.append(torch.stack([distance.mean(), weight, between(guided.guide), share]).detach())
            return task_loss + weight * distance

        return total_loss

    def _weight(self, task_loss: Tensor, distance: Tensor) -> Tensor:
        """lambda_2, from mean losses that are not differentiated."""
        weight = self.r / (1 - self.r) * task_loss / distance.clamp(min=TINY)
        weight = torch.where(distance > TINY, weight, torch.zeros_like(weight))
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
        output, own_features = project_features(self.network, self.depth, x)
        past = None if self.past is None else project_features(self.past, self.depth, x)[1]
        return Aligned(output, own_features, project_features(self.guide, self.depth, x)[1], past)


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Stem and blocks, in their order."""
    return [module.get_submodule("stem"), *module.get_submodule("blocks").children()]


def at_split(module: nn.Module, depth: int, x: Tensor) -> tuple[Output, Tensor]:
    """The network's output, and the output (b, c) of its part number `depth` (or its last part, if there are fewer),
    mean over places.
    """
    caught: list[Tensor] = []
    part = parts_of(module)[:depth][-1]
    if isinstance(part, nn.ModuleList):  # a stem of several parts, which its network calls one by one
        part = part[-1]
    handle = part.register_forward_hook(lambda _, __, value: caught.append(value))
    try:
        output = module(x)
    finally:
        handle.remove()
    return output, caught[0].flatten(2).mean(dim=2) if caught[0].dim() > 2 else caught[0]


def project_features(module: nn.Module, depth: int, x: Tensor) -> tuple[Output, Tensor]:
    """The network's output, and g(f(x)): (b, projection). A single image is taken twice, and norms leave nothing."""
    output, features = at_split(module, depth, x)
    rows = features if len(features) > 1 else features.repeat(2, 1)
    return output, module.get_submodule("projector")(rows)[: len(features)]


def freeze_statistics(module: nn.Module) -> None:
    """Turn dropout off; batch norms normalize by the batch and do not update running statistics."""
    module.eval()
    for part in module.modules():
        if isinstance(part, _BatchNorm) and not has_fixed_statistics(part):
            part.train()
            part.track_running_stats = False


def between(z: Tensor) -> Tensor:
    """Mean |cosine| between all pairs of different rows of z (b, d), b >= 2: 1 if they are one vector, or opposite."""
    n = len(z)
    unit = functional.normalize(z, dim=1)
    cosines = (unit @ unit.T).abs()
    return (cosines.sum() - cosines.diagonal().sum()) / (n * (n - 1))
