"""Encode a network's output for a picture as a PNG of class numbers, at the picture's own size."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pipelines.data.images import Pictures
from pipelines.data.index import readable
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
    if images.fit == "around":
        raise ValueError("images.fit: around cuts about each picture's mask, and new pictures have none")
    with readable(path.name), Image.open(path, formats=FORMATS) as file:
        width, height = ImageOps.exif_transpose(file).size
    side = min(width, height)
    columns, rows = (side, side) if images.fit == "crop" else (width, height)
    best = np.zeros((rows, columns), np.uint8)
    highest = _enlarged(probabilities[0], columns, rows)
    for number in range(1, len(probabilities)):
        share = _enlarged(probabilities[number], columns, rows)
        better = share > highest
        best[better], highest[better] = number, share[better]
    whole = np.zeros((height, width), np.uint8)
    left, upper = (width - columns) // 2, (height - rows) // 2
    whole[upper : upper + rows, left : left + columns] = best
    return whole


def png_bytes(mask: NDArray[np.uint8]) -> bytes:
    """A label map (height, width) as an 8-bit grey PNG without any text; its values are the class numbers."""
    data = io.BytesIO()
    Image.fromarray(mask, mode="L").save(data, format="PNG", optimize=True)
    return data.getvalue()


def _enlarged(plane: Array, columns: int, rows: int) -> Array:
    found = Image.fromarray(np.ascontiguousarray(plane, np.float32))
    return np.array(found.resize((columns, rows), Image.Resampling.BILINEAR, reducing_gap=None), np.float32)
