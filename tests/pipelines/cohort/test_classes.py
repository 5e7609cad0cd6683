"""Labels of named classes: from tables, pictures and lines, and a phantom's grade groups."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipelines.data.cohort import Cohort, Reading, from_message, read_cohort, to_message
from pipelines.data.images import Features, Pictures
from pipelines.data.label_classes import class_number
from pipelines.data.labels import open_table, table_labels
from pipelines.data.partition import Part
from pipelines.data.sources import PictureSource, TableLabels, TableSource
from pipelines.data.stored import label_names
from pipelines.data.study import Unusable
from pipelines.phantom.organs import GRADE_GROUPS, SIGNIFICANT
from pipelines.phantom.patients import draw_anatomy
from pipelines.settings.task import Classification
from privacy.settings_error import SettingsError

KINDS = ("nevus", "melanoma", "keratosis")
SHARES = {"train": 0.5, "validation": 0.25, "test": 0.25}
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True), min_size=2, max_size=9, unique=True)


def number(text: str, classes: tuple[str, ...] = (), values: Mapping[str, str] | None = None) -> int:
    return class_number(text, "it", classes, values, mend="Mend it.")


@given(NAMES, st.data())
def test_a_name_is_its_place_whatever_its_case_and_nothing_else_is_a_class(
    names: list[str], data: st.DataObject
) -> None:
    classes = tuple(names)
    for place, name in enumerate(classes):
        assert number(name, classes) == number(name.upper(), classes) == place
    other = data.draw(st.text(max_size=9).filter(lambda text: text.casefold() not in classes))
    with pytest.raises(Unusable) as told:
        number(other, classes)
    assert told.value.reason == ("bad_label" if other else "no_label") and classes[0] in told.value.detail


@given(NAMES, st.data())
def test_values_translate_a_hospitals_own_words(names: list[str], data: st.DataObject) -> None:
    classes = tuple(names)
    words = data.draw(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=9, unique=True))
    values = {word: classes[k % len(classes)] for k, word in enumerate(words)}
    assert [number(word, classes, values) for word in words] == [k % len(classes) for k in range(len(words))]


def test_without_names_only_zero_and_one_are_labels() -> None:
    assert [number(text) for text in ("0", "1", "0.0", "1.0")] == [0, 1, 0, 1]
    for text in ("2", "yes", "positive", "-0", ""):
        with pytest.raises(Unusable, match="must be 0 or 1"):
            number(text)
    assert [number(text, (), {"B": "negative", "M": "positive"}) for text in "BM"] == [0, 1]
    assert number("3.0", ("1", "2", "3")) == 2  # as spreadsheets write it


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"classes": ("a",)}, "2 to 256 different names"),
        ({"classes": ("a", "b", "a")}, "2 to 256 different names"),
        ({"classes": ("Big", "b")}, "'Big' is not made of"),
        ({"ordered": True}, "three classes or more"),
        ({"classes": ("a", "b"), "ordered": True}, "three classes or more"),
    ],
)
def test_classes_that_make_no_sense_are_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Classification(**said)


def table(tmp_path: Path, text: str, **said: Any) -> list[int]:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    opened = open_table(TableLabels(file=str(path), **said), KINDS)
    return table_labels(opened, "A", "s", [0, 1], alone=True)


def test_a_table_of_labels_tells_classes(tmp_path: Path) -> None:
    assert table(tmp_path, "patient,label\nA,Keratosis\nA,keratosis\n") == [2, 2]
    assert table(tmp_path, "patient,slice,label\nA,0,nevus\nA,1,melanoma\n", slice="slice") == [0, 1]
    own = {"mel.": "melanoma", "MM": "melanoma"}
    assert table(tmp_path, "patient,label\nA,mel.\nA,MM\n", values=own) == [1, 1]
    for text in ("patient,label\nA,nevus\nA,melanoma\n", "patient,label\nA,1\n", "patient,label\nA,nevus\nA,\n"):
        with pytest.raises(Unusable, match="bad_label"):
            table(tmp_path, text)
    with pytest.raises(SettingsError, match="'wart' are no classes of the task"):
        table(tmp_path, "patient,label\nA,x\n", values={"x": "wart"})


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """Thirty lesions, ten of each kind, one or two pictures of each; a last line of an unknown kind."""
    random = np.random.default_rng(0)
    with (tmp_path / "table.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["image", "patient", "label", "age"])
        for k in range(30):
            for view in range(1 + k % 2):
                name = f"{k}-{view}.png"
                Image.fromarray(random.integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(tmp_path / name)
                lines.writerow([name, f"P{k}", KINDS[k % 3], 20 + k])
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "last.png")
        lines.writerow(["last.png", "last", "wart", 50])
    return tmp_path


def pictures(home: Path, **said: Any) -> Reading:
    source = PictureSource(folder=str(home), table=str(home / "table.csv"))
    arguments = {"fractions": SHARES, "seed": 0, "key": b"k" * 16, "classes": KINDS, **said}
    return read_cohort(source, None, Pictures(size=8), **arguments)


def lines(home: Path, **said: Any) -> Reading:
    source = TableSource(file=str(home / "table.csv"), patient="patient", label="label")
    arguments = {"fractions": SHARES, "seed": 0, "key": b"k" * 16, "classes": KINDS, **said}
    return read_cohort(source, None, Features(numbers=("age",)), **arguments)


@pytest.mark.parametrize("read", [pictures, lines])
def test_a_cohort_has_the_classes_of_its_table_and_splits_them_evenly(hospital: Path, read: Any) -> None:
    found = read(hospital)
    cohort: Cohort = found.cohort
    assert label_names(cohort) == KINDS and [one.reason for one in found.rejected] == ["bad_label"]
    assert found.facts["classes"] == torch.bincount(cohort.labels, minlength=3).tolist() == [15, 15, 15]
    assert found.facts["positives"] == 30
    held = found.facts["splits"]
    assert [sum(one) for one in zip(*(held[split]["classes"] for split in SHARES), strict=True)] == [15, 15, 15]
    for number, share in enumerate(SHARES.values()):
        patients = {
            int(p): int(y) for p, y, s in zip(cohort.patient, cohort.labels, cohort.split, strict=True) if s == number
        }
        assert all(abs(Counter(patients.values())[kind] - 10 * share) <= 1 for kind in range(3))
    again = from_message(to_message(cohort))
    assert torch.equal(again.labels, cohort.labels) and label_names(again) == KINDS


def test_a_stored_label_beyond_the_named_classes_is_no_cohort(hospital: Path) -> None:
    message = to_message(pictures(hospital).cohort)
    message.tensors["labels"][0] = 3  # type: ignore[index]
    with pytest.raises(ValueError, match=r"labels goes from 0 to 3, 0\.\.2 is allowed"):
        from_message(message)


def test_parts_of_few_classes_hold_few_classes(hospital: Path) -> None:
    seen: Counter[str] = Counter()
    for place in range(1, 4):
        part = Part(kind="pathological", of=3, number=place, classes=1)
        own = pictures(hospital, part=part).cohort
        assert len(set(own.labels.tolist())) == 1
        seen.update(own.patients)
    assert len(seen) == 30 and set(seen.values()) == {1}
    with pytest.raises(ValueError, match=r"part\.classes is 4, and the task has 3"):
        pictures(hospital, part=Part(kind="pathological", of=3, number=1, classes=4))


def test_grade_groups_follow_the_lesions_diffusion() -> None:
    bodies = [draw_anatomy(3, patient, 4) for patient in range(60)]
    worst = Counter(int(body.group.max()) for body in bodies)
    assert set(worst) == set(range(len(GRADE_GROUPS)))
    for body in bodies:
        assert ((body.group > 1) == (body.grade == SIGNIFICANT)).all() and ((body.group > 0) == (body.grade > 0)).all()
    means = [
        np.mean([body.diffusivity[body.group == group].mean() for body in bodies if (body.group == group).any()])
        for group in range(1, 6)
    ]
    assert sorted(means, reverse=True) == means
