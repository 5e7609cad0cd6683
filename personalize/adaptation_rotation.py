"""Training for test-time training: FedAvg of a network that also tells how an image was turned.

Sun, Wang, Liu, Miller, Efros, Hardt: Test-Time Training with Self-Supervision, ICML 2020, as IOP-FL compares with it
(IEEE Transactions on Medical Imaging 2023, table II): FedAvg's encoder adapts by rotation prediction. The head must
exist before a test image is seen, so this is the method of training: FedAvg of the task's loss plus `rotation` times
the cross-entropy of telling an image's four quarter turns apart, all four of each image at once, so that no chance is
in it and it stays a loss of one patient under private training.

The encoder is `stem` and the blocks; of a network that segments, the first half of the blocks, the ways down. The head
is linear on the encoder's mean over all places, where the paper has a branch of its own; and the paper has group norms,
because batch statistics see turned images as well. adaptation_turns.py has what comes after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.algorithm import Memory
from federation.descent import Site, Work
from federation.fedavg import FedAvg, Weights, reply
from federation.parameters import loaded, prefixed, section
from federation.task import Output, Task, pooled
from privacy.dp.access import Batch, Forward
from privacy.message import Call, Message
from privacy.settings_error import Problem, refuse

QUARTERS = 4


class Turned(nn.Module):
    """A task's network `base` and a head `turns` on its encoder. forward: base's Output, and (x, True) both."""

    def __init__(self, base: nn.Module, inputs: tuple[int, ...], depth: int) -> None:
        super().__init__()
        self.base, self.depth = base, depth
        training = base.training
        base.eval()
        with torch.no_grad():
            width = self.encoded(torch.zeros(1, *inputs)).shape[1]
        base.train(training)
        self.turns = nn.Linear(width, QUARTERS)

    def forward(self, x: Tensor, both: bool = False) -> Output | tuple[Output, Tensor]:
        output = cast(Output, self.base(x))
        return (output, self.told(x)) if both else output

    def encoded(self, x: Tensor) -> Tensor:
        """The encoder's features of x, pooled: (b, d)."""
        h = self.base.get_submodule("stem")(x)
        for block in list(self.base.get_submodule("blocks").children())[: self.depth]:
            h = block(h)
        return pooled(h)

    def told(self, x: Tensor) -> Tensor:
        """Logits (b, 4 turns made, 4 turns told) for all quarter turns of the last two axes of x."""
        views = torch.cat([torch.rot90(x, quarter, (-2, -1)) for quarter in range(QUARTERS)])
        logits: Tensor = self.turns(self.encoded(views))
        return logits.reshape(QUARTERS, len(x), QUARTERS).transpose(0, 1)


@dataclass(frozen=True, kw_only=True)
class FedTurns:
    """FedAvg of a network with a head for quarter turns. rotation: weight of that loss. weights: of FedAvg."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["fedavg_turns"] = "fedavg_turns"
    rotation: float = 1.0
    weights: Weights = "size"

    def __post_init__(self) -> None:
        if not self.rotation > 0:
            refuse([Problem(("rotation",), f"must be > 0, found {self.rotation}: without that loss this is fedavg")])

    def network(self, task: Task) -> nn.Module:
        base = task.network()
        if len(task.inputs) < 3 or task.inputs[-1] != task.inputs[-2] or not hasattr(base, "blocks"):
            return base  # complaints refuses it
        blocks = len(list(base.get_submodule("blocks").children()))
        return Turned(base, task.inputs, blocks // 2 if task.kind == "segmentation" else blocks)

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if isinstance(module, Turned):
            return []
        name = type(module).__name__
        return [f"fedavg_turns turns square images, and splits a stem and blocks, found {name}: choose another network"]

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))

        def losses(forward: Forward, batch: Batch) -> Tensor:
            output, told = cast(tuple[Output, Tensor], forward(batch.x, True))
            return site.task.objective(lambda _: output, batch) + self.rotation * turning(told)

        descent = site.descend(module, losses, optimizer=section(memory.tensors, "optimizer"))
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    merge = FedAvg.merge
    model = FedAvg.model


def turning(told: Tensor) -> Tensor:
    """Cross-entropy of told turns (b, 4, 4) with those made, mean over the four, per image (b,)."""
    made = torch.arange(QUARTERS, device=told.device).expand(len(told), -1)
    return functional.cross_entropy(told.transpose(1, 2), made, reduction="none").mean(dim=1)
