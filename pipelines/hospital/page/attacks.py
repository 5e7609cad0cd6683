"""Attacks of a hospital on its own models, as rows of its own page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evaluation.attacks import MembershipRow
from pipelines.hospital.attacks import read_membership
from pipelines.hospital.hospital import Hospital
from pipelines.requests.methods import TableLine


def own_attacks(hospital: Hospital, methods: Sequence[TableLine]) -> Iterator[MembershipRow]:
    """What the hospital's attacks on its own models found; it stays here where the models have a guarantee."""
    for method in methods:
        result = read_membership(hospital, method)
        if result is not None:
            yield MembershipRow(
                hospital.name,
                method["label"],
                result.auc,
                result.low,
                result.high,
                result.control_auc,
                result.members,
                result.others,
                result.reason or "",
            )
