"""The procedural prior of dermatoscopy: one pigmented lesion on skin."""

from __future__ import annotations

import math
from types import MappingProxyType

import torch
from torch import Tensor

from harmonize.drawing import Inputs, Numbers, Ranges, draw_normal, pixel_grid, smooth_field, smooth_images

COARSE, FINE, HAIRS = 5, 20, 6

SKIN: Ranges = MappingProxyType(
    {
        # Lengths in half images; colours in [0, 1].
        "skin": (0.65, 1.02),
        "pink": (0.04, 0.38),
        "blueish": (-0.12, 0.16),
        "lesion_x": (-0.35, 0.35),
        "lesion_y": (-0.35, 0.35),
        "lesion_size": (0.18, 0.85),
        "lesion_flat": (0.6, 1.0),
        "lesion_turn": (0.0, math.pi),
        "soft": (0.04, 0.35),
        "irregular": (0.05, 0.6),
        "depth": (0.12, 0.6),
        "brown": (-0.1, 1.0),
        "middle": (-0.25, 0.35),
        "colours": (0.0, 0.35),
        "blue": (-0.2, 0.2),
        "red": (-0.2, 0.12),
        "network": (0.0, 0.15),
        "freckles": (0.0, 0.08),
        "hairs": (-4.0, 6.0),
        "hair_dark": (0.1, 0.6),
        # How it was acquired.
        "vignette": (-0.1, 0.45),
        "corners": (1.05, 2.6),  # beyond this radius the black tube is visible
        "shade": (0.0, 0.2),
        "shade_angle": (0.0, 2 * math.pi),
        "contrast": (0.7, 1.15),
        "warmth": (-0.08, 0.08),
        "smoothing": (0.004, 0.05),
        "noise": (0.0, 0.025),
        "glare": (-0.3, 0.25),
    }
)


def skin(p: Numbers, y: Tensor, seeds: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Pictures (n, 3, H, W), red, green and blue from -1 (black) to 1; with the lesion if it is malignant, and the
    lesion (n, 2, H, W). See `drawing.Plane`.

    With the same numbers a malignant lesion (class 1) has a more irregular border, more colours, and is darker than a
    benign one, which has half of each effect.
    """
    _, height, width = inputs
    coarse, fine, hairs, noise = draw_normal(
        seeds, (6, COARSE, COARSE), (3, FINE, FINE), (HAIRS, 4), (3, height, width)
    )
    x, v = pixel_grid(height, width)
    slow, quick = smooth_field(coarse, height, width), smooth_field(fine, height, width)
    more = torch.where(y == 1, 1.0, 0.5)
    shade = (
        1 + p["shade"] * (x * p["shade_angle"].cos() + v * p["shade_angle"].sin()) - p["vignette"] * (x**2 + v**2) / 2
    )
    tone = p["skin"] + p["freckles"] * (slow[:, 0] + 0.5 * quick[:, 0])
    planes: tuple[Tensor, ...] = (tone, tone - p["pink"], tone - p["pink"] + p["blueish"] - 0.03)
    planes, where = _paint_lesion(planes, p, more, slow, quick, x, v)
    for i, hair in enumerate(hairs.unbind(1)):
        opacity = _hair_opacity(hair[:, :, None, None], x, v) * (p["hairs"] > i)
        planes = tuple(plane * (1 - opacity * p["hair_dark"]) for plane in planes)
    glare = 1 + p["glare"].clamp(min=0) * (slow[:, 5] - 1).clamp(min=0)
    warm = (1 + p["warmth"], torch.ones(1), 1 - p["warmth"])
    colours = torch.stack([plane * shade * glare * side for plane, side in zip(planes, warm, strict=True)], 1)
    colours = (colours - 0.6) * p["contrast"][:, None] + 0.6
    tube = ((p["corners"] - (x**2 + v**2).sqrt()) / 0.05).clamp(0, 1)[:, None]
    colours = smooth_images(colours * tube, p["smoothing"], p["smoothing"]) + noise * p["noise"][:, None]
    return (2 * colours - 1).clamp(-1, 1), torch.stack([where * (y == 1), where], dim=1)


def _paint_lesion(
    planes: tuple[Tensor, ...], p: Numbers, more: Tensor, slow: Tensor, quick: Tensor, x: Tensor, v: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A blob with a bent border; smooth fields vary its colours; with its place (n, H, W)."""
    dx, dy, turn = x - p["lesion_x"], v - p["lesion_y"], p["lesion_turn"]
    along, over = dx * turn.cos() + dy * turn.sin(), dy * turn.cos() - dx * turn.sin()
    size = p["lesion_size"]
    far = ((along / size) ** 2 + (over / (size * p["lesion_flat"])) ** 2).sqrt()
    far = far + p["irregular"] * more * (0.7 * slow[:, 1] + 0.25 * quick[:, 1])
    where = ((1 - far) * size / p["soft"] + 0.5).clamp(0, 1)
    varied = p["colours"] * more * slow[:, 2] + p["network"] * quick[:, 2] + p["middle"] * (1 - far).clamp(0, 1)
    dark = (p["depth"] * (0.6 + 0.4 * more) * (1 + varied)).clamp(0, 0.85)
    red = dark * (1 - 0.5 * p["brown"]) - p["red"] * more * slow[:, 3].clamp(min=0)
    blue = dark * (1 + 0.1 * p["brown"]) - p["blue"] * more * slow[:, 4].clamp(min=0)
    return tuple(plane - where * shade for plane, shade in zip(planes, (red, dark, blue), strict=True)), where


def _hair_opacity(hair: Tensor, x: Tensor, v: Tensor) -> Tensor:
    """A thin curve across the picture; hair: (n, 4, 1, 1) place, direction and bend."""
    place, angle, bend, width = hair.unbind(1)
    along, over = x * angle.cos() + v * angle.sin(), v * angle.cos() - x * angle.sin()
    off = (over - 0.6 * place - 0.3 * bend * along**2).abs()
    return (1 - off / (0.02 + 0.01 * width.abs())).clamp(min=0)
