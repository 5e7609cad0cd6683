"""Counts: against a slow count by hand, paired copies, pooling, and what may come over a wall."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from evaluation.histograms import count_scores, from_tensors, pack_scores, pool_counts, to_tensors
from evaluation.metrics import compute_support


@st.composite
def samples(draw, classes=(2, 3, 4)):
    n, c = draw(st.integers(1, 30)), draw(st.sampled_from(classes))
    raw = draw(hnp.arrays(np.float64, (n, c), elements=st.floats(0.001, 1)))
    labels = draw(hnp.arrays(np.int64, n, elements=st.integers(0, c - 1)))
    patients = draw(hnp.arrays(np.int64, n, elements=st.integers(-3, 9)))
    return labels, raw / raw.sum(axis=1, keepdims=True), patients


def same(a, b):
    return (
        np.array_equal(a.scores, b.scores)
        and np.array_equal(a.confusion, b.confusion)
        and (a.patients, a.class_patients) == (b.patients, b.class_patients)
    )


@given(samples())
def test_the_sample_is_what_counting_by_hand_gives(sample):
    labels, p, patients = sample
    counts = count_scores(labels, p, patients, copies=0, seed=0, bins=64)
    classes = p.shape[1]
    shown = [1] if classes == 2 else range(classes)
    scores = np.zeros((len(shown), 2, 64), int)
    confusion = np.zeros((classes, classes), int)
    for y, row in zip(labels, p, strict=True):
        for k, c in enumerate(shown):
            scores[k, int(y == c), min(int(np.floor(row[c] * 64)), 63)] += 1
        confusion[y, int(row[1] >= 0.5) if classes == 2 else int(np.argmax(row))] += 1
    assert np.array_equal(counts.scores[0], scores)
    assert np.array_equal(counts.confusion[0], confusion)
    assert counts.patients == len(set(patients))
    assert counts.class_patients == tuple(len(set(patients[labels == c])) for c in range(classes))


@given(samples(), st.integers(-5, 5))
def test_every_copy_is_a_resample_of_whole_patients(sample, seed):
    """Some non-negative integer weights of patients, P in all, explain scores and confusion of each copy."""
    labels, p, patients = sample
    copies = count_scores(labels, p, patients, copies=4, seed=seed, bins=32)
    names = np.unique(patients)
    weights = count_scores(
        np.zeros(len(names), int), np.tile([0.9, 0.1], (len(names), 1)), names, copies=4, seed=seed
    ).confusion
    assert (weights.sum(axis=(1, 2)) == len(names)).all()
    single = [
        count_scores(labels[patients == n], p[patients == n], patients[patients == n], copies=0, seed=0, bins=32)
        for n in names
    ]
    parts = np.stack([s.scores[0].ravel() for s in single])
    for copy in copies.scores[1:]:
        drawn = _solve(parts, copy.ravel(), len(names))
        assert drawn


def _solve(parts, target, total):
    """Whether target is a sum of `total` rows of parts, with repetition (depth first, few patients)."""
    if total == 0:
        return not target.any()
    if not len(parts):
        return False
    first, rest = parts[0], parts[1:]
    for times in range(total, -1, -1):
        left = target - times * first
        if (left >= 0).all() and (_solve(rest, left, total - times)):
            return True
    return False


def test_copies_of_two_models_draw_the_same_patients():
    rng = np.random.default_rng(0)
    patients = np.repeat(np.arange(12), 3)
    labels = rng.integers(0, 2, 36)
    one, two = (rng.random(36) for _ in range(2))
    a, b = (count_scores(labels, np.c_[1 - q, q], patients, copies=50, seed=7) for q in (one, two))
    assert np.array_equal(a.scores.sum(axis=-1), b.scores.sum(axis=-1))
    assert not np.array_equal(a.scores, b.scores)
    order = rng.permutation(36)
    assert same(a, count_scores(labels[order], np.c_[1 - one, one][order], patients[order], copies=50, seed=7))


def test_another_seed_or_another_hospital_draws_other_patients():
    patients = np.arange(20)
    labels = patients % 2
    p = np.linspace([0.99, 0.01], [0.01, 0.99], 20)
    first, seed, site = (
        count_scores(labels, p, patients, copies=20, seed=s, site=name).scores
        for s, name in ((1, "a"), (2, "a"), (1, "b"))
    )
    assert not np.array_equal(first, seed)
    assert not np.array_equal(first, site)


def test_half_is_an_edge_and_one_is_in_the_last_bin():
    p = np.array([0.0, 0.5 - 2**-20, 0.5, 1.0])
    counts = count_scores([0, 0, 1, 1], np.c_[1 - p, p], [0, 1, 2, 3], copies=0, seed=0)
    assert np.flatnonzero(counts.scores[0, 0, 0]).tolist() == [0, 511]
    assert np.flatnonzero(counts.scores[0, 0, 1]).tolist() == [512, 1023]
    assert counts.confusion[0].tolist() == [[2, 0], [0, 2]]


@given(samples((2,)))
def test_the_confusion_follows_from_the_histogram(sample):
    counts = count_scores(*sample, copies=3, seed=1)
    halves = counts.scores[:, 0].reshape(4, 2, 2, 512).sum(axis=-1)
    assert np.array_equal(counts.confusion, halves)


@given(st.lists(samples((3,)), min_size=1, max_size=4), st.randoms())
def test_pooling_one_is_itself_and_order_does_not_matter(sites, shuffle):
    each = [count_scores(*s, copies=3, seed=i, bins=16) for i, s in enumerate(sites)]
    assert same(pool_counts(each[:1]), each[0])
    pooled = pool_counts(each)
    shuffle.shuffle(each)
    assert same(pooled, pool_counts(each))
    assert pooled.confusion[0].sum() == sum(len(labels) for labels, _, _ in sites)


def test_pooling_what_does_not_fit_is_refused():
    a = count_scores([0, 1], [[0.9, 0.1], [0.2, 0.8]], [0, 1], copies=2, seed=0)
    b = count_scores([0, 1], [[0.9, 0.1], [0.2, 0.8]], [0, 1], copies=3, seed=0)
    with pytest.raises(ValueError, match="agree in copies"):
        pool_counts([a, b])
    with pytest.raises(ValueError, match="none"):
        pool_counts([])


@given(samples())
def test_packed_and_unpacked_is_the_same(sample):
    counts = count_scores(*sample, copies=3, seed=0)
    tensors = to_tensors(counts)
    assert {t.dtype for t in tensors.values()} == {torch.int32}
    assert same(counts, from_tensors(tensors))


def test_only_bins_that_hold_an_image_are_sent():
    p = np.full((50, 1), 0.25)
    counts = count_scores(np.arange(50) % 2, np.c_[1 - p, p], np.arange(50), copies=100, seed=0)
    assert sum(t.numel() * 4 for t in to_tensors(counts).values()) < 3000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("shape"), "needed is"),
        (lambda t: t.update(scores=t["scores"].float()), "int32"),
        (lambda t: t.update(scores=-t["scores"]), "negative"),
        (lambda t: t.update(columns=t["columns"] * 0), "distinct"),
        (lambda t: t.update(columns=t["columns"] + 5000), "below 2048"),
        (lambda t: t.update(confusion=t["confusion"][1:]), "confusion has shape"),
        (lambda t: t.update(confusion=t["confusion"] * 2), "same images"),
        (lambda t: t.update(shape=torch.tensor([3, 1, 2, 2**30], dtype=torch.int32)), "elements"),
        (lambda t: t.update(shape=torch.tensor([3, 2, 2, 1024], dtype=torch.int32)), "shape is"),
    ],
)
def test_what_is_no_counts_is_refused(change, said):
    tensors = to_tensors(count_scores([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [0, 1, 2], copies=2, seed=0))
    change(tensors)
    with pytest.raises(ValueError, match=said):
        from_tensors(tensors)


def test_all_faults_are_named_at_once():
    with pytest.raises(ValueError, match=r"copies is -1.*patients have shape.*labels|labels.*patients") as caught:
        count_scores([0, 5], [[3.0, -2.0], [0.5, 0.5]], [0.5, 1.0], copies=-1, seed=0)
    assert "labels hold [5]" in str(caught.value)
    assert "1 of 2 rows" in str(caught.value)
    with pytest.raises(ValueError, match="n >= 1"):
        count_scores([], np.zeros((0, 2)), [], copies=1, seed=0)


def test_support_counts_images_and_patients():
    p = np.tile([0.4, 0.6], (6, 1))
    held = compute_support(count_scores([0, 0, 0, 0, 1, 1], p, [0, 0, 1, 2, 2, 3], copies=0, seed=0))
    assert (held.patients, held.images, held.positives, held.negatives, held.positive_patients) == (4, 6, 2, 4, 2)
    assert held.assessable(images=2, patients=2)
    assert not held.assessable(images=3, patients=2)
    assert not held.assessable(images=2, patients=3)


@given(hnp.arrays(np.int64, st.tuples(*[st.integers(1, 4)] * 4), elements=st.sampled_from((0, 0, 0, 1, 7, 2**40))))
def test_packed_scores_are_the_scores(scores):
    packed = pack_scores(scores)
    assert np.array_equal(packed.unpack(), scores) and packed.unpack().dtype == np.int64
    assert np.array_equal(packed.unpack(slice(1)), scores[:1])
    assert packed.values.shape[1] == sum(scores[:, i, j, k].any() for i, j, k in np.ndindex(*scores.shape[1:]))


@given(hnp.arrays(np.int64, st.tuples(*[st.integers(1, 4)] * 4), elements=st.sampled_from((0, 0, 0, 1, 7, 2**40))))
def test_scores_in_bins_in_use_are_the_scores_there_and_there_are_none_elsewhere(scores):
    used, bins = pack_scores(scores).unpack_used()
    assert np.array_equal(used, scores[..., bins]) and used.any(axis=(0, 1, 2)).all()
    assert not np.delete(scores, bins, axis=-1).any() and (np.diff(bins) > 0).all()


def test_counts_of_a_thousand_copies_take_a_hundredth_of_their_scores():
    rng = np.random.default_rng(0)
    p = rng.random(40)
    counts = count_scores(rng.integers(0, 2, 40), np.c_[1 - p, p], np.arange(40) // 2, copies=1000, seed=0)
    for each in (counts, from_tensors(to_tensors(counts))):
        assert each.packed.values.nbytes + each.packed.columns.nbytes < each.scores.nbytes / 90
    assert counts.sample.tolist() == counts.scores[0].tolist() and counts.shape == counts.scores.shape
