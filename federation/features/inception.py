"""Inception v3 as the FID uses it: a frozen network with weights from the user, for distances between sets of images.

Szegedy et al., Rethinking the Inception architecture, CVPR 2016; Heusel et al., GANs trained by a two time-scale update
rule, NeurIPS 2017 (FID: the squared Frechet distance of the last pooling layer's 2,048 numbers). In the FID's network
the averages of a branch leave out the border's padding, and the last block takes maxima in their place. Names of
tensors are those of the published PyTorch versions of it, as safetensors; a classifier (`fc.`, `AuxLogits.`) and
counters of batches are left out. Nothing is downloaded, and nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.features.encoder import file_digest
from privacy.settings_error import refuse, unmet

SIDE, NUMBERS = 299, 2048
CHUNK = 16
SHOWN = 5
LEFT_OUT = ("fc.", "AuxLogits.")


@dataclass(frozen=True, kw_only=True)
class Inception:
    """file: safetensors with the weights of the FID's network. sha256: of the file; empty = any."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["inception"] = "inception"
    file: str
    sha256: str = ""

    def __post_init__(self) -> None:
        good = not self.sha256 or (len(self.sha256) == 64 and set(self.sha256) <= set("0123456789abcdef"))
        refuse(unmet(self, sha256=(good, "64 hexadecimal digits, as sha256sum prints them")))


class _Conv(NamedTuple):
    """A convolution without bias, batch norm, and ReLU."""

    out: int
    size: tuple[int, int] = (1, 1)
    stride: int = 1
    padded: bool = True


def _square_conv(out: int, side: int, *, stride: int = 1, padded: bool = True) -> _Conv:
    """A convolution with a square kernel."""
    return _Conv(out, (side, side), stride, padded)


def _wide_conv(out: int, side: int = 7) -> _Conv:
    """A convolution of 1 x side."""
    return _Conv(out, (1, side))


def _high_conv(out: int, side: int = 7) -> _Conv:
    """A convolution of side x 1."""
    return _Conv(out, (side, 1))


class _Layer(nn.Module):
    """(n, C, H, W) to (n, out, H', W')."""

    def __init__(self, channels: int, how: _Conv) -> None:
        super().__init__()
        pad = (how.size[0] // 2, how.size[1] // 2) if how.padded else (0, 0)
        self.conv = nn.Conv2d(channels, how.out, how.size, how.stride, pad, bias=False)
        self.bn = nn.BatchNorm2d(how.out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = functional.relu(self.bn(self.conv(x)))
        return output


class _Block(nn.Module):
    """Parallel branches, concatenated. branches: names and convolutions of each, in order; a last item that is a list
    forks. pool: the pooling before `branch_pool`; with None a strided maximum is the last branch.
    """

    def __init__(self, channels: int, branches: Sequence[Sequence[Any]], pool: tuple[str, int] | None) -> None:
        super().__init__()
        self.how, self.paths = pool, list[tuple[list[str], list[str]]]()
        self.out = channels if pool is None else pool[1]
        for branch in branches:
            width, path, ends = channels, list[str](), list[str]()
            for item in branch:
                forked = isinstance(item, list)
                for name, how in item if forked else [item]:
                    self.add_module(name, _Layer(width, how))
                    (ends if forked else path).append(name)
                width = how.out
            self.paths.append((path, ends))
            self.out += width * max(1, len(ends))
        if pool is not None:
            self.branch_pool = _Layer(channels, _Conv(pool[1]))

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        for path, ends in self.paths:
            y = x
            for name in path:
                y = self.get_submodule(name)(y)
            outputs += [self.get_submodule(name)(y) for name in ends] or [y]
        return torch.cat([*outputs, self._pool_branch(x)], dim=1)

    def _pool_branch(self, x: Tensor) -> Tensor:
        """The last branch: a strided maximum, or pooling followed by a convolution."""
        if self.how is None:
            return functional.max_pool2d(x, 3, stride=2)
        mean = self.how[0] == "mean"
        near = (
            functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
            if mean
            else functional.max_pool2d(x, 3, stride=1, padding=1)
        )
        output: Tensor = self.branch_pool(near)
        return output


def _build_block_a(channels: int, pool: int) -> _Block:
    """The block of the 35 x 35 grid: branches 1x1, 5x5, two 3x3, pooling."""
    pointwise, five = ("branch1x1", _Conv(64)), [("branch5x5_1", _Conv(48)), ("branch5x5_2", _square_conv(64, 5))]
    three = [
        (f"branch3x3dbl_{n}", how) for n, how in enumerate((_Conv(64), _square_conv(96, 3), _square_conv(96, 3)), 1)
    ]
    return _Block(channels, [[pointwise], five, three], ("mean", pool))


def _build_block_b(channels: int) -> _Block:
    """The block that halves 35 x 35 to 17 x 17."""
    last = _square_conv(96, 3, stride=2, padded=False)
    double = [(f"branch3x3dbl_{n}", how) for n, how in enumerate((_Conv(64), _square_conv(96, 3), last), 1)]
    return _Block(channels, [[("branch3x3", _square_conv(384, 3, stride=2, padded=False))], double], None)


def _build_block_c(channels: int, width: int) -> _Block:
    """The block of the 17 x 17 grid: branches 1x1, 7x7, two 7x7 in factors, pooling."""
    seven = (_Conv(width), _wide_conv(width), _high_conv(192))
    double = (_Conv(width), _high_conv(width), _wide_conv(width), _high_conv(width), _wide_conv(192))
    paths = [
        [(f"branch7x7{kind}_{n}", how) for n, how in enumerate(path, 1)]
        for kind, path in (("", seven), ("dbl", double))
    ]
    return _Block(channels, [[("branch1x1", _Conv(192))], *paths], ("mean", 192))


def _build_block_d(channels: int) -> _Block:
    """The block that halves 17 x 17 to 8 x 8."""
    three = (_Conv(192), _square_conv(320, 3, stride=2, padded=False))
    seven = (_Conv(192), _wide_conv(192), _high_conv(192), _square_conv(192, 3, stride=2, padded=False))
    paths = [
        [(f"branch{kind}_{n}", how) for n, how in enumerate(path, 1)]
        for kind, path in (("3x3", three), ("7x7x3", seven))
    ]
    return _Block(channels, paths, None)


def _build_block_e(channels: int, pool: str) -> _Block:
    """The block of the 8 x 8 grid, whose 3x3 branches fork."""
    pointwise = [("branch1x1", _Conv(320))]
    fork = [("branch3x3_2a", _wide_conv(384, 3)), ("branch3x3_2b", _high_conv(384, 3))]
    double = [("branch3x3dbl_3a", _wide_conv(384, 3)), ("branch3x3dbl_3b", _high_conv(384, 3))]
    before = [("branch3x3dbl_1", _Conv(448)), ("branch3x3dbl_2", _square_conv(384, 3))]
    return _Block(channels, [pointwise, [("branch3x3_1", _Conv(384)), fork], [*before, double]], (pool, 192))


class Network(nn.Module):
    """Images (n, 3, 299, 299) in [-1, 1] to (n, 2048)."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Layer(3, _square_conv(32, 3, stride=2, padded=False))
        self.Conv2d_2a_3x3 = _Layer(32, _square_conv(32, 3, padded=False))
        self.Conv2d_2b_3x3 = _Layer(32, _square_conv(64, 3))
        self.Conv2d_3b_1x1 = _Layer(64, _Conv(80))
        self.Conv2d_4a_3x3 = _Layer(80, _square_conv(192, 3, padded=False))
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = (
            _build_block_a(192, 32),
            _build_block_a(256, 64),
            _build_block_a(288, 64),
        )
        self.Mixed_6a, self.Mixed_6b, self.Mixed_6c = (
            _build_block_b(288),
            _build_block_c(768, 128),
            _build_block_c(768, 160),
        )
        self.Mixed_6d, self.Mixed_6e = _build_block_c(768, 160), _build_block_c(768, 192)
        self.Mixed_7a, self.Mixed_7b, self.Mixed_7c = (
            _build_block_d(768),
            _build_block_e(1280, "mean"),
            _build_block_e(2048, "max"),
        )

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        for name, layer in self.named_children():
            x = layer(x)
            if name in ("Conv2d_2b_3x3", "Conv2d_4a_3x3"):
                x = functional.max_pool2d(x, 3, stride=2)
        return x.mean(dim=(2, 3))


def read_weights_file(settings: Inception) -> bytes:
    """The bytes of the file. Raises: ValueError: it cannot be read, or has another digest."""
    try:
        data = Path(settings.file).read_bytes()
    except OSError as error:
        raise ValueError(f"{settings.file} cannot be read ({error.strerror}); give a safetensors file") from error
    if settings.sha256 not in ("", digest_found := file_digest(data)):
        raise ValueError(f"the SHA-256 of {settings.file} is {digest_found}, the settings say {settings.sha256}")
    return data


def load_network(data: bytes) -> Network:
    """The network with the weights of a file.

    Raises:
        ValueError: it is no safetensors file, or tensors are missing, superfluous, of other shapes or not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"it is no safetensors file, or a damaged one ({error})") from error
    with torch.device("meta"):  # no memory is allocated before the file is known to fit
        network = Network()
    expected = {name: part for name, part in network.state_dict().items() if part.is_floating_point()}
    tensors = {
        n: part for n, part in tensors.items() if not n.startswith(LEFT_OUT) and not n.endswith("batches_tracked")
    }
    if wrong := _find_differences(expected, tensors):
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"these are no weights of the FID's network: {'; '.join(wrong[:SHOWN])}{more}")
    counters = {name: torch.tensor(0) for name in network.state_dict() if name not in expected}
    network.load_state_dict({**{name: part.float() for name, part in tensors.items()}, **counters}, assign=True)
    return network.eval().requires_grad_(False)


def _find_differences(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """How the tensors of a file differ from those that the network needs."""
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} has no place" for name in tensors if name not in expected]
    both = [(name, expected[name], tensors[name]) for name in expected if name in tensors]
    problems += [f"{n} has shape {[*b.shape]}, needed is {[*a.shape]}" for n, a, b in both if a.shape != b.shape]
    return problems + [f"{n} is not finite" for n, a, b in both if a.shape == b.shape and not bool(b.isfinite().all())]


@torch.no_grad()
def inception_features(network: Network, images: Tensor) -> Tensor:
    """(n, 2048) of images (n, C, H, W) in [-1, 1]; one channel is shown as grey."""
    features = []
    for part in torch.split(images.float().expand(-1, 3, -1, -1), CHUNK):
        features.append(network(functional.interpolate(part, (SIDE, SIDE), mode="bilinear", align_corners=False)))
    return torch.cat(features).double()
