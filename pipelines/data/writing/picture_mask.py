"""Encode a network's output for a picture as a PNG of class numbers, at the picture's own size."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.data.images import Pictures
from pipelines.data.index import convert_read_errors
from pipelines.data.pictures.label_maps import FORMATS
from pipelines.data.study import Array


def picture_mask(path: Path, probabilities: Array, images: Pictures) -> NDArray[np.uint8]:
    """The most probable class of each pixel (height, width) of the picture, upright by its EXIF.

    probabilities: (C, size, size). They are enlarged linearly; with `fit: crop`, pixels outside the square are
    background. See `pipelines.data.restore` for why probabilities and not labels.

    Raises:
        Unusable: `unreadable`.
        ValueError: `images` crops around masks, so the crop's place is unknown.
    """
    (width, height), (columns, rows) = _picture_sides(path, images)
    best = np.zeros((rows, columns), np.uint8)
    highest = _enlarge_plane(probabilities[0], columns, rows)
    for number in range(1, len(probabilities)):
        share = _enlarge_plane(probabilities[number], columns, rows)
        better = share > highest
        best[better], highest[better] = number, share[better]
    return _place_in_middle(best, width, height)


def picture_map(path: Path, cam: Array, images: Pictures) -> NDArray[np.uint8]:
    """A map (size, size) of numbers in [0, 1] at the picture's own size, (height, width), 255 where it is 1. Otherwise
    as `picture_mask`.
    """
    (width, height), (columns, rows) = _picture_sides(path, images)
    return _place_in_middle(
        np.rint(255 * np.clip(_enlarge_plane(cam, columns, rows), 0, 1)).astype(np.uint8), width, height
    )


def _picture_sides(path: Path, images: Pictures) -> tuple[tuple[int, int], tuple[int, int]]:
    """Width and height of the picture, and of its part that the network sees."""
    if images.fit == "around":
        raise ValueError("images.fit: around cuts about each picture's mask, and new pictures have none")
    with convert_read_errors(path.name), Image.open(path, formats=FORMATS) as file:
        width, height = ImageOps.exif_transpose(file).size
    side = min(width, height)
    return (width, height), (side, side) if images.fit == "crop" else (width, height)


def _place_in_middle(part: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """The part that the network sees in the middle of the picture, 0 around it."""
    rows, columns = part.shape
    canvas = np.zeros((height, width), np.uint8)
    left, upper = (width - columns) // 2, (height - rows) // 2
    canvas[upper : upper + rows, left : left + columns] = part
    return canvas


def png_bytes(mask: NDArray[np.uint8]) -> bytes:
    """A label map or map (height, width) as an 8-bit grey PNG without any text; its values are kept."""
    data = io.BytesIO()
    Image.fromarray(mask, mode="L").save(data, format="PNG", optimize=True)
    return data.getvalue()


def _enlarge_plane(plane: Array, columns: int, rows: int) -> Array:
    """A plane resized to (rows, columns) by linear interpolation."""
    image = Image.fromarray(np.ascontiguousarray(plane, np.float32))
    return np.array(image.resize((columns, rows), Image.Resampling.BILINEAR, reducing_gap=None), np.float32)
