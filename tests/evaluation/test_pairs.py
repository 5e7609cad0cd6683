"""Any two methods compared: each as if the other were the reference, and what a reader sees of it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from evaluation import records, report
from evaluation.grid import pairs_by_column
from evaluation.histograms import count_scores
from evaluation.metrics import AUC, BRIER
from evaluation.protocols import score_private
from evaluation.rows import PRIVATE, PRIVATE_MEAN
from evaluation.scoring import gain_rows, pair_rows, score_rows

SITES = ("a", "b")
IMAGES = 60


def trainings(number: int, first: int = 0):
    """Tables of a method's trainings: other scores of the same patients and labels."""
    labels = {site: np.random.default_rng(place).integers(0, 2, IMAGES) for place, site in enumerate(SITES)}
    tables = []
    for seed in range(first, first + number):
        rng, table = np.random.default_rng(100 + seed), {}
        for site, y in labels.items():
            p = 1 / (1 + np.exp(-2 * (y - 0.5) + rng.normal(0, 1, IMAGES)))
            table[site, site] = count_scores(y, np.c_[1 - p, p], np.arange(IMAGES) // 3, copies=40, seed=3, site=site)
        tables.append(table)
    return tables


def render(tables):
    counts = tuple(records.SiteCounts(site, (records.SplitCount("test", 20, IMAGES, 30),), {}) for site in SITES)
    page = records.RunPage(
        title="A run",
        run="demo",
        date="2026-11-29",
        what="methods",
        simulation=True,
        reference="local",
        sites=counts,
        scores=score_rows(tables, reference="local"),
        gains=gain_rows(tables, reference="local"),
        methods=(),
        left=(),
        missing=(),
        stages=(),
        settings="{}",
        commands=(),
        pairs=pair_rows(tables, AUC),
    )
    return report.render_coordinator_page(page)


def compared(number: int):
    """Three methods, each trained `number` times: first tables, and further ones."""
    each = {name: trainings(number, 10 * place) for place, name in enumerate(("fenda", "local", "fedavg"))}
    return {name: tables[0] for name, tables in each.items()}, {name: tables[1:] for name, tables in each.items()}


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("measure", [AUC, BRIER], ids=lambda measure: measure.name)
def test_a_pair_is_the_gain_with_the_other_as_reference(number, measure):
    tables, repeats = compared(number)
    pairs = pair_rows(tables, measure, repeats=repeats)
    assert len(pairs) == 3 * (1 + len(SITES)) and len({(p.method, p.other, p.protocol, p.sites) for p in pairs}) == 9
    for pair in pairs:
        rows = score_rows(tables, reference=pair.other, measures=(measure,), repeats=repeats)
        (row,) = (r for r in rows if (r.method, r.protocol, r.sites) == (pair.method, pair.protocol, pair.sites))
        assert pair.gain == row.gain and (pair.low, pair.high) == row.widest_gain
        assert pair.low < pair.gain < pair.high


def test_both_ways_round_are_each_others_opposite_and_ways_add_up():
    tables, _ = compared(1)
    columns = pairs_by_column(pair_rows(tables, AUC))
    assert list(columns) == ["/private mean", *SITES]
    turned = pairs_by_column(pair_rows(dict(reversed(tables.items())), AUC))
    for column, gains in columns.items():
        assert len(gains) == 6
        for (method, other), row in gains.items():
            back, slow = gains[other, method], turned[column][method, other]
            assert (row.method, row.other) == (method, other)
            assert (back.gain, back.low, back.high) == (-row.gain, -row.high, -row.low)
            assert (slow.gain, slow.low, slow.high) == pytest.approx((row.gain, row.low, row.high))
        first, second = gains["fenda", "local"], gains["local", "fedavg"]
        assert gains["fenda", "fedavg"].gain == pytest.approx(first.gain + second.gain)


def test_a_hospital_that_refused_a_method_is_left_out_of_its_pairs():
    tables, _ = compared(1)
    refused = {**tables, "fedavg": {pair: evidence for pair, evidence in tables["fedavg"].items() if "b" not in pair}}
    places = {(p.method, p.other): [] for p in pair_rows(refused, AUC)}
    for pair in pair_rows(refused, AUC):
        places[pair.method, pair.other].append((pair.protocol, pair.sites))
    assert sorted(places["fenda", "local"]) == [(PRIVATE, ("a",)), (PRIVATE, ("b",)), (PRIVATE_MEAN, ("a", "b"))]
    assert places["fenda", "fedavg"] == places["local", "fedavg"] == [(PRIVATE, ("a",))]


def test_of_many_hospitals_the_mean_alone_is_compared():
    assert {pair.protocol for pair in pair_rows(compared(1)[0], AUC, by_site=False)} == {PRIVATE_MEAN}
    alone = {name: {("a", "a"): table["a", "a"]} for name, table in compared(1)[0].items()}
    assert {pair.protocol for pair in pair_rows(alone, AUC, by_site=False)} == {PRIVATE}


def test_the_page_shows_both_ways_round_and_the_scores_difference():
    tables, _ = compared(1)
    text = render(tables)
    section = text[text.index('<h2 id="two">Any two methods</h2>') :].partition("</section>")[0]
    cells = dict(re.findall(r'<td class="num[^"]*" data-method="(\w+)"><span class="\w+">([^<]+)</span>', section))
    difference = sum(
        score_private(tables["fedavg"], AUC)[site].estimate.value
        - score_private(tables["local"], AUC)[site].estimate.value
        for site in SITES
    ) / len(SITES)
    assert math.isfinite(difference) and set(cells) == set(tables)
    row = section[section.index('<tr data-method="fedavg">') :].partition("</tr>")[0]
    shown = dict(re.findall(r'data-method="(\w+)"><span class="\w+">([^<]+)</span>', row))
    assert float(shown["local"].replace("\u2212", "-")) == pytest.approx(difference, abs=6e-4)
    assert "fedavg" not in shown
    two = {name: tables[name] for name in ("local", "fedavg")}
    assert "Any two methods" not in render(two), "the gain over the reference says it already"
