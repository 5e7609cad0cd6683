"""Which model a page names, how far a choice flatters a score, and what counts as better, collapsed or attacked."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import agreement, choice, figures, notices
from evaluation.attacks import MembershipRow, membership_outcome
from evaluation.classes import Classes
from evaluation.grid import count_decided_gains
from evaluation.histograms import count_scores
from evaluation.leaving import Left, describe_departures, list_patient_records
from evaluation.metrics import AUC
from evaluation.recommendation import Recommendation
from evaluation.records import Model
from evaluation.scoring import label_measures, score_rows
from evaluation.wording import Words

NAN = math.nan


@pytest.fixture(scope="module")
def tables():
    rng, found = np.random.default_rng(3), {}
    for method, strength in (("local", 1.0), ("good", 3.0), ("blind", 0.0)):
        y = np.arange(160) % 2
        p = 1 / (1 + np.exp(-strength * (y - 0.5) + 0.5 * rng.normal(size=160)))
        found[method] = {("a", "a"): count_scores(y, np.c_[1 - p, p], np.arange(160) // 2, copies=60, seed=0, site="a")}
    return found


@pytest.fixture(scope="module")
def rows(tables):
    return score_rows(tables, reference="local", measures=label_measures(tables))


def named(models, rows):
    (one,) = choice.make_decisions(models, rows)
    return one.method, one.by


def test_the_lowest_validation_loss_of_what_has_a_file_decides(rows):
    models = [Model("a", "local", 0.5, "f"), Model("a", "good", 0.6, "g"), Model("a", "blind", 0.1, "")]
    assert named(models, rows) == ("local", "validation")
    (one,) = choice.describe_decisions(choice.make_decisions(models, rows), models, rows, "local", Words())
    assert one.top is not None and one.top.method == "good"
    assert named([replace(m, loss=NAN) for m in models], rows) == ("good", "test")
    assert named([replace(m, file="") for m in models], rows) == ("", "")
    assert named(models, ()) == ("local", "validation")


@given(
    st.permutations(["local", "good", "blind"]),
    st.lists(st.floats(0, 9), min_size=3, max_size=3),
    st.sets(st.integers(0, 2)),
)
def test_what_has_no_file_is_never_named(names, losses, filed):
    models = [Model("a", n, v, "f" if i in filed else "") for i, (n, v) in enumerate(zip(names, losses, strict=True))]
    method, by = named(models, ())
    assert (method in {names[i] for i in filed}) if filed else (method, by) == ("", "")


def test_optimism_is_that_of_the_winner_in_each_copy():
    values = np.array([[0.8, 0.9, 0.7, 0.8], [0.7, 0.6, 0.9, 0.7]])  # winners: 0.9 of 0.8, 0.9 of 0.7, 0.8 of 0.8
    assert choice._bootstrap_optimism(values) == pytest.approx((0.1 + 0.2 + 0.0) / 3)
    assert math.isnan(choice._bootstrap_optimism(values[:1]))


def test_the_best_of_equal_methods_looks_better_than_it_is():
    rng, tables = np.random.default_rng(0), {}
    y = np.arange(60) % 2
    for method in "abcdefgh":
        p = 1 / (1 + np.exp(-(y - 0.5) + rng.normal(size=60)))
        tables[method] = {("s", "s"): count_scores(y, np.c_[1 - p, p], np.arange(60), copies=200, seed=0, site="s")}
    one = {"a": tables["a"]}
    found = choice.compute_optimism(tables, ["s", "t"], AUC)
    assert 0.005 < found["s"] < 0.2 and math.isnan(found["t"])
    assert math.isnan(choice.compute_optimism(one, ["s"], AUC)["s"])


def test_what_does_no_better_than_guessing_is_named(rows):
    held = choice.own_scores(rows)
    own = held.at("a", "AUC")
    assert choice.describe_guessing(own["blind"], held) and not choice.describe_guessing(own["good"], held)
    assert count_decided_gains(rows, "AUC") == {"local": (0, 0, 1), "good": (1, 0, 1), "blind": (0, 1, 1)}


@given(st.floats(0.01, 0.99), st.floats(0, 0.3), st.floats(0, 1))
def test_an_attack_succeeds_exactly_where_its_interval_lies_above_a_guess(auc, half, control):
    row = MembershipRow("a", "m", auc, max(0, auc - half), min(1, auc + half), control, 20, 20)
    word = membership_outcome(row).word
    assert (word == "succeeds") == (row.low > 0.5 and control >= 0.9)
    assert (word == "says nothing") == (control < 0.9)


def test_equal_scores_are_called_so_and_others_are_not(tables):
    twice = {**tables, "again": tables["good"]}
    assert notices.find_equal_methods(score_rows(twice, reference="local")) == {"again": "good"}
    assert notices.find_equal_methods(score_rows(tables, reference="local")) == {}


def test_a_spike_does_not_flatten_the_others():
    fine = {"a": figures.Curve((1, 2), (1.2, 0.5)), "b": figures.Curve((1, 2), (1.0, 0.4))}
    spike = figures.Curve((1, 2, 3), (0.9, 31.0, 0.6))
    assert figures.panel_top(fine) == math.inf and figures.panel_top({"a": spike}) == math.inf
    assert figures.panel_top({**fine, "c": spike}) == 1.2
    assert figures.cut_off({**fine, "c": spike}, 1.2) == {"c": 31.0}
    drawn = figures.draw_learning_curves({"s": {**fine, "c": spike}})
    assert "c at s 31.000" in drawn.caption and "c reaches 31.000, above the scale" in drawn.html
    assert "Triangles" not in figures.draw_learning_curves({"s": fine}).caption


def test_groups_of_a_calibration_curve_by_hand():
    scores = np.zeros((1, 2, 16), np.int64)
    scores[0, 0, 1], scores[0, 1, 1], scores[0, 1, 15] = 3, 1, 2  # 4 of about 3/32, one is positive; 2 of 31/32
    predicted, observed, examples = agreement.group_probabilities(scores)
    assert examples[0].tolist() == [4, 0, 0, 0, 0, 0, 0, 2]
    assert (predicted[0, 0], observed[0, 0]) == (3 / 32, 0.25) and (predicted[0, 7], observed[0, 7]) == (31 / 32, 1)
    assert np.isnan(observed[0, 1])
    with pytest.raises(ValueError, match="12 bins cannot form 8"):
        agreement.group_probabilities(scores[..., :12])


POOLED = Left("b", "pool", 0, 10, records="left", of_patients="training examples with their labels")


def test_images_of_patients_that_left_are_said_in_the_first_words():
    left = [Left("a", "train", 1, 10, brief="parameters"), replace(POOLED, messages=1), Left("b", "report", 0, 0)]
    one, other = describe_departures(left, (), Words())
    assert one.sites == ("a",) and one.said[0].startswith("Parameters, counts and digests; ")
    assert one.said[0].endswith("no patient's image, label or record.")
    assert "Training images with their labels" in other.said[0] and "no patient's" not in other.said[0]
    assert list_patient_records([POOLED]) == ()
    assert list_patient_records(left) == (("pool", "training examples with their labels", "left", ("b",)),)


def test_a_model_that_guesses_is_not_recommended(rows):
    blind, good = Model("a", "blind", 0.1, "f"), Model("a", "good", 0.2, "g")
    (one,) = choice.describe_decisions(choice.make_decisions([blind], rows), [blind], rows, "local", Words())
    assert (one.method, one.file, one.by) == ("", "", "")
    assert "No model can be recommended: blind (" in one.said[0] and "Better than guessing" in one.said[1]
    (one,) = choice.describe_decisions(
        choice.make_decisions([blind, good], rows), [blind, good], rows, "local", Words()
    )
    assert (one.method, one.by) == ("good", "validation") and one.said[0].startswith("In place of blind")
    (one,) = choice.make_decisions([good], rows)
    assert (one.method, one.withdrawn) == ("good", ())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("only", [0, 1])
@pytest.mark.parametrize("loss", [0.1, NAN])
def test_where_test_patients_have_one_class_nothing_is_recommended_and_it_is_said(classes, only, loss):
    rng, tables = np.random.default_rng(1), {}
    for method in ("local", "fedavg"):
        p = rng.dirichlet(np.ones(classes), 40)
        y = np.arange(40) % classes
        patient = np.arange(40)
        tables[method] = {
            ("a", "a"): count_scores(y, p, patient, copies=20, seed=0, site="a"),
            ("b", "b"): count_scores(np.full(40, only), p, patient, copies=20, seed=0, site="b"),
        }
    grades = Classes(tuple("xyz"[:classes]))
    found = score_rows(tables, reference="local", measures=label_measures(tables, grades))
    models = [Model(site, method, loss, "f") for site in "ab" for method in tables]
    told = [Recommendation("b", "fedavg", "local")]
    a, b = choice.describe_decisions(choice.make_decisions(models, found, told), models, found, "local", Words())
    assert (b.method, b.file) == ("", "") and "one class only" in b.said[0]
    assert "one class only" not in " ".join(a.said)
    texts = [one.text for one in notices._score_notices(found, "local", Words(), grades.several)]
    assert sum("b: its test patients have one class only" in text for text in texts) == 1
    assert not any(text.startswith("a:") for text in texts)
