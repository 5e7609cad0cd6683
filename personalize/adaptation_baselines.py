"""Baselines of test-time routing: Tent, and the sites' models side by side (Average and Ensemble).

Table II of IOP-FL (IEEE Transactions on Medical Imaging 2023). Ensemble is the mean of the site models' logits. Average
is not a network: it is the mean of the scores that each site model reaches alone. Both leave out the global model.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from federation.task import Kind, Output
from personalize.adaptation import (
    Adapted,
    adapt,
    bounds_problems,
    build_untried,
    online,
    predict_classes,
    range_of,
    select_serving,
)
from personalize.adaptation_doubt import agreement, describe_distrust
from personalize.adaptation_norms import AtTest, by_test_statistics
from personalize.routing_losses import ImageLosses, entropy
from privacy.settings_error import refuse


@dataclass(frozen=True, kw_only=True)
class Tent:
    """Train scales and shifts of norms to minimize the entropy of predictions.

    Wang, Shelhamer, Liu, Olshausen, Darrell: Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021. Batch
    norms use the batch's statistics during adaptation and those of all test images afterwards. IOP-FL does not say how
    it ran Tent: `all` is routing's protocol with its check of predicted shares, whose range comes from the original
    model and the model with the test images' statistics; `online` is Tent's own protocol, one pass with one step per
    batch. With 0 epochs only the statistics change, as in Nado et al., Evaluating Prediction-Time Batch Normalization,
    arXiv 2006.10963.

    tried_below: adapting is tried where the model by the training's and by the test images' statistics agrees with
    itself by less (`adaptation_doubt`), else only the statistics change; null = always.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["tent"] = "tent"
    epochs: int = 10
    lr: float = 1e-3
    batch: int = 16
    mode: Literal["all", "online"] = "all"
    margin: float = 0.5
    tried_below: float | None = 0.85

    def __post_init__(self) -> None:
        refuse(bounds_problems(self, online=self.mode == "online"))


def tent(network: nn.Module, images: Tensor, settings: Tent, *, kind: Kind, seed: int = 0) -> tuple[nn.Module, Adapted]:
    """Adapt a copy of the federated model to images (n, C, *spatial).

    Returns:
        The adapted network, ready to predict, and the record of its adaptation; `network` itself if no state is
            eligible.

    Raises:
        ValueError: a network without normalization layers that have a scale.
    """
    module = AtTest(deepcopy(network))
    by_test_statistics(module.network, "set", "trained")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"tent trains scales of normalization layers: {type(network).__name__} has none")
    if settings.mode == "online":
        return module, online(module, images, _entropy, lr=settings.lr, batch=settings.batch, seed=seed)
    witnesses = [predict_classes(model, images, batch=settings.batch) for model in (deepcopy(network), module)]
    allowed = range_of([shares for _, shares in witnesses], settings.margin, segmentation=kind == "segmentation")
    share_agreed = agreement([classes for classes, _ in witnesses], masks=kind == "segmentation")
    why = describe_distrust(share_agreed, settings.tried_below) if settings.epochs else ""
    adapted = adapt(
        module,
        images,
        _entropy,
        epochs=0 if why else settings.epochs,
        lr=settings.lr,
        batch=settings.batch,
        seed=seed,
        allowed=allowed,
    )
    return select_serving(module, build_untried(adapted, allowed, why), network)


class Ensemble(nn.Module):
    """The mean of the logits, and of the features, of models of one architecture; each keeps its own statistics."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(deepcopy(list(models)))
        self.eval()

    def forward(self, x: Tensor) -> Output:
        outputs = [cast(Output, model(x)) for model in self.models]
        logits, features = (torch.stack(parts).mean(dim=0) for parts in list(zip(*outputs, strict=True))[:2])
        return Output(logits, features)


def ensemble(models: Sequence[nn.Module]) -> Ensemble:
    """One network from the sites' personal models, without the global model.

    Raises:
        ValueError: no models.
    """
    if not models:
        raise ValueError("an ensemble needs at least one model, found none")
    return Ensemble(models)


def _entropy(module: nn.Module, x: Tensor, generator: torch.Generator) -> ImageLosses:
    """The entropy of each prediction, which Tent minimizes."""
    logits = module(x).logits
    return ImageLosses(entropy(logits), logits)
