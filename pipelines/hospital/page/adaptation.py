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
from pipelines.data.stored import targets
from pipelines.hospital.adaptation import AFTER, BEFORE, COEFFICIENTS, GLOBAL, SCORES, SHARED, SHOWN, SPREAD
from pipelines.hospital.page.tiles import in_words, masked
from pipelines.hospital.segmentation import kind_of, measured, ranked, read_patient_scores
from privacy.message import Message, as_list, number_of, numbers_of, whole_of

AFTER_ALL = "This is the state after the last step; each image was predicted by an earlier one."


def adapted_lines(
    lines: Mapping[str, Message], cohort: Cohort, target: Target | None, names: Sequence[str]
) -> tuple[AdaptedLine, ...]:
    """How each line went. names: of the classes, class 0 first."""
    truth = cohort.labels if target is None else targets(cohort, target)
    given = torch.bincount(truth.flatten(), minlength=len(names)).double() / max(1, truth.numel())
    return tuple(_line(label, kept, names, given.tolist()) for label, kept in lines.items())


def _line(label: str, kept: Message, names: Sequence[str], given: Sequence[float]) -> AdaptedLine:
    facts, pictures = kept.facts, list[Picture]()
    experts = tuple(SHARED if name == GLOBAL else str(name) for name in as_list(facts["experts"]))
    losses = tuple(number_of({"losses": one}, "losses", math.nan) for one in as_list(facts.get("losses")))
    shares = tuple(tuple(numbers_of({"shares": own}, "shares")) for own in as_list(facts.get("shares")))
    epoch = None if "epoch" in facts and facts["epoch"] is None else whole_of(facts, "epoch", 0)
    if len(losses) > 1:
        pictures.append(adaptation_curves(label, losses, shares, epoch, names[1:], given[1:]))
    if COEFFICIENTS in kept.tensors:
        values, spread = (kept.tensors[name].double().numpy() for name in (COEFFICIENTS, SPREAD))
        drawn = draw_mixture([str(one) for one in as_list(facts["layers"])], experts, values, spread, label)
        pictures.append(replace(drawn, caption=f"{drawn.caption} {AFTER_ALL}") if facts.get("online") else drawn)
    why, way = str(facts.get("why", "")), str(facts["way"])
    return AdaptedLine(label, way, experts, losses, shares, epoch, why, tuple(pictures))


def adapted_sheets(
    lines: Mapping[str, Message], cohort: Cohort, target: Target | None, structures: Sequence[str]
) -> Iterator[Picture]:
    """A sheet per line with masks: each patient a row, the mask before beside the one after where there are both."""
    if target is None:
        return
    given = targets(cohort, target)
    for label, kept in lines.items():
        scored = read_patient_scores(kept.tensors)
        if scored is None or SHOWN not in kept.tensors:
            continue
        tiles, wide = _tiles(cohort, given, kept, scored, structures), 2 if BEFORE in kept.tensors else 1
        beside = ", before and after" if wide == 2 else ""
        title, columns = f"{label}: best, median and worst patient{beside}", len(tiles) // len(ranked(scored))
        sheet = contact_sheet(tiles, title=title, columns=columns if columns > 1 else None)
        said = "By Dice, mean over structures; of a patient with several images those with most of the given mask."
        if wide == 2:
            said += f" Before: the shared model, {kept.facts['shared']}, as it came; after: by {kept.facts['way']}."
        yield replace(sheet, caption=f"{said} {sheet.caption}".strip())


def _tiles(cohort: Cohort, given: Tensor, kept: Message, scored: Values, structures: Sequence[str]) -> list[Tile]:
    rows, chosen, unit = kept.tensors[SHOWN].tolist(), ranked(scored), measured(kind_of(cohort)).length
    each, both, tiles = len(rows) // len(chosen), BEFORE in kept.tensors, list[Tile]()
    for i, row in enumerate(rows):
        what, place = chosen[i // each]
        first = i % each == 0
        if both:
            said = f"{what}, before: {in_words(kept.tensors[SCORES][i // each].numpy(), structures, unit)}, "
            tiles.append(masked(cohort, row, given[row], kept.tensors[BEFORE][i], said if first else "before: "))
        after = f"{'after' if both else what}: "
        said = f"{after}{in_words(scored.scores[place], structures, unit)}, " if first else after if both else ""
        tiles.append(masked(cohort, row, given[row], kept.tensors[AFTER][i], said))
    return tiles
