"""Patients as the units of privacy: which rows belong to each patient, and which of them a sample uses."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from privacy.dp.access import Rows
from privacy.dp.entropy import Source, draw_integers


class Units(NamedTuple):
    """A split by patient. order: (n,) rows, patient after patient. start, sizes: (N,) where each patient's begin and
    how many there are."""

    order: Tensor
    start: Tensor
    sizes: Tensor


Views: TypeAlias = Sequence[Tensor]
"""For each patient of a sample the numbers of the rows that are used, (K,); K is at least 1 and may differ."""


def units_of(rows: Rows) -> Units:
    """The patients of a split, in the order of their numbers."""
    _, count = torch.unique(rows.patient.cpu(), return_counts=True)
    order = torch.argsort(rows.patient.cpu(), stable=True)
    return Units(order, count.cumsum(0) - count, count)


def some_views(units: Units, patients: Tensor, views: int, source: Source = os.urandom) -> Views:
    """K rows of each patient (indices (U,)), drawn with replacement and independently of all other patients."""
    start, size = units.start[patients].unsqueeze(1), units.sizes[patients].unsqueeze(1)
    return list(units.order[start + draw_integers((len(patients), views), size, source)])


def all_views(units: Units, patients: Tensor) -> Views:
    """Every row of each patient once."""
    whose = torch.split(units.order, units.sizes.tolist())
    return [whose[patient] for patient in patients.tolist()]
