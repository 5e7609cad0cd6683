"""Training for test-time training: FedAvg of a network that also predicts by how many quarter turns an image was
rotated.

Sun, Wang, Liu, Miller, Efros, Hardt: Test-Time Training with Self-Supervision, ICML 2020, as IOP-FL compares with it
(IEEE Transactions on Medical Imaging 2023, table II): FedAvg's encoder adapts by rotation prediction. The rotation
head must exist before the first test image, so this is a training method: FedAvg of the task's loss plus `rotation`
times the cross-entropy of predicting the rotation. All four rotations of each image are used at once, so the loss is
not random and stays a loss of one patient under private training.

The encoder is `stem` and the blocks; in segmentation only the first half of the blocks, the downward path. The head
is linear on the encoder's mean over all places, where the paper has a separate branch; the paper also uses group norms,
because batch statistics would include the rotated images. adaptation_turns.py adapts such a network at test time.
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
from federation.task import Output, Task, pool_features
from privacy.dp.access import Batch, Forward
from privacy.message import Call, Message
from privacy.settings_error import Problem, refuse

QUARTERS = 4


class RotationNetwork(nn.Module):
    """A task's network `base` and a rotation head `turns` on its encoder. forward: base's Output; with (x, True) also
    the rotation logits.
    """

    def __init__(self, base: nn.Module, inputs: tuple[int, ...], depth: int) -> None:
        super().__init__()
        self.base, self.depth = base, depth
        training = base.training
        base.eval()
        with torch.no_grad():
            width = self.encode_mean(torch.zeros(1, *inputs)).shape[1]
        base.train(training)
        self.turns = nn.Linear(width, QUARTERS)

    def forward(self, x: Tensor, both: bool = False) -> Output | tuple[Output, Tensor]:
        output = cast(Output, self.base(x))
        return (output, self.turn_logits(x)) if both else output

    def encode_mean(self, x: Tensor) -> Tensor:
        """The encoder's features of x, mean over places: (b, d)."""
        h = self.base.get_submodule("stem")(x)
        for block in list(self.base.get_submodule("blocks").children())[: self.depth]:
            h = block(h)
        return pool_features(h)

    def turn_logits(self, x: Tensor) -> Tensor:
        """Rotation logits (b, 4 true rotations, 4 predicted rotations) for all quarter turns of the last two axes of
        x.
        """
        views = torch.cat([torch.rot90(x, quarter, (-2, -1)) for quarter in range(QUARTERS)])
        logits: Tensor = self.turns(self.encode_mean(views))
        return logits.reshape(QUARTERS, len(x), QUARTERS).transpose(0, 1)


@dataclass(frozen=True, kw_only=True)
class FedTurns:
    """FedAvg of a network with a rotation head. rotation: weight of the rotation loss. weights: of FedAvg."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    one_model: ClassVar = True
    summable: ClassVar = True
    averaging: ClassVar = True

    name: Literal["fedavg_turns"] = "fedavg_turns"
    rotation: float = 1.0
    weights: Weights = "size"

    def __post_init__(self) -> None:
        if not self.rotation > 0:
            refuse([Problem(("rotation",), f"must be > 0, found {self.rotation}: without that loss this is fedavg")])

    def network(self, task: Task) -> nn.Module:
        base = task.network()
        if len(task.inputs) < 3 or task.inputs[-1] != task.inputs[-2] or not hasattr(base, "blocks"):
            return base  # `complaints` reports it
        if isinstance(base.get_submodule("stem"), nn.ModuleList):
            return base  # two submodules, between which only the network's own code knows the way
        blocks = len(list(base.get_submodule("blocks").children()))
        return RotationNetwork(base, task.trained_inputs, blocks // 2 if task.kind == "segmentation" else blocks)

    def complaints(self, module: nn.Module, work: Work, private: bool) -> list[str]:
        if isinstance(module, RotationNetwork):
            return []
        name = type(module).__name__
        return [f"fedavg_turns turns square images, and splits a stem and blocks, found {name}: choose another network"]

    introduce = FedAvg.introduce
    start = FedAvg.start
    send = FedAvg.send

    def train(self, site: Site, received: Message, memory: Memory, call: Call) -> tuple[Message, Memory]:
        module = loaded(self.network(site.task), section(received.tensors, "model"))

        def losses(forward: Forward, batch: Batch) -> Tensor:
            output, turn_logits = cast(tuple[Output, Tensor], forward(batch.x, True))
            return site.task.objective(lambda _: output, batch) + self.rotation * rotation_loss(turn_logits)

        descent = site.descend(module, losses, optimizer=section(memory.tensors, "optimizer"))
        return reply(module, site), Message(prefixed("optimizer", descent.optimizer))

    merge = FedAvg.merge
    model = FedAvg.model


def rotation_loss(turn_logits: Tensor) -> Tensor:
    """Cross-entropy of rotation logits (b, 4, 4) with the true rotations, mean over the four, per image (b,)."""
    true = torch.arange(QUARTERS, device=turn_logits.device).expand(len(turn_logits), -1)
    return functional.cross_entropy(turn_logits.transpose(1, 2), true, reduction="none").mean(dim=1)
