"""Fixed features of examples, as hospitals compute them for training and as a finished model computes them again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federation.features import Extractor, load_extractor, select_weighted_part
from federation.features.whitening import MOST, Whitening, fourier_features, whiten_features
from federation.models import OnFeatures
from federation.models.clip import Clip, ClipPictures, read_tensors

PARTS = ("mean", "spread", "axes")
WEIGHTS = "weights"
"""The tensor (bytes,) uint8 with an encoder's file or what a detector learnt, beside the parts of the scale."""
UNSCALED = Whitening(np.zeros(0), np.zeros(0), np.zeros((0, 0)))
"""The scale of features that are used as they are."""
LARGEST = 1e12  # of a feature: far from the largest float32, also after a few layers of a network


class Fixed(NamedTuple):
    """All that a model's features depend on but the image. weights: of an encoder, the bytes of its file;
    of a detector, those that it learnt; of lite0, those of its package.
    """

    extractor: Extractor
    scale: Whitening
    weights: bytes = b""


def extractor_of(model: OnFeatures, weights: bytes = b"") -> Extractor:
    """What computes a model's features. weights: of an encoder and a CLIP, the bytes of its file; of a detector, what
    it learnt.

    Raises:
        ValueError: they are not those of this encoder, or of no such detector.
    """
    if isinstance(model, Clip):
        return ClipPictures(model, read_tensors(model, weights))
    return load_extractor(model.of, weights)


def extract_values(extractor: Extractor, images: Tensor) -> NDArray[np.float64]:
    """Features (n, d) of images (n, *inputs), not yet whitened.

    Raises:
        ValueError: some feature is not finite, which a mistake in an extractor can cause.
    """
    values = extractor.extract(images.double().numpy())
    if not np.isfinite(values).all():
        raise ValueError(f"{extractor.name} gives features that are not finite, of images that are: report this")
    return values


def compute_features(model: OnFeatures, fixed: Fixed, images: Tensor) -> Tensor:
    """The network's input (n, width) float32 from images (n, *inputs)."""
    if isinstance(model, Clip):
        return torch.from_numpy(extract_values(fixed.extractor, images)).float()
    x = whiten_features(extract_values(fixed.extractor, images), fixed.scale)
    return torch.from_numpy(fourier_features(x, model.fourier, model.bandwidth) if model.fourier else x).float()


def to_tensors(fixed: Fixed) -> dict[str, Tensor]:
    """A scale, and the weights of an encoder or a detector, as tensors of a message."""
    scale = {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in fixed.scale._asdict().items()}
    data = bytearray(fixed.weights)  # a tensor needs memory that may be written
    return scale | ({WEIGHTS: torch.frombuffer(data, dtype=torch.uint8)} if data else {})


def from_tensors(tensors: Mapping[str, Tensor], model: OnFeatures) -> Fixed:
    """The scale, and the weights of an encoder or a detector, in a message; of a CLIP its file alone.

    Raises:
        ValueError: a tensor is missing, or has another form than features of this model; or an encoder's file is not
            the one that the model names, or weights are none of such a detector.
    """
    if isinstance(model, Clip):
        data = weights_in(tensors)
        return Fixed(extractor_of(model, data), UNSCALED, data)
    parts = [*PARTS, *([] if select_weighted_part(model.of) is None else [WEIGHTS])]
    if set(tensors) != set(parts):
        raise ValueError(f"a scale has the tensors {', '.join(parts)}, found {', '.join(sorted(tensors))}")
    mean, spread, axes = (tensors[name] for name in PARTS)
    good = mean.dim() == 1 and spread.shape == mean.shape and axes.shape == (len(mean), model.components)
    if not good or any(part.dtype != torch.float64 for part in (mean, spread, axes)):
        raise ValueError(f"a scale of {model.components} components has other forms than {[*axes.shape]}")
    if not bool((spread > 0).all()) or not bool(mean.isfinite().all()) or not bool(axes.isfinite().all()):
        raise ValueError("a scale holds finite numbers and positive spreads")
    # Otherwise some images' features would be infinite as float32, and a failure would tell that they are there.
    if bool((MOST * axes.abs().sum(dim=0) > LARGEST).any()):
        raise ValueError(f"a scale gives features of at most {LARGEST:g}, found larger axes")
    weights = weights_in(tensors) if WEIGHTS in tensors else b""
    return Fixed(extractor_of(model, weights), Whitening(mean.numpy(), spread.numpy(), axes.numpy()), weights)


def weights_in(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a file in a message. Raises: ValueError: there are none."""
    if WEIGHTS not in tensors:
        raise ValueError(f"features of a file need the tensor {WEIGHTS}, found {', '.join(sorted(tensors))}")
    return tensors[WEIGHTS].to(torch.uint8).numpy().tobytes()
