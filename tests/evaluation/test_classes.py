"""More than two classes: against scikit-learn, over the classes that can be assessed, and on the pages."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import cohen_kappa_score, recall_score, roc_auc_score

from evaluation import protocols, records
from evaluation.agreement import MOST, confusion_matrices
from evaluation.classes import (
    KINDS,
    TWO,
    Classes,
    class_measure_name,
    compare_classes,
    describe_single_class,
    describe_strange_counting,
    list_class_names,
    list_mean_classes,
)
from evaluation.figures import draw_roc_by_class, draw_score_dots
from evaluation.floors import add_floor, drop_floors
from evaluation.histograms import count_scores, pool_counts
from evaluation.intervals import percentile_interval
from evaluation.metrics import (
    AUC,
    BALANCED_ACCURACY,
    compute_class_support,
    compute_support,
    find_mean_classes,
    quadratic_kappa,
)
from evaluation.notices import run_notices, site_notices
from evaluation.report import render_coordinator_page, render_site_page
from evaluation.scoring import label_measures, score_rows

NAMES = ("nv", "bkl", "df", "mel")
CLASSES = Classes(NAMES)


def sample(seed, numbers, separation=1.5):
    """labels, probabilities and patients, one image each; numbers: images of each class."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(numbers)), numbers)
    logits = rng.normal(0, 1, (len(y), len(numbers)))
    logits[np.arange(len(y)), y] += separation
    p = np.exp(logits)
    return y, p / p.sum(axis=1, keepdims=True), np.arange(len(y))


def counted(seed, numbers, copies=20, **options):
    return count_scores(*sample(seed, numbers, **options), copies=copies, seed=0, site=str(seed))


@given(hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 24)))
def test_the_quadratic_kappa_is_that_of_scikit_learn(pairs):
    true, predicted = pairs // 5, pairs % 5
    confusion = np.zeros((5, 5), int)
    np.add.at(confusion, (true, predicted), 1)
    ours = quadratic_kappa(confusion)
    if len(np.unique(np.r_[true, predicted])) == 1:
        assert np.isnan(ours)
    else:
        assert ours == pytest.approx(
            cohen_kappa_score(true, predicted, weights="quadratic", labels=range(5)), abs=1e-12
        )


@settings(deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 40), min_size=3, max_size=5))
def test_each_class_is_scored_against_the_rest_as_by_scikit_learn(seed, numbers):
    y, p, who = sample(seed, numbers)
    counts = count_scores(y, p, who, copies=0, seed=0, bins=2**14)
    names = tuple("abcde"[: len(numbers)])
    found = {m.name: m for m in label_measures({"m": {("a", "a"): counts}}, Classes(names))}
    predicted = p.argmax(axis=1)
    for c, name in enumerate(names):
        values = {kind: found[class_measure_name(kind, name)].of(counts)[0] for kind in KINDS}
        assert values["AUC"] == pytest.approx(roc_auc_score(y == c, p[:, c]), abs=2e-3)
        assert values["sensitivity"] == pytest.approx(recall_score(y == c, predicted == c))
        assert values["specificity"] == pytest.approx(recall_score(y != c, predicted != c))
        held = found[class_measure_name("AUC", name)].rests(counts)
        assert (held.positives, held.positive_patients, held.negatives) == (*[numbers[c]] * 2, len(y) - numbers[c])
    assert "quadratic kappa" not in found and "quadratic kappa" not in {m.name for m in label_measures({}, TWO)}


def test_a_mean_is_over_the_classes_that_can_be_assessed_in_every_copy():
    counts = counted(1, (60, 30, 3, 0))
    assert find_mean_classes(counts).tolist() == [True, True, False, False]
    each = [compute_class_support(counts, c).assessable() for c in range(4)]
    assert each == [True, True, False, False]
    held = compute_support(counts)
    assert held.assessable() and (held.positives, held.negatives, held.positive_patients) == (30, 33, 30)
    measures = {m.name: m.of(counts) for m in label_measures({"m": {("a", "a"): counts}}, CLASSES)}
    assert AUC.of(counts) == pytest.approx((measures["AUC nv"] + measures["AUC bkl"]) / 2)
    expected = (measures["sensitivity nv"] + measures["sensitivity bkl"]) / 2
    assert BALANCED_ACCURACY.of(counts) == pytest.approx(expected)
    assert np.isnan(measures["AUC mel"]).all() and np.isfinite(measures["AUC df"][0])


def test_with_fewer_than_two_such_classes_it_is_over_all_that_are_there_and_cannot_be_assessed():
    counts = counted(2, (60, 9, 9, 0))
    assert find_mean_classes(counts).tolist() == [True, True, True, False]
    assert not compute_support(counts).assessable()
    assert not protocols.score_evidence(counts, AUC, sites=("a",)).assessable


def test_pooled_hospitals_have_the_classes_of_all():
    north, south = counted(3, (40, 25, 0, 12)), counted(4, (30, 0, 25, 12))
    assert find_mean_classes(north).tolist() == [True, True, False, False] and find_mean_classes(south).tolist() == [
        True,
        False,
        True,
        False,
    ]
    assert find_mean_classes(pool_counts([north, south])).all()
    assert protocols.score_overall({("n", "n"): north, ("s", "s"): south}, AUC).assessable


def test_intervals_of_all_measures_are_those_of_their_copies():
    tables = {"m": {("a", "a"): counted(5, (50, 40, 30, 25))}}
    rows = {row.measure: row for row in score_rows(tables, measures=label_measures(tables, CLASSES))}
    assert len(rows) == 3 + 2 + 3 * 4
    for measure in label_measures(tables, CLASSES):
        values = measure.of(tables["m"]["a", "a"])
        expected, row = percentile_interval(values), rows[measure.name]
        assert (row.value, row.low, row.high) == (expected.value, expected.low, expected.high)
        assert row.low <= row.high


@pytest.fixture(scope="module")
def pages() -> MappingProxyType[str, object]:
    sites = {"north": (90, 40, 30, 25), "south": (60, 30, 0, 22)}
    tables = {
        m: {(s, s): counted(seed, numbers, separation=separation) for seed, (s, numbers) in enumerate(sites.items())}
        for m, separation in (("local", 1.0), ("moments", 2.0))
    }
    rows = score_rows(add_floor(tables), reference="local", measures=label_measures(tables, CLASSES))
    split = records.SplitCount("test", 185, 185, 95, sites["north"])
    matrices = confusion_matrices({"north": {"local": tables["local"]["north", "north"].confusion[0]}}, NAMES)
    roc = draw_roc_by_class({"local": tables["local"]["south", "south"]}, NAMES)
    shared = {"title": "T", "run": "r", "date": "", "simulation": True, "reference": "local", "classes": NAMES}
    run = records.RunPage(
        what="", sites=(records.SiteCounts("north", (split,), {}),), scores=rows, gains=(), methods=(), left=(),
        missing=(), stages=(), settings="", commands=(), pictures=(
            draw_score_dots(drop_floors(rows), "AUC"), *matrices, roc,
        ), **shared,
    )  # fmt: skip
    own = tuple(row for row in rows if row.sites == ("south",) and row.protocol == "private")
    site = records.SitePage(site="south", splits=(split,), scores=own, left=(), quarantine=(), **shared)
    return MappingProxyType({"rows": rows, "run": render_coordinator_page(run), "site": render_site_page(site)})


def test_the_pages_show_each_class_and_say_over_which_means_are_taken(pages):
    assert list_mean_classes(pages["rows"], NAMES) == {"north": NAMES, "south": ("nv", "bkl", "mel")}
    assert list_mean_classes(pages["rows"], ()) == {}
    for name in ("run", "site"):
        page = pages[name]
        assert all(f"{kind} of each class against the rest" in page for kind in KINDS)
        assert (
            all(name in page for name in NAMES) and "quadratic kappa" not in page and "means over the classes" in page
        )
        assert "positive images" not in page and "negative images" not in page and "sensitivity</em>" not in page
    assert "<b>south</b>: nv, bkl, mel." in pages["run"] and "nv, bkl, mel." in pages["site"]
    assert "Confusion matrices" in pages["run"] and "of nv" in pages["run"] and "90 · 40 · 30 · 25" in pages["site"]
    assert "no curve" in pages["run"]


@pytest.mark.parametrize(
    ("north", "south", "released", "told"),
    [
        ((9, 9, 0, 0), (0, 9, 9, 9), "", True),
        ((9, 9, 0, 1), (0, 9, 9, 9), "", False),
        ((9, 9, 0, 0), (0, 9, 9, 9), "once, with noise", False),
        ((9, 9, 9, 0), (0, 9, 9, 9), "", True),
    ],
)
def test_hospitals_that_count_classes_from_different_numbers_are_named(north, south, released, told):
    own = {"north": north, "south": south}
    sites = [
        records.SiteCounts(name, (records.SplitCount("train", 9, 9, 9, counts),), {}, released=released)
        for name, counts in own.items()
    ]
    page = records.RunPage(
        title="T", run="r", date="", simulation=True, reference="local", classes=NAMES, what="", sites=tuple(sites),
        scores=(), gains=(), methods=(), left=(), missing=(), stages=(), settings="", commands=(), pictures=(),
    )  # fmt: skip
    texts = [notice.text for notice in run_notices(page) if notice.what == "Classes"]
    assert bool(texts) == told
    if told:
        assert f"both the first class, {NAMES[0]}, and the last, {NAMES[3]}" in texts[0] and "south has" in texts[0]


@pytest.mark.parametrize(
    ("held", "gone"), [(((0, 1, 1, 1), (0, 0, 2, 3)), NAMES[0]), (((3, 0, 0, 1), (9, 9, 0, 0)), NAMES[2])]
)
def test_a_class_that_nobody_has_is_named(held, gone):
    said = compare_classes(dict(enumerate(held)), NAMES)
    assert f"no hospital has an example of {gone};" in said
    assert not compare_classes(dict(enumerate((*held, (1, 1, 1, 1)))), NAMES) and not compare_classes({}, NAMES)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.sampled_from([2, 4]),
)
def test_labels_that_are_no_class_where_the_first_or_last_is_missing_are_a_sign_of_another_counting(held, bad, many):
    own = {f"h{place}": counts[:many] for place, counts in enumerate(held)}
    strange = {f"h{place}": number for place, number in enumerate(bad)}
    said = describe_strange_counting(own, NAMES[:many], strange)
    for site, counts in own.items():
        assert (site in said) == (bool(strange[site]) and not (counts[0] and counts[-1]))
        splits = {"train": (0,) * many, "test": counts}
        assert bool(describe_single_class(splits, NAMES[:many])) == (sum(map(bool, counts)) == 1)


@pytest.mark.parametrize("names", [(), NAMES[:3]])
@pytest.mark.parametrize(("bad", "first", "told"), [(3, 0, True), (0, 0, False), (3, 4, False)])
def test_both_pages_say_that_a_hospital_counts_from_another_number(names, bad, first, told):
    classes = (first, 9, 7) if names else ()
    split = records.SplitCount("train", 9, 16 + first, 16, classes)
    shared = {"title": "T", "run": "r", "date": "", "simulation": True, "reference": "", "classes": names}
    run = records.RunPage(
        what="", sites=(records.SiteCounts("b", (split,), {"bad_label": bad}),), scores=(), gains=(), methods=(),
        left=(), missing=(), stages=(), settings="", commands=(), pictures=(), **shared,
    )  # fmt: skip
    gone = tuple(records.Quarantined("s", "bad_label", "") for _ in range(bad))
    site = records.SitePage(site="b", splits=(split,), scores=(), left=(), quarantine=gone, **shared)
    for found in (run_notices(run), site_notices(site)):
        assert any("another number" in one.text for one in found) == told
    masked = run_notices(replace(run, structures=("lesion",)))
    assert not any("another number" in one.text for one in masked)


def test_the_rarest_class_of_a_mean_makes_no_hospital_weak(pages):
    assert "of the rarest class" not in pages["run"]


def test_names_are_those_given_where_their_number_fits():
    assert list_class_names(CLASSES, 4) == NAMES
    assert list_class_names(TWO, 3) == ("class 0", "class 1", "class 2")
    assert TWO.several == () and CLASSES.several == NAMES


def test_a_matrix_of_very_many_classes_is_not_drawn():
    names = [f"c{i}" for i in range(MOST + 1)]
    assert confusion_matrices({"a": {"m": np.eye(MOST + 1, dtype=int)}}, names) == []
    (picture,) = confusion_matrices({"a": {"m": np.eye(3, dtype=int)}}, ["x", "y", "z"], noised=True)
    assert "of x 1 x; of y 1 y; of z 1 z" in picture.html and "with noise" in picture.caption
