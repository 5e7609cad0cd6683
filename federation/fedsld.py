"""FedSLD: the loss of an example is weighted by its label's global frequency over its local one.

Luo, Wu: FedSLD: Federated Learning with Shared Label Distribution for Medical Image Classification, ISBI 2022,
algorithm 1 and equations 1 to 3.

What the paper leaves open or prints differently, and our readings. Equation 3 sums over the batch, which is a learning
rate times the batch size: the default is the mean, as in every other method (`reduction`). The weights of a batch do
not average to 1 but to the global share of the labels present in it, so a site with one label learns slower and is not
rebalanced: as printed by default; `normalize` divides by that share. A weight by the labels of the batch depends on the
other examples in it, so one patient would change the gradient of all others and clipping would not bound that: private
training needs `share: site`, the released label shares of the site. Shares count the units of the loss: examples, or
patients in private training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from federation.algorithm import Memory, State
from federation.descent import Site, Work
from federation.fedavg import FedAvg, merged, reply, site_weights
from federation.parameters import loaded, prefixed, section
from federation.task import Task, is_segmenting
from privacy.dp.access import Batch, Forward, Objective
from privacy.message import Call, Json, Message, Params, as_list, as_mapping

SUM_TO_1 = 1e-6  # how far shares may be from it, by rounding


@dataclass(frozen=True, kw_only=True)
class FedSld:
    """l_k <- P(y_k) / p(y_k) l_k, where P(c) = sum_i n_ic / sum_i n_i, and p(c) is the share of c in the batch.

    share: p of the `batch`, or of the whole `site`. reduction: over the batch. The sites' label shares are released
    once, in the introduction.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    averaging: ClassVar = True
    needs_classes: ClassVar = "it weighs examples by the shares of classes"

    name: Literal["fedsld"] = "fedsld"
    share: Literal["batch", "site"] = "batch"
    reduction: Literal["mean", "sum"] = "mean"
    normalize: bool = False

    network = FedAvg.network

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        problems = []
        if is_segmenting(module):
            problems.append("fedsld weighs an example by its label, and a mask has many: choose fedavg or fedrod")
        if private and self.share == "batch":
            problems.append(
                "fedsld with share: batch weighs a patient by who else is in the batch, which clipping does not bound: "
                "say share: site"
            )
        if private and self.reduction == "sum":
            problems.append(
                "fedsld with reduction: sum has no batch to sum over in private training: say reduction: mean"
            )
        if work.balance and self.share == "site":
            problems.append(
                "fedsld with share: site weighs by a site's labels, and balance: true draws others: "
                "say balance: false, or share: batch"
            )
        return problems

    def introduce(self, site: Site) -> Message:
        shares: list[Json] = [float(value) for value in site.shares()]
        return Message({}, {"n": site.size(), "shares": shares})

    def start(self, initial: Params, introductions: Mapping[str, Message]) -> State:
        n = site_weights(introductions, "size")
        shares: dict[str, Json] = {
            site: as_list(introduction.facts["shares"]) for site, introduction in sorted(introductions.items())
        }
        for site_shares in map(_convert_to_tensor, shares.values()):
            if bool((site_shares < 0).any()) or abs(float(site_shares.sum()) - 1) > SUM_TO_1:
                raise ValueError(f"shares of classes are numbers from 0 on that sum to 1, found {site_shares.tolist()}")
        prior = sum(n[site] * _convert_to_tensor(shares[site]) for site in shares) / sum(n.values())
        return Message(prefixed("model", initial), {"prior": torch.as_tensor(prior).tolist(), "shares": shares})

    def send(self, state: State, site: str, call: Call) -> Message:
        site_shares = as_mapping(state.facts["shares"])[site]  # only this site's own shares
        return Message(state.tensors, {"prior": state.facts["prior"], "shares": site_shares})

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))
        objective = self._objective(
            site.task, _convert_to_tensor(received.facts["prior"]), _convert_to_tensor(received.facts["shares"])
        )
        descent = site.descend(module, objective, optimizer=section(memory.tensors, "optimizer"))
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    def merge(self, state: State, replies: Mapping[str, Message]) -> State:
        return Message(prefixed("model", merged(replies, "size")), state.facts)

    model = FedAvg.model

    def _objective(self, task: Task, prior: Tensor, shares: Tensor) -> Objective:
        """Equation 3 for each example (b,), to be averaged."""

        def objective(forward: Forward, batch: Batch) -> Tensor:
            loss = task.objective(forward, batch)
            if batch.y is None:
                raise TypeError("fedsld weighs by labels, found none")
            p = shares.to(loss.device)
            if self.share == "batch":
                p = torch.bincount(batch.y, minlength=task.classes).double() / len(batch.y)
            weight = label_weights(prior.to(loss.device), p, normalize=self.normalize)
            return loss * weight[batch.y].to(loss.dtype) * (len(batch.y) if self.reduction == "sum" else 1)

        return objective


def label_weights(prior: Tensor, p: Tensor, *, normalize: bool) -> Tensor:
    """P(c) / p(c), (classes,), and 0 for absent labels.

    normalize: divide by the global share of the present labels, so that weights average to 1 under p.
    """
    weight = torch.where(p > 0, prior / p.clamp(min=1e-12), 0.0)
    return weight / torch.where(p > 0, prior, 0.0).sum() if normalize else weight


def _convert_to_tensor(values: Json) -> Tensor:
    """Numbers of a message as a float64 tensor."""
    return torch.tensor([float(str(value)) for value in as_list(values)], dtype=torch.float64)
