"""Who stands where on the page of a benchmark, whatever hospitals there are."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from evaluation.benchmark import BenchmarkPage, Reason, Visited, as_facts, list_findings, rank_standings
from evaluation.rows import PRIVATE, ScoreRow
from evaluation.wording import Words

SHARE = st.floats(0, 1)


def row(site: str, value: float, low: float, high: float) -> ScoreRow:
    return ScoreRow("ours", PRIVATE, (site,), "AUC", value, low, high, 100, 0, 30, 30, 15, 15, 15, True, False)


def page(rows: list[ScoreRow], silent: tuple[str, ...] = (), least: float | None = None) -> BenchmarkPage:
    names = [*(one.sites[0] for one in rows), *silent]
    why = {"ours": Reason("benchmark", "policy_model", "it trusts no key")}
    sites = tuple(Visited(name, reasons=why if name in silent else {}) for name in names)
    return BenchmarkPage("t", "r", "d", True, "ours", least, (), sites, tuple(rows), Words(), "{}")


@given(st.lists(st.tuples(SHARE, SHARE, SHARE), min_size=1, max_size=8), st.integers(0, 3), st.randoms())
def test_nobody_is_left_out_and_the_lowest_lower_end_comes_first_whatever_the_order(values, silent, chance) -> None:
    rows = [row(f"h{n}", *(sorted(three)[k] for k in (1, 0, 2))) for n, three in enumerate(values)]
    names = tuple(f"s{n}" for n in range(silent))
    found = [one.site for one in rank_standings(page(rows, names))]
    assert sorted(found) == sorted([*names, *(r.sites[0] for r in rows)])
    assert found[:silent] == sorted(names)
    lows = [one.row.low for one in rank_standings(page(rows, names))[silent:] if one.row]
    assert lows == sorted(lows)
    chance.shuffle(rows)
    assert [one.site for one in rank_standings(page(rows, names))] == found


def test_a_hospital_of_which_little_is_known_stands_before_one_that_is_known_to_be_fair() -> None:
    found = rank_standings(
        page([row("fair", 0.7, 0.65, 0.75), row("small", 0.8, 0.3, 1.0), row("odd", 0.9, math.nan, 0.9)])
    )
    assert [one.site for one in found] == ["odd", "small", "fair"] and found[0].verdict == "unknown"


def test_a_score_is_reached_by_a_whole_interval_and_missed_by_a_whole_interval() -> None:
    rows = [row("low", 0.5, 0.4, 0.6), row("unsure", 0.8, 0.6, 0.9), row("high", 0.9, 0.7, 1.0)]
    said = page(rows, ("mute",), least=0.7)
    assert [one.verdict for one in rank_standings(said)] == ["no score", "below", "not shown", "reached"]
    assert "At mute, low, unsure AUC 0.7 is not shown to be reached." in list_findings(said)
    assert [one["verdict"] for one in as_facts(said)["hospitals"]] == ["no score", "below", "not shown", "reached"]
