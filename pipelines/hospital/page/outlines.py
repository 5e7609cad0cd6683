"""A segmentation model's masks on a hospital's own page: the worst test patients first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from evaluation.drawing import Picture
from evaluation.masks import Values
from evaluation.pictures import contact_sheet
from evaluation.tiles import Tile
from federation.parameters import loaded
from federation.task import IGNORED
from pipelines.data.cohort import Cohort
from pipelines.data.stored import target_masks
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.kept import cohort_of, scores_name_of
from pipelines.hospital.opening import Opening
from pipelines.hospital.page.looks import load_model
from pipelines.hospital.page.slices import Around
from pipelines.hospital.page.tiles import build_mask_tile, describe_sizes, in_words
from pipelines.hospital.segmentation import (
    kind_of,
    most_of,
    read_patient_scores,
    score_patients,
    select_worst_first,
    size_words,
    words_of_kind,
)
from pipelines.models.answers import predict_classes
from pipelines.requests.methods import TableLine
from pipelines.runs.store import DiskFolder
from privacy.dp.access import Rows
from privacy.message import from_bytes
from privacy.release.gate import Refused


def outline_sheets(
    hospital: Hospital, methods: Sequence[TableLine], structures: Sequence[str], window: Sequence[int] | None
) -> list[Picture]:
    """A contact sheet per method that has a model here. window: sides of what a model sees at once; None = an image."""
    sheets = []
    for method in methods:
        try:
            sheets.append(_draw_sheet(hospital, method, structures, window))
        except Refused:
            continue
    return sheets


class Outliner(NamedTuple):
    """A method's model at this hospital. start: of its training. cohort: its images. test: rows of test patients.
    masks: (n, *spatial) the given ones. predict_masks: the model's, of these rows.
    """

    start: Opening
    cohort: Cohort
    test: Tensor
    masks: Tensor
    predict_masks: Callable[[Tensor], Tensor]


def open_outliner(hospital: Hospital, method: TableLine, window: Sequence[int] | None) -> Outliner:
    """Load the model of a method that gives masks. window: as of `outline_sheets`. Raises: Refused."""
    start, params = load_model(hospital, method)
    cohort = cohort_of(hospital, method["cohort"])
    test = (cohort.split == SPLITS.index("test")).nonzero()[:, 0]
    if start.target is None or not len(test):
        raise Refused("no_test_patients")
    module = loaded(start.algorithm.network(start.task), params).to(hospital.device)
    sides = None if window is None else tuple(window)

    def predict_masks(rows: Tensor) -> Tensor:
        return predict_classes(start.task, module, cohort.images[rows].to(hospital.device), window=sides)

    return Outliner(start, cohort, test, target_masks(cohort, start.target), predict_masks)


def _draw_sheet(
    hospital: Hospital, method: TableLine, structures: Sequence[str], window: Sequence[int] | None
) -> Picture:
    """Outlines of a model next to the given masks."""
    start, cohort, test, masks, predict_masks = open_outliner(hospital, method, window)
    scored = kept_values(hospital, method)
    if scored is None:  # the central baseline's, which visits
        truth = Rows(cohort.images[test], masks[test].long(), cohort.patient[test])
        scored = score_patients(cohort, truth, predict_masks(test), start.task.classes)
    tiles = _build_tiles(cohort, test, masks, predict_masks, scored, structures)
    patients = max(1, len(select_worst_first(scored)))
    columns = len(tiles) // patients if len(tiles) > patients else None
    sheet = contact_sheet(tiles, title=f"{method['label']}: the worst test patients first", columns=columns)
    caption = (
        "By Dice, mean over structures, the worst patients first; then, to compare, the median and the best one. Of a "
        "patient with several images those with most of the given mask."
    )
    return replace(sheet, caption=f"{caption} {sheet.caption}".strip(), method=method["label"])


def select_case_slice(outliner: Outliner, patient: int) -> tuple[int, int | None]:
    """The row of a test patient's image with most of the given mask, and of a volume the slice; None elsewhere.
    patient: its number.
    """
    _, cohort, test, masks, _ = outliner
    rows = test[cohort.patient[test] == patient]
    is_inside = (masks[rows] > 0) & (masks[rows] != IGNORED)
    row = int(rows[is_inside.flatten(1).sum(dim=1).argmax()])
    if cohort.images.dim() != 5:
        return row, None
    return row, int(((masks[row] > 0) & (masks[row] != IGNORED)).sum(dim=(1, 2)).argmax())


def build_case_tiles(outliner: Outliner, around: Around) -> list[list[Tile]]:
    """Images of a patient, each with both masks."""
    _, cohort, _, masks, predict_masks = outliner
    different = torch.tensor(list(dict.fromkeys(around.rows)))
    predicted = dict(zip(different.tolist(), predict_masks(different), strict=True))
    return [
        [build_mask_tile(cohort, row, masks[row], predicted[row], plane=plane)]
        for row, plane in zip(around.rows, around.planes, strict=True)
    ]


def kept_values(hospital: Hospital, method: TableLine, prefix: str = "") -> Values | None:
    """Single patients' scores of this hospital's own model; prefix: `FLOOR` = of the mean mask."""
    folder, name = DiskFolder(hospital.root / "scores"), scores_name_of(method)
    return read_patient_scores(from_bytes(folder.read(name)).tensors, prefix) if folder.has(name) else None


def _build_tiles(
    cohort: Cohort,
    test: Tensor,
    masks: Tensor,
    predict_masks: Callable[[Tensor], Tensor],
    scored: Values,
    structures: Sequence[str],
) -> list[Tile]:
    """Equally many images of each patient, in order; the first one's caption gives the scores."""
    kind, chosen = kind_of(cohort), select_worst_first(scored)
    unit, sizes = words_of_kind(kind).length, size_words(kind)
    rows_of_patients = [test[cohort.patient[test] == int(scored.patients[place])] for _, place in chosen]
    tiles = []
    for shown, (what, place) in zip(most_of(masks, rows_of_patients), chosen, strict=True):
        caption = f"{what}: {in_words(scored.scores[place], structures, unit)}, "
        if scored.sizes is not None:
            caption += f"{describe_sizes(scored.sizes[place], structures, sizes)}, "
        for first, (row, predicted) in enumerate(zip(shown.tolist(), predict_masks(shown), strict=True)):
            tiles.append(build_mask_tile(cohort, row, masks[row], predicted, "" if first else caption))
    return tiles
