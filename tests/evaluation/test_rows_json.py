"""Records of a run's pages come back from their JSON as they were, but that a number that is not finite is NaN."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation.answers import Answers
from evaluation.records import RunPage
from evaluation.rows import ScoreRow, from_json, to_json


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.from_type(RunPage), st.from_type(Answers), st.from_type(ScoreRow)))
def test_what_is_read_is_written_again_as_the_same_text(record: Any) -> None:
    text = to_json(record)
    restored = from_json(type(record), text)
    assert type(restored) is type(record) and to_json(restored) == text


@given(st.from_type(ScoreRow))
def test_a_row_comes_back_with_all_of_its_types(row: ScoreRow) -> None:
    for restored in from_json(tuple[ScoreRow, ...], to_json((row,))):
        for name, value in vars(row).items():
            is_null = isinstance(value, float) and not math.isfinite(value)
            assert repr(getattr(restored, name)) == ("nan" if is_null else repr(value))


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"sites": 4}', '"text"', "null"])
def test_what_is_none_of_them_is_no_record(text: str) -> None:
    with pytest.raises(ValueError, match="not of the form of RunPage"):
        from_json(RunPage, text)


@given(st.from_type(ScoreRow))
def test_what_a_later_version_adds_is_left_out(row: ScoreRow) -> None:
    text = json.dumps({**json.loads(to_json(row)), "of_a_later_version": 1})
    assert to_json(from_json(ScoreRow, text)) == to_json(row)
