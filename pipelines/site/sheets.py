"""Pictures of a hospital's patients for its own page: contact sheets, and what each method's maps say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from evaluation.drawing import Picture
from evaluation.pictures import Tile, contact_sheet
from federation.models.cam import local_probabilities
from federation.parameters import loaded
from pipelines.cohort.cohort import Cohort
from pipelines.site.admit import cohort_of
from pipelines.site.hospital import SPLITS, Hospital
from pipelines.site.learn import opened, own_model
from privacy.gate import Refused
from privacy.message import Json

TILES = 12


def image_sheets(cohort: Cohort) -> list[Picture]:
    """A contact sheet per split: slices with a lesion first, a patient each."""
    sheets: list[Picture] = []
    if cohort.images.dim() < 4:  # lines of a table
        return sheets
    for number, split in enumerate(SPLITS):
        index = _examples(cohort, number)
        if index:
            tiles = [_tile(cohort, i) for i in index]
            sheets.append(contact_sheet(tiles, title=f"{split}{outlined(tiles)}"))
    return sheets


def outlined(tiles: Sequence[Tile]) -> str:
    """What can be seen outlined on at least one of the tiles."""
    lesion, gland = (
        any(mask is not None and mask.any() for mask in masks)
        for masks in ([t.lesion for t in tiles], [t.organ for t in tiles])
    )
    said = [*(["lesion outlined in amber"] if lesion else []), *(["gland outlined in blue"] if gland else [])]
    return f": {', '.join(said)}" if said else ""


def _examples(cohort: Cohort, split: int) -> list[int]:
    """Row numbers: half positive, half negative where there are as many, no patient twice in either half."""
    chosen: list[int] = []
    for label in (1, 0):
        rows = ((cohort.split == split) & (cohort.labels == label)).nonzero()[:, 0].tolist()
        first = {int(cohort.patient[row]): row for row in reversed(rows)}
        chosen += sorted(first.values())[: TILES // 2]
    return chosen


def _tile(cohort: Cohort, row: int, cam: torch.Tensor | None = None, text: str = "") -> Tile:
    label = "positive" if int(cohort.labels[row]) else "negative"
    plane = _plane(cohort, row)
    place = f", slice {int(cohort.position[row]) if plane is None else plane}" if cohort.lesion.dim() > 2 else ""
    image = cohort.images[row] if plane is None else cohort.images[row][:, plane]
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


def _plane(cohort: Cohort, row: int) -> int | None:
    """Of a volume, the slice that shows most of the lesion, or else of the gland, or else the middle one."""
    if cohort.images.dim() != 5:
        return None
    for mask in (cohort.lesion, cohort.gland):
        area = mask[row].sum(dim=(1, 2))
        if area.any():
            return int(area.argmax())
    return int(cohort.images.shape[2]) // 2


def map_sheets(hospital: Hospital, cohort: Cohort, methods: Sequence[Mapping[str, Json]]) -> list[Picture]:
    """Class activation maps on test images, a sheet per method whose network has maps; lesions are outlined."""
    index = _examples(cohort, SPLITS.index("test"))
    sheets: list[Picture] = []
    if cohort.images.dim() != 4:
        return sheets
    for method in methods:
        try:
            start, (_, params) = opened(hospital, str(method["train_run"])), own_model(hospital, method)
        except Refused:  # the central baseline: no model of this hospital's own
            continue
        module = loaded(start.algorithm.network(start.task), params).eval()
        images = cohort_of(hospital, str(method["cohort"])).images[index]
        with torch.no_grad():
            output = module(images)
        if output.maps is None or not index:
            continue
        cams = local_probabilities(output.maps)[:, 1:2]
        cams = functional.interpolate(cams, cohort.images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
        scores = output.logits.softmax(dim=1)[:, 1]
        tiles = [_tile(cohort, row, cams[i], f", score {scores[i]:.2f}") for i, row in enumerate(index)]
        sheet = contact_sheet(tiles, title=f"{method['label']}: where its maps speak for the positive class")
        sheets.append(replace(sheet, caption=f"{sheet.caption} {_resolution(output.maps, cohort.images)}".strip()))
    return sheets


def _resolution(maps: torch.Tensor, images: torch.Tensor) -> str:
    """How coarse a map is. Smoothing makes it look finer than it is."""
    (high, wide), (height, width) = maps.shape[-2:], images.shape[-2:]
    return (
        f"A map has {high} × {wide} values for an image of {height} × {width} pixels, and is smoothed to be laid over "
        "it: it tells the region, not an outline. Bright is near 1, clear is near 0, the same in all images."
    )
