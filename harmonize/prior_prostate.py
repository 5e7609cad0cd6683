"""The procedural prior of axial ADC maps through the prostate.

Literature puts the peripheral zone at about 1.6 to 1.9e-3 mm2/s and cancer at about 0.8 to 1.0e-3 mm2/s; the ranges
here are wider, because hospitals differ. All other tissues are plausible guesses.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import torch
from torch import Tensor

from harmonize.drawing import (
    Inputs,
    Numbers,
    Ranges,
    draw_normal,
    ellipse_opacity,
    paint_planes,
    pixel_grid,
    smooth_field,
    smooth_images,
)

FIELD_OF_VIEW_MM = 72.0
LARGEST_ADC = 3.5  # 1e-3 mm2/s, becomes 1
BENDS, TEXTURE, NODULES = 6, 16, 3

PROSTATE: Ranges = MappingProxyType(
    {
        # Lengths in mm from the image's centre, x to the right and y downwards (posterior); ADC in 1e-3 mm2/s.
        "gland_x": (-5.0, 5.0),
        "gland_y": (-10.0, 3.0),
        "gland_a": (16.0, 29.0),  # half axes, left-right and anterior-posterior
        "gland_b": (11.0, 22.0),
        "peripheral": (1.2, 2.1),
        "transition": (0.9, 1.7),
        "transition_size": (0.35, 0.9),  # of the gland's half axes
        "transition_y": (-0.4, 0.1),
        "lobes": (0.0, 0.6),
        "stroma": (0.6, 1.3),
        "stroma_size": (0.05, 0.5),
        "lesion_angle": (-0.5 * math.pi, 1.5 * math.pi),
        "lesion_reach": (0.15, 0.8),
        "lesion_radius": (3.5, 11.0),
        "lesion_flat": (0.55, 1.0),
        "lesion": (0.5, 1.15),
        "benign": (-1.0, 1.0),  # class 0: above 0 adds a small and weak spot, as of prostatitis
        "nodule": (0.6, 2.0),
        "nodules": (0.0, 1.0),
        "rectum_x": (-5.0, 5.0),
        "rectum_size": (6.0, 17.0),
        "rectum": (0.0, 1.8),
        "rectum_seen": (0.01, 0.6),
        "wall": (0.8, 1.7),
        "bladder": (0.0, 26.0),
        "bladder_y": (-6.0, 8.0),
        "urine": (2.3, 3.4),
        "muscle": (0.7, 1.8),
        "muscle_x": (27.0, 42.0),
        "muscle_width": (6.0, 15.0),
        "fat": (0.0, 1.3),
        "fat_seen": (0.03, 0.5),
        "bone": (0.0, 0.9),
        # How it was acquired.
        "zoom": (0.85, 1.2),
        "bend": (0.2, 2.2),
        "texture": (0.0, 0.16),
        "noise": (0.0, 0.14),  # ADC where a tissue is fully seen
        "smoothing_mm": (0.2, 2.2),
        "masked": (-0.3, 0.3),  # pixels with less signal are set to 0; below 0 none are
        "shade": (0.0, 0.3),
        "shade_angle": (0.0, 2 * math.pi),
        "gain": (0.8, 1.2),
        "window": (1.9, 4.2),
        "tone": (0.8, 1.3),
        "vignette": (-0.15, 0.25),
    }
)


def prostate(p: Numbers, y: Tensor, seeds: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Maps (n, 1, H, W), 72 mm wide at zoom 1: -1 is no diffusion, 1 is 3.5e-3 mm2/s; with the lesion of class 1 and
    the gland (n, 2, H, W). See `drawing.Plane`.

    The canvas has two planes: the ADC, and a tissue's signal. Where the signal is low, noise is large and a vendor's
    mask applies.
    """
    _, height, width = inputs
    bends, texture, spots, noise, edge = draw_normal(
        seeds, (2, BENDS, BENDS), (1, TEXTURE, TEXTURE), (NODULES, 3), (height, width), (height, width)
    )
    x, v = bent_coordinates(p, bends, height, width)
    canvas: tuple[Tensor, ...] = (p["fat"].expand_as(x), p["fat_seen"].expand_as(x))
    canvas = paint_surroundings(canvas, p, x, v)
    canvas, marks = paint_gland(canvas, p, y, x, v, spots)
    adc = canvas[0] * (1 + p["texture"] * smooth_field(texture, height, width)[:, 0])
    return _scanner_effects(adc, canvas[1], p, noise, edge), marks


def bent_coordinates(p: Numbers, bends: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Bent coordinates of the pixel centres from the image's centre, (n, H, W) each. bends: (n, 2, h, w)."""
    x, v = pixel_grid(height, width)
    half = FIELD_OF_VIEW_MM / 2 / p["zoom"]
    bent = smooth_field(bends, height, width) * p["bend"][:, None]
    return x * half + bent[:, 0], v * half + bent[:, 1]


def paint_surroundings(canvas: tuple[Tensor, ...], p: Numbers, x: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """Muscles and bones at the sides, the bladder in front, the rectum behind."""
    gx, gy, a, b = p["gland_x"], p["gland_y"], p["gland_a"], p["gland_b"]
    side = (x - gx).abs()
    muscle = (p["muscle"], 0.4)
    canvas = paint_planes(canvas, ellipse_opacity(side, v, p["muscle_x"], -4.0, p["muscle_width"], 24.0), muscle)
    canvas = paint_planes(canvas, ellipse_opacity(side, v, 14.0, gy - b - 14, 12.0, 8.0), (p["bone"], 0.06))
    canvas = paint_planes(canvas, ellipse_opacity(side, v, a + 3.5, gy + 5, 3.0, 15.0), muscle)
    size = (p["bladder"] - 8).clamp(min=0.1)  # two maps in five have no bladder
    canvas = paint_planes(
        canvas, ellipse_opacity(x, v, gx, gy - b - p["bladder_y"] - 0.4 * size, size, 0.6 * size), (p["urine"], 1.5)
    )
    size = p["rectum_size"]
    cx, cy = gx + p["rectum_x"], gy + b + 0.6 * size + 1
    canvas = paint_planes(canvas, ellipse_opacity(x, v, cx, cy, size, 0.7 * size), (p["wall"], 0.4))
    lumen = ellipse_opacity(x, v, cx, cy, size - 2.5, 0.7 * size - 2.5)
    return paint_planes(canvas, lumen, (p["rectum"], p["rectum_seen"]))


def paint_gland(
    canvas: tuple[Tensor, ...], p: Numbers, y: Tensor, x: Tensor, v: Tensor, spots: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Zones and nodules, and the lesion that defines the class; with the places of lesion and gland (n, 2, H, W)."""
    gx, gy, a, b = p["gland_x"], p["gland_y"], p["gland_a"], p["gland_b"]
    organ = ellipse_opacity(x, v, gx, gy, a, b)
    canvas = paint_planes(canvas, organ, (p["peripheral"], 1.0))
    size, middle, lobe_gap = p["transition_size"], gy + p["transition_y"] * b, p["lobes"]
    zone = (
        ellipse_opacity((x - gx).abs(), v, 0.5 * lobe_gap * a * size, middle, a * size * (1 - 0.5 * lobe_gap), b * size)
        * organ
    )
    canvas = paint_planes(canvas, zone, (p["transition"], 0.75))
    front = ellipse_opacity(x, v, gx, gy - b, 0.9 * a * p["stroma_size"], b * p["stroma_size"])
    canvas = paint_planes(canvas, front * organ, (p["stroma"], 0.5))
    for i, spot in enumerate(spots.clamp(-2, 2).unbind(1)):
        right, down, wide = spot[:, :, None, None].unbind(1)
        nodule = ellipse_opacity(x, v, gx + 0.3 * a * right, middle + 0.3 * b * down, 3 + wide.abs(), 3 + wide.abs())
        canvas = paint_planes(canvas, nodule * zone * (p["nodules"] * (NODULES + 1) > i + 1), (p["nodule"], 0.7))
    reach, angle, radius = p["lesion_reach"], p["lesion_angle"], p["lesion_radius"] * torch.where(y == 1, 1.0, 0.65)
    cx, cy = gx + reach * a * angle.cos(), gy + reach * b * angle.sin()
    where = ellipse_opacity(x, v, cx, cy, radius, radius * p["lesion_flat"], soft=0.3 * radius)
    strength = torch.where(y == 1, 1.0, 0.45 * p["benign"].clamp(min=0))
    canvas = paint_planes(canvas, where * organ * strength, (p["lesion"], 0.75))
    return canvas, torch.stack([where * organ * (y == 1), organ], dim=1)


def _scanner_effects(adc: Tensor, seen: Tensor, p: Numbers, noise: Tensor, edge: Tensor) -> Tensor:
    """Noise, smoothing, shading, mask, window and tone curve, as of a scanner's export; on maps in 1e-3 mm2/s (n, H,
    W).
    """
    height, width = adc.shape[1:]
    x, v = pixel_grid(height, width)
    finer = math.sqrt(height * width) / 48  # a pixel of half the side has a quarter of the tissue
    adc = adc + noise * p["noise"] * finer / (seen + 0.05).clamp(max=1.5)
    sigma = p["smoothing_mm"] * p["zoom"] * (2 / FIELD_OF_VIEW_MM)
    adc = smooth_images(adc[:, None], sigma, sigma)[:, 0]
    shade = 1 + p["shade"] * (x * p["shade_angle"].cos() + v * p["shade_angle"].sin())
    adc = adc * p["gain"] * shade * (1 - 0.5 * p["vignette"] * (x**2 + v**2))
    adc = torch.minimum(adc.clamp(min=0), p["window"]) * (seen * (1 + 0.15 * edge) > p["masked"])
    share = (adc / LARGEST_ADC).clamp(1e-20, 1) ** p["tone"]  # above 0, where a power has a derivative
    return (2 * share - 1)[:, None]
