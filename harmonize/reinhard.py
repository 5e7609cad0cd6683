"""Colour transfer from picture to picture: mean and deviation of each become those of reference pictures.

Reinhard, Ashikhmin, Gooch, Shirley: Color transfer between images, IEEE Comput Graph Appl 2001, equations 10 and 11:

    x* = (s_r / s_x) (x - m_x) + m_r                                                                  (1)

for each channel, in CIE Lab, which is decorrelated as their l-alpha-beta is and which scikit-image has; images of other
than three channels stay in their own. m_r and s_r are means over the reference pictures of their own m and s.
Every picture is mapped by itself, so nothing is learnt from patients, and a hospital outside can do the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from harmonize.own import BACKGROUND, SiteImages
from privacy.message import Params

FLATTEST = 1e-3  # the least deviation to divide by, of about 1: a blank picture is not amplified
LAB = 100.0  # the range of L, so that numbers are about 1


@dataclass(frozen=True, kw_only=True)
class Reinhard:
    """Each image gets the shared images' mean and deviation, a picture of three channels in CIE Lab; by itself.

    region: in which pixels both are measured; background (exactly -1 in all channels) changes only with `all`.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    learns: ClassVar[bool] = False
    over: ClassVar[str] = "image"

    name: Literal["reinhard"] = "reinhard"
    region: Literal["foreground", "all"] = "foreground"

    def fit(self, site_images: SiteImages, shared: Tensor, **unused: object) -> Params:
        """m_r and s_r of each channel, (C, 2); of the shared images alone."""
        inside, values = self._measured_pixels(shared), _to_lab(shared)
        statistics = [
            _mean_and_deviation(image[:, where]) for image, where in zip(values, inside, strict=True) if where.any()
        ]
        if not statistics:
            raise ValueError("the shared images are blank; use region: all, or look at how they were synthesized")
        return {"numbers": torch.from_numpy(np.mean(statistics, axis=0)).float()}

    def translate(self, params: Params, images: Tensor, patient: Tensor) -> Tensor:
        """Equation 1 for each of the images (n, C, H, W); one without pixels to measure stays as it is."""
        (mean, deviation), out = params["numbers"].cpu().double().numpy().T, images.detach().cpu().clone()
        for row, (image, where) in enumerate(zip(_to_lab(images), self._measured_pixels(images), strict=True)):
            if not where.any():
                continue
            m, s = _mean_and_deviation(image[:, where]).T
            gain = deviation / np.maximum(s, FLATTEST)
            moved = gain[:, None, None] * (image - m[:, None, None]) + mean[:, None, None]
            out[row] = torch.where(torch.from_numpy(where), _from_lab(moved), out[row])
        return out.to(images)

    def _measured_pixels(self, images: Tensor) -> np.ndarray:
        """Which pixels are measured and changed: (n, H, W) bool."""
        seen = (images > BACKGROUND).any(dim=1) | (self.region == "all")
        mask: np.ndarray = seen.cpu().numpy()
        return mask


def _mean_and_deviation(values: np.ndarray) -> np.ndarray:
    """(C, 2): mean and deviation of each channel of (C, k)."""
    return np.stack([values.mean(axis=1), values.std(axis=1)], axis=1)


def _to_lab(images: Tensor) -> np.ndarray:
    """Images (n, C, H, W) in [-1, 1] as float64; those of three channels in Lab, in hundreds."""
    values: np.ndarray = images.detach().cpu().double().numpy()
    if values.shape[1] != 3:
        return values
    from skimage.color import rgb2lab  # takes a second

    lab: np.ndarray = rgb2lab((values + 1) / 2, channel_axis=1) / LAB
    return lab


def _from_lab(values: np.ndarray) -> Tensor:
    """Back: (C, H, W) to an image in [-1, 1]."""
    if len(values) == 3:
        import warnings

        from skimage.color import lab2rgb

        with warnings.catch_warnings():  # of colours that no screen shows; they are cut
            warnings.simplefilter("ignore")
            values = 2 * lab2rgb(values * LAB, channel_axis=0) - 1
    return torch.from_numpy(values).float().clamp(-1.0, 1.0)
