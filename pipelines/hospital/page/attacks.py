"""Attacks of a hospital on its own models, as rows of its own page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from evaluation.attacks import MembershipRow
from pipelines.hospital.attacks import found_at_home
from pipelines.hospital.hospital import Hospital
from privacy.message import Json


def own_attacks(hospital: Hospital, methods: Sequence[Mapping[str, Json]]) -> Iterator[MembershipRow]:
    """What the hospital's attacks on its own models found; it stays here where the models have a guarantee."""
    for method in methods:
        result = found_at_home(hospital, method)
        if result is not None:
            yield MembershipRow(
                hospital.name,
                str(method["label"]),
                result.auc,
                result.low,
                result.high,
                result.control_auc,
                result.members,
                result.others,
                result.reason or "",
            )
