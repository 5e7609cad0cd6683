"""One hospital's arrays: what is taken, and one error that names all that is wrong."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from consilium import ConfigError, Examples

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.array([0, 1, 0, 1, 0, 1])
WHO = ["a", "a", "b", "b", "c", "c"]
IMAGES = np.zeros((6, 1, 4, 4), np.float32)


def spoilt(row: int, value: float) -> Any:
    x = X.copy()
    x[row, 0] = value
    return x


BAD: dict[str, tuple[dict[str, Any], list[str]]] = {
    "texts": ({"x": [["a", "b", "c"]] * 6}, ["x: must hold numbers, found <U1"]),
    "objects": ({"x": np.array([object()] * 6)}, ["x: must hold numbers, found object"]),
    "ragged": ({"x": [[1, 2], [1]]}, ["x: no array of numbers"]),
    "complex": ({"x": X.astype(complex)}, ["x: must hold numbers, found complex128"]),
    "a single number each": ({"x": X[:, 0]}, ["x: must be (n, *inputs)", "found [6]"]),
    "five sides": ({"x": np.zeros((6, 1, 1, 1, 1, 1))}, ["1 to 4 sides"]),
    "empty": ({"x": X[:0], "y": Y[:0], "patient": []}, ["x: must be (n, *inputs) with n >= 1", "found [0, 3]"]),
    "an empty side": ({"x": np.zeros((6, 0))}, ["found [6, 0]"]),
    "nan": ({"x": spoilt(2, np.nan)}, ["x: not finite (NaN, infinite, or beyond 3e38) in row 2"]),
    "infinite": ({"x": spoilt(5, np.inf)}, ["in row 5"]),
    "beyond single precision": ({"x": np.full((6, 3), 1e39)}, ["in row 0, 1, 2, 3 and 2 more"]),
    "labels too few": ({"y": Y[:4]}, ["y: must be (6,)", "found [4]"]),
    "labels of two columns": ({"y": np.stack([Y, Y], 1)}, ["y: must be (6,)", "found [6, 2]"]),
    "labels of parts": ({"y": Y + 0.5}, ["found measurements such as 0.5 (float64); examples given here have classes"]),
    "labels as floats": ({"y": Y + 0.0}, ["y: must hold classes as whole numbers, found float64; say y.astype(int)"]),
    "negative labels": ({"y": Y - 1}, ["y: classes must be in 0..255, 0 = the first, found -1 to 0"]),
    "no labels": ({"y": None}, ["give either y, labels, or mask, classes of pixels, or findings; found neither"]),
    "both": ({"mask": Y}, ["found y and mask", "mask: must be of images"]),
    "masks of another size": (
        {"x": IMAGES, "y": None, "mask": np.zeros((6, 4, 5), int)},
        ["mask: must be [6, 4, 4], a class for each pixel, found [6, 4, 5]"],
    ),
    "masks of many classes": (
        {"x": IMAGES, "y": None, "mask": np.full((6, 4, 4), 9)},
        ["mask: classes must be in 0..7, 0 = the first, found 9 to 9"],
    ),
    "nobody": ({"patient": ()}, ["patient: 0 names for 6 examples", 'or patient="each"']),
    "too few patients": ({"patient": WHO[:5]}, ["patient: 5 names for 6 examples; give one for each"]),
    "another word": ({"patient": "all"}, ["must be a list of names, or \"each\", found 'all'"]),
    "empty names": ({"patient": ["a", " ", "", "b", "c", "d"]}, ["patient: empty in row 1, 2"]),
    "names that are none": (
        {"patient": [None, 1.5, *WHO[2:]]},
        ["must be texts or whole numbers, found NoneType, float"],
    ),
    "a number for all": ({"patient": 3}, ["must be a list of names, found int"]),
    "splits of another name": (
        {"split": ["train"] * 5 + ["tset"]},
        ["split: must be train, validation, test, found 'tset'"],
    ),
    "a patient in two splits": (
        {"split": ["train", "test", *["train"] * 4]},
        ["split: 1 patients are in two splits ('a'); give one each"],
    ),
    "nobody to learn from": ({"split": ["test"] * 6}, ["split: nobody is in train"]),
    "too few splits": ({"split": ["train"]}, ["split: 1 splits for 6 examples"]),
    "a patient without split": ({"split": {"a": "train"}}, ["no split for 'b', 'c'", "(2 missing)"]),
    "all at once": (
        {"x": spoilt(0, np.nan), "y": Y[:3] + 0.5, "patient": WHO[:2], "split": ["x"] * 2},
        ["x: not finite", "y: must hold classes", "patient: 2 names", "split: must be"],
    ),
}


@pytest.mark.parametrize("what", list(BAD))
def test_bad_arrays_are_told_at_once(what: str) -> None:
    changes, words = BAD[what]
    with pytest.raises(ConfigError) as caught:
        Examples(**{"x": X, "y": Y, "patient": WHO, **changes})
    assert all(word in str(caught.value) for word in words), str(caught.value)


@given(
    x=st.one_of(st.none(), st.text(max_size=3), st.lists(st.integers(-3, 3), max_size=4), st.just(X)),
    y=st.one_of(st.none(), st.text(max_size=3), st.lists(st.integers(-1, 2), max_size=7), st.just(Y)),
    patient=st.one_of(st.none(), st.just("each"), st.lists(st.one_of(st.text(max_size=2), st.integers()), max_size=7)),
    split=st.one_of(st.none(), st.lists(st.sampled_from(["train", "test", ""]), max_size=7)),
)
def test_whatever_is_given_is_taken_or_told(x: Any, y: Any, patient: Any, split: Any) -> None:
    made = None
    with suppress(ConfigError):
        made = Examples(x, y, patient, split=split)
    if made is not None:
        assert len(made.x) == len(made.y) == len(made.patient) and made.x.dtype == np.float32


@pytest.mark.parametrize("form", [np.asarray, torch.tensor, lambda values: np.asarray(values).tolist()])
def test_arrays_tensors_and_lists_are_the_same_bytes(form: Any) -> None:
    assert Examples(form(X), form(Y), WHO).data(()) == Examples(X, Y, WHO).data(())


@pytest.mark.parametrize("whole", [bool, np.int8, np.uint16, np.int64])
def test_labels_of_any_whole_numbers_are_the_same(whole: Any) -> None:
    assert Examples(X, Y.astype(whole), WHO).data(()) == Examples(X, Y, WHO).data(())


def test_a_dataset_is_its_arrays() -> None:
    whose = torch.arange(6) // 2
    items = TensorDataset(torch.tensor(X), torch.tensor(Y), whose)
    assert Examples.of(items).data(()) == Examples(X, Y, whose).data(())
    pairs = TensorDataset(torch.tensor(X), torch.tensor(Y))
    assert Examples.of(pairs, patient=whose).data(()) == Examples(X, Y, whose.tolist()).data(())
    assert Examples.of(pairs, "each").data(()) == Examples(X, Y, "each").data(())
    masks = [(image, np.ones((4, 4), int), "a") for image in IMAGES]
    assert Examples.of(masks).data(()) == Examples(IMAGES, patient=["a"] * 6, mask=np.ones((6, 4, 4), int)).data(())


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (
            TensorDataset(torch.tensor(X), torch.tensor(Y)),
            "items of 2; each must be (x, y, patient), or (x, y) and pat",
        ),
        ([], "list has no item"),
        (3, "int is no sequence"),
        ({"x": X}, "dict is no sequence"),
        ([(X[0], 0, "a"), (X[1, :2], 0, "a")], "items have different shapes, [2], [3]"),
    ],
)
def test_what_is_no_dataset_is_told(items: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Examples.of(items)
    assert words in str(caught.value), str(caught.value)


def test_splits_by_patient_are_splits_by_example() -> None:
    by_patient = Examples(X, Y, WHO, split={"a": "train", "b": "test", "c": "validation", "nobody": "train"})
    by_example = Examples(X, Y, WHO, split=["train"] * 2 + ["test"] * 2 + ["validation"] * 2)
    assert by_patient.data(()) == by_example.data(())
