"""PerFCL: FENDA's two extractors, trained apart from each other by two contrastive losses.

Zhang, Xu, Wei, Wang, Li, Shang: Doubly contrastive representation learning for federated image recognition, Pattern
Recognition 139, 2023 (Personalized Federated Contrastive Learning, IEEE Big Data 2022), as FENDA-FL compares with it
(section 3.2 and tables 7 and 9 there).

FENDA-FL gives no formulas. What is contrasted with what is read from its authors' release: the shared extractor is
pulled to the aggregated one and pushed away from the site's own of its last round; the local extractor is pulled
to itself as it was before the round and pushed away from the aggregated one; cosine, temperature 0.5, from a site's
second round on. Ours: the frozen networks are in evaluation mode, without dropout and with averaged norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.algorithm import Memory
from federation.descent import Site, Work, average_records
from federation.fedavg import FedAvg, Weights
from federation.moon import contrastive_loss, copy_frozen
from federation.parameters import loaded, prefixed, section
from federation.task import Output, Task
from personalize import sharing
from personalize.fenda import Fenda, is_shared
from personalize.sharing import split_model, without_effect
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Message
from privacy.settings_error import refuse, unmet


@dataclass(frozen=True, kw_only=True)
class PerFCL:
    """L = L_task + mu L_con(z; aggregated, own previous) + gamma L_con(z_i; local previous, aggregated).

    mu, gamma: FENDA-FL's best values for heart disease. With both 0 it is FENDA-FL.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["perfcl"] = "perfcl"
    weights: Weights = "size"
    mu: float = 0.1
    gamma: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        refuse(
            unmet(
                self,
                mu=(self.mu >= 0, ">= 0"),
                gamma=(self.gamma >= 0, ">= 0"),
                temperature=(self.temperature > 0, "> 0"),
            )
        )

    def network(self, task: Task) -> nn.Module:
        return Fenda().network(task)

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        return without_effect(module, is_shared, self.name)

    introduce = FedAvg.introduce
    start = sharing.start
    send = sharing.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        start, previous = self.model(site, received, memory), section(memory.tensors, "previous")
        module = loaded(self.network(site.task), start)
        loss, seen = site.task.objective_of_method, list[Tensor]()
        if previous and (self.mu or self.gamma):
            before = copy_frozen(module, {**start, **previous}).get_submodule("shared")
            loss = self._with_contrasts(loss, copy_frozen(module, start), before, seen)
        descent = site.descend(module, loss, optimizer=section(memory.tensors, "optimizer"))
        reply, memory_tensors = split_model(module, is_shared, site, descent.optimizer)
        notes = average_records(("global_contrast", "local_contrast"), seen, descent)
        own_shared = prefixed("previous", section(reply.tensors, "model"))
        return reply, Message({**memory_tensors.tensors, **own_shared}, {"notes": {**notes}})

    merge = sharing.merge
    model = sharing.model

    def _with_contrasts(self, loss: Objective, start: nn.Module, before: nn.Module, seen: list[Tensor]) -> Objective:
        """The loss and both contrasts, per example, so that no patient's gradient depends on another patient.

        start: the network at the start of this round, with the aggregated extractor; before: the site's own previous
        extractor. Both are frozen.
        """

        def total_loss(forward: Forward, batch: Batch) -> Tensor:
            output = forward(batch.x)
            z, z_i = _shared_and_local(output)
            aggregated, local = _shared_and_local(start(batch.x))
            of_shared = contrastive_loss(z, aggregated, before(batch.x).features, self.temperature)
            of_local = contrastive_loss(z_i, local, aggregated, self.temperature)
            seen.append(torch.stack([of_shared.mean(), of_local.mean()]).detach())
            return loss(lambda x: output, batch) + self.mu * of_shared + self.gamma * of_local

        return total_loss


def _shared_and_local(output: object) -> tuple[Tensor, Tensor]:
    """Shared and local features, of the same width; of pixels' features, `contrast` takes the means."""
    if not isinstance(output, Output):
        raise TypeError(f"a network returns Output, found {type(output).__name__}")
    z, z_i = output.features.chunk(2, dim=1)
    return z, z_i
