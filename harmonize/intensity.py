"""Normalization of intensities: the baselines for a translation that learns from many patients.

Each of these maps a patient's intensities by one rising curve onto the scale of the shared images, in network space.
The curve is computed from that patient's own images and from the shared ones, so nothing is learnt from other patients
(`learns` is False) and nothing about them can leak. All of them remove the overall difference between a patient's
intensities and the shared images'; where the absolute value is diagnostic, as in an ADC map, that is a loss.
Background (exactly -1) stays background unless `region` is all; results are clipped to [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harmonize.own import Region, SiteImages, region_mask, rows_of
from privacy.message import Params
from privacy.settings_error import Problem, refuse

Values: TypeAlias = NDArray[np.float32]
Curve: TypeAlias = Callable[[Values, Values, int], Values]
"""curve(measured (m,), values (k,), channel) -> (k,), rising in the values."""

LANDMARKS = (1, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 99)  # percentiles, as TorchIO expects them
LEVELS = 1024  # quantiles that represent the shared images' histogram
FLATTEST = 1e-3  # the least spread to divide by, so that a blank image is not amplified


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Images stay as they are."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["identity"] = "identity"

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        """Needs no parameters."""
        return {}

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """The same images (n, C, H, W)."""
        return images


@dataclass(frozen=True, kw_only=True)
class ZScore:
    """Mean and standard deviation become those of the shared images.

    over: whether they are measured per patient or per image. region: in which pixels.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["z_score"] = "z_score"
    over: Literal["patient", "image"] = "patient"
    region: Region = "foreground"

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        """Mean and deviation of each channel of the shared images, (C, 2)."""
        return _measure_shared(shared, self.region, lambda x: [float(x.mean()), float(x.std())])

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' mean and deviation."""
        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            mean, deviation = numbers[channel]
            moved: Values = (values - measured.mean()) * (deviation / max(float(measured.std()), FLATTEST)) + mean
            return moved

        groups = torch.arange(len(images)) if self.over == "image" else patient
        return _map_groups(images, groups, self.region, curve)


@dataclass(frozen=True, kw_only=True)
class Percentile:
    """A low and a high percentile of each patient become those of the shared images; linear between and beyond."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["percentile"] = "percentile"
    low: float = 1.0
    high: float = 99.0
    region: Region = "foreground"

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 100:
            text = f"low and high must satisfy 0 <= low < high <= 100, found {self.low} and {self.high}"
            refuse([Problem((), text)])

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        """Both percentiles of each channel of the shared images, (C, 2)."""
        return _measure_shared(shared, self.region, lambda x: np.percentile(x, [self.low, self.high]).tolist())

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' percentiles."""
        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            (low, high), (a, b) = np.percentile(measured, [self.low, self.high]), numbers[channel]
            stretched: Values = ((values - low) * ((b - a) / max(high - low, FLATTEST)) + a).astype(np.float32)
            return stretched

        return _map_groups(images, patient, self.region, curve)


@dataclass(frozen=True, kw_only=True)
class Nyul:
    """Landmarks of each patient's histogram become the shared images', piecewise linearly, through TorchIO.

    Nyúl, Udupa, Zhang: New variants of a method of MRI scale standardization, IEEE TMI 2000. The standard scale is the
    shared images' landmarks, computed over all of them together, because they have no patients; they then map onto
    themselves.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["nyul"] = "nyul"
    region: Region = "foreground"

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        """The landmarks of each channel of the shared images, (C, 13)."""
        return _measure_shared(shared, self.region, lambda x: np.percentile(x, LANDMARKS).tolist())

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' landmarks."""
        import torchio  # takes seconds

        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            # TorchIO measures under a mask and maps everything: measured pixels come first, then those to map.
            both = torch.from_numpy(np.concatenate([measured, values])).reshape(1, -1, 1, 1)
            mask = torch.arange(both.numel()).reshape(both.shape) < len(measured)
            transform = torchio.HistogramStandardization({"x": numbers[channel]}, masking_method=lambda _: mask)
            image = torchio.ScalarImage(tensor=both)
            mapped: Values = transform(torchio.Subject(x=image)).x.data.flatten()[len(measured) :].numpy()
            return mapped

        return _map_groups(images, patient, self.region, curve)


@dataclass(frozen=True, kw_only=True)
class HistogramMatch:
    """The whole histogram of each patient becomes the shared images', through scikit-image."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["histogram_match"] = "histogram_match"
    region: Literal["foreground", "all"] = "foreground"

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        """1024 evenly spaced quantiles of each channel of the shared images, (C, 1024)."""
        middles = (np.arange(LEVELS) + 0.5) / LEVELS
        return _measure_shared(shared, self.region, lambda x: np.quantile(x, middles).tolist())

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' histogram."""
        from skimage.exposure import match_histograms  # takes a second

        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            matched: Values = match_histograms(values, numbers[channel])
            return matched

        return _map_groups(images, patient, self.region, curve)


def _measure_shared(shared: Tensor, region: Region, measure: Callable[[Values], Sequence[float]]) -> Params:
    """The numbers of `measure` for each channel of the shared images, over the pixels of the region."""
    where = region_mask(shared, region)
    numbers = []
    for channel in range(shared.shape[1]):
        measured = shared[:, channel][where[:, channel]].cpu().numpy()
        if not len(measured):
            raise ValueError(
                f"the shared images have no pixel in region {region!r} of channel {channel}: they are blank; "
                "use region: all, or look at how they were synthesized"
            )
        numbers.append(list(measure(measured)))
    return {"numbers": torch.tensor(numbers, dtype=torch.float32)}


def _map_groups(images: Tensor, group: Tensor, region: Region, curve: Curve) -> Tensor:
    """Apply each group's own curve to it. A channel of a group without measurable pixels stays unchanged."""
    source = images.detach().cpu()
    out = source.clone()
    for rows in rows_of(group):
        stack = source[rows]
        measured, changed = region_mask(stack, region), region_mask(stack, "all" if region == "all" else "foreground")
        for channel in range(stack.shape[1]):
            values, where = stack[:, channel], changed[:, channel]
            known = values[measured[:, channel]].numpy()
            if len(known):
                values[where] = torch.from_numpy(curve(known, values[where].numpy(), channel)).clamp(-1.0, 1.0)
        out[rows] = stack
    return out.to(images.device)
