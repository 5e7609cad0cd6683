"""Panels as SVG: round numbers, places of data, what is clipped, left out and pointed at."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.axes import (
    INK,
    MARKS,
    Axis,
    Frame,
    Image,
    Label,
    Panel,
    Shape,
    choose_ticks,
    find_limits,
    name_ticks,
    settle_axes,
    write_panel,
)
from evaluation.drawing import COLOURS, MARKERS
from evaluation.panels import draw_bars, draw_diagonal, draw_level, draw_panels, draw_upright, line_style, mark_style

SIZE = (3.0, 2.0)
ends = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8)


@given(ends, st.integers(2, 9))
def test_ticks_lie_between_the_ends_at_equal_steps_and_are_not_too_many(low_and_span, most):
    low, span = low_and_span
    ticks = choose_ticks(low, low + span, most)
    assert len(ticks) <= most + 1
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    steps = np.diff(ticks)
    assert not len(steps) or np.allclose(steps, steps[0])
    if len(steps) and max(map(abs, ticks)) < 1e3 * span:
        mantissa = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
        assert min(abs(mantissa - round_one) for round_one in (1, 2, 2.5, 5, 10)) < 1e-3
    assert len(ticks) >= 2 or most < 9


@given(st.integers(-50, 50), st.integers(1, 3000), st.integers(2, 9))
def test_whole_ticks_are_whole(low, span, most):
    ticks = choose_ticks(low - 0.05, low + span + 0.05, most, whole=True)
    assert ticks and all(tick == round(tick) for tick in ticks) and len(ticks) <= most + 1


def test_a_single_round_has_its_tick():
    assert choose_ticks(*find_limits([[1]]), 5, whole=True) == [1]


@given(ends, st.integers(2, 9))
def test_names_of_ticks_say_their_numbers(low_and_span, most):
    low, span = low_and_span
    ticks = choose_ticks(low, low + span, most)
    values = [float(name.replace("−", "-")) for name in name_ticks(ticks)]
    assert np.allclose(values, ticks, rtol=1e-3, atol=1e-6 * max(map(abs, ticks), default=1))
    assert "-0" not in [name.replace("−", "-") for name in name_ticks(ticks)]


@given(st.floats(-1e6, 1e6), st.floats(1e-7, 1e6), st.integers(2, 9))
def test_names_of_ticks_tell_one_from_the_next(low, span, most):
    """As where a loss hardly moves: 0.693146 and 0.6931462 are two numbers."""
    ticks = choose_ticks(low, low + span, most)
    values = [float(name.replace("−", "-")) for name in name_ticks(ticks)]
    assert len(set(values)) == len(values)
    assert np.allclose(values, ticks, rtol=0, atol=0.1 * min(np.diff(ticks), default=math.inf))


@given(numbers, st.sampled_from([math.nan, math.inf]))
def test_ends_hold_every_finite_number_with_room(values, other):
    low, high = find_limits([values, [other]])
    assert low < min(values) and max(values) < high


def test_of_nothing_the_ends_are_0_and_1():
    assert find_limits([]) == find_limits([[math.nan]]) == (0.0, 1.0)


@given(numbers, numbers)
def test_a_place_is_as_far_along_the_frame_as_the_number_along_its_axis(xs, ys):
    frame = Frame(10, 5, 110, 55, (-1e6, 1e6), (1e6, -1e6))  # y grows downwards here
    for x, y in zip(xs, ys, strict=False):
        across, down = frame.place(x, y)
        assert across[0] == pytest.approx(10 + 100 * (x + 1e6) / 2e6) and down[0] == pytest.approx(
            5 + 50 * (y + 1e6) / 2e6
        )
        assert frame.place(0.25, y, "x")[0][0] == 35 and frame.place(x, 1, "y")[1][0] == 5


def pointed(text):
    """(method, points) of what may be pointed at."""
    groups = re.findall(r"""data-method="([^"]*)" data-lead="([^"]*)" data-points='([^']*)'""", text)
    return [(method, json.loads(html.unescape(points))) for method, _, points in groups]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(-5, 5)), min_size=1, max_size=6), st.sampled_from(MARKERS))
def test_one_points_at_the_middle_of_what_is_drawn(places, marker):
    x, y = zip(*places, strict=True)
    texts = [f"point {number}" for number in range(len(x))]
    text = write_panel(Panel(shapes=[Shape(x=x, y=y, marker=marker, method="m", texts=texts)]), SIZE)
    ((method, points),) = pointed(text)
    assert method == "m" and [said for *_, said in points] == texts
    (path,) = re.findall(r'<path d="(M[^"]*)" fill="currentColor" stroke="currentColor"/>', text)
    for (across, down, _), mark in zip(points, path.split("M")[1:], strict=True):
        begin = np.array(mark.replace("z", "").split("a")[0].split("L")[0].split(), float)
        corner = np.array(MARKS[marker][0]) if MARKS[marker] else np.array([-1, 0])
        assert begin - 3 * corner == pytest.approx([across, down], abs=0.06)


def test_what_is_not_finite_interrupts_a_line_and_has_no_mark():
    shape = Shape(
        x=[0, 1, 2, 3, 4], y=[0, 1, math.nan, 1, math.inf], linewidth=1, marker="s", texts="abcde", method="m"
    )
    text = write_panel(Panel(shapes=[shape]), SIZE)
    line, marks = re.findall(r'<path d="(M[^"]*)" fill="(?:none" stroke="currentColor" stroke-width="1"|c)', text)
    assert line.count("M") == 2 and line.count("L") == 1 and marks.count("M") == 3
    assert [said for *_, said in pointed(text)[0][1]] == ["a", "b", "d"]


def test_a_line_of_many_points_answers_at_some_with_the_first_and_the_last():
    texts = [str(number) for number in range(100)]
    shape = Shape(x=range(100), y=range(100), linewidth=1, method="m", texts=texts, most=16)
    said = [text for *_, text in pointed(write_panel(Panel(shapes=[shape]), SIZE))[0][1]]
    assert said[0] == "0" and said[-1] == "99" and 10 < len(said) <= 17


@given(st.floats(0, 2), st.floats(0, 2))
def test_only_what_leaves_the_frame_is_clipped(x, y):
    axis = Axis(low=0, high=1)
    text = write_panel(Panel(shapes=[Shape(x=[0, x], y=[0, y], linewidth=1)], x=axis, y=axis), SIZE)
    if max(x, y) <= 1:
        assert "clip" not in text
    if max(x, y) > 1.01:
        (name,) = re.findall(r'<clipPath id="([^"]*)">', text)
        assert f'clip-path="url(#{name})"' in text


def test_equal_panels_are_equal_texts_and_their_ids_differ_by_their_salt():
    axis = Axis(low=0, high=1)
    panel = Panel(shapes=[Shape(x=[0, 3], y=[0, 3], linewidth=1)], x=axis, y=axis)
    assert write_panel(panel, SIZE, "a") == write_panel(panel, SIZE, "a")
    ids = [re.findall(r'id="([^"]*)"', write_panel(panel, SIZE, salt))[0] for salt in "ab"]
    assert ids[0] != ids[1]


def test_lines_across_a_panel_reach_both_ends_and_change_no_scale():
    shape = Shape(x=[1, 2], y=[3, 4], marker="o")
    panel = settle_axes(Panel(shapes=[shape, replace(draw_upright(1.5), across="y"), draw_level(3.5)]), SIZE)
    assert (panel.x.low, panel.x.high) == find_limits([[1, 2]]) and (panel.y.low, panel.y.high) == find_limits([[3, 4]])
    far = settle_axes(Panel(shapes=[shape, draw_upright(9)]), SIZE)
    assert far.x.high > 9 and far.y == panel.y
    text = write_panel(Panel(shapes=[draw_upright(0.5)], y=Axis(ticks=())), SIZE)
    (line,) = re.findall(r'<path d="(M[^"]*)" fill="none" stroke="currentColor" stroke-width="0.9"', text)
    (frame,) = re.findall(r'<path d="M[\d.]+ ([\d.]+)V([\d.]+)" stroke', text)
    assert {float(place.split()[1]) for place in line[1:].split("L")} == {float(end) for end in frame}


def test_bars_are_lines_of_their_own():
    shape = draw_bars([1, 2], [0, 0], [3, math.nan], linewidth=1)
    text = write_panel(Panel(shapes=[shape]), SIZE)
    (path,) = re.findall(r'<path d="(M[^"]*)" fill="none" stroke="currentColor" stroke-width="1"', text)
    assert path.count("L") == 1


def test_both_axes_of_a_square_are_as_long():
    axis = Axis(low=0, high=1)
    text = write_panel(Panel(shapes=[draw_diagonal()], x=axis, y=axis, square=True), (4.0, 2.0))
    (line,) = re.findall(r'<path d="(M[^"]*)" fill="none" stroke="currentColor" stroke-width="0.7"', text)
    (x, y), (right, top) = (map(float, place.split()) for place in line[1:].split("L"))
    assert right - x == pytest.approx(y - top, abs=0.02) and right > x


def test_names_of_methods_are_left_out_with_them_and_no_name_is_a_tag():
    evil = '<b>"&'
    axis = Axis(low=-0.5, high=0.5, ticks=[0], names=[evil], methods=True)
    shape = Shape(x=0, y=0, marker="o", method=evil, lead=evil, texts=[evil])
    text = write_panel(Panel(shapes=[shape, Label(x=0, y=0, text=evil)], y=axis), SIZE)
    assert text.count(f'data-method="{html.escape(evil, quote=True)}"') == 2 and "<b>" not in text
    assert pointed(text)[0][1][0][2] == evil and INK not in text


def test_cells_lie_around_whole_numbers_with_the_first_row_where_its_axis_says():
    axis = Axis(low=-0.5, high=1.5, ticks=[0, 1])
    down = replace(axis, low=axis.high, high=axis.low)
    text = write_panel(Panel(shapes=[Image(uri="data:,", columns=2, rows=2)], x=axis, y=down), SIZE)
    x, y, width, height = map(
        float, re.findall(r'<image href="data:," x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', text)[0]
    )
    ticks = [float(place) for place in re.findall(r"M([\d.]+) [\d.]+v3.5", text)]
    assert ticks == pytest.approx([x + width / 4, x + 3 * width / 4], abs=0.02)
    levels = [float(place) for place in re.findall(r"M[\d.]+ ([\d.]+)h-3.5", text)]
    assert levels == pytest.approx([y + height / 4, y + 3 * height / 4], abs=0.02)


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [1e300], [-1e-300, 1e-300], [1e9, 1e9 + 1e-6], [0, 5e-324]])
def test_any_numbers_make_a_panel(values):
    shape = Shape(x=values, y=values, marker="o", linewidth=1)
    text = write_panel(Panel(shapes=[shape], x=Axis(whole=True), y=Axis(grid=True)), SIZE)
    assert "nan" not in text and "inf" not in text


def test_panels_of_one_scale_have_the_same_names():
    shown = {"a": [0.0, 1.0], "b": [5.0, 9.0]}

    def draw(_, values):
        return Panel(shapes=[Shape(x=values, y=values, **line_style(0), **{"marker": "o"})])

    def names(text):
        return [re.findall(r'text-anchor="end">([^<]*)<', panel) for panel in text.split('class="panel"')[1:]]

    first, second = names(draw_panels(shown, draw, alt="", share_y=True))
    assert first == second and names(draw_panels(shown, draw, alt=""))[0] != names(draw_panels(shown, draw, alt=""))[1]


def test_marks_of_a_key_have_colour_and_shape_of_the_figure():
    looks = {f"method {place}": mark_style(place) for place in range(len(COLOURS))}
    text = draw_panels({"": Panel(shapes=[])}, lambda _, panel: panel, alt="", looks=looks)
    key = text[text.index("key-list") :]
    assert len(set(re.findall(r'<path d="([^"]*)"', key))) == len(MARKERS)
    assert set(re.findall(r'fill="(#[^"]*)"', key)) == set(COLOURS)
