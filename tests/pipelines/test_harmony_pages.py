"""What pages show of image spaces: figures that exist, vetoes in words, pictures of both classes."""

import math
from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from evaluation.harmony import COLUMNS, REASONS, Harmony, SpaceRow
from evaluation.report import _environment
from harmonize.veto import WORDS
from pipelines.cohort.cohort import Cohort
from pipelines.site.harmony import PAIRS, _shown

JUDGED = SpaceRow("north", "vafl", "cyclegan", ("cycle", "prevalence"), {"sw_before": 0.1, "cycle_mae": math.nan})


def drawn(rows, sites=True):
    macros = _environment().get_template("parts.html").module
    return str(macros.spaces(Harmony("south", "public", "", "", rows=rows), sites))


def cohort(labels, patient):
    n, none = len(labels), torch.zeros(len(labels), 0)
    y, who = torch.tensor(labels), torch.tensor(patient)
    names = tuple(f"p{k}" for k in range(max(patient) + 1))
    return Cohort(torch.zeros(n, 1, 2, 2), y, who, torch.zeros(n), none, none, torch.zeros(n), names)


def test_every_veto_has_a_word_for_the_table():
    assert set(REASONS) == set(WORDS)


def test_a_figure_that_nobody_has_gets_no_column_but_is_named():
    harmony = Harmony("", "", "", "", rows=(JUDGED, replace(JUDGED, quality={"drift": 0.0})))
    assert list(harmony.columns) == ["sw_before", "drift"]
    assert {*harmony.columns.values(), *harmony.absent} == set(COLUMNS.values())
    page = drawn(harmony.rows)
    assert page.count('class="num"') == 2 + 2 * 2
    assert "Could not be computed at any hospital" in page and "cycle error" in page.split("Could not")[1]


def test_where_nothing_was_judged_no_figure_is_called_missing():
    assert "Could not be computed" not in drawn((replace(JUDGED, vetoed=(), quality={}),))


def test_vetoes_are_told_in_the_words_of_the_columns():
    for sites in (True, False):
        page = drawn((JUDGED,), sites)
        assert "cycle error, new dark spots" in page and "prevalence" not in page


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 14)), min_size=1, max_size=40))
def test_pictures_are_of_different_patients_and_of_both_classes_where_there_are_both(rows):
    labels, patient = ([row[k] for row in rows] for k in (0, 1))
    chosen = _shown(cohort(labels, patient))
    shown = [patient[row] for row in chosen]
    ill = {who for label, who in rows if label}
    well = set(patient) - ill
    assert len(set(shown)) == len(shown) == min(PAIRS, len(set(patient)))
    assert [labels[row] for row in chosen] == sorted((labels[row] for row in chosen), reverse=True)
    assert all(labels[row] == (patient[row] in ill) for row in chosen)
    assert len(set(shown) & ill) >= min(len(ill), PAIRS // 2) and len(set(shown) & well) >= min(len(well), PAIRS // 2)
