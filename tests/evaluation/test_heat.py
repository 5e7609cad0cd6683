"""Heat maps and figures of many methods: what stands in them, and that names and numbers keep to their places."""

from __future__ import annotations

import base64
import io
import math
import re
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from evaluation import figures, heat
from evaluation.panels import LINES, WIDTH, line_style, row_panel_size, split_names
from evaluation.rows import MAJORITY, ScoreRow

names = st.lists(st.text(alphabet="abcdefgh_", min_size=1, max_size=12), unique=True, max_size=60)


def cells(picture):
    """The texts that are drawn in a picture, in their order."""
    return re.findall(r"<text [^>]*>([^<]*)</text>", picture.html)


def told(picture):
    return re.search(r'aria-label="([^"]*)"', picture.html)[1]


def test_a_value_stands_in_the_row_of_who_takes_and_the_column_of_whom():
    values = np.array([[0.1, 0.25], [0.625, 0.5]])
    picture = heat.draw_site_matrix(["a", "b"], values, "alpha", "pgfed")
    drawn = [text for text in cells(picture) if re.fullmatch(r"0\.\d{3}", text)]
    assert drawn[:4] == ["0.100", "0.250", "0.625", "0.500"]
    assert told(picture) == (
        "alpha of pgfed between hospitals: a from a 0.100; a from b 0.250; b from a 0.625; b from b 0.500."
    )
    assert picture.title == "pgfed: alpha between hospitals"
    assert "their own pages only" in picture.caption


def test_rounds_are_columns_and_a_round_without_a_note_is_a_dash():
    values = np.array([[0.5, 0.4, 0.3], [math.nan, -0.1, -0.2]])
    picture = heat.draw_round_matrix(["a", "b"], [1, 2, 5], values, "p", "apple")
    drawn = [text for text in cells(picture) if re.fullmatch(r"–|−?0\.\d{3}", text)]
    assert drawn == ["0.500", "0.400", "0.300", "–", "−0.100", "−0.200"]
    assert "Round 1: a 0.500, b –. Round 5: a 0.300, b −0.200." in told(picture)
    assert all(name in cells(picture) for name in ("1", "2", "5", "round"))


def test_cells_have_the_colour_of_their_value_and_none_without_one():
    values = np.array([[0.1, math.nan, 0.4], [0.2, 0.0, 0.3], [0.05, 0.15, 0.25]])
    picture = heat.draw_site_matrix(["a", "b", "c"], values, "alpha", "pgfed")
    uri = re.search(r'<image href="data:image/png;base64,([^"]*)" [^>]*pixelated', picture.html)[1]
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri))).convert("RGBA"))
    wanted = matplotlib.colormaps["cividis"](values / 0.4, bytes=True)
    assert np.array_equal(drawn[..., 3] == 0, np.isnan(values))
    assert np.array_equal(drawn[~np.isnan(values)], wanted[~np.isnan(values)])


def test_numbers_that_do_not_fit_are_told_and_not_drawn():
    sites = [f"s{i}" for i in range(40)]
    values = np.arange(1600.0).reshape(40, 40)
    picture = heat.draw_site_matrix(sites, values, "alpha", "pgfed")
    assert "s39 from s39 1599.000" in told(picture)
    assert not [text for text in cells(picture) if re.fullmatch(r"\d+\.\d{3}", text)]
    assert set(sites) <= set(cells(picture))
    wide_one = heat.draw_round_matrix(["a"], range(1, 301), np.ones((1, 300)), "p", "apple")
    assert len([text for text in cells(wide_one) if text.isdigit()]) <= heat.TICKS


@pytest.mark.parametrize(
    ("values", "limits"),
    [([[0.0, 0.4]], (0, 0.4)), ([[-0.2, 0.4]], (-0.4, 0.4)), ([[-3.0, 1.0]], (-3, 3)), ([[0.0, 0.0]], (0, 1))],
)
def test_colours_begin_at_zero_or_lie_around_it(values, limits):
    assert heat._colour_limits(np.array(values)) == limits


@given(names, st.integers(0, 59))
def test_parts_hold_every_name_once_and_the_reference_always(methods, place):
    reference = methods[place % len(methods)] if methods else "none"
    groups = [group for _, group in split_names(methods, reference)]
    assert all(0 < len(group) <= LINES for group in groups)
    assert [name for group in groups for name in group if name != reference] == [n for n in methods if n != reference]
    assert all(reference in group for group in groups)
    assert not groups or max(map(len, groups)) - min(map(len, groups)) <= 1
    assert [title for title, _ in split_names(methods, reference)] == (
        [""] * len(groups) if len(groups) < 2 else [f", part {i + 1} of {len(groups)}" for i in range(len(groups))]
    )


@given(names)
def test_no_two_names_of_a_part_look_alike(methods):
    for _, group in split_names(methods, methods[0] if methods else None):
        looks = [(line_style(methods.index(n))["color"], str(line_style(methods.index(n))["linestyle"])) for n in group]
        assert len(set(looks)) == len(looks)


@given(st.integers(1, 64), names.filter(bool))
def test_pictures_are_never_wider_than_the_page(groups, methods):
    sites = [f"site{i}" for i in range(groups)]
    assert row_panel_size(sites, methods)[0] <= WIDTH


def row(method, site, value):
    fixed = {"copies": 0, "ignored": 0, "patients": 9, "images": 9, "positives": 4, "negatives": 5}
    return ScoreRow(
        method=method,
        protocol="private",
        sites=(site,),
        measure="AUC",
        value=value,
        low=math.nan,
        high=math.nan,
        positive_patients=4,
        assessable=True,
        mixes_sites=False,
        gain=value - 0.5,
        **fixed,
    )


def test_with_forty_methods_every_one_is_named_beside_its_row_and_nowhere_else():
    methods = [f"method_{i:02d}" for i in range(40)]
    scores = [row(m, s, 0.5 + i / 100) for i, m in enumerate(methods) for s in ("a", "b", "c")]
    for picture in (figures.draw_score_dots(scores, "AUC"), figures.draw_gain_bars(scores, "AUC", "method_00")):
        drawn = [text for text in cells(picture) if text.startswith("method_")]
        assert drawn == 3 * sorted(set(drawn)) and len(drawn) >= 3 * 39, "once in each panel"
        assert re.findall(r"<p>(.*?)</p>", picture.html) == ["a", "b", "c"]


def test_the_figure_of_scores_has_both_intervals_shades_the_model_to_use_and_marks_the_guess():
    one = replace(row("fedavg", "a", 0.7), low=0.6, high=0.8, trainings=3, trained_low=0.5, trained_high=0.9)
    other, guess = row("local", "a", 0.65), row(MAJORITY, "a", 0.5)
    picture = figures.draw_score_dots([one, other, guess], "AUC", {"a": "fedavg", "b": "local"})
    assert "Use at a: fedavg." in picture.html and "Use at b" not in picture.html
    assert "over 3 trainings 0.500 to 0.900" in picture.html and "a, majority guess: AUC 0.500" in picture.html
    assert "thin ones over trainings" in picture.caption and "Dashed: the majority guess." in picture.caption
    assert MAJORITY not in cells(picture), "a line, and no row"
    bare = figures.draw_score_dots([other], "AUC")
    assert not any(word in bare.caption + bare.html for word in ("Dashed", "Shaded", "trainings", "Use at"))


def test_notes_have_a_panel_each_and_the_colour_of_their_method():
    curves = {
        ("cusfl", "lambda_2"): figures.Curve((1, 2), (0.5, 0.25)),
        ("cusfl", "L_sim"): figures.Curve((2,), (0.125,)),
        ("apfl", "alpha"): figures.Curve((1, 2), (0.5, 0.75)),
    }
    picture = figures.draw_note_curves(curves, order=["local", "apfl", "cusfl"])
    assert re.findall(r"<p>(.*?)</p>", picture.html, flags=re.DOTALL) == [
        "cusfl\nlambda_2",
        "cusfl\nL_sim",
        "apfl\nalpha",
    ]
    assert "cusfl, lambda_2: 0.500 after round 1, 0.250 after 2" in told(picture)
    assert line_style(1)["color"] in picture.html and line_style(2)["color"] in picture.html
    assert line_style(0)["color"] not in picture.html
