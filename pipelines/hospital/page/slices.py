"""Which images of a patient a case shows: those around the one that the model is wrong on most, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from evaluation.cases import View
from evaluation.drawing import Picture
from evaluation.pictures import SIDE, contact_rows
from evaluation.tiles import Tile
from pipelines.data.cohort import Cohort
from pipelines.hospital.page.tiles import PLACED, number_slice
from pipelines.hospital.segmentation import kind_of, words_of_kind

MOST_VIEWS = 12
"""Images of a case."""
PIXELS = 4_000_000
"""Of all cases' images together: where images are large, a case shows fewer."""


class Around(NamedTuple):
    """Some of a patient's images. rows: of the cohort; planes: of a volume's row, or None. worst: the place among them
    of the one to begin with. examples: how many the patient has.
    """

    rows: Sequence[int]
    planes: Sequence[int | None]
    worst: int
    examples: int


def select_around(cohort: Cohort, row: int, plane: int | None, most: int) -> Around:
    """The images of a row's patient and split around that row, or of a volume the slices around a plane; `most` at
    most.
    """
    if plane is not None:
        places = _take_around(int(cohort.images.shape[2]), plane, most)
        return Around([row] * len(places), places, places.index(plane), int(cohort.images.shape[2]))
    patient_rows = ((cohort.patient == cohort.patient[row]) & (cohort.split == cohort.split[row])).nonzero()[:, 0]
    rows = patient_rows[torch.argsort(cohort.position[patient_rows], stable=True)].tolist()
    places = _take_around(len(rows), rows.index(row), most)
    chosen = [rows[place] for place in places]
    return Around(chosen, [None] * len(chosen), chosen.index(row), len(rows))


def count_views(cohort: Cohort, cases: int) -> int:
    """How many images each of so many cases may show."""
    height, width = (min(SIDE, int(side)) for side in cohort.images.shape[-2:])
    return max(1, min(MOST_VIEWS, PIXELS // max(1, cases * height * width)))


def draw_views(
    cohort: Cohort, chosen: Sequence[Around], tiles: Sequence[Sequence[Sequence[Tile]]]
) -> tuple[list[list[View]], Picture | None]:
    """The views of each case, all in one grey window, and what outlines and colours mean. tiles: of each case and
    image; none without images.
    """
    rows = [row for case in tiles for row in case]
    if not any(rows):
        return [[] for _ in chosen], None
    sheets, keys = contact_rows(rows, ["" for _ in rows])
    remaining = iter(sheets)
    return [
        [View(_name_view(cohort, around, place), next(remaining)) for place in range(len(case))]
        for around, case in zip(chosen, tiles, strict=True)
    ], keys


def name_examples(cohort: Cohort) -> str:
    """What the images of a case are, in the plural."""
    return "slices" if cohort.images.dim() == 5 else words_of_kind(kind_of(cohort)).examples


def _name_view(cohort: Cohort, around: Around, place: int) -> str:
    """ "slice 3", by its place in the study where it has one."""
    plane, kind = around.planes[place], kind_of(cohort)
    if plane is None and kind not in PLACED:
        return f"{words_of_kind(kind).example} {place + 1}"
    word = "slice" if plane is not None else words_of_kind(kind).example
    return f"{word} {number_slice(cohort, around.rows[place], plane)}"


def _take_around(length: int, place: int, most: int) -> list[int]:
    """At most so many successive places of a sequence, with this one as near to their middle as can be."""
    start = max(0, min(place - most // 2, length - most))
    return [*range(start, min(length, start + most))]
