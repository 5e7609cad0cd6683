"""Test-time routing at an external site: a network from the sites' models and its own unlabelled images.

Jiang, Yang, Cheng, Dou: IOP-FL, IEEE Transactions on Medical Imaging 2023, algorithm 1 (outside) and section III.D. The
network is in routing.py, the loss in routing_losses.py, and the choice of a state in adaptation.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from federation.randomness import use_seed
from federation.task import Kind
from personalize.adaptation import (
    Adapted,
    Range,
    adapt,
    bounds_problems,
    build_untried,
    online,
    predict_classes,
    range_of,
    select_serving,
)
from personalize.adaptation_doubt import agreement, describe_distrust
from personalize.adaptation_norms import Affine, Statistics
from personalize.routing import Routed, build_routed, set_coefficients
from personalize.routing_losses import Term, Unsupervised, Variant
from privacy.settings_error import problems_of, refuse

Mode: TypeAlias = Literal["all", "online"]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How an external site routes. beta, noise, radius, terms: of the loss (see `Unsupervised`).

    mode: `all` images for some epochs, then the best state; or `online`, each batch predicted before its one step.
    With 0 epochs the mean of all models' kernels predicts, with the test images' statistics: the start of routing.
    tried_below: adapting is tried where the models, each alone by the test images' statistics, agree by less
    (`adaptation_doubt`); else the mean of all kernels predicts; null = always.
    margin: how far predicted shares may lie outside those of the models, relative to them. variant: `official` takes
    the released code's loss weights and its dropout of 0.2 in theta; that code also trains norms (affine: trained).
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["routing"] = "routing"
    epochs: int = 10
    lr: float = 1e-3
    batch: int = 16
    beta: float = 0.01
    noise: float = 0.5
    radius: int = 10
    terms: tuple[Term, ...] = ("consistency", "shape", "entropy")
    layerwise: bool = True
    statistics: Statistics = "image"
    affine: Affine = "fixed"
    mode: Mode = "all"
    margin: float = 0.5
    tried_below: float | None = None
    variant: Variant = "means"

    def __post_init__(self) -> None:
        problems = bounds_problems(self, online=self.mode == "online")
        try:
            self.loss()
        except ValueError as error:
            problems += problems_of(error)
        refuse(problems)

    def loss(self) -> Unsupervised:
        """Equation 10 with these settings."""
        return Unsupervised(
            beta=self.beta, noise=self.noise, radius=self.radius, terms=self.terms, variant=self.variant
        )


def route_experts(
    experts: Sequence[nn.Module], images: Tensor, settings: Routing, *, kind: Kind, seed: int = 0
) -> tuple[nn.Module, Adapted]:
    """Mix the models into one network for these images (n, C, *spatial), normalized as in training.

    Args:
        experts: the K sites' personal models and last the global one, on the images' device.
        seed: of theta's start, the order of images and the noise.

    Returns:
        The network in the chosen state, ready to predict, and the record of its adaptation; the unchanged global model
        if no state is eligible. In mode `online` the valid predictions are in `Adapted.probabilities`.

    Raises:
        ValueError: models that cannot be mixed, or no images.
    """
    with use_seed(seed):  # theta's dropout, in the official variant, draws from torch's own generator
        module = build_routed(
            experts,
            layerwise=settings.layerwise,
            statistics=settings.statistics,
            affine=settings.affine,
            dropout=0.2 if settings.variant == "official" else 0.0,
            seed=seed,
        )
        if settings.mode == "online":
            return module, online(module, images, settings.loss(), lr=settings.lr, batch=settings.batch, seed=seed)
        masks, shares = _each_alone(module, images, batch=settings.batch)
        allowed = range_of(shares, settings.margin, segmentation=kind == "segmentation")
        why = (
            describe_distrust(agreement(masks, masks=kind == "segmentation"), settings.tried_below)
            if settings.epochs
            else ""
        )
        adapted = adapt(
            module,
            images,
            settings.loss(),
            epochs=0 if why else settings.epochs,
            lr=settings.lr,
            batch=settings.batch,
            seed=seed,
            allowed=allowed,
        )
        return select_serving(module, build_untried(adapted, allowed, why), experts[-1])


def range_of_experts(module: Routed, images: Tensor, margin: float, *, kind: Kind, batch: int = 16) -> Range:
    """The range of class shares that the models predict, each alone in the routed network."""
    return range_of(_each_alone(module, images, batch=batch)[1], margin, segmentation=kind == "segmentation")


def _each_alone(module: Routed, images: Tensor, *, batch: int) -> tuple[list[Tensor], list[Tensor]]:
    """What each model predicts, alone in the routed network: classes (n, *spatial), and their shares (classes,)."""
    answers = []
    for r in torch.eye(module.experts):
        set_coefficients(module, r)
        answers.append(predict_classes(module, images, batch=batch))
    set_coefficients(module, None)
    return [classes for classes, _ in answers], [shares for _, shares in answers]
