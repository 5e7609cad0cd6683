"""MOON: a site's features are pulled towards those of the global model and away from those of the site's last model.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, equations 3 and 4, algorithm 1.

What the paper leaves open, and our readings. The two reference models are in evaluation mode and are not trained, as in
the authors' released code. A site whose model was never merged has no negative: no contrast then, as in that code,
whose loss over the positive pair alone is zero (for a site that joins later it would use an untrained network instead).
One previous model is kept, as by default in the released code and in the paper. Features are those before the network's
head; the paper adds a two-layer projection before it, which depends on the network.

FENDA's released code contrasts the same way, but its earlier versions replaced the previous model whenever parameters
were received, even for validation: then positive and negative are the same model, and the loss has no gradient.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from federation.algorithm import Memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, reply
from federation.parameters import loaded, prefixed, read_parameters, section
from federation.task import Output, Task, pool_features
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Message, Params
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Moon:
    """l + mu l_con, l_con = -log(e^(cos(z, z_glob)/T) / (e^(cos(z, z_glob)/T) + e^(cos(z, z_prev)/T))).

    mu: 0 is FedAvg; 0.1, 1, 5 and 10 are tried in the paper, 1 is the released code's default. temperature: T.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["moon"] = "moon"
    mu: float = 1.0
    temperature: float = 0.5
    weights: Weights = "size"

    def __post_init__(self) -> None:
        refuse(unmet(self, mu=(self.mu >= 0, ">= 0"), temperature=(self.temperature > 0, "> 0")))

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if any(not name.startswith("head.") for name, _ in module.named_parameters()):
            return []
        return [
            f"moon would be fedavg on {type(module).__name__}: nothing before its head is trained, so its features are "
            "the same for every site: choose a network with a hidden layer"
        ]

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        w_t = section(received.tensors, "model")
        module = loaded(self.network(site.task), w_t)
        previous = section(memory.tensors, "previous")
        objective: Objective = site.task.objective
        if previous:
            objective = self._objective(site.task, copy_frozen(module, w_t), copy_frozen(module, previous))
        descent = site.descend(module, objective, optimizer=section(memory.tensors, "optimizer"))
        memory_tensors = {**prefixed("previous", read_parameters(module)), **prefixed("optimizer", descent.optimizer)}
        return reply(module, site), Message(memory_tensors)

    merge = FedAvg.merge
    model = FedAvg.model

    def _objective(self, task: Task, received: nn.Module, previous: nn.Module) -> Objective:
        """The task's loss and the contrast of each example (b,); one pass through the network for both."""

        def objective(forward: Forward, batch: Batch) -> Tensor:
            output = forward(batch.x)
            loss = task.objective(lambda _: output, batch)
            z = _read_features(output)
            toward, away = (feature_cosine(z, _read_features(model(batch.x))) for model in (received, previous))
            return loss + self.mu * functional.softplus((away - toward) / self.temperature)

        return objective


def feature_cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine similarity of features (b, d) with features (b, d), in [-1, 1]: (b,); features of pixels are averaged
    first.
    """
    return functional.cosine_similarity(pool_features(left), pool_features(right), dim=1)


def copy_frozen(module: nn.Module, params: Params) -> nn.Module:
    """A copy of the module with these parameters, which is not trained and does not update running statistics.

    A copy, because initializing a new network would consume random numbers of torch's generator and change dropout.
    """
    return loaded(copy.deepcopy(module), params).eval().requires_grad_(False)


def _read_features(output: object) -> Tensor:
    """The features in a network's output."""
    if not isinstance(output, Output):
        raise TypeError(f"a network returns Output, found {type(output).__name__}")
    return output.features


def contrastive_loss(z: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """MOON's contrastive loss, -log(e^p / (e^p + e^n)) with p, n = cosine / temperature: (b, d) each -> (b,)."""
    return functional.softplus((feature_cosine(z, negative) - feature_cosine(z, positive)) / temperature)
