"""The test patients on whom the hospital's model is wrong most, with their images, for its own page alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.cases import MOST_CASES, Case, Cases
from evaluation.decision import Decision
from evaluation.pictures import contact_rows
from evaluation.tiles import Tile
from evaluation.wording import format_number
from federation.findings import UNKNOWN, YES, decode_findings
from federation.task import STEPS
from pipelines.data.cohort import Cohort
from pipelines.data.label_numbers import read_range
from pipelines.data.stored import finding_names, label_names
from pipelines.hospital.home_floors import HomeFloor
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.kept import scores_name_of
from pipelines.hospital.page.looks import compute_case_maps
from pipelines.hospital.page.outlines import build_case_tiles, kept_values, open_outliner
from pipelines.hospital.page.pictures import build_tile, describe_label
from pipelines.hospital.page.table import read_features
from pipelines.hospital.page.tiles import in_words
from pipelines.hospital.segmentation import kind_of, words_of_kind
from pipelines.requests.methods import TableLine
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes
from privacy.release.gate import Refused

COMMAND = "python -m pipelines.review"
MOST_FACTS = 12  # values of a line of a table, or findings, that are named


class Wrong(NamedTuple):
    """A patient's example on which a model is wrong most. row: in the cohort. place: among the test rows. by: how far
    the model is off; larger is worse.
    """

    row: int
    place: int
    by: float


def list_cases(
    hospital: Hospital,
    cohort: Cohort,
    run: str,
    decided: Sequence[Decision],
    methods: Sequence[TableLine],
    variants: Sequence[TableLine] = (),
    floors: Sequence[HomeFloor] = (),
) -> Cases | None:
    """The cases of the model that gives labels, a number or findings, and that this hospital should use; without one,
    of the first that was scored. None: no model was scored here, or on other patients.
    """
    scores = _read_scores(hospital, [*methods, *variants], floors)
    by_label = {line["label"]: line for line in methods}  # maps of a variant would be those of its plain model
    method = next((name for name in [d.method for d in decided] + [*scores] if name in scores), None)
    if method is None:
        return None
    tensors, test = scores[method], (cohort.split == SPLITS.index("test")).nonzero()[:, 0]
    if len(tensors["y"]) != len(test) or not torch.equal(tensors["y"], cohort.labels[test]):
        return None
    y, p = tensors["y"], tensors["probabilities"].double()
    errors, order, describe = _measure_errors(cohort, y, p)
    wrong = _select_worst(errors, test, cohort.patient[test])
    maps = compute_case_maps(hospital, by_label.get(method), [example.row for example in wrong])
    rows = [_build_tiles(cohort, example.row, maps, number) for number, example in enumerate(wrong)]
    sheets, keys = contact_rows(rows, ["" for _ in rows]) if any(rows) else ([], None)
    features = read_features(cohort)
    shown = [
        Case(
            code=cohort.patients[int(cohort.patient[example.row])],
            label=describe_label(cohort, example.row),
            predicted=describe(example.place),
            picture=sheets[number] if sheets else None,
            facts=_describe_features(features, example.row),
        )
        for number, example in enumerate(wrong)
    ]
    return Cases(run, method, order, len(torch.unique(cohort.patient[test])), shown, keys, describe_command(hospital))


def list_mask_cases(
    hospital: Hospital,
    cohort: Cohort,
    run: str,
    decided: Sequence[Decision],
    methods: Sequence[TableLine],
    structures: Sequence[str],
    window: Sequence[int] | None,
) -> Cases | None:
    """The same of models that give masks: the patients with the lowest Dice. structures: names of classes. window:
    sides of what a model sees at once; None = an image.
    """
    by_label = {line["label"]: line for line in methods}
    scored = {name: values for name, line in by_label.items() if (values := kept_values(hospital, line)) is not None}
    method = next((name for name in [d.method for d in decided] + [*scored] if name in scored), None)
    if method is None:
        return None
    values, unit = scored[method], words_of_kind(kind_of(cohort)).length
    try:
        outliner = open_outliner(hospital, by_label[method], window)
    except Refused:
        return None
    means = [_mean_of_known(dice) for dice in values.scores[:, :, 0].tolist()]
    worst = sorted((mean, place) for place, mean in enumerate(means) if math.isfinite(mean))[:MOST_CASES]
    rows = [build_case_tiles(outliner, int(values.patients[place])) for _, place in worst]
    sheets, keys = contact_rows(rows, ["" for _ in rows])
    shown = [
        Case(
            code=outliner.cohort.patients[int(values.patients[place])],
            label="its mask",
            predicted=in_words(values.scores[place], structures, unit),
            picture=sheets[number],
        )
        for number, (_, place) in enumerate(worst)
    ]
    order = "by Dice, mean over structures"
    return Cases(run, method, order, len(values.patients), shown, keys, describe_command(hospital))


def describe_command(hospital: Hospital) -> str:
    """The command with which a person marks these cases."""
    return f"{COMMAND} {shlex.quote(str(hospital.root))}"


def _read_scores(
    hospital: Hospital, lines: Sequence[TableLine], floors: Sequence[HomeFloor]
) -> dict[str, Mapping[str, Tensor]]:
    """Kept scores of single test patients by method, and of models learnt at home."""
    folder, scores = DiskFolder(hospital.root / "scores"), dict[str, Mapping[str, Tensor]]()
    for line in lines:
        if folder.has(name := scores_name_of(line)):
            tensors = from_bytes(folder.read(name)).tensors
            if "probabilities" in tensors and len(tensors["y"]):
                scores[line["label"]] = tensors
    return scores | {floor.model.method: floor.scores for floor in floors}


def _measure_errors(cohort: Cohort, y: Tensor, p: Tensor) -> tuple[Tensor, str, Callable[[int], str]]:
    """How far each answer (n,) is off, by what that is, and a function that says an answer in words. y: (n,), p: (n,
    K) of the test rows.
    """
    if names := finding_names(cohort):
        states = decode_findings(y, len(names))
        off = (p - (states == YES).double()).abs().masked_fill(states == UNKNOWN, -1.0)
        return off.max(dim=1).values, "by the known finding that is farthest off", _say_findings(names, p, off)
    if (number := read_range(cohort.recipe)) is not None:
        unit = number.shown_unit

        def say_number(place: int) -> str:
            return f"{number.value_at(float(p[place, 0])):.4g} {unit}".strip()

        return (p[:, 0] - y.double() / STEPS).abs(), f"by the difference in {number.what}", say_number
    classes = label_names(cohort)

    def say_class(place: int) -> str:
        top, true = int(p[place].argmax()), int(y[place])
        parts = [f"{classes[k]} {format_number(float(p[place, k]))}" for k in dict.fromkeys((top, true))]
        return ", ".join(parts)

    return 1 - p[torch.arange(len(y)), y], "by the probability that it gives the given class", say_class


def _say_findings(names: Sequence[str], p: Tensor, off: Tensor) -> Callable[[int], str]:
    """A function that says the findings that are farthest off, the worst first."""

    def say_worst(place: int) -> str:
        worst = off[place].argsort(descending=True, stable=True).tolist()[:MOST_FACTS]
        return ", ".join(f"{names[k]} {format_number(float(p[place, k]))}" for k in worst if off[place, k] >= 0)

    return say_worst


def _select_worst(errors: Tensor, test: Tensor, patients: Tensor) -> list[Wrong]:
    """One example of each patient, on which the model is farthest off; the worst patients first."""
    worst: dict[int, Wrong] = {}
    for place, (row, patient, by) in enumerate(zip(test.tolist(), patients.tolist(), errors.tolist(), strict=True)):
        if patient not in worst or by > worst[patient].by:
            worst[patient] = Wrong(row, place, by)
    return sorted(worst.values(), key=lambda example: (-example.by, example.row))[:MOST_CASES]


def _build_tiles(cohort: Cohort, row: int, maps: tuple[Tensor, Tensor] | None, number: int) -> list[Tile]:
    """The image with its outlines, and, with a map over it, as the model saw it; none of a line of a table."""
    if cohort.images.dim() < 4:
        return []
    tiles = [build_tile(cohort, row)]
    if maps is not None:
        tiles.append(build_tile(cohort, row, maps[0][number], ", as the model saw it", maps[1][number]))
    return tiles


def _describe_features(features: Mapping[str, np.ndarray], row: int) -> str:
    """A line of a table in words: its numbers, and the values of its categories."""
    parts = [
        f"{name} {float(values[row]):.4g}" if " = " not in name else name
        for name, values in features.items()
        if " = " not in name or float(values[row]) > 0.5
    ]
    more = f" and {len(parts) - MOST_FACTS} more" if len(parts) > MOST_FACTS else ""
    return f"{' · '.join(parts[:MOST_FACTS])}{more}"


def _mean_of_known(dice: Sequence[float]) -> float:
    """The mean of the values that there are; NaN without any."""
    known = [value for value in dice if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
