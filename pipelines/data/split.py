"""Split patients into training, validation and test, with the same result wherever it is computed.

Splits are either stratified, to balance small ones, or independent for each patient, as differential privacy requires.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from privacy.message import Json

SPLITS = ("train", "validation", "test")
RANKS = 2**256  # number of possible values of `rank`


class Fold(NamedTuple):
    """The fold that is the test: `number` of `of`, 0 = first."""

    number: int
    of: int


def split_patients(
    labels: Mapping[str, int],
    *,
    fractions: Mapping[str, float],
    seed: int,
    test: Collection[str] = (),
    independent: bool = False,
    key: bytes = b"",
    fold: Fold | None = None,
) -> dict[str, str]:
    """Assign each patient to a split so that each split has its share of the patients, and of each class.

    labels: patient -> class (1 = any positive slice). fractions: shares of "train", "validation" and "test", which sum
    to 1, train > 0. Patients are ordered by a hash of seed and identifier, never by input order, so a new patient moves
    few others. test: the patients of the test split, which then has no others, even if none of them is in `labels`; the
    others are divided by the shares of training and validation.

    Sizes are the shares rounded by the largest remainder; counts within a class are rounded up or down towards these
    sizes where that is possible, a tiny class first. With few patients: training always gets one; of two patients
    (shares 0.5, 0.15, 0.35) one is for training and one for test, so each split then lacks a class, and measures that
    need both classes, such as AUC, are undefined there.

    independent: each patient's split depends only on the seed, the shares, `test` and the patient's own identifier.
    Patient-level differential privacy needs this: it clips one patient's contribution to a gradient, but in a
    stratified split one patient can move others into or out of training, which no clipping bounds. The cost: sizes are
    the shares only on average (a share s of n patients has the standard deviation sqrt(n s (1 - s))), and any split,
    training included, can lack a class or be empty.
    key: the hospital's; without it nobody can compute a known patient's split, or choose a split around a patient.
    fold: the patients of this fold are the test split (`fold_numbers`), and the others are divided by the shares of
    training and validation. With `independent` a patient's fold, too, depends on that patient only.

    Returns:
        patient -> split, sorted by patient.

    Raises:
        ValueError: the fractions are not as above, or both `test` and `fold` are given.
    """
    _check_fractions(fractions)
    if fold is not None:
        if test:
            raise ValueError(f"test: {len(test)} patients are named, and a fold is the test; give one of the two")
        numbers = fold_numbers(labels, folds=fold.of, seed=seed, independent=independent, key=key)
        test, fractions = [p for p, number in numbers.items() if number == fold.number], drop_test_share(fractions)
    if independent:
        return {patient: _independent_split(patient, fractions, seed, test, key) for patient in sorted(labels)}
    if test:  # even if none of them is in `labels`: a mistyped name must not silently lead to another test split
        test_patients = set(labels) & set(test)
        free = {patient: label for patient, label in labels.items() if patient not in test_patients}
        free_splits = split_patients(free, fractions=drop_test_share(fractions), seed=seed)
        return {patient: free_splits.get(patient, "test") for patient in sorted(labels)}
    shares = [fractions[name] for name in SPLITS]
    groups = _group_by_class(labels, lambda name: hash_patient(seed, name))
    counts = _split_counts([len(group) for group in groups], shares)
    assigned = {
        patient: name
        for group, row in zip(groups, counts, strict=True)
        for patient, name in zip(group, _split_names(row), strict=True)
    }
    return {patient: assigned[patient] for patient in sorted(assigned)}


def fold_numbers(
    labels: Mapping[str, int], *, folds: int, seed: int, independent: bool = False, key: bytes = b""
) -> dict[str, int]:
    """Patient -> fold, 0 to folds - 1, sorted by patient: each patient is in exactly one.

    Patients are assigned in turn, class by class, so that the sizes of folds, in total and per class, differ by one
    patient at most. independent, key: as in `split_patients`; folds are then even only on average.

    Raises:
        ValueError: there are fewer than two folds.
    """
    if folds < 2:
        raise ValueError(f"folds must be >= 2, found {folds}")
    if independent:
        ranks = {patient: int.from_bytes(hash_patient(seed, f"fold\0{patient}", key)) for patient in sorted(labels)}
        return {patient: place * folds // RANKS for patient, place in ranks.items()}
    ordered = [
        patient
        for group in _group_by_class(labels, lambda name: hash_patient(seed, f"fold\0{name}"))
        for patient in group
    ]
    numbers = {patient: place % folds for place, patient in enumerate(ordered)}
    return {patient: numbers[patient] for patient in sorted(numbers)}


def drop_test_share(fractions: Mapping[str, float]) -> dict[str, float]:
    """The shares of training and validation among patients outside the test split."""
    share = fractions["train"] / (fractions["train"] + fractions["validation"])
    return {"train": share, "validation": 1 - share, "test": 0.0}


def division_code(
    fractions: Mapping[str, float],
    *,
    seed: int,
    test: Collection[str],
    independent: bool,
    key: bytes,
    fold: Fold | None = None,
    part: Json = None,
    source_splits: Mapping[str, str] | None = None,
) -> str:
    """A digest of the way patients are divided, 12 hexadecimal digits: equal if all of these arguments are equal.

    With `independent`, divisions with the same code put a patient into the same split whatever the other patients are;
    without it only if all other patients are the same, too. fold, part: the test fold, and the part of a partitioned
    source, if any. given: the split of each patient, if the source divides its patients itself. key: the hospital's,
    because anyone able to compute the code could test a guess at who is in `test` (HMAC-SHA256, RFC 2104).
    """
    arguments: dict[str, Json] = {
        "fractions": dict(fractions),
        "seed": seed,
        "test": [*sorted(set(test))],
        "independent": independent,
        **({} if fold is None else {"fold": list(fold)}),
        **({} if part is None else {"part": part}),
        **({} if source_splits is None else {"given": dict(source_splits.items())}),
    }
    text = f"division {json.dumps(arguments, sort_keys=True)}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()[:12]


def _independent_split(
    patient: str, fractions: Mapping[str, float], seed: int, test: Collection[str], key: bytes
) -> str:
    """A patient's split: the cumulative share that contains the patient's hash as a fraction in [0, 1)."""
    if patient in test:
        return "test"
    open_to = [name for name in SPLITS if fractions[name] > 0 and not (test and name == "test")]
    edges = list(accumulate(Fraction(fractions[name]) for name in open_to))
    return open_to[find_share(hash_patient(seed, patient, key), edges)]


def find_share(ranked: bytes, edges: Sequence[Fraction]) -> int:
    """The share that contains a rank, as a fraction of the last edge. Exact: a float could round up to 1."""
    return bisect_right(edges, Fraction(int.from_bytes(ranked), RANKS) * edges[-1])


def _group_by_class(labels: Mapping[str, int], ranked: Callable[[str], bytes]) -> list[list[str]]:
    """Patients of each class, sorted by rank; the rarest class comes first."""
    groups: dict[int, list[str]] = {}
    for patient in sorted(labels, key=lambda name: (ranked(name), name)):
        groups.setdefault(labels[patient], []).append(patient)
    return [groups[label] for label in sorted(groups, key=lambda label: (len(groups[label]), -label))]


def _check_fractions(fractions: Mapping[str, float]) -> None:
    """Refuse fractions that are not shares of the three splits. Raises: ValueError."""
    values = [fractions.get(name, math.nan) for name in SPLITS]
    good = set(fractions) == set(SPLITS) and min(values) >= 0 and values[0] > 0 and math.isclose(sum(values), 1)
    if not good:
        raise ValueError(
            f"fractions must be shares of {', '.join(SPLITS)} that are not negative and sum to 1, with train > 0; "
            f"found {dict(fractions)}"
        )


def hash_patient(seed: int, patient: str, key: bytes = b"") -> bytes:
    """A hash of seed and identifier; with a key, nobody outside can compute a patient's split or influence it."""
    text = f"{seed}\x00{patient}".encode("utf-8", "surrogateescape")
    return hmac.new(key, text, hashlib.sha256).digest() if key else hashlib.sha256(text).digest()


def _split_names(row: Sequence[int]) -> list[str]:
    """Each split's name as often as `row` counts patients in it."""
    return [name for name, count in zip(SPLITS, row, strict=True) for _ in range(count)]


def _split_counts(sizes: Sequence[int], shares: Sequence[float]) -> list[list[int]]:
    """(classes, splits) whole numbers with row sums `sizes`, and column sums `rounded` if training gets a patient."""
    totals = round_shares(sum(sizes), shares)
    table = [[math.floor(size * share + 1e-9) for share in shares] for size in sizes]
    for row, size in zip(table, sizes, strict=True):
        wanting = [total - sum(column) for total, column in zip(totals, zip(*table, strict=True), strict=True)]
        while sum(row) < size:
            best = max(range(len(row)), key=lambda s: (wanting[s], -s))
            row[best] += 1
            wanting[best] -= 1
    if table and not any(row[0] for row in table):
        fullest = max(table, key=max)
        fullest[fullest.index(max(fullest))] -= 1
        fullest[0] += 1
    return table


def round_shares(count: int, shares: Sequence[float]) -> list[int]:
    """Largest-remainder (Hamilton) rounding of count * shares."""
    totals = [math.floor(count * share + 1e-9) for share in shares]
    rest = sorted(range(len(shares)), key=lambda s: (totals[s] - count * shares[s], s))
    for position in rest[: count - sum(totals)]:
        totals[position] += 1
    return totals
