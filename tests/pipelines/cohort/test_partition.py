"""A source dealt out over several hospitals: nobody twice, everybody once, and by the shares that were asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pipelines.data.cohort import Reading, read_cohort
from pipelines.data.images import Features
from pipelines.data.partition import Divided, Part, dealing_code, divide_patients, partition_patients
from pipelines.data.sources import TableSource
from pipelines.data.split import Fold, split_patients

USUAL = {"train": 0.5, "validation": 0.2, "test": 0.3}
MANY = {f"p{number:04d}": int(number % 4 == 0) for number in range(800)}
own = st.sampled_from(["even", "dirichlet", "practical", "pathological"])
cohorts = st.dictionaries(st.text("abü019 ", min_size=1, max_size=5), st.integers(0, 1), max_size=60)


def part(kind: str, of: int = 4, **said: Any) -> Part:
    needs = {"dirichlet": {"alpha": 0.3}, "pathological": {"classes": 1}}.get(kind, {})
    return TypeAdapter(Part).validate_python({"kind": kind, "of": of, "least": 0, **needs, **said})


@st.composite
def parts(draw: st.DrawFn) -> Part:
    kind = draw(own)
    of = draw(st.integers(3 if kind == "practical" else 2, 7))
    more = {"alpha": draw(st.floats(0.05, 10))} if kind == "dirichlet" else {}
    tests = draw(st.sampled_from(["own", "source"]))
    return part(kind, of, seed=draw(st.integers(0, 2**32)), tests=tests, **more)


def at_each(labels: dict[str, int], whole: Part, **how: Any) -> list[Divided]:
    """What every hospital makes of the source, each with a key of its own."""
    said = {"fractions": USUAL, "seed": 5, **how}
    return [
        divide_patients(labels, part_of(whole, number), key=bytes([number]) * 32, **said)
        for number in range(1, whole.of + 1)
    ]


def part_of(whole: Part, number: int) -> Part:
    return TypeAdapter(Part).validate_python({**vars(whole), "number": number})


@settings(deadline=None)
@given(cohorts, parts(), st.booleans(), st.sampled_from([None, Fold(0, 3), Fold(2, 3)]), st.data())
def test_no_two_parts_share_a_training_patient_and_nobody_is_trained_on_who_is_tested(
    labels: dict[str, int], whole: Part, independent: bool, fold: Fold | None, data: st.DataObject
) -> None:
    test = () if fold else tuple(data.draw(st.lists(st.sampled_from([*labels, "nobody"]), max_size=3)))
    found = at_each(labels, whole, independent=independent, fold=fold, test=test)
    shaped = Counter(p for done in found for p, split in done.splits.items() if split != "test")
    tested = [{p for p, split in done.splits.items() if split == "test"} for done in found]
    assert all(count == 1 for count in shaped.values())
    assert not set(shaped) & set().union(*tested)
    assert set(shaped) | set().union(*tested) == set(labels), "nobody is lost"
    if whole.tests == "own":
        assert sum(map(len, tested)) == len(set().union(*tested))
    else:
        assert all(one == tested[0] for one in tested)
        everyone = {"fractions": USUAL, "seed": 5, "independent": independent, "fold": fold, "test": test}
        assert tested[0] == {p for p, split in split_patients(labels, **everyone).items() if split == "test"}  # type: ignore[arg-type]
    assert len({dealing_code(part_of(whole, n), done) for n, done in enumerate(found, start=1)}) == 1


@settings(deadline=None)
@given(cohorts, parts(), st.randoms())
def test_a_partition_does_not_hang_on_the_order_of_patients(labels, whole, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(labels.items())
    random.shuffle(shuffled)
    found = partition_patients(labels, whole)
    assert partition_patients(dict(shuffled), whole) == found and list(found) == sorted(labels)
    assert set(found.values()) <= set(range(1, whole.of + 1))


@settings(deadline=None)
@given(cohorts, parts())
def test_with_independent_nobody_moves_another(labels, whole) -> None:  # type: ignore[no-untyped-def]
    found = partition_patients(labels, whole, independent=True)
    for patient in labels:
        assert partition_patients({patient: labels[patient]}, whole, independent=True) == {patient: found[patient]}


@settings(deadline=None)
@given(cohorts, st.integers(2, 9), st.integers(0, 99))
def test_even_parts_differ_by_one_patient_at_most_and_do_not_look_at_labels(labels, of, seed) -> None:  # type: ignore[no-untyped-def]
    found = partition_patients(labels, part("even", of, seed=seed))
    sizes = [list(found.values()).count(number) for number in range(1, of + 1)]
    assert max(sizes) - min(sizes) <= 1
    assert partition_patients(dict.fromkeys(labels, 1), part("even", of, seed=seed)) == found


def counted(whole: Part, labels: dict[str, int] = MANY, **how: Any) -> dict[int, list[int]]:
    found = partition_patients(labels, whole, **how)
    kinds = sorted(set(labels.values()))
    return {
        kind: [sum(labels[p] == kind and n == number for p, n in found.items()) for number in range(1, whole.of + 1)]
        for kind in kinds
    }


def test_of_twelve_practical_parts_one_has_80_percent_of_a_class_one_10_and_ten_1_percent() -> None:
    labels = {f"p{number:05d}": number % 3 for number in range(3000)}
    drawn = set()
    for seed in range(5):
        sizes = counted(part("practical", 12, seed=seed), labels, kinds=(0, 1, 2))
        assert all(sorted(row) == [10] * 10 + [100, 800] for row in sizes.values())
        drawn.add(tuple(row.index(800) for row in sizes.values()))
    assert len(drawn) > 1, "who gets most of a class follows from the seed"


@pytest.mark.parametrize("seed", range(5))
def test_a_pathological_part_has_as_many_classes_as_asked_and_every_class_has_a_part(seed: int) -> None:
    labels = {f"p{number:05d}": number % 4 for number in range(4000)}
    for classes in (1, 2):
        sizes = counted(part("pathological", 6, seed=seed, classes=classes), labels, kinds=(0, 1, 2, 3))
        has = [{kind for kind, row in sizes.items() if row[number]} for number in range(6)]
        assert all(len(one) <= classes for one in has) and set().union(*has) == {0, 1, 2, 3}
        assert sum(len(one) == classes for one in has) >= 5  # a share can be too small for one patient
    with pytest.raises(ValueError, match=r"2 parts of 1 classes leave out the classes"):
        partition_patients(labels, part("pathological", 2, classes=1), kinds=(0, 1, 2, 3))


def test_shares_of_dirichlet_parts_have_the_moments_of_that_distribution() -> None:
    """E[p] = 1/K and Var[p] = (1/K)(1 - 1/K) / (K alpha + 1), over seeds; whole patients add less than 1 / n."""
    for alpha in (0.3, 5.0):
        drawn = np.array(
            [np.array(counted(part("dirichlet", 4, alpha=alpha, seed=seed))[0]) / 600 for seed in range(100)]
        )
        assert np.allclose(drawn.sum(axis=1), 1)
        assert np.allclose(drawn.mean(axis=0), 0.25, atol=0.08)
        assert drawn.var() == pytest.approx(0.25 * 0.75 / (4 * alpha + 1), rel=0.2)


def test_an_independent_partition_has_the_shares_of_the_counted_one_on_average() -> None:
    for kind in ("even", "dirichlet", "practical", "pathological"):
        whole = part(kind, 5, seed=2)
        exact, loose = counted(whole), counted(whole, independent=True)
        for row, other in zip(exact.values(), loose.values(), strict=True):
            assert all(
                abs(a - b) <= 4 * np.sqrt(sum(row) * 0.25) * (0 < a < sum(row)) + 1
                for a, b in zip(row, other, strict=True)
            )


def test_a_part_and_the_split_within_it_have_nothing_to_do_with_each_other() -> None:
    done = at_each(MANY, part("even", 3, seed=5), independent=True)
    for one in done:
        sizes, count = Counter(one.splits.values()), len(one.splits)
        for name, share in USUAL.items():
            assert abs(sizes[name] - count * share) < 4 * np.sqrt(count * share * (1 - share))


def test_uneven_shares_are_drawn_again_until_each_part_has_enough_or_it_is_refused() -> None:
    few = {f"p{number}": number % 2 for number in range(60)}
    assert min(map(sum, zip(*counted(part("dirichlet", 4, alpha=0.1, seed=1), few).values(), strict=True))) < 8
    again = counted(part("dirichlet", 4, alpha=0.1, seed=1, least=8), few)
    assert min(map(sum, zip(*again.values(), strict=True))) >= 8
    with pytest.raises(ValueError, match=r"of 60 patients in 4 parts the smallest part gets 15 at best, and"):
        partition_patients(few, part("even", 4, least=16))
    with pytest.raises(ValueError, match=r"labels must be among \[0, 1\], found \[7\]"):
        partition_patients({"a": 7}, part("even"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"kind": "even", "of": 1}, "of must be in [2, 1000], found 1"),
        ({"kind": "practical", "of": 2}, "of must be in [3, 1000], found 2"),
        ({"kind": "even", "of": 3, "number": 4}, "number must be in [1, 3], the first part is 1, found 4"),
        ({"kind": "even", "of": 3, "number": 0}, "found 0"),
        ({"kind": "even", "of": 3, "alpha": 1.0}, "alpha: it goes with kind: dirichlet, found kind: even"),
        ({"kind": "dirichlet", "of": 3}, "alpha: missing; dirichlet needs it"),
        ({"kind": "dirichlet", "of": 3, "alpha": 0.0}, "alpha must be in [0.001, 1e6], found 0.0"),
        ({"kind": "pathological", "of": 3}, "classes: missing"),
        ({"kind": "pathological", "of": 3, "classes": 300}, "classes must be in [1, 256], found 300"),
        (
            {"kind": "even", "of": 0, "seed": -1, "least": -2},
            "found 0; seed must be >= 0, found -1; least must be >= 0",
        ),
    ],
)
def test_parts_that_make_no_sense_are_refused_all_at_once(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Part).validate_python(said)
    assert told in str(caught.value)
    with pytest.raises(ValueError, match=r"part.number: missing"):
        divide_patients({"a": 0}, part("even"), fractions=USUAL, seed=0)


def read(file: Any, number: int, **said: Any) -> Reading:
    whole = part("dirichlet", 3, alpha=1.0, seed=1, number=number, **said)
    source = TableSource(file=str(file), patient="id", label="ill")
    images = Features(numbers=("age",), normalize="none")
    return read_cohort(source, None, images, fractions=USUAL, seed=0, key=bytes([number] * 32), part=whole)


@pytest.mark.parametrize("tests", ["own", "source"])
def test_cohorts_of_the_parts_hold_each_line_once_and_all_lines_of_a_patient(tmp_path: Any, tests: str) -> None:
    rows = [f"P{number % 40},{number},{int(number % 40 < 13)}\n" for number in range(80)]  # two lines a patient
    (tmp_path / "t.csv").write_text("id,age,ill\n" + "".join(rows) + "P3,old,1\n")
    found = [read(tmp_path / "t.csv", number, tests=tests) for number in (1, 2, 3)]
    shaped: list[float] = []
    for one in found:
        cohort, said = one.cohort, one.partition
        assert said is not None and set(cohort.patients) == {*said["patients"], *said["shared_test"]}  # type: ignore[misc]
        assert set(one.names) == set(cohort.patients)
        ages = cohort.images[:, 0].tolist()
        assert [one.names[cohort.patients[p]] for p in cohort.patient.tolist()] == [f"P{int(a) % 40}" for a in ages]
        assert cohort.labels.tolist() == [int(age % 40 < 13) for age in ages]
        shaped += [age for age, split in zip(ages, cohort.split.tolist(), strict=True) if split < 2 or tests == "own"]
        assert one.facts["source_studies"] == 80 and one.facts["studies"] == len(ages)
        assert one.facts["rejected_by_reason"] == {"not_a_number": 1}
    assert len(shaped) == len(set(shaped)) == (80 if tests == "own" else 56)
    assert len({one.facts["dealing"] for one in found}) == 1
    assert found[0].partition is not None and found[1].partition is not None
    assert found[0].partition["sizes"] == found[1].partition["sizes"]
