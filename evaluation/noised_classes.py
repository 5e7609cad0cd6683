"""The noised histograms of more than two classes, or of cuts between ordered ones: made possible together, and drawn
again for bootstrap copies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evaluation.histograms import Floats
from evaluation.scale import project_onto_simplex
from evaluation.votes import Parts

STEPS = 60
"""Of bisection: each halves an interval."""


class Sums(NamedTuple):
    """Patients by cell. pairs: (..., K, 2, bins) by score row, (other, this) class or side of a cut, and bin;
    confusion: (..., C, C), of two classes not used; of_class: (..., C).
    """

    pairs: Floats
    confusion: Floats
    of_class: Floats


class Bounds(NamedTuple):
    """Least and most patients of each class, both (..., C)."""

    least: Floats
    most: Floats


def class_bounds(patients: int, class_patients: tuple[int, ...]) -> Bounds:
    """The bounds that the declared numbers allow; patients who can have no other class are the least of a class."""
    most = np.array(class_patients, dtype=np.float64)
    return Bounds(np.maximum(0.0, patients - (most.sum() - most)), most)


def cut_bounds(patients: int, class_patients: tuple[int, ...]) -> Bounds:
    """The bounds that the declared numbers of patients by their highest grade allow: a patient may have images of every
    grade up to it, and counts in equal parts.
    """
    most = np.cumsum(np.array(class_patients, dtype=np.float64)[::-1])[::-1]
    return Bounds(np.zeros_like(most), np.minimum(most, patients))


def project_sums(own_class: Floats, rest: Floats, confusion: Floats, how: Parts, patients: int, bounds: Bounds) -> Sums:
    """The nearest sums that agree: no cell negative, `patients` in all, each class with one number of patients.

    That number is the mean of the three that were released, weighted by their exactness, brought into its bounds.

    Args:
        own_class: (..., C, bins) of this class; rest: (..., C, bins + 1) of all others, the last cell this class's own
            patients; confusion: (..., C, C); all with noise.
        how: the noise of each.
    """
    released_totals = np.stack([own_class.sum(axis=-1), rest[..., -1], confusion.sum(axis=-1)])
    variances = np.array([own_class.shape[-1] * how.own**2, how.rest**2, confusion.shape[-1] * how.confusion**2])
    mean = np.average(released_totals, axis=0, weights=1 / variances if variances.all() else None)
    of_class = project_within_bounds(mean, bounds, patients)
    other_patients = np.maximum(patients - of_class, 0.0)
    pairs = np.stack(
        [project_onto_simplex(rest[..., :-1], other_patients), project_onto_simplex(own_class, of_class)], axis=-2
    )
    return Sums(pairs, project_onto_simplex(confusion, of_class), of_class)


def project_within_bounds(values: Floats, bounds: Bounds, total: float) -> Floats:
    """The nearest (..., C) between the bounds that sum to `total`: all moved by one number, then cut, by bisection."""
    spread = np.abs(values).max(axis=-1, keepdims=True) + bounds.most.max(axis=-1, keepdims=True)
    low, high = -spread, spread
    for _ in range(STEPS):
        middle = (low + high) / 2
        over = np.clip(values + middle, bounds.least, bounds.most).sum(axis=-1, keepdims=True) > total
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.asarray(np.clip(values + low, bounds.least, bounds.most), dtype=np.float64)


def draw_sum_copies(
    sums: Sums, how: Parts, patients: int, bounds: Bounds, copies: int, generator: np.random.Generator
) -> Sums:
    """Sums of `copies` parametric bootstrap samples, (B, ...): patients drawn from these sums, then new noise, then the
    projection of `project_sums`.

    A drawn patient has one class. Given how many have each, the histograms are drawn one by one: which patient is in
    two of them was not released.
    """
    number = generator.multinomial(patients, _normalise_shares(sums.of_class), size=copies)
    own_class, rest, confusion = (
        generator.multinomial(n, _normalise_shares(each)).astype(np.float64)
        for n, each in (
            (number, sums.pairs[:, 1]),
            (patients - number, sums.pairs[:, 0]),
            (number, sums.confusion),
        )
    )
    shift = number - sums.of_class  # other patients were drawn, so other numbers are declared
    moved = Bounds(*(np.clip(bound + shift, 0, patients) for bound in bounds))
    rest = np.concatenate([rest, number[..., None]], axis=-1)
    parts = zip((own_class, rest, confusion), (how.own, how.rest, how.confusion), strict=True)
    own_class, rest, confusion = (each + noise * generator.standard_normal(each.shape) for each, noise in parts)
    return project_sums(own_class, rest, confusion, how, patients, moved)


def project_cuts(cuts: Floats, confusion: Floats, how: Parts, patients: int, bounds: Bounds) -> Sums:
    """As `project_sums`, of cuts between ordered classes.

    How many patients reach a cut is told by its histogram, as half of all and half the difference of its sides, and by
    the rows of the confusion; the mean of both is weighted by their exactness. What two neighbouring cuts differ by is
    a class.

    Args:
        cuts: (..., C - 1, 2, bins) below and from each cut on; confusion: (..., C, C); both with noise.
        how: the noise of each.
    """
    sides, rows = cuts.sum(axis=-1), confusion.sum(axis=-1)
    from_above = np.cumsum(rows[..., ::-1], axis=-1)[..., ::-1]
    differences = np.stack(
        [sides[..., 1] - sides[..., 0], 2 * from_above[..., 1:] - from_above[..., :1]]  # of patients, twice the half
    )
    variances = np.array([2 * cuts.shape[-1] * how.own**2, confusion.shape[-1] ** 2 * how.confusion**2])
    mean = (patients + np.average(differences, axis=0, weights=1 / variances if variances.all() else None)) / 2
    reached = np.concatenate([np.full_like(mean[..., :1], patients), mean, np.zeros_like(mean[..., :1])], axis=-1)
    of_class = project_within_bounds(reached[..., :-1] - reached[..., 1:], bounds, patients)
    above = np.cumsum(of_class[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    totals = np.stack([np.maximum(patients - above, 0.0), above], axis=-1)
    return Sums(project_onto_simplex(cuts, totals), project_onto_simplex(confusion, of_class), of_class)


def draw_cut_copies(
    sums: Sums, how: Parts, patients: int, bounds: Bounds, copies: int, generator: np.random.Generator
) -> Sums:
    """As `draw_sum_copies`, of cuts between ordered classes."""
    number = generator.multinomial(patients, _normalise_shares(sums.of_class), size=copies)
    above = np.cumsum(number[:, ::-1], axis=1)[:, ::-1][:, 1:]
    sides = np.stack([patients - above, above], axis=-1)
    cuts, confusion = (
        generator.multinomial(n, _normalise_shares(each)).astype(np.float64)
        for n, each in ((sides, sums.pairs), (number, sums.confusion))
    )
    shift = number - sums.of_class  # other patients were drawn, so other numbers are declared
    moved = Bounds(*(np.clip(bound + shift, 0, patients) for bound in bounds))
    cuts = cuts + how.own * generator.standard_normal(cuts.shape)
    confusion = confusion + how.confusion * generator.standard_normal(confusion.shape)
    return project_cuts(cuts, confusion, how, patients, moved)


def _normalise_shares(counts: Floats) -> Floats:
    """(..., d) as shares that sum to 1; even where there is nothing."""
    total = counts.sum(axis=-1, keepdims=True)
    even = np.full_like(counts, 1 / counts.shape[-1])
    shares = np.divide(counts, total, out=even, where=total > 0)
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True), dtype=np.float64)
