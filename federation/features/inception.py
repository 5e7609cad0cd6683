"""Inception v3 as the FID uses it: a frozen network whose weights the user brings, to tell distances between images.

Szegedy et al., Rethinking the Inception architecture, CVPR 2016; Heusel et al., GANs trained by a two time-scale update
rule, NeurIPS 2017 (FID: the squared Frechet distance of the last pooling layer's 2,048 numbers). In the FID's network
the averages of a branch leave out the border's padding, and the last block takes maxima in their place. Names of
tensors are those of the published PyTorch versions of it, as safetensors; a classifier (`fc.`, `AuxLogits.`) and
counters of batches are left out. Nothing is fetched, and nothing is unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.features.encoder import digest
from privacy.settings_error import refuse, unmet

SIDE, NUMBERS = 299, 2048
CHUNK = 16
SHOWN = 5
LEFT_OUT = ("fc.", "AuxLogits.")


@dataclass(frozen=True, kw_only=True)
class Inception:
    """file: safetensors with the weights of the FID's network. sha256: of the file; empty = whatever it is."""

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


def _square(out: int, side: int, *, stride: int = 1, padded: bool = True) -> _Conv:
    return _Conv(out, (side, side), stride, padded)


def _wide(out: int, side: int = 7) -> _Conv:
    return _Conv(out, (1, side))


def _high(out: int, side: int = 7) -> _Conv:
    return _Conv(out, (side, 1))


class _Layer(nn.Module):
    """(n, C, H, W) to (n, out, H', W')."""

    def __init__(self, channels: int, how: _Conv) -> None:
        super().__init__()
        pad = (how.size[0] // 2, how.size[1] // 2) if how.padded else (0, 0)
        self.conv = nn.Conv2d(channels, how.out, how.size, how.stride, pad, bias=False)
        self.bn = nn.BatchNorm2d(how.out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = functional.relu(self.bn(self.conv(x)))
        return found


class _Block(nn.Module):
    """Branches side by side, concatenated. branches: names and convolutions of each, in turn; a last item that is a
    tuple forks. pool: what comes before `branch_pool`; with None a strided maximum is the last branch itself.
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
        found = []
        for path, ends in self.paths:
            y = x
            for name in path:
                y = self.get_submodule(name)(y)
            found += [self.get_submodule(name)(y) for name in ends] or [y]
        return torch.cat([*found, self._pooled(x)], dim=1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.how is None:
            return functional.max_pool2d(x, 3, stride=2)
        mean = self.how[0] == "mean"
        near = (
            functional.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
            if mean
            else functional.max_pool2d(x, 3, stride=1, padding=1)
        )
        found: Tensor = self.branch_pool(near)
        return found


def _a(channels: int, pool: int) -> _Block:
    one, five = ("branch1x1", _Conv(64)), [("branch5x5_1", _Conv(48)), ("branch5x5_2", _square(64, 5))]
    three = [(f"branch3x3dbl_{n}", how) for n, how in enumerate((_Conv(64), _square(96, 3), _square(96, 3)), 1)]
    return _Block(channels, [[one], five, three], ("mean", pool))


def _b(channels: int) -> _Block:
    last = _square(96, 3, stride=2, padded=False)
    double = [(f"branch3x3dbl_{n}", how) for n, how in enumerate((_Conv(64), _square(96, 3), last), 1)]
    return _Block(channels, [[("branch3x3", _square(384, 3, stride=2, padded=False))], double], None)


def _c(channels: int, width: int) -> _Block:
    seven = (_Conv(width), _wide(width), _high(192))
    double = (_Conv(width), _high(width), _wide(width), _high(width), _wide(192))
    paths = [
        [(f"branch7x7{kind}_{n}", how) for n, how in enumerate(path, 1)]
        for kind, path in (("", seven), ("dbl", double))
    ]
    return _Block(channels, [[("branch1x1", _Conv(192))], *paths], ("mean", 192))


def _d(channels: int) -> _Block:
    three = (_Conv(192), _square(320, 3, stride=2, padded=False))
    seven = (_Conv(192), _wide(192), _high(192), _square(192, 3, stride=2, padded=False))
    paths = [
        [(f"branch{kind}_{n}", how) for n, how in enumerate(path, 1)]
        for kind, path in (("3x3", three), ("7x7x3", seven))
    ]
    return _Block(channels, paths, None)


def _e(channels: int, pool: str) -> _Block:
    one = [("branch1x1", _Conv(320))]
    fork = [("branch3x3_2a", _wide(384, 3)), ("branch3x3_2b", _high(384, 3))]
    double = [("branch3x3dbl_3a", _wide(384, 3)), ("branch3x3dbl_3b", _high(384, 3))]
    before = [("branch3x3dbl_1", _Conv(448)), ("branch3x3dbl_2", _square(384, 3))]
    return _Block(channels, [one, [("branch3x3_1", _Conv(384)), fork], [*before, double]], (pool, 192))


class Network(nn.Module):
    """Images (n, 3, 299, 299) in [-1, 1] to (n, 2048)."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Layer(3, _square(32, 3, stride=2, padded=False))
        self.Conv2d_2a_3x3 = _Layer(32, _square(32, 3, padded=False))
        self.Conv2d_2b_3x3 = _Layer(32, _square(64, 3))
        self.Conv2d_3b_1x1 = _Layer(64, _Conv(80))
        self.Conv2d_4a_3x3 = _Layer(80, _square(192, 3, padded=False))
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = _a(192, 32), _a(256, 64), _a(288, 64)
        self.Mixed_6a, self.Mixed_6b, self.Mixed_6c = _b(288), _c(768, 128), _c(768, 160)
        self.Mixed_6d, self.Mixed_6e = _c(768, 160), _c(768, 192)
        self.Mixed_7a, self.Mixed_7b, self.Mixed_7c = _d(768), _e(1280, "mean"), _e(2048, "max")

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        for name, layer in self.named_children():
            x = layer(x)
            if name in ("Conv2d_2b_3x3", "Conv2d_4a_3x3"):
                x = functional.max_pool2d(x, 3, stride=2)
        return x.mean(dim=(2, 3))


def opened(settings: Inception) -> bytes:
    """The bytes of the file. Raises: ValueError: it cannot be read, or is another one."""
    try:
        data = Path(settings.file).read_bytes()
    except OSError as error:
        raise ValueError(f"{settings.file} cannot be read ({error.strerror}); give a safetensors file") from error
    if settings.sha256 not in ("", found := digest(data)):
        raise ValueError(f"the SHA-256 of {settings.file} is {found}, the settings say {settings.sha256}")
    return data


def frozen(data: bytes) -> Network:
    """The network with the weights of a file.

    Raises:
        ValueError: it is no safetensors file, or tensors are missing, left over, of other shapes or not finite.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        given = load(data)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"it is no safetensors file, or a damaged one ({error})") from error
    with torch.device("meta"):  # nothing is allocated before the file is seen to fill it
        network = Network()
    wanted = {name: part for name, part in network.state_dict().items() if part.is_floating_point()}
    given = {n: part for n, part in given.items() if not n.startswith(LEFT_OUT) and not n.endswith("batches_tracked")}
    if wrong := _differences(wanted, given):
        more = f", and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"these are no weights of the FID's network: {'; '.join(wrong[:SHOWN])}{more}")
    counters = {name: torch.tensor(0) for name in network.state_dict() if name not in wanted}
    network.load_state_dict({**{name: part.float() for name, part in given.items()}, **counters}, assign=True)
    return network.eval().requires_grad_(False)


def _differences(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    found = [f"{name} is missing" for name in wanted if name not in given]
    found += [f"{name} has no place" for name in given if name not in wanted]
    both = [(name, wanted[name], given[name]) for name in wanted if name in given]
    found += [f"{n} has shape {[*b.shape]}, needed is {[*a.shape]}" for n, a, b in both if a.shape != b.shape]
    return found + [f"{n} is not finite" for n, a, b in both if a.shape == b.shape and not bool(b.isfinite().all())]


@torch.no_grad()
def inception_features(network: Network, images: Tensor) -> Tensor:
    """(n, 2048) of images (n, C, H, W) in [-1, 1]; one channel is shown as grey."""
    found = []
    for part in torch.split(images.float().expand(-1, 3, -1, -1), CHUNK):
        found.append(network(functional.interpolate(part, (SIDE, SIDE), mode="bilinear", align_corners=False)))
    return torch.cat(found).double()
