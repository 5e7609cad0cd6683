"""Out-of-distribution test of a study: its Mahalanobis distance from the training studies, and the p-value of that.

A study is described by numbers: of its images, or of a network's features. The reference is the mean and the
covariance of training studies, shrunk as in Ledoit and Wolf, J Multivariate Anal 2004 (88:365), so that it can be
inverted with few of them. The distance of a study of a new patient is estimated by leaving
training patients out, a tenth at a time; its logarithm is assumed to be normally distributed, and a new
study's p-value is that of a prediction from this number of patients (Student's t). A p-value by ranks needs no such
assumption, but cannot fall below 1 / (patients + 1), so a hospital with fewer than 99 could never mark anything at 1 %.

Mahalanobis distances of features: Lee, Lee, Lee, Shin, A Simple Unified Framework for Detecting Out-of-Distribution
Samples, NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FEWEST = 5
"""Patients of a reference: four degrees of freedom."""
FOLDS = 10
MOST = 512
"""Largest number of features for a covariance; with more, variances only."""
PERCENTILES = (1, 10, 25, 50, 75, 90, 99)
BANDS = 7
NARROWEST = 0.1
"""Least scale, relative to the median one: a number that never varied in training does not dominate."""
LEAST_CHANGE = 1e-3  # added before a logarithm, in the unit of the images, which lie about 1
LEAST_POWER = 1e-9
AT_ONCE = 2**22
"""Values of the planes that are transformed together."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Statistics of training studies, none of a single study.

    mean, scale: (d,). precision: (d, d) of the scaled numbers, or (d,) if only variances were computed. patients: how
    many. centre, spread: mean and standard deviation of the logarithm of left-out studies' distances.
    """

    mean: Floats
    scale: Floats
    precision: Floats
    patients: int
    centre: float
    spread: float

    def distances(self, described: Floats) -> Floats:
        """(n,) of studies (n, d): the root of the mean squared deviation, 1 for a typical one of the reference."""
        return _compute_distances((self.mean, self.scale, self.precision), described)

    def p_values(self, distances: Floats) -> Floats:
        """(n,): the probability that a study of the same hospital is at least as far; 0 for NaN."""
        from scipy import stats  # slow to import

        width = self.spread * np.sqrt(1 + 1 / self.patients)
        with np.errstate(divide="ignore"):
            deviation = (np.log(distances) - self.centre) / width
        p_values: Floats = np.nan_to_num(stats.t.sf(deviation, self.patients - 1), nan=0.0)
        return p_values

    def limit(self, alarm: float) -> float:
        """The distance whose p-value is `alarm`."""
        from scipy import stats  # slow to import

        width = self.spread * np.sqrt(1 + 1 / self.patients)
        return float(np.exp(self.centre + width * stats.t.isf(alarm, self.patients - 1)))


def reference_of(described: Floats, patient: Sequence[int] | NDArray[np.int64]) -> Reference | None:
    """The reference of training studies (n, d); None with fewer than 5 patients, or if a value is not finite.

    patient: (n,) of each study.
    """
    patients = np.asarray(patient)
    everybody = np.unique(patients)
    if len(everybody) < FEWEST or not described.shape[1] or not np.isfinite(described).all():
        return None
    left_out = np.empty(len(described))
    fold = np.searchsorted(everybody, patients) % FOLDS
    for number in np.unique(fold):
        part = fold == number
        left_out[part] = _compute_distances(_fit_statistics(described[~part]), described[part])
    logarithms = np.log(np.maximum(left_out, np.finfo(np.float64).tiny))
    mean, scale, precision = _fit_statistics(described)
    spread = max(float(logarithms.std(ddof=1)), 1e-6)
    return Reference(mean, scale, precision, len(everybody), float(logarithms.mean()), spread)


def _fit_statistics(described: Floats) -> tuple[Floats, Floats, Floats]:
    """Mean, scale, and precision of the scaled numbers: Ledoit and Wolf shrink towards equal variances."""
    from sklearn.covariance import LedoitWolf  # slow to import

    deviations = described.std(axis=0, ddof=1) if len(described) > 1 else np.zeros(described.shape[1])
    positive = deviations[deviations > 0]
    usual = float(np.median(positive)) if len(positive) else 1.0
    scale = np.maximum(deviations, NARROWEST * usual)
    mean = described.mean(axis=0)
    scaled = (described - mean) / scale
    if described.shape[1] > MOST:
        return mean, scale, np.ones(described.shape[1])
    return mean, scale, np.asarray(LedoitWolf(assume_centered=True).fit(scaled).precision_, np.float64)


def _compute_distances(fitted: tuple[Floats, Floats, Floats], described: Floats) -> Floats:
    """(n,): the root of the mean squared deviation of studies, given mean, scale and precision."""
    mean, scale, precision = fitted
    scaled = (described - mean) / scale
    weighted = scaled @ precision if precision.ndim == 2 else scaled * precision
    distances: Floats = np.sqrt(np.maximum((weighted * scaled).mean(axis=1), 0))
    return distances


def average_by_study(described: Floats, study: NDArray[np.int64]) -> Floats:
    """Means (k, d) over the examples (n, d) of each study, in the order of their numbers."""
    return np.stack([described[study == number].mean(axis=0) for number in np.unique(study)])


def compute_features(images: NDArray[np.float32]) -> Floats:
    """Numbers (n, d) of examples: intensities, edges, noise, and the power spectrum over scales.

    images: (n, C, *spatial) with two or three axes in space; or (n, F), rows of a table, which stay as they are.
    """
    values = images.astype(np.float64)
    if values.ndim < 4:
        return values.reshape(len(values), -1)
    places = tuple(range(2, values.ndim))
    flat = values.reshape(*values.shape[:2], -1)
    edges = sum(_steps(values, axis, 1).mean(axis=places) for axis in places)
    noise = sum(np.median(_steps(values, axis, 2), axis=places, overwrite_input=True) for axis in places)
    parts = [
        *np.percentile(flat, PERCENTILES, axis=2),
        (flat == flat.min(axis=2, keepdims=True)).mean(axis=2),  # the background
        np.log(edges + LEAST_CHANGE),
        np.log(noise + LEAST_CHANGE),
        *_band_powers(values),
    ]
    return np.concatenate(parts, axis=1)


def _steps(values: Floats, axis: int, order: int) -> Floats:
    """Absolute differences of neighbours along an axis, in memory of their own."""
    steps: Floats = np.diff(values, n=order, axis=axis)
    return np.abs(steps, out=steps)


def _band_powers(values: Floats) -> list[Floats]:
    """Logarithm of the mean power (n, C) of each frequency band in the plane, up to the pixels' own."""
    rows, columns = values.shape[-2:]
    window = np.hanning(rows)[:, None] * np.hanning(columns)
    frequency = np.hypot(np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(columns)[None])
    band = np.minimum((2 * (BANDS - 1) * frequency).astype(int), BANDS - 1)
    planes, numbers = values.reshape(-1, rows, columns), np.unique(band)
    size, logarithms = max(1, AT_ONCE // (rows * columns)), list[Floats]()
    for part in (planes[start : start + size] for start in range(0, len(planes), size)):
        centred = part - part.mean(axis=(-2, -1), keepdims=True)
        power = np.abs(np.fft.rfft2(centred * window)) ** 2 / (rows * columns)
        logarithms.append(np.log([power[:, band == number].mean(axis=-1) + LEAST_POWER for number in numbers]))
    together = np.concatenate(logarithms, axis=1)
    return [of_band.reshape(*values.shape[:2], -1).mean(axis=2) for of_band in together]
