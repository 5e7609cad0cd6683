"""Who is in training, validation and test, said a second time: slowly, in whole fractions, from the docstrings alone.

`split_patients`, `fold_numbers`, `partition` and `divided` must agree with what is written here, patient by patient,
for any labels, shares, named test patients, folds, parts and keys; and a whole cohort from a file with what they say.
"""

from __future__ import annotations

import hashlib
import hmac
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pipelines.data.cohort import Reading, read_cohort
from pipelines.data.images import Features
from pipelines.data.partition import Part, divide_patients, partition_patients
from pipelines.data.sources import TableSource
from pipelines.data.split import SPLITS, Fold, fold_numbers, split_patients

patients = st.dictionaries(st.text("abcü019 ", min_size=1, max_size=4), st.integers(0, 1), max_size=14)
shares = st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 20)).map(
    lambda parts: dict(zip(SPLITS, (part / sum(parts) for part in parts), strict=True))
)
seeds = st.integers(0, 2**32)
keys = st.sampled_from([b"", b"k" * 32])
NEAR = Fraction(1, 10**9)


# The second implementation


def place(seed: int, text: str, key: bytes = b"") -> Fraction:
    """Where a name falls in [0, 1): SHA-256, or HMAC under a key, of seed, 0 and name, read as a binary fraction."""
    data = f"{seed}\0{text}".encode("utf-8", "surrogateescape")
    found = hmac.new(key, data, "sha256") if key else hashlib.sha256(data)
    return Fraction(int(found.hexdigest(), 16), 2**256)


def of_two(fractions: dict[str, float]) -> list[tuple[str, Fraction]]:
    """The shares of training and validation where the test is given."""
    train, validation = (Fraction(fractions[name]) for name in ("train", "validation"))
    return [("train", train / (train + validation)), ("validation", validation / (train + validation))]


def alone(patient: str, fractions: dict[str, float], seed: int, test: Any, key: bytes, given_test: bool) -> set[str]:
    """The splits in which a patient may be for himself: one, or two where he falls on an edge to nine digits."""
    if patient in test:
        return {"test"}
    total = sum(Fraction(fractions[name]) for name in SPLITS)
    laid = of_two(fractions) if given_test else [(name, Fraction(fractions[name]) / total) for name in SPLITS]
    x, low, found = place(seed, patient, key), Fraction(0), set[str]()
    for name, share in laid:
        if share > 0 and low - NEAR <= x < low + share + NEAR:
            found.add(name)
        low += share
    return found


def by_largest_remainder(count: int, share: list[Fraction]) -> list[int]:
    exact = [count * one for one in share]
    whole = [int(one + NEAR) for one in exact]
    for _ in range(count - sum(whole)):
        rest = [one - had for one, had in zip(exact, whole, strict=True)]
        whole[max(range(len(rest)), key=lambda s: (round(rest[s], 12), -s))] += 1
    return whole


def classes(labels: dict[str, int], seed: int, text: str = "") -> list[list[str]]:
    """Patients of each class by hash; a tiny class first, of two equal ones the positive."""
    groups = [[p for p in labels if labels[p] == label] for label in (1, 0)]
    groups = [sorted(group, key=lambda p: (place(seed, text + p), p)) for group in groups if group]
    return sorted(groups, key=len)


def check_stratified(found: dict[str, str], labels: dict[str, int], laid: list[tuple[str, Fraction]], seed: int):
    """Sizes, counts within each class, and that within a class a patient's split follows from the order of hashes."""
    assert set(found) == set(labels)
    if not labels:
        return
    share = [one for _, one in laid]
    sizes = by_largest_remainder(len(labels), share)
    here = [list(found.values()).count(name) for name, _ in laid]
    if sizes[0] == 0:  # training always gets a patient: from one of the others
        assert here[0] == 1 and sum(abs(a - b) for a, b in zip(here, sizes, strict=True)) == 2
    else:
        assert sum(here) == len(labels)
        exact = [len(labels) * one for one in share]
        more = [number - int(value) for number, value in zip(here, exact, strict=True)]
        assert set(more) <= {0, 1}
        rest = {
            extra: [value - int(value) for value, m in zip(exact, more, strict=True) if m == extra] for extra in (0, 1)
        }
        # Largest remainders first; between equal ones the last digit of a float decides, and either is right.
        assert not (rest[0] and rest[1]) or min(rest[1]) >= max(rest[0]) - Fraction(1, 10**9)
    for group in classes(labels, seed):
        order = [[name for name, _ in laid].index(found[p]) for p in group]
        assert order == sorted(order), "by hash: first training, then validation, then test"
        for number, (_, one) in enumerate(laid):
            exact = len(group) * one
            assert exact - 2 < order.count(number) < exact + 2


def dealt(labels: dict[str, int], folds: int, seed: int) -> dict[str, int]:
    """Like cards, class by class."""
    deck = [patient for group in classes(labels, seed, "fold\0") for patient in group]
    return {patient: number % folds for number, patient in enumerate(deck)}


def fallen(labels: dict[str, int], folds: int, seed: int, key: bytes) -> dict[str, int]:
    """Each patient's fold for himself."""
    return {patient: int(place(seed, f"fold\0{patient}", key) * folds) for patient in labels}


# The law


@settings(max_examples=150)
@given(patients, shares, seeds, keys, st.data())
def test_each_for_himself(labels, fractions, seed, key, data):
    test = data.draw(st.lists(st.sampled_from([*labels, "nobody"]), max_size=3))
    found = split_patients(labels, fractions=fractions, seed=seed, test=test, independent=True, key=key)
    assert list(found) == sorted(labels)
    for patient, split in found.items():
        assert split in alone(patient, fractions, seed, test, key, bool(test))
    if test:
        assert {p for p, split in found.items() if split == "test"} == set(labels) & set(test)


@settings(max_examples=150)
@given(patients, shares, seeds, st.data())
def test_stratified_and_those_who_are_named_are_the_test_and_nobody_else_is(labels, fractions, seed, data):
    test = set(data.draw(st.lists(st.sampled_from([*labels, "nobody"]), max_size=4)))
    found = split_patients(labels, fractions=fractions, seed=seed, test=tuple(test))
    held = set(labels) & test
    free = {p: label for p, label in labels.items() if p not in held}
    if test:
        assert {p for p, split in found.items() if split == "test"} == held, "even if none of them is here"
        check_stratified({p: found[p] for p in free}, free, of_two(fractions), seed)
    else:
        check_stratified(found, labels, [(name, Fraction(fractions[name])) for name in SPLITS], seed)


@settings(max_examples=150)
@given(patients, st.integers(2, 5), seeds, keys, st.booleans())
def test_folds(labels, folds, seed, key, independent):
    found = fold_numbers(labels, folds=folds, seed=seed, independent=independent, key=key)
    wanted = fallen(labels, folds, seed, key) if independent else dealt(labels, folds, seed)
    assert found == wanted and list(found) == sorted(labels)


@settings(max_examples=100)
@given(patients, shares, seeds, keys, st.booleans(), st.integers(2, 4), st.data())
def test_the_patients_of_a_fold_are_the_test(labels, fractions, seed, key, independent, of, data):
    number = data.draw(st.integers(0, of - 1))
    said: dict[str, Any] = {"fractions": fractions, "seed": seed, "key": key, "independent": independent}
    found = split_patients(labels, fold=Fold(number, of), **said)
    folds = fallen(labels, of, seed, key) if independent else dealt(labels, of, seed)
    held = {p for p in labels if folds[p] == number}
    assert {p for p, split in found.items() if split == "test"} == held
    free = {p: label for p, label in labels.items() if p not in held}
    if independent:
        assert all(found[p] in alone(p, fractions, seed, (), key, True) for p in free)
    else:
        check_stratified({p: found[p] for p in free}, free, of_two(fractions), seed)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(st.sampled_from(["even", "dirichlet", "practical", "pathological"]))
    of = draw(st.integers(3 if kind == "practical" else 2, 5))
    more = {"dirichlet": {"alpha": 0.5}, "pathological": {"classes": 2}}.get(kind, {})
    said = {"kind": kind, "of": of, "number": draw(st.integers(1, of)), "seed": draw(st.integers(0, 99)), "least": 0}
    return TypeAdapter(Part).validate_python({**said, **more, "tests": draw(st.sampled_from(["own", "source"]))})


@settings(max_examples=150)
@given(patients, parts(), st.booleans())
def test_parts_are_dealt_in_the_order_of_hashes_by_shares_that_no_patient_moves(labels, part, independent):
    found = partition_patients(labels, part, independent=independent)
    assert list(found) == sorted(labels)
    groups = [list(labels)] if part.kind == "even" else [[p for p in labels if labels[p] == kind] for kind in (0, 1)]
    for group in groups:
        order = sorted(group, key=lambda p: (place(part.seed, f"part\0{p}"), p))
        numbers = [found[p] for p in order]
        assert numbers == sorted(numbers) and set(numbers) <= set(range(1, part.of + 1))
        if part.kind != "even":
            continue
        even = [Fraction(1, part.of)] * part.of
        if independent:
            assert numbers == [int(place(part.seed, f"part\0{p}") * part.of) + 1 for p in order]
        else:
            assert [numbers.count(n + 1) for n in range(part.of)] == by_largest_remainder(len(group), even)


@settings(max_examples=200)
@given(patients, parts(), shares, seeds, keys, st.booleans(), st.sampled_from([None, (0, 3), (2, 3)]), st.data())
def test_a_part_is_split_as_its_patients_alone_and_a_shared_test_is_nobodys_training(
    labels, part, fractions, seed, key, independent, fold, data
):
    test = () if fold else tuple(data.draw(st.lists(st.sampled_from([*labels, "nobody"]), max_size=3)))
    where = None if fold is None else Fold(*fold)
    how: dict[str, Any] = {"seed": seed, "independent": independent}
    found = divide_patients(labels, part, fractions=fractions, test=test, key=key, fold=where, **how)
    if part.tests == "source":
        whole = split_patients(labels, fractions=fractions, test=test, fold=where, **how)
        held = {p for p, split in whole.items() if split == "test"}
    else:
        held = set()
    free = {p: label for p, label in labels.items() if p not in held}
    places = partition_patients(free, part, independent=independent)
    own = {p: label for p, label in free.items() if places[p] == part.number}
    assert found.places == places and set(found.splits) == set(own) | held
    assert all(found.splits[p] == "test" for p in held)
    mine, given_test = {p: found.splits[p] for p in own}, bool(test) or part.tests == "source" or fold is not None
    if part.tests == "own" and fold:
        at = fallen(own, fold[1], seed, key) if independent else dealt(own, fold[1], seed)
        named = {p for p in own if at[p] == fold[0]}
    else:
        named = set(own) & set(test) if part.tests == "own" else set()
    assert {p for p, split in mine.items() if split == "test"} >= named
    if given_test:
        assert {p for p, split in mine.items() if split == "test"} == named
    rest = {p: label for p, label in own.items() if p not in named}
    if independent:
        assert all(mine[p] in alone(p, fractions, seed, (), key, given_test) for p in rest)
    else:
        laid = of_two(fractions) if given_test else [(name, Fraction(fractions[name])) for name in SPLITS]
        check_stratified({p: mine[p] for p in rest}, rest, laid, seed)


# A whole cohort


def cohort(folder: Path, lines: int = 30, **said: Any) -> Reading:
    text = "".join(f"P{number:02},{number * 7 % 11},{number % 2}\n" for number in range(lines))
    (folder / "t.csv").write_text(f"id,age,ill\n{text}")
    source = TableSource(file=str(folder / "t.csv"), patient="id", label="ill")
    images = Features(numbers=("age",), normalize="none")
    usual = {"fractions": {"train": 0.5, "validation": 0.2, "test": 0.3}, "seed": 4, "key": b"k" * 32}
    return read_cohort(source, None, images, **{**usual, **said})


def splits_of(reading: Reading) -> dict[str, str]:
    """Identifier -> split, from the cohort itself."""
    found: dict[str, str] = {}
    for patient, split in zip(reading.cohort.patient.tolist(), reading.cohort.split.tolist(), strict=True):
        found[reading.names[reading.cohort.patients[patient]]] = SPLITS[split]
    return found


HOW = [
    pytest.param({"independent": independent, "test": test, "exclude": out, "part": part}, id=f"{independent}{name}")
    for independent in (False, True)
    for name, test, out, part in (
        ("", (), (), None),
        (" named", ("P03", "P04", "P29"), (), None),
        (" excluded", (), ("P05", "P07"), None),
        (" both", ("P03", "P05"), ("P05",), None),
        (" nobody here", ("Q1",), (), None),
        (" part", ("P03", "P04", "P10"), ("P05",), Part(kind="even", of=2, number=1)),
        (" source", ("P03", "P04"), (), Part(kind="even", of=2, number=2, tests="source")),
    )
]


@pytest.mark.parametrize("how", HOW)
def test_a_cohort_is_split_as_its_patients_are(tmp_path, how):
    read = cohort(tmp_path, **how)
    labels = {f"P{number:02}": number % 2 for number in range(30)}
    here = {p: label for p, label in labels.items() if p not in how["exclude"]}
    said = {"fractions": {"train": 0.5, "validation": 0.2, "test": 0.3}, "seed": 4, "key": b"k" * 32}
    wanted = divide_patients(here, how["part"], test=how["test"], independent=how["independent"], **said)
    found = splits_of(read)
    assert found == wanted.splits
    named = set(how["test"]) - set(how["exclude"])
    if how["test"]:
        assert {p for p, split in found.items() if split == "test"} == named & set(found)
    assert not set(how["exclude"]) & set(found)


def test_two_cohorts_have_one_name_of_their_division_only_where_nothing_that_divides_differs(tmp_path):
    """Charges of splits of one cut are not added up: another division under the same name would be half as dear."""
    ways: list[dict[str, Any]] = [
        {},
        {"test": ("P03",)},
        {"test": ("P03", "P04")},
        {"seed": 5},
        {"key": b"l" * 32},
        {"fold": Fold(0, 3)},
        {"fold": Fold(1, 3)},
        {"fractions": {"train": 0.6, "validation": 0.1, "test": 0.3}},
        {"part": Part(kind="even", of=2, number=1)},
        {"part": Part(kind="even", of=2, number=2)},
        {"independent": False},
    ]
    cuts = [cohort(tmp_path, **{"independent": True, **way}).cohort.recipe["cut"] for way in ways]
    assert len(set(map(str, cuts))) == len(ways)
    assert cohort(tmp_path, independent=True, exclude=("P07",)).cohort.recipe["cut"] == cuts[0]
    assert cohort(tmp_path, independent=True, lines=20).cohort.recipe["cut"] == cuts[0], "whoever else is there"
