"""Pictures of a hospital's patients for its own page: contact sheets, and what each method's maps say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from evaluation.drawing import Picture
from evaluation.pictures import contact_sheet
from evaluation.tiles import Tile
from evaluation.wording import format_figures
from federation.findings import UNKNOWN, YES, decode_findings
from federation.task import STEPS
from pipelines.data.cohort import Cohort
from pipelines.data.label_maps import has_class
from pipelines.data.label_numbers import read_range
from pipelines.data.stored import class_numbers, finding_names, label_names
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.page.looks import Look, build_finding_looks, build_look
from pipelines.hospital.page.tiles import build_mask_tile, number_slice, stretch_colours
from pipelines.requests.methods import TableLine

TILES = 12
COMPARED = 6  # lesions that are shown by all methods, or images by all findings
MOST_MAPS = 6  # findings with maps on a page


def image_sheets(cohort: Cohort, masks: torch.Tensor | None = None, splits: Sequence[str] = SPLITS) -> list[Picture]:
    """A contact sheet per split: slices with a lesion first, a patient each. given: (n, *spatial), masks that are
    learnt: then slices with a mask come first, and it is outlined.
    """
    sheets: list[Picture] = []
    if cohort.images.dim() < 4:  # lines of a table
        return sheets
    for code, split in enumerate(splits):
        index = _select_examples(cohort, code, masks)
        if index and masks is None:
            tiles = [build_tile(cohort, i) for i in index]
            sheets.append(contact_sheet(tiles, title=f"{split}{describe_outlines(tiles)}"))
        elif index and masks is not None:
            sheets.append(contact_sheet([build_mask_tile(cohort, i, masks[i]) for i in index], title=split))
    return sheets


def describe_outlines(tiles: Sequence[Tile]) -> str:
    """What can be seen outlined on at least one of the tiles."""
    lesion, gland = (
        any(mask is not None and mask.any() for mask in masks)
        for masks in ([t.lesion for t in tiles], [t.organ for t in tiles])
    )
    words = [*(["lesion outlined in amber"] if lesion else []), *(["gland outlined in blue"] if gland else [])]
    return f": {', '.join(words)}" if words else ""


def _select_examples(cohort: Cohort, split: int, masks: torch.Tensor | None = None) -> list[int]:
    """Row numbers: half positive, half negative where there are as many, no patient twice in either half. Of masks:
    half with one, half without.
    """
    chosen: list[int] = []
    positive = (
        class_numbers(cohort).clamp(max=1)
        if masks is None
        else torch.tensor([has_class(mask.numpy()) for mask in masks]).long()
    )
    for label in (1, 0):
        rows = ((cohort.split == split) & (positive == label)).nonzero()[:, 0].tolist()
        first = {int(cohort.patient[row]): row for row in reversed(rows)}
        chosen += sorted(first.values())[: TILES // 2]
    return chosen


def build_tile(
    cohort: Cohort,
    row: int,
    cam: torch.Tensor | None = None,
    text: str = "",
    seen: torch.Tensor | None = None,
    plane: int | None = None,
) -> Tile:
    """An example with its outlines, or with a map. text: behind the label. seen: the image as a method saw it, where
    that is not the cohort's own. plane: of a volume; None = `select_plane`.
    """
    label = describe_label(cohort, row)
    plane = select_plane(cohort, row) if plane is None else plane
    place = f", slice {number_slice(cohort, row, plane)}" if cohort.lesion.dim() > 2 else ""
    image = cohort.images[row] if plane is None else cohort.images[row][:, plane]
    image = stretch_colours(cohort, image if seen is None else seen)
    masks = (mask[row] if plane is None else mask[row][plane] for mask in (cohort.lesion, cohort.gland))
    lesion, gland = masks if cohort.lesion.dim() > 2 else (None, None)
    colour = len(image) == 3
    return Tile(
        image=((image.permute(1, 2, 0) + 1) / 2).numpy() if colour else image[0].numpy(),
        caption=f"{cohort.patients[int(cohort.patient[row])][:8]}{place}, {label}{text}",
        lesion=None if lesion is None else lesion.numpy(),
        organ=None if gland is None or cam is not None else gland.numpy(),
        cam=None if cam is None else cam.numpy(),
    )


def describe_label(cohort: Cohort, row: int) -> str:
    """The class of an example, or its number with the unit, or the findings that it has, and with a question mark those
    that nobody knows.
    """
    if names := finding_names(cohort):
        states = decode_findings(cohort.labels[row], len(names)).tolist()
        marks = {YES: "", UNKNOWN: "?"}
        shown = [f"{name}{marks[state]}" for name, state in zip(names, states, strict=True) if state in marks]
        return ", ".join(shown) or "no finding"
    if (number := read_range(cohort.recipe)) is None:
        return label_names(cohort)[int(cohort.labels[row])]
    return f"{format_figures(number.value_at(int(cohort.labels[row]) / STEPS))} {number.shown_unit}".strip()


def select_plane(cohort: Cohort, row: int) -> int | None:
    """Of a volume, the slice that shows most of the lesion, or else of the gland, or else the middle one."""
    if cohort.images.dim() != 5:
        return None
    for mask in (cohort.lesion, cohort.gland):
        area = mask[row].sum(dim=(1, 2)) if mask.dim() == 4 else mask[row]
        if area.any():
            return int(area.argmax())
    return int(cohort.images.shape[2]) // 2


def map_sheets(hospital: Hospital, cohort: Cohort, methods: Sequence[TableLine]) -> list[Picture]:
    """Maps over test images, a sheet per method whose model sees images; lesions are outlined."""
    index = _select_examples(cohort, SPLITS.index("test"))
    if cohort.images.dim() != 4 or not index:
        return []
    if names := finding_names(cohort):
        return [sheet for method in methods for sheet in _draw_findings(hospital, cohort, method, index, names)]
    drawn: dict[str, Look] = {}
    for method in methods:
        if (method_look := build_look(hospital, cohort, method, index)) is not None:
            drawn[method["label"]] = method_look
    sheets = [_side_by_side(cohort, index, drawn)] if len(drawn) > 1 else []
    for label, mapped in drawn.items():
        tiles = [
            build_tile(cohort, row, mapped.cams[i], f", score {mapped.scores[i]:.2f}", mapped.images[i])
            for i, row in enumerate(index)
        ]
        sheet = contact_sheet(tiles, title=f"{label}: where its score is sensitive")
        sheets.append(replace(sheet, caption=f"{mapped.caption} {sheet.caption}".strip(), method=label))
    return sheets


def _draw_findings(
    hospital: Hospital, cohort: Cohort, method: TableLine, index: Sequence[int], names: Sequence[str]
) -> list[Picture]:
    """Maps of one method's findings over the same images, a row each: a sheet, or none without a model of images."""
    rows, drawn = index[:COMPARED], names[:MOST_MAPS]
    looks = build_finding_looks(hospital, method, rows, drawn)
    if not looks:
        return []
    tiles = []
    for i, row in enumerate(rows):
        tiles.append(replace(build_tile(cohort, row), organ=None))
        for name, look in looks.items():
            tile = build_tile(cohort, row, look.cams[i], "", look.images[i])
            tiles.append(replace(tile, caption=f"{name} {look.scores[i]:.2f}"))
    title = f"{method['label']}: where its score of each finding is sensitive"
    sheet = contact_sheet(tiles, title=title, columns=1 + len(drawn))
    fewer = f" Drawn are the first {len(drawn)} of {len(names)} findings." if len(drawn) < len(names) else ""
    caption = "Left: the image as it was read, with what it has. Then a map for each finding, with its probability."
    how_to_read = next(iter(looks.values())).caption
    text = f"{caption}{fewer} {how_to_read} {sheet.caption}".strip()
    return [replace(sheet, caption=text, method=method["label"])]


def _side_by_side(cohort: Cohort, index: Sequence[int], drawn: Mapping[str, Look]) -> Picture:
    """The same images by all methods, a row each (the paper's figures 8, 10 and 12)."""
    shown = [(i, row) for i, row in enumerate(index) if int(cohort.labels[row])][:COMPARED]
    tiles = []
    for i, row in shown:
        tiles.append(replace(build_tile(cohort, row), organ=None))
        for label, mapped in drawn.items():
            tile = build_tile(cohort, row, mapped.cams[i], "", mapped.images[i])
            tiles.append(replace(tile, caption=f"{label}, score {mapped.scores[i]:.2f}", method=label))
    sheet = contact_sheet(tiles, title="The same lesions by all methods", columns=1 + len(drawn))
    caption = "Left: the image as it was read, lesion outlined. Then each method's map over the image that it saw."
    return replace(sheet, caption=f"{caption} {sheet.caption}")
