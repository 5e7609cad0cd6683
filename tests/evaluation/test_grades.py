"""Ordered classes: scores by cut against slow second implementations, and on the pages."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, recall_score, roc_auc_score

from evaluation import protocols, records
from evaluation.classes import KINDS, Classes, class_measure_name, list_mean_classes, name_cuts
from evaluation.floors import add_floor, majority_baseline
from evaluation.histograms import (
    count_class_patients,
    count_scores,
    from_tensors,
    list_rows,
    pack_scores,
    pool_counts,
    predict_grades,
    predict_labels,
    reach_cuts,
    to_tensors,
)
from evaluation.metrics import (
    AUC,
    BALANCED_ACCURACY,
    GRADE_ERROR,
    KAPPA,
    RANKED_PROBABILITY,
    compute_classes_support,
    compute_cut_support,
    compute_support,
    find_mean_cuts,
)
from evaluation.noised import cut_bounds
from evaluation.recommendation import mean_auc
from evaluation.report import render_coordinator_page, render_site_page
from evaluation.scoring import label_measures, score_rows

NAMES = ("none", "gg1", "gg2", "gg3")
GRADES = Classes(NAMES, ordered=True)


def sample(seed, numbers, separation=1.0):
    """labels, probabilities and patients, one image each; numbers: images of each grade."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(numbers)), numbers)
    place = separation * y + rng.normal(0, 1, len(y))
    logits = -((place[:, None] - separation * np.arange(len(numbers))) ** 2)
    p = np.exp(logits)
    return y, p / p.sum(axis=1, keepdims=True), np.arange(len(y))


def counted(seed, numbers, copies=20, **options):
    return count_scores(*sample(seed, numbers, **options), copies=copies, seed=0, site=str(seed), ordered=True)


@given(st.integers(0, 10**6), st.integers(2, 7))
def test_no_grade_is_expected_nearer_to_the_true_one_than_the_predicted_one(seed, classes):
    p = np.random.default_rng(seed).dirichlet(np.full(classes, 0.3), size=20)
    expected = np.array([[sum(q * abs(c - g) for c, q in enumerate(row)) for g in range(classes)] for row in p])
    assert expected[np.arange(20), predict_grades(p)] == pytest.approx(expected.min(axis=1))


@given(st.integers(0, 10**6), st.integers(2, 7))
def test_what_reaches_a_cut_falls_from_cut_to_cut(seed, classes):
    p = np.random.default_rng(seed).dirichlet(np.full(classes, 0.2), size=20)
    reached = reach_cuts(p)
    assert reached == pytest.approx(np.array([[row[k:].sum() for k in range(1, classes)] for row in p]))
    assert (np.diff(reached, axis=1) <= 1e-12).all() and reached.min() >= 0 and reached.max() <= 1


def test_two_classes_are_scored_as_if_they_were_not_ordered():
    y, p, who = sample(0, (30, 20))
    for made in (list_rows, None):
        if made is not None:
            assert all(map(np.array_equal, made(y, p, ordered=True), made(y, p, ordered=False)))
    assert np.array_equal(predict_labels(p, ordered=True), predict_labels(p, ordered=False))
    a, b = (count_scores(y, p, who, copies=3, seed=0, ordered=ordered) for ordered in (True, False))
    assert np.array_equal(a.scores, b.scores) and np.array_equal(a.confusion, b.confusion) and not a.has_cuts


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.integers(2, 30), min_size=3, max_size=6))
def test_scores_of_grades_are_those_of_scikit_learn_and_of_a_loop(seed, numbers):
    y, p, who = sample(seed, numbers)
    counts = count_scores(y, p, who, copies=0, seed=0, bins=2**14, ordered=True)
    names, predicted = tuple("abcdef"[: len(numbers)]), predict_grades(p)
    found = {m.name: m for m in label_measures({"m": {("a", "a"): counts}}, Classes(names, ordered=True))}
    assert "Brier score" not in found
    for k, name in enumerate(name_cuts(names), start=1):
        values = {kind: found[class_measure_name(kind, name)].of(counts)[0] for kind in KINDS}
        assert values["AUC"] == pytest.approx(roc_auc_score(y >= k, p[:, k:].sum(axis=1)), abs=2e-3)
        assert values["sensitivity"] == pytest.approx(recall_score(y >= k, predicted >= k))
        assert values["specificity"] == pytest.approx(recall_score(y < k, predicted < k))
        held = found[class_measure_name("AUC", name)].rests(counts)
        assert (held.positives, held.positive_patients, held.negatives) == (*[sum(numbers[k:])] * 2, sum(numbers[:k]))
    kappa = cohen_kappa_score(y, predicted, weights="quadratic", labels=range(len(numbers)))
    assert KAPPA.of(counts)[0] == pytest.approx(kappa, nan_ok=True)
    assert GRADE_ERROR.of(counts)[0] == pytest.approx(mean_absolute_error(y, predicted))
    literal = 0.0
    for true, row in zip(y, p, strict=True):
        for k in range(len(numbers) - 1):
            literal += (sum(row[: k + 1]) - (1.0 if true <= k else 0.0)) ** 2
    assert RANKED_PROBABILITY.of(counts)[0] == pytest.approx(literal / len(y), abs=len(numbers) * 2e-4)
    cuts = [found[class_measure_name("AUC", name)].of(counts)[0] for name in name_cuts(names)]
    weights = np.ones((len(y), 1))
    assert mean_auc(y, p, weights, ordered=True)[0] == pytest.approx(np.mean(cuts), abs=2e-3)


def test_a_mean_is_over_the_cuts_that_can_be_assessed():
    counts = counted(1, (60, 30, 3, 0))
    assert find_mean_cuts(counts).tolist() == [True, False, False]
    each = {m.name: m.of(counts) for m in label_measures({"m": {("a", "a"): counts}}, GRADES)}
    assert AUC.of(counts) == pytest.approx(each["AUC ≥ gg1"]) and np.isnan(each["AUC ≥ gg3"]).all()
    held = compute_support(counts)
    assert held.assessable() and (held.positives, held.negatives, held.positive_patients) == (33, 60, 33)
    assert BALANCED_ACCURACY.rests(counts) == compute_classes_support(counts) != held
    few = counted(2, (6, 3, 0, 0))
    assert find_mean_cuts(few).tolist() == [True, False, False] and not compute_support(few).assessable()
    assert np.isnan(AUC.of(counted(3, (9, 0, 0, 0)))).all()


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=20))
def test_a_patient_reaches_a_cut_with_one_image_from_it_on(images):
    """images: (patient, grade) of each."""
    who, y = map(np.array, zip(*images, strict=True))
    counts = count_scores(y, np.full((len(y), 4), 0.25), who, copies=0, seed=0, ordered=True)
    assert sum(counts.class_patients) == counts.patients
    for cut in range(3):
        held = compute_cut_support(counts, cut)
        assert held.positive_patients == len({patient for patient, grade in images if grade > cut})
        assert (held.positives, held.negatives) == (int((y > cut).sum()), int((y <= cut).sum()))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(3, 6))
def test_bounds_of_grades_hold_for_patients_with_images_of_several(seed, classes):
    """A patient counts in equal parts of their images, and the declared numbers go by the highest."""
    rng = np.random.default_rng(seed)
    y, who = rng.integers(0, classes, 60), rng.integers(0, 20, 60)
    by_highest = count_class_patients(y, who, classes, ordered=True)
    bounds = cut_bounds(len(np.unique(who)), by_highest)
    parts = np.array([[np.mean(y[who == one] == c) for c in range(classes)] for one in np.unique(who)]).sum(axis=0)
    assert (bounds.least <= parts).all() and (parts <= bounds.most + 1e-9).all()


def test_counts_by_cut_are_sent_pooled_and_not_mixed_with_counts_by_class():
    north, south = counted(3, (40, 25, 0, 12)), counted(4, (30, 0, 25, 12))
    for one in (north, south):
        came = from_tensors(to_tensors(one))
        assert came.has_cuts and np.array_equal(came.scores, one.scores)
    assert find_mean_cuts(pool_counts([north, south])).all()
    assert protocols.score_overall({("n", "n"): north, ("s", "s"): south}, AUC).assessable
    with pytest.raises(ValueError, match="agree"):
        pool_counts([north, count_scores(*sample(4, (30, 9, 25, 12)), copies=20, seed=0)])
    with pytest.raises(ValueError, match=r"needed is \(1 \+ copies, 4 or 3, 2, bins\)"):
        from_tensors({**to_tensors(north), "shape": to_tensors(north)["shape"] * 0 + 2})


def test_who_knows_only_how_often_grades_are_predicts_the_median_one():
    floor = majority_baseline(counted(5, (40, 25, 20, 30)))
    assert (floor.confusion[0].sum(axis=0) > 0).tolist() == [False, True, False, False]
    assert AUC.of(floor)[0] == pytest.approx(0.5) and floor.has_cuts


@pytest.fixture(scope="module")
def pages() -> MappingProxyType[str, object]:
    sites = {"north": (90, 40, 30, 25), "south": (60, 30, 0, 2)}
    tables = {
        m: {(s, s): counted(seed, numbers, separation=separation) for seed, (s, numbers) in enumerate(sites.items())}
        for m, separation in (("local", 1.0), ("fedavg", 2.0))
    }
    rows = score_rows(add_floor(tables), reference="local", measures=label_measures(tables, GRADES))
    split = records.SplitCount("test", 185, 185, 95, sites["north"])
    shared = {"title": "T", "run": "r", "date": "", "simulation": True, "reference": "local", "classes": NAMES}
    run = records.RunPage(
        what="", sites=(records.SiteCounts("north", (split,), {}),), scores=rows, gains=(), methods=(), left=(),
        missing=(), stages=(), settings="", commands=(), pictures=(), ordered=True, **shared,
    )  # fmt: skip
    own = tuple(row for row in rows if row.sites == ("south",) and row.protocol == "private")
    site = records.SitePage(site="south", splits=(split,), scores=own, left=(), quarantine=(), ordered=True, **shared)
    return MappingProxyType({"rows": rows, "run": render_coordinator_page(run), "site": render_site_page(site)})


def test_the_pages_have_a_table_for_each_score_of_a_cut(pages):
    over = list_mean_classes(pages["rows"], name_cuts(NAMES), ordered=True)
    assert over == {"north": name_cuts(NAMES), "south": ("≥ gg1",)}
    for name in ("run", "site"):
        page = pages[name]
        assert all(f"{kind} of each cut between grades" in page for kind in KINDS)
        assert "of each class against the rest" not in page and "By cut" in page
        assert all(f"≥ {name}" in page for name in NAMES[1:]) and "≥ none" not in page
        for measure in ("quadratic kappa", "MAE in grades", "ranked probability score"):
            assert measure in page
        assert "Brier" not in page
    assert "<b>south</b>: ≥ gg1." in pages["run"]


def test_a_lower_error_in_grades_is_a_gain(pages):
    rows = {
        (row.method, row.measure): row for row in pages["rows"] if row.protocol == "private" if row.sites == ("north",)
    }
    better, worse = rows["fedavg", "MAE in grades"], rows["local", "MAE in grades"]
    assert better.value < worse.value and better.gain == pytest.approx(worse.value - better.value)


def test_a_cut_that_cannot_be_assessed_leaves_no_trace_in_the_mean():
    counts = counted(6, (60, 30, 25, 2))
    spoilt = counts.scores.copy()
    spoilt[:, 2] = spoilt[:, 2, :, ::-1]
    assert np.array_equal(AUC.of(counts), AUC.of(replace(counts, packed=pack_scores(spoilt))))
