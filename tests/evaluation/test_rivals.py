"""Whether test patients speak against the model that a hospital should use: rarely by luck, and in words if they do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from evaluation.choice import describe_decisions, make_decisions
from evaluation.decision import Decision
from evaluation.histograms import count_scores
from evaluation.metrics import AUC
from evaluation.protocols import Table
from evaluation.records import Model
from evaluation.rivals import find_rivals
from evaluation.scoring import pair_rows, score_rows
from evaluation.wording import Words

HERE = ("a", "a")
EQUAL = tuple("abcdefgh")


def draw_tables(strengths: dict[str, float], *, patients: int, seed: int, copies: int = 100) -> dict[str, Table]:
    """Models of one hospital that see the same things in patients, and each something of its own."""
    rng, tables = np.random.default_rng(seed), {}
    y = (np.arange(patients) % 5 < 2).astype(int)
    common = 0.7 * rng.normal(size=patients)
    for method, strength in strengths.items():
        p = 1 / (1 + np.exp(-(strength * y + common + 0.8 * rng.normal(size=patients))))
        counts = count_scores(y, np.c_[1 - p, p], np.arange(patients), copies=copies, seed=seed, site="a")
        tables[method] = {HERE: counts}
    return tables


def list_models(methods) -> list[Model]:
    return [Model("a", method, float(place), "f") for place, method in enumerate(methods)]


@pytest.mark.parametrize("patients", [15, 60])
def test_of_equal_models_one_is_rarely_said_to_be_better_where_each_pair_alone_would_say_it_often(patients):
    decision, models, samples = [Decision("a", EQUAL[0], "recommended")], list_models(EQUAL), 60
    said = in_pairs = 0
    for seed in range(samples):
        tables = draw_tables(dict.fromkeys(EQUAL, 1.0), patients=patients, seed=seed)
        said += bool(find_rivals(tables, decision, models, AUC))
        in_pairs += any(pair.high < 0 for pair in pair_rows(tables, AUC) if pair.method == EQUAL[0])
    assert said <= 0.06 * samples < in_pairs, (said, in_pairs)


def test_a_better_model_is_told_beside_the_one_to_use_with_its_gain_and_the_decision_stands():
    tables = draw_tables({"weak": 1.2, "strong": 4.0, "alike": 1.2}, patients=80, seed=1)
    models, rows = list_models(tables), score_rows(tables)
    decisions = make_decisions(models, rows)
    rival = find_rivals(tables, decisions, models, AUC)["a"]
    gain = AUC.of(tables["strong"][HERE])[0] - AUC.of(tables["weak"][HERE])[0]
    assert rival.method == "strong" and rival.gain == pytest.approx(gain) and rival.of == 2
    assert 0 < rival.low < rival.gain < rival.high
    (choice,) = describe_decisions(decisions, models, rows, "", Words(), {"a": rival})
    (silent,) = describe_decisions(decisions, models, rows, "", Words())
    assert choice.method == silent.method == "weak"
    (told,) = set(choice.standing) - set(silent.standing)
    assert told in choice.said and f"strong is better by {rival.gain:.3f} in AUC" in told and "of 2 models" in told


def test_the_interval_of_a_single_rival_is_as_wide_as_the_bootstrap_spread_asks_for():
    tables = draw_tables({"weak": 0.3, "strong": 3.0}, patients=80, seed=2, copies=400)
    rival = find_rivals(tables, [Decision("a", "weak")], list_models(tables), AUC)["a"]
    drawn = AUC.of(tables["strong"][HERE]) - AUC.of(tables["weak"][HERE])
    assert rival.gain - rival.low == pytest.approx(np.quantile(np.abs(drawn[1:] - drawn[0]), 0.95))
    assert rival.high - rival.gain == pytest.approx(rival.gain - rival.low)


def test_only_models_that_the_hospital_can_use_are_rivals_and_lower_is_better_where_a_measure_says_so():
    tables = draw_tables({"weak": 0.3, "strong": 3.0}, patients=80, seed=1)
    models, decisions = list_models(tables), [Decision("a", "weak")]
    turned = replace(AUC, of=lambda counts: 1 - AUC.of(counts), higher_is_better=False)
    found = find_rivals(tables, decisions, models, AUC)["a"]
    assert found.low == pytest.approx(find_rivals(tables, decisions, models, turned)["a"].low)
    for change in ({"file": ""}, {"ended": "diverged after 2"}):
        assert not find_rivals(tables, decisions, [models[0], replace(models[1], **change)], AUC)
    assert not find_rivals(tables, [Decision("a", "strong")], models, AUC), "the best has none"
    assert not find_rivals(tables, [Decision("a"), Decision("b", "weak")], models, AUC)


def test_equal_answers_and_undefined_scores_are_no_rivals():
    tables = draw_tables({"weak": 0.3}, patients=80, seed=1)
    same = {**tables, "same": tables["weak"]}
    assert not find_rivals(same, [Decision("a", "weak")], list_models(same), AUC)
    undefined = replace(AUC, of=lambda counts: np.full(5, math.nan))
    assert not find_rivals(draw_tables({"weak": 0.3, "strong": 3.0}, patients=80, seed=1), [Decision("a", "weak")],
                           list_models(["weak", "strong"]), undefined)  # fmt: skip
