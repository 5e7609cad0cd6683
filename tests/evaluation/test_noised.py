"""Noised histograms: without noise they are exact, with noise intervals still hold, and what is wrong is told."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize

from evaluation import histograms as plain
from evaluation import noised, protocols, rows, scoring
from evaluation.histograms import ODDS, convert_to_odds, count_scores, pool_counts
from evaluation.metrics import ACCURACY, AUC, BALANCED_ACCURACY, BRIER, CALIBRATION, compute_support
from evaluation.scale import CELLS, TREE, cell_of
from evaluation.votes import BINS, SCALE, Release, bins_from, class_votes, release_histograms, split_noise


def hospital(seed, patients=60, images=5, separation=1.0):
    """labels, probabilities (n, 2), patients; the last two patients are of one class each."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(patients), rng.integers(1, images + 1, patients))
    y = (rng.random(len(who)) < 0.4).astype(int)
    y[who == patients - 1], y[who == patients - 2] = 1, 0
    p = 1 / (1 + np.exp(-(separation * (2 * y - 1) + rng.normal(0, 1, len(who)))))
    return y, np.c_[1 - p, p], who


def adding(seed):
    """What the mechanism does."""
    rng = np.random.default_rng([seed, 9])

    def told(votes, deviation):
        return (votes / votes.sum(axis=1, keepdims=True)).sum(axis=0) + deviation * rng.standard_normal(votes.shape[1])

    return told


def release(sample, noise=0.0, seed=0):
    """What a hospital would release, and the declared facts."""
    y, p, who = sample
    facts = {
        "noise": noise,
        "patients": len(np.unique(who)),
        "images": len(y),
        "class_patients": tuple(len(np.unique(who[y == c])) for c in range(p.shape[1])),
    }
    found = release_histograms(
        *sample, noise=noise, class_patients=facts["class_patients"], number=facts["patients"], add_noise=adding(seed)
    )
    return found, facts


def read(sample, *, noise=0.0, seed=0, copies=20):
    found, facts = release(sample, noise, seed)
    return noised.from_noised(found, **facts, copies=copies, seed=3)


def edges_of(found, facts):
    return bins_from(found.levels, facts["patients"], facts["class_patients"])


def in_bins(counts, edges):
    """(..., 2, bins) of scores (..., 2, CELLS)."""
    return np.add.reduceat(counts.scores[:, 0], np.concatenate([[0], edges[0]]), axis=-1)


@given(st.integers(0, 10**6))
def test_votes_are_the_images_of_each_patient_by_class_and_bin(seed):
    y, p, who = hospital(seed, patients=7)
    edges = np.sort(np.random.default_rng(seed).choice(np.arange(1, CELLS), BINS - 1, replace=False))[None]
    found = class_votes(y, p, who, edges)
    expected = np.zeros((7, 2 * BINS), int)
    for label, one, patient in zip(y, p[:, 1], who, strict=True):
        expected[patient, label * BINS + int((cell_of(one) >= edges[0]).sum())] += 1
    assert np.array_equal(found, expected)


@given(st.integers(0, 10**6))
def test_without_noise_and_with_one_image_a_patient_the_counts_are_those_of_the_images(seed):
    sample = hospital(seed, patients=30, images=1)
    found, facts = release(sample)
    ours, theirs = read(sample), count_scores(*sample, copies=20, seed=0)
    assert np.array_equal(in_bins(ours, edges_of(found, facts)), in_bins(ours, edges_of(found, facts)))
    y, p, _ = sample
    bins = (cell_of(p[:, 1])[:, None] >= edges_of(found, facts)).sum(axis=1)
    exact = np.bincount(y * BINS + bins, minlength=2 * BINS).reshape(2, BINS)
    assert np.array_equal(in_bins(ours, edges_of(found, facts))[0], exact)
    assert np.array_equal(ours.confusion[0], theirs.confusion[0])
    assert (ours.patients, ours.class_patients, ours.noise) == (theirs.patients, theirs.class_patients, 0.0)
    assert compute_support(ours) == compute_support(theirs)


@given(st.integers(0, 10**6))
def test_without_noise_every_patient_weighs_the_same(seed):
    sample = hospital(seed, patients=25)
    found, facts = release(sample)
    counts = noised.from_noised(found, **facts, copies=0, seed=0)
    exact = found.histograms["noised"] * facts["images"] / facts["patients"]
    assert (np.abs(in_bins(counts, edges_of(found, facts))[0] - exact) < 2).all()
    y, p, who = sample
    weight = 1 / np.bincount(who)[who]
    correct = float(np.average((p[:, 1] >= 0.5) == y, weights=weight))
    assert ACCURACY.of(counts)[0] == pytest.approx(correct, abs=8 / facts["images"])


@given(st.integers(0, 10**6), st.floats(0, 20), st.integers(0, 5))
def test_totals_are_kept_and_scores_and_confusion_agree(seed, noise, copies):
    sample = hospital(seed, patients=12)
    counts = read(sample, noise=noise, copies=copies)
    assert counts.scores.min() >= 0
    assert counts.scores.shape == (1 + copies, 1, 2, CELLS)
    assert (counts.scores.sum(axis=(1, 2, 3)) == len(sample[0])).all()
    assert (counts.confusion.sum(axis=(1, 2)) == len(sample[0])).all()
    assert np.array_equal(counts.confusion, counts.scores[:, 0].reshape(-1, 2, 2, CELLS // 2).sum(axis=-1))


@pytest.mark.parametrize("shape", [lambda x: 0.45 + 0.1 * x, lambda x: 1e-4 + 0.02 * x, lambda x: 0.2 + 0.6 * x])
def test_scores_in_a_narrow_range_lose_as_little_as_others(shape):
    """Eight bins of width 1/8 told 0.5 of the first two."""
    rng = np.random.default_rng(4)
    y = np.arange(400) % 2
    p = shape(1 / (1 + np.exp(-1.5 * (rng.normal(0, 1, 400) + 1.5 * y))))
    sample = (y, np.c_[1 - p, p], np.arange(400))
    exact = AUC.of(count_scores(*sample, copies=0, seed=0))[0]
    assert 0.8 < exact < 0.9
    assert AUC.of(read(sample, noise=1.4))[0] == pytest.approx(exact, abs=0.04)


def bisected(values, total):
    """The simplex projection without sorting: max(v - t, 0), with the t whose sum is right."""
    low, high = values.min() - total - 1, values.max()
    t = optimize.brentq(lambda t: np.maximum(values - t, 0).sum() - total, low, high, xtol=1e-13)
    return np.maximum(values - t, 0)


@given(hnp.arrays(np.float64, (2, 4), elements=st.floats(-30, 30)), st.integers(1, 40))
def test_without_bounds_the_projection_is_that_of_bisection(histogram, patients):
    ours = noised.project_histogram(histogram, patients, np.array(0), np.array(patients))
    assert ours.ravel() == pytest.approx(bisected(histogram.ravel(), patients), abs=1e-8)


@settings(max_examples=25, deadline=None)
@given(hnp.arrays(np.float64, (2, 3), elements=st.floats(-10, 10)), st.integers(1, 20), st.integers(0, 20), st.data())
def test_with_bounds_no_general_solver_finds_a_nearer_histogram(histogram, patients, one, data):
    least, most = sorted((min(one, patients), data.draw(st.integers(0, patients))))
    ours = noised.project_histogram(histogram, patients, np.array(least), np.array(most))
    assert ours.min() >= 0
    assert ours.sum() == pytest.approx(patients)
    assert least - 1e-8 <= ours[1].sum() <= most + 1e-8
    start = np.stack([np.full(3, (patients - least) / 3), np.full(3, least / 3)]).ravel()
    found = optimize.minimize(
        lambda h: ((h - histogram.ravel()) ** 2).sum() / 2,
        start,
        jac=lambda h: h - histogram.ravel(),
        bounds=[(0, None)] * 6,
        constraints=[
            {"type": "eq", "fun": lambda h: h.sum() - patients},
            {"type": "ineq", "fun": lambda h: h[3:].sum() - least},
            {"type": "ineq", "fun": lambda h: most - h[3:].sum()},
        ],
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 300},
    )
    assert ((ours - histogram) ** 2).sum() / 2 <= found.fun + 1e-5
    if found.success:
        assert ours.ravel() == pytest.approx(found.x, abs=1e-2)


def test_the_projection_of_many_is_that_of_each():
    many = np.random.default_rng(0).normal(3, 5, (6, 2, 8))
    least, most = np.arange(6.0), np.arange(6.0) + 5
    each = [noised.project_histogram(h, 40, low, high) for h, low, high in zip(many, least, most, strict=True)]
    assert np.allclose(noised.project_histogram(many, 40, least, most), each)


@given(st.integers(0, 10**6), st.floats(0.5, 8))
def test_where_a_patient_has_one_class_the_number_of_each_class_is_exact_and_copies_draw_it_anew(seed, noise):
    sample = hospital(seed, patients=40, images=1)
    counts = read(sample, noise=noise, copies=30)
    assert counts.scores[0, 0].sum(axis=-1).tolist() == list(counts.class_patients)
    assert len(set(counts.scores[1:, 0, 1].sum(axis=-1).tolist())) > 1


@given(hnp.arrays(np.float64, (2, BINS), elements=st.floats(-5, 20)), st.integers(1, 30), st.integers(0, 100))
def test_rounding_moves_no_cell_by_two_images_and_no_class_by_one(histogram, patients, more):
    facts = {"noise": 1.0, "patients": patients, "class_patients": (patients, patients)}
    images = 2 * patients + more
    found = Release(np.full((1, TREE), 1.0), {"noised": histogram})
    counts = noised.from_noised(found, **facts, images=images, copies=0, seed=0)
    exact = noised.project_histogram(histogram, patients, np.array(0), np.array(patients)) * images / patients
    told = in_bins(counts, edges_of(found, facts))[0]
    assert (np.abs(told - exact) < 2).all()
    assert (np.abs((told - exact).sum(axis=-1)) < 1).all()


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Population values of a large sample; 100 hospitals. 0.88 is three standard errors below 0.95."""
    y, p, who = hospital(99, patients=40_000, images=1)
    large = count_scores(y, p, who, copies=0, seed=0)
    noised_ones = [read(hospital(s, patients=300, images=1), noise=2.0, seed=s, copies=100) for s in range(100)]
    for measure in (AUC, BALANCED_ACCURACY, ACCURACY):
        truth = measure.of(large)[0]
        scores = [protocols.score_evidence(evidence, measure, sites=("a",)) for evidence in noised_ones]
        held = np.mean([s.estimate.low <= truth <= s.estimate.high for s in scores])
        assert held >= 0.88, measure.name
        assert np.mean([s.estimate.high - s.estimate.low for s in scores]) < 0.4


def test_intervals_carry_the_noise_and_the_choice_of_patients():
    sample = hospital(5, patients=300)

    def width(noise):
        estimate = protocols.score_evidence(read(sample, noise=noise, copies=300), AUC, sites=("a",)).estimate
        return estimate.high - estimate.low

    counted = protocols.score_evidence(count_scores(*sample, copies=300, seed=0), AUC, sites=("a",)).estimate
    assert 0.9 * (counted.high - counted.low) < width(0.0) < width(3.0) < width(10.0)


def test_copies_of_two_models_do_not_share_their_noise():
    """With one seed for both, equal noise would cancel in a gain and make its interval far too narrow."""
    found, facts = release(hospital(1, patients=200, images=1), noise=5.0)

    def copies(one):
        return AUC.of(noised.from_noised(one, **facts, copies=400, seed=3))[1:]

    near = found.histograms["noised"] + 1e-9 * np.arange(8)  # enough that only the seed can tell them apart
    assert abs(np.corrcoef(copies(found), copies(Release(found.levels, {"noised": near})))[0, 1]) < 0.2
    assert np.array_equal(copies(found), copies(found))


def test_every_protocol_measure_and_row_takes_noised_counts_and_says_so():
    sites = ("a", "b")

    def table(separation, noise):
        return {
            (m, t): read(hospital(ord(t), 120, separation=separation), noise=noise, seed=ord(m) + int(10 * separation))
            for m in sites
            for t in sites
        }

    tables = {"local": table(0.5, 2.0), "ours": table(1.5, 2.0)}
    measures = (AUC, BALANCED_ACCURACY, ACCURACY)
    found = scoring.score_rows(tables, reference="local", measures=measures)
    assert {r.protocol for r in found} == {"private", "private mean", "overall", "public"}
    assert all(np.isfinite([r.value, r.low, r.high, r.gain]).all() for r in found)
    own = split_noise(2.0, 2).own
    assert own == pytest.approx(2.0 / (1 - SCALE) ** 0.5)
    assert {r.noise for r in found if r.protocol == "private"} == {own}
    assert [r.noise for r in found if r.protocol != "private"] == pytest.approx([2**0.5 * own] * 18)
    for measure in (BRIER, CALIBRATION):  # bins are too wide to tell how large a probability was
        assert (
            measure.of(tables["ours"]["a", "a"]).shape == (21,) and np.isnan(measure.of(tables["ours"]["a", "a"])).all()
        )
    gained = scoring.gain_rows(tables, reference="local", measures=(AUC,))
    assert [(r.method, r.noise) for r in gained] == [("ours", own)]
    assert gained[0].mean > 0
    assert "noise" in rows.scores_csv(found).splitlines()[0].split(",")
    exact = {"a": {("a", "a"): count_scores(*hospital(0), copies=5, seed=0)}}
    assert {r.noise for r in scoring.score_rows(exact)} == {0.0}


def test_a_gain_of_noised_counts_knows_its_patients():
    sample, other = hospital(1, patients=80), hospital(2, patients=81)
    one, two, third = (
        protocols.score_evidence(read(s, noise=2.0, seed=i), AUC, sites=("a",))
        for i, s in enumerate((sample, sample, other))
    )
    assert np.isfinite(protocols.compute_gain(one, two, AUC).estimate.value)
    with pytest.raises(ValueError, match="same patients"):
        protocols.compute_gain(one, third, AUC)


def test_noised_counts_pool_with_counted_ones_of_another_hospital():
    ours, theirs = hospital(1, patients=50), hospital(2, patients=70)
    counted, mine = count_scores(*theirs, copies=20, seed=0), read(ours, noise=2.0)
    pooled = pool_counts([counted, mine])
    assert np.array_equal(pooled.scores, convert_to_odds(counted).scores + mine.scores)
    assert np.array_equal(pooled.confusion, counted.confusion + mine.confusion)
    assert (pooled.patients, pooled.noise, pooled.scale) == (120, mine.noise, ODDS)
    assert pool_counts([mine, pooled]).noise == pytest.approx(2**0.5 * mine.noise)
    overall = protocols.score_overall({("a", "a"): mine, ("b", "b"): counted}, AUC)
    assert overall.support.images == len(ours[0]) + len(theirs[0])
    assert overall.support.noise == mine.noise
    assert AUC.of(convert_to_odds(counted)) == pytest.approx(AUC.of(counted), abs=0.005)
    with pytest.raises(ValueError, match="agree in copies"):
        pool_counts([counted, count_scores(*theirs, copies=20, seed=0, bins=8)])


def test_support_of_noised_counts_is_patients_and_too_much_noise_cannot_be_assessed():
    sample = hospital(3, patients=200)
    held = compute_support(read(sample, noise=2.0))
    of_class = [len(np.unique(sample[2][sample[0] == c])) for c in (0, 1)]
    assert [held.negatives, held.positives] == of_class
    assert held.positive_patients == of_class[1]
    assert held.class_noise == pytest.approx(split_noise(2.0, 2).own * BINS**0.5)
    limit = 0.1 * min(of_class) / (BINS / (1 - SCALE)) ** 0.5
    assert compute_support(read(sample, noise=0.99 * limit)).assessable()
    assert not compute_support(read(sample, noise=1.01 * limit)).assessable()
    assert compute_support(read(sample, noise=1.01 * limit)).assessable(noise=0.2)
    assert not protocols.score_evidence(read(sample, noise=1.01 * limit), AUC, sites=("a",)).assessable


def test_what_travels_is_the_histograms_and_their_facts():
    found, facts = release(hospital(4), noise=1.5)
    tensors = noised.to_tensors(found)
    shapes = {n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()}
    assert shapes == {"scale": (torch.float32, (1, TREE)), "noised": (torch.float32, (2, BINS))}
    facts["class_patients"] = list(facts["class_patients"])  # JSON knows no tuples
    came = noised.from_tensors(tensors, facts, copies=10, seed=1)
    rounded = {"noised": found.histograms["noised"].astype(np.float32)}
    facts["class_patients"] = tuple(facts["class_patients"])
    direct = noised.from_noised(Release(found.levels, rounded), **facts, copies=10, seed=1)
    assert np.array_equal(came.scores, direct.scores)
    assert (came.noise, came.class_patients) == (split_noise(1.5, 2).own, facts["class_patients"])
    with pytest.raises(ValueError, match="not packed"):
        plain.to_tensors(came)


def test_all_faults_are_named_at_once():
    with pytest.raises(ValueError, match="no noised counts") as caught:
        noised.from_noised(
            Release(np.zeros((1, TREE)), {"noised": np.full((2, 8), np.nan)}),
            noise=-1, patients=10, images=5, class_patients=(11, 0), copies=-1, seed=0,
        )  # fmt: skip
    for said in ("copies is -1", "noised holds a number that is not", "noise is -1", "class_patients is (11, 0) of 10"):
        assert said in str(caught.value)
    with pytest.raises(ValueError, match="no noised counts") as caught:
        noised.from_tensors({"noised": torch.zeros(3, 8).double()}, {"noise": True}, copies=1, seed=0)
    for said in ("noised is torch.float64", "lack class_patients, images", "needed is scale"):
        assert said in str(caught.value)


GOOD = {"noise": 1.0, "patients": 10, "images": 20, "class_patients": [6, 7]}
SENT = {"noised": torch.zeros(2, BINS), "scale": torch.zeros(1, TREE)}
THREE = {"noised": torch.zeros(3, BINS), "rest": torch.zeros(3, BINS + 1), "confusion": torch.zeros(3, 3)}
THREE["scale"] = torch.zeros(3, TREE)


@pytest.mark.parametrize(
    ("tensors", "changed", "said"),
    [
        ({"scale": torch.zeros(1, TREE)}, {}, "found \\['scale'\\] for 2 classes"),
        ({**SENT, "noised": torch.zeros(2, 8).double()}, {}, "float32"),
        ({**SENT, "noised": torch.zeros(2, 7)}, {}, "noised has shape \\(2, 7\\)"),
        ({**SENT, "scale": torch.zeros(1, TREE - 1)}, {}, "scale has shape"),
        ({**SENT, "more": torch.zeros(1)}, {}, "needed is \\['noised', 'scale'\\]"),
        (THREE, {}, "for 2 classes"),
        ({**THREE, "rest": torch.zeros(3, BINS)}, {"class_patients": [6, 7, 0]}, "rest has shape"),
        (SENT, {"noise": float("nan")}, "noise is nan"),
        (SENT, {"noise": "1"}, "noise is '1'"),
        (SENT, {"patients": 10.0}, "patients is 10.0"),
        (SENT, {"patients": True}, "patients is True"),
        (SENT, {"images": 2**40}, "images is 1099511627776"),
        (SENT, {"images": 12}, "needed is 13 or more"),
        (SENT, {"class_patients": [6, 3]}, "one class or more"),
        (SENT, {"class_patients": [6, 7, 8]}, "for 3 classes"),
        (SENT, {"class_patients": None}, "two whole numbers"),
        ({**SENT, "scale": torch.full((1, TREE), torch.nan)}, {}, "scale holds a number that is not finite"),
    ],
)
def test_what_is_no_noised_counts_is_refused(tensors, changed, said):
    with pytest.raises(ValueError, match=said):
        noised.from_tensors(tensors, {**GOOD, **changed}, copies=10, seed=0)


def test_more_copies_than_memory_holds_are_refused():
    with pytest.raises(ValueError, match="too many"):
        noised.from_tensors(SENT, GOOD, copies=2**18, seed=0)


def test_votes_that_cannot_be_counted_are_refused_with_every_reason():
    with pytest.raises(ValueError, match="cannot count votes") as caught:
        release_histograms(
            [0, 3], np.full((2, 3), 0.5), [0.5, 1.0], noise=1.0, class_patients=[1, 1, 0], number=2, add_noise=adding(0)
        )
    for said in ("patients have shape", "2 of 2 rows", "labels hold [3]"):
        assert said in str(caught.value)


def test_a_class_that_is_nowhere_gives_no_score_instead_of_a_wrong_one():
    found = Release(np.ones((1, TREE)), {"noised": np.full((2, BINS), 2.0)})
    counts = noised.from_noised(found, noise=1.0, patients=16, images=20, class_patients=(16, 0), copies=5, seed=0)
    assert counts.scores[:, 0, 1].sum() == 0
    assert np.isnan(AUC.of(counts)).all()
