"""The default suite tries about as many cases of a repeating test as it says, and every value of a short parameter."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repeating import choose_cases, list_left_out


@dataclass(frozen=True)
class Item:
    """What is used of a test of pytest."""

    nodeid: str
    callspec: SimpleNamespace = field(compare=False)
    marks: tuple[str, ...] = ("repeats",)

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=(2,)) if name in self.marks else None


def make_cases(test: str, sizes: list[int], **more: tuple[str, ...]) -> list[Item]:
    """One for each combination of the values of parameters of these sizes."""
    return [
        Item(f"{test}[{values}]", SimpleNamespace(indices={f"p{k}": value for k, value in enumerate(values)}), **more)
        for values in itertools.product(*map(range, sizes))
    ]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 12))
def test_each_value_of_a_short_parameter_is_tried_and_not_many_more(sizes: list[int], most: int) -> None:
    cases = make_cases("t", sizes)
    chosen = choose_cases(cases, most)
    assert len({*chosen}) == len(chosen) and {*chosen} <= {*cases}
    assert min(most, len(cases)) <= len(chosen) <= max(most, sum(size for size in sizes if size <= most))
    for place, size in enumerate(sizes):
        tried = {item.callspec.indices[f"p{place}"] for item in chosen}
        assert size > most or tried == {*range(size)}
    assert {*choose_cases(cases[::-1], most)} == {*chosen}, "whatever the order in which they are found"


def test_tests_of_the_same_cases_try_different_ones() -> None:
    tried = [{item.callspec.indices["p0"] for item in choose_cases(make_cases(f"t{n}", [40]), 10)} for n in range(9)]
    assert len(set().union(*tried)) > 30 and len({frozenset(one) for one in tried}) == 9


@pytest.mark.parametrize("marks", [(), ("repeats", "slow")])
def test_others_stay_as_they_are(marks: tuple[str, ...]) -> None:
    left = list_left_out([*make_cases("a", [6], marks=marks), *make_cases("b", [6])])
    assert len(left) == 4 and all(item.nodeid.startswith("b") for item in left)


def test_cases_that_need_a_gpu_take_no_others_place() -> None:
    left = list_left_out([*make_cases("a", [6], marks=("repeats", "gpu")), *make_cases("a", [5])])
    assert [item.get_closest_marker("gpu") is not None for item in left] == [True] * 4 + [False] * 3
