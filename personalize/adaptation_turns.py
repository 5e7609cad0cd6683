"""Test-time training: the encoder of a network trained by adaptation_rotation.py is trained on to predict rotations.

Sun, Wang, Liu, Miller, Efros, Hardt: Test-Time Training with Self-Supervision, ICML 2020; a row of IOP-FL's table II.
Only the encoder is trained, and batch norms keep the statistics of training. The paper adapts to each image alone from
the trained state, and IOP-FL does not say what it did; here the protocol is that of routing, with its check of
predicted shares.
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
from personalize.adaptation_rotation import RotationNetwork, rotation_loss
from personalize.routing_losses import ImageLosses
from privacy.settings_error import refuse


@dataclass(frozen=True, kw_only=True)
class TestTimeTraining:
    """epochs over all images, by Adam with lr, `batch` images per step; margin: see `range_of`, around the original
    model's shares.
    """

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
    network: RotationNetwork, images: Tensor, settings: TestTimeTraining, *, kind: Kind, seed: int = 0
) -> tuple[nn.Module, Adapted]:
    """Adapt the encoder of a copy of `fedavg_turns`' model to images (n, C, *spatial).

    Returns:
        The network in the chosen state, ready to predict, and the record of its adaptation.
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
    adapted = adapt(
        module,
        images,
        _rotation_loss,
        epochs=settings.epochs,
        lr=settings.lr,
        batch=settings.batch,
        seed=seed,
        allowed=allowed,
    )
    return module, adapted


def _rotation_loss(module: nn.Module, x: Tensor, generator: torch.Generator) -> ImageLosses:
    """The loss of guessing by how much each image is turned."""
    output, turn_logits = cast(tuple[Output, Tensor], cast(AtTest, module).network(x, True))
    return ImageLosses(rotation_loss(turn_logits), output.logits)
