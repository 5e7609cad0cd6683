"""A frozen network as features: weights of a safetensors file that the user brings and declares public.

Architectures are those of transformers (Wolf et al., EMNLP 2020) that build without torchvision: vision transformers
(Dosovitskiy et al., ICLR 2021), DeiT, DINOv2, ResNet, ConvNeXt. Nothing is downloaded, a file contains no code, and
nothing is unpickled. Features of a transformer are its first token and the mean of the others after the last layer;
features of a convolutional network are the mean and the maximum over places.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from federation.features.pictures import (
    cut_features,
    find_picture_complaints,
    find_preparation_problems,
    normalize_picture,
    prepare_picture,
)
from federation.features.slices import features_by_slice
from privacy.settings_error import refuse, wrong_lengths

Floats = NDArray[np.float64]
KINDS = ("vit", "deit", "dinov2", "resnet", "convnext")
"""Values of `model_type` in a config.json."""
HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "pooler.", "head.", "fc.")
"""Beginnings of names of tensors that are not used here."""
MOST = 100_000  # of a number in an architecture: no file could contain a larger network
SHOWN = 5  # problems of a file that an error names


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """file: a safetensors file; architecture: the JSON text of its config.json, empty = the one in the folder of the
    file. sha256: of the file; empty = any. size: sides to which images are resized. window: the values that become 0
    and 1, by default those of pictures; mean, std: of the channels in its training, by default ImageNet's.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["encoder"] = "encoder"
    file: str
    sha256: str = ""
    architecture: str = ""
    size: int = 224
    window: tuple[float, float] = (-1.0, 1.0)
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, window=2, mean=3, std=3))
        refuse(find_preparation_problems(self))

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        return find_picture_complaints(self.name, inputs)


@dataclass(frozen=True)
class Frozen:
    """An encoder with its network."""

    settings: Encoder
    network: nn.Module
    name: ClassVar[str] = "encoder"

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W), or volumes (n, C, D, H, W) by slices; always finite."""
        return np.stack([features_by_slice(self._plane_features, image) for image in images])

    @torch.no_grad()
    def _plane_features(self, image: Floats) -> Floats:
        """Features (d,) of one image (C, H, W)."""
        x = prepare_picture(image, self.settings.window, self.settings.size)
        x = normalize_picture(x, self.settings.mean, self.settings.std)
        last: Tensor = self.network(pixel_values=x).last_hidden_state
        parts = (last[:, 0], last[:, 1:].mean(dim=1)) if last.dim() == 3 else (last.mean((2, 3)), last.amax((2, 3)))
        return cut_features(torch.cat(parts, dim=1)[0])


def file_digest(data: bytes) -> str:
    """The SHA-256 of a file, as sha256sum prints it."""
    return hashlib.sha256(data).hexdigest()


def load_encoder(settings: Encoder, data: bytes) -> Frozen:
    """The encoder with the weights of its file. settings: with `architecture`. data: the bytes of the file.

    Raises:
        ValueError: the digest is another one, data are no safetensors file, the architecture is unknown or no
            configuration, tensors are missing, superfluous, of other shapes or not finite, the network does not take
            images of this size, or transformers is not installed.
    """
    if settings.sha256 not in ("", digest_found := file_digest(data)):
        raise ValueError(
            f"the file's SHA-256 is {digest_found}, the settings say {settings.sha256}: it is another file"
        )
    tensors = _read_tensors(data)
    with torch.device("meta"):  # no memory is allocated before the file is known to fit
        network = _build_network(settings.architecture)
    expected = network.state_dict()
    prefix = f"{network.base_model_prefix}."
    if all(name.startswith((prefix, *HEADS)) for name in tensors):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    expected = {name: tensor for name, tensor in expected.items() if not name.startswith(HEADS)}
    useful_tensors = {
        name: tensor for name, tensor in tensors.items() if name in expected or not name.startswith(HEADS)
    }
    if wrong := _find_differences(expected, useful_tensors):
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"the file does not fit its architecture: {'; '.join(wrong[:SHOWN])}{more}")
    return _fill_network(settings, network, useful_tensors)


def _fill_network(settings: Encoder, network: nn.Module, tensors: Mapping[str, Tensor]) -> Frozen:
    """The encoder with these weights. Raises: ValueError: it does not take images of its size."""
    spare = {name: torch.zeros(part.shape) for name, part in network.state_dict().items() if name.startswith(HEADS)}
    weights = {name: part.float() if part.is_floating_point() else part for name, part in tensors.items()}
    network.load_state_dict({**spare, **weights}, assign=True)
    encoder = Frozen(settings, network.eval().requires_grad_(False))
    try:
        encoder.extract(np.zeros((1, 3, settings.size, settings.size)))
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the network does not take images of size {settings.size}: {error}") from error
    return encoder


def _read_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a safetensors file. Raises: ValueError: it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"it is no safetensors file, or a damaged one ({error})") from error


def _build_network(architecture: str) -> Any:
    """A network of transformers without values, on torch's default device."""
    try:
        config = json.loads(architecture)
    except ValueError as error:
        raise ValueError(f"its config.json is no JSON ({error})") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in KINDS:
        raise ValueError(f"its config.json must have a model_type of {', '.join(KINDS)}, found {kind!r}")
    if "auto_map" in config:
        raise ValueError("its config.json names code of its own (auto_map), and no code is run that comes with a file")
    if (most := _largest_number(config)) > MOST:
        raise ValueError(f"its config.json has a number of {most:g}; at most {MOST:,} is allowed")
    try:
        from transformers import AutoConfig, AutoModel  # optional, and seconds to import
    except ImportError as error:
        raise ValueError("an encoder needs transformers: pip install 'consilium[encoder]'") from error
    try:
        return AutoModel.from_config(
            AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
        )
    except Exception as error:  # its checks raise errors of many types
        raise ValueError(f"its config.json is none of a {kind} ({type(error).__name__}: {error})") from error


def _largest_number(value: object) -> float:
    """The largest absolute number within JSON."""
    if isinstance(value, dict | list):
        return max(map(_largest_number, value.values() if isinstance(value, dict) else value), default=0)
    return abs(value) if isinstance(value, int | float) else 0


def _find_differences(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """How the tensors of a file differ from those that the network needs."""
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} has no place" for name in tensors if name not in expected]
    both = [(name, expected[name], tensors[name]) for name in expected if name in tensors]
    problems += [f"{n} has shape {[*b.shape]}, needed is {[*a.shape]}" for n, a, b in both if a.shape != b.shape]
    return problems + [f"{n} is not finite" for n, a, b in both if a.shape == b.shape and not bool(b.isfinite().all())]
