"""The split by patient: disjoint, complete, stratified, and the same for any order of input."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.cohort.split import SPLITS, split_patients

USUAL = {"train": 0.5, "validation": 0.15, "test": 0.35}
cohorts = st.dictionaries(st.text(min_size=1, max_size=6), st.integers(0, 1), max_size=60)
shares = st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20)).map(
    lambda parts: dict(zip(SPLITS, (part / sum(parts) for part in parts), strict=True))
)


@settings(deadline=None)
@given(cohorts, shares, st.integers(0, 2**32), st.randoms())
def test_complete_deterministic_and_independent_of_order(labels, fractions, seed, random) -> None:  # type: ignore[no-untyped-def]
    found = split_patients(labels, fractions=fractions, seed=seed)
    assert set(found) == set(labels)
    assert set(found.values()) <= set(SPLITS)
    shuffled = list(labels.items())
    random.shuffle(shuffled)
    assert split_patients(dict(shuffled), fractions=fractions, seed=seed) == found
    assert list(found) == sorted(found)


@settings(deadline=None)
@given(cohorts, shares, st.integers(0, 2**32))
def test_sizes_and_classes_are_within_one_patient_of_their_shares(labels, fractions, seed) -> None:  # type: ignore[no-untyped-def]
    found = split_patients(labels, fractions=fractions, seed=seed)
    sizes = Counter(found.values())
    forced = int(len(labels) * fractions["train"] < 1)  # training gets a patient even when its share is less than one
    for name in SPLITS:
        assert abs(sizes[name] - len(labels) * fractions[name]) < 1 + 1e-6 + forced
        for label in (0, 1):
            whole = sum(value == label for value in labels.values())
            here = sum(labels[patient] == label for patient, where in found.items() if where == name)
            assert abs(here - whole * fractions[name]) < 2 + forced
    assert not labels or sizes["train"] >= 1


def test_large_classes_are_split_by_their_shares() -> None:
    labels = {f"p{number:03d}": int(number % 5 == 0) for number in range(200)}
    found = split_patients(labels, fractions=USUAL, seed=3)
    positives = Counter(where for patient, where in found.items() if labels[patient])
    assert positives == {"train": 20, "validation": 6, "test": 14}
    assert Counter(found.values()) == {"train": 100, "validation": 30, "test": 70}


@pytest.mark.parametrize("labels", [{"a": 1, "b": 0}, {"a": 0, "b": 0}, {"a": 1, "b": 1}])
@pytest.mark.parametrize("seed", range(5))
def test_two_patients_are_one_for_training_and_one_for_test(labels: dict[str, int], seed: int) -> None:
    assert Counter(split_patients(labels, fractions=USUAL, seed=seed).values()) == {"train": 1, "test": 1}


def test_one_patient_trains_and_none_is_no_error() -> None:
    assert split_patients({"a": 1}, fractions={"train": 0.1, "validation": 0.1, "test": 0.8}, seed=0) == {"a": "train"}
    assert split_patients({}, fractions=USUAL, seed=0) == {}


def test_another_seed_gives_another_split_and_a_new_patient_moves_few() -> None:
    labels = {f"p{number:03d}": number % 2 for number in range(100)}
    found = split_patients(labels, fractions=USUAL, seed=0)
    assert found != split_patients(labels, fractions=USUAL, seed=1)
    grown = split_patients({**labels, "new": 1}, fractions=USUAL, seed=0)
    assert sum(grown[patient] != where for patient, where in found.items()) <= 4


@pytest.mark.parametrize(
    "fractions",
    [
        {"train": 0.5, "test": 0.5},
        {"train": 0.5, "validation": 0.2, "test": 0.2},
        {"train": 0, "validation": 0.5, "test": 0.5},
        {"train": 1.2, "validation": -0.2, "test": 0},
        {"train": 1, "validation": 0, "test": 0, "extra": 0},
        {"train": float("nan"), "validation": 0, "test": 0},
    ],
)
def test_shares_that_are_none_are_refused(fractions: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="fractions must be shares"):
        split_patients({"a": 1}, fractions=fractions, seed=0)
