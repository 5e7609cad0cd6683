"""A sweep is one run: its lines are those of runs alone, its ledger holds all of them, and no test patient chooses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consilium import ConfigError, Examples, PatientLevel, Policy, Results, RunFailed, sweep, train
from consilium.sweeping import LONGEST_LABEL, name_lines
from pipelines.loader.names import is_name
from privacy.release.policy import Budget

QUIET: dict[str, Any] = {
    "model": "mlp",
    "rounds": 2,
    "quiet": True,
    "work": {"batch": 4},
    "settings": {"audit": {"membership": False}},
}


def hospital(seed: int, count: int = 48) -> Examples:
    chance = np.random.default_rng(seed)
    y = np.arange(count) // 2 % 2
    return Examples(chance.normal(size=(count, 4)) + y[:, None], y, [f"{seed}-{row // 2}" for row in range(count)])


def two() -> dict[str, Examples]:
    return {"a": hospital(1), "b": hospital(2)}


def scores_of(results: Results, label: str) -> list[tuple[str, str, float]]:
    return [(row.hospital, row.measure, row.value) for row in results.rows if row.method == label]


@pytest.mark.parametrize(
    ("over", "alone"),
    [
        ({"work.lr": [0.01, 0.1]}, {"method": "fedprox", "work": {"lr": 0.1, "batch": 4}}),
        ({"method.mu": [0.01, 1.0]}, {"method": {"name": "fedprox", "mu": 1.0}}),
        ({"model.hidden": [[4], [8]]}, {"method": "fedprox", "model": {"name": "mlp", "hidden": [8]}}),
        ({"method": ["fedprox", "fedavg"]}, {"method": "fedavg"}),
    ],
)
def test_a_line_is_what_a_run_alone_gives(over, alone, tmp_path):
    swept = sweep(two(), over=over, method="fedprox", folder=tmp_path / "sweep", **QUIET)
    last = list(swept.lines)[-1]
    label = alone["method"] if isinstance(alone["method"], str) else alone["method"]["name"]
    single = train(two(), folder=tmp_path / "alone", **{**QUIET, **alone})
    of_sweep = [value for *_, value in scores_of(swept.results, last)]
    np.testing.assert_array_equal(of_sweep, [value for *_, value in scores_of(single, label)])
    losses = [swept.results.losses[line] for line in swept.lines]
    assert losses[1] == single.losses[label] and losses[0] != losses[1]


def test_the_line_with_the_lowest_validation_loss_is_chosen(tmp_path):
    swept = sweep(two(), over={"work.lr": [1e-5, 0.05], "method.mu": [0.0, 0.1]}, method="fedprox",
                  folder=tmp_path, **QUIET)  # fmt: skip
    slow = {}
    for label in swept.lines:
        by_round = {}
        for losses in swept.results.losses[label].values():
            for number, loss in losses.items():
                by_round.setdefault(number, []).append(loss)
        slow[label] = min(math.fsum(losses) / 2 for losses in by_round.values() if len(losses) == 2)
    assert swept.losses == pytest.approx(slow, abs=1e-12)
    assert swept.chosen == min(slow, key=lambda label: slow[label])
    assert swept.lines[swept.chosen]["work.lr"] == 0.05, "a rate of 1e-5 learns nothing in two rounds"
    shown = str(swept)
    assert shown.count("chosen") == 1 and "work.lr" in shown and "ε of all 4 lines together" in shown


def test_a_private_sweep_spends_all_its_lines_in_one_ledger(tmp_path):
    private = {**QUIET, "privacy": PatientLevel(epsilon=3.0)}
    one = train(two(), method="fedavg", folder=tmp_path / "one", **private)
    both = sweep(two(), over={"work.lr": [0.01, 0.1]}, method="fedavg", folder=tmp_path / "two", **private)
    for site in ("a", "b"):
        single, total = one.statements[site].epsilon, both.results.statements[site].epsilon
        assert single < total < math.inf, "two trainings on the same patients cost more than one"
    bounded = {**private, "policy": Policy(budget=Budget(epsilon=one.statements["a"].epsilon * 1.01))}
    with pytest.raises((ConfigError, RunFailed), match=r"budget|afford"):
        sweep(two(), over={"work.lr": [0.01, 0.1]}, method="fedavg", folder=tmp_path / "three", **bounded)


def test_what_is_wrong_with_a_sweep_is_said_at_once():
    over = {"lr": [0.1], "work": [{}], "start.file": ["x"], "method.mu": 0.1, "work.batch": [8, 8], "model.hidden": []}
    with pytest.raises(ConfigError) as error:
        sweep(two(), over=over, method="fedprox", folder="nowhere", **QUIET)
    assert {problem.where[-1] for problem in error.value.problems} == set(over)
    with pytest.raises(ConfigError, match="is empty"):
        sweep(two(), over={}, method="fedprox", folder="nowhere", **QUIET)
    with pytest.raises(ConfigError, match="at most 200"):
        sweep(two(), over={"work.lr": [*range(15)], "work.batch": [*range(15)]}, method="fedprox", folder="n", **QUIET)


VALUES = st.lists(st.one_of(st.floats(), st.integers(), st.text(max_size=80), st.booleans()), min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from(["work.lr", "method.mu", "model.hidden"]), VALUES, min_size=1))
def test_every_combination_has_a_label_of_its_own(over):
    lines = name_lines(over, "fedprox")
    assert len(lines) == math.prod(map(len, over.values()))
    assert all(is_name(label) and len(label) <= LONGEST_LABEL for label in lines)
