"""Records of a run's pages come back from their JSON as they were, but that a number that is not finite is NaN."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation.answers import Answers
from evaluation.records import RunPage
from evaluation.rows import ScoreRow, from_json, to_json


def few(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type whose collections have one member at most: pages hold fifty lists of records of lists."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return few(inner[0])
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return st.builds(kind, **{field.name: few(hints[field.name]) for field in fields(kind)})
    if origin is Sequence or inner[1:] == (...,):
        return st.lists(few(inner[0]), max_size=1).map(tuple)
    if origin in (Mapping, dict):
        return st.dictionaries(few(inner[0]), few(inner[1]), max_size=1)
    if origin in (Union, UnionType):
        return st.one_of(*map(few, inner))
    return st.text(max_size=3) if kind is str else st.from_type(kind)


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.one_of(few(RunPage), few(Answers), few(ScoreRow)))
def test_what_is_read_is_written_again_as_the_same_text(record: Any) -> None:
    text = to_json(record)
    restored = from_json(type(record), text)
    assert type(restored) is type(record) and to_json(restored) == text


@given(st.from_type(ScoreRow))
def test_a_row_comes_back_with_all_of_its_types(row: ScoreRow) -> None:
    for restored in from_json(tuple[ScoreRow, ...], to_json((row,))):
        for name, value in vars(row).items():
            assert repr(getattr(restored, name)) == repr(value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"sites": 4}', '"text"', "null"])
def test_what_is_none_of_them_is_no_record(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form of RunPage"):
        from_json(RunPage, text)


@given(st.from_type(ScoreRow))
def test_what_a_later_version_adds_is_left_out(row: ScoreRow) -> None:
    text = json.dumps({**json.loads(to_json(row)), "of_a_later_version": 1})
    assert to_json(from_json(ScoreRow, text)) == to_json(row)
