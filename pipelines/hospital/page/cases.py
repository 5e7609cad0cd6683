"""The test patients on whom the hospital's model is wrong or unsure, with their images, for its own page alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.cases import ALARM, MISSED, MIXED, MOST_CASES, MOST_UNSURE, OTHER_CLASS, UNSURE, Case, Cases
from evaluation.decision import Decision
from evaluation.tiles import Tile
from evaluation.wording import format_figures, format_number
from federation.findings import UNKNOWN, YES, decode_findings
from federation.task import STEPS
from pipelines.data.cohort import Cohort
from pipelines.data.label_numbers import read_range
from pipelines.data.stored import finding_names, label_names
from pipelines.hospital.home_floors import HomeFloor
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.kept import scores_name_of
from pipelines.hospital.page.looks import compute_case_maps
from pipelines.hospital.page.outlines import build_case_tiles, kept_values, open_outliner, select_case_slice
from pipelines.hospital.page.pictures import build_tile, describe_label, select_plane
from pipelines.hospital.page.slices import Around, count_views, draw_views, name_examples, select_around
from pipelines.hospital.page.table import read_features
from pipelines.hospital.page.tiles import in_words
from pipelines.hospital.segmentation import kind_of, words_of_kind
from pipelines.requests.methods import TableLine
from pipelines.runs.store import DiskFolder
from privacy.message import from_bytes
from privacy.release.gate import Refused

COMMAND = "python -m pipelines.review"
MOST_FACTS = 12  # values of a line of a table, or findings, that are named
SURE = 0.75
"""A probability of the given answer, from which on a right answer is not unsure."""


class Wrong(NamedTuple):
    """A patient's example on which a model is wrong most. row: in the cohort. place: among the test rows. by: how far
    the model is off; larger is worse. is_wrong: None = the answer is neither right nor wrong.
    """

    row: int
    place: int
    by: float
    is_wrong: bool | None = None


class Answers(NamedTuple):
    """A model's answers on the test rows. errors: (n,) how far each is off. wrong: (n,) bool; None = they are neither
    right nor wrong. order: what errors are, in words. describe: an answer in words. groups: headings of wrong answers.
    judge: a wrong answer's heading, and what it is in words.
    """

    errors: Tensor
    wrong: Tensor | None
    order: str
    describe: Callable[[int], str]
    groups: Sequence[str] = ()
    judge: Callable[[int], tuple[str, str]] = lambda _: ("", "")


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
    answers = _measure_errors(cohort, tensors["y"], tensors["probabilities"].double())
    worst = _find_worst(answers, test, cohort.patient[test])
    wrong = _select_cases(worst)
    chosen = [_select_views(cohort, example.row, len(wrong)) for example in wrong]
    shown_rows = [row for around in chosen for row in around.rows]
    maps = compute_case_maps(hospital, by_label.get(method), shown_rows)
    drawn = iter(range(len(shown_rows)))
    spoken = {row: answers.describe(place) for place, row in enumerate(test.tolist())}
    tiles = [
        [
            _build_tiles(cohort, row, plane, maps, next(drawn), spoken[row])
            for row, plane in zip(around.rows, around.planes, strict=True)
        ]
        for around in chosen
    ]
    views, keys = draw_views(cohort, chosen, tiles)
    features = read_features(cohort)
    shown = [
        Case(
            code=cohort.patients[int(cohort.patient[example.row])],
            label=describe_label(cohort, example.row),
            predicted=answers.describe(example.place),
            views=views[number],
            worst=chosen[number].worst,
            examples=chosen[number].examples,
            called=name_examples(cohort),
            facts=_describe_features(features, example.row),
            **dict(zip(("group", "outcome"), _judge(answers, example), strict=True)),
        )
        for number, example in enumerate(wrong)
    ]
    return Cases(
        *(run, method, answers.order, len(worst), shown, keys, describe_command(hospital)),
        counts=_count_groups(answers, worst),
        sure=SURE,
        example=words_of_kind(kind_of(cohort)).example,
        is_used=method in {decision.method for decision in decided},
    )


def _judge(answers: Answers, example: Wrong) -> tuple[str, str]:
    """The heading below which an example stands, and what its answer is; both empty if neither right nor wrong."""
    if example.is_wrong is None:
        return "", ""
    return answers.judge(example.place) if example.is_wrong else (UNSURE, UNSURE)


def _count_groups(answers: Answers, worst: Sequence[Wrong]) -> dict[str, int]:
    """Patients by heading; right and sure ones stand below none."""
    if answers.wrong is None:
        return {}
    groups = [_judge(answers, example)[0] for example in worst if example.is_wrong or _is_unsure(example)]
    return {heading: groups.count(heading) for heading in (*answers.groups, UNSURE)}


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
    most = count_views(outliner.cohort, len(worst))
    starts = [select_case_slice(outliner, int(values.patients[place])) for _, place in worst]
    chosen = [select_around(outliner.cohort, row, plane, most) for row, plane in starts]
    views, keys = draw_views(outliner.cohort, chosen, [build_case_tiles(outliner, around) for around in chosen])
    shown = [
        Case(
            code=outliner.cohort.patients[int(values.patients[place])],
            label="its mask",
            predicted=in_words(values.scores[place], structures, unit),
            views=views[number],
            worst=chosen[number].worst,
            examples=chosen[number].examples,
            called=name_examples(outliner.cohort),
        )
        for number, (_, place) in enumerate(worst)
    ]
    facts = (run, method, "by Dice, mean over structures", len(values.patients))
    is_used = method in {decision.method for decision in decided}
    return Cases(*facts, shown, keys, describe_command(hospital), is_used=is_used)


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


def _measure_errors(cohort: Cohort, y: Tensor, p: Tensor) -> Answers:
    """How far each answer is off, and whether it is wrong. y: (n,), p: (n, K) of the test rows."""
    if names := finding_names(cohort):
        states = decode_findings(y, len(names))
        off = (p - (states == YES).double()).abs().masked_fill(states == UNKNOWN, -1.0)
        errors = off.max(dim=1).values
        order = "by the probability of the known finding that is farthest off"
        judge = _judge_findings(names, states == YES, off > 0.5)
        return Answers(errors, errors > 0.5, order, _say_findings(names, p, off), (MIXED,), judge)
    if (number := read_range(cohort.recipe)) is not None:
        unit = number.shown_unit

        def say_number(place: int) -> str:
            return f"{format_figures(number.value_at(float(p[place, 0])))} {unit}".strip()

        return Answers((p[:, 0] - y.double() / STEPS).abs(), None, f"by the difference in {number.what}", say_number)
    classes = label_names(cohort)

    def say_class(place: int) -> str:
        top, true = int(p[place].argmax()), int(y[place])
        parts = [f"{classes[k]} {format_number(float(p[place, k]))}" for k in dict.fromkeys((top, true))]
        return ", ".join(parts)

    def judge_class(place: int) -> tuple[str, str]:
        if len(classes) == 2:
            return (MISSED, "Missed") if y[place] else (ALARM, "False alarm")
        return OTHER_CLASS, f"Taken for {classes[int(p[place].argmax())]}"

    errors = 1 - p[torch.arange(len(y)), y]
    order = "by the probability that it gives the class of the reference standard"
    groups = (MISSED, ALARM) if len(classes) == 2 else (OTHER_CLASS,)
    return Answers(errors, p.argmax(dim=1) != y, order, say_class, groups, judge_class)


def _say_findings(names: Sequence[str], p: Tensor, off: Tensor) -> Callable[[int], str]:
    """A function that says the findings that are farthest off, the worst first."""

    def say_worst(place: int) -> str:
        worst = off[place].argsort(descending=True, stable=True).tolist()[:MOST_FACTS]
        return ", ".join(f"{names[k]} {format_number(float(p[place, k]))}" for k in worst if off[place, k] >= 0)

    return say_worst


def _judge_findings(names: Sequence[str], has: Tensor, is_wrong: Tensor) -> Callable[[int], tuple[str, str]]:
    """A function that says which findings are missed, and of which there is a false alarm. has, is_wrong: (n, K)."""

    def judge(place: int) -> tuple[str, str]:
        kinds = {"Missed": is_wrong[place] & has[place], "False alarm": is_wrong[place] & ~has[place]}
        named = {word: [name for name, holds in zip(names, each, strict=True) if holds] for word, each in kinds.items()}
        return MIXED, ". ".join(f"{word}: {', '.join(each)}" for word, each in named.items() if each)

    return judge


def _find_worst(answers: Answers, test: Tensor, patients: Tensor) -> list[Wrong]:
    """One example of each patient: a wrong one where there is any, and of these the one that is farthest off. Patients
    in the same order: wrong ones first, the worst first.
    """
    worst: dict[int, Wrong] = {}
    wrong = [None] * len(test) if answers.wrong is None else answers.wrong.tolist()
    rows = zip(test.tolist(), patients.tolist(), answers.errors.tolist(), wrong, strict=True)
    for place, (row, patient, by, is_wrong) in enumerate(rows):
        example = Wrong(row, place, by, is_wrong)
        if patient not in worst or _rank(example) < _rank(worst[patient]):
            worst[patient] = example
    return sorted(worst.values(), key=_rank)


def _rank(example: Wrong) -> tuple[bool, float, int]:
    """Sorts examples, the worst first."""
    return example.is_wrong is False, -example.by, example.row


def _is_unsure(example: Wrong) -> bool:
    """Whether an answer is right, but by a probability below `SURE`."""
    return example.is_wrong is False and example.by > 1 - SURE


def _select_cases(worst: Sequence[Wrong]) -> list[Wrong]:
    """Of examples in order those that a page shows: no right one that is sure."""
    unsure = [example for example in worst if _is_unsure(example)]
    return [*[example for example in worst if example.is_wrong is not False][:MOST_CASES], *unsure[:MOST_UNSURE]]


def _select_views(cohort: Cohort, row: int, cases: int) -> Around:
    """The images that a case shows; none of lines of a table."""
    if cohort.images.dim() < 4:
        return Around((), (), 0, 0)
    return select_around(cohort, row, select_plane(cohort, row), count_views(cohort, cases))


def _build_tiles(
    cohort: Cohort, row: int, plane: int | None, maps: tuple[Tensor, Tensor] | None, number: int, answer: str
) -> list[Tile]:
    """An example, and beside it the model's map over what the model saw, where there is one. number: its place among
    the maps. answer: the model's, in words.
    """
    if maps is None:
        return [build_tile(cohort, row, text=f", model: {answer}", plane=plane)]
    seen = build_tile(cohort, row, maps[0][number], f", as the model saw it: {answer}", maps[1][number])
    return [build_tile(cohort, row), seen]


def _describe_features(features: Mapping[str, np.ndarray], row: int) -> str:
    """A line of a table in words: its numbers, and the values of its categories."""
    parts = [
        f"{name} {format_figures(float(values[row]))}" if " = " not in name else name
        for name, values in features.items()
        if " = " not in name or float(values[row]) > 0.5
    ]
    more = f" and {len(parts) - MOST_FACTS} more" if len(parts) > MOST_FACTS else ""
    return f"{' · '.join(parts[:MOST_FACTS])}{more}"


def _mean_of_known(dice: Sequence[float]) -> float:
    """The mean of the values that there are; NaN without any."""
    known = [value for value in dice if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
