"""Test-time adaptation: a network moves on unlabelled images, and the state that then serves is chosen without labels.

IOP-FL (IEEE Transactions on Medical Imaging 2023) says it twice: algorithm 1 predicts each image before its update, in
one pass; section III.D adapts for 10 epochs over all test images and takes the state with the lowest unsupervised loss.
`adapt` is the second, and what it adapts on is what it is then scored on; `online` is the first.

The loss of a state is measured after each epoch, on all images, with the same noise each time. The lowest loss alone
would choose a network that says the same everywhere, whose consistency, shape and entropy losses are all zero: a state
counts only if the shares of its predicted classes lie within a range (`Range`), which the models that it is made from
give. If none does, none serves: not the one before either, if its norms go by the test images (`serving`). (The
released code picks its best epoch by the labels of the test images.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from personalize.adaptation_norms import SetNorm, batches, calibrate
from personalize.routing_losses import Judged
from privacy.message import Params
from privacy.settings_error import Problem, unmet

Loss: TypeAlias = Callable[[nn.Module, Tensor, torch.Generator], Judged]


@dataclass(frozen=True)
class Range:
    """Allowed shares of classes among all predicted pixels, or images: low and high (classes,).

    foreground: the same for all classes but 0 together, in segmentation. why: where no state may pass, the reason.
    """

    low: Tensor
    high: Tensor
    foreground: tuple[float, float] | None = None
    why: str = ""

    def holds(self, shares: Tensor) -> bool:
        """Whether predictions with these shares (classes,) count. One class everywhere never does."""
        if self.why or shares.max() == 1:
            return False
        if self.foreground is not None and not self.foreground[0] <= 1 - float(shares[0]) <= self.foreground[1]:
            return False
        first = 0 if self.foreground is None else 1
        return bool(((self.low <= shares) & (shares <= self.high))[first:].all())


@dataclass(frozen=True)
class Adapted:
    """What an adaptation came to. The network given to it is left in this state, in evaluation mode.

    state: what was trained, by name, with what norms remember, for `load_state_dict(..., strict=False)`. losses and
    shares: of the network before and after each epoch, on all images. epoch: the chosen one, 0 is before; None where no
    state counts: the network is as before, and `serving` has the model that it came from instead. why: in words.
    probabilities: what `online` predicted.
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
    """Train what requires a gradient in `module` on images (n, C, *spatial) by Adam, in place, and keep the best epoch.

    Args:
        loss: (module, x, generator) -> the losses of images and their logits.
        epochs: 0 leaves all but the statistics of norms as it was.
        batch: images a step; they come in another order each epoch.
        seed: of order and noise.
        allowed: shares that a state's predictions must have to count; None: any.

    Raises:
        ValueError: nothing to train, or no images.
    """
    rule, generator = _optimizer(module, images, lr), torch.Generator().manual_seed(seed)
    found, states = [_measured(module, images, loss, batch, seed)], [_state(module)]
    for _ in range(epochs):
        module.train()
        order = torch.randperm(len(images), generator=generator)
        for index in batches(order, batch):
            _step(rule, loss(module, images[index.to(images.device)], generator).losses)
        found.append(_measured(module, images, loss, batch, seed))
        states.append(_state(module))
    losses, shares = tuple(one for one, _ in found), [two for _, two in found]
    epoch, why = _chosen(losses, shares, allowed) if epochs else (0, "no epoch was asked for: nothing was trained")
    state = states[epoch or 0]
    module.eval().load_state_dict(dict(state), strict=False)
    return Adapted(state, losses, tuple(tuple(s.tolist()) for s in shares), epoch, why)


def serving(module: nn.Module, found: Adapted, before: nn.Module) -> tuple[nn.Module, Adapted]:
    """What serves after `adapt`: its network, or the model that it came from where no state counts, with no state."""
    if found.epoch is not None:
        return module, found
    return before.eval(), replace(found, state={}, why=f"{found.why}, the shared model serves as it came")


def online(
    module: nn.Module, images: Tensor, loss: Loss, *, lr: float = 1e-3, batch: int = 1, seed: int = 0
) -> Adapted:
    """One pass in the given order: predict a batch, then take one step of Adam on it. Nothing is chosen.

    Returns:
        The last state, and `probabilities` (n, classes, *spatial) of each image before its own step. losses: the mean
        over batches at the state that predicted them.
    """
    rule, generator = _optimizer(module, images, lr), torch.Generator().manual_seed(seed)
    module.train()
    total, parts = 0.0, []
    for x in batches(images, batch):
        judged = loss(module, x, generator)
        parts.append(judged.logits.detach().softmax(dim=1))
        total += float(judged.losses.detach().sum())
        if judged.losses.isfinite().all():  # one image without a number would leave every later one without
            _step(rule, judged.losses)
    calibrate(module, images, batch)
    probabilities = torch.cat(parts)
    shares = (tuple(_shares(probabilities).tolist()),)
    why = "each image was predicted before the step on it"
    return Adapted(_state(module), (total / len(images),), shares, 0, why, probabilities)


def predicted_shares(module: nn.Module, images: Tensor, *, batch: int = 16) -> Tensor:
    """(classes,) float64: how common each class is among all pixels, or images, that a network predicts."""
    calibrate(module, images, batch)
    with torch.no_grad():
        parts = [_counts(module(x).logits) for x in batches(images, batch)]
    total = torch.stack(parts).sum(dim=0)
    return total / total.sum()


def range_of(witnesses: Sequence[Tensor], margin: float, *, segmentation: bool) -> Range:
    """The shares that models predict (classes,), from the lowest / (1 + margin) to the highest * (1 + margin).

    A model that predicts one class everywhere is no witness; if all do, nothing passes.
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
    """What no hospital adapts by, whoever asks. how: settings with `epochs`, `lr`, `batch` and `margin`."""
    if online and not how.epochs:
        return [Problem(("epochs",), "0 adapts nothing, and mode: online adapts on its one pass; say mode: all")]
    return unmet(
        how,
        epochs=(0 <= how.epochs <= 1000, "in [0, 1000]"),
        lr=(0 < how.lr <= 10, "in (0, 10]"),
        batch=(1 <= how.batch <= 1024, "in [1, 1024]"),
        margin=(how.margin >= 0, ">= 0"),
    )


def _optimizer(module: nn.Module, images: Tensor, lr: float) -> torch.optim.Adam:
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained or not len(images):
        raise ValueError(f"adaptation needs parameters and images, found {len(trained)} and {len(images)}")
    return torch.optim.Adam(trained, lr=lr)


def _step(rule: torch.optim.Optimizer, losses: Tensor) -> None:
    params: list[Tensor] = rule.param_groups[0]["params"]
    for p, gradient in zip(params, torch.autograd.grad(losses.mean(), params, allow_unused=True), strict=True):
        p.grad = gradient
    rule.step()


def _measured(module: nn.Module, images: Tensor, loss: Loss, batch: int, seed: int) -> tuple[float, Tensor]:
    """Mean loss and predicted shares of the network as it is."""
    calibrate(module, images, batch)
    generator = torch.Generator().manual_seed(seed)
    total, counts = 0.0, torch.zeros(0)
    with torch.no_grad():
        for x in batches(images, batch):  # logits are not kept: those of all images may be large
            judged = loss(module, x, generator)
            total += float(judged.losses.double().sum())
            counts = _counts(judged.logits) + (counts if len(counts) else 0.0)
    return total / len(images), counts / counts.sum()


def _counts(logits: Tensor) -> Tensor:
    """(classes,) float64: of how many places each class is the most probable, on the CPU."""
    return torch.bincount(logits.argmax(dim=1).flatten(), minlength=logits.shape[1]).double().cpu()


def _shares(probabilities: Tensor) -> Tensor:
    counts = _counts(probabilities)
    return counts / counts.sum()


def _state(module: nn.Module) -> Params:
    """Copies of what is trained, and of what the norms of a set remember."""
    kept = dict(_kept(module))
    return {name: value.detach().clone() for name, value in module.state_dict().items() if name in kept}


def _kept(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, p) for name, p in module.named_parameters() if p.requires_grad)
    for name, part in module.named_modules():
        if isinstance(part, SetNorm):
            yield from ((f"{name}.{own}", value) for own, value in part.named_buffers())


def _chosen(losses: Sequence[float], shares: Sequence[Tensor], allowed: Range | None) -> tuple[int | None, str]:
    counted = [e for e, s in enumerate(shares) if math.isfinite(losses[e]) and (allowed is None or allowed.holds(s))]
    if not counted:
        reason = (allowed.why if allowed else "") or "no state's loss is finite and its predicted shares in the range"
        return None, f"{reason}: not adapted"
    best = min(counted, key=lambda e: losses[e])
    among = f"of {len(counted)} states out of {len(losses)} whose predicted shares count"
    return best, f"epoch {best} has the lowest loss, {losses[best]:.4g}, {among}"
