"""Fixed features of examples, as hospitals compute them for training and as a finished model computes them again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federation.features.whitening import MOST, Whitening, fourier, whitened
from federation.models.features import Features

PARTS = ("mean", "spread", "axes")
LARGEST = 1e12  # of a feature: far from the largest float32, also after a few layers of a network


def extracted(model: Features, images: Tensor) -> NDArray[np.float64]:
    """Features (n, d) of images (n, *inputs), not yet whitened.

    Raises:
        ValueError: some feature is not finite, which a mistake in an extractor can cause.
    """
    found = model.of.extract(images.double().numpy())
    if not np.isfinite(found).all():
        raise ValueError(f"{model.of.name} gives features that are not finite, of images that are: report this")
    return found


def featured(model: Features, scale: Whitening, images: Tensor) -> Tensor:
    """The network's input (n, width) float32 from images (n, *inputs)."""
    x = whitened(extracted(model, images), scale)
    return torch.from_numpy(fourier(x, model.fourier, model.bandwidth) if model.fourier else x).float()


def to_tensors(scale: Whitening) -> dict[str, Tensor]:
    """A scale as tensors of a message."""
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in scale._asdict().items()}


def from_tensors(tensors: Mapping[str, Tensor], model: Features) -> Whitening:
    """The scale in a message.

    Raises:
        ValueError: a tensor is missing, or has another form than features of this model.
    """
    if set(tensors) != set(PARTS):
        raise ValueError(f"a scale has the tensors {', '.join(PARTS)}, found {', '.join(sorted(tensors))}")
    mean, spread, axes = (tensors[name] for name in PARTS)
    good = mean.dim() == 1 and spread.shape == mean.shape and axes.shape == (len(mean), model.components)
    if not good or any(part.dtype != torch.float64 for part in (mean, spread, axes)):
        raise ValueError(f"a scale of {model.components} components has other forms than {[*axes.shape]}")
    if not bool((spread > 0).all()) or not bool(mean.isfinite().all()) or not bool(axes.isfinite().all()):
        raise ValueError("a scale holds finite numbers and positive spreads")
    # Otherwise some images' features would be infinite as float32, and a failure would tell that they are there.
    if bool((MOST * axes.abs().sum(dim=0) > LARGEST).any()):
        raise ValueError(f"a scale gives features of at most {LARGEST:g}, found larger axes")
    return Whitening(mean.numpy(), spread.numpy(), axes.numpy())
