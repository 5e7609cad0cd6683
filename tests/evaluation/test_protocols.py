"""Protocols, gains and rows: against scores computed from the raw predictions, and the laws that tie them together."""

import csv
import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from evaluation import protocols, rows, scoring
from evaluation.histograms import count_scores
from evaluation.intervals import Estimate
from evaluation.metrics import AUC, BALANCED_ACCURACY, BRIER, compute_support

SITES = ("a", "b", "c")


def raw(seed=0, images=60):
    """(model, test) -> labels, scores on bin centres, patients."""
    rng = np.random.default_rng(seed)
    labels = {site: rng.integers(0, 2, images) for site in SITES}
    table = {}
    for model in SITES:
        for test in SITES:
            p = 1 / (1 + np.exp(-(labels[test] - 0.5) * (2 if model == test else 1) + rng.normal(0, 1, images)))
            table[model, test] = labels[test], (np.floor(p * 1024) + 0.5) / 1024, np.arange(images) // 3
    return table


def counted(table, copies=40):
    return {
        (m, t): count_scores(y, np.c_[1 - p, p], who, copies=copies, seed=3, site=t)
        for (m, t), (y, p, who) in table.items()
    }


def test_private_public_and_overall_equal_those_of_the_raw_predictions():
    table = raw()
    counts = counted(table)
    for measure, of in (
        (AUC, roc_auc_score),
        (BALANCED_ACCURACY, lambda y, p: balanced_accuracy_score(y, p >= 0.5)),
    ):
        private = protocols.score_private(counts, measure)
        assert {s: v.estimate.value for s, v in private.items()} == pytest.approx(
            {s: of(*table[s, s][:2]) for s in SITES}
        )
        overall = protocols.score_overall(counts, measure)
        pooled = [np.concatenate([table[s, s][i] for s in SITES]) for i in (0, 1)]
        assert overall.estimate.value == pytest.approx(of(*pooled))
        assert overall.mixes_sites
        assert overall.support.images == 180
        per_model = [of(*[np.concatenate([table[m, t][i] for t in SITES]) for i in (0, 1)]) for m in SITES]
        assert protocols.score_public(counts, measure).estimate.value == pytest.approx(np.mean(per_model))
        models, tests, values = protocols.score_matrix(counts, measure)
        assert (models, tests) == (SITES, SITES)
        assert values[1, 2] == pytest.approx(of(*table["b", "c"][:2]))
        mean = protocols.mean_score(private)
        assert mean.estimate.value == pytest.approx(np.mean([s.estimate.value for s in private.values()]))
        assert mean.estimate.low < mean.estimate.value < mean.estimate.high


def test_one_site_is_its_own_overall_and_mean():
    only = {("a", "a"): counted(raw())["a", "a"]}
    private = protocols.score_private(only, AUC)["a"]
    assert protocols.score_overall(only, AUC).estimate == private.estimate
    assert not protocols.score_overall(only, AUC).mixes_sites
    assert protocols.mean_score({"a": private}).estimate == private.estimate


def test_the_offset_between_hospitals_is_in_overall_and_in_no_private_score():
    """Two perfect models whose scores lie apart: the pooled sample is far from perfect."""
    y = np.tile([0, 1], 30)
    low, high = np.where(y, 0.3, 0.1), np.where(y, 0.9, 0.7)
    table = {
        (s, s): count_scores(y, np.c_[1 - p, p], np.arange(60), copies=5, seed=0) for s, p in (("a", low), ("b", high))
    }
    assert [s.estimate.value for s in protocols.score_private(table, AUC).values()] == [1, 1]
    assert protocols.score_overall(table, AUC).estimate.value == 0.75


def test_public_testing_names_every_missing_pair():
    counts = counted(raw(), copies=2)
    del counts["a", "b"], counts["c", "a"]
    with pytest.raises(ValueError, match=r"a on b, c on a"):
        protocols.score_public(counts, AUC)
    assert np.isnan(protocols.score_matrix(counts, AUC)[2]).sum() == 2


def test_no_own_model_is_refused_and_one_central_model_is_every_sites_own():
    counts = {("central", "a"): counted(raw(), copies=1)["a", "a"]}
    with pytest.raises(ValueError, match="at home"):
        protocols.score_private(counts, AUC)
    assert protocols.own_model_table(counts) == {("a", "a"): counts["central", "a"]}
    assert protocols.own_model_table(counted(raw(), copies=1)).keys() == counted(raw(), copies=1).keys()


def small(positives, patients, negatives=30):
    y = np.r_[np.ones(positives, int), np.zeros(negatives, int)]
    who = np.r_[np.arange(positives) % patients, 100 + np.arange(negatives)]
    p = np.linspace(0.9, 0.1, len(y))
    return count_scores(y, np.c_[1 - p, p], who, copies=10, seed=0)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (small(20, 5), True),
        (small(19, 5), False),
        (small(20, 4), False),
        (small(20, 5, negatives=19), False),
    ],
)
def test_too_few_are_not_assessable_and_keep_their_value(counts, expected):
    score = protocols.score_private({("a", "a"): counts}, AUC)["a"]
    assert score.assessable is expected
    assert score.estimate.value == 1
    assert compute_support(counts).assessable(images=1, patients=1)


def test_the_mean_leaves_out_what_cannot_be_assessed_unless_nothing_can():
    table = {("a", "a"): small(20, 5), ("b", "b"): small(3, 2), ("c", "c"): small(0, 1)}
    scores = protocols.score_private(table, AUC)
    assert protocols.mean_score(scores).sites == ("a",)
    weak = protocols.mean_score({s: scores[s] for s in "bc"})
    assert weak.sites == ("b",)
    assert not weak.assessable
    nothing = protocols.mean_score({"c": scores["c"]})
    assert math.isnan(nothing.estimate.value)
    with pytest.raises(ValueError, match="at least one"):
        protocols.mean_score({})


def test_gain_over_itself_is_nothing_and_gains_are_antisymmetric():
    one, two = counted(raw(0)), counted(raw(0))
    assert protocols.compute_gains(one, two, AUC)["a"].estimate == Estimate(0, 0, 0, 40)
    other = counted(better(raw(0)))
    there, back = (protocols.compute_gains(x, y, AUC)["b"].estimate for x, y in ((other, one), (one, other)))
    assert there.value == pytest.approx(-back.value)
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))
    assert there.value > 0
    assert protocols.compute_gains(other, one, BRIER)["b"].estimate.value > 0


def better(table):
    return {key: (y, np.clip(p + 0.2 * (y - 0.5), 0, 1), who) for key, (y, p, who) in table.items()}


def test_paired_copies_make_a_gain_surer_than_its_parts():
    ours, theirs = (protocols.score_private(counted(t, copies=300), AUC)["a"] for t in (better(raw()), raw()))
    paired = protocols.compute_gain(ours, theirs, AUC).estimate
    spread = np.std(ours.copies[1:][::-1] - theirs.copies[1:])
    assert (paired.high - paired.low) < 0.9 * 3.92 * spread


def test_a_gain_on_other_patients_is_refused():
    one = protocols.score_private(counted(raw()), AUC)["a"]
    with pytest.raises(ValueError, match="same patients"):
        protocols.compute_gain(one, replace(one, copies=one.copies[:5]), AUC)
    table = counted(raw(), copies=1)
    with pytest.raises(ValueError, match="same sites"):
        protocols.compute_gains(table, {("a", "a"): table["a", "a"]}, AUC)


def test_mean_individual_gain_has_the_population_deviation():
    """PGFed's slides: the deviation of the mean individual gain divides by n, not n - 1."""
    base = protocols.score_private(counted(raw()), AUC)["a"]
    values = {"a": 1.0, "b": -2.0, "c": 4.0}
    by_site = {s: replace(base, estimate=replace(base.estimate, value=v)) for s, v in values.items()}
    spread = protocols.mean_individual_gain(by_site)
    assert (spread.mean, spread.std, spread.n, spread.improved) == (1.0, pytest.approx(math.sqrt(6)), 3, 2)


def tables():
    central = {("central", t): counts for (m, t), counts in counted(better(raw())).items() if m == t}
    return {"local": counted(raw()), "better": counted(better(raw())), "central": central}


def test_rows_hold_every_protocol_that_a_table_allows():
    found = scoring.score_rows(tables(), reference="local", measures=[AUC])
    keys = [(r.method, r.protocol, r.sites) for r in found]
    assert len(keys) == len(set(keys)) == 3 * (3 + 3)
    by_key = dict(zip(keys, found, strict=True))
    row = by_key["better", "private", ("b",)]
    assert row.gain == pytest.approx(row.value - by_key["local", "private", ("b",)].value)
    assert row.low < row.value < row.high
    assert by_key["central", "private", ("a",)].value == by_key["better", "private", ("a",)].value
    assert [by_key[m, "overall", SITES].mixes_sites for m in ("better", "central")] == [True, False]
    assert by_key["central", "public", SITES].value == by_key["central", "overall", SITES].value
    home = {m: {k: c for k, c in t.items() if k[0] == k[1]} for m, t in tables().items() if m != "central"}
    assert "public" not in {r.protocol for r in scoring.score_rows(home)}
    assert all(math.isnan(r.gain) for r in scoring.score_rows(home))
    with pytest.raises(ValueError, match="'ditto' was not scored"):
        scoring.score_rows(home, reference="ditto")


def test_gain_rows_agree_with_the_private_rows():
    found = scoring.score_rows(tables(), reference="local", measures=[AUC])
    for summary in scoring.gain_rows(tables(), reference="local", measures=[AUC]):
        each = [r.gain for r in found if r.method == summary.method and r.protocol == "private"]
        assert (summary.mean, summary.std, summary.n) == (pytest.approx(np.mean(each)), pytest.approx(np.std(each)), 3)


def test_csv_and_json_say_the_same_and_nothing_that_is_not_a_number():
    found = scoring.score_rows({"local": {("a", "a"): small(0, 1)}})
    (first, *_) = csv.DictReader(io.StringIO(rows.scores_csv(found)))
    assert (first["method"], first["sites"], first["value"], first["assessable"]) == ("local", "a", "", "False")
    text = rows.to_json({"rows": found, "more": {"x": [math.inf, 1.5]}})
    assert "NaN" not in text
    back = json.loads(text)
    assert back["rows"][0]["value"] is None
    assert back["rows"][0]["negatives"] == 30
    assert back["more"]["x"] == ["Infinity", 1.5]


def test_sites_that_have_the_same_model_share_its_counts_and_it_is_scored_once(monkeypatch):
    counts = counted(raw())
    alike = {"a": "a", "b": "a", "c": "c"}  # b has a's model
    shared = {(m, t): counts[alike[m], t] for m, t in counts}
    copied = {pair: replace(each) for pair, each in shared.items()}
    calls = []
    watched = replace(AUC, of=lambda evidence: calls.append(evidence) or AUC.of(evidence))
    public, matrix = protocols.score_public(shared, watched), protocols.score_matrix(shared, watched)
    assert len(calls) == 2 + 6  # two samples of all patients; two models at three sites
    again = protocols.score_public(copied, AUC)
    assert public.estimate == again.estimate and np.array_equal(public.copies, again.copies)
    assert np.array_equal(matrix[2], protocols.score_matrix(copied, AUC)[2])
