"""The first table of scores: which measure comes first, and what says what the numbers of its cells are."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.choice import select_primary
from evaluation.classes import Classes
from evaluation.findings import list_finding_measures
from evaluation.histograms import count_scores
from evaluation.metrics import AUC
from evaluation.numbers import Number, list_number_measures
from evaluation.overlap import list_measures
from evaluation.page import Paragraph
from evaluation.records import SitePage
from evaluation.rendering import write_text
from evaluation.score_tables import build_score_notes
from evaluation.scoring import label_measures, score_rows

NAMES = ("benign", "cyst", "melanoma")


def make_tables(classes: int, methods=("local", "ours")):
    rng, tables = np.random.default_rng(0), {}
    for method in methods:
        y = np.arange(60) % classes
        p = rng.dirichlet(np.ones(classes), size=60)
        tables[method] = {("a", "a"): count_scores(y, p, np.arange(60) // 2, copies=20, seed=0, site="a")}
    return tables


MEASURES = {
    "two classes": label_measures(make_tables(2)),
    "three classes": label_measures(make_tables(3), Classes(NAMES)),
    "grades": label_measures(make_tables(3), Classes(NAMES, ordered=True)),
    "findings": list_finding_measures(NAMES, exact=True),
    "masks": list_measures(("lesion",)),
    "numbers": list_number_measures(Number("age", "years", 0.0, 90.0, ("young", "old"))),
}


@pytest.mark.parametrize("kind", MEASURES)
def test_the_measure_by_which_models_are_recommended_comes_first(kind):
    assert MEASURES[kind][0] is select_primary(MEASURES[kind])


def test_labels_begin_with_the_auc_in_rows_of_a_page():
    rows = score_rows(make_tables(2), reference="local")
    assert rows[0].measure == AUC.name


@pytest.mark.parametrize("reference", ["local", None])
def test_below_the_first_table_stands_what_the_numbers_of_a_cell_are(reference):
    rows = score_rows(make_tables(2), reference=reference)
    page = SitePage("t", "a", "r", "2026-11-30", True, reference or "", (), rows, (), ())
    key = build_score_notes(page)[0]
    assert isinstance(key, Paragraph)
    text = str(write_text(key.text))
    assert "<strong>Bold</strong>: the score" in text and "trainings" not in text
    assert ("the gain over local" in text) == (reference is not None)
