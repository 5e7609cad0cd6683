"""The moments of a model's channels over this hospital's training patients, for hospitals that did not train it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from federation.matching import (
    ChannelMoments,
    count_free,
    free_moments,
    has_matchable_norms,
    measure_channels,
    order_norms,
    restore_moments,
    weigh_rows,
)
from federation.parameters import loaded
from pipelines.data.stored import of_patients
from pipelines.hospital.hospital import Hospital, rows_of
from pipelines.hospital.kept import cohort_of, cut_of
from pipelines.hospital.opening import Opening
from pipelines.hospital.private_limits import check_affordable
from pipelines.hospital.released_counts import need_counts
from pipelines.settings.route import Matched
from privacy.dp.access import Rows
from privacy.dp.channels import noised_mean
from privacy.dp.events import NON_PRIVATE, Event, Gaussian, Part, compose_events
from privacy.dp.units import all_views, units_of
from privacy.message import Call, Params
from privacy.release.gate import Refused

LOOKED = "the moments of a model's channels were measured on their images"


class ReleasedMoments(NamedTuple):
    """moments: with noise if they were asked for so. patients: over how many. event: what it costs a patient."""

    moments: ChannelMoments
    patients: int
    event: Event


def release_moments(hospital: Hospital, start: Opening, params: Params, how: Matched, call: Call) -> ReleasedMoments:
    """The moments of a model's channels over this hospital's training patients.

    With noise, every patient passes alone, and is counted in what the hospital released.

    Raises:
        Refused: `malformed_moments`: the network has no norms that can be matched, or the run is private and the
            moments would be exact; as `need_counts`; or with the code of `privacy.release.gate.find_unaffordable`,
            before any work.
    """
    module = loaded(start.algorithm.network(start.task), params).to(hospital.device).eval()
    if not has_matchable_norms(module):
        raise Refused("malformed_moments") from ValueError("the network has no norm with a scale for each channel")
    if how.noise is None and start.protection is not None:
        raise Refused("malformed_moments") from ValueError(
            "a private run releases nothing of training patients without noise: say release: dp"
        )
    cohort = cohort_of(hospital, start.cohort)
    event = NON_PRIVATE if how.noise is None else Part(cut_of(cohort), "train", Gaussian(how.noise))
    known = need_counts(hospital, how.delta if how.noise is not None else None)
    check_affordable(hospital, [event], call)
    rows = rows_of(of_patients(cohort), hospital.device, start.target, scratch=hospital.scratch())["train"]
    rows, norms = start.task.cut_rows(rows), order_norms(module, start.task.trained_inputs, how.norms)
    patients = len(torch.unique(rows.patient)) if known is None else known.patients("train")
    if how.noise is None:
        if not len(rows.y):
            raise Refused("malformed_moments") from ValueError("this hospital has no training patients")
        moments = measure_channels(module, rows.x, weigh_rows(rows.patient), norms)
    else:
        moments = _noise_moments(module, rows, norms, patients, how.noise)
    return ReleasedMoments(moments, patients, compose_events([hospital.counts, event]))


def _noise_moments(module: nn.Module, rows: Rows, norms: dict[str, int], patients: int, noise: float) -> ChannelMoments:
    """Moments with noise: the contrasts of each patient's, cut and added up. patients: as released."""
    units = units_of(rows)

    def look(x: Tensor) -> Tensor:
        return free_moments(module, measure_channels(module, x, weigh_rows(torch.zeros(len(x))), norms), norms)

    released = noised_mean(
        look,
        rows.x,
        all_views(units, torch.arange(len(units.sizes))),
        width=count_free(module, norms),
        channels=sum(norms.values()),
        count=patients,
        noise=noise,
    )
    return restore_moments(module, released.mean, norms, released.deviation)
