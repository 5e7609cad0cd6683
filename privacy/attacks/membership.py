"""Membership inference attacks on a trained model and on a pool of synthetic images, each with a control.

The unit is the patient: a patient has one score, the mean over their images, however many images there are.

A successful attack shows that something leaks. A failed one does not show that nothing leaks:
these are weak attacks; published ones with shadow models find more (Carlini et al., Membership inference attacks from
first principles, 2022). The control is the same attack where training images were copied. If it fails there too, the
attack shows nothing at all.

An AUC above 0.5 is no proof of a leak either. Members and others are different patients, and if they differ by
cohort (scanner, year, how they were split), images of a model that never saw the members can look nearer to them: 0.62
to 0.71 was measured. So draw both from the same patients at random, and compare with a pool that never saw them.

Results depend on patients and have no noise: they stay at the hospital, or leave as a non-private event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privacy.principal_components import fit_components

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST = 5  # patients on either side
COPIES = 1000  # bootstrap copies
LEVEL = 0.95


@dataclass(frozen=True)
class Membership:
    """Result of an attack. NaN throughout, with a reason, if there are too few patients.

    auc: probability that a member's score is above another patient's. low, high: 95 % bootstrap interval over patients.
    tpr_at_1, tpr_at_10: share of members found at a false positive rate of 1 % or 10 %. control_auc: auc
    of the same attack on copies of the members' images. members, others: patients.
    """

    auc: float
    low: float
    high: float
    tpr_at_1: float
    tpr_at_10: float
    control_auc: float
    members: int
    others: int
    reason: str | None = None


def attack(members: ArrayLike, others: ArrayLike, *, control: tuple[ArrayLike, ArrayLike], seed: int = 0) -> Membership:
    """How well scores separate members from others, with the same for the control.

    The interval is a percentile bootstrap in which both sides' patients are resampled (Efron and Tibshirani 1993); if
    all scores of one side are above the other's it has no width. With n < 100 other patients, a rate of 1 % means none
    of them.

    Args:
        members: (n,) one score per patient, higher for likely members. others: (m,).
        control: the same for copies: (members' scores, others' scores), of any number of patients.
        seed: of the bootstrap.

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    from sklearn.metrics import roc_auc_score, roc_curve  # slow to import

    inside, outside = _to_scores(members), _to_scores(others)
    copied, fresh = _to_scores(control[0]), _to_scores(control[1])
    named = {"members": inside, "others": outside, "control[0]": copied, "control[1]": fresh}
    _refuse_flaws("attack", [_find_flaw(name, values, 1) for name, values in named.items()])
    if too_few := _too_few(len(inside), len(outside)):
        return too_few
    is_member, scores = _label_scores(inside, outside)
    low, high = _bootstrap_interval(inside, outside, seed)
    false, true, _ = roc_curve(is_member, scores, drop_intermediate=False)
    return Membership(
        auc=float(roc_auc_score(is_member, scores)),
        low=low,
        high=high,
        tpr_at_1=float(true[false <= 0.01].max()),
        tpr_at_10=float(true[false <= 0.10].max()),
        control_auc=float(roc_auc_score(*_label_scores(copied, fresh))) if len(copied) and len(fresh) else math.nan,
        members=len(inside),
        others=len(outside),
    )


def model_membership(
    member_losses: ArrayLike,
    member_patients: ArrayLike,
    other_losses: ArrayLike,
    other_patients: ArrayLike,
    *,
    member_images: ArrayLike,
    other_images: ArrayLike,
    control_noise: float = 0.1,
    seed: int = 0,
) -> Membership:
    """Attack on a trained model by its losses: members have lower losses (Yeom et al., Privacy risk in
    machine learning, CSF 2018).

    The control is a model that memorizes: it stores the members' images with noise, and its loss on an image is the
    distance to the nearest stored one.

    Args:
        member_losses: (n,) of training images. member_patients: (n,) int, their patients. member_images: (n, ...).
        other_losses, other_patients, other_images: of patients of the same hospital who were held out.
        control_noise: standard deviation of the copies' noise, in standard deviations of the members' pixels.

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    losses = {"member_losses": _to_scores(member_losses), "other_losses": _to_scores(other_losses)}
    inside, outside = _to_patient_rows(member_images, member_patients), _to_patient_rows(other_images, other_patients)
    wrong = [_find_flaw(name, values, 1) for name, values in losses.items()]
    wrong += [
        *_list_flaws("member", *inside),
        *_list_flaws("other", *outside),
        _describe_overlap(inside[1], outside[1]),
    ]
    wrong += [_noise_flaw(control_noise), _describe_shape_difference(members=inside[0], others=outside[0])]
    for (name, values), (_, patients) in zip(losses.items(), (inside, outside), strict=True):
        if values.shape != patients.shape:
            wrong.append(f"{name} have shape {values.shape}, needed is one for each of {len(patients)} images")
    _refuse_flaws("model_membership", wrong)
    if too_few := _too_few(len(np.unique(inside[1])), len(np.unique(outside[1]))):
        return too_few
    members, non_members = _drop_repeated(*inside), _drop_repeated(*outside)
    return attack(
        -_mean_by_patient(losses["member_losses"], inside[1]),
        -_mean_by_patient(losses["other_losses"], outside[1]),
        control=_compute_nearness(
            _make_noisy_copies(members[0], len(members[0]), control_noise, seed), members, non_members
        ),
        seed=seed,
    )


def pool_membership(
    pool: ArrayLike,
    members: ArrayLike,
    member_patients: ArrayLike,
    others: ArrayLike,
    other_patients: ArrayLike,
    *,
    control_noise: float = 0.1,
    components: int | None = None,
    seed: int = 0,
) -> Membership:
    """Attack on synthetic images: members are patients whose images are nearer to the pool (Chen et al., GAN-Leaks, CCS
    2020, with the patient as the unit).

    The control is a pool of equally many images that copies members: their images, drawn at random, with noise. A small
    pool can copy few of them; then the control shows how little this attack would find.

    Args:
        pool: (s, ...) images. members: (n, ...) the generator's training images, others: (m, ...) of patients of the
            same hospital who were held out. member_patients: (n,) int, other_patients: (m,) int.
        control_noise: standard deviation of the copies' noise, in standard deviations of the members' pixels.
        components: measure distances in that many principal components of the members' and others' images; None: in
            pixels.

    Raises:
        ValueError: naming every argument that is not allowed.
    """
    made, inside, outside = (
        _to_rows(pool),
        _to_patient_rows(members, member_patients),
        _to_patient_rows(others, other_patients),
    )
    wrong = [_find_flaw("pool", made, 2), *_list_flaws("member", *inside), *_list_flaws("other", *outside)]
    wrong += [_describe_overlap(inside[1], outside[1]), _noise_flaw(control_noise)]
    wrong.append(_describe_shape_difference(pool=made, members=inside[0], others=outside[0]))
    if len(made) == 0:
        wrong.append("pool is empty")
    if components is not None and components < 1:
        wrong.append(f"components is {components}, allowed is 1 or more, or None")
    _refuse_flaws("pool_membership", wrong)
    if too_few := _too_few(len(np.unique(inside[1])), len(np.unique(outside[1]))):
        return too_few
    known, held_out = _drop_repeated(*inside), _drop_repeated(*outside)
    copies = _make_noisy_copies(known[0], len(made), control_noise, seed)
    if components is not None:
        everything = np.concatenate([known[0], held_out[0]])
        space = fit_components(everything, min(components, *everything.shape), seed=seed)
        made, copies = space.transform(made), space.transform(copies)
        known, held_out = ((space.transform(images), patients) for images, patients in (known, held_out))
    scores = _compute_nearness(made, known, held_out)
    return attack(*scores, control=_compute_nearness(copies, known, held_out), seed=seed)


def _compute_nearness(
    references: Floats, members: tuple[Floats, Ints], non_members: tuple[Floats, Ints]
) -> tuple[Floats, Floats]:
    """Minus each patient's mean distance to the nearest of `references`, for the members and for the others."""
    from sklearn.neighbors import NearestNeighbors  # slow to import

    index = NearestNeighbors(n_neighbors=1).fit(references)
    inside, outside = (
        -_mean_by_patient(index.kneighbors(images)[0][:, 0], patients) for images, patients in (members, non_members)
    )
    return inside, outside


def _make_noisy_copies(images: Floats, count: int, noise: float, seed: int) -> Floats:
    """(count, d): images with noise, each used again only after all were used."""
    generator = np.random.default_rng(seed)
    rounds = [generator.permutation(len(images)) for _ in range(-(-count // len(images)))]
    chosen = images[np.concatenate(rounds)[:count]]
    return np.asarray(chosen + generator.normal(0.0, noise * float(images.std()), chosen.shape))


def _drop_repeated(images: Floats, patients: Ints) -> tuple[Floats, Ints]:
    """Without a patient's repeated images, in a canonical order: neither repetition nor order changes a figure."""
    keys = [(int(whose), image.tobytes()) for whose, image in zip(patients, images, strict=True)]
    first = {key: place for place, key in enumerate(keys)}
    places = [first[key] for key in sorted(first)]
    return images[places], patients[places]


def _mean_by_patient(values: Floats, patients: Ints) -> Floats:
    """(P,) in the order of the patients' numbers."""
    _, place, count = np.unique(patients, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(place, weights=values) / count)


def _bootstrap_interval(inside: Floats, outside: Floats, seed: int) -> tuple[float, float]:
    """The lower and upper end of the AUC's percentile interval, with both sides resampled."""
    from scipy import stats  # slow to import

    def auc(a: Floats, b: Floats, axis: int = -1) -> Floats:
        above = stats.mannwhitneyu(a, b, axis=axis, method="asymptotic").statistic
        return np.asarray(above / (a.shape[axis] * b.shape[axis]))

    generator = np.random.default_rng(seed)
    result = stats.bootstrap(
        (inside, outside), auc, n_resamples=COPIES, confidence_level=LEVEL, method="percentile", rng=generator
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _label_scores(inside: Floats, outside: Floats) -> tuple[Ints, Floats]:
    """(n + m,) 1 for members and 0 for the others, and all scores in the same order."""
    return np.repeat([1, 0], [len(inside), len(outside)]), np.concatenate([inside, outside])


def _too_few(members: int, non_members: int) -> Membership | None:
    """The result without numbers, with its reason, if one side has fewer than FEWEST patients; otherwise None."""
    if min(members, non_members) >= FEWEST:
        return None
    reason = f"{members} members and {non_members} other patients: an attack needs {FEWEST} patients on either side"
    nan = math.nan
    return Membership(nan, nan, nan, nan, nan, nan, members, non_members, reason)


def _to_scores(values: ArrayLike) -> Floats:
    """The values as an array of float64."""
    return np.asarray(values, dtype=np.float64)


def _to_rows(images: ArrayLike) -> Floats:
    """Images flattened to rows (n, d); an array of one axis is returned as it is."""
    values = _to_scores(images)
    return values.reshape(len(values), math.prod(values.shape[1:])) if values.ndim > 1 else values


def _to_patient_rows(images: ArrayLike, patients: ArrayLike) -> tuple[Floats, Ints]:
    """The flattened images (n, d), and the patient of each one."""
    return _to_rows(images), np.asarray(patients)


def _find_flaw(name: str, values: Floats, dims: int) -> str:
    """A sentence on a wrong number of axes, or on values that are not finite; empty = fine."""
    if values.ndim != dims:
        return f"{name} has {values.ndim} dimensions once images are flat, needed is {dims}"
    missing = int((~np.isfinite(values)).sum())
    return f"{name} holds {missing} values that are not finite" if missing else ""


def _list_flaws(side: str, images: Floats, patients: Ints) -> list[str]:
    """The flaws of one side's images and of its patient numbers; an empty string stands for images without flaw."""
    wrong = [_find_flaw(f"{side} images", images, 2)]
    if patients.shape != images.shape[:1] or not np.issubdtype(patients.dtype, np.integer):
        wrong.append(
            f"{side}_patients have shape {patients.shape} and type {patients.dtype}, "
            f"needed is ({len(images)},) of integers"
        )
    return wrong


def _describe_overlap(members: Ints, non_members: Ints) -> str:
    """A sentence on patients that are on both sides; empty if there are none."""
    both = len(np.intersect1d(members, non_members))
    return f"{both} patients are on both sides; a patient is a member or is not" if both else ""


def _describe_shape_difference(**images: Floats) -> str:
    """A sentence that names each set's shape; empty if all are equal."""
    widths = {name: rows.shape[1:] for name, rows in images.items()}
    if len(set(widths.values())) == 1:
        return ""
    return "images must have one shape; pixels are " + ", ".join(f"{name} {width}" for name, width in widths.items())


def _noise_flaw(noise: float) -> str:
    """A sentence if the control's noise is negative or not finite; empty = fine."""
    fine = noise >= 0 and math.isfinite(noise)
    return "" if fine else f"control_noise is {noise}, allowed is a finite number >= 0"


def _refuse_flaws(attack_on: str, wrong: list[str]) -> None:
    """Raises: ValueError: there are sentences that are not empty; the error names all."""
    if flaws := [flaw for flaw in wrong if flaw]:
        raise ValueError(f"{attack_on}: " + "; ".join(flaws))
