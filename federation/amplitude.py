"""Low-frequency amplitudes of images, and their exchange between images: continuous frequency space interpolation.

Liu, Chen, Qin, Dou, Heng: FedDG, CVPR 2021, section 3.2. An image is the inverse Fourier transform of amplitude and
phase. Phases encode the positions of structures, and stay; the amplitudes of the lowest frequencies encode much of an
image's appearance (brightness, shading, contrast), and move towards those of another image.

Frequencies are counted in cycles per image, so a window is the same whatever the number of pixels. Images are real, so
half of a spectrum determines the rest: only that half is computed.
"""

from __future__ import annotations

from types import EllipsisType

import torch
from torch import Tensor


def low_amplitudes(x: Tensor, window: int) -> Tensor:
    """Amplitudes of the frequencies up to `window` cycles per image on each axis, negative ones too.

    x: (n, C, *spatial), real. Returns (n, C, *low) of its type: 2 window + 1 numbers on each axis but the last, which
    has window + 1; fewer if an image is too small for these frequencies.
    """
    spectrum: Tensor = torch.fft.rfftn(x, dim=_spatial_axes(x))
    return spectrum[_window_index(x, window)].abs()


def interpolate_amplitudes(x: Tensor, amplitudes: Tensor, lam: Tensor, window: int) -> Tensor:
    """Images x with low amplitudes (1 - lam) A(x) + lam `amplitudes`. Phases stay.

    x: (n, C, *spatial), real. amplitudes: (n, C, *low), from `low_amplitudes` with the same window. lam: (n,) in [0,
    1]; 0 gives x again, up to rounding.
    """
    spectrum: Tensor = torch.fft.rfftn(x, dim=_spatial_axes(x))
    place = _window_index(x, window)
    low_spectrum = spectrum[place]
    mixed = low_spectrum.abs().lerp(amplitudes.to(x), lam.to(x).view(-1, *[1] * (x.dim() - 1)))
    spectrum[place] = torch.polar(mixed, low_spectrum.angle())
    images: Tensor = torch.fft.irfftn(spectrum, s=x.shape[2:], dim=_spatial_axes(x))
    return images


def _spatial_axes(x: Tensor) -> tuple[int, ...]:
    """The axes of images x (n, C, *spatial) after the first two."""
    return tuple(range(2, x.dim()))


def _window_index(x: Tensor, window: int) -> tuple[EllipsisType | Tensor, ...]:
    """Index of a window's frequencies in the half spectra of images x."""
    *sides, last = x.shape[2:]
    frequencies = [sorted({k % side for k in range(-window, window + 1)}) for side in sides]
    frequencies.append(list(range(min(window, last // 2) + 1)))
    return (..., *torch.meshgrid(*[torch.tensor(places, device=x.device) for places in frequencies], indexing="ij"))
