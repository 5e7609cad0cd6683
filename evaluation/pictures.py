"""Pictures of patients, for a hospital's own page only: slices with outlines of lesion and organ, with a CAM, or with a
model's mask and the given one.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from evaluation.axes import name_method
from evaluation.drawing import Picture, png_uri
from evaluation.tiles import (
    FOUND_COLOUR,
    GIVEN_COLOUR,
    LESION,
    ORGAN,
    UNITS,
    Line,
    Tile,
    draw_tile,
    list_map_colours,
    split_layers,
)
from evaluation.wording import format_figures

SIDE = 168  # pixels of a tile's longer side


def contact_sheet(
    tiles: Sequence[Tile], *, title: str, window: tuple[float, float] | None = None, columns: int | None = None
) -> Picture:
    """Tiles side by side, all in one grey window, so that they can be compared.

    Args:
        tiles: at most a few dozen, because each becomes an image of its own.
        title: what they are, "training images" for instance.
        window: intensities shown as black and white; by default the 1st and 99.5th percentile over all tiles.
        columns: tiles in a row, if rows have a meaning; by default as many as fit.

    Raises:
        ValueError: naming every tile that is not (H, W), or whose outlines or CAM have another shape.
    """
    _check_tiles(tiles)
    grey = any(tile.image.ndim == 2 for tile in tiles)
    low, high = window or (_grey_window(tiles) if grey else (0.0, 1.0))
    items = "".join(_tile_item(tile, low, high) for tile in tiles)
    caption = _say_window(low, high) if grey else "" if tiles else "No images."
    rows = f' rows" data-columns="{columns}" style="--columns: {columns}' if columns else ""
    return Picture(title, caption, f'<ul class="sheet{rows}">{items}</ul>{_list_keys(tiles)}')


def contact_rows(rows: Sequence[Sequence[Tile]], titles: Sequence[str]) -> tuple[list[Picture], Picture]:
    """Several short sheets in one grey window, and what their outlines and colours mean, which is said once. titles: of
    the sheets.

    Raises:
        ValueError: as of `contact_sheet`.
    """
    tiles = [tile for row in rows for tile in row]
    _check_tiles(tiles)
    grey = any(tile.image.ndim == 2 for tile in tiles)
    low, high = _grey_window(tiles) if grey else (0.0, 1.0)
    lists = ["".join(_tile_item(tile, low, high) for tile in row) for row in rows]
    sheets = [Picture(title, "", f'<ul class="sheet">{items}</ul>') for title, items in zip(titles, lists, strict=True)]
    return sheets, Picture("", _say_window(low, high) if grey else "", _list_keys(tiles))


def _say_window(low: float, high: float) -> str:
    """The window in words. What resampling leaves of 0 is 0."""
    least = 1e-6 * abs(high - low)
    texts = (format_figures(0.0 if abs(end) < least else end) for end in (low, high))
    return f"Grey window {' to '.join(texts)}."


def _check_tiles(tiles: Sequence[Tile]) -> None:
    """Raise ValueError, naming every tile whose parts do not fit."""
    if wrong := [fault for place, tile in enumerate(tiles) for fault in _find_tile_problems(place, tile)]:
        raise ValueError("cannot show these tiles: " + "; ".join(wrong))


def _list_keys(tiles: Sequence[Tile]) -> str:
    """What the outlines and colours of tiles mean, as a paragraph; empty where there are none."""
    keys = [
        f'<span class="key" style="color:{colour}">{line}</span> {name}'
        for name, colour, line, is_shown in (
            ("lesion", LESION, "━", any(t.lesion is not None and np.any(t.lesion) for t in tiles)),
            ("organ", ORGAN, "━", any(t.organ is not None and np.any(t.organ) for t in tiles)),
            ("given mask", GIVEN_COLOUR, "━", any(t.given_mask is not None and np.any(t.given_mask) for t in tiles)),
            ("the model's mask", FOUND_COLOUR, "╍", any(t.predicted_mask is not None for t in tiles)),
        )
        if is_shown
    ]
    keys += [_map_scale()] if any(t.cam is not None for t in tiles) else []
    return f'<p class="keys">{" &nbsp; ".join(keys)}</p>' if keys else ""


def _tile_item(tile: Tile, low: float, high: float) -> str:
    """The list item of a tile: its layers in an SVG, and its caption."""
    height, width = (UNITS * side for side in tile.image.shape[:2])
    layers, fill = split_layers(tile, low, high, SIDE), f'width="{width}" height="{height}" preserveAspectRatio="none"'
    sources = [png_uri(layers.ground), *([] if layers.cam is None else [png_uri(layers.cam, list_map_colours())])]
    drawn = "".join(f'<image href="{source}" {fill}/>' for source in sources) + "".join(map(_draw_line, layers.lines))
    name, alt = html.escape(tile.caption), html.escape(_alternative_text(tile), quote=True)
    image = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{alt}">{drawn}</svg>'
    return f"<li{name_method(tile.method)}><figure>{image}<figcaption>{name}</figcaption></figure></li>"


def _draw_line(line: Line) -> str:
    """An outline as a path; the style of the page says that it is not filled and as wide at any size."""
    opacity = f' stroke-opacity="{line.opacity}"' if line.opacity < 1 else ""
    dash = f' stroke-dasharray="{line.dash[0]} {line.dash[1]}"' if line.dash else ""
    return f'<path stroke="{line.colour}" stroke-width="{line.width}"{dash}{opacity} d="{line.path}"/>'


def _map_scale() -> str:
    """The colours of a map over a dark grey, from 0 to 1."""
    ramp = Tile(np.full((1, 64), 0.25), "", cam=np.linspace(0, 1, 64)[None])
    source = png_uri(draw_tile(ramp, 0.0, 1.0, (96, 10)))
    return f'map: 0 <img src="{source}" alt="colours of the map from 0 to 1" width="96" height="10"> 1'


def _alternative_text(tile: Tile) -> str:
    """The caption of a tile, and what is drawn on it."""
    parts = [
        name
        for name, mask in (("lesion outlined", tile.lesion), ("organ outlined", tile.organ))
        if mask is not None and np.any(mask)
    ]
    parts += ["map laid over"] if tile.cam is not None else []
    parts += ["given mask outlined"] if tile.given_mask is not None and np.any(tile.given_mask) else []
    if tile.predicted_mask is not None:
        parts.append("the model's mask outlined" if np.any(tile.predicted_mask) else "the model found nothing")
    return ", ".join([f"Image: {tile.caption}", *parts])


def _grey_window(tiles: Sequence[Tile]) -> tuple[float, float]:
    """The 1st and the 99.5th percentile over all tiles."""
    values = np.concatenate([np.asarray(tile.image, dtype=np.float64).ravel() for tile in tiles] or [np.zeros(1)])
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.01, 0.995]) if values.size else (0.0, 1.0)
    return float(low), float(high if high > low else low + 1)


def _find_tile_problems(place: int, tile: Tile) -> list[str]:
    """What is wrong with the shapes of a tile; empty if nothing is."""
    shape = tile.image.shape[:2]
    if tile.image.ndim not in (2, 3) or min(shape) < 1 or tile.image.shape[2:] not in ((), (3,)):
        return [f"image {place} has shape {tile.image.shape}, needed is (H, W) or (H, W, 3)"]
    masks = ("lesion", "organ", "cam", "given_mask", "predicted_mask")
    layers = ((name, getattr(tile, name)) for name in masks)
    return [
        f"{name} {place} has shape {mask.shape}, needed is its image's {shape}"
        for name, mask in layers
        if mask is not None and mask.shape != shape
    ]
