"""Patients as the units of privacy: which rows belong to each patient, and which of them a sample uses."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
from torch import Tensor

from privacy.dp.access import Rows
from privacy.dp.entropy import Source, choices


class Units(NamedTuple):
    """A split by patient. order: (n,) rows, patient after patient. start, sizes: (N,) where each patient's begin and
    how many there are."""

    order: Tensor
    start: Tensor
    sizes: Tensor


class Views(NamedTuple):
    """Rows of U patients: (U, K). weight: (U, K), each patient's sum to 1: a patient's rows weigh the same."""

    rows: Tensor
    weight: Tensor


def units_of(rows: Rows) -> Units:
    """The patients of a split, in the order of their numbers."""
    _, count = torch.unique(rows.patient.cpu(), return_counts=True)
    order = torch.argsort(rows.patient.cpu(), stable=True)
    return Units(order, count.cumsum(0) - count, count)


def some_views(units: Units, patients: Tensor, views: int, source: Source = os.urandom) -> Views:
    """K rows of each patient (indices (U,)), drawn with replacement and independently of all other patients."""
    start, size = units.start[patients].unsqueeze(1), units.sizes[patients].unsqueeze(1)
    shape = (len(patients), views)
    return Views(units.order[start + choices(shape, size, source)], torch.full(shape, 1.0 / views, dtype=torch.float64))


def all_views(units: Units, patients: Tensor) -> Views:
    """Every row of each patient once; shorter lists are filled up with rows of weight 0."""
    start, size = units.start[patients, None], units.sizes[patients, None]
    longest = int(size.max()) if len(size) else 1
    position = torch.arange(longest)[None, :]
    inside = position < size
    return Views(units.order[start + torch.where(inside, position, 0)], inside.double() / size)
