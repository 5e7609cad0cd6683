"""Sums that a hospital sends about a model that predicts a number, and the measures that follow from them.

A number is given as its place in the declared range: 0 = the low end, 1 = the high end. So nothing here knows a unit,
and a patient changes no sum by more than the range allows. Sums of errors, of squares and of products tell the mean
absolute error, the root of the mean squared error, the mean error with its limits of agreement (Bland and Altman,
Lancet 327, 1986) and the correlation. Besides the sample's sums there are those of B copies with patients resampled,
the same draws as in `evaluation.histograms`, whose warning about the seed applies here too.

Under patient-level differential privacy a hospital releases one noised histogram of errors instead, in bins that are
declared: narrow about 0 and wide at the ends. Of it follow the measures of errors, each error at its bin's centre; the
correlation does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from evaluation.histograms import (
    LARGEST,
    Floats,
    Ints,
    draw_patient_weights,
    find_noise_problems,
    find_size_problems,
    find_type_problems,
    make_generator,
)
from evaluation.metrics import NOISE_SHARE, Measure, Support, ratio
from evaluation.scale import project_onto_simplex

GRID = 2.0**16
"""Places are rounded to 1 / GRID: sums of them and of their squares are then exact, in any order, on any machine."""
COLUMNS = ("count", "error", "absolute", "squared", "true", "predicted", "true2", "predicted2", "product")
COUNT, ERROR, ABSOLUTE, SQUARED, TRUE, PREDICTED, TRUE2, PREDICTED2, PRODUCT = range(len(COLUMNS))
SIDE, POWER = 8, 3
EDGES: Floats = np.array([math.copysign((k / SIDE) ** POWER, k) for k in range(-SIDE, SIDE + 1)])
"""Of the bins of errors, in shares of the range: predicted minus true lies in [-1, 1]. More bins put a mean absolute
error nearer to the truth without noise (with these within 0.007 for normal errors), and let more noise into it."""
CENTRES: Floats = (EDGES[1:] + EDGES[:-1]) / 2
BINS = len(CENTRES)
NOISE_SPREAD = float(np.sqrt(np.sum(CENTRES**2) - np.sum(np.abs(CENTRES)) ** 2 / BINS))
"""Standard deviation of the noise in a sum of absolute errors, by that of a bin (1.13)."""
LARGEST_NOISE = 0.02
"""Largest noise in a mean absolute error that is assessable: its standard deviation in shares of the range."""
MOST = 2**31 - 1


@dataclass(frozen=True)
class Number:
    """What is predicted, for pages. what: in words. unit: empty = none. low, high: its range. bands: names of the parts
    of the range by which examples are counted.
    """

    what: str
    unit: str
    low: float
    high: float
    bands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Errors:
    """One model on the test images of one or more sites.

    totals: (1 + B, 9) sums over images of `COLUMNS`, in shares of the range; index 0 is the sample, 1..B its
    patient-bootstrap copies. Those that were not released are NaN. noise: standard deviation of the noise that was in
    each bin, in patients; 0 = counted.
    """

    totals: Floats
    patients: int
    images: int
    noise: float = 0.0

    @property
    def copies(self) -> int:
        """B, the number of bootstrap copies."""
        return len(self.totals) - 1


def sum_errors(
    true: ArrayLike, predicted: ArrayLike, patients: ArrayLike, *, copies: int, seed: int, site: str = ""
) -> Errors:
    """Sums over a site's images, and over their bootstrap copies.

    Args:
        true, predicted: (n,) places in the range; a prediction that is no number counts as the middle.
        patients: (n,) int, the patient of each image. copies, seed, site: as in `histograms.count_scores`.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    t, p, who = _check_arguments(true, predicted, patients, copies)
    distinct, place = np.unique(who, return_inverse=True)
    weights = np.vstack([np.ones((1, len(distinct)), np.int64), draw_patient_weights(distinct, copies, seed, site)])
    error = p - t
    columns = np.stack([np.ones_like(t), error, np.abs(error), error**2, t, p, t**2, p**2, t * p], axis=1)
    by_patient = np.zeros((len(distinct), len(COLUMNS)))
    np.add.at(by_patient, place, columns)
    return Errors(weights @ by_patient, len(distinct), len(t))


def release_errors(
    true: ArrayLike, predicted: ArrayLike, patients: ArrayLike, add_noise: Callable[[Ints], Floats]
) -> Floats:
    """The noised histogram (BINS,) of errors that leaves, rounded to float32.

    add_noise: (P, BINS) images of each patient -> the histogram, to which a patient adds 1 in total.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    t, p, who = _check_arguments(true, predicted, patients, 0, fewest=0)
    distinct, place = np.unique(who, return_inverse=True)
    votes = np.zeros((len(distinct), BINS), np.int64)
    np.add.at(votes, (place, find_bins(p - t)), 1)
    return add_noise(votes).astype(np.float32).astype(np.float64)


def find_bins(errors: Floats) -> Ints:
    """The bin of each error in [-1, 1]; an error on an edge is in the upper bin, and 1 in the last."""
    return np.clip(np.searchsorted(EDGES, errors, side="right") - 1, 0, BINS - 1)


def from_histogram(histogram: ArrayLike, *, noise: float, patients: int, images: int, copies: int, seed: int) -> Errors:
    """The sums that a noised histogram of errors tells; every patient weighs the same.

    A sum over bins is not biased by noise, so bins may stay negative; only their total is corrected to `patients`.
    Projected onto possible bins, as for classes, the noise that stays in far bins would make errors larger. Each copy
    is a parametric bootstrap (Efron and Tibshirani 1993, section 6.5): patients are drawn from the projected histogram,
    new noise is added, and what that changes is added to the sample's sums.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    noised = np.asarray(histogram, np.float64)
    if wrong := _find_release_problems(noised, noise, patients, images, copies):
        raise ValueError("these are no noised errors: " + "; ".join(wrong))
    total = np.asarray(float(patients))
    possible = project_onto_simplex(noised, total)
    generator = make_generator(seed, noised.astype("<f8").tobytes())
    drawn = generator.multinomial(patients, possible / possible.sum(), size=copies).astype(np.float64)
    changes = drawn + noise * generator.standard_normal(drawn.shape) - possible
    bins = noised + np.vstack([np.zeros((1, BINS)), changes])
    shares = (bins + (patients - bins.sum(axis=1, keepdims=True)) / BINS) * (images / patients)
    totals = np.full((1 + copies, len(COLUMNS)), np.nan)
    totals[:, COUNT] = shares.sum(axis=1)
    for column, values in ((ERROR, CENTRES), (ABSOLUTE, np.abs(CENTRES)), (SQUARED, CENTRES**2)):
        least = -images if column == ERROR else 0
        totals[:, column] = np.clip(shares @ values, least, images)
    return Errors(totals, patients, images, noise)


def pool_errors(sites: Sequence[Errors]) -> Errors:
    """Pool sites: sums are added, copies pairwise, so a pooled copy draws patients within each site.

    Raises:
        ValueError: there is nothing to pool, or they differ in copies.
    """
    if len({site.copies for site in sites}) != 1:
        raise ValueError(f"errors to pool must agree in copies; found {sorted({site.copies for site in sites})}")
    return Errors(
        np.sum([site.totals for site in sites], axis=0),
        sum(site.patients for site in sites),
        sum(site.images for site in sites),
        math.hypot(*(site.noise for site in sites)),
    )


def to_tensors(errors: Errors) -> dict[str, Tensor]:
    """Pack for sending: errors (1 + B, 9) float64, tested (2,) int32: patients and images."""
    tested = torch.tensor([errors.patients, errors.images], dtype=torch.int32)
    return {"errors": torch.from_numpy(np.ascontiguousarray(errors.totals)), "tested": tested}


def from_tensors(tensors: Mapping[str, Tensor]) -> Errors:
    """Unpack the tensors of `to_tensors`.

    Raises:
        ValueError: naming everything that keeps the tensors from being errors.
    """
    if wrong := _find_format_problems(tensors) or _find_value_problems(tensors):
        raise ValueError("these tensors are no errors: " + "; ".join(wrong))
    return Errors(tensors["errors"].numpy(), int(tensors["tested"][0]), int(tensors["tested"][1]))


def from_noised_tensors(
    tensors: Mapping[str, Tensor], facts: Mapping[str, object], *, copies: int, seed: int
) -> Errors:
    """Errors from a received message: the tensor error_bins (BINS,) float32 and the facts noise, patients, images.

    Raises:
        ValueError: naming everything that keeps them from being noised errors.
    """
    missing = [name for name in ("noise", "patients", "images") if name not in facts]
    if set(tensors) != {"error_bins"} or tensors["error_bins"].dtype != torch.float32 or missing:
        text = f"found the tensors {sorted(tensors)}, needed is error_bins of float32"
        raise ValueError(f"these are no noised errors: {text}; the facts lack {', '.join(missing) or 'nothing'}")
    known: dict[str, object] = {name: facts[name] for name in ("noise", "patients", "images")}
    return from_histogram(tensors["error_bins"].numpy(), **known, copies=copies, seed=seed)  # type: ignore[arg-type]


def _check_arguments(
    true: ArrayLike, predicted: ArrayLike, patients: ArrayLike, copies: int, *, fewest: int = 1
) -> tuple[Floats, Floats, Ints]:
    """Places rounded to the grid, and patients. fewest: images; with noise there may be none. Raises: ValueError."""
    t, p, who = np.asarray(true, np.float64), np.asarray(predicted, np.float64), np.asarray(patients)
    wrong = [] if copies >= 0 else [f"copies is {copies}, allowed is 0 or more"]
    if t.ndim != 1 or len(t) < fewest or p.shape != t.shape:
        wrong.append(f"true and predicted are {t.shape} and {p.shape}, needed is (n,) of both, n >= {fewest}")
    if who.shape != t.shape or not np.issubdtype(who.dtype, np.integer):
        wrong.append(f"patients are {who.shape} of {who.dtype}, needed is {t.shape} of integers")
    p = np.nan_to_num(p, nan=0.5)
    if not wrong and not all(((places >= 0) & (places <= 1)).all() for places in (t, p)):
        wrong.append("places lie outside the range; they must be in [0, 1]")
    if wrong:
        raise ValueError("cannot sum errors: " + "; ".join(wrong))
    return np.round(t * GRID) / GRID, np.round(p * GRID) / GRID, who.astype(np.int64)


def _find_release_problems(
    histogram: NDArray[np.float64], noise: object, patients: object, images: object, copies: int
) -> list[str]:
    """Everything that is wrong with a noised histogram and its facts."""
    wrong = [] if copies >= 0 else [f"copies is {copies}, allowed is 0 or more"]
    if histogram.shape != (BINS,) or not np.isfinite(histogram).all():
        wrong.append(f"error_bins has shape {histogram.shape}, needed are {BINS} finite numbers")
    wrong += find_noise_problems(noise)
    for name, value, least in (("patients", patients, 1), ("images", images, patients)):
        if isinstance(value, bool) or not isinstance(value, int) or not isinstance(least, int):
            wrong.append(f"{name} is {value!r}, needed is a whole number")
        elif not least <= value <= MOST:
            wrong.append(f"{name} is {value}, allowed is {least} to {MOST}")
    return wrong


def _find_format_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    """Problems of types and shapes."""
    kinds = {"errors": torch.float64, "tested": torch.int32}
    wrong = find_type_problems(tensors, kinds)
    if set(tensors) != set(kinds):
        return wrong
    wrong += find_size_problems(tensors, {"tested": (2,)})
    errors = tensors["errors"]
    if errors.dim() != 2 or errors.shape[1] != len(COLUMNS) or not 1 <= errors.numel() <= LARGEST:
        wrong.append(f"errors have shape {tuple(errors.shape)}, needed is (1 + copies, {len(COLUMNS)})")
    return wrong


def _find_value_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    """Values that no patients could give, in tensors with the right types and shapes."""
    patients, images = tensors["tested"].tolist()
    totals = tensors["errors"].numpy()
    if not np.isfinite(totals).all():
        return ["errors hold numbers that are not finite"]
    n, absolute, squared = totals[:, COUNT], totals[:, ABSOLUTE], totals[:, SQUARED]
    slack = 1e-9 * (1 + np.abs(n))
    tests = {
        f"patients is {patients}, needed is 1 or more": patients < 1,
        f"images is {images}, needed is one a patient or more": images < patients,
        f"the sample counts {n[0]:g} images, and {images} were tested": n[0] != images,
        "a copy counts no image": bool((n < 1).any()),
        "errors, squares or products lie outside what the range allows": bool(
            (np.abs(totals[:, ERROR]) > absolute + slack).any()
            or (totals[:, [ABSOLUTE, SQUARED, TRUE, PREDICTED, TRUE2, PREDICTED2, PRODUCT]] < -slack[:, None]).any()
            or (totals[:, ABSOLUTE:] > (n + slack)[:, None]).any()
            or (squared > absolute + slack).any()
            or (absolute**2 > n * squared + slack * n).any()
        ),
    }
    return [problem for problem, wrong in tests.items() if wrong]


def compute_mean(errors: Errors, column: int = ABSOLUTE) -> Floats:
    """(1 + B,): the mean of a column: of |predicted - true|, predicted - true or its square, in shares of the range."""
    return ratio(errors.totals[:, column], errors.totals[:, COUNT])


def _compute_limit(errors: Errors, side: int) -> Floats:
    """(1 + B,): a limit of agreement, bias + side * 1.96 standard deviations of the errors; NaN for one image."""
    n = errors.totals[:, COUNT]
    bias = compute_mean(errors, ERROR)
    variance = np.maximum(compute_mean(errors, SQUARED) - bias**2, 0) * ratio(n, n - 1)
    return bias + side * 1.96 * np.sqrt(variance)


def _compute_correlation(errors: Errors) -> Floats:
    """(1 + B,): Pearson's correlation of predicted and true numbers; NaN where one of them does not vary."""
    n, t, p, t2, p2, tp = (errors.totals[:, c] for c in (COUNT, TRUE, PREDICTED, TRUE2, PREDICTED2, PRODUCT))
    spread = np.maximum(n * t2 - t**2, 0) * np.maximum(n * p2 - p**2, 0)
    return ratio(n * tp - t * p, np.sqrt(spread))


def _find_support(errors: Errors) -> Support:
    """The images and patients behind a score: each image counts on either side. The noise is given such that
    `Support.assessable` allows `LARGEST_NOISE` in a mean absolute error.
    """
    number = errors.patients if errors.noise else errors.images
    return Support(
        patients=errors.patients,
        images=errors.images,
        positives=number,
        negatives=number,
        positive_patients=errors.patients,
        noise=errors.noise,
        class_noise=errors.noise * NOISE_SPREAD * NOISE_SHARE / LARGEST_NOISE,
    )


MAE, RMSE, CORRELATION, BIAS = "MAE", "RMSE", "correlation", "bias"
LOWER_LIMIT, UPPER_LIMIT = "lower limit", "upper limit"
AGREEMENT = (BIAS, LOWER_LIMIT, UPPER_LIMIT)
"""Measures of which neither more nor less is better."""


def list_number_measures(number: Number) -> tuple[Measure, ...]:
    """MAE and RMSE, the correlation, and the bias with its limits of agreement; all but the correlation in the unit."""
    width = number.high - number.low

    def in_unit(name: str, of: Callable[[Errors], Floats], *, ranked: bool = True) -> Measure:
        return Measure(
            name, lambda errors: width * of(errors), higher_is_better=False, rests=_find_support, ranked=ranked
        )

    return (
        in_unit(MAE, compute_mean),
        in_unit(RMSE, lambda errors: np.sqrt(compute_mean(errors, SQUARED))),
        Measure(CORRELATION, _compute_correlation, rests=_find_support),
        in_unit(BIAS, lambda errors: compute_mean(errors, ERROR), ranked=False),
        in_unit(LOWER_LIMIT, lambda errors: _compute_limit(errors, -1), ranked=False),
        in_unit(UPPER_LIMIT, lambda errors: _compute_limit(errors, 1), ranked=False),
    )
