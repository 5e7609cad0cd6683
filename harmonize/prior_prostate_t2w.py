"""The procedural prior of T2-weighted axial slices through the prostate, in standard deviations of the picture."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from harmonize.drawing import Inputs, Numbers, Ranges, draw_normal, pixel_grid, smooth_field, smooth_images
from harmonize.prior_prostate import (
    BENDS,
    FIELD_OF_VIEW_MM,
    NODULES,
    PROSTATE,
    TEXTURE,
    bent_coordinates,
    paint_gland,
    paint_surroundings,
)

DEVIATIONS = 4.0  # become 1; the scale of standardized images by default
ONLY_ADC = ("rectum_seen", "fat_seen", "masked", "shade", "gain", "window", "tone", "vignette", "noise", "texture")

PROSTATE_T2W: Ranges = MappingProxyType(
    {
        **{name: range_ for name, range_ in PROSTATE.items() if name not in ONLY_ADC},
        # Signals, in units of a usual peripheral zone's; places, sizes and smoothing are those of PROSTATE.
        "peripheral": (0.7, 1.4),
        "transition": (0.4, 0.95),
        "stroma": (0.2, 0.65),
        "lesion": (0.25, 0.65),
        "nodule": (0.3, 1.2),
        "rectum": (0.0, 0.9),
        "wall": (0.2, 0.6),
        "urine": (1.2, 2.8),
        "muscle": (0.08, 0.4),
        "fat": (0.7, 2.2),
        "bone": (0.4, 1.7),
        # How it was acquired. A gain would show nowhere, since pictures are standardized.
        "texture": (0.0, 0.25),
        "slope": (0.0, 0.7),  # of the signal's logarithm, from the middle to the side of shade_angle
        "bowl": (-0.5, 0.5),  # of the signal's logarithm, between the middle and an edge
        "endorectal": (-4.0, 4.0),  # above 0: added beside the rectum, as by a coil there
        "noise": (0.0, 0.18),
        "filter": (-0.8, 0.8),  # above 0 smooths, in pixels of 1.5 mm; below 0 sharpens
        "window": (1.6, 6.0),
        "tone": (0.6, 1.5),
    }
)


def prostate_t2w(p: Numbers, y: Tensor, seeds: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Pictures (n, 1, H, W), 72 mm wide at zoom 1: values less their mean, over their standard deviation, 4 becoming 1;
    with the lesion of class 1 and the gland (n, 2, H, W). See `drawing.Plane`.

    The organs are those of `prior_prostate.prostate`; the second plane that they are painted on is not used.
    """
    _, height, width = inputs
    bends, texture, spots, noise = draw_normal(
        seeds, (2, BENDS, BENDS), (1, TEXTURE, TEXTURE), (NODULES, 3), (2, height, width)
    )
    x, v = bent_coordinates(p, bends, height, width)
    canvas: tuple[Tensor, ...] = (p["fat"].expand_as(x), torch.zeros_like(x))
    canvas = paint_surroundings(canvas, {**p, "rectum_seen": torch.zeros_like(p["fat"])}, x, v)
    canvas, marks = paint_gland(canvas, p, y, x, v, spots)
    signal = canvas[0] * (1 + p["texture"] * smooth_field(texture, height, width)[:, 0]).clamp(min=0)
    front = torch.hypot(x - p["gland_x"] - p["rectum_x"], v - p["gland_y"] - p["gland_b"])
    near = 1 + p["endorectal"].clamp(min=0) * (-front / 14).exp()
    return standardize_pictures(_scanner_effects(signal * near, p, noise)) / DEVIATIONS, marks


def standardize_pictures(signal: Tensor) -> Tensor:
    """Pictures (n, H, W) less their means, over their deviations, as (n, 1, H, W), cut to +-4."""
    centred = signal - signal.mean(dim=(1, 2), keepdim=True)
    spread = (centred**2).mean(dim=(1, 2), keepdim=True).sqrt()
    return (centred / spread.clamp(min=1e-6)).clamp(-DEVIATIONS, DEVIATIONS)[:, None]


def _scanner_effects(signal: Tensor, p: Numbers, noise: Tensor) -> Tensor:
    """Shading, resolution, Rician noise (n, 2, H, W), the vendor's filter, window and tone curve, on (n, H, W)."""
    height, width = signal.shape[1:]
    x, v = pixel_grid(height, width)
    slope = p["slope"] * (x * p["shade_angle"].cos() + v * p["shade_angle"].sin())
    signal = signal * (slope + p["bowl"] * (x**2 + v**2) / 2).exp()
    pixel = 1.5 * 2 / FIELD_OF_VIEW_MM
    sigma = p["smoothing_mm"] * p["zoom"] * (2 / FIELD_OF_VIEW_MM)
    signal = smooth_images(signal[:, None], sigma, sigma)[:, 0]
    deviation = p["noise"] * (height * width) ** 0.5 / 48  # a pixel of half the side has a quarter of the tissue
    signal = torch.hypot(signal + deviation * noise[:, 0], deviation * noise[:, 1])
    softer = p["filter"].clamp(min=0.05) * pixel
    signal = smooth_images(signal[:, None], softer, softer)[:, 0]
    one_pixel = torch.full_like(p["filter"], pixel)
    signal = signal + (-p["filter"]).clamp(min=0) * (
        signal - smooth_images(signal[:, None], one_pixel, one_pixel)[:, 0]
    )
    return (signal / p["window"]).clamp(1e-20, 1) ** p["tone"]  # above 0, where a power has a derivative
