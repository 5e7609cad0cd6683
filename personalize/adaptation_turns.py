"""Test-time training: the encoder of a network trained by adaptation_rotation.py moves by telling quarter turns.

Sun, Wang, Liu, Miller, Efros, Hardt: Test-Time Training with Self-Supervision, ICML 2020; a row of IOP-FL's table II.
Only the encoder moves, and batch norms keep the statistics of training. The paper adapts to each image alone from the
trained state, and IOP-FL does not say what it did: here, the protocol that routing has, guard included.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from federation.task import Kind, Output
from personalize.adaptation import Adapted, adapt, bounds_problems, predicted_shares, range_of
from personalize.adaptation_norms import AtTest
from personalize.adaptation_rotation import Turned, turning
from personalize.routing_losses import Judged
from privacy.settings_error import refuse


@dataclass(frozen=True, kw_only=True)
class TestTimeTraining:
    """epochs over all images, by Adam with lr, `batch` images a step; margin: see `range_of`, of the model before."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    __test__: ClassVar = False  # pytest takes classes named Test for its own

    name: Literal["ttt"] = "ttt"
    epochs: int = 10
    lr: float = 1e-3
    batch: int = 16
    margin: float = 0.5

    def __post_init__(self) -> None:
        refuse(bounds_problems(self))


def train_at_test(
    network: Turned, images: Tensor, settings: TestTimeTraining, *, kind: Kind, seed: int = 0
) -> tuple[nn.Module, Adapted]:
    """Adapt the encoder of a copy of `fedavg_turns`' model to images (n, C, *spatial).

    Returns:
        The network in the chosen state, ready to predict, and how it came there.
    """
    module = AtTest(deepcopy(network))
    encoder = ("network.base.stem.", *(f"network.base.blocks.{k}." for k in range(network.depth)))
    for name, p in module.named_parameters():
        p.requires_grad_(name.startswith(encoder))
    allowed = range_of(
        [predicted_shares(module, images, batch=settings.batch)],
        settings.margin,
        segmentation=kind == "segmentation",
    )
    found = adapt(
        module,
        images,
        _turns,
        epochs=settings.epochs,
        lr=settings.lr,
        batch=settings.batch,
        seed=seed,
        allowed=allowed,
    )
    return module, found


def _turns(module: nn.Module, x: Tensor, generator: torch.Generator) -> Judged:
    output, told = cast(tuple[Output, Tensor], cast(AtTest, module).network(x, True))
    return Judged(turning(told), output.logits)
