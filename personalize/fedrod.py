"""Fed-RoD: a shared generic head trained with a class-balanced loss, and a personal head on top of it.

Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022, sections 4.1
(balanced softmax, of Ren et al., NeurIPS 2020) and 4.2; the linear personal head, not that of a hypernetwork.

Our readings: both losses are taken on one batch in one step; the personal loss uses detached features and
detached generic logits, so it trains only its own head. Personal heads start at zero, so a site begins with the generic
prediction. Losses that a model computes from its maps stay as they are; only the logits are adjusted. In segmentation
class shares are those of pixels, and h_k is a 1x1 convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from federation.algorithm import Memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights
from federation.parameters import loaded, section
from federation.task import Output, Task
from personalize import sharing
from personalize.sharing import new_head, split_model
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Message
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class FedRod:
    """Shared: l(g + gamma log pi_k), pi_k the class shares of site k. Personal: l(sg(g) + h_k(sg(features))).

    gamma: 1 in balanced softmax; 0 trains the generic part as FedAvg does. Under differential privacy the class shares
    are measured with noise in every round.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True
    needs_classes: ClassVar = "it shifts logits by the shares of classes"

    name: Literal["fedrod"] = "fedrod"
    gamma: float = 1.0
    weights: Weights = "size"

    def __post_init__(self) -> None:
        refuse(unmet(self, gamma=(self.gamma >= 0, ">= 0")))

    def network(self, task: Task) -> TwoHeads:
        generic = task.network().eval()
        with torch.no_grad():
            width = generic(torch.zeros(1, *task.trained_inputs)).features.shape[1]
        personal_head = new_head(task, width, task.classes)
        for p in personal_head.parameters():
            nn.init.zeros_(p)
        return TwoHeads(generic.train(), personal_head)

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if not work.balance:
            return []
        return ["fedrod corrects for class shares itself, and balance: true would do so twice: say balance: false"]

    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = self.network(site.task)
        loaded(module, self.model(site, received, memory))
        prior = (site.shares() ** self.gamma).log().to(site.device)
        optimizer = section(memory.tensors, "optimizer")
        descent = site.descend(Apart(module), two_head_losses(site.task, prior), optimizer=optimizer)
        return split_model(module, is_shared, site, descent.optimizer)

    merge = sharing.merge
    model = sharing.model


def is_shared(name: str) -> bool:
    """Whether a parameter is shared: all but those of the personal head."""
    return not name.startswith("personal_head.")


class TwoHeads(nn.Module):
    """The network that predicts: the task's network, and a linear head (features -> classes) added to its logits."""

    def __init__(self, generic: nn.Module, personal_head: nn.Module) -> None:
        super().__init__()
        self.generic, self.personal_head = generic, personal_head

    def forward(self, x: Tensor) -> Output:
        output: Output = self.generic(x)
        return output._replace(logits=output.logits + self.personal_head(output.features))


class Heads(NamedTuple):
    """The generic network's output, and the personal logits (b, classes), whose gradient does not reach that
    network.
    """

    generic: Output
    personal: Tensor


class Apart(nn.Module):
    """The network that is trained: the same parameters under the same names, but returning both outputs
    separately.
    """

    def __init__(self, module: TwoHeads) -> None:
        super().__init__()
        self.generic, self.personal_head = module.generic, module.personal_head

    def forward(self, x: Tensor) -> Heads:
        output: Output = self.generic(x)
        return Heads(output, output.logits.detach() + self.personal_head(output.features.detach()))


def two_head_losses(task: Task, prior: Tensor) -> Objective:
    """Balanced loss of the generic head plus the task's loss without maps of the personal head. prior: gamma log pi
    (classes,).
    """
    prior = prior.view(-1, *[1] * len(task.spatial))

    def objective(forward: Forward, batch: Batch) -> Tensor:
        outputs = forward(batch.x)
        if not isinstance(outputs, Heads) or batch.y is None:
            raise TypeError(f"fedrod trains two heads on labels, found {type(outputs).__name__}")
        output = outputs.generic
        adjusted = output._replace(logits=output.logits + prior.to(output.logits.dtype))
        return task.losses(adjusted, batch.y) + task.mapless_losses(output._replace(logits=outputs.personal), batch.y)

    return objective
