"""The split by patient: disjoint, complete, the same for any order of input, and stratified or each for himself."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.split import SPLITS, Fold, division_code, fold_numbers, split_patients

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


patients = st.dictionaries(st.text("abcPü0123 ", min_size=1, max_size=4), st.integers(0, 1), min_size=1, max_size=12)


@given(patients, shares, st.integers(0, 2**32), st.data())
def test_alone_or_among_any_others_a_patient_has_the_same_independent_split(labels, fractions, seed, data) -> None:  # type: ignore[no-untyped-def]
    test = data.draw(st.lists(st.sampled_from([*labels, "nobody"]), max_size=3))
    found = split_patients(labels, fractions=fractions, seed=seed, test=test, independent=True)
    assert list(found) == sorted(labels)
    for patient in labels:
        others = {name: label for name, label in labels.items() if name != patient}
        without = split_patients(others, fractions=fractions, seed=seed, test=test, independent=True)
        assert without == {name: where for name, where in found.items() if name != patient}
        alone = split_patients({patient: 1}, fractions=fractions, seed=seed, test=test, independent=True)
        assert alone == {patient: found[patient]}


@given(st.integers(0, 2**32))
def test_a_stratified_split_lets_one_patient_move_others(seed) -> None:  # type: ignore[no-untyped-def]
    """The reason for the independent one; if this failed, there would be none."""
    labels = {f"p{number}": number % 2 for number in range(20)}
    found = split_patients(labels, fractions=USUAL, seed=seed)
    moved = 0
    for patient in labels:
        others = {name: label for name, label in labels.items() if name != patient}
        without = split_patients(others, fractions=USUAL, seed=seed)
        moved += any(without[name] != found[name] for name in others)
    assert moved > 0


@given(patients, shares, st.integers(0, 2**32))
def test_an_independent_split_is_where_the_hash_falls_on_the_unit_interval(labels, fractions, seed) -> None:  # type: ignore[no-untyped-def]
    found = split_patients(labels, fractions=fractions, seed=seed, independent=True)
    for patient, where in found.items():
        share = int(hashlib.sha256(f"{seed}\0{patient}".encode()).hexdigest(), 16) / 16**64
        low = sum(fractions[name] for name in SPLITS[: SPLITS.index(where)])
        assert low - 1e-12 <= share < low + fractions[where] + 1e-12


@pytest.mark.parametrize("test", [(), ("p1", "p2", "nobody"), ("nobody",)])
@pytest.mark.parametrize("seed", range(3))
def test_sizes_of_an_independent_split_are_near_their_shares(seed: int, test: tuple[str, ...]) -> None:
    labels = {f"p{number}": number % 2 for number in range(4000)}
    found = split_patients(labels, fractions=USUAL, seed=seed, test=test, independent=True)
    sizes = Counter(found.values())
    free = USUAL if not test else {"train": 0.5 / 0.65, "validation": 0.15 / 0.65, "test": 0.0}
    for name in SPLITS:
        deviation = math.sqrt(len(labels) * free[name] * (1 - free[name]))
        held = len(set(test) & set(labels)) if name == "test" else 0
        assert abs(sizes[name] - held - len(labels) * free[name]) <= 4 * deviation + held


def test_a_split_without_a_share_stays_empty_and_named_patients_are_its_only_members() -> None:
    labels = {f"p{number}": 0 for number in range(500)}
    shares = {"train": 0.7, "validation": 0.3, "test": 0.0}
    assert set(split_patients(labels, fractions=shares, seed=0, independent=True).values()) == {"train", "validation"}
    for fractions in (shares, {"train": 0.1, "validation": 0.0, "test": 0.9}):
        found = split_patients(labels, fractions=fractions, seed=0, test=("p7", "p9"), independent=True)
        assert [name for name, where in found.items() if where == "test"] == ["p7", "p9"]
    assert split_patients({}, fractions=USUAL, seed=0, independent=True) == {}


def test_a_division_has_one_code_and_every_part_of_it_counts() -> None:
    def code(**changed: object) -> str:
        said: dict[str, object] = {"seed": 1, "test": ("a", "b"), "independent": True, "key": b"k" * 32}
        fractions = changed.pop("fractions", USUAL)
        return division_code(fractions, **{**said, **changed})  # type: ignore[arg-type]

    assert code() == code(test=("b", "a", "a")) == code(fractions=dict(reversed(USUAL.items())))
    others = [
        code(seed=2),
        code(test=()),
        code(test=("a",)),
        code(independent=False),
        code(key=b"l" * 32),
        code(fractions={"train": 0.5, "validation": 0.2, "test": 0.3}),
    ]
    assert all(one != other for one, other in combinations([code(), *others], 2))


@settings(deadline=None)
@given(cohorts, st.integers(2, 7), st.integers(0, 2**32))
def test_folds_are_disjoint_complete_and_even_in_size_and_in_each_class(labels, folds, seed) -> None:  # type: ignore[no-untyped-def]
    numbers = fold_numbers(labels, folds=folds, seed=seed)
    assert list(numbers) == sorted(labels) and set(numbers.values()) <= set(range(folds))
    for group in (None, 0, 1):
        sizes = [
            sum(number == fold and group in (None, labels[p]) for p, number in numbers.items()) for fold in range(folds)
        ]
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(cohorts, shares, st.integers(2, 6), st.integers(0, 2**32), st.booleans())
def test_over_all_folds_every_patient_is_tested_once(labels, fractions, folds, seed, independent) -> None:  # type: ignore[no-untyped-def]
    said = {"fractions": fractions, "seed": seed, "independent": independent, "key": b"k"}
    splits = [split_patients(labels, fold=Fold(number, folds), **said) for number in range(folds)]
    tested = Counter(patient for split in splits for patient, where in split.items() if where == "test")
    assert tested == dict.fromkeys(labels, 1)
    for split in splits:
        assert list(split) == sorted(labels)
        free = [where for where in split.values() if where != "test"]
        share = fractions["train"] / (fractions["train"] + fractions["validation"])
        forced = int(len(free) * share < 1)
        assert independent or abs(free.count("train") - len(free) * share) < 1 + 1e-6 + forced


@settings(deadline=None)
@given(patients, shares, st.integers(2, 5), st.integers(0, 2**32))
def test_alone_or_among_others_a_patient_is_in_the_same_independent_fold(labels, fractions, folds, seed) -> None:  # type: ignore[no-untyped-def]
    said = {"fractions": fractions, "seed": seed, "independent": True, "fold": Fold(0, folds), "key": b"secret"}
    found = split_patients(labels, **said)
    for patient in labels:
        assert split_patients({patient: 1}, **said) == {patient: found[patient]}


def test_independent_folds_hang_on_the_hospitals_key_and_are_even_on_average() -> None:
    labels = {f"p{number}": 0 for number in range(4000)}
    one, other = (fold_numbers(labels, folds=5, seed=0, independent=True, key=key) for key in (b"a", b"b"))
    assert one != other
    sizes = Counter(one.values())
    assert all(abs(sizes[fold] - 800) < 4 * math.sqrt(4000 * 0.2 * 0.8) for fold in range(5))
    split = split_patients(labels, fractions=USUAL, seed=0, independent=True, key=b"a", fold=Fold(2, 5))
    kinds = Counter((one[patient], where) for patient, where in split.items())
    for fold in (0, 1, 3, 4):  # the fold tells nothing of the split
        spread = math.sqrt(sizes[fold] * 0.77 * 0.23)
        assert abs(kinds[fold, "train"] - sizes[fold] * 0.5 / 0.65) < 4 * spread


def test_a_fold_and_named_test_patients_do_not_go_together_and_one_fold_is_none() -> None:
    with pytest.raises(ValueError, match=r"1 patients are named, and a fold is the test"):
        split_patients({"a": 1}, fractions=USUAL, seed=0, test=("a",), fold=Fold(0, 2))
    with pytest.raises(ValueError, match=r"folds must be >= 2, found 1"):
        fold_numbers({"a": 1}, folds=1, seed=0)


def test_folds_and_parts_count_in_the_code_of_a_division_and_nothing_else_changed_it() -> None:
    said: dict[str, object] = {"seed": 1, "test": (), "independent": True, "key": b"k" * 32}
    codes = [
        division_code(USUAL, **said, **more)  # type: ignore[arg-type]
        for more in ({}, {"fold": Fold(0, 5)}, {"fold": Fold(1, 5)}, {"fold": Fold(1, 4)}, {"part": {"number": 1}})
    ]
    assert len(set(codes)) == len(codes)
    assert codes[0] == "082a5fd849db", "ledgers hold codes: a division that was named before has the same name now"
