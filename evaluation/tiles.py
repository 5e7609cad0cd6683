"""One image of a contact sheet as pixels: a slice or a photograph, a map laid over it, masks outlined.

Lines are drawn by matplotlib's renderer straight onto the pixels, because a figure for each tile takes long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class Tile:
    """One image. image: (H, W), or (H, W, 3) in [0, 1], which no window changes. lesion, organ: (H, W), outlined
    where > 0. cam: (H, W) in [0, 1], laid over the image. given_mask, predicted_mask: (H, W) int, of which each class
    but 0 is outlined.
    """

    image: NDArray[np.generic]
    caption: str
    lesion: NDArray[np.generic] | None = None
    organ: NDArray[np.generic] | None = None
    cam: NDArray[np.generic] | None = None
    given_mask: NDArray[np.generic] | None = None
    predicted_mask: NDArray[np.generic] | None = None


def draw_tile(tile: Tile, low: float, high: float, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The tile as (height, width, 3) pixels. low, high: shown as black and white. size: (width, height)."""
    from matplotlib.backends.backend_agg import RendererAgg  # slow to import

    renderer: Any = RendererAgg(*size, 72)
    canvas: NDArray[np.uint8] = np.asarray(renderer.buffer_rgba())
    canvas[..., :3], canvas[..., 3] = np.round(255 * _tile_background(tile, low, high, size)), 255
    for mask, colour in ((tile.organ, ORGAN), (tile.lesion, LESION)):
        if mask is not None and min(mask.shape) > 1:
            _draw_lines(renderer, _inner_outlines(np.asarray(mask) > 0, size), colour, THIN)
    for mask, colour, dash in ((tile.given_mask, GIVEN_COLOUR, None), (tile.predicted_mask, FOUND_COLOUR, DASH)):
        for label in [] if mask is None or min(mask.shape) < 2 else np.unique(mask):
            if label == 0:
                continue
            lines = list(_framed_outlines(np.asarray(mask) >= label, size))  # an edge between two classes is drawn once
            _draw_lines(renderer, lines, "#000000", RIM, dash, alpha=0.8)
            _draw_lines(renderer, lines, colour, LINE, dash)
    return canvas[..., :3]


def _tile_background(tile: Tile, low: float, high: float, size: tuple[int, int]) -> Floats:
    """The image with the map on it, (height, width, 1 or 3) in [0, 1]; white where the image has no value."""
    import matplotlib  # slow to import

    image = np.asarray(tile.image, dtype=np.float64)
    planes = np.moveaxis(image, -1, 0) if image.ndim == 3 else (image[None] - low) / (high - low)
    ground = np.stack([_resize_plane(plane, size) for plane in planes], axis=-1)
    if tile.cam is None:
        return ground
    cam = _resize_plane(np.clip(np.asarray(tile.cam, dtype=np.float64), 0, 1), size)
    return ground + OPAQUE * cam[..., None] * (matplotlib.colormaps["inferno"](cam)[..., :3] - ground)


def _resize_plane(plane: Floats, size: tuple[int, int]) -> Floats:
    """(H, W) to (height, width), bilinear between the centres of pixels, in [0, 1]."""
    resized = np.asarray(Image.fromarray(plane.astype(np.float32)).resize(size, Image.Resampling.BILINEAR), np.float64)
    return np.clip(np.nan_to_num(resized, nan=1.0), 0, 1)


def _inner_outlines(mask: NDArray[np.bool_], size: tuple[int, int]) -> Iterator[Floats]:
    """Lines between inside and outside as `_to_tile_coordinates` gives them; none along the border."""
    for line in _contour_lines(mask):
        yield _to_tile_coordinates(line, mask.shape, size)


def _framed_outlines(mask: NDArray[np.bool_], size: tuple[int, int]) -> Iterator[Floats]:
    """The same outlines, and also along the border where the mask reaches it."""
    places = [np.clip(np.arange(side + 2) - 1, -0.5, side - 0.5) for side in mask.shape]
    for line in _contour_lines(np.pad(mask, 1)):
        moved = [np.interp(line[:, axis], range(len(at)), at) for axis, at in enumerate(places)]
        yield _to_tile_coordinates(np.stack(moved, axis=-1), mask.shape, size)


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


def _to_tile_coordinates(line: Floats, shape: tuple[int, ...], size: tuple[int, int]) -> Floats:
    """From (row, column), whole numbers at pixels' centres, to x and y on the tile, upwards: both (n, 2)."""
    (height, width), (across, up) = shape, size
    return np.stack([(line[:, 1] + 0.5) * across / width, up - (line[:, 0] + 0.5) * up / height], axis=-1)


def _draw_lines(
    renderer: Any,
    lines: Iterable[Floats],
    colour: str,
    width: float,
    dash: tuple[float, float] | None = None,
    *,
    alpha: float = 1.0,
) -> None:
    """Draw lines of pixels' width. dash: pixels drawn and left out."""
    from matplotlib.path import Path  # slow to import
    from matplotlib.transforms import IdentityTransform  # slow to import

    look = renderer.new_gc()
    look.set_alpha(alpha)
    look.set_foreground(colour)
    look.set_linewidth(width)
    look.set_dashes(0, dash)
    for line in lines:
        renderer.draw_path(look, Path(line, closed=bool((line[0] == line[-1]).all())), IdentityTransform())
