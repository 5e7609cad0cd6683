"""Test-time adaptation: train a network on unlabelled test images and choose the state that predicts without labels.

IOP-FL (IEEE Transactions on Medical Imaging 2023) describes two protocols: algorithm 1 predicts each image before its
update, in one pass; section III.D adapts for 10 epochs on all test images and takes the state with the lowest
unsupervised loss. `online` is the first. `adapt` is the second, so it adapts on the images on which it is then scored.

The loss of a state is measured after each epoch, on all images, with the same noise each time. The lowest loss alone
would choose a network that predicts one class everywhere: its consistency, shape and entropy losses are all zero. A
state is therefore eligible only if the shares of its predicted classes lie within a range (`Range`) that the models it
is made from set. If no state is eligible, none is used, not even the state before adaptation if its norms use the
test images' statistics (`serving`). (The released code picks its best epoch by the labels of the test images.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from personalize.adaptation_norms import SetNorm, batches, calibrate
from personalize.routing_losses import ImageLosses
from privacy.message import Params
from privacy.settings_error import Problem, unmet

Loss: TypeAlias = Callable[[nn.Module, Tensor, torch.Generator], ImageLosses]


@dataclass(frozen=True)
class Range:
    """Allowed shares of classes among all predicted pixels, or images: low and high (classes,).

    foreground: in segmentation, the range for all classes except 0 together. why: the reason, if no state is allowed.
    """

    low: Tensor
    high: Tensor
    foreground: tuple[float, float] | None = None
    why: str = ""

    def holds(self, shares: Tensor) -> bool:
        """Whether predictions with these shares (classes,) are allowed. One class everywhere never is."""
        if self.why or shares.max() == 1:
            return False
        if self.foreground is not None and not self.foreground[0] <= 1 - float(shares[0]) <= self.foreground[1]:
            return False
        first = 0 if self.foreground is None else 1
        return bool(((self.low <= shares) & (shares <= self.high))[first:].all())


@dataclass(frozen=True)
class Adapted:
    """Result of an adaptation. The network that was passed in is left in this state, in evaluation mode.

    state: trained parameters and norm statistics by name, for `load_state_dict(..., strict=False)`. losses and shares:
    of the network before and after each epoch, on all images. epoch: the chosen one, 0 = before training; None if no
    state is eligible: the network is then as before, and `serving` returns the original model. why: the reason for the
    choice. probabilities: predictions of `online`.
    """

    state: Params
    losses: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]
    epoch: int | None
    why: str
    probabilities: Tensor | None = None


def adapt(
    module: nn.Module,
    images: Tensor,
    loss: Loss,
    *,
    epochs: int = 10,
    lr: float = 1e-3,
    batch: int = 16,
    seed: int = 0,
    allowed: Range | None = None,
) -> Adapted:
    """Train the parameters of `module` that require a gradient on images (n, C, *spatial) by Adam, in place, and keep
    the best epoch.

    Args:
        loss: (module, x, generator) -> the losses of images and their logits.
        epochs: 0 changes only the statistics of norms.
        batch: images per step; their order changes each epoch.
        seed: of order and noise.
        allowed: shares of predicted classes that make a state eligible; None: any.

    Raises:
        ValueError: nothing to train, or no images.
    """
    rule, generator = _optimizer(module, images, lr), torch.Generator().manual_seed(seed)
    records, states = [_loss_and_shares(module, images, loss, batch, seed)], [_copy_state(module)]
    for _ in range(epochs):
        module.train()
        order = torch.randperm(len(images), generator=generator).to(images.device)
        for index in batches(order, batch):
            _step(rule, loss(module, images[index], generator).losses)
        records.append(_loss_and_shares(module, images, loss, batch, seed))
        states.append(_copy_state(module))
    losses, shares = tuple(loss_of_epoch for loss_of_epoch, _ in records), [two for _, two in records]
    epoch, why = (
        _choose_epoch(losses, shares, allowed) if epochs else (0, "no epoch was asked for: nothing was trained")
    )
    state = states[epoch or 0]
    module.eval().load_state_dict(dict(state), strict=False)
    return Adapted(state, losses, tuple(tuple(s.tolist()) for s in shares), epoch, why)


def select_serving(module: nn.Module, adapted: Adapted, before: nn.Module) -> tuple[nn.Module, Adapted]:
    """The network to predict with after `adapt`: the adapted one, or the original model (and no state) if no state is
    eligible.
    """
    if adapted.epoch is not None:
        return module, adapted
    return before.eval(), replace(adapted, state={}, why=f"{adapted.why}, the shared model serves as it came")


def build_untried(adapted: Adapted, allowed: Range, why: str) -> Adapted:
    """The record where a rule said that adapting is not tried: the state before it, if its shares are allowed. why: of
    the rule; empty = it was tried, and `found` is as it was.
    """
    if not why:
        return adapted
    if allowed.holds(torch.tensor(adapted.shares[0], dtype=torch.float64)):
        return replace(adapted, why=why)
    return replace(adapted, epoch=None, why=f"{why}, and the predicted shares are out of range")


def online(
    module: nn.Module, images: Tensor, loss: Loss, *, lr: float = 1e-3, batch: int = 1, seed: int = 0
) -> Adapted:
    """One pass in the given order: predict a batch, then take one step of Adam on it. No state is chosen.

    Returns:
        The last state, and `probabilities` (n, classes, *spatial) of each image before its own step. losses: the mean
        over batches, each measured at the state that predicted it.
    """
    rule, generator = _optimizer(module, images, lr), torch.Generator().manual_seed(seed)
    module.train()
    totals, parts = [], []
    for x in batches(images, batch):
        judged = loss(module, x, generator)
        parts.append(judged.logits.detach().softmax(dim=1))
        totals.append(judged.losses.detach().sum())
        if judged.losses.isfinite().all():  # one NaN would make the weights NaN for all later images
            _step(rule, judged.losses)
    calibrate(module, images, batch)
    probabilities = torch.cat(parts)
    shares = (tuple(_shares(probabilities).tolist()),)
    why = "each image was predicted before the step on it"
    total = sum(torch.stack(totals).tolist(), 0.0)
    return Adapted(_copy_state(module), (total / len(images),), shares, 0, why, probabilities)


def predicted_shares(module: nn.Module, images: Tensor, *, batch: int = 16) -> Tensor:
    """(classes,) float64: the share of each class among all pixels, or images, that a network predicts."""
    return predict_classes(module, images, batch=batch)[1]


def predict_classes(module: nn.Module, images: Tensor, *, batch: int = 16) -> tuple[Tensor, Tensor]:
    """The class of each place, or image, that a network predicts, (n, *spatial) uint8 on the CPU, and
    `predicted_shares`.
    """
    calibrate(module, images, batch)
    classes, counts = [], []
    with torch.no_grad():
        for x in batches(images, batch):
            logits = module(x).logits
            classes.append(logits.argmax(dim=1).to("cpu", torch.uint8))
            counts.append(_count_classes(logits))
    total = torch.stack(counts).sum(dim=0).cpu()
    return torch.cat(classes), total / total.sum()


def range_of(witnesses: Sequence[Tensor], margin: float, *, segmentation: bool) -> Range:
    """The range of shares (classes,) that models predict: from lowest / (1 + margin) to highest * (1 + margin).

    Models that predict one class everywhere are ignored; if all do, no state is allowed.
    """
    able = [shares for shares in witnesses if shares.max() < 1]
    if not able:
        return Range(witnesses[0], witnesses[0], why="every model predicts one class everywhere")
    stack = torch.stack(able)
    low, high = stack.amin(dim=0) / (1 + margin), stack.amax(dim=0) * (1 + margin)
    front = 1 - stack[:, 0]
    foreground = (float(front.min()) / (1 + margin), float(front.max()) * (1 + margin)) if segmentation else None
    return Range(low, high, foreground)


def bounds_problems(how: Any, *, online: bool = False) -> list[Problem]:
    """Problems of adaptation settings. how: settings with `epochs`, `lr`, `batch` and `margin`."""
    if online and not how.epochs:
        return [Problem(("epochs",), "0 adapts nothing, and mode: online adapts on its one pass; say mode: all")]
    return unmet(
        how,
        epochs=(0 <= how.epochs <= 1000, "in [0, 1000]"),
        lr=(0 < how.lr <= 10, "in (0, 10]"),
        batch=(1 <= how.batch <= 1024, "in [1, 1024]"),
        margin=(how.margin >= 0, ">= 0"),
        tried_below=((limit := getattr(how, "tried_below", None)) is None or 0 <= limit <= 1, "in [0, 1] or null"),
    )


def _optimizer(module: nn.Module, images: Tensor, lr: float) -> torch.optim.Adam:
    """Adam over the trained parameters. Raises: ValueError: there are none, or no images."""
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained or not len(images):
        raise ValueError(f"adaptation needs parameters and images, found {len(trained)} and {len(images)}")
    return torch.optim.Adam(trained, lr=lr)


def _step(rule: torch.optim.Optimizer, losses: Tensor) -> None:
    """One step of the optimizer on the mean of losses."""
    params: list[Tensor] = rule.param_groups[0]["params"]
    for p, gradient in zip(params, torch.autograd.grad(losses.mean(), params, allow_unused=True), strict=True):
        p.grad = gradient
    rule.step()


def _loss_and_shares(module: nn.Module, images: Tensor, loss: Loss, batch: int, seed: int) -> tuple[float, Tensor]:
    """Mean loss and predicted shares of the network in its present state."""
    calibrate(module, images, batch)
    generator = torch.Generator().manual_seed(seed)
    totals, counts = [], []
    with torch.no_grad():
        for x in batches(images, batch):  # logits are not kept: those of all images may be large
            judged = loss(module, x, generator)
            totals.append(judged.losses.double().sum())
            counts.append(_count_classes(judged.logits))
    counted = torch.stack(counts).sum(dim=0).cpu()
    return sum(torch.stack(totals).tolist(), 0.0) / len(images), counted / counted.sum()


def _count_classes(logits: Tensor) -> Tensor:
    """(classes,) float64: the number of places where each class is the most probable. `bincount` would read values."""
    classes = logits.argmax(dim=1)
    return torch.stack([(classes == number).sum() for number in range(logits.shape[1])]).double()


def _shares(probabilities: Tensor) -> Tensor:
    """The share of places, (classes,), at which each class is the most probable."""
    counts = _count_classes(probabilities).cpu()
    return counts / counts.sum()


def _copy_state(module: nn.Module) -> Params:
    """Copies of trained parameters and of the buffers of SetNorms."""
    tensors = dict(_adapted_tensors(module))
    return {name: value.detach().clone() for name, value in module.state_dict().items() if name in tensors}


def _adapted_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor of each trained parameter, and of the buffers of SetNorms."""
    yield from ((name, p) for name, p in module.named_parameters() if p.requires_grad)
    for name, part in module.named_modules():
        if isinstance(part, SetNorm):
            yield from ((f"{name}.{buffer}", value) for buffer, value in part.named_buffers())


def _choose_epoch(losses: Sequence[float], shares: Sequence[Tensor], allowed: Range | None) -> tuple[int | None, str]:
    """The epoch with the lowest loss whose shares are allowed, and the reason; None where none is."""
    counted = [e for e, s in enumerate(shares) if math.isfinite(losses[e]) and (allowed is None or allowed.holds(s))]
    if not counted:
        reason = (allowed.why if allowed else "") or "no state's loss is finite and its predicted shares in the range"
        return None, f"{reason}: not adapted"
    best = min(counted, key=lambda e: losses[e])
    among = f"of {len(counted)} states out of {len(losses)} whose predicted shares count"
    return best, f"epoch {best} has the lowest loss, {losses[best]:.4g}, {among}"
