"""Label maps of pictures: one file per picture, whose pixel values encode the class of each pixel."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from federation.task import IGNORED
from pipelines.data.folder import resolve_path
from pipelines.data.index import convert_read_errors, folder_problems
from pipelines.data.intake import try_collecting
from pipelines.data.label_maps import convert_to_classes, number_values, order_classes
from pipelines.data.sources import CASE, FIRST_CHANNEL, IMAGE, STEM, PictureMasks
from pipelines.data.study import Unusable

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp", ".webp")
FORMATS = ("JPEG", "PNG", "TIFF", "BMP", "WEBP")
ORIENTATION = 0x0112  # of EXIF; 1 = upright, 2 to 4 keep a picture's sides, 5 to 8 swap them
QUARTERS = {
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
JPEG_HINT = "; a mask saved as JPEG must be made again"
Map = NDArray[np.uint8]


class Maps(NamedTuple):
    """A checked folder of label maps. codes: pixel value -> class, 0 = background, 1 = the first of `classes`."""

    folder: Path
    pattern: str
    codes: Mapping[int, int]
    classes: tuple[str, ...]


class Shown(NamedTuple):
    """An upright picture. stored: (width, height) in the file. turn: the EXIF orientation that was applied."""

    picture: Image.Image
    stored: tuple[int, int]
    turn: int


def open_maps(masks: PictureMasks, classes: Sequence[str]) -> Maps:
    """Check a folder of label maps against the classes to learn; () = all classes of the settings.

    Raises:
        ValueError: the folder is missing, or the settings name other classes; all problems at once.
    """
    problems = folder_problems("source.masks.folder", masks.folder)
    class_names = try_collecting(problems, lambda: order_classes(masks, classes))
    if class_names is None or problems:
        raise ValueError("; ".join(problems))
    return Maps(resolve_path(Path(masks.folder)), masks.pattern, number_values(masks, class_names), class_names)


def map_name(pattern: str, image: str) -> str:
    """The file of a picture's map below the masks' folder. image: the picture's name."""
    end = next((end for end in SUFFIXES if image.lower().endswith(end)), "")
    stem = image[: len(image) - len(end)]
    return pattern.replace(STEM, stem).replace(CASE, stem.removesuffix(FIRST_CHANNEL)).replace(IMAGE, image)


def find_map(maps: Maps, image: str) -> Path:
    """The file of a picture's label map. Raises: Unusable: `no_mask`."""
    file = map_name(maps.pattern, image)
    path = resolve_path(maps.folder / file)
    if not path.is_relative_to(maps.folder) or not path.is_file():
        raise Unusable(
            "no_mask", f"there is no mask {file!r} for it below the masks' folder. Add it, or drop the picture."
        )
    return path


def read_map(maps: Maps, image: str, shown: Shown) -> Map:
    """The classes (height, width) of an upright picture's pixels.

    Raises:
        Unusable: `no_mask`; `bad_mask` (it cannot be read, or has several numbers per pixel); `mask_value` (a value
            without a class); `mask_size` (it does not have the picture's size); or `mask_turned` (EXIF turns the
            picture, and it is unknown whether the mask was drawn before or after).
    """
    path = find_map(maps, image)
    try:
        with convert_read_errors(path.name), Image.open(path, formats=FORMATS) as opened:
            if getattr(opened, "n_frames", 1) > 1:
                raise Unusable("several_frames", f"it holds {getattr(opened, 'n_frames', 1)} pictures; one is needed.")
            if max(opened.size) > max(shown.stored):  # checked before its pixels use memory
                raise _size_error(path, opened.size, shown)
            turned = _turn_upright(opened, path, shown)
            values = _pixel_numbers(turned)
    except Unusable as error:
        if error.reason.startswith("mask_"):
            raise
        raise Unusable("bad_mask", f"the mask {path.name}: {error.detail} ({error.reason})") from error
    if turned.size != shown.picture.size:
        raise _size_error(path, turned.size, shown)
    return convert_to_classes(values, maps.codes, path.name, hint=JPEG_HINT)


def _size_error(path: Path, size: tuple[int, int], shown: Shown) -> Unusable:
    """The error `mask_size`, with the sizes of mask and picture."""
    width, height = shown.picture.size
    return Unusable(
        "mask_size",
        f"the mask {path.name} has {size[0]} x {size[1]} pixels, and the picture {width} x {height}. Draw it on the "
        "picture as it is.",
    )


def _turn_upright(mask: Image.Image, path: Path, shown: Shown) -> Image.Image:
    """The upright mask: turned by its own EXIF, or, if only the stored picture has its size, as the picture was."""
    if mask.getexif().get(ORIENTATION, 1) in range(2, 9):
        return ImageOps.exif_transpose(mask)
    if shown.turn == 1:
        return mask.copy()
    if shown.turn not in QUARTERS or shown.stored[0] == shown.stored[1]:
        raise Unusable(
            "mask_turned",
            f"the picture's EXIF turns it (orientation {shown.turn}), and the mask {path.name} does not say whether it "
            "was drawn before or after. Save the picture upright, without that entry.",
        )
    return mask.transpose(QUARTERS[shown.turn]) if mask.size == shown.stored else mask.copy()


def _pixel_numbers(mask: Image.Image) -> NDArray[np.generic]:
    """One number per pixel (height, width)."""
    values = np.asarray(mask)
    if values.ndim == 3 and mask.mode in ("RGB", "RGBA", "LA", "PA"):
        colours = values if mask.mode == "RGB" else values[..., :-1]
        opaque = mask.mode == "RGB" or bool((values[..., -1] == 255).all())
        if opaque and (colours == colours[..., :1]).all():
            return np.asarray(colours[..., 0])
    if values.ndim != 2:
        raise Unusable(
            "colour", f"pixels of mode {mask.mode} with colours; one number a pixel is needed. Save it as grey."
        )
    return values.astype(np.uint8) if values.dtype == bool else values


def square_around(class_map: Map, margin: float, jitter: float = 0.0, name: str = "") -> tuple[int, int, int, int]:
    """The square (left, upper, right, lower), ends not included, about the middle of the foreground's bounding box.

    Its side is `margin` times the longer side of the box. It may go beyond the picture, unless there is jitter.

    Args:
        class_map: (height, width).
        jitter: the side changes by up to this share, and the middle moves by up to this share of the box; the square is
            then no larger than the picture, and is moved into it.
        name: of the picture, which determines both.

    Raises:
        Unusable: `empty_mask`: there is no foreground.
    """
    inside = (class_map > 0) & (class_map != IGNORED)
    rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        raise Unusable("empty_mask", "its mask is empty, so nothing says where to cut. Draw it, or drop the picture.")
    longest = float(max(np.ptp(rows), np.ptp(columns)) + 1)
    drawn = np.random.default_rng(list(hashlib.sha256(name.encode()).digest())).uniform(-jitter, jitter, 3)
    side = max(1, round(margin * longest * (1 + float(drawn[0]))))
    side = min(side, *class_map.shape) if jitter else side
    corners = []
    for ends, off, length in zip((columns, rows), drawn[1:] * longest, class_map.shape[::-1], strict=True):
        first = int(np.floor((ends[0] + ends[-1] + 1 - side) / 2 + off + 0.5))
        corners.append(min(max(first, 0), length - side) if jitter else first)
    left, upper = corners
    return left, upper, left + side, upper + side
