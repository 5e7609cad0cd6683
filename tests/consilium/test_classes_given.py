"""What classes and patients examples must have, so that a run can train on them and score them."""

from __future__ import annotations

import numpy as np
import pytest

from consilium import ConfigError, Examples
from consilium.settings import parse_hospitals, task_of


@pytest.mark.parametrize("labels", [(1, 2), (0, 2), (1, 1), (3, 5, 9)])
def test_classes_without_names_are_numbered_without_gaps(labels: tuple[int, ...]) -> None:
    """Labels 1 and 2 would train three classes, the first of which nobody has."""
    y = np.resize(np.array(labels), 12)
    one = Examples(np.arange(24.0).reshape(12, 2), y, "each")
    with pytest.raises(ConfigError, match="at no hospital; classes count from 0") as found:
        task_of({"a": one, "b": one}, ())
    assert ", ".join(map(str, sorted({*labels}))) in str(found.value)
    names = [f"grade {n}" for n in range(max(labels) + 1)]
    assert task_of({"a": one}, names)[1] == tuple(names)
    other = Examples(np.arange(24.0).reshape(12, 2), np.arange(12) % (max(labels) + 1), "each")
    task_of({"a": one, "b": other}, ())  # another hospital has those that this one lacks


@pytest.mark.parametrize(
    ("one", "other", "refused"),
    [
        ((0, 1), (1, 2), True),
        ((0, 1, 2), (1, 2, 3), True),
        ((0, 1), (0, 2), False),
        ((0, 1, 2), (1, 2), False),
        ((0,), (1,), False),
    ],
)
@pytest.mark.parametrize("masks", [False, True])
def test_hospitals_that_count_classes_from_different_numbers(
    one: tuple[int, ...], other: tuple[int, ...], refused: bool, masks: bool
) -> None:
    def having(labels: tuple[int, ...]) -> Examples:
        x, y = np.arange(12 * 4.0).reshape(12, 1, 2, 2), np.resize(np.array(labels), 12)
        if not masks:
            return Examples(x, y, "each")
        mask = np.repeat(y + 1, 4).reshape(12, 2, 2)
        mask[:, 0, 0] = 0
        return Examples(x, None, "each", mask=mask)

    examples = {"north": having(one), "south": having(other)}
    if refused:
        with pytest.raises(ConfigError, match=r"no hospital has both the first class.*north has.*south has") as found:
            task_of(examples, ())
        assert "classes=[...]" in str(found.value)
    names = [f"grade {n}" for n in range(max(*one, *other) + 1)]
    assert task_of(examples, names)[1] == tuple(names)
    if not refused:
        task_of(examples, ())


def test_a_hospital_of_one_patient_is_refused_before_the_run_begins() -> None:
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1])
    two = Examples(x, y, ["p", "p", "q", "q"])
    with pytest.raises(ConfigError, match=r"hospitals\.b\.patient: 1 patient; a hospital needs"):
        parse_hospitals({"a": two, "b": Examples(x + 9, y, ["r"] * 4)})
    untested = Examples(x + 9, y, ["r", "r", "s", "s"], split=["train", "train", "validation", "validation"])
    with pytest.raises(ConfigError, match=r"hospitals\.b\.split: nobody is in test"):
        parse_hospitals({"a": two, "b": untested})
