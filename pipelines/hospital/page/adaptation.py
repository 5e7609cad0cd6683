"""Adaptation on an external site's own page: the course of each line, and masks before and after."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from evaluation.adaptation import AdaptedLine, adaptation_curves
from evaluation.drawing import Picture
from evaluation.heat import draw_mixture
from evaluation.masks import Values
from evaluation.pictures import contact_sheet
from evaluation.tiles import Tile
from pipelines.data.cohort import Cohort
from pipelines.data.images import Target
from pipelines.data.stored import target_masks
from pipelines.hospital.adaptation import AFTER, BEFORE, COEFFICIENTS, GLOBAL, SCORES, SHARED, SHOWN, SPREAD
from pipelines.hospital.page.tiles import build_mask_tile, in_words
from pipelines.hospital.segmentation import kind_of, read_patient_scores, select_shown_patients, words_of_kind
from privacy.message import Message, as_list, number_of, numbers_of, whole_of

AFTER_ALL = "This is the state after the last step; each image was predicted by an earlier one."


def adapted_lines(
    lines: Mapping[str, Message], cohort: Cohort, target: Target | None, names: Sequence[str]
) -> tuple[AdaptedLine, ...]:
    """How each line went. names: of the classes, class 0 first."""
    truth = cohort.labels if target is None else target_masks(cohort, target)
    counts = torch.bincount(truth.flatten(), minlength=len(names))[: len(names)]  # without what masks ignore
    true_shares = counts.double() / counts.sum().clamp(min=1)
    return tuple(_build_line(label, scores, names, true_shares.tolist()) for label, scores in lines.items())


def _build_line(label: str, scores: Message, names: Sequence[str], true_shares: Sequence[float]) -> AdaptedLine:
    """A line of test-time routing with its losses, shares and pictures."""
    facts, pictures = scores.facts, list[Picture]()
    experts = tuple(SHARED if name == GLOBAL else str(name) for name in as_list(facts["experts"]))
    losses = tuple(number_of({"losses": loss}, "losses", math.nan) for loss in as_list(facts.get("losses")))
    shares = tuple(
        tuple(numbers_of({"shares": class_shares}, "shares")) for class_shares in as_list(facts.get("shares"))
    )
    epoch = None if "epoch" in facts and facts["epoch"] is None else whole_of(facts, "epoch", 0)
    if len(losses) > 1:
        pictures.append(adaptation_curves(label, losses, shares, epoch, names[1:], true_shares[1:]))
    if COEFFICIENTS in scores.tensors:
        values, spread = (scores.tensors[name].double().numpy() for name in (COEFFICIENTS, SPREAD))
        drawn = draw_mixture([str(layer) for layer in as_list(facts["layers"])], experts, values, spread, label)
        pictures.append(replace(drawn, caption=f"{drawn.caption} {AFTER_ALL}") if facts.get("online") else drawn)
    why, way = str(facts.get("why", "")), str(facts["way"])
    return AdaptedLine(label, way, experts, losses, shares, epoch, why, tuple(pictures))


def adapted_sheets(
    lines: Mapping[str, Message], cohort: Cohort, target: Target | None, structures: Sequence[str]
) -> Iterator[Picture]:
    """A sheet per line with masks: each patient a row, the mask before beside the one after where there are both."""
    if target is None:
        return
    masks = target_masks(cohort, target)
    for label, scores in lines.items():
        scored = read_patient_scores(scores.tensors)
        if scored is None or SHOWN not in scores.tensors:
            continue
        tiles, has_both = _build_tiles(cohort, masks, scores, scored, structures), BEFORE in scores.tensors
        title = f"{label}: best, median and worst patient{', before and after' if has_both else ''}"
        columns = len(tiles) // len(select_shown_patients(scored))
        sheet = contact_sheet(tiles, title=title, columns=columns if columns > 1 else None)
        caption = "By Dice, mean over structures; of a patient with several images those with most of the given mask."
        if has_both:
            shared, way = scores.facts["shared"], scores.facts["way"]
            caption += f" Before: the shared model, {shared}, as it came; after: by {way}."
        yield replace(sheet, caption=f"{caption} {sheet.caption}".strip(), method=label)


def _build_tiles(
    cohort: Cohort, masks: Tensor, scores: Message, scored: Values, structures: Sequence[str]
) -> list[Tile]:
    """Equally many images of each shown patient, before and after adaptation."""
    rows, chosen = scores.tensors[SHOWN].tolist(), select_shown_patients(scored)
    unit = words_of_kind(kind_of(cohort)).length
    each, both, tiles = len(rows) // len(chosen), BEFORE in scores.tensors, list[Tile]()
    for i, row in enumerate(rows):
        what, place = chosen[i // each]
        first = i % each == 0
        if both:
            caption = f"{what}, before: {in_words(scores.tensors[SCORES][i // each].numpy(), structures, unit)}, "
            tiles.append(
                build_mask_tile(cohort, row, masks[row], scores.tensors[BEFORE][i], caption if first else "before: ")
            )
        after = f"{'after' if both else what}: "
        caption = f"{after}{in_words(scored.scores[place], structures, unit)}, " if first else after if both else ""
        tiles.append(build_mask_tile(cohort, row, masks[row], scores.tensors[AFTER][i], caption))
    return tiles
