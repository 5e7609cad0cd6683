"""Features from a network that was trained only on synthetic pictures to mark the finding and the organ.

A procedural prior knows where it drew a lesion, so a small U-Net learns to mark it without any patient: every pixel has
a label, while the class of a picture is one bit. Synthetic anatomies of random contrast are how SynthSeg segments real
scans (Billot et al., Medical Image Analysis 2023, doi:10.1016/j.media.2023.102789). Features are the confidence of the
network, the area of its marks, and quantiles of the image's values there; images keep their unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from federation.parameters import read_parameters
from federation.randomness import use_seed
from privacy.message import Message, from_bytes, to_bytes
from privacy.settings_error import out_of_range, refuse, unmet, wrong_lengths

Floats = NDArray[np.float64]

MARKS = ("finding", "organ")
HALVINGS = 2  # of the network
RARE = (3.0, 1.0)  # weight of marked pixels against unmarked ones: findings are small
AREAS = (1 / 1200, 1 / 480, 1 / 240, 1 / 120, 1 / 60, 1 / 30, 1 / 15)  # of a plane
PLANES = (0.0, 0.25, 0.5, 0.75, 1.0)  # quantiles of the planes' largest values
QUANTILES = (0.01, 0.03, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)  # of the values where a mark is
SCALES = (1 / 48, 1 / 24)  # of Gaussians, in sides of the image
CHANNELS = "channels"  # of the images: a fact that is stored with the weights of a network
MOST = 2**28  # pixels of all pictures: 1 GiB of each channel and mark
LEAST = 1e-4  # weight of a pixel without any mark, so that quantiles exist in every image


@dataclass(frozen=True, kw_only=True)
class Detector:
    """on: the prior whose pictures it is trained on; pictures: how many; steps, batch, lr: of Adam; width: channels at
    full resolution. size: side to which images are resized. window: the values that become -1 and 1, which must be
    those of the prior's pictures; the default is that of ADC in 1e-3 mm²/s.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    name: Literal["detector"] = "detector"
    on: str
    pictures: int = 6000
    steps: int = 1000
    batch: int = 24
    lr: float = 3e-3
    width: int = 12
    size: int = 48
    window: tuple[float, float] = (0.0, 3.5)

    def __post_init__(self) -> None:
        refuse(wrong_lengths(self, window=2))
        low, high = self.window
        fits = self.pictures * self.size**2 <= MOST
        refuse(
            out_of_range(
                self,
                pictures=(16, 100_000),
                steps=(1, 100_000),
                batch=(1, 1024),
                lr=(1e-6, 1.0),
                width=(4, 64),
                size=(16, 512),
            )
            + unmet(
                self,
                width=(self.width % 4 == 0, "a multiple of 4"),
                size=(self.size % 2**HALVINGS == 0, f"a multiple of {2**HALVINGS}"),
                window=(low < high and math.isfinite(high - low), "two finite numbers, the lower first"),
                pictures=(fits, f"at most {MOST // self.size**2} of {self.size} x {self.size} pixels, held in memory"),
            )
        )

    def complaints(self, inputs: tuple[int, ...]) -> list[str]:
        """Why examples of this shape have no such features; empty = no problem."""
        if len(inputs) in (3, 4) and min(inputs[-2:]) >= 8:
            return []
        return [f"detector needs images or volumes with sides of at least 8, found {inputs}"]

    def network(self, channels: int) -> nn.Module:
        """A network for planes (b, channels, size, size), not yet trained. Its logits are (b, MARKS, size, size)."""
        return UNet(channels, self.width)


@dataclass(frozen=True)
class Detecting:
    """A detector with its network, for images of `channels` channels."""

    settings: Detector
    channels: int
    of_planes: Callable[[Tensor], Tensor]
    name: ClassVar[str] = "detector"

    def extract(self, images: Floats) -> Floats:
        """Features (n, d) of images (n, C, H, W) or volumes (n, C, D, H, W); always finite.

        For a network of one channel, the channels of an image are the planes of a stack.
        """
        return np.stack([self._image_features(image) for image in images])

    def _image_features(self, image: Floats) -> Floats:
        """Features (d,) of one image or volume."""
        values, marks = self.marked(image)
        side = self.settings.size
        features = [_sureness_features(mark) for mark in marks]
        for channel in values:
            smooth = [_smooth_planes(channel, scale * side) for scale in SCALES]
            features += [_quantile_features(plane, mark) for mark in marks for plane in smooth]
        return np.concatenate(features)

    @torch.no_grad()
    def marked(self, image: Floats) -> tuple[Floats, Floats]:
        """Values in [0, 1] (channels, D, size, size) of an image, and the probability of each mark, (2, D, ...)."""
        low, high = self.settings.window
        scaled = np.nan_to_num((np.clip(image, low, high) - low) / (high - low))
        planes = torch.from_numpy(scaled.reshape(self.channels, -1, *image.shape[-2:])).float().transpose(0, 1)
        sides = (self.settings.size, self.settings.size)
        if planes.shape[-2:] != sides:
            planes = functional.interpolate(planes, sides, mode="bilinear", align_corners=False, antialias=True)
        logits: Tensor = self.of_planes(2 * planes - 1)
        # Otherwise a network that returns NaN for some patients would reveal, by an error, that they are in the data.
        sure = torch.nan_to_num(logits.sigmoid())
        return planes.transpose(0, 1).double().numpy(), sure.transpose(0, 1).double().numpy()


class UNet(nn.Module):
    """A U-Net of two halvings, of MONAI's blocks. Group norms, so that the marks of an image depend on that image
    alone.
    """

    def __init__(self, channels: int, width: int) -> None:
        from monai.networks.nets.basic_unet import Down, TwoConv, UpCat  # MONAI takes seconds to import

        super().__init__()
        w, settings = width, ("swish", ("group", {"num_groups": 4}), True, 0.0)
        self.stem = TwoConv(2, channels, w, *settings)
        self.down = nn.ModuleList([Down(2, w, 2 * w, *settings), Down(2, 2 * w, 4 * w, *settings)])
        up = {"upsample": "nontrainable", "interp_mode": "nearest", "align_corners": None, "is_pad": False}
        self.up = nn.ModuleList(
            [UpCat(2, 4 * w, 2 * w, 2 * w, *settings, **up), UpCat(2, 2 * w, w, w, *settings, **up)]
        )
        self.head = nn.Conv2d(w, len(MARKS), 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        middle = self.down[0](high)
        logits: Tensor = self.head(self.up[1](self.up[0](self.down[1](middle), middle), high))
        return logits


def _sureness_features(mark: Floats) -> Floats:
    """Features of a mark (D, H, W): the values exceeded on `AREAS`, quantiles of the planes' maxima, the area."""
    falling = np.sort(mark, axis=None)[::-1]
    plane = mark[0].size
    exceeded = [falling[min(round(area * plane), falling.size) - 1] for area in AREAS]
    largest = mark.reshape(len(mark), -1).max(axis=1)
    return np.array([*exceeded, *np.quantile(largest, PLANES), np.log1p(mark.sum())])


def _smooth_planes(channel: Floats, sigma: float) -> Floats:
    """Planes (D, H, W), each smoothed on its own."""
    from scipy.ndimage import gaussian_filter  # slow to import

    smooth: Floats = gaussian_filter(channel, (0, sigma, sigma), mode="nearest")
    return smooth


def _quantile_features(values: Floats, mark: Floats) -> Floats:
    """Mean and quantiles of values weighted by a mark, both (D, H, W)."""
    order = np.argsort(values, axis=None, kind="stable")
    weight = np.cumsum(mark.ravel()[order] + LEAST)
    places = np.searchsorted(weight, np.array(QUANTILES) * weight[-1])
    mean = (values * (mark + LEAST)).sum() / weight[-1]
    return np.array([mean, *values.ravel()[order[np.minimum(places, values.size - 1)]]])


def train_detector_network(settings: Detector, x: Tensor, marks: Tensor, step: Callable[[int, int], None]) -> bytes:
    """The weights of a network trained on synthetic pictures, as bytes. The same on the same machine.

    x: pictures (n, C, size, size) in [-1, 1]; marks (n, 2, size, size): opacities of finding and organ; step(done,
    total): shows progress. Half of the pictures are mirrored.
    """
    targets, weight = (marks > 0.5).float(), torch.tensor(RARE)[:, None, None]
    with use_seed(0):
        network = settings.network(x.shape[1])
        adam = torch.optim.AdamW(network.parameters(), settings.lr)
        rate = torch.optim.lr_scheduler.OneCycleLR(adam, settings.lr, total_steps=settings.steps)
        for done in range(settings.steps):
            if done % 25 == 0:
                step(done, settings.steps)
            rows = torch.randint(len(x), (settings.batch,))
            pictures, picture_targets = x[rows], targets[rows]
            if torch.rand(()) < 0.5:
                pictures, picture_targets = pictures.flip(-1), picture_targets.flip(-1)
            adam.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(network(pictures), picture_targets, pos_weight=weight)
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            rate.step()
    return to_bytes(Message(read_parameters(network), {CHANNELS: x.shape[1]}))


def build_blank_detector(settings: Detector, channels: int) -> Detecting:
    """A detector that marks nothing, with the same number of features. It needs no network (slow to import)."""

    def mark_nothing(planes: Tensor) -> Tensor:
        return planes.new_zeros(len(planes), len(MARKS), *planes.shape[-2:])

    return Detecting(settings, channels, mark_nothing)


def load_detector(settings: Detector, data: bytes) -> Detecting:
    """The detector with its trained weights. data: as from `train_detector_network`.

    Raises:
        ValueError: data do not contain the weights of such a network, or weights are not finite.
    """
    message = from_bytes(data)
    tensors, channels = message.tensors, message.facts.get(CHANNELS)
    if not isinstance(channels, int) or not 1 <= channels <= 3:
        raise ValueError(f"a detector is one of images of 1 to 3 channels, found {channels!r}")
    with torch.device("meta"):
        network = settings.network(channels)
    expected = {name: (part.shape, part.dtype) for name, part in network.state_dict().items()}
    if {name: (part.shape, part.dtype) for name, part in tensors.items()} != expected:
        raise ValueError(f"a detector of width {settings.width} has other tensors than the {len(tensors)} found")
    if not all(bool(part.isfinite().all()) for part in tensors.values()):
        raise ValueError("a detector's weights are finite numbers, found some that are not")
    network.load_state_dict(dict(tensors), assign=True)
    return Detecting(settings, channels, network.eval().requires_grad_(False))
