"""Numbers as text: what is rounded to zero has no sign, wherever a page, a terminal or a table writes it."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import wording
from evaluation.axes import name_ticks
from evaluation.csv_text import csv_text
from evaluation.page import Span
from evaluation.rendering import write_text
from evaluation.score_tables import change_span, range_line
from evaluation.study_figures import Gain, describe_gain

WRITERS = {
    name: getattr(wording, f"format_{name}") for name in ("number", "decibel", "figures", "signed", "hundredths")
}
ZERO_WITH_SIGN = re.compile(r"[-−+]0*\.?0+(?![\d.]*[1-9])(?![\de])")
NUMBERS = st.one_of(st.floats(-1e6, 1e6), st.floats(-0.01, 0.01), st.sampled_from([0.0, -0.0, -4e-4, 4e-4, -0.04]))


@pytest.mark.parametrize("name", WRITERS)
@given(value=NUMBERS)
def test_a_number_that_is_rounded_to_zero_has_no_sign_and_others_keep_theirs(name, value):
    text = WRITERS[name](value)
    read = float(text.replace("−", "-"))
    assert "-" not in text.replace("e-", "") and math.isclose(read, value, rel_tol=1e-3, abs_tol=0.0501)
    if read == 0:
        assert text[0] == "0"
    else:
        assert text.startswith("−") == (value < 0) and text.startswith("+") == (name == "signed" and value > 0)


@pytest.mark.parametrize("name", WRITERS)
@given(one=NUMBERS, other=NUMBERS)
def test_texts_are_in_the_order_of_their_numbers(name, one, other):
    low, high = (float(WRITERS[name](value).replace("−", "-")) for value in sorted((one, other)))
    assert low <= high


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_no_number_is_a_dash(name):
    infinite = "∞" if name == "decibel" else "–"
    assert [WRITERS[name](value) for value in (math.nan, math.inf, -math.inf)] == ["–", infinite, "–"]


@given(st.lists(NUMBERS, min_size=1, max_size=3))
def test_cells_intervals_gains_ticks_and_tables_say_no_negative_zero(values):
    low, high = min(values), max(values)
    texts = [
        str(write_text((change_span(values[0], low, high), " ", range_line(low, high), Span("")))),
        describe_gain(Gain(tuple(values), True)),
        *name_ticks(sorted(values)),
        *csv_text(["x"], [[value] for value in values]).split("\n"),
    ]
    for text in texts:
        assert not ZERO_WITH_SIGN.search(text), text
