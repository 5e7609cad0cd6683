"""Overlaps: copies, pooling, the wire, protocols, gains and the mean mask."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evaluation import protocols
from evaluation.floors import add_floor, mean_mask
from evaluation.histograms import count_scores, draw_patient_weights
from evaluation.masks import score_masks
from evaluation.metrics import AUC
from evaluation.overlap import DICE, HD95, from_tensors, list_measures, pool_overlaps, sum_over_patients, to_tensors
from evaluation.rows import MEAN_MASK
from evaluation.scoring import gain_rows, score_rows
from privacy.message import Message, from_bytes, to_bytes

SIDE = 6


@st.composite
def samples(draw, classes=(2, 3)):
    n, c = draw(st.integers(1, 8)), draw(st.sampled_from(classes))
    masks = [draw(hnp.arrays(np.int64, (n, SIDE, SIDE), elements=st.integers(0, c - 1))) for _ in range(2)]
    return *masks, draw(hnp.arrays(np.int64, n, elements=st.integers(0, 4))), c


def told(sample, copies=5, seed=3, site="a"):
    truth, found, patients, classes = sample
    single = score_masks(truth, found, patients, spacing_mm=(1.3, 0.7), classes=classes)
    return sum_over_patients(single, copies=copies, seed=seed, site=site)


def same(a, b):
    return (
        np.array_equal(a.totals, b.totals)
        and np.array_equal(a.known, b.known)
        and (a.patients, a.class_patients, a.images) == (b.patients, b.class_patients, b.images)
    )


@settings(max_examples=25, deadline=None)
@given(samples(), st.integers(-4, 4))
def test_copies_are_what_redrawing_the_patients_one_by_one_gives(sample, seed):
    truth, found, patients, classes = sample
    made = told(sample, copies=4, seed=seed, site="x")
    distinct = np.unique(patients)
    for copy, drawn in enumerate([np.ones(len(distinct), int), *draw_patient_weights(distinct, 4, seed, "x")]):
        totals, known = np.zeros((classes - 1, 2)), np.zeros((classes - 1, 2), int)
        for patient, times in zip(distinct, drawn, strict=True):
            own = patients == patient
            one = score_masks(truth[own], found[own], patients[own], spacing_mm=(1.3, 0.7), classes=classes).scores[0]
            for _ in range(times):
                totals += np.nan_to_num(one)
                known += np.isfinite(one)
        assert np.array_equal(made.totals[copy], totals)
        assert np.array_equal(made.known[copy], known)


def test_a_copy_draws_the_patients_that_copies_of_counts_draw():
    who = np.arange(9)
    masks = np.zeros((9, 4, 4), np.int64)
    masks[::2, 0, 0] = 1
    made = sum_over_patients(score_masks(masks, masks, who, spacing_mm=(1, 1), classes=2), copies=30, seed=5, site="a")
    label = (np.arange(9) % 2 == 0).astype(int)
    counts = count_scores(label, np.tile([0.5, 0.5], (9, 1)), who, copies=30, seed=5, site="a")
    assert np.array_equal(made.known[:, 0, 0], counts.confusion.sum(axis=-1)[:, 1])


@settings(max_examples=20, deadline=None)
@given(st.lists(samples((3,)), min_size=1, max_size=4), st.randoms())
def test_adding_is_pooling_and_order_does_not_matter(sites, shuffle):
    each = [told(sample, seed=i) for i, sample in enumerate(sites)]
    pooled = pool_overlaps(each)
    shuffle.shuffle(each)
    assert same(pooled, pool_overlaps(each)) and same(pool_overlaps(each[:1]), each[0])
    truth, found = (np.concatenate([s[i] for s in sites]) for i in (0, 1))
    patients = np.concatenate([100 * i + s[2] for i, s in enumerate(sites)])
    whole = sum_over_patients(score_masks(truth, found, patients, spacing_mm=(1.3, 0.7), classes=3), copies=0, seed=0)
    assert np.array_equal(whole.totals[0], pooled.totals[0]) and whole.class_patients == pooled.class_patients


def test_what_does_not_fit_is_not_pooled():
    sample = (*np.ones((2, 2, 3, 3), np.int64), np.arange(2), 2)
    with pytest.raises(ValueError, match="agree in copies"):
        pool_overlaps([told(sample, copies=2), told(sample, copies=3)])
    with pytest.raises(ValueError, match="none"):
        pool_overlaps([])
    counts = count_scores([0, 1], [[0.9, 0.1], [0.2, 0.8]], [0, 1], copies=2, seed=0)
    with pytest.raises(ValueError, match="do not mix"):
        protocols.pool_evidence([counts, told(sample, copies=2)])


@settings(max_examples=30, deadline=None)
@given(samples())
def test_nothing_is_lost_over_the_wire(sample):
    made = told(sample)
    assert same(made, from_tensors(from_bytes(to_bytes(Message(to_tensors(made)))).tensors))


FAULTS = {
    "lacks": (lambda t: t.pop("known"), "needed is"),
    "single": (lambda t: t.update(totals=t["totals"].float()), "totals is torch.float32"),
    "long": (lambda t: t.update(known=t["known"].long()), "known is torch.int64"),
    "flat": (lambda t: t.update(totals=t["totals"][0]), "totals have shape"),
    "short": (lambda t: t.update(known=t["known"][1:]), "known has shape"),
    "nan": (lambda t: t["totals"].fill_(math.nan), "not finite"),
    "negative": (lambda t: t["totals"].neg_(), "negative"),
    "above": (lambda t: t["totals"].add_(1), "above 1 a known patient"),
    "many": (lambda t: t["known"].add_(9), r"known must be in \[0, 3\]"),
    "nobody": (lambda t: t["patients"].zero_(), "patients is 0"),
    "no images": (lambda t: t["images"].zero_(), "images is 0"),
    "class": (lambda t: t["class_patients"].fill_(4), r"class_patients must be in \[0, 3\]"),
    "unknown": (lambda t: (t["known"].zero_(), t["totals"].zero_()), "fewer patients than have the structure"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_overlaps_is_refused_by_name(fault):
    change, said = FAULTS[fault]
    masks = np.ones((3, 4, 4), np.int64)
    masks[:, 0] = 0
    tensors = to_tensors(told((masks, np.roll(masks, 1, axis=1), np.arange(3), 2)))
    from_tensors(tensors)
    change(tensors)
    with pytest.raises(ValueError, match=said):
        from_tensors(tensors)


def discs(patients, miss, seed=0, absent=0):
    """A square a patient, found with `miss` rows too few; `absent` patients have none and nothing is found."""
    truth, found = np.zeros((2, patients, 12, 12), np.int64)
    truth[:, 2:9, 2:9], found[:, 2 + miss : 9, 2:9] = 1, 1
    truth[patients - absent :], found[patients - absent :] = 0, 0
    single = score_masks(truth, found, np.arange(patients), spacing_mm=(1, 1), classes=2)
    return sum_over_patients(single, copies=20, seed=seed, site="s")


def test_protocols_read_overlaps_as_they_read_counts():
    table = {(m, t): discs(n, miss) for m, miss in (("a", 1), ("b", 3)) for t, n in (("a", 6), ("b", 9))}
    share = {miss: 2 * (7 - miss) / (14 - miss) for miss in (1, 3)}
    rows = {(r.measure, r.protocol, r.sites): r for r in score_rows({"m": table}, measures=list_measures(["disc"]))}
    got = {key[1:]: row.value for key, row in rows.items() if key[0] == "Dice"}
    assert got["private", ("a",)] == pytest.approx(share[1], abs=1e-6)
    assert got["private mean", ("a", "b")] == pytest.approx((share[1] + share[3]) / 2, abs=1e-6)
    assert got["overall", ("a", "b")] == pytest.approx((6 * share[1] + 9 * share[3]) / 15, abs=1e-6)
    assert got["public", ("a", "b")] == pytest.approx((share[1] + share[3]) / 2, abs=1e-6)
    assert protocols.score_matrix(table, DICE)[2][1, 0] == pytest.approx(share[3], abs=1e-6)
    assert rows["HD95", "private", ("b",)].value == pytest.approx(3.0, abs=1)
    one = rows["Dice", "private", ("b",)]
    assert (one.patients, one.images, one.positive_patients, one.defined, one.assessable) == (9, 9, 9, 9, True)


def test_a_score_is_assessable_with_five_patients_who_have_the_structure():
    for held, fine in ((5, True), (4, False)):
        score = protocols.score_evidence(discs(9, 1, absent=9 - held), DICE, sites=("a",))
        assert score.assessable is fine and score.support.positive_patients == held
        assert math.isclose(score.estimate.value, 12 / 13, abs_tol=1e-6)  # patients without it do not count


def test_lower_distances_are_gains_and_pairs_share_their_patients():
    tables = {"local": {("a", "a"): discs(8, 3)}, "fed": {("a", "a"): discs(8, 1)}}
    rows = {(r.method, r.measure): r for r in score_rows(tables, reference="local", measures=(DICE, HD95))}
    assert rows["fed", "Dice"].gain > 0 and rows["fed", "HD95"].gain > 0
    assert rows["fed", "Dice"].gain_low == pytest.approx(rows["fed", "Dice"].gain)  # all patients gain alike
    spread = {r.measure: r for r in gain_rows(tables, reference="local", measures=(DICE, HD95))}
    assert spread["HD95"].mean > 0 and spread["HD95"].improved == 1 and spread["HD95"].noise == 0


def test_a_model_that_finds_nothing_pays_in_dice_and_says_for_whom_a_distance_is_known():
    truth, found = np.ones((2, 6, 4, 4), np.int64)
    found[:2] = 0
    made = sum_over_patients(score_masks(truth, found, np.arange(6), spacing_mm=(1, 1), classes=2), copies=0, seed=0)
    far = protocols.score_evidence(made, HD95, sites=("a",))
    assert DICE.of(made)[0] == pytest.approx(4 / 6) and far.estimate.value == 0
    assert far.support.defined == 4 and far.support.positive_patients == 6


def test_a_mean_over_classes_runs_over_those_that_patients_have():
    truth, found = np.zeros((2, 6, 8, 8), np.int64)
    truth[:, :4], found[:, :2] = 1, 1
    found[:, 7] = 3  # a class that nobody has: it costs nothing by itself
    made = sum_over_patients(score_masks(truth, found, np.arange(6), spacing_mm=(1, 1), classes=4), copies=3, seed=0)
    of = {measure.name: measure for measure in list_measures(["disc", "cup", "rim"])}
    assert list(of) == ["Dice", "HD95", "Dice disc", "HD95 disc", "Dice cup", "HD95 cup", "Dice rim", "HD95 rim"]
    assert of["Dice"].of(made)[0] == of["Dice disc"].of(made)[0] == pytest.approx(2 / 3, abs=1e-6)
    assert (
        np.isnan(of["Dice cup"].of(made)).all()
        and not protocols.score_evidence(made, of["Dice cup"], sites=("a",)).assessable
    )
    assert protocols.score_evidence(made, of["Dice"], sites=("a",)).assessable


def test_the_mean_mask_is_where_most_masks_are():
    masks = np.zeros((5, 2, 4), np.int64)
    masks[:4, 0, :1], masks[:3, 0, 1], masks[:2, 0, 2] = 1, 1, 1
    masks[0, 1, 3] = 2
    assert mean_mask(masks, masks.shape[1:], 3).tolist() == [
        [1, 1, 0, 0],
        [0, 0, 0, 2],
    ]  # 3 of 4 is more than half, 2 of 4 is not
    assert (
        not mean_mask(np.zeros((3, 4, 4), int), (4, 4), 2).any()
        and not mean_mask(np.zeros((0, 4, 4), int), (4, 4), 2).any()
    )


@given(
    hnp.arrays(np.int64, st.tuples(st.integers(0, 6), st.integers(1, 3), st.integers(1, 4)), elements=st.integers(0, 3))
)
def test_the_mean_mask_is_the_one_of_all_masks_at_once(masks: np.ndarray) -> None:
    shares = np.full((4, *masks.shape[1:]), 0.5)
    for c in range(1, 4):
        is_class = masks == c
        shown = is_class.any(axis=(1, 2))
        shares[c] = is_class[shown].mean(axis=0) if shown.any() else 0.0
    assert np.array_equal(mean_mask(masks, masks.shape[1:], 4), shares.argmax(axis=0))


def test_the_mean_mask_stands_under_the_table_and_is_no_hospitals_own_model_elsewhere():
    tables = add_floor({"m": {(m, t): discs(6, 1) for m in "ab" for t in "ab"}}, {"a": discs(6, 3), "b": discs(6, 5)})
    rows = {(r.method, r.protocol, r.sites): r.value for r in score_rows(tables, measures=(DICE,))}
    assert list(tables) == ["m", MEAN_MASK]
    assert rows[MEAN_MASK, "private", ("a",)] < rows["m", "private", ("a",)]
    assert (MEAN_MASK, "public", ("a", "b")) not in rows


def test_measures_of_labels_are_as_they_were():
    counts = count_scores([0, 1] * 30, np.tile([0.4, 0.6], (60, 1)), np.arange(60), copies=2, seed=0)
    score = protocols.score_evidence(counts, AUC, sites=("a",))
    assert score.support.defined is None and score.assessable


def test_a_known_seed_gives_back_every_patient():
    """Why the seed of the bootstrap is a hospital's secret here too."""
    rng = np.random.default_rng(0)
    truth, found = rng.integers(0, 2, (2, 10, 5, 5))
    made = sum_over_patients(
        score_masks(truth, found, np.arange(10), spacing_mm=(1, 1), classes=2), copies=40, seed=7, site="n"
    )
    own = score_masks(truth, found, np.arange(10), spacing_mm=(1, 1), classes=2).scores[:, 0, 0]
    for guess, right in ((7, True), (8, False)):
        weights = np.vstack([np.ones((1, 10)), draw_patient_weights(np.arange(10), 40, guess, "n")])
        solved = np.linalg.lstsq(weights, made.totals[:, 0, 0], rcond=None)[0]
        assert np.allclose(solved, own, atol=1e-6) is right


def test_tensors_are_small():
    assert sum(t.numel() * t.element_size() for t in to_tensors(discs(9, 1)).values()) < 21 * 2 * 12 + 100
    assert {t.dtype for n, t in to_tensors(discs(9, 1)).items() if n != "totals"} == {torch.int32}
