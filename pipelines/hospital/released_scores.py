"""From a model's answers for patients to the scores that leave, and to those that stay: one path for every request.

`evaluate`, `route` and `benchmark` differ in who made the model and in whose patients are scored. What leaves is the
same: histograms of probabilities or of errors, exact or noised, or sums of overlaps or errors, with bootstrap copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from evaluation.findings import count_finding_numbers, count_findings, release_findings
from evaluation.findings import to_tensors as to_finding_tensors
from evaluation.histograms import Floats, Ints, count_class_patients, count_scores, to_tensors
from evaluation.masks import GRID, Values
from evaluation.noised import to_tensors as noised_tensors
from evaluation.numbers import Errors, release_errors, sum_errors
from evaluation.numbers import to_tensors as to_error_tensors
from evaluation.votes import release_histograms
from federation.findings import decode_findings
from federation.task import STEPS
from pipelines.data.cohort import Cohort
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.hospital.released_counts import need_counts
from pipelines.hospital.segmentation import FLOOR, patient_scores, reply_tensors, score_patients
from pipelines.hospital.validation_scores import keep_scores
from pipelines.models.answers import Masks
from privacy.dp.access import Rows
from privacy.dp.events import NON_PRIVATE, Event, Part, compose_events
from privacy.dp.mechanisms import vote_histogram
from privacy.message import Json


class ReleasedScores(NamedTuple):
    """tensors, facts, event: of the reply. patient_scores: scores of single patients, which stay at the hospital."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Json]
    event: Event
    patient_scores: Mapping[str, Tensor]


class ScoreNoise(NamedTuple):
    """multiplier: all histograms of a reply together cost what one with this noise does. cut: the division into splits
    whose test patients are scored; None = all patients are.
    """

    multiplier: float
    cut: str | None


def score_labels(
    hospital: Hospital,
    rows: Rows,
    probabilities: Tensor,
    copies: int,
    noise: ScoreNoise | None = None,
    *,
    ordered: bool = False,
) -> ReleasedScores:
    """Scores of a model that gives labels.

    rows: the patients that are scored. probabilities: (n, classes), a row each. noise: None = exact histograms and
    confusion counts, in which one patient's part is not bounded. ordered: whether each class is more than the one
    before it.
    """
    kept_scores = keep_scores(rows, probabilities)
    tested = Rows(kept_scores["probabilities"], kept_scores["y"], kept_scores["patient"])
    if noise is not None:
        return add_noise_to_scores(hospital, tested, noise, ordered=ordered)._replace(patient_scores=kept_scores)
    counts = count_scores(
        tested.y.numpy(),
        tested.x.numpy(),
        tested.patient.numpy(),
        copies=copies,
        seed=hospital.bootstrap_seed(),
        site=hospital.name,
        ordered=ordered,
    )
    return ReleasedScores(to_tensors(counts), {}, NON_PRIVATE, kept_scores)


def score_numbers(
    hospital: Hospital,
    rows: Rows,
    places: Tensor,
    copies: int,
    noise: ScoreNoise | None = None,
    guess: float | None = None,
) -> ReleasedScores:
    """Scores of a model that gives a number.

    rows: the patients that are scored. places: (n, 1), where in the range each prediction lies. noise: None = exact
    sums of errors, in which one patient's part is not bounded. guess: a place that is scored beside the model, for all
    rows.
    """
    kept_scores = keep_scores(rows, places, "regression")
    if noise is not None:
        return _add_noise_to_errors(hospital, kept_scores, noise)._replace(patient_scores=kept_scores)
    tensors = to_error_tensors(_sum_kept_errors(hospital, kept_scores, copies))
    if guess is not None:
        floor = {**kept_scores, "probabilities": torch.full_like(kept_scores["probabilities"], guess)}
        guessed = to_error_tensors(_sum_kept_errors(hospital, floor, copies))
        tensors |= {f"{FLOOR}{name}": tensor for name, tensor in guessed.items()}
        kept_scores = {**kept_scores, **{f"{FLOOR}{name}": tensor for name, tensor in floor.items()}}
    return ReleasedScores(tensors, {}, NON_PRIVATE, kept_scores)


def _sum_kept_errors(hospital: Hospital, kept_scores: Mapping[str, Tensor], copies: int) -> Errors:
    """Sums of the errors of kept scores, and of their bootstrap copies."""
    return sum_errors(
        kept_scores["y"].numpy() / STEPS,
        kept_scores["probabilities"][:, 0].double().numpy(),
        kept_scores["patient"].numpy(),
        copies=copies,
        seed=hospital.bootstrap_seed(),
        site=hospital.name,
    )


def score_findings(
    hospital: Hospital, rows: Rows, probabilities: Tensor, copies: int, noise: ScoreNoise | None = None
) -> ReleasedScores:
    """Scores of a model that gives several findings.

    rows: the patients that are scored. probabilities: (n, findings). noise: None = exact histograms, in which one
    patient's part is not bounded; otherwise numbers of patients are declared public, or, with a budget, those released.
    """
    stored_scores = keep_scores(rows, probabilities, "findings")
    states, p, who = split_findings(stored_scores)
    if noise is None:
        counts = count_findings(states, p, who, copies=copies, seed=hospital.bootstrap_seed(), site=hospital.name)
        return ReleasedScores(to_finding_tensors(counts), {}, NON_PRIVATE, stored_scores)
    known, splits, events = need_counts(hospital), SPLITS if noise.cut is None else ("test",), list[Event]()

    numbers = count_finding_numbers(states, who) if known is None else known.of_findings(splits)
    tensors = release_findings(
        states, p, who, noise=noise.multiplier, numbers=numbers, add_noise=partial(_release_histogram, events)
    )
    patients = len(np.unique(who)) if known is None else sum(map(known.patients, splits))
    facts: dict[str, Json] = {
        "noise": noise.multiplier,
        "patients": patients,
        "images": len(states) if known is None else patients,
        "finding_patients": [*numbers],
    }
    event = compose_events(events)
    booked = compose_events([hospital.counts, event if noise.cut is None else Part(noise.cut, "test", event)])
    return ReleasedScores(tensors, facts, booked, stored_scores)


def split_findings(stored_scores: Mapping[str, Tensor]) -> tuple[Ints, Floats, Ints]:
    """Stored scores as `count_findings` takes them: states (n, K), probabilities (n, K), patients (n,)."""
    p = stored_scores["probabilities"].double().numpy()
    return decode_findings(stored_scores["y"], p.shape[1]).numpy(), p, stored_scores["patient"].numpy()


def _add_noise_to_errors(hospital: Hospital, kept_scores: Mapping[str, Tensor], noise: ScoreNoise) -> ReleasedScores:
    """The noised histogram of errors, to which a patient adds 1 in total. Numbers of patients as in
    `add_noise_to_scores`.
    """
    known, events = need_counts(hospital), list[Event]()
    splits = SPLITS if noise.cut is None else ("test",)

    release = release_errors(
        kept_scores["y"].numpy() / STEPS,
        kept_scores["probabilities"][:, 0].double().numpy(),
        kept_scores["patient"].numpy(),
        partial(_release_histogram, events, deviation=noise.multiplier),
    )
    number = len(torch.unique(kept_scores["patient"])) if known is None else sum(map(known.patients, splits))
    images = len(kept_scores["y"]) if known is None else number
    facts: dict[str, Json] = {"noise": noise.multiplier, "patients": number, "images": images}
    event = compose_events(events)
    booked = compose_events([hospital.counts, event if noise.cut is None else Part(noise.cut, "test", event)])
    return ReleasedScores({"error_bins": torch.from_numpy(release).float()}, facts, booked, {})


def score_masks(
    hospital: Hospital,
    cohort: Cohort,
    rows: Rows,
    masks: Sequence[Masks],
    classes: int,
    copies: int,
    floor: Values | None = None,
) -> tuple[ReleasedScores, Values]:
    """Scores of a model that gives masks, and the same patient by patient.

    masks: of each network whose scores are averaged. floor: scores of the mean mask.
    """
    values = [score_patients(cohort, rows, each.classes, classes, each.expected) for each in masks]
    mean = values[0] if len(values) == 1 else average_values(values)
    tensors = reply_tensors(hospital, mean, floor, copies)
    return ReleasedScores(tensors, {}, NON_PRIVATE, patient_scores(mean, floor)), mean


def average_values(values: Sequence[Values]) -> Values:
    """Each patient's scores, averaged over the models for which they have a value; sizes over all of them."""
    scores = np.stack([value.scores for value in values])
    known = np.isfinite(scores).sum(axis=0)
    mean = np.where(known > 0, np.nansum(scores, axis=0) / np.maximum(known, 1), np.nan)
    sizes = [value.sizes for value in values if value.sizes is not None]
    mean_size = np.mean(sizes, axis=0) if len(sizes) == len(values) else None
    return replace(values[0], scores=np.round(mean * GRID) / GRID, sizes=mean_size)


def add_noise_to_scores(
    hospital: Hospital, tested: Rows, noise: ScoreNoise, *, ordered: bool = False
) -> ReleasedScores:
    """Noised histograms, to each of which a patient adds 1 in total. The number of patients is declared public, or,
    with a budget, the released one.

    tested: probabilities as x, and the true classes as y. ordered: as of `score_labels`.
    """
    y, whose, known = tested.y, tested.patient, need_counts(hospital)
    splits, classes = SPLITS if noise.cut is None else ("test",), tested.x.shape[1]
    each = None if known is None else [known.of_classes(split) for split in splits]
    class_patients = (
        list(count_class_patients(y.numpy(), whose.numpy(), classes, ordered=ordered))
        if each is None
        else [*map(sum, zip(*each, strict=True))]
    )
    number = len(torch.unique(whose)) if known is None else sum(map(known.patients, splits))
    events: list[Event] = []

    release = release_histograms(
        y.numpy(),
        tested.x.numpy(),
        whose.numpy(),
        noise=noise.multiplier,
        class_patients=class_patients,
        number=number,
        add_noise=partial(_release_histogram, events),
        ordered=ordered,
    )
    facts: dict[str, Json] = {
        "noise": noise.multiplier,
        "patients": number,
        "images": len(y) if known is None else sum(class_patients),
        "class_patients": list(class_patients),
    }
    event = compose_events(events)
    booked = compose_events([hospital.counts, event if noise.cut is None else Part(noise.cut, "test", event)])
    return ReleasedScores(noised_tensors(release), facts, booked, {})


def _release_histogram(events: list[Event], votes: Ints, deviation: float) -> Floats:
    """The noised sum of patients' votes (P, bins); its event joins `events`."""
    histogram = vote_histogram(torch.from_numpy(votes), noise_multiplier=deviation)
    events.append(histogram.event)
    return histogram.value.numpy()
