"""Draw the most sensitive slice of a DICOM study with its map, for the PACS, into the folder `captures`.

Side by side: the slice as it is, and with the map laid over it. Below: the finding, the model, and the notice that it
is for research only. The map is that of `pipelines.batch.maps`; its largest value in the study lies on this slice.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from evaluation.tiles import Tile, draw_tile
from pipelines.batch.reports import series_name
from pipelines.data.folder import read_steadily
from pipelines.data.grids.geometry import spacing_of
from pipelines.data.index import Candidate, load_candidate
from pipelines.data.study import Array, Rejected, Unusable, Volume
from pipelines.data.writing.dicom_capture import capture_bytes
from pipelines.data.writing.dicom_report import Finding
from pipelines.data.writing.dicom_source import NOTICE, PUBLISHER, Pseudonymous, ResultMaker
from pipelines.loader.command_line import installed_version
from privacy.durable import write_whole

CAPTURES = "captures"
SIDE = 448  # pixels of the longer side of a panel
LETTER, LINE, EDGE = 14, 19, 8  # pixels: height of the letters, from line to line, and around
SCALE = (96, 10)  # pixels: width and height of the bar of colours
WHITE, YELLOW = (235, 235, 235), (255, 205, 60)
HOW = "Sensitivity of the model's score to this slice, drawn in colour on it: dark where little, light where much."


@dataclass(frozen=True)
class CaptureWriter:
    """Settings for writing pictures. out: the folder of results. pseudonymous: None = patients have the images'
    names.
    """

    maker: ResultMaker
    out: Path
    pseudonymous: Pseudonymous | None = None


def write_capture(cam: Volume, finding: Finding, candidate: Candidate | None, captures: CaptureWriter) -> str:
    """Draw one study's map, and return its place below the folder of results.

    cam: the map (I, J, K) on the study's grid, from 0 to 1.

    Raises:
        Unusable: `no_dicom`, or a reason of the reader or of `capture_bytes`.
        OSError: the disk.
    """
    if candidate is None or candidate.stack is None:
        raise Unusable("no_dicom", "a capture is of DICOM images, and these are none. Leave captures out.")
    stack, study = candidate.stack, load_candidate(candidate)
    if isinstance(study, Rejected):
        raise Unusable(study.reason, study.detail)
    values = np.asarray(cam.values, np.float32)
    k = int(values.max(axis=(0, 1)).argmax())
    image = np.asarray(study.image.values, np.float32)[:, :, k].T
    width, height = (float(step) for step in spacing_of(stack.affine)[:2])
    lines = format_caption(finding, captures.maker, k, stack.shape[2])
    picture = paint_capture(image, values[:, :, k].T, (width, height), lines)
    more: dict[str, Any] = {"derivation": HOW, "unlike": finding.unlike, "pseudonymous": captures.pseudonymous}
    frame = stack.volumes[0][k]
    data = read_steadily(candidate.files, lambda: capture_bytes(picture, frame, stack, captures.maker, **more))
    name = f"{series_name(candidate.study, captures.pseudonymous)}.dcm"
    write_whole(captures.out / CAPTURES / name, data)
    return f"{CAPTURES}/{name}"


def format_caption(finding: Finding, maker: ResultMaker, k: int, slices: int) -> list[str]:
    """The words below a picture; the first is the notice. k: of the slice, from 0."""
    score = finding.classes.get(finding.name, 0.0) if finding.score is None else finding.score
    line = f"{finding.name}, probability {score:.3f}" if finding.score is None else f"score {score:.3f}: {finding.name}"
    if finding.threshold is not None:
        line += f" (from {finding.threshold:g})"
    if finding.unlike:
        line += "; UNLIKE the studies that the model learnt from"
    maker_line = f"{maker.label} {maker.digest}, {PUBLISHER} {installed_version()}"
    return [NOTICE, f"{line}.", f"Slice {k + 1} of {slices}, where the score is most sensitive.", maker_line]


def paint_capture(image: Array, cam: Array, step: tuple[float, float], lines: list[str]) -> NDArray[np.uint8]:
    """The picture (rows, columns, 3).

    image, cam: (rows, columns) of the slice and of the map, in [0, 1]. step: millimetres from column to column, and
    from row to row.
    """
    width_mm, height_mm = image.shape[1] * step[0], image.shape[0] * step[1]
    size = (
        max(1, round(SIDE * width_mm / max(width_mm, height_mm))),
        max(1, round(SIDE * height_mm / max(width_mm, height_mm))),
    )
    finite_values = image[np.isfinite(image)]
    low, high = (float(end) for end in np.percentile(finite_values, (1, 99))) if finite_values.size else (0.0, 1.0)
    filled_image = np.nan_to_num(image, nan=low, posinf=high, neginf=low)
    panels = [draw_tile(Tile(filled_image, "", cam=map_), low, max(high, low + 1e-6), size) for map_ in (None, cam)]
    slice_and_map = np.concatenate(panels, axis=1)
    letters = ImageFont.load_default(size=LETTER)
    wrapped = [
        (part, n) for n, line in enumerate(lines) for part in textwrap.wrap(line, slice_and_map.shape[1] // LETTER * 2)
    ]
    picture = Image.new(
        "RGB", (slice_and_map.shape[1], slice_and_map.shape[0] + max(len(wrapped), 3) * LINE + 2 * EDGE)
    )
    picture.paste(Image.fromarray(slice_and_map), (0, 0))
    pen = ImageDraw.Draw(picture)
    _draw_scale(picture, pen, letters)
    for row, (part, number) in enumerate(wrapped):
        corner = (EDGE, slice_and_map.shape[0] + EDGE + row * LINE)
        pen.text(corner, part, fill=YELLOW if number == 0 else WHITE, font=letters)
    return np.asarray(picture)


def _draw_scale(
    picture: Image.Image, pen: ImageDraw.ImageDraw, letters: ImageFont.ImageFont | ImageFont.FreeTypeFont
) -> None:
    """Draw the colour bar of the map in the lower right corner."""
    import matplotlib  # slow to import

    bar = np.broadcast_to(matplotlib.colormaps["inferno"](np.linspace(0, 1, SCALE[0]))[None, :, :3], (*SCALE[::-1], 3))
    left, top = picture.width - SCALE[0] - EDGE, picture.height - LINE - EDGE
    picture.paste(Image.fromarray(np.round(255 * bar).astype(np.uint8)), (left, top - SCALE[1] - 2))
    for word, x, anchor in (("little", left, "la"), ("much", left + SCALE[0], "ra")):
        pen.text((x, top), word, fill=WHITE, font=letters, anchor=anchor)
