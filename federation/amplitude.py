"""Low-frequency amplitudes of images, and their exchange between images: continuous frequency space interpolation.

Liu, Chen, Qin, Dou, Heng: FedDG, CVPR 2021, section 3.2. An image is the inverse Fourier transform of amplitude and
phase. Phases encode the positions of structures, and stay; the amplitudes of the lowest frequencies encode much of an
image's appearance (brightness, shading, contrast), and move towards those of another image.

Frequencies are counted in cycles per image, so a window is the same whatever the number of pixels. Images are real, so
half of a spectrum determines the rest: that half is kept.
"""

from __future__ import annotations

from types import EllipsisType

import torch
from torch import Tensor


def low_amplitudes(x: Tensor, window: int) -> Tensor:
    """Amplitudes of the frequencies up to `window` cycles per image on each axis, negative ones too.

    x: (n, C, *spatial), real. Returns (n, C, *kept) of its type: 2 window + 1 numbers on each axis but the last, which
    has window + 1; fewer if an image has no such frequencies.
    """
    spectrum: Tensor = torch.fft.rfftn(x, dim=_axes(x))
    return spectrum[_window(x, window)].abs()


def interpolated(x: Tensor, amplitudes: Tensor, lam: Tensor, window: int) -> Tensor:
    """Images x whose low amplitudes are (1 - lam) times their own plus lam times others'. Phases stay.

    x: (n, C, *spatial), real. amplitudes: (n, C, *kept), from `low_amplitudes` with the same window. lam:
    (n,) in [0, 1]; 0 gives x again, up to rounding.
    """
    spectrum: Tensor = torch.fft.rfftn(x, dim=_axes(x))
    place = _window(x, window)
    own = spectrum[place]
    mixed = own.abs().lerp(amplitudes.to(x), lam.to(x).view(-1, *[1] * (x.dim() - 1)))
    spectrum[place] = torch.polar(mixed, own.angle())
    found: Tensor = torch.fft.irfftn(spectrum, s=x.shape[2:], dim=_axes(x))
    return found


def _axes(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.dim()))


def _window(x: Tensor, window: int) -> tuple[EllipsisType | Tensor, ...]:
    """Index of a window's frequencies in the half spectra of images x."""
    *sides, last = x.shape[2:]
    kept = [sorted({k % side for k in range(-window, window + 1)}) for side in sides]
    kept.append(list(range(min(window, last // 2) + 1)))
    return (..., *torch.meshgrid(*[torch.tensor(places, device=x.device) for places in kept], indexing="ij"))
