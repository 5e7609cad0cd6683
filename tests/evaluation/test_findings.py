"""Scores of several findings: each as two classes on the rows where it is known, patients drawn once for all, and what
leaves under noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from evaluation import protocols
from evaluation.findings import (
    MEAN_AUC,
    UNKNOWN,
    Findings,
    count_finding_numbers,
    count_findings,
    find_mean_findings,
    from_tensors,
    list_finding_measures,
    pool_findings,
    release_findings,
    share_noise,
    to_tensors,
)
from evaluation.floors import add_floor
from evaluation.histograms import count_scores
from evaluation.metrics import AUC, CALIBRATION, SENSITIVITY, compute_support
from evaluation.protocols import parse_evidence, pool_evidence, score_evidence
from evaluation.recommendation import Validated, score_models
from evaluation.rows import MAJORITY
from evaluation.scoring import score_rows
from privacy.dp.mechanisms import vote_histogram

K = 3
seeds = st.integers(0, 10**6)


def sample(seed: int, n: int = 120, patients: int = 30, unknown: float = 0.2, shift: float = 1.0):
    """States (n, K), probabilities that know something of them, and patients."""
    rng = np.random.default_rng(seed)
    states = rng.integers(0, 2, (n, K))
    p = 1 / (1 + np.exp(-(rng.normal(size=(n, K)) + shift * (2 * states - 1))))
    states[rng.random((n, K)) < unknown] = UNKNOWN
    return states, p, np.sort(rng.integers(0, patients, n))


def counted(seed: int, copies: int = 8, site: str = "", **how) -> Findings:
    return count_findings(*sample(seed, **how), copies=copies, seed=5, site=site)


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_where_all_is_known_a_finding_is_scored_as_two_classes_are_copies_and_all(seed):
    states, p, who = sample(seed, unknown=0.0)
    findings = count_findings(states, p, who, copies=6, seed=3, site="a")
    for k, counts in enumerate(findings.each):
        both = np.stack([1 - p[:, k], p[:, k]], axis=1)
        alone = count_scores(states[:, k], both, who, copies=6, seed=3, site="a")
        assert (counts.scores == alone.scores).all() and (counts.confusion == alone.confusion).all()
        assert (counts.patients, counts.class_patients) == (alone.patients, alone.class_patients)


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_rows_where_a_finding_is_unknown_change_nothing_of_it(seed):
    states, p, who = sample(seed)
    other = np.where(states == UNKNOWN, np.random.default_rng(seed).random(p.shape), p)
    first, second = (count_findings(states, each, who, copies=4, seed=1) for each in (p, other))
    for a, b in zip(first.each, second.each, strict=True):
        assert (a.scores == b.scores).all() and a.scores[0].sum() == a.confusion[0].sum()
    known = [int((states[:, k] != UNKNOWN).sum()) for k in range(K)]
    assert [int(counts.scores[0].sum()) for counts in first.each] == known


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_one_copy_draws_the_same_patients_for_every_finding(seed):
    """Of two findings with the same states and scores the copies are the same."""
    states, p, who = sample(seed)
    states[:, 1], p[:, 1] = states[:, 0], p[:, 0]
    first, second, _ = count_findings(states, p, who, copies=6, seed=2).each
    assert (first.scores == second.scores).all()
    assert not (first.scores[1] == first.scores[0]).all()


def test_the_headline_is_the_mean_of_each_findings_auc_by_another_implementation():
    states, p, who = sample(1, n=400)
    findings = count_findings(states, p, who, copies=0, seed=0)
    known = [states[:, k] != UNKNOWN for k in range(K)]
    expected = [roc_auc_score(states[rows, k], p[rows, k]) for k, rows in enumerate(known)]
    assert float(MEAN_AUC.of(findings)[0]) == pytest.approx(np.mean(expected), abs=2e-3)
    measures = {measure.name: measure for measure in list_finding_measures(("x", "y", "z"), exact=True)}
    assert measures[AUC.name].of(findings) == pytest.approx(MEAN_AUC.of(findings))
    for name, auc, k in zip(("x", "y", "z"), expected, range(K), strict=True):
        assert float(measures[f"AUC {name}"].of(findings)[0]) == pytest.approx(auc, abs=2e-3)
        rows = known[k] & (states[:, k] == 1)
        recall = float((p[rows, k] >= 0.5).mean())
        assert float(measures[f"sensitivity {name}"].of(findings)[0]) == pytest.approx(recall)
    told = score_models(Validated(states, who, {"m": p}))
    assert told["m"] == pytest.approx(np.mean(expected), abs=1e-9)


def test_a_finding_that_nobody_can_judge_is_left_out_of_the_mean_until_none_can_be():
    states, p, who = sample(2, n=400)
    states[:, 2] = np.where(np.arange(400) < 3, 1, 0)
    findings = count_findings(states, p, who, copies=0, seed=0)
    assert find_mean_findings(findings).tolist() == [True, True, False]
    assert float(MEAN_AUC.of(findings)[0]) == pytest.approx(
        np.mean([AUC.of(counts)[0] for counts in findings.each[:2]])
    )
    few = count_findings(states[:12], p[:12], who[:12], copies=0, seed=0)
    assert find_mean_findings(few).tolist() == [min((states[:12, k] == s).sum() for s in (0, 1)) > 0 for k in range(K)]
    assert not score_evidence(few, MEAN_AUC, sites=("a",)).assessable


@settings(deadline=None, max_examples=20)
@given(st.lists(seeds, min_size=1, max_size=3, unique=True))
def test_pooling_sums_sites_finding_by_finding_and_copy_by_copy(found):
    sites = [counted(seed, site=str(seed)) for seed in found]
    pooled = pool_findings(sites)
    assert pooled.patients == sum(site.patients for site in sites)
    for k, counts in enumerate(pooled.each):
        assert (counts.scores == sum(site.each[k].scores for site in sites)).all()
    both = pool_evidence(sites)
    assert isinstance(both, Findings) and both.images == pooled.images


@settings(deadline=None, max_examples=20)
@given(seeds)
def test_what_is_sent_is_what_is_received_and_damage_is_refused(seed):
    findings = counted(seed)
    tensors = to_tensors(findings)
    again = parse_evidence(tensors, {}, copies=99, seed=0)
    assert isinstance(again, Findings)
    assert (again.patients, again.images) == (findings.patients, findings.images)
    for a, b in zip(findings.each, again.each, strict=True):
        assert (a.scores == b.scores).all() and (a.confusion == b.confusion).all()
        assert (a.patients, a.class_patients) == (b.patients, b.class_patients)
    damage = (
        {"finding_scores": tensors["finding_scores"][:, :-1]},
        {"finding_scores": tensors["finding_scores"] * -1},
        {"finding_numbers": tensors["finding_numbers"] + 1},
        {"finding_columns": tensors["finding_columns"] + 10**7},
        {"finding_shape": tensors["finding_shape"][:4]},
        {"finding_shape": tensors["finding_shape"].double()},
    )
    for wrong in damage:
        with pytest.raises(ValueError, match="no counts of findings"):
            from_tensors({**tensors, **wrong})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"states": np.full((4, 2), 3)}, "other numbers"),
        ({"probabilities": np.full((4, 2), 1.5)}, "not in"),
        ({"patients": np.zeros(3, int)}, "patients are"),
        ({"states": np.zeros((4, 3), int)}, "states and probabilities"),
        ({"copies": -1}, "copies is -1"),
    ],
)
def test_wrong_arguments_are_named(change, said):
    args = {
        "states": np.zeros((4, 2), int),
        "probabilities": np.full((4, 2), 0.5),
        "patients": np.arange(4),
        "copies": 0,
        "seed": 0,
    }
    with pytest.raises(ValueError, match=said):
        count_findings(**(args | change))


def test_guessing_the_shares_knows_nothing_of_a_patient():
    tables = {"m": {("a", "a"): counted(4)}}
    floor = add_floor(tables)[MAJORITY]["a", "a"]
    assert isinstance(floor, Findings)
    assert MEAN_AUC.of(floor) == pytest.approx(0.5)
    assert [counts.scores.sum() for counts in floor.each] == [c.scores.sum() for c in tables["m"]["a", "a"].each]


def test_a_gain_pairs_the_copies_of_two_models_on_the_same_patients():
    states, p, who = sample(3, n=300)
    better = np.clip(p + 0.2 * (states == 1), 0, 1)
    tables = {
        name: {("a", "a"): count_findings(states, each, who, copies=200, seed=1, site="a")}
        for name, each in (("plain", p), ("better", better))
    }
    measures = list_finding_measures(("x", "y", "z"), exact=True)
    rows = score_rows(tables, reference="plain", measures=measures)
    gains = {row.measure: row for row in rows if row.method == "better" and row.protocol == "private"}
    assert gains[AUC.name].gain_low > 0 and gains[AUC.name].assessable
    assert gains[f"{SENSITIVITY.name} x"].gain > 0
    assert {row.measure for row in rows} >= {"AUC x", "specificity z", CALIBRATION.name}


def released(seed: int, noise: float, copies: int = 20, **how):
    """What a hospital lets leave with this noise, and what a coordinator reads; and the noise that was added."""
    states, p, who = sample(seed, **how)
    rng, added, votes = np.random.default_rng(seed), [], []

    def add_noise(each, deviation):
        added.append(deviation)
        votes.append(vote_histogram(torch.from_numpy(each), noise_multiplier=0.0).value.numpy())
        return votes[-1] + deviation * rng.standard_normal(each.shape[1])

    numbers = count_finding_numbers(states, who)
    tensors = release_findings(states, p, who, noise=noise, numbers=numbers, add_noise=add_noise)
    facts = {"noise": noise, "patients": len(np.unique(who)), "images": len(states), "finding_patients": numbers}
    return parse_evidence(tensors, facts, copies=copies, seed=0), tensors, facts, added, votes


@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_all_findings_together_cost_what_one_histogram_with_the_noise_costs(noise):
    """Gaussian releases of sensitivity 1 compose by the sum of their inverse variances."""
    *_, added, _ = released(1, noise)
    assert sum(deviation**-2 for deviation in added) == pytest.approx(noise**-2)


def test_a_patient_adds_at_most_one_to_each_histogram_and_nothing_where_nothing_is_known():
    states, p, who = sample(6)
    sums = []
    for chosen in (np.ones(len(who), bool), who != who[0]):
        votes = []

        def add_noise(each, deviation, votes=votes):
            votes.append(vote_histogram(torch.from_numpy(each), noise_multiplier=0.0).value.numpy())
            return votes[-1]

        numbers = count_finding_numbers(states, who)  # released once, whoever is there today
        release_findings(states[chosen], p[chosen], who[chosen], noise=1.0, numbers=numbers, add_noise=add_noise)
        sums.append([each.sum() for each in votes])
    lost = np.array(sums[0]) - np.array(sums[1])
    assert (lost < 1 + 1e-9).all() and (lost > -1e-9).all()
    states[who == who[0], 1] = UNKNOWN
    assert count_finding_numbers(states, who)[4] == len(np.unique(who[states[:, 1] != UNKNOWN]))


def test_without_noise_a_released_auc_is_near_the_counted_one_where_each_patient_has_one_image():
    far = []
    for seed in range(6):
        noised = released(seed, 0.0, n=400, patients=10**6)[0]
        exact = counted(seed, copies=0, n=400, patients=10**6)
        assert noised.copies == 20
        far.append(float(MEAN_AUC.of(noised)[0] - MEAN_AUC.of(exact)[0]))
    assert max(map(abs, far)) < 0.02, far


def test_declared_numbers_alone_decide_what_is_assessable_so_that_gains_are_on_the_same_findings():
    first, second = (released(seed, 1.0, n=400, patients=300)[0] for seed in (1, 1))
    moved = released(1, 1.0, n=400, patients=300, shift=0.2)[0]
    supports = [[compute_support(counts) for counts in each.each] for each in (first, second, moved)]
    assert supports[0] == supports[1] == supports[2]
    assert protocols.compute_gain(
        score_evidence(first, MEAN_AUC, sites=("a",)), score_evidence(moved, MEAN_AUC, sites=("a",)), MEAN_AUC
    )


def test_noised_findings_say_their_noise_and_a_finding_that_nobody_knows_is_empty():
    states, p, who = sample(8)
    states[:, 1] = UNKNOWN
    numbers = count_finding_numbers(states, who)
    tensors = release_findings(states, p, who, noise=0.3, numbers=numbers, add_noise=lambda each, _: sum(each) + 0.0)
    assert numbers[4:8] == [0, 0, 0, 0]
    facts = {"noise": 0.3, "patients": 30, "images": 120, "finding_patients": numbers}
    findings = parse_evidence(tensors, facts, copies=5, seed=0)
    assert findings.noise == pytest.approx(share_noise(0.3, K) / np.sqrt(0.9))
    assert not findings.each[1].scores.any() and find_mean_findings(findings)[1] == np.False_


@pytest.mark.parametrize(
    "wrong",
    [
        {"finding_patients": [1, 2, 3]},
        {"finding_patients": []},
        {"finding_patients": [1.5] * 12},
        {"noise": -1.0},
        {"noise": float("inf")},
        {"patients": -3},
        {"finding_patients": [5, 5, 9, 9] * 3},
    ],
)
def test_facts_that_fit_no_patients_are_refused(wrong):
    _, tensors, facts, _, _ = released(1, 0.5)
    with pytest.raises(ValueError, match="these are no noised"):
        parse_evidence(tensors, facts | wrong, copies=5, seed=0)
