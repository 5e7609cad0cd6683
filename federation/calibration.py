"""Calibration of a trained model to one hospital without training: centred logits, adapted batch norms (AdaBN), or
matched channel moments (`federation.matching`).

All use only the hospital's own training images, and none trains a weight. They correct an offset between
hospitals: a model whose probabilities are a little too high at one of them loses accuracy at 0.5, and AUC where the
hospitals' scores are pooled, though it may rank the patients of each hospital as well as any.

AdaBN: Li, Wang, Shi, Liu, Hou, Revisiting Batch Normalization For Practical Domain Adaptation, arXiv 1603.04779, 2016,
algorithm 1: statistics of the present images replace those of training.
"""

from __future__ import annotations

import copy
import math
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.swa_utils import update_bn

from federation.matching import ChannelMoments, match_channels, order_norms
from federation.task import Output, Task
from privacy.dp.access import Rows
from privacy.dp.chunks import at_once

How: TypeAlias = Literal["centred", "adabn", "adabn_centred", "matched"]
Quantile: TypeAlias = float | Literal["prevalence"]
QUANTILE = 0.62
"""The quantile of training logits that becomes probability 0.5, so that 38 % of training images are called positive."""
BATCH = 256


class Centring(NamedTuple):
    """Offset and spread of training logits: the offset becomes probability 0.5, the spread is their standard deviation.

    spread: inf if no training logit is finite; then all probabilities are 0.5.
    """

    offset: float
    spread: float


class Calibrated(NamedTuple):
    """A calibrated model: all that a prediction needs, and no image. centring: None if logits are not changed."""

    module: nn.Module
    centring: Centring | None = None

    def probabilities(self, task: Task, x: Tensor, *, alone: bool = False) -> Tensor:
        """Predicted probabilities (n, classes, *spatial) of examples x; for two classes and float64 if centred.

        alone: as in `federation.task.Task.probabilities`. A model that is centred is never released with noise.
        """
        if self.centring is None:
            return task.probabilities(self.module, x, alone=alone)
        positive = centred_probabilities(log_odds(self.module, x), self.centring)
        return torch.stack([1 - positive, positive], dim=1)


def calibrate_model(
    task: Task,
    module: nn.Module,
    train: Rows,
    how: How,
    quantile: Quantile = QUANTILE,
    moments: ChannelMoments | None = None,
) -> Calibrated:
    """A trained model calibrated to this hospital's training rows.

    Args:
        task: of the model; for `centred` two classes.
        module: the trained network, on the device of the images. It is not changed.
        train: the hospital's own training rows. Their labels are read for `quantile: prevalence` only.
        how: `adabn` comes before `centred` if both are chosen.
        quantile: see `compute_centring`; `prevalence` = 1 - the share of positive training rows: it uses labels, at the
            hospital.
        moments: of the model's channels on its training images, for `matched`.

    Raises:
        ValueError: `matched` without moments, or as `federation.matching.match_channels`; `centred` without two
            classes, with a class per pixel, or without training rows; `adabn` and a network without batch norm.
    """
    if how in ("adabn", "matched"):
        train = task.cut_rows(train)
    if how == "matched":
        if moments is None:
            raise ValueError("matched needs the moments of the model's channels on its training images, found none")
        norms = order_norms(module, task.trained_inputs)
        return Calibrated(match_channels(module, moments, train.x, train.patient, norms))
    if how != "adabn" and task.kind != "classification":
        raise ValueError(f"centring needs a class an example, found {task.kind}; leave the variant out")
    if how != "adabn" and (task.classes != 2 or not len(train.y)):
        raise ValueError(
            f"centring needs two classes and training examples, found {task.classes} and {len(train.y)}; "
            "leave the variant out for such a task, or give the hospital training patients"
        )
    if how != "centred":
        is_patched = task.patch is not None  # their features are as large as they are
        module = adapt_batch_norms(module, train.x, batch=at_once(train.x) if is_patched else BATCH)
    if how == "adabn":
        return Calibrated(module)
    at = 1 - float((train.y == 1).double().mean()) if quantile == "prevalence" else quantile
    return Calibrated(module, compute_centring(log_odds(module, train.x), at))


def compute_centring(train_logits: Tensor, quantile: float) -> Centring:
    """The quantile of training logits, and their standard deviation.

    Training logits that are not finite are left out; if all others are equal, or there is only one, logits are only
    shifted (spread 1); if there is none, spread is inf.

    Args:
        train_logits: (m,) log-odds of the hospital's training examples.
        quantile: in [0, 1]; the training logit there (linear between two) becomes probability 0.5.

    Raises:
        ValueError: the quantile is not in [0, 1].
    """
    if not 0 <= quantile <= 1:  # not a number is refused as well
        raise ValueError(
            f"quantile must be in [0, 1], found {quantile}; 0.62 calls 38 % of the training images positive"
        )
    known = train_logits[train_logits.isfinite()].double()
    if not len(known):
        return Centring(0.0, math.inf)
    spread = 1.0 if known.min() == known.max() else float(known.std(correction=0))
    return Centring(float(torch.quantile(known, quantile)), spread)


def centred_probabilities(logits: Tensor, by: Centring) -> Tensor:
    """Probabilities (n,) float64 of log-odds (n,): sigmoid of (logit - offset) / spread; 0.5 if spread is inf.

    The order of the logits stays. A constant added to all logits of the hospital, and a positive factor, cancel out.
    NaN stays NaN.
    """
    if math.isinf(by.spread):
        return torch.full_like(logits, 0.5, dtype=torch.float64)
    return ((logits.double() - by.offset) / by.spread).sigmoid()


def log_odds(module: nn.Module, x: Tensor, *, chunk: int = BATCH) -> Tensor:
    """Log-odds of class 1 (n,) float64, in evaluation mode: the difference of a network's two logits.

    From logits, because probabilities in single precision are 1 from log-odds of 17 on.

    Raises:
        TypeError: the network does not return `Output`.
        ValueError: it returns another number of logits than two.
    """
    module.eval()
    parts = [x.new_zeros(0, dtype=torch.float64)]
    with torch.no_grad():
        for part in torch.split(x, chunk) if len(x) else ():
            output = module(part)
            if not isinstance(output, Output):
                raise TypeError(f"a network returns Output, found {type(output).__name__}")
            if output.logits.shape[1] != 2:
                raise ValueError(f"log-odds need two logits, found {output.logits.shape[1]}")
            logits = output.logits.double()
            parts.append(logits[:, 1] - logits[:, 0])
    return torch.cat(parts)


def has_adaptable_norms(module: nn.Module) -> bool:
    """Whether a network has batch-norm statistics that AdaBN can recompute."""
    return any(isinstance(part, _BatchNorm) and part.track_running_stats for part in module.modules())


def adapt_batch_norms(module: nn.Module, x: Tensor, *, batch: int = BATCH) -> nn.Module:
    """A copy whose batch-norm statistics are those of these images, in evaluation mode (AdaBN); weights stay.

    One pass without gradient, in a fixed order that mixes the patients, in equal batches of at most `batch`;
    means and variances are averaged over the batches. The same images always give the same copy. Dropout is off.

    Args:
        module: on the device of the images; it is not changed.
        x: (n, ...) images, without labels.
        batch: images in memory at a time.

    Raises:
        ValueError: the network has no batch norm, or there are fewer than two images.
    """
    if not has_adaptable_norms(module) or len(x) < 2:
        raise ValueError(
            f"AdaBN needs batch norm with running statistics and at least two images, found {len(x)} images and "
            f"{'such' if has_adaptable_norms(module) else 'no such'} layers; train with norm: batch, or calibrate with "
            "centred"
        )
    adapted_copy = copy.deepcopy(module)
    for part in adapted_copy.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0  # the statistics are for prediction, and must not be random
    # Neighbouring rows are one patient's: batches of a few patients would miss the variance between patients.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(x.device)
    with torch.no_grad():
        update_bn((x[rows] for rows in torch.tensor_split(order, math.ceil(len(x) / batch))), adapted_copy)
    return adapted_copy.eval()
