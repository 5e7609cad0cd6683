"""What test-time routing is compared with: Tent, and the sites' models side by side (Average and Ensemble).

Table II of IOP-FL (IEEE Transactions on Medical Imaging 2023). Ensemble is the mean of the site models' logits. Average
is no network: the mean of the scores that the site models reach, each by itself. Both leave the global model out.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from federation.task import Kind, Output
from personalize.adaptation import Adapted, adapt, bounds_problems, online, predicted_shares, range_of, serving
from personalize.adaptation_norms import AtTest, by_test_statistics
from personalize.routing_losses import Judged, entropy
from privacy.settings_error import refuse


@dataclass(frozen=True, kw_only=True)
class Tent:
    """Scales and shifts of norms move by the entropy of predictions.

    Wang, Shelhamer, Liu, Olshausen, Darrell: Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021. Batch
    norms go by the batch while they adapt, and by all test images afterwards. IOP-FL does not say how it ran Tent:
    `all` is routing's protocol, guard included, with the model as it was and by the test images' statistics for
    witnesses; `online` is Tent's own, one pass and one step a batch. With 0 epochs, the model by the test images'
    statistics and nothing else, as in Nado et al., Evaluating Prediction-Time Batch Normalization, arXiv 2006.10963.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["tent"] = "tent"
    epochs: int = 10
    lr: float = 1e-3
    batch: int = 16
    mode: Literal["all", "online"] = "all"
    margin: float = 0.5

    def __post_init__(self) -> None:
        refuse(bounds_problems(self, online=self.mode == "online"))


def tent(network: nn.Module, images: Tensor, settings: Tent, *, kind: Kind, seed: int = 0) -> tuple[nn.Module, Adapted]:
    """Adapt a copy of the federated model to images (n, C, *spatial).

    Returns:
        The adapted network, ready to predict, and how it came there; `network` itself where no state counts.

    Raises:
        ValueError: a network without normalization layers that have a scale.
    """
    module = AtTest(deepcopy(network))
    by_test_statistics(module.network, "set", "trained")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"tent trains scales of normalization layers: {type(network).__name__} has none")
    if settings.mode == "online":
        return module, online(module, images, _entropy, lr=settings.lr, batch=settings.batch, seed=seed)
    witnesses = [predicted_shares(model, images, batch=settings.batch) for model in (deepcopy(network), module)]
    allowed = range_of(witnesses, settings.margin, segmentation=kind == "segmentation")
    found = adapt(
        module,
        images,
        _entropy,
        epochs=settings.epochs,
        lr=settings.lr,
        batch=settings.batch,
        seed=seed,
        allowed=allowed,
    )
    return serving(module, found, network)


class Ensemble(nn.Module):
    """The mean of the logits of models of one kind, and of their features; each with its own statistics."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(deepcopy(list(models)))
        self.eval()

    def forward(self, x: Tensor) -> Output:
        outputs = [cast(Output, model(x)) for model in self.models]
        logits, features = (torch.stack(parts).mean(dim=0) for parts in list(zip(*outputs, strict=True))[:2])
        return Output(logits, features)


def ensemble(models: Sequence[nn.Module]) -> Ensemble:
    """One network from the sites' personal models (the global one is not asked).

    Raises:
        ValueError: no models.
    """
    if not models:
        raise ValueError("an ensemble needs at least one model, found none")
    return Ensemble(models)


def _entropy(module: nn.Module, x: Tensor, generator: torch.Generator) -> Judged:
    logits = module(x).logits
    return Judged(entropy(logits), logits)
