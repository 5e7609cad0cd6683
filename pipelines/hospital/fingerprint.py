"""A hospital measures its studies as they are, before anything is resampled: the request `fingerprint`.

Without a promise to patients, or where the policy declares the fingerprint public, percentiles over studies leave as
they are. With a budget the unit is a patient: of each quantity a patient's value is the median over their studies, and
percentiles over patients are found by comparisons with Gaussian noise between declared bounds
(`privacy.dp.quantiles`). Neighbours differ by one patient more or less; all comparisons and the noised number of
patients together cost `SHARE` of the budget's squared mu, and are booked as one event before the reply leaves.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from pipelines.data.cohort import find_named_patients, list_patient_names
from pipelines.data.examples import open_source
from pipelines.data.images import Pictures, Slices, Volumes
from pipelines.data.intake import limit_readers, measure_study, run_in_order
from pipelines.data.measures import MeasuredStudy, summarize_studies
from pipelines.data.partition import partition_patients
from pipelines.data.study import Rejected
from pipelines.hospital.files import files_of, settings_of
from pipelines.hospital.hospital import Context, Done, Hospital
from pipelines.hospital.private_limits import check_affordable
from pipelines.hospital.quarantine import add_to_linkage
from pipelines.requests.fingerprint import Fingerprint, Measured, MeasuredWithNoise
from privacy.dp.events import NON_PRIVATE, Declared, Event, Gaussian, SelfComposed, describe_event
from privacy.dp.mechanisms import vote_histogram
from privacy.dp.quantiles import noisy_quantile
from privacy.release.gate import Refused
from privacy.release.policy import Budget

SHARE = 0.1
"""The noised fingerprint's share of the budget's squared mu."""
COMPARISONS = 6
"""For each quantile: the declared range is halved so often."""
SPACING_MM = (0.1, 20.0)
"""Declared: between them every spacing is told, whatever it is, as `images` allows them."""
EXTENT = (8.0, 1024.0)
"""Declared, of extents in mm, and of pictures in pixels."""
MEDIAN, FINE = 0.5, 0.25
"""Shares of patients below. Quantiles farther from the middle are lost in noise: at the 10th percentile of 50 patients
the sum can fall to -5 at most, below any noise that a budget of epsilon 8 pays for."""


def measure_patients(hospital: Hospital, context: Context[Fingerprint]) -> Done[Measured | MeasuredWithNoise]:
    """Measure all studies of the patients that may be used and that no list names as test patients.

    Raises:
        Refused: `malformed_settings`; `bad_source`; `no_studies`: none could be measured, where none has noise;
            `too_many_rejected`: with a budget, more than its `max_rejected`; or the code of the gate, before the work.
    """
    question, budget = context.question, hospital.policy.budget
    if question.target != "masks" and question.classes not in ([], [question.target]):
        raise Refused("malformed_settings") from ValueError(f"a {question.target} is one class of that name")
    is_noised = budget is not None and not hospital.policy.declares("fingerprint")
    event = _choose_event(hospital, question)
    if budget is not None:
        check_affordable(hospital, [event], context.call)
    studies, rejected = _measure_studies(hospital, question)
    share = len(rejected) / max(1, len(rejected) + len(studies))
    if hospital.policy.promises and share > settings_of(hospital).max_rejected:
        raise Refused("too_many_rejected") from ValueError(f"{len(rejected)} studies; why: linkage.json")
    if is_noised and budget is not None:
        return Done(_noise_figures(question, studies, noise_of(budget, question.images)), describe_event(event))
    if not studies:
        raise Refused("no_studies") from ValueError("no study with a mask could be measured; why: linkage.json")
    reasons = dict(sorted(Counter(study.reason for study in rejected).items()))
    figures = asdict(summarize_studies(studies, question.classes or [question.target]))
    return Done(Measured(rejected_by_reason=reasons, **figures), describe_event(event))


def _choose_event(hospital: Hospital, question: Fingerprint) -> Event:
    """What the reply is to patients."""
    budget = hospital.policy.budget
    if budget is None:
        return NON_PRIVATE
    if hospital.policy.declares("fingerprint"):
        return Declared("fingerprint")
    return SelfComposed(Gaussian(noise_of(budget, question.images)), count_comparisons(question.images))


def count_comparisons(images: str) -> int:
    """How many sums over patients get noise: those of each quantile, and the number of patients."""
    return COMPARISONS * len(_list_quantiles(images)) + 1


@lru_cache(maxsize=64)
def noise_of(budget: Budget, images: str) -> float:
    """Standard deviation of a comparison's noise, in what one patient can change, for `SHARE` of a budget."""
    from privacy.dp.accounting import mu_of  # slow to import

    return math.sqrt(count_comparisons(images) / SHARE) / mu_of(budget.epsilon, budget.delta)


def _measure_studies(hospital: Hospital, question: Fingerprint) -> tuple[list[MeasuredStudy], list[Rejected]]:
    """The studies, and those that could not be measured, which are added to linkage.json."""
    settings, files = settings_of(hospital), files_of(hospital)
    try:
        opened = open_source(
            files.source, files.labels, _build_images(question), files.gland, question.target, tuple(question.classes)
        )
    except ValueError as error:
        raise Refused("bad_source") from error
    names = list_patient_names(opened.waiting, hospital.key())
    left_out = {*find_named_patients(settings.exclude, names), *find_named_patients(settings.test, names)}
    waiting = [study for study in opened.waiting if study.patient not in left_out]
    studies, rejected = list[MeasuredStudy](), [*opened.rejected]
    for result in run_in_order(waiting, measure_study, readers=limit_readers(waiting, settings.readers)):
        hospital.pause()
        rejected += [result] if isinstance(result, Rejected) else []
        studies += [] if isinstance(result, Rejected) else [result]
    add_to_linkage(hospital, rejected, {})
    return _select_part(hospital, studies), rejected


def _build_images(question: Fingerprint) -> Volumes | Slices | Pictures:
    """Settings that open the source; their sizes are not used."""
    if question.images == "pictures":
        return Pictures()
    return Volumes(values=question.values) if question.images == "volumes" else Slices(values=question.values)


def _select_part(hospital: Hospital, studies: list[MeasuredStudy]) -> list[MeasuredStudy]:
    """Of a source that a simulation deals out, the studies of this hospital's patients."""
    part = settings_of(hospital).part
    if part is None:
        return studies
    kinds = {study.patient: 0 for study in studies}
    for study in studies:
        kinds[study.patient] = max(kinds[study.patient], int(study.foreground.size > 0))
    places = partition_patients(kinds, part)
    return [study for study in studies if places[study.patient] == part.number]


class Quantile(NamedTuple):
    """A quantile that is asked for under a budget: of which quantity, the share of patients below, and its range."""

    quantity: str
    share: float
    bounds: tuple[float, float]


def _list_quantiles(images: str) -> tuple[Quantile, ...]:
    """The least that a plan needs."""
    extents = ("rows", "columns") if images == "pictures" else ("depth", "plane")
    of_extents = tuple(Quantile(f"extent {along}", MEDIAN, EXTENT) for along in extents)
    if images == "pictures":
        return of_extents
    spacings = [("spacing depth", MEDIAN), ("spacing depth", FINE), ("spacing plane", MEDIAN)]
    return (*(Quantile(quantity, share, SPACING_MM) for quantity, share in spacings), *of_extents)


def _measure_quantities(study: MeasuredStudy) -> dict[str, float]:
    """One study's quantities, of which `_list_quantiles` speaks."""
    if len(study.voxels) == 2:
        return {"extent rows": study.extent[0], "extent columns": study.extent[1]}
    return {
        "spacing depth": study.spacing[0],
        "spacing plane": math.sqrt(study.spacing[1] * study.spacing[2]),
        "extent depth": study.extent[0],
        "extent plane": max(study.extent[1:]),
    }


def _noise_figures(question: Fingerprint, studies: Sequence[MeasuredStudy], noise: float) -> MeasuredWithNoise:
    """Every quantile and the number of patients, each with noise, also where there are no patients."""
    of_patient: dict[str, list[dict[str, float]]] = {}
    for study in studies:
        of_patient.setdefault(study.patient, []).append(_measure_quantities(study))

    def find_quantile(quantile: Quantile) -> float:
        values = [float(np.median([each[quantile.quantity] for each in rows])) for rows in of_patient.values()]
        low, high = quantile.bounds
        return noisy_quantile(
            torch.tensor(values, dtype=torch.float64),
            quantile=quantile.share,
            low=low,
            high=high,
            comparisons=COMPARISONS,
            noise_multiplier=noise,
        ).value

    known = {
        (quantile.quantity, quantile.share): find_quantile(quantile) for quantile in _list_quantiles(question.images)
    }
    patients = float(vote_histogram(torch.ones(len(of_patient), 1), noise_multiplier=noise).value[0])
    return MeasuredWithNoise(
        noised_patients=patients, noise=noise, comparisons=COMPARISONS, **_arrange_by_axis(known, question.images)
    )


def _arrange_by_axis(known: Mapping[tuple[str, float], float], images: str) -> dict[str, dict[str, list[float]]]:
    """Quantiles as percentiles by axis: what is known of the plane holds for rows and columns."""
    if images == "pictures":
        extent = [known["extent rows", MEDIAN], known["extent columns", MEDIAN]]
        return {"spacing": {"p25": [1.0, 1.0], "p50": [1.0, 1.0]}, "extent": {"p50": extent}}
    plane = known["spacing plane", MEDIAN]
    return {
        "spacing": {
            name: [known["spacing depth", share], plane, plane] for name, share in (("p25", FINE), ("p50", MEDIAN))
        },
        "extent": {"p50": [known["extent depth", MEDIAN], *2 * [known["extent plane", MEDIAN]]]},
    }
