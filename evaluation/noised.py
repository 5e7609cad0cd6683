"""Scores from noised histograms, which a hospital sends about a model under patient-level differential privacy.

Counts and bootstrap copies (`evaluation.histograms`) protect no patient. Under differential privacy the hospital
releases the noised histograms of `evaluation.votes` instead, in bins that follow the model's scores. All functions here
see only what was released, so they cost no privacy. Their other inputs are declared public: the numbers of test
patients, of images, and of patients with at least one image of a class.

Noise makes cells negative, and a true 0 looks like a few patients. So the histograms are first projected onto possible
ones: no cell negative, the declared number of patients, and of each class no more patients than have it. Compared with
clipping at 0 this does not reduce the error, but intervals contain the truth more often. The last condition changed no
error; it keeps a class without patients empty. The histograms of more than two classes, or of cuts between ordered
ones, are made possible together.

Then they go from a few bins to cells of the scale. Scores of both classes that share a bin would count as tied, and a
model that separates them would look worse than it is. So within a bin each class is laid out as if the log odds of the
class rose evenly on the normal score of the rank (the binormal model, Dorfman and Alf 1969), as fast as the bins
themselves say. Measured (benchmarks/studies/noised_scores.py): this halves what bins alone lose, and where scores say
nothing it adds nothing.

Such counts weight every patient equally; counts without noise weight every image equally. Both are the same where each
patient has one image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from evaluation.histograms import LARGEST, ODDS, Counts, Floats, Ints, find_noise_problems, make_generator, pack_scores
from evaluation.metrics import auc
from evaluation.scale import CELLS, HALF, TREE, compute_density, project_onto_simplex, tree_levels
from evaluation.votes import BINS, Parts, Release, bins_from, split_noise

Again: TypeAlias = "Callable[[int], Sums]"
"""B -> the sums of B samples of as many patients, drawn from the sample, noised and projected, (B, ...)."""
MOST = 2**31 - 1  # images and patients; received numbers must not overflow
FACTS = ("class_patients", "images", "noise", "patients")


def from_noised(
    release: Release,
    *,
    noise: float,
    patients: int,
    images: int,
    class_patients: tuple[int, ...],
    copies: int,
    seed: int,
) -> Counts:
    """Counts from noised histograms, so that every protocol, table, figure and interval works with them.

    The projected histograms are laid out on the scale's cells (`evaluation.noised`), scaled to `images`, and rounded so
    that the total stays. Each copy is a parametric bootstrap (Efron and Tibshirani 1993, section 6.5): `patients` are
    drawn from the projected histograms, each as one cell, new noise is added, then the same projection and rounding,
    in the same bins. So intervals include the sampling of patients and the noise. They are not paired between models,
    whatever the seed, because the noise of different models is independent.

    Args:
        release: what the hospital sent.
        noise: standard deviation of the noise of one histogram that would cost as much as all of them, in patients.
        patients, images: in the test split; each patient has at least one image.
        class_patients: patients with at least one image of each class, or of ordered ones by their highest.
        copies: B, how many bootstrap copies.
        seed: with the histograms it fixes the copies.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    wrong = _find_shape_problems(release, class_patients, copies)
    wrong += _find_fact_problems(noise, patients, images, class_patients)
    if wrong:
        raise ValueError("these are no noised counts: " + "; ".join(wrong))
    classes, has_cuts = len(class_patients), "cuts" in release.histograms
    how = split_noise(noise, classes, ordered=has_cuts)
    # Copies of two models must not have the same noise.
    contents = b"".join(np.asarray(h).astype("<f8").tobytes() for _, h in sorted(release.histograms.items()))
    generator = make_generator(seed, contents)
    bounds = bins_from(release.levels, patients, class_patients)
    rows = [
        compute_layout(compute_density(tree_levels(levels), patients), edges)
        for levels, edges in zip(release.levels, bounds, strict=True)
    ]
    prepare = _prepare_two_classes if classes == 2 else _prepare_many_classes
    sample, draw_copies = prepare(release, how, patients, class_patients, generator)
    pairs = zip(sample, draw_copies(copies), strict=True)
    sums = Sums(*(np.concatenate([part[None], many]) for part, many in pairs))
    of_class = _round_to_totals(sums.of_class * (images / patients), np.full(1 + copies, images))
    scores = np.empty((1 + copies, len(rows), 2, CELLS), np.int64)
    for place, row in enumerate(rows):
        class_images = of_class[:, place] if classes > 2 and not has_cuts else of_class[:, place + 1 :].sum(axis=1)
        laid = spread_over_cells(sums.pairs[:, place], row)
        for side, total in enumerate((images - class_images, class_images)):
            scores[:, place, side] = _round_cumulatively(laid[:, side], total)
    halves = scores[:, 0].reshape(1 + copies, 2, 2, HALF).sum(axis=-1) if classes == 2 else None
    confusion = _round_to_totals(_scale_to_totals(sums.confusion, of_class), of_class) if halves is None else halves
    return Counts(pack_scores(scores), confusion, patients, tuple(class_patients), how.own, ODDS)


def _prepare_two_classes(
    release: Release, how: Parts, patients: int, class_patients: tuple[int, ...], generator: np.random.Generator
) -> tuple[Sums, Again]:
    """The sums of two classes, projected onto possible ones, and a function that draws their bootstrap copies."""
    negative, positive = class_patients
    least, most = patients - negative, positive  # of class 1, in patients

    def project_sums(histogram: Floats, low: Floats, high: Floats) -> Sums:
        nearest = project_histogram(histogram, patients, low, high)
        return Sums(nearest[..., None, :, :], np.zeros((*nearest.shape[:-2], 2, 2)), nearest.sum(axis=-1))

    sample = project_sums(np.asarray(release.histograms["noised"], np.float64), np.array(least), np.array(most))

    def draw_copies(copies: int) -> Sums:
        flat, shape = sample.pairs.ravel() / sample.pairs.sum(), sample.pairs.shape[-2:]
        drawn = generator.multinomial(patients, flat, size=copies).astype(np.float64).reshape(copies, *shape)
        shift = drawn[:, 1].sum(axis=-1) - sample.of_class[1]  # other patients were drawn, so others are declared
        low, high = (np.clip(bound + shift, 0, patients) for bound in (least, most))
        return project_sums(drawn + how.own * generator.standard_normal(drawn.shape), low, high)

    return sample, draw_copies


def _prepare_many_classes(
    release: Release, how: Parts, patients: int, class_patients: tuple[int, ...], generator: np.random.Generator
) -> tuple[Sums, Again]:
    """The sums of more than two classes, or of cuts between ordered ones, projected onto possible ones, and a function
    that draws their bootstrap copies.
    """
    has_cuts = "cuts" in release.histograms
    project, names = (project_cuts, ("cuts", "confusion")) if has_cuts else (project_sums, NAMES)
    bounds = (cut_bounds if has_cuts else class_bounds)(patients, class_patients)
    histograms = [np.asarray(release.histograms[name], np.float64) for name in names]
    if has_cuts:
        histograms[0] = histograms[0].reshape(len(histograms[0]), 2, BINS)
    sample = project(histograms, how, patients, bounds)
    return sample, partial(draw_sum_copies, sample, how, patients, bounds, generator, has_cuts=has_cuts)


NAMES = ("noised", "rest", "confusion")
"""The histograms of more than two classes; of two only the first."""


def project_histogram(histogram: Floats, patients: float, least: Floats, most: Floats) -> Floats:
    """The nearest histograms (Euclidean) with no negative cell, this number of patients in all and from least to most
    of class 1.

    First onto the simplex, which says how many are of class 1; that number is brought into its bounds, and each class
    is projected onto its own simplex. This is exact: where the number is out of bounds, the nearest histogram has it at
    the bound, since it is a linear function on a convex set.

    Args:
        histogram: (..., 2, bins).
        patients: the total.
        least, most: (...,), with 0 <= least <= most <= patients.
    """
    *lead, classes, bins = histogram.shape
    together = project_onto_simplex(histogram.reshape(*lead, classes * bins), np.full(lead, float(patients)))
    positive = np.clip(together[..., bins:].sum(axis=-1), least, most)
    return project_onto_simplex(histogram, np.stack([patients - positive, positive], axis=-1))


def to_tensors(release: Release) -> dict[str, Tensor]:
    """A release as sent, all float32: scale (K, TREE) and its histograms. Its facts (`FACTS`) are sent with it."""
    arrays = {"scale": release.levels, **release.histograms}
    return {name: torch.from_numpy(np.asarray(array, dtype=np.float32)) for name, array in arrays.items()}


def from_tensors(tensors: Mapping[str, Tensor], facts: Mapping[str, object], *, copies: int, seed: int) -> Counts:
    """Counts from a received message: the tensors of `to_tensors` and the facts noise, patients, images,
    class_patients.

    Raises:
        ValueError: naming everything that keeps them from being noised counts.
    """
    wrong = [f"{n} is {t.dtype}, needed is float32" for n, t in sorted(tensors.items()) if t.dtype != torch.float32]
    if missing := [name for name in FACTS if name not in facts]:
        wrong.append(f"the facts lack {', '.join(missing)}")
    if "scale" not in tensors:
        wrong.append(f"found the tensors {sorted(tensors)}, needed is scale with the histograms")
    if wrong:
        raise ValueError("these are no noised counts: " + "; ".join(wrong))
    histograms = {name: tensor.numpy() for name, tensor in tensors.items() if name != "scale"}
    release = Release(tensors["scale"].numpy().astype(np.float64), histograms)
    known: dict[str, object] = {name: facts[name] for name in FACTS}
    return from_noised(release, **known, copies=copies, seed=seed)  # type: ignore[arg-type]


def _round_cumulatively(histograms: Floats, totals: Ints) -> Ints:
    """Histograms (n, cells) as whole images that sum to totals (n,), by rounding cumulative sums."""
    reached = np.cumsum(_scale_to_totals(histograms, totals), axis=-1)
    cumulative = np.floor(reached + 0.5 - 1e-9).astype(np.int64)
    cumulative[:, -1] = totals
    return np.diff(np.minimum(cumulative, totals[:, None]), axis=-1, prepend=0)


def _scale_to_totals(histograms: Floats, totals: Ints) -> Floats:
    """Histograms (..., d) scaled to sum to totals (...,); an empty histogram is spread evenly."""
    now = histograms.sum(axis=-1, keepdims=True)
    shares = np.divide(histograms, now, out=np.full_like(histograms, 1 / histograms.shape[-1]), where=now > 0)
    return np.asarray(shares * totals[..., None], dtype=np.float64)


def _round_to_totals(shares: Floats, total: Ints) -> Ints:
    """(..., d) as whole numbers that sum to total (...,): the largest remainders are rounded up."""
    nearest = np.rint(shares)
    shares = np.where(np.abs(shares - nearest) < 1e-6, nearest, shares)  # 2.9999999 is 3, not 2 with a remainder
    rounded_down = np.floor(shares).astype(np.int64)
    rank = np.argsort(np.argsort(rounded_down - shares, axis=-1, kind="stable"), axis=-1)
    return np.asarray(rounded_down + (rank < (total - rounded_down.sum(axis=-1))[..., None]), dtype=np.int64)


def _find_shape_problems(release: Release, class_patients: object, copies: int) -> list[str]:
    """Everything that is wrong with histograms and the number of their copies."""
    classes = len(class_patients) if isinstance(class_patients, list | tuple) else 0
    has_cuts = classes > 2 and "cuts" in release.histograms
    rows = 1 if classes == 2 else classes - has_cuts
    needed: dict[str, tuple[int, ...]] = {"noised": (classes, BINS)}
    if has_cuts:
        needed = {"cuts": (rows, 2 * BINS), "confusion": (classes, classes)}
    elif classes > 2:
        needed |= {"rest": (classes, BINS + 1), "confusion": (classes, classes)}
    wrong = [] if copies >= 0 else [f"copies is {copies}, allowed is 0 or more"]
    arrays = {**release.histograms, "scale": release.levels}
    shapes = {**needed, "scale": (rows, TREE)}
    if set(arrays) != set(shapes):
        return [*wrong, f"found {sorted(arrays)} for {classes} classes, needed is {sorted(shapes)}"]
    bad = [n for n, shape in shapes.items() if tuple(arrays[n].shape) != shape]
    wrong += [f"{n} has shape {tuple(arrays[n].shape)}, needed is {shapes[n]}" for n in bad]
    wrong += [f"{n} holds a number that is not finite" for n in shapes if not np.isfinite(arrays[n]).all()]
    if rows * 2 * CELLS * (1 + max(copies, 0)) > LARGEST:
        wrong.append(f"{1 + copies} samples of {classes} classes are too many, allowed are {LARGEST} cells")
    return wrong


def _find_fact_problems(noise: object, patients: object, images: object, class_patients: object) -> list[str]:
    """Everything that is wrong with the declared facts, each by itself and then together."""
    wrong = find_noise_problems(noise)
    for name, value in (("patients", patients), ("images", images)):
        if not _is_whole_number(value, 1):
            wrong.append(f"{name} is {value!r}, allowed is 1 to {MOST}")
    each: Sequence[object] = class_patients if isinstance(class_patients, list | tuple) else ()
    known = [number for number in each if isinstance(number, int) and _is_whole_number(number, 0)]
    if len(each) < 2 or len(known) < len(each):
        wrong.append(f"class_patients is {class_patients!r}, needed are two whole numbers or more, one for each class")
    elif isinstance(patients, int) and _is_whole_number(patients, 1) and not max(known) <= patients <= sum(known):
        wrong.append(f"class_patients is {class_patients!r} of {patients} patients; each patient has one class or more")
    if not wrong and isinstance(images, int) and sum(known) > images:
        wrong.append(f"images is {images}, needed is {sum(known)} or more: one for each patient of a class")
    return wrong


def _is_whole_number(value: object, least: int) -> bool:
    """Whether a value is an int from `least` to `MOST`, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST


SURE = (0.02, 0.98)  # an AUC is clipped to this range before its slope is computed
SIGN = np.array([[-0.5], [0.5]])  # (other, this) class


class Layout(NamedTuple):
    """One score row's scale. density: (CELLS,) all patients; starts: (bins,) the first cell of each bin; normal:
    (CELLS,) the normal score of a cell's rank; middle: (bins,) its mean over a bin's patients.
    """

    density: Floats
    starts: Ints
    normal: Floats
    middle: Floats


def compute_layout(density: Floats, edges: Ints) -> Layout:
    """The layout for a density (CELLS,) and the edges of its bins (bins - 1,)."""
    from scipy.special import ndtri  # slow to import

    total, even = max(float(density.sum()), 1e-9), 1e-9  # so that bins that the tree holds empty have a shape
    filled = density + even * total / CELLS
    rank = (np.cumsum(filled) - filled / 2) / filled.sum()
    normal = ndtri(np.clip(rank, 0.25 / (total + 1), 1 - 0.25 / (total + 1)))
    starts = np.concatenate([[0], edges]).astype(np.int64)
    middle = np.add.reduceat(filled * normal, starts) / np.add.reduceat(filled, starts)
    return Layout(filled, starts, normal, middle)


def spread_over_cells(pairs: Floats, row: Layout) -> Floats:
    """Spread patients (..., 2, bins) of (other, this) class over cells (..., 2, CELLS); the sum of each bin stays."""
    sizes = np.diff(np.append(row.starts, CELLS))
    lean = SIGN * compute_slope(pairs)[..., None, None] * (row.normal - np.repeat(row.middle, sizes))
    weight = row.density * np.exp(np.clip(lean, -30, 30))
    inside = np.add.reduceat(weight, row.starts, axis=-1)
    return np.asarray(weight * np.repeat(pairs / inside, sizes, axis=-1), dtype=np.float64)


def compute_slope(pairs: Floats) -> Floats:
    """(...,): how fast the log odds of this class rise on the normal score of all, where two normal classes with equal
    variance have the AUC of the bins.
    """
    from scipy.special import ndtri  # slow to import

    separation = np.sqrt(2) * ndtri(np.clip(np.nan_to_num(auc(pairs), nan=0.5), *SURE))
    this = pairs[..., 1, :].sum(axis=-1) / np.maximum(pairs.sum(axis=(-2, -1)), 1e-9)
    return np.asarray(separation * np.sqrt(1 + this * (1 - this) * separation**2), dtype=np.float64)


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


def project_sums(parts: Sequence[Floats], how: Parts, patients: int, bounds: Bounds) -> Sums:
    """The nearest sums that agree: no cell negative, `patients` in all, each class with one number of patients.

    That number is the mean of the three that were released, weighted by their exactness, brought into its bounds.

    Args:
        parts: own_class (..., C, bins) of this class; rest (..., C, bins + 1) of all others, the last cell this
            class's own patients; confusion (..., C, C); all with noise.
        how: the noise of each.
    """
    own_class, rest, confusion = parts
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
    sums: Sums,
    how: Parts,
    patients: int,
    bounds: Bounds,
    generator: np.random.Generator,
    copies: int,
    *,
    has_cuts: bool,
) -> Sums:
    """Sums of `copies` parametric bootstrap samples, (B, ...): patients drawn from these sums, then new noise, then the
    projection of `project_sums`, or of `project_cuts`.

    A drawn patient has one class. Given how many have each, the histograms are drawn one by one: which patient is in
    two of them was not released.
    """
    number = generator.multinomial(patients, _normalise_shares(sums.of_class), size=copies)
    above = np.cumsum(number[:, ::-1], axis=1)[:, ::-1][:, 1:]
    of_cuts = [(np.stack([patients - above, above], axis=-1), sums.pairs, how.own)]
    of_classes = [(number, sums.pairs[:, 1], how.own), (patients - number, sums.pairs[:, 0], how.rest)]
    parts = [*(of_cuts if has_cuts else of_classes), (number, sums.confusion, how.confusion)]
    drawn = [generator.multinomial(n, _normalise_shares(each)).astype(np.float64) for n, each, _ in parts]
    shift = number - sums.of_class  # other patients were drawn, so other numbers are declared
    moved = Bounds(*(np.clip(bound + shift, 0, patients) for bound in bounds))
    if not has_cuts:
        drawn[1] = np.concatenate([drawn[1], number[..., None]], axis=-1)
    noises = (noise for _, _, noise in parts)
    noised = [each + noise * generator.standard_normal(each.shape) for each, noise in zip(drawn, noises, strict=True)]
    return (project_cuts if has_cuts else project_sums)(noised, how, patients, moved)


def project_cuts(parts: Sequence[Floats], how: Parts, patients: int, bounds: Bounds) -> Sums:
    """As `project_sums`, of cuts between ordered classes.

    How many patients reach a cut is told by its histogram, as half of all and half the difference of its sides, and by
    the rows of the confusion; the mean of both is weighted by their exactness. What two neighbouring cuts differ by is
    a class.

    Args:
        parts: cuts (..., C - 1, 2, bins) below and from each cut on; confusion: (..., C, C); both with noise.
        how: the noise of each.
    """
    cuts, confusion = parts
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


def _normalise_shares(counts: Floats) -> Floats:
    """(..., d) as shares that sum to 1; even where there is nothing."""
    total = counts.sum(axis=-1, keepdims=True)
    even = np.full_like(counts, 1 / counts.shape[-1])
    shares = np.divide(counts, total, out=even, where=total > 0)
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True), dtype=np.float64)
