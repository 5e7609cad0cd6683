"""Normalization of intensities: what a translation that learns from many patients has to beat.

Each of these maps a patient's intensities by one rising curve onto the scale of the shared images, in network space.
The curve is found from that patient's own images and from the shared ones, so nothing is learnt from other patients
(`learns` is False) and nothing about them can show. All of them take from a patient what sets their intensities apart
from the shared images' as a whole; where the absolute value is the diagnosis, as in an ADC map, that is a loss.
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

from harmonize.own import Own, Region, counted, rows_of
from privacy.message import Params
from privacy.settings_error import Problem, refuse

Values: TypeAlias = NDArray[np.float32]
Curve: TypeAlias = Callable[[Values, Values, int], Values]
"""curve(measured (m,), values (k,), channel) -> (k,), rising in `values`."""

LANDMARKS = (1, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 99)  # percentiles, as TorchIO expects them
LEVELS = 1024  # values that stand for the shared images' histogram
FLATTEST = 1e-3  # a spread below this share of network space is taken as this: a blank image is not blown up


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Images stay as they are."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["identity"] = "identity"

    def fit(self, own: Own, shared: Tensor, **unused: object) -> Params:
        """Nothing to find."""
        return {}

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """The same images (n, C, H, W)."""
        return images


@dataclass(frozen=True, kw_only=True)
class ZScore:
    """Mean and standard deviation become those of the shared images.

    over: whose mean and deviation are measured. region: where.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["z_score"] = "z_score"
    over: Literal["patient", "image"] = "patient"
    region: Region = "foreground"

    def fit(self, own: Own, shared: Tensor, **unused: object) -> Params:
        """Mean and deviation of each channel of the shared images, (C, 2)."""
        return _numbers(shared, self.region, lambda x: [float(x.mean()), float(x.std())])

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' mean and deviation."""
        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            mean, deviation = numbers[channel]
            moved: Values = (values - measured.mean()) * (deviation / max(float(measured.std()), FLATTEST)) + mean
            return moved

        groups = torch.arange(len(images)) if self.over == "image" else patient
        return _mapped(images, groups, self.region, curve)


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

    def fit(self, own: Own, shared: Tensor, **unused: object) -> Params:
        """Both percentiles of each channel of the shared images, (C, 2)."""
        return _numbers(shared, self.region, lambda x: np.percentile(x, [self.low, self.high]).tolist())

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' percentiles."""
        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            (low, high), (a, b) = np.percentile(measured, [self.low, self.high]), numbers[channel]
            stretched: Values = ((values - low) * ((b - a) / max(high - low, FLATTEST)) + a).astype(np.float32)
            return stretched

        return _mapped(images, patient, self.region, curve)


@dataclass(frozen=True, kw_only=True)
class Nyul:
    """Landmarks of each patient's histogram become the shared images', piecewise linearly, through TorchIO.

    Nyúl, Udupa, Zhang: New variants of a method of MRI scale standardization, IEEE TMI 2000. The standard scale is the
    shared images' landmarks, taken over all of them together: they have no patients, and are mapped onto themselves so.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["nyul"] = "nyul"
    region: Region = "foreground"

    def fit(self, own: Own, shared: Tensor, **unused: object) -> Params:
        """The landmarks of each channel of the shared images, (C, 13)."""
        return _numbers(shared, self.region, lambda x: np.percentile(x, LANDMARKS).tolist())

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' landmarks."""
        import torchio  # takes seconds

        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            # TorchIO measures under a mask and maps everything: what is measured goes before what is mapped.
            both = torch.from_numpy(np.concatenate([measured, values])).reshape(1, -1, 1, 1)
            mask = torch.arange(both.numel()).reshape(both.shape) < len(measured)
            transform = torchio.HistogramStandardization({"x": numbers[channel]}, masking_method=lambda _: mask)
            image = torchio.ScalarImage(tensor=both)
            mapped: Values = transform(torchio.Subject(x=image)).x.data.flatten()[len(measured) :].numpy()
            return mapped

        return _mapped(images, patient, self.region, curve)


@dataclass(frozen=True, kw_only=True)
class HistogramMatch:
    """The whole histogram of each patient becomes the shared images', through scikit-image."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False

    name: Literal["histogram_match"] = "histogram_match"
    region: Literal["foreground", "all"] = "foreground"

    def fit(self, own: Own, shared: Tensor, **unused: object) -> Params:
        """1024 evenly spaced quantiles of each channel of the shared images, (C, 1024)."""
        middles = (np.arange(LEVELS) + 0.5) / LEVELS
        return _numbers(shared, self.region, lambda x: np.quantile(x, middles).tolist())

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Images (n, C, H, W) with the shared images' histogram."""
        from skimage.exposure import match_histograms  # takes a second

        numbers = params["numbers"].cpu().numpy()

        def curve(measured: Values, values: Values, channel: int) -> Values:
            matched: Values = match_histograms(values, numbers[channel])
            return matched

        return _mapped(images, patient, self.region, curve)


def _numbers(shared: Tensor, region: Region, of: Callable[[Values], Sequence[float]]) -> Params:
    where = counted(shared, region)
    found = []
    for channel in range(shared.shape[1]):
        measured = shared[:, channel][where[:, channel]].cpu().numpy()
        if not len(measured):
            raise ValueError(
                f"the shared images have no pixel in region {region!r} of channel {channel}: they are blank; "
                "use region: all, or look at how they were synthesized"
            )
        found.append(list(of(measured)))
    return {"numbers": torch.tensor(found, dtype=torch.float32)}


def _mapped(images: Tensor, group: Tensor, region: Region, curve: Curve) -> Tensor:
    """Apply each group's own curve to it. A channel of a group in which nothing can be measured stays as it is."""
    source = images.detach().cpu()
    out = source.clone()
    for rows in rows_of(group):
        stack = source[rows]
        measured, changed = counted(stack, region), counted(stack, "all" if region == "all" else "foreground")
        for channel in range(stack.shape[1]):
            values, where = stack[:, channel], changed[:, channel]
            known = values[measured[:, channel]].numpy()
            if len(known):
                values[where] = torch.from_numpy(curve(known, values[where].numpy(), channel)).clamp(-1.0, 1.0)
        out[rows] = stack
    return out.to(images.device)
