"""What came of adaptation at a hospital outside the federation: kept at home by `route`, shown on its own page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from evaluation.adaptation import AdaptedLine, adaptation_curves
from evaluation.drawing import Picture
from evaluation.heat import mixture
from evaluation.histograms import count
from evaluation.masks import Values
from evaluation.pictures import Tile, contact_sheet
from evaluation.protocols import Evidence
from federation.task import Task
from personalize.adaptation import Adapted
from pipelines.data.cohort import Cohort
from pipelines.data.images import Target
from pipelines.data.stored import targets
from pipelines.hospital.hospital import Hospital
from pipelines.hospital.page.outlines import in_words, most_of
from pipelines.hospital.page.pictures import masked
from pipelines.hospital.segmentation import compared, kind_of, measured, own_sums, ranked, read_kept
from pipelines.models.answers import answers
from pipelines.runs.store import DiskFolder
from privacy.dp.access import Rows
from privacy.message import Json, Message, as_list, as_mapping, from_bytes, number_of, numbers_of, whole_of

EVERYBODY = ("all patients",)
"""The one split of a hospital outside: nobody trains there."""
AFTER_ALL = "This is the state after the last step; each image was predicted by an earlier one."
GLOBAL, SHARED = "*", "(shared)"
"""The federation's one model, as an expert and in words; no site can have either name."""
COEFFICIENTS, SPREAD = "mixed/mean", "mixed/deviation"
SHOWN, BEFORE, AFTER, SCORES = "shown/rows", "shown/before", "shown/after", "shown/scores"
Tables: TypeAlias = dict[str, dict[tuple[str, str], Evidence]]


def file_of(run: str) -> str:
    """The file, in a hospital's `scores`, of what a conversation with `route` came to."""
    return f"{run.rpartition('/')[2]}.safetensors"


def mixed(coefficients: Tensor) -> dict[str, Tensor]:
    """What stays of the coefficients (n, L, K + 1) of images: mean and standard deviation over them."""
    return {COEFFICIENTS: coefficients.mean(dim=0).cpu(), SPREAD: coefficients.std(dim=0, correction=0).cpu()}


def account(facts: Mapping[str, Json], adapted: Adapted | None, layers: Sequence[str]) -> dict[str, Json]:
    """How an adaptation went, in facts. layers: of the coefficients, if models were mixed."""
    shared = facts.get("shared")
    said: dict[str, Json] = {
        "line": facts["line"],
        "way": as_mapping(facts["how"])["name"],
        "experts": facts["experts"],
        "shared": as_mapping(shared).get("label") if shared is not None else None,
        "layers": list(layers),
    }
    if adapted is not None:
        losses: list[Json] = [loss if math.isfinite(loss) else None for loss in adapted.losses]
        shares: list[Json] = [list(one) for one in adapted.shares]
        said |= {"losses": losses, "shares": shares, "epoch": adapted.epoch, "why": adapted.why}
        said["online"] = adapted.probabilities is not None
    return said


def outlined(
    cohort: Cohort, rows: Rows, found: Tensor, scored: Values, before: nn.Module | None, task: Task
) -> dict[str, Tensor]:
    """Masks of a few images of the best, the median and the worst patient, for pictures.

    Args:
        cohort, rows: all of the hospital's images, in the cohort's order.
        found: the masks (n, *spatial) that were scored.
        scored: their scores by patient.
        before: the model that adaptation began with, where there is one.
    """
    whose, chosen = rows.patient.cpu(), [int(scored.patients[place]) for _, place in ranked(scored)]
    if not chosen:
        return {}
    shown = torch.cat(most_of(rows.y.cpu(), [(whose == patient).nonzero()[:, 0] for patient in chosen]))
    kept = {SHOWN: shown, AFTER: found[shown].to(torch.uint8)}
    if before is not None:
        masks = answers(task, before, rows.x)
        then = compared(cohort, rows, masks, task.classes)
        places = np.searchsorted(then.patients, chosen)
        kept |= {BEFORE: masks[shown].to(torch.uint8), SCORES: torch.from_numpy(then.scores[places])}
    return kept


def read_lines(hospital: Hospital, facts: Mapping[str, Json]) -> dict[str, Message]:
    """What is kept of each line that the coordinator names: `lines`, each with `label` and `run`."""
    folder = DiskFolder(hospital.root / "scores")
    named = [as_mapping(one) for one in as_list(facts.get("lines", []))]
    kept = {str(one["label"]): file_of(str(one["run"])) for one in named}
    return {label: from_bytes(folder.read(name)) for label, name in kept.items() if folder.has(name)}


def evidence(hospital: Hospital, lines: Mapping[str, Message], copies: int) -> Tables:
    """Exact scores by line, as tables."""
    own = (hospital.name, hospital.name)
    return {label: {own: evidence_of(hospital, kept.tensors, copies)} for label, kept in lines.items()}


def evidence_of(hospital: Hospital, kept: Mapping[str, Tensor], copies: int) -> Evidence:
    """Of single patients' scores that stayed here, with the hospital's own bootstrap copies."""
    if (values := read_kept(kept)) is not None:
        return own_sums(hospital, values, copies)
    y, p, patient = (kept[name].numpy() for name in ("y", "probabilities", "patient"))
    return count(y, p, patient, copies=copies, seed=hospital.bootstrap_seed(), site=hospital.name)


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
        drawn = mixture([str(one) for one in as_list(facts["layers"])], experts, values, spread, label)
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
        scored = read_kept(kept.tensors)
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
