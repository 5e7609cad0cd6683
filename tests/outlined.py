"""Reads what a tile of a page draws: pictures back to pixels, and outlines back to the points that they run through."""

from __future__ import annotations

import base64
import io
import re
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NUMBER = re.compile(r"-?\d+")


def read_png(uri: str) -> Image.Image:
    """The picture of a data URI."""
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def read_pictures(text: str) -> list[Image.Image]:
    """All pictures of a page, in order."""
    return [read_png(uri) for uri in re.findall(r'"(data:image/png;base64,[^"]+)"', text)]


def read_paths(text: str, colour: str) -> list[str]:
    """The paths of a colour."""
    return re.findall(rf'<path stroke="{colour}"[^>]* d="([^"]+)"', text)


def follow_path(path: str) -> list[NDArray[np.float64]]:
    """Each line of a path as its points (n, 2): x and y in pixels of the image, whole numbers at pixels' edges."""
    lines = []
    for part in path.split("M")[1:]:
        start, _, steps = part.rstrip("z").partition("l")
        numbers = [*map(int, NUMBER.findall(start)), *map(int, NUMBER.findall(steps))]
        points = np.cumsum(np.array(numbers).reshape(-1, 2), axis=0)
        lines.append(np.concatenate([points, points[:1]] if part.endswith("z") else [points]) / 4)
    return lines


def fill_path(path: str, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """(H, W): whether a pixel's centre lies inside the lines of a path: a ray crosses them an odd number of times."""
    inside = np.zeros(shape, bool)
    for row, column in np.ndindex(shape):
        x, y = column + 0.5, row + 0.5 + 1e-3
        for line in follow_path(path):
            for (x0, y0), (x1, y1) in pairwise(line):
                if (y0 > y) != (y1 > y) and x0 + (y - y0) / (y1 - y0) * (x1 - x0) > x:
                    inside[row, column] ^= True
    return inside
