"""Class activation maps: normalized as equation 9 of VAFL needs them, and upsampled to the pixels of their image.

maps are (b, 2 heads, classes, h, w), as `federation/models/cam.py` gives them; M_c is the mean of both heads' maps of
class c. A value of a map belongs to the middle of a square of `stride` pixels; it depends on the receptive field around
that square.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor, nn
from torch.nn import functional

Normalized: TypeAlias = Literal["joint", "relu", "min_max"]
LEAST = 1e-6  # the smallest divisor of a map, so that an empty map stays empty


def normalized_maps(maps: Tensor, normalized: Normalized = "joint") -> Tensor:
    """CAM_c in [0, 1], (b, classes, h, w). A positive factor of the maps of an image does not change it.

    joint: ReLU of M_c, divided by the largest value of all classes: a class's map may be empty. relu: each divided by
    its own largest value: empty only where M_c is nowhere above 0. min_max: M_c from its smallest to its largest value:
    empty only where M_c is the same everywhere.
    """
    mean = maps.mean(dim=1)
    least = mean.amin(dim=(2, 3), keepdim=True)
    cams = mean - least if normalized == "min_max" else functional.relu(mean)
    over = (1, 2, 3) if normalized == "joint" else (2, 3)
    return cams / cams.amax(dim=over, keepdim=True).clamp(min=LEAST)


def local_probabilities(maps: Tensor) -> Tensor:
    """Class probabilities of the maps at each place: softmax of M_c over classes, (b, classes, h, w).

    For pictures. Equation 9 rewards empty CAMs, and a network that decides by negative evidence alone reaches them, so
    the normalized CAMs of a trained network are often blank; the difference between its classes' maps is not.
    """
    return maps.mean(dim=1).softmax(dim=1)


def compute_stride(maps: Tensor, x: Tensor) -> int:
    """Pixels of images x (b, C, H, W) from one value of their maps to the next: poolings halve, and round down."""
    return 1 << ((x.shape[-1] // maps.shape[-1]).bit_length() - 1)


def upsample_maps(maps: Tensor, stride: int, sides: tuple[int, int]) -> Tensor:
    """(b, n, h, w) at every pixel of images of sides (H, W): linear between the middles of squares, and constant beyond
    the last middle. If a side is no multiple of the stride, no square covers the last pixels.
    """
    size = [side * stride for side in maps.shape[-2:]]
    fine = functional.interpolate(maps, size, mode="bilinear", align_corners=False)
    fine = functional.pad(fine, (0, max(0, sides[1] - size[1]), 0, max(0, sides[0] - size[0])), mode="replicate")
    return fine[..., : sides[0], : sides[1]]


def dense_maps(module: nn.Module, x: Tensor, step: int) -> tuple[Tensor, int]:
    """The maps of a network for images x (b, C, H, W), with a value every `step` pixels, and that step.

    Shift and stitch (Sermanet et al., OverFeat, arXiv 1312.6229, section 3.3): the network sees the image moved by each
    multiple of `step` up to its stride, and the maps are interleaved. Beyond its border an image repeats its last
    pixel. If the stride is not larger than `step`, or no multiple of it, the plain maps are returned.
    """
    maps = module(x).maps
    stride = compute_stride(maps, x)
    if stride <= step or stride % step:
        return maps, stride
    times, (high, wide) = stride // step, x.shape[-2:]
    around = functional.pad(x, (stride, stride, stride, stride), mode="replicate")
    moves = [stride + place * step + (step - stride) // 2 for place in range(times)]
    fine = maps.new_zeros(*maps.shape[:3], maps.shape[-2] * times, maps.shape[-1] * times)
    for i, down in enumerate(moves):
        for j, right in enumerate(moves):
            moved = around[..., down : down + high, right : right + wide]
            fine[..., i::times, j::times] = module(moved).maps
    return fine, step
