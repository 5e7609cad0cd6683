"""Fine-tuning of a trained model at one hospital, after the federation: FedAvg-FT, FedProx-FT, FedBABU's own
evaluation.

The comparison tables of APPLE and PGFed fine-tune FedAvg and FedProx; Oh, Kim, Yun, FedBABU, ICLR 2022, section 4,
tunes the whole network or its head; CusFL, table XIV, continues for 100 rounds after 200. Nothing is sent. The tuned
model stays at the hospital: it is scored there and never released.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from federation.descent import Site
from federation.task import Output
from privacy.dp.access import Batch, Forward
from privacy.settings_error import Problem, out_of_range, refuse, unmet


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """epochs or steps: exactly one. lr: null = that of the method's own work. trainable: the whole network, or every
    parameter of a part whose name ends in `head` (`personal_head`). Parts that a method's network lists in `untuned`
    are not tuned: the federated twin of APFL and of MoE, and the alpha of APFL, which a rule of APFL keeps in [0, 1].
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    trainable: Literal["all", "head"] = "all"

    def __post_init__(self) -> None:
        problems = out_of_range(self, epochs=(1, 1000), steps=(1, 100_000))
        if (self.epochs is None) == (self.steps is None):
            problems.append(Problem((), f"give either epochs or steps, found {self.epochs} and {self.steps}"))
        refuse(problems + unmet(self, lr=(self.lr is None or self.lr > 0, "> 0 or null")))


def fine_tuned(site: Site, module: nn.Module, tuning: Tuning) -> nn.Module:
    """A copy of the model, trained on this site's training patients by the optimizer of its work, with a new optimizer
    state.

    Raises:
        ValueError: `trainable: head`, and no parameter of the network belongs to a head.
    """
    tuned = copy.deepcopy(module)
    untuned: tuple[str, ...] = getattr(module, "untuned", ())
    if not has_tunable_parameters(module, tuning):
        raise ValueError(f"{type(module).__name__} has no part that is a head; say trainable: all")

    def objective(forward: Forward, batch: Batch) -> Tensor:
        output = forward(batch.x)
        if not isinstance(output, Output) or batch.y is None:
            raise TypeError(f"a network returns Output and training needs labels, found {type(output).__name__}")
        # A wrapper around several networks has no maps, which a model's own loss may need.
        return site.task.mapless_losses(output, batch.y) if output.maps is None else site.task.losses(output, batch.y)

    site.descend(
        tuned,
        objective,
        epochs=tuning.epochs,
        steps=tuning.steps,
        lr=tuning.lr,
        trainable=_is_in_head if tuning.trainable == "head" else lambda name: not name.startswith(untuned),
    )
    return tuned.eval()


def has_tunable_parameters(module: nn.Module, tuning: Tuning) -> bool:
    """Whether the network has the parameters to be tuned."""
    return tuning.trainable == "all" or any(_is_in_head(name) for name, _ in module.named_parameters())


def _is_in_head(name: str) -> bool:
    """Whether a parameter of this name belongs to a head."""
    return name.split(".")[0].endswith("head")
