"""Scores of a model that predicts several findings: of each its own counts, over the images where it is known.

A finding is scored as two classes are (`evaluation.histograms`), and nothing is said of images where nobody knows it.
The copies of the bootstrap draw patients once for all findings, so that an interval of their mean holds what findings
of one patient have in common. The mean over findings, as macro AUC, is over those that can be assessed.

Under patient-level differential privacy each finding has the noised histograms of two classes (`evaluation.votes`). K
of them cost what one with `noise` costs if each has `noise` times the square root of K. The numbers of patients with
and without each finding are declared, as those of classes are, or those that a hospital released once under a budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evaluation.classes import KINDS, class_measure_name
from evaluation.histograms import (
    BINS,
    LARGEST,
    ODDS,
    Counts,
    Floats,
    Ints,
    draw_patient_weights,
    find_noise_problems,
    find_packing_problems,
    find_size_problems,
    find_type_problems,
    make_generator,
    pack_scores,
    pool_counts,
    tally_weighted,
    to_int32,
)
from evaluation.metrics import (
    AUC,
    BRIER,
    CALIBRATION,
    MEASURES,
    SENSITIVITY,
    SPECIFICITY,
    Measure,
    Support,
    auc,
    compute_support,
    join_supports,
    select_assessable,
)
from evaluation.noised import from_noised
from evaluation.scale import CELLS, TREE
from evaluation.votes import BINS as NOISED_BINS
from evaluation.votes import AddNoise, Release, release_histograms

UNKNOWN = 2
"""The state of a finding that nobody knows, beside 0 = no and 1 = yes."""
PARTS = ("finding_columns", "finding_numbers", "finding_scores", "finding_shape")
NOISED_PARTS = ("finding_noised", "finding_scale")
NUMBERS = 4
"""Of each finding: patients and images where it is known, patients without it, patients with it."""


@dataclass(frozen=True)
class Several:
    """What a run predicts, for pages, where that is several findings. names: of the findings. bands: names of how many
    an example has, by which examples are counted.
    """

    names: tuple[str, ...] = ()
    bands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Findings:
    """One model on the test images of one or more sites. each: the counts of each finding, over the images where it is
    known, as of two classes. patients, images: all that were tested.
    """

    each: tuple[Counts, ...]
    patients: int
    images: int

    @property
    def copies(self) -> int:
        """B, the number of bootstrap copies."""
        return self.each[0].copies

    @property
    def noise(self) -> float:
        """The largest standard deviation of the noise in a bin of any finding; 0 = counted."""
        return max(counts.noise for counts in self.each)


def count_findings(
    states: Ints, probabilities: Floats, patients: Ints, *, copies: int, seed: int, site: str = ""
) -> Findings:
    """Count the scores of one model on one site's test images, and of its bootstrap copies.

    Args:
        states: (n, K) int, of each image 0 = no, 1 = yes, 2 = unknown. probabilities: (n, K) of each finding.
        patients: (n,) int, the patient of each image. copies, seed, site: as in `histograms.count_scores`.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    s, p, who = _check_arguments(states, probabilities, patients, copies)
    distinct, patient = np.unique(who, return_inverse=True)
    weights = np.vstack([np.ones((1, len(distinct)), np.int64), draw_patient_weights(distinct, copies, seed, site)])
    each = []
    for column, scores in zip(s.T, p.T, strict=True):
        known = column != UNKNOWN
        cell = column[known] * BINS + np.minimum((scores[known] * BINS).astype(np.int64), BINS - 1)
        counted = tally_weighted(patient[known], cell, weights, 2 * BINS).reshape(-1, 1, 2, BINS)
        each.append(_build_counts(counted, _count_numbers(column, who)))
    return Findings(tuple(each), len(distinct), len(s))


def pool_findings(sites: Sequence[Findings]) -> Findings:
    """Pool sites, finding by finding, as `histograms.pool_counts` does.

    Raises:
        ValueError: there is nothing to pool, or they differ in findings, copies or bins.
    """
    if len({len(site.each) for site in sites}) != 1:
        raise ValueError(f"sites to pool must agree in findings; found {sorted(len(site.each) for site in sites)}")
    each = tuple(pool_counts(counts) for counts in zip(*(site.each for site in sites), strict=True))
    return Findings(each, sum(site.patients for site in sites), sum(site.images for site in sites))


def guess_shares(findings: Findings, baseline: Callable[[Counts], Counts]) -> Findings:
    """The same images with the baseline's scores of each finding; one that nobody knows there stays as it is."""
    each = (baseline(counts) if counts.sample.any() else counts for counts in findings.each)
    return replace(findings, each=tuple(each))


def to_tensors(findings: Findings) -> dict[str, Tensor]:
    """Pack counts for sending, all int32: finding_scores (1 + B, m) over the m bins that hold an image, finding_columns
    (m,) their place in K * 2 * bins, finding_shape (6,): 1 + B, K, 2, bins, patients and images; finding_numbers (K,
    4).

    Raises:
        ValueError: a count does not fit in 32 bits, or the counts are noised.
    """
    if findings.noise:
        raise ValueError(f"counts with noise {findings.noise} are not packed; send the noised histograms instead")
    scores = np.concatenate([counts.scores for counts in findings.each], axis=1)
    flat = scores.reshape(len(scores), -1)
    columns = np.flatnonzero(flat[0])
    numbers = [(c.patients, int(c.sample.sum()), *c.class_patients) for c in findings.each]
    return to_int32(
        {
            "finding_scores": flat[:, columns],
            "finding_columns": columns,
            "finding_shape": np.array([*scores.shape, findings.patients, findings.images]),
            "finding_numbers": np.array(numbers),
        }
    )


def from_tensors(tensors: Mapping[str, Tensor]) -> Findings:
    """Unpack what `to_tensors` packed.

    Raises:
        ValueError: naming everything that keeps the tensors from being counts of findings.
    """
    if wrong := _find_format_problems(tensors):
        raise ValueError("these tensors are no counts of findings: " + "; ".join(wrong))
    arrays = {name: tensors[name].numpy().astype(np.int64) for name in PARTS}
    *shape, patients, images = arrays["finding_shape"].tolist()
    scores = np.zeros((shape[0], math.prod(shape[1:])), np.int64)
    scores[:, arrays["finding_columns"]] = arrays["finding_scores"]
    scores = scores.reshape(shape)
    numbers = arrays["finding_numbers"]
    known = scores[0].sum(axis=(1, 2))
    if (known != numbers[:, 1]).any() or known.max() > images or numbers[:, 0].max() > patients:
        raise ValueError("these tensors are no counts of findings: bins and numbers do not count the same images")
    each = (_build_counts(scores[:, k : k + 1], numbers[k]) for k in range(shape[1]))
    return Findings(tuple(each), patients, images)


def release_findings(
    states: Ints, probabilities: Floats, patients: Ints, *, noise: float, numbers: Sequence[int], add_noise: AddNoise
) -> dict[str, Tensor]:
    """The noised histograms of all findings, float32: finding_scale (K, TREE) and finding_noised (2 K, bins).

    noise: standard deviation of the one histogram that would cost as much as all of them. numbers: `NUMBERS` of each
    finding, which are declared or released beside them. add_noise: as in `votes.release_histograms`. A finding that
    nobody knows by these numbers has zeros, so zeros tell nothing that the numbers do not.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    s, p, who = _check_arguments(states, probabilities, patients, 0, fewest=0)
    scale, noised = [], []
    for k, (column, scores) in enumerate(zip(s.T, p.T, strict=True)):
        known, (patients_known, _, *class_patients) = column != UNKNOWN, numbers[NUMBERS * k : NUMBERS * (k + 1)]
        if not patients_known:
            scale.append(np.zeros(TREE))
            noised.append(np.zeros((2, NOISED_BINS)))
            continue
        release = release_histograms(
            column[known],
            np.stack([1 - scores[known], scores[known]], axis=1),
            who[known],
            noise=share_noise(noise, s.shape[1]),
            class_patients=class_patients,
            number=patients_known,
            add_noise=add_noise,
        )
        scale.append(release.levels[0])
        noised.append(release.histograms["noised"])
    arrays = {"finding_scale": np.stack(scale), "finding_noised": np.concatenate(noised)}
    return {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}


def count_finding_numbers(states: Ints, patients: Ints) -> list[int]:
    """`NUMBERS` of each finding in turn. states: (n, K). patients: (n,)."""
    return [number for column in states.T for number in _count_numbers(column, patients)]


def share_noise(noise: float, findings: int) -> float:
    """The noise of one of K findings, so that all together cost what one histogram with `noise` costs."""
    return noise * math.sqrt(findings)


def from_noised_tensors(
    tensors: Mapping[str, Tensor], facts: Mapping[str, object], *, copies: int, seed: int
) -> Findings:
    """Findings from a received message: the tensors of `release_findings` and the facts noise, patients, images and
    finding_patients, its numbers.

    Copies of different findings are drawn independently, and the patients are the same: so they are paired by their
    AUC, the lowest of one with the lowest of all others. An interval of their mean is then rather too wide.

    Raises:
        ValueError: naming everything that keeps them from being noised findings.
    """
    if wrong := _find_noised_problems(tensors, facts, copies):
        raise ValueError("these are no noised findings: " + "; ".join(wrong))
    numbers = np.array(facts["finding_patients"], np.int64).reshape(-1, NUMBERS)
    levels, noised = (tensors[name].numpy().astype(np.float64) for name in ("finding_scale", "finding_noised"))
    noise = share_noise(float(str(facts["noise"])), len(numbers))
    each = [
        _build_noised_counts(levels[k], noised[2 * k : 2 * k + 2], noise, numbers[k].tolist(), copies, seed)
        for k in range(len(numbers))
    ]
    order = make_generator(seed, noised.tobytes()).permutation(copies)
    paired = (_reorder_copies(counts, order) for counts in each)
    return Findings(tuple(paired), int(str(facts["patients"])), int(str(facts["images"])))


def list_finding_measures(names: Sequence[str], *, exact: bool) -> tuple[Measure, ...]:
    """Means over the findings that can be assessed, AUC among them; and AUC, sensitivity and specificity of each.

    exact: whether counts have no noise; otherwise their bins are too wide for Brier scores and calibration errors.
    """
    probabilities = (BRIER, CALIBRATION) if exact else ()
    means = (*MEASURES, SENSITIVITY, SPECIFICITY, *probabilities)
    by_kind = {AUC.name: AUC, SENSITIVITY.name: SENSITIVITY, SPECIFICITY.name: SPECIFICITY}

    def make_measure(measure: Measure, k: int) -> Measure:
        return replace(
            measure,
            name=class_measure_name(measure.name, names[k]),
            of=lambda findings: measure.of(findings.each[k]),
            rests=lambda findings: compute_support(findings.each[k]),
        )

    return (
        *(replace(measure, of=partial(_compute_mean, of=measure.of), rests=compute_mean_support) for measure in means),
        *(make_measure(by_kind[kind], k) for kind in KINDS for k in range(len(names))),
    )


def find_mean_findings(findings: Findings) -> NDArray[np.bool_]:
    """(K,): the findings over which a mean is taken, as `metrics.select_assessable` has it."""
    return select_assessable([compute_support(counts) for counts in findings.each])


def compute_mean_support(findings: Findings) -> Support:
    """The support of a mean over findings: that of the rarest of them."""
    each = [compute_support(findings.each[k]) for k in np.flatnonzero(find_mean_findings(findings)).tolist()]
    noise, largest = findings.noise, max(support.class_noise for support in each)
    joined = join_supports(each)
    return replace(joined, patients=findings.patients, images=findings.images, noise=noise, class_noise=largest)


def _compute_mean(findings: Findings, *, of: Callable[[Counts], Floats]) -> Floats:
    """(1 + B,): the mean of a measure over the findings of `find_mean_findings`."""
    chosen = np.flatnonzero(find_mean_findings(findings)).tolist()
    return np.asarray(np.mean([of(findings.each[k]) for k in chosen], axis=0))


def _check_arguments(
    states: Ints, probabilities: Floats, patients: Ints, copies: int, *, fewest: int = 1
) -> tuple[Ints, Floats, Ints]:
    """The arguments as arrays. fewest: images; with noise there may be none. Raises: ValueError."""
    s, p, who = np.asarray(states), np.asarray(probabilities, np.float64), np.asarray(patients)
    wrong = [] if copies >= 0 else [f"copies is {copies}, allowed is 0 or more"]
    if p.ndim != 2 or len(p) < fewest or p.shape[1] < 1 or s.shape != p.shape:
        needed = f"(n, K) of both, n >= {fewest} and K >= 1"
        wrong.append(f"states and probabilities are {s.shape} and {p.shape}, needed is {needed}")
    if who.shape != p.shape[:1] or not np.issubdtype(who.dtype, np.integer):
        wrong.append(f"patients are {who.shape} of {who.dtype}, needed is {p.shape[:1]} of integers")
    if not wrong and not np.isin(s, (0, 1, UNKNOWN)).all():
        wrong.append("states hold other numbers than 0, 1 and 2")
    if not wrong and not ((p >= 0) & (p <= 1)).all():
        wrong.append("probabilities are not in [0, 1]; give the sigmoid of the model's logits")
    if wrong:
        raise ValueError("cannot count findings: " + "; ".join(wrong))
    return s.astype(np.int64), p, who.astype(np.int64)


def _count_numbers(column: Ints, patients: Ints) -> list[int]:
    """`NUMBERS` of one finding."""
    known = column != UNKNOWN
    groups: Iterable[NDArray[np.bool_]] = (known, column == 0, column == 1)
    everybody, without, having = (int(np.unique(patients[group]).size) for group in groups)
    return [everybody, int(known.sum()), without, having]


def _build_counts(scores: Ints, numbers: Sequence[int]) -> Counts:
    """Counts of one finding, whose confusion at 0.5 follows from its bins (1 + B, 1, 2, bins)."""
    half = scores.shape[-1] // 2
    confusion = np.stack([scores[:, 0, :, :half].sum(axis=-1), scores[:, 0, :, half:].sum(axis=-1)], axis=-1)
    return Counts(pack_scores(scores), confusion, int(numbers[0]), (int(numbers[2]), int(numbers[3])))


def _build_noised_counts(
    levels: Floats, noised: Floats, noise: float, numbers: Sequence[int], copies: int, seed: int
) -> Counts:
    """Counts of one finding from what was released of it; empty ones where nobody knows it."""
    patients, images, *class_patients = numbers
    if not patients:
        empty = np.zeros((1 + copies, 1, 2, CELLS), np.int64)
        return replace(_build_counts(empty, numbers), noise=noise, scale=ODDS)
    return from_noised(
        Release(levels[None], {"noised": noised}),
        noise=noise,
        patients=patients,
        images=images,
        class_patients=(class_patients[0], class_patients[1]),
        copies=copies,
        seed=seed,
    )


def _reorder_copies(counts: Counts, order: Ints) -> Counts:
    """The counts with their copies sorted by AUC, and then all in the given order."""
    rank = np.argsort(auc(counts.scores[1:, 0]), kind="stable")
    places = np.concatenate([[0], 1 + rank[order]])
    packed = replace(counts.packed, values=counts.packed.values[places])
    return replace(counts, packed=packed, confusion=counts.confusion[places])


def _find_format_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    """Problems that are visible before unpacking."""
    wrong = find_type_problems(tensors, dict.fromkeys(PARTS, torch.int32))
    if set(tensors) != set(PARTS):
        return wrong
    shape = tuple(tensors["finding_shape"].tolist()) if tensors["finding_shape"].dim() == 1 else ()
    if len(shape) != 6 or min(shape) < 1 or shape[2] != 2 or shape[3] % 2:
        return [*wrong, f"finding_shape is {shape}, needed are 1 + copies, findings, 2, bins, patients and images"]
    return wrong + find_packing_problems(tensors, "finding_", shape[:4], {"finding_numbers": (shape[1], NUMBERS)})


def _find_noised_problems(tensors: Mapping[str, Tensor], facts: Mapping[str, object], copies: int) -> list[str]:
    """Problems of noised findings that `noised.from_noised` does not find."""
    missing = [name for name in ("noise", "patients", "images", "finding_patients") if name not in facts]
    if set(tensors) != set(NOISED_PARTS) or missing:
        return [f"found the tensors {sorted(tensors)}; the facts lack {', '.join(missing) or 'nothing'}"]
    wrong, numbers = find_type_problems(tensors, dict.fromkeys(NOISED_PARTS, torch.float32)), facts["finding_patients"]
    if not isinstance(numbers, list) or not numbers or len(numbers) % NUMBERS:
        return [*wrong, f"finding_patients must be {NUMBERS} numbers of each finding"]
    counts = [*numbers, facts["patients"], facts["images"]]
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**31 for n in counts):
        wrong.append("numbers of patients and images must be whole")
    wrong += find_noise_problems(facts["noise"])
    findings = len(numbers) // NUMBERS
    wrong += find_size_problems(
        tensors, {"finding_scale": (findings, TREE), "finding_noised": (2 * findings, NOISED_BINS)}
    )
    if findings * 2 * CELLS * (1 + copies) > LARGEST:
        wrong.append(f"{1 + copies} samples of {findings} findings are too many, allowed are {LARGEST} cells")
    return wrong


MEAN_AUC = list_finding_measures((), exact=True)[0]
"""The macro AUC, by which findings are compared."""
