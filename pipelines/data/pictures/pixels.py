"""Prepare a picture and its label map for a network: upright, cropped, and downscaled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from federation.task import IGNORED
from pipelines.data.images import Pictures
from pipelines.data.pictures.label_maps import FORMATS, ORIENTATION, Map, Maps, Shown, read_map, square_around
from pipelines.data.study import Array, Unusable

LARGEST = (
    150_000_000  # pixels; more is a slide scan, or a file made to fill the memory (PIL itself stops at 179 million)
)
Values: TypeAlias = NDArray[np.uint8] | NDArray[np.uint16]
Box = tuple[int, int, int, int]  # left, upper, right, lower, ends not included


def read_picture(path: Path, images: Pictures) -> Array:
    """One picture as (channels, size, size) float32 from -1 to 1, upright by its EXIF; no metadata is kept.

    Raises:
        Unusable: `too_large`, or `several_frames` (an animation or a stack of pages).
        Exception: whatever the decoder raises; the caller turns it into `Unusable`.
    """
    return _build_input(_open_upright(path).picture, images, None)


def read_pair(path: Path, images: Pictures, maps: Maps, name: str) -> tuple[Array, Map]:
    """One picture as in `read_picture`, and the classes (size, size) of its pixels; both have the same crop.

    A pixel has the class that covers most of it, the lower one of ties. So the map matches the picture, whose pixels
    are means of the same areas; nearest-neighbour values would drop a rim thinner than a pixel, or make it too thick,
    depending on the grid. What is ignored counts as one more class, the last.

    Raises:
        Unusable: as `read_picture` and `read_map`, or `empty_mask` (there is nothing to crop around).
        Exception: whatever the picture's decoder raises; the caller turns it into `Unusable`.
    """
    shown = _open_upright(path)
    full = read_map(maps, name, shown)
    box = None if images.margin is None else square_around(full, images.margin, images.jitter or 0.0, name)
    numbers = [*range(1, len(maps.classes) + 1), *([IGNORED] if (full == IGNORED).any() else [])]
    planes = [Image.fromarray((full == number).astype(np.float32)) for number in numbers]
    shares = np.stack([_downscale_plane(_crop_middle(plane, images), images, box) for plane in planes])
    every = np.concatenate([1 - shares.sum(axis=0, keepdims=True), shares])  # outside the picture is background
    return _build_input(shown.picture, images, box), np.array([0, *numbers], np.uint8)[np.argmax(every, axis=0)]


def read_full_pair(path: Path, maps: Maps, name: str) -> tuple[Array, Map]:
    """One picture as it is, in shades of grey from 0 to 1 (rows, columns), and the classes of its pixels.

    Raises:
        Unusable: as `read_picture` and `read_map`.
        Exception: whatever the picture's decoder raises; the caller turns it into `Unusable`.
    """
    shown = _open_upright(path)
    (grey,) = _float_planes(shown.picture, 1)
    return np.asarray(grey, np.float32), read_map(maps, name, shown)


def read_whole_pair(path: Path, images: Pictures, maps: Maps, name: str) -> tuple[Values, Map]:
    """One picture as it is, with as many channels as `images` has, and the classes of its pixels: uint8 (rows, columns)
    or (rows, columns, 3); uint16 of grey with 16 bits, where one channel is learnt.

    Raises:
        Unusable: as `read_picture` and `read_map`.
        Exception: whatever the picture's decoder raises; the caller turns it into `Unusable`.
    """
    shown = _open_upright(path)
    values = _read_values(shown.picture, images.channels)
    if images.channels == 3 and values.ndim == 2:  # 16 bits of grey, which no colour has
        values = np.repeat(np.rint(values / 257).astype(np.uint8)[..., None], 3, axis=2)
    return values, read_map(maps, name, shown)


def _open_upright(path: Path) -> Shown:
    """The picture turned upright by its EXIF, after checks of its size. Raises: Unusable."""
    with _open_image(path) as file:
        if file.width * file.height > LARGEST:
            raise Unusable("too_large", f"{file.width} x {file.height} pixels; at most {LARGEST:,} are read.")
        if getattr(file, "n_frames", 1) > 1:
            raise Unusable("several_frames", f"it holds {getattr(file, 'n_frames', 1)} pictures; one is needed.")
        turn = file.getexif().get(ORIENTATION, 1)
        return Shown(ImageOps.exif_transpose(file), file.size, turn if turn in range(2, 9) else 1)


def _build_input(picture: Image.Image, images: Pictures, box: Box | None) -> Array:
    """The network's input (channels, size, size) from a picture and its crop, -1 (black) to 1."""
    planes = _float_planes(_crop_middle(picture, images), images.channels)
    return np.stack([_downscale_plane(plane, images, box) for plane in planes]) * np.float32(2) - np.float32(1)


def _crop_middle(picture: Image.Image, images: Pictures) -> Image.Image:
    """The middle square for `fit: crop`; else the picture as it is."""
    side = min(picture.size)
    return ImageOps.fit(picture, (side, side), method=Image.Resampling.BOX) if images.fit == "crop" else picture


def _downscale_plane(plane: Image.Image, images: Pictures, box: Box | None) -> Array:
    """A plane downscaled by averaging; the crop is 0 beyond its edges."""
    cut = plane if box is None else plane.crop(box)
    return np.asarray(cut.resize((images.size, images.size), Image.Resampling.BOX, reducing_gap=None), np.float32)


def _open_image(path: Path) -> Image.Image:
    """The picture file, not decoded yet. Raises: Unusable: `too_large`."""
    try:
        return Image.open(path, formats=FORMATS)
    except Image.DecompressionBombError as error:
        raise Unusable("too_large", f"more pixels than PIL opens; at most {LARGEST:,} are read.") from error


def _float_planes(picture: Image.Image, channels: int) -> Sequence[Image.Image]:
    """Float planes from 0 to 1, so that nothing is rounded before downscaling."""
    values = _read_values(picture, channels)
    if values.dtype == np.uint16:
        return [Image.fromarray(values.astype(np.float32) / np.float32(65535))] * channels
    planes = values.reshape(*values.shape[:2], channels).astype(np.float32) / np.float32(255)
    return [Image.fromarray(planes[:, :, channel]) for channel in range(channels)]


def _read_values(picture: Image.Image, channels: int) -> Values:
    """The pixels before a black background: uint16 (rows, columns) where they have 16 bits of grey, else uint8, with
    an axis of 3 colours for three channels. Raises: Unusable: `value_type`.
    """
    if picture.mode in ("I", "F"):
        raise Unusable("value_type", "32-bit grey values do not say what is white. Save it with 8 or 16 bits.")
    if picture.mode.startswith("I;16"):  # which PIL's convert would clip to 8 bits
        return np.asarray(picture).astype(np.uint16)
    if picture.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", clear.size, (0, 0, 0, 255)), clear)
    return np.asarray(picture.convert("RGB" if channels == 3 else "L"))
