"""Pictures of patients, for a hospital's own page only: slices with outlines of lesion and organ, or a CAM on top, or
a model's mask beside the given one."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evaluation.drawing import Picture, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIVEN, FOUND = "#ffb000", "#4db8ff"  # with a dark rim, readable on light images too; the second one is dashed
DASH = (0, (3.2, 1.8))
LESION, ORGAN = "#ffb000", "#5ec8ff"  # light enough for a dark image, and told apart with any colour vision
SIDE = 168  # pixels of a tile's longer side


@dataclass(frozen=True)
class Tile:
    """One image. image: (H, W), or (H, W, 3) in [0, 1], which no window changes. lesion, organ: (H, W), outlined
    where > 0. cam: (H, W) in [0, 1], laid over the image. given, found: (H, W) int, masks of which each class but 0 is
    outlined: the given one, and a model's."""

    image: NDArray[np.generic]
    caption: str
    lesion: NDArray[np.generic] | None = None
    organ: NDArray[np.generic] | None = None
    cam: NDArray[np.generic] | None = None
    given: NDArray[np.generic] | None = None
    found: NDArray[np.generic] | None = None


def contact_sheet(
    tiles: Sequence[Tile], *, title: str, window: tuple[float, float] | None = None, columns: int | None = None
) -> Picture:
    """Tiles side by side, all in one grey window, so that they can be compared.

    Args:
        tiles: what to show; at most a few dozen, each becomes an image of its own.
        title: what they are, "training images" for instance.
        window: intensities shown as black and white; by default the 1st and 99.5th percentile over all tiles.
        columns: tiles in a row, where rows mean something; by default as many as fit.

    Raises:
        ValueError: naming every tile that is not (H, W), or whose outlines or CAM have another shape.
    """
    if wrong := [fault for place, tile in enumerate(tiles) for fault in _faults(place, tile)]:
        raise ValueError("cannot show these tiles: " + "; ".join(wrong))
    low, high = window or _window(tiles)
    items = "".join(_item(tile, low, high) for tile in tiles)
    keys = [
        f'<span class="key" style="color:{colour}">{line}</span> {name}'
        for name, colour, line, there in (
            ("lesion", LESION, "━", any(t.lesion is not None and np.any(t.lesion) for t in tiles)),
            ("organ", ORGAN, "━", any(t.organ is not None and np.any(t.organ) for t in tiles)),
            ("given mask", GIVEN, "━", any(t.given is not None and np.any(t.given) for t in tiles)),
            ("the model's mask", FOUND, "╍", any(t.found is not None for t in tiles)),
        )
        if there
    ]
    key = f'<p class="keys">{" &nbsp; ".join(keys)}</p>' if keys else ""
    grey = any(tile.image.ndim == 2 for tile in tiles)
    caption = f"Grey window {low:.4g} to {high:.4g}." if grey else "" if tiles else "No images."
    rows = (
        f' style="grid-template-columns: repeat({columns}, minmax(4.5rem, 1fr)); overflow-x: auto"' if columns else ""
    )
    return Picture(title, caption, f'<ul class="sheet"{rows}>{items}</ul>{key}')


def _item(tile: Tile, low: float, high: float) -> str:
    scale = SIDE / max(tile.image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in tile.image.shape[:2])
    source = png((width / 100, height / 100), 100, lambda figure: _draw(figure, tile, low, high))
    name, alt = html.escape(tile.caption), html.escape(_alt(tile), quote=True)
    image = f'<img src="{source}" alt="{alt}" width="{width}" height="{height}">'
    return f"<li><figure>{image}<figcaption>{name}</figcaption></figure></li>"


def _draw(figure: Figure, tile: Tile, low: float, high: float) -> None:
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    image = np.asarray(tile.image, dtype=np.float64)
    image = np.clip(image, 0, 1) if image.ndim == 3 else image
    axes.imshow(image, cmap="gray", vmin=low, vmax=high, interpolation="bilinear", aspect="auto")
    if tile.cam is not None:
        cam = np.clip(np.asarray(tile.cam, dtype=np.float64), 0, 1)
        axes.imshow(cam, cmap="inferno", vmin=0, vmax=1, alpha=0.6 * cam, interpolation="bilinear", aspect="auto")
    for mask, colour in ((tile.organ, ORGAN), (tile.lesion, LESION)):
        if mask is not None and np.any(mask) and min(mask.shape) > 1:
            axes.contour(np.asarray(mask) > 0, levels=[0.5], colors=[colour], linewidths=1.0)
    for mask, colour, dash in ((tile.given, GIVEN, "solid"), (tile.found, FOUND, DASH)):
        for label in [] if mask is None or min(mask.shape) < 2 else np.unique(mask):
            if label == 0:
                continue
            _outlined(axes, np.asarray(mask) >= label, colour, dash)  # an edge between two classes is drawn once


def _outlined(axes: Axes, mask: NDArray[np.bool_], colour: str, dash: Any) -> None:
    """A line around a mask, also where it ends at the border, on a darker and wider one."""
    from matplotlib.patheffects import (
        Normal,  # slow to import
        Stroke,  # slow to import
    )

    framed = np.pad(mask, 1)
    height, width = mask.shape
    places = (np.clip(np.arange(side + 2) - 1, -0.5, side - 0.5) for side in (width, height))
    drawn = axes.contour(*places, framed, levels=[0.5], colors=[colour], linewidths=1.4, linestyles=[dash])
    drawn.set_path_effects([Stroke(linewidth=2.8, foreground="#000000", alpha=0.8), Normal()])


def _alt(tile: Tile) -> str:
    said = [
        name
        for name, mask in (("lesion outlined", tile.lesion), ("organ outlined", tile.organ))
        if mask is not None and np.any(mask)
    ]
    said += ["class activation map laid over"] if tile.cam is not None else []
    said += ["given mask outlined"] if tile.given is not None and np.any(tile.given) else []
    if tile.found is not None:
        said.append("the model's mask outlined" if np.any(tile.found) else "the model found nothing")
    return ", ".join([f"Image: {tile.caption}", *said])


def _window(tiles: Sequence[Tile]) -> tuple[float, float]:
    values = np.concatenate([np.asarray(tile.image, dtype=np.float64).ravel() for tile in tiles] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.01, 0.995]) if values.size else (0.0, 1.0)
    return float(low), float(high if high > low else low + 1)


def _faults(place: int, tile: Tile) -> list[str]:
    shape = tile.image.shape[:2]
    if tile.image.ndim not in (2, 3) or min(shape) < 1 or tile.image.shape[2:] not in ((), (3,)):
        return [f"image {place} has shape {tile.image.shape}, needed is (H, W) or (H, W, 3)"]
    masks = ("lesion", "organ", "cam", "given", "found")
    others = ((name, getattr(tile, name)) for name in masks)
    return [
        f"{name} {place} has shape {mask.shape}, needed is its image's {shape}"
        for name, mask in others
        if mask is not None and mask.shape != shape
    ]
