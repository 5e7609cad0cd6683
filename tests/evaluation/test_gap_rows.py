"""The share of the oracle gap over patients, against a slow second implementation, and what pages say of it."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from evaluation import records, report
from evaluation.harmony import (
    REMEDY,
    Harmony,
    SpaceRow,
    describe_harmonization,
    find_unadapted_lines,
    format_share,
    select_overall_rows,
)
from evaluation.histograms import count_scores, draw_patient_weights
from evaluation.metrics import AUC
from evaluation.oracle_gap import NONE, OPEN, UNSURE, Compared, gap_rows, share_in_copies
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN
from evaluation.run_spaces import draw_gap_shares
from evaluation.scoring import gain_rows, outside_rows, score_rows

COPIES, SEED, BINS = 60, 7, 1024
STRENGTH = {"raw": 0.5, "half": 1.4, "oracle": 3.0, "worse": 0.1}
LINES = (Compared("raw", "oracle", ("half", "worse", "unknown")),)


def patients(site: str, n: int = 40):
    """Labels, patients of three images each, and by line their scores on the middle of a bin."""
    rng = np.random.default_rng(len(site) + n)
    y, who = np.tile([0, 0, 1, 0, 1, 1], n // 2), np.repeat(np.arange(n), 3)
    noise = rng.normal(size=len(y))
    scores = {name: 1 / (1 + np.exp(-s * (y - 0.5) - noise)) for name, s in STRENGTH.items()}
    return y, who, {name: (np.floor(p * BINS) + 0.5) / BINS for name, p in scores.items()}


def tables(sites=("a", "bb"), copies=COPIES):
    found = {name: {} for name in STRENGTH}
    for site in sites:
        y, who, scores = patients(site)
        for name, p in scores.items():
            found[name][site, site] = count_scores(y, np.c_[1 - p, p], who, copies=copies, seed=SEED, site=site)
    return found


def slow(line: str, sites: list[str], pool: bool) -> tuple[float, list[float]]:
    """The share in the sample and in every copy: patient by patient, scikit-learn's AUC."""

    def auc(name: str, copy: int | None) -> float:
        each = []
        for site in sites:
            y, who, scores = patients(site)
            times = np.ones(who.max() + 1, int)
            if copy is not None:
                times = draw_patient_weights(np.arange(who.max() + 1), COPIES, SEED, site)[copy]
            rows = [row for row in range(len(y)) for _ in range(times[who[row]])]
            each.append((y[rows], scores[name][rows]))
        if pool:
            return roc_auc_score(*(np.concatenate(part) for part in zip(*each, strict=True)))
        return float(np.mean([roc_auc_score(*one) for one in each]))

    def share(copy: int | None) -> float:
        raw = auc("raw", copy)
        return (auc(line, copy) - raw) / (auc("oracle", copy) - raw)

    return share(None), [share(copy) for copy in range(COPIES)]


@pytest.mark.repeats(3)
@pytest.mark.parametrize("line", ["half", "worse"])
@pytest.mark.parametrize(
    ("protocol", "sites"),
    [(PRIVATE, ("a",)), (PRIVATE, ("bb",)), (PRIVATE_MEAN, ("a", "bb")), (OVERALL, ("a", "bb"))],
)
def test_the_share_is_that_of_a_slow_second_implementation(line, protocol, sites):
    (row,) = (r for r in gap_rows(tables(), LINES, AUC) if (r.method, r.protocol, r.sites) == (line, protocol, sites))
    value, copies = slow(line, list(sites), protocol == OVERALL)
    assert row.share == pytest.approx(value) and row.why == ""
    inside = np.sort(copies)[math.ceil(0.025 * (COPIES - 1)) : math.floor(0.975 * (COPIES - 1)) + 1]
    assert (row.share_low, row.share_high) == pytest.approx((inside[0], inside[-1]))
    assert row.share == pytest.approx(row.gain / row.gap)
    assert (row.untranslated, row.oracle, row.measure) == ("raw", "oracle", "AUC")


def test_untranslated_images_close_nothing_and_the_oracle_all():
    rows = gap_rows(tables(), (Compared("raw", "oracle", ("raw", "oracle")),), AUC)
    assert len(rows) == 8
    for row in rows:
        expected = 0.0 if row.method == "raw" else 1.0
        assert (row.share, row.share_low, row.share_high) == (expected,) * 3


def test_there_is_no_share_without_a_gap_of_an_inverted_gap_or_without_copies():
    for oracle, why in (("raw", OPEN), ("worse", NONE)):
        rows = gap_rows(tables(), (Compared("raw" if oracle == "raw" else "half", oracle, ("oracle",)),), AUC)
        assert rows and {row.why for row in rows} == {why}
        assert all(math.isnan(n) for row in rows for n in (row.share, row.share_low, row.share_high))
        assert all(math.isfinite(row.gain) for row in rows)
    assert {row.why for row in gap_rows(tables(copies=0), LINES, AUC)} == {UNSURE}


def test_hospitals_that_refused_one_of_the_three_are_left_out():
    found = tables()
    del found["half"]["a", "a"]
    rows = gap_rows(found, LINES, AUC)
    assert {row.sites for row in rows if row.method == "half"} == {("bb",)}
    assert {row.protocol for row in rows if row.method == "half"} == {PRIVATE}
    assert ("a", "bb") in {row.sites for row in rows if row.method == "worse"}
    del found["oracle"]["bb", "bb"]
    assert not [row for row in gap_rows(found, LINES, AUC) if row.method == "half"]
    del found["oracle"]
    assert gap_rows(found, LINES, AUC) == ()


def test_a_central_model_stands_for_every_hospitals_own():
    found = tables()
    found["half"] = {("central", test): counts for (_, test), counts in found["half"].items()}
    assert gap_rows(found, LINES, AUC) == gap_rows(tables(), LINES, AUC)


gaps = st.lists(st.floats(-0.2, 0.5), min_size=3, max_size=40)


@example(gap=[0.5, 0.5, 0.5], seed=0)  # two copies
@given(gaps, st.integers(0, 2**16))
def test_every_share_inside_leaves_a_rest_that_may_be_0_and_no_share_outside_does(gap, seed):
    """The interval is what the bootstrap's test does not reject, whatever the sign of a copy's gap."""
    b = np.array(gap)
    a = np.random.default_rng(seed).normal(0.1, 0.2, len(b))
    share, why = share_in_copies(a, b)
    if why:
        assert all(math.isnan(number) for number in share)
        return
    below = np.mean([x <= share.low - 1e-9 for x in (a / np.where(b == 0, 1, b))[1:][b[1:] > 0]])
    above = np.mean([x >= share.high + 1e-9 for x in (a / np.where(b == 0, 1, b))[1:][b[1:] > 0]])
    assert share.low <= share.high and below <= 0.025 + 1 / len(b) and above <= 0.025 + 1 / len(b)
    assert share.share == pytest.approx(a[0] / b[0])


def run_page(found, **more):
    empty = dict.fromkeys(("sites", "gains", "methods", "left", "missing", "stages", "commands"), ())
    page = records.RunPage("t", "r", "d", "w", True, "raw", scores=score_rows(found), settings="{}", **empty)
    return words(report.render_coordinator_page(replace(page, **more)))


def site_page(found, **more):
    page = records.SitePage("t", "a", "r", "d", True, "raw", (), score_rows(found), (), ())
    return words(report.render_site_page(replace(page, **more)))


def words(text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", text, flags=re.S)).split())


HARMONY = Harmony(
    "a",
    "public",
    "none",
    "12",
    rows=(
        SpaceRow("bb", "cycle", "cyclegan", ("contrast", "class_drift"), {"sw_before": 0.2}),
        SpaceRow("a", "nobody", "randomized", (), {"sw_before": 0.1}),
    ),
)


def test_pages_tell_shares_refusals_and_what_to_do():
    shares = gap_rows(tables(), LINES, AUC)
    spaces = {"raw": "raw", "half": "nobody", "worse": "cycle"}
    text = run_page(tables(), shares=shares, harmony=HARMONY, spaces=spaces)
    (half,) = (row for row in select_overall_rows(shares) if row.method == "half")
    assert (
        half.protocol == PRIVATE_MEAN and f"half {format_share(half)}" in text and "What harmonization is worth" in text
    )
    assert "The translation cycle is refused at bb (lesion contrast, class drift): worse learns there from" in text
    assert REMEDY in text and "Not known" not in text
    none = gap_rows(tables(), (Compared("half", "worse", ("oracle",)),), AUC)
    text = run_page(tables(), shares=none, harmony=HARMONY, spaces=spaces)
    assert (
        f"{NONE}, so no share of it can be told. Gains over half: oracle +0" in text and f"Not known : {NONE}" in text
    )
    own = gap_rows({name: {("a", "a"): t["a", "a"]} for name, t in tables().items()}, LINES, AUC)
    text = site_page({"local": tables()["raw"]}, shares=own, harmony=HARMONY)
    assert "What harmonization is worth" in text and format_share(own[0]) in text


def test_nothing_is_said_without_harmonization():
    assert describe_harmonization(None, gap_rows(tables(), LINES, AUC), {}) == ()
    assert "oracle gap" not in run_page(tables())


def test_gains_outside_are_over_the_line_that_nothing_was_done_to():
    rows = outside_rows(tables(), (AUC,), "raw")
    assert {row.protocol for row in rows} == {OUTSIDE, OUTSIDE_MEAN}
    gains = {row.method: row.gain for row in rows if row.protocol == OUTSIDE_MEAN}
    means = {row.method: row.mean for row in gain_rows(tables(), reference="raw", measures=(AUC,))}
    assert gains == pytest.approx({"raw": 0.0, **means})
    (said,) = describe_harmonization(Harmony("a", "public", "", ""), (), {}, rows, "raw")
    assert said.startswith("Hospitals outside gain over raw, in AUC: half +0.") and "raw +" not in said
    text = run_page(tables(), outside=rows, untreated="raw")
    assert "Gain: over raw, a model as it was trained on images as they were read" in text
    assert json.dumps([row.gain for row in rows])


def test_a_line_that_was_not_adapted_anywhere_is_told_beside_its_scores():
    rows = outside_rows({**tables(), "routing": tables()["raw"]}, (AUC,), "raw")
    sites = sorted({row.sites[0] for row in rows if row.protocol == OUTSIDE})
    assert find_unadapted_lines(rows, "raw") == {"routing": sites}
    text = run_page(tables(), outside=rows, untreated="raw")
    assert f"= raw at {', '.join(sites)}: not adapted, the shared model serves" in text
    moved = [
        replace(row, high=row.high + 0.01) if (row.method, row.sites[0]) == ("routing", sites[0]) else row
        for row in rows
    ]
    assert find_unadapted_lines(moved, "raw") == ({"routing": sites[1:]} if len(sites) > 1 else {})


def test_the_figure_says_every_known_share_where_it_is_drawn_and_none_that_is_not_known():
    rows = gap_rows(tables(), LINES, AUC)
    picture = draw_gap_shares(rows)
    said = [json.loads(html.unescape(text)) for text in re.findall(r"data-points='([^']*)'", picture.html)]
    known = [row for row in rows if math.isfinite(row.share)]
    assert len(said) == len(known) == len({(row.method, row.protocol, row.sites) for row in rows}) > 3
    for row in known:
        assert sum(f"{row.method}: {row.share:.2f} (".replace("-", "−") in text for ((*_, text),) in said) >= 1
    half, worse = (next(x for ((x, _, text),) in said if text.startswith(f"a, {line}:")) for line in ("half", "worse"))
    assert worse < half, "a larger share lies farther to the right"
    nothing = gap_rows(tables(), (Compared("half", "worse", ("oracle",)),), AUC)
    assert all(row.why for row in nothing) and draw_gap_shares(nothing) is None and draw_gap_shares(()) is None
