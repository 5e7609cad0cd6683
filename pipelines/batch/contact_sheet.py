"""A page of images before and after blanking, for a person to check. It may show patients' names, so it stays in the
hospital.

Of several frames it shows the first, and each pixel's brightest and darkest value over all frames, so that text in any
frame is visible. "Stretched" is the result with grey values spread by rank, so that text of low contrast is visible.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.pixels import apply_color_lut

from evaluation.drawing import png_uri
from evaluation.page import (
    Block,
    Code,
    Items,
    Page,
    Paragraph,
    Section,
    Span,
    Text,
    ZoomImage,
    ZoomImages,
    compose_text,
)
from evaluation.rendering import render_page
from pipelines.batch.layouts_file import format_layout_entry
from privacy.deidentify.burned import Blanked, decode_pixels, shown_as
from privacy.deidentify.layouts import Rectangle
from privacy.durable import write_whole

Pixels = NDArray[np.generic]
LARGEST = 100_000_000  # pixels on a sheet, so that a browser can open it; further images come on the next sheet


@dataclass(frozen=True)
class View:
    """Pictures of one view of an image, as data URIs."""

    title: str
    before: str
    after: str
    stretched: str


@dataclass(frozen=True)
class SheetImage:
    """An image on the sheet. name: of its file. layout: its description in words."""

    name: str
    layout: str
    rows: int
    columns: int
    rectangles: tuple[Rectangle, ...]
    views: tuple[View, ...]


@dataclass(frozen=True)
class UnknownLayout:
    """A layout without rectangles. entry: its draft entry in the file of layouts."""

    name: str
    layout: str
    rows: int
    columns: int
    picture: str
    entry: str


def build_sheet_image(name: str, image: Dataset, blanked: Blanked) -> SheetImage:
    """An image for the sheet, with its views."""
    rows, columns = blanked.after.shape[1:3]
    return SheetImage(
        name, describe_layout(image), rows, columns, blanked.rectangles, tuple(_list_views(image, blanked))
    )


def build_unknown_layout(name: str, image: Dataset) -> UnknownLayout:
    """A layout without rectangles, with a picture of an image.

    Raises:
        NotDeidentifiable: `undecodable`.
    """
    (picture,) = _convert_to_pictures(image, shown_as(image), [decode_pixels(image)[0]])
    return UnknownLayout(
        name, describe_layout(image), int(image.Rows), int(image.Columns), png_uri(picture), format_layout_entry(image)
    )


def write_sheet(
    path: Path, images: Sequence[SheetImage], unknown: Sequence[UnknownLayout], *, digest: str, command: str, later: int
) -> None:
    """Write the page. later: images that did not fit on it.

    Raises:
        OSError: the disk.
    """
    page = build_sheet(str(path), images, unknown, digest=digest, command=command, later=later)
    write_whole(path, render_page(page).encode("utf-8"))


def build_sheet(
    path: str, images: Sequence[SheetImage], unknown: Sequence[UnknownLayout], *, digest: str, command: str, later: int
) -> Page:
    """The page. path: of its file. later: images that did not fit on it."""
    question = "Is any text left in these images?"
    number = str(len(images))
    facts: list[Text] = [
        compose_text(f"**{{number}}** {'image' if len(images) == 1 else 'images'} to confirm", number=number)
    ]
    if later:
        facts.append(compose_text(", **{later}** more on the next sheet", later=later))
    if unknown:
        layouts = "layout" if len(unknown) == 1 else "layouts"
        facts.append(compose_text(f"; **{{number}}** {layouts} without rectangles", number=len(unknown)))
    stays = compose_text(
        "**This page shows patients' names.** It stays in the hospital, in this file: `{path}`. Only the owner of the "
        "file can read it. When it is no longer needed, delete it: `rm {quoted}`",
        path=path, quoted=shlex.quote(path),
    )  # fmt: skip
    sections = [_build_unknown_section(layout) for layout in unknown]
    sections += [_build_image_section(image, f"Image {place} of {number}") for place, image in enumerate(images, 1)]
    if images:
        same = (
            f"The digest {digest} identifies these pixels, before and after, and these rectangles. If a rectangle or "
            "a file changes, or one is added, the digest is refused, and there is a new page."
        )
        end: list[Block] = [Code(command), Paragraph(same, "note")]
        sections = [
            Section("What to do", [Items(STEPS, is_numbered=True), Code(command), Paragraph(READING, "note")]),
            *sections,
            Section(f"Nothing left in any of the {number} images?", end),
        ]
    return Page(question, question, tuple(facts), sections, [Paragraph(stays, "banner danger")])


STEPS = (
    compose_text(
        "Look at **After** and **Stretched** of every image below; a click enlarges, a second click closes. Look for "
        "names, numbers, dates, and for faces."
    ),
    compose_text(
        "If anything is left, correct the rectangles and run the command without `--confirm` again. It makes a new "
        "page."
    ),
    "If nothing is left in any of them, run this. Only then are the images written, and marked as free of text:",
)
READING = (
    "Yellow frames are the rectangles. Of an image with several frames the page shows the first, and the brightest "
    "and the darkest value of each pixel in all frames; text that is neither is not visible here. Stretched: grey "
    "values spread by rank, so that faint text stands out."
)


def _build_unknown_section(layout: UnknownLayout) -> Section:
    """A layout without rectangles, with a grid to read them from."""
    advice = compose_text(
        "All images of this layout stay in quarantine (`burned_in`). Read rows and columns from the grid, and "
        "complete this entry of the file of `--blank`, with rectangles as `{rectangle}`:",
        rectangle=f"{{top: 0, left: 0, bottom: 60, right: {layout.columns}}}",
    )
    step = 100 if max(layout.rows, layout.columns) > 400 else 50
    alt = "image without rectangles"
    look = ZoomImage(layout.name, layout.picture, alt, layout.rows, layout.columns, step=step)
    return Section(f"No rectangles yet: {layout.layout}", [Paragraph(advice), Code(layout.entry), ZoomImages([look])])


def _build_image_section(image: SheetImage, title: str) -> Section:
    """An image before and after blanking."""
    boxes = [(box.left, box.top, box.right, box.bottom) for box in image.rectangles]
    blocks: list[Block] = [Paragraph((image.layout, " · ", Span(image.name, "code")), "note")]
    for view in image.views:
        end = f", {view.title}" if view.title else ""
        size = image.rows, image.columns
        blocks.append(
            ZoomImages(
                [
                    ZoomImage(f"Before{end}", view.before, "before blanking", *size, boxes),
                    ZoomImage(f"After{end}", view.after, "after blanking", *size),
                    ZoomImage(f"Stretched{end}", view.stretched, "after blanking, contrast stretched", *size),
                ]
            )
        )
    return Section(title, blocks)


def describe_layout(image: Dataset) -> str:
    """Manufacturer, model and size of an image."""
    maker, model = (str(image.get(key) or "") for key in ("Manufacturer", "ManufacturerModelName"))
    return f"{maker or 'no manufacturer'}, {model or 'no model'}, {image.Rows} rows, {image.Columns} columns"


def _list_views(image: Dataset, blanked: Blanked) -> Iterable[View]:
    """The views of an image: one frame, or of several frames the first, the brightest and the darkest values."""
    count = len(blanked.after)
    pairs = {"": [frames[0] for frames in (blanked.before, blanked.after)]}
    if count > 1:
        images = (blanked.before, blanked.after)
        pairs = {
            f"frame 1 of {count}": pairs[""],
            f"brightest of {count} frames": [frames.max(axis=0) for frames in images],
            f"darkest of {count} frames": [frames.min(axis=0) for frames in images],
        }
    for title, pair in pairs.items():
        before, after = _convert_to_pictures(image, blanked.photometric, pair)
        yield View(title, png_uri(before), png_uri(after), png_uri(_stretch_contrast(after)))


def _convert_to_pictures(image: Dataset, photometric: str, planes: Sequence[Pixels]) -> list[NDArray[np.uint8]]:
    """Planes (rows, columns, samples) as 8-bit pictures, all on the scale of the first."""
    if photometric == "PALETTE COLOR":
        planes = [apply_color_lut(plane[..., 0], image) for plane in planes]
    values = [np.nan_to_num(np.asarray(plane, np.float64)) for plane in planes]
    is_colour = photometric in ("RGB", "PALETTE COLOR")
    top = 255.0 if planes[0].dtype == np.uint8 else 65535.0
    low, high = (0.0, top) if is_colour else (float(values[0].min()), float(values[0].max()))
    scaled = [np.clip((value - low) / ((high - low) or 1) * 255, 0, 255).astype(np.uint8) for value in values]
    if photometric == "MONOCHROME1":
        scaled = [np.uint8(255) - value for value in scaled]
    return [value[..., 0] if value.shape[-1] == 1 else value[..., :3] for value in scaled]


def _stretch_contrast(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture with each grey value replaced by the scaled number of darker pixels."""
    grey = picture if picture.ndim == 2 else picture.max(axis=-1)
    values, indices, count = np.unique(grey, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - count
    steps = ranks * 255 / (ranks[-1] or 1) if len(values) > 1 else np.zeros(1)
    return np.asarray(steps[indices].reshape(grey.shape), np.uint8)
