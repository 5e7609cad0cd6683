"""One image of a contact sheet in layers: a slice or a photograph, a map laid over it, masks outlined.

The image is stored as it is, or reduced where it is larger than a tile; the browser enlarges it. A map is a second
small picture that lies over it, and outlines are lines. So what a page holds of a patient is no more than there is:
48 x 48 pixels that are enlarged before they are stored take ten times the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from evaluation.histograms import Floats

GIVEN_COLOUR, FOUND_COLOUR = (
    "#ffb000",
    "#4db8ff",
)  # lines with a dark rim, readable on light images too; the second one is dashed
DASH = (6.2, 3.5)  # pixels that are drawn, pixels that are left out
LESION, ORGAN = "#ffb000", "#5ec8ff"  # light enough for a dark image, and distinguishable with any colour vision
RIM, LINE, THIN = 3.9, 1.95, 1.4  # pixels: the dark rim of a mask's line, that line, and the one of lesion and organ
OPAQUE = 0.6  # a map where it is 1
STEPS = 64  # of a map's values: a step is less than can be seen
UNITS = 4  # of an outline's coordinates, for each pixel of the image: outlines lie at quarters


@dataclass(frozen=True)
class Tile:
    """One image. image: (H, W), or (H, W, 3) in [0, 1], which no window changes. lesion, organ: (H, W), outlined
    where > 0. cam: (H, W) in [0, 1], laid over the image. given_mask, predicted_mask: (H, W) int, of which each class
    but 0 is outlined. method: that map or mask are of; empty = none, or that of the whole sheet.
    """

    image: NDArray[np.generic]
    caption: str
    lesion: NDArray[np.generic] | None = None
    organ: NDArray[np.generic] | None = None
    cam: NDArray[np.generic] | None = None
    given_mask: NDArray[np.generic] | None = None
    predicted_mask: NDArray[np.generic] | None = None
    method: str = ""


class Line(NamedTuple):
    """An outline. path: of an SVG, in `UNITS` a pixel of the tile's image. width, dash: in pixels of the screen."""

    path: str
    colour: str
    width: float
    dash: tuple[float, float] | None = None
    opacity: float = 1.0


class Layers(NamedTuple):
    """What a tile is drawn of, from the bottom. ground: (height, width), or (height, width, 3). cam: (height, width),
    numbers below `STEPS`; None without a map.
    """

    ground: NDArray[np.uint8]
    cam: NDArray[np.uint8] | None
    lines: tuple[Line, ...]


def split_layers(tile: Tile, low: float, high: float, most: int) -> Layers:
    """The tile's layers. low, high: shown as black and white. most: pixels of the longer side; a smaller image stays as
    it is.
    """
    height, width = tile.image.shape[:2]
    share = min(1.0, most / max(height, width))
    size = max(1, round(width * share)), max(1, round(height * share))
    ground = np.round(255 * _read_ground(tile, low, high, size)).astype(np.uint8)
    cam = None if tile.cam is None else np.round((STEPS - 1) * _read_map(tile.cam, size)).astype(np.uint8)
    return Layers(ground if ground.shape[2] == 3 else ground[..., 0], cam, tuple(_draw_outlines(tile)))


@functools.cache
def list_map_colours() -> NDArray[np.uint8]:
    """The colour of each step of a map and how much it covers: (`STEPS`, 4), red, green, blue and alpha."""
    import matplotlib  # slow to import

    steps = np.arange(STEPS) / (STEPS - 1)
    colours = np.concatenate([matplotlib.colormaps["inferno"](steps)[:, :3], OPAQUE * steps[:, None]], axis=1)
    return np.round(255 * colours).astype(np.uint8)


def draw_tile(tile: Tile, low: float, high: float, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Image and map of a tile in one, as (height, width, 3) pixels. low, high: shown as black and white. size: (width,
    height).
    """
    import matplotlib  # slow to import

    ground = _read_ground(tile, low, high, size)
    if tile.cam is not None:
        cam = _read_map(tile.cam, size)
        ground = ground + OPAQUE * cam[..., None] * (matplotlib.colormaps["inferno"](cam)[..., :3] - ground)
    return np.broadcast_to(np.round(255 * ground).astype(np.uint8), (*ground.shape[:2], 3))


def _read_ground(tile: Tile, low: float, high: float, size: tuple[int, int]) -> Floats:
    """The image, (height, width, 1 or 3) in [0, 1]; white where the image has no value."""
    image = np.asarray(tile.image, dtype=np.float64)
    planes = np.moveaxis(image, -1, 0) if image.ndim == 3 else (image[None] - low) / (high - low)
    return np.stack([_resize_plane(plane, size) for plane in planes], axis=-1)


def _read_map(cam: NDArray[np.generic], size: tuple[int, int]) -> Floats:
    """The map, (height, width) in [0, 1]."""
    return _resize_plane(np.clip(np.asarray(cam, dtype=np.float64), 0, 1), size)


def _resize_plane(plane: Floats, size: tuple[int, int]) -> Floats:
    """(H, W) to (height, width), bilinear between the centres of pixels, in [0, 1]."""
    resized = np.asarray(Image.fromarray(plane.astype(np.float32)).resize(size, Image.Resampling.BILINEAR), np.float64)
    return np.clip(np.nan_to_num(resized, nan=1.0), 0, 1)


def _draw_outlines(tile: Tile) -> Iterator[Line]:
    """The outlines of a tile, from the bottom."""
    for mask, colour in ((tile.organ, ORGAN), (tile.lesion, LESION)):
        if mask is not None and min(mask.shape) > 1 and (path := _write_path(_contour_lines(np.asarray(mask) > 0))):
            yield Line(path, colour, THIN)
    for mask, colour, dash in ((tile.given_mask, GIVEN_COLOUR, None), (tile.predicted_mask, FOUND_COLOUR, DASH)):
        labels = [] if mask is None or min(mask.shape) < 2 else [label for label in np.unique(mask) if label]
        # an edge between two classes is drawn once
        if path := _write_path(line for label in labels for line in _framed_outlines(np.asarray(mask) >= label)):
            yield Line(path, "#000000", RIM, dash, opacity=0.8)
            yield Line(path, colour, LINE, dash)


def _write_path(lines: Iterable[Floats]) -> str:
    """Lines (n, 2) of rows and columns, whole numbers at pixels' centres, as one path of an SVG; empty without any."""
    return "".join(_write_line(np.round(UNITS * (line[:, ::-1] + 0.5)).astype(int)) for line in lines)


def _write_line(points: NDArray[np.int_]) -> str:
    """Points (n, 2) of x and y as part of a path: where it begins, then steps; those that go on straight are one."""
    steps = np.diff(points, axis=0)
    steps = steps[(steps != 0).any(axis=1)]
    if not len(steps):
        return ""
    turns = np.flatnonzero((np.diff(steps, axis=0) != 0).any(axis=1)) + 1
    joined = np.add.reduceat(steps, np.concatenate([[0], turns]), axis=0)
    is_closed = bool((points[0] == points[-1]).all())
    text = " ".join(f"{x} {y}" for x, y in (joined[:-1] if is_closed else joined).tolist()).replace(" -", "-")
    return f"M{points[0, 0]} {points[0, 1]}l{text}{'z' if is_closed else ''}"


def _framed_outlines(mask: NDArray[np.bool_]) -> Iterator[Floats]:
    """The outlines of a mask, and also along the border where the mask reaches it."""
    places = [np.clip(np.arange(side + 2) - 1, -0.5, side - 0.5) for side in mask.shape]
    for line in _contour_lines(np.pad(mask, 1)):
        yield np.stack([np.interp(line[:, axis], range(len(at)), at) for axis, at in enumerate(places)], axis=-1)


def _contour_lines(mask: NDArray[np.bool_]) -> Iterator[Floats]:
    """Half-way between pixels inside and outside, (n, 2) rows and columns; searched for where the mask is."""
    from skimage.measure import find_contours  # slow to import

    if not mask.any():
        return
    inside = [np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0)]
    start = [max(0, at[0] - 1) for at in inside]
    ends = [at[-1] + 2 for at in inside]
    for line in find_contours(mask[start[0] : ends[0], start[1] : ends[1]], 0.5):
        yield line + start
