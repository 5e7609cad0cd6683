"""A study's numbers against slow second ones, and its page: every case and method, who loses, no NaN."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.metrics import AUC, BALANCED_ACCURACY
from evaluation.oracle_gap import Compared
from evaluation.records import Command
from evaluation.rows import OUTSIDE, OUTSIDE_MEAN, OVERALL, PRIVATE, PRIVATE_MEAN
from evaluation.study import (
    EVERY,
    MEAN,
    POOLED,
    StudyCase,
    StudyPage,
    StudyRow,
    StudyRun,
    add_mean_rows,
    build_cells,
    compute_balances,
    compute_gap_shares,
    compute_spread,
    compute_worths,
    deviation_range,
    outside_gains,
    summary_csv,
    table_csv,
    table_json,
)
from evaluation.study_page import render_study_page

MEASURES = (AUC.name, BALANCED_ACCURACY.name)
SITES = ("a", "b")
LOSS = -0.125
"""What `vafl` always loses at b."""


def rows_of(case, seed, methods, *, sites=SITES):
    """Scores that follow from their place, with gains over the first method."""
    found = []
    for measure in MEASURES:
        for place, method in enumerate(methods):
            columns = [(PRIVATE, (site,)) for site in sites] + [(PRIVATE_MEAN, sites), (OVERALL, sites)]
            for protocol, own in columns:
                gain = math.nan if not place else LOSS if own == ("b",) else 0.01 * (place + seed)
                value = 0.7 + 0.01 * seed + (gain if place else 0)
                fine = own != ("b",) or seed > 0
                found.append(
                    StudyRow(case, seed, method, measure, protocol, own, value, 0.6, 0.9, fine, 30 + seed, 9, gain)
                )
    return found


def case_of(name, share, seeds, methods, *, done=True):
    runs = tuple(
        StudyRun(f"s_{name}_s{n}", n, "done" if done else "not run", f"../s_{name}_s{n}/report.html" * done)
        for n in seeds
    )
    return StudyCase(name, f"{name} in words", share, SITES, methods, methods[0], runs)


@pytest.fixture(scope="module")
def page():
    few, many = ("local", "fedavg"), ("local", "fedavg", "vafl")
    cases = (
        case_of("some", 0.4, (0, 1, 2), many),
        case_of("few", 0.2, (0, 1, 2), few),
        case_of("once", 0.8, (0,), many),
        case_of("later", 0.6, (0,), many, done=False),
    )
    rows = [row for case in cases[:3] for run in case.runs for row in rows_of(case.name, run.seed, case.methods)]
    told = Command("Run what is missing", "python -m pipelines.study s.yaml")
    varies = "A seed sets everything."
    return StudyPage(
        "A <study>", "s", "2026-11-21T12:00:00+00:00", "base.yaml", "", varies, cases, tuple(rows), (told,), "{}"
    )


@pytest.fixture(scope="module")
def text(page):
    return render_study_page(page)


def words(text):
    return " ".join(re.sub(r"<(style|svg).*?</\1>|<[^>]+>", " ", text, flags=re.DOTALL).split())


def section(text, start):
    return next(part for part in text.split("<section") if f'id="{start}"' in part)


@given(st.lists(st.floats(-1, 1) | st.just(math.nan), max_size=6))
def test_a_spread_is_the_mean_and_the_sample_deviation_of_what_is_finite(values):
    held = [value for value in values if math.isfinite(value)]
    found = compute_spread(values)
    assert (found.n, found.better) == (len(held), len([value for value in held if value > 0]))
    assert found.mean == pytest.approx(statistics.fmean(held)) if held else math.isnan(found.mean)
    assert found.std == pytest.approx(statistics.stdev(held), abs=1e-12) if len(held) > 1 else math.isnan(found.std)


def test_doubt_covers_the_true_deviation_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for seeds in (3, 5):
        low, high = deviation_range(seeds)
        found = rng.normal(0, 2, (20_000, seeds)).std(axis=1, ddof=1)
        assert np.mean((low * found <= 2) & (high * found >= 2)) == pytest.approx(0.95, abs=0.006)
    assert all(map(math.isnan, deviation_range(1)))


def test_every_hospital_enters_the_mean_whether_it_can_be_assessed_or_not(page):
    added = [row for row in add_mean_rows(page.rows) if row.protocol == EVERY]
    assert added
    for row in added:
        own = [
            r.value
            for r in page.rows
            if r.protocol == "private"
            and (r.case, r.seed, r.method, r.measure) == (row.case, row.seed, row.method, row.measure)
        ]
        assert len(own) == len(row.sites) > 1 and row.value == pytest.approx(sum(own) / len(own), nan_ok=True)


def test_the_interval_is_students():
    # t with 4 degrees of freedom is 2.776 at 97.5 %: by hand for 1, 2, 3, 4, 5
    assert compute_spread([1, 2, 3, 4, 5]).half == pytest.approx(2.776 * (2.5**0.5) / 5**0.5, abs=1e-3)
    assert math.isnan(compute_spread([1.0]).half)


def test_the_summary_has_what_the_cells_have(page):
    lines = list(csv.DictReader(io.StringIO(summary_csv(page.rows))))
    held = build_cells(page.rows)
    assert len(lines) == len(held)
    for line, cell in zip(lines, held.values(), strict=True):
        assert int(line["seeds"]) == cell.value.n
        assert line["mean"] == ("" if math.isnan(cell.value.mean) else str(cell.value.mean))


def test_cells_agree_with_the_rows_taken_one_by_one(page):
    held = build_cells(page.rows)
    for (case, method, measure, column), cell in held.items():
        own = [
            r
            for r in add_mean_rows(page.rows)
            if (r.case, r.method, r.measure, r.column) == (case, method, measure, column)
        ]
        assert sorted(cell.value.values) == sorted(row.value for row in own)
        assert cell.assessable == len([row for row in own if row.assessable])
        assert cell.patients == (min(r.patients for r in own), max(r.patients for r in own))
    assert {key[3] for key in held} == {*SITES, POOLED, MEAN, f"/{EVERY}"}


def test_balances_name_who_loses(page):
    found = {(b.case, b.method): b for b in compute_balances(page.cases, build_cells(page.rows), AUC.name)}
    assert set(found) == {("some", "fedavg"), ("some", "vafl"), ("few", "fedavg"), ("once", "fedavg"), ("once", "vafl")}
    loser = found["some", "vafl"]
    assert (loser.worst, loser.least.mean, loser.sites, loser.times) == ("b", LOSS, (1, 2), (3, 6))


def test_the_table_says_the_same_as_csv_and_as_json(page):
    lines, plain = list(csv.DictReader(io.StringIO(table_csv(page.rows)))), json.loads(table_json(page.rows))
    assert len(lines) == len(plain) == len(page.rows)
    for line, one, row in zip(lines, plain, page.rows, strict=True):
        assert (line["case"], int(line["seed"]), line["method"]) == (one["case"], one["seed"], row.method)
        assert tuple(line["sites"].split()) == tuple(one["sites"]) == row.sites
        assert line["assessable"] == str(one["assessable"]).lower()
        assert (line["gain"] == "") == (one["gain"] is None) == math.isnan(row.gain)
        assert float(line["value"]) == one["value"] == row.value


def test_the_page_has_every_case_every_method_and_no_nan(page, text):
    assert "A &lt;study&gt;" in text and "A <study>" not in text
    assert (
        text.lower().count("<html") == text.count("<script") == 1
        and "http:" not in (bare := re.sub(r"<svg.*?</svg>", "", text))
        and "https:" not in bare
    )
    for case in page.cases:
        part = section(text, f"case-{case.name}")
        assert all(f'<th scope="row">{method}</th>' in part for method in case.methods) or case.name == "later"
        assert all(f'href="{run.page}"' in part for run in case.runs if run.page)
    assert "vafl" not in words(section(text, "case-few"))
    assert not re.search(r"\bnan\b", text.partition("<script>")[0], re.IGNORECASE)
    assert "No run of this case is done" in section(text, "case-later")
    assert "1 run is missing" in words(text)


def test_a_loss_is_printed_where_it_is_and_seeds_are_called_few(text):
    assert '<span class="down">−0.125</span>' in section(text, "case-some")
    assert "−0.125" in words(section(text, "gains")) and "1 of 2" in words(section(text, "gains"))
    low, high = deviation_range(3)
    told = words(section(text, "good"))
    assert "Seeds are few" in told and f"With 3 seeds the true deviation lies between {low:.2g} and {high:.2g}" in told
    assert "assessable in 2 of 3" in words(section(text, "case-some"))
    assert "not assessable" in words(section(text, "case-once"))


def test_gains_against_the_share_join_only_cases_that_differ_in_it(page, text):
    assert "by share in training, 2 hospitals" in section(text, "gains")
    twins = tuple(replace(case, share=0.4) for case in page.cases)
    assert "by share in training" not in render_study_page(replace(page, cases=twins))


def test_a_study_without_a_run_or_a_reference_is_a_page_too(page):
    assert "Not finished" in render_study_page(replace(page, cases=page.cases[3:], rows=()))
    bare = replace(
        page,
        rows=(),
        cases=tuple(replace(c, reference="", runs=tuple(replace(r, page="") for r in c.runs)) for c in page.cases),
    )
    assert "No gain was computed" in render_study_page(bare)
    unused = replace(page.cases[0].runs[0], target="a", unused=("vafl at b (contrast)",))
    vetoed = replace(page, cases=(replace(page.cases[0], runs=(unused,)),))
    assert "vafl at b (contrast)" in words(section(render_study_page(vetoed), "case-some"))


def oracle_rows(case, seeds, oracle):
    """A run's scores of three lines: the gap and the gain differ from seed to seed."""
    found = []
    for seed in seeds:
        for method, value in (("fedavg", 0.6), ("oracle", 0.6 + oracle(seed)), ("nobody", 0.65 + 0.01 * seed)):
            for protocol, own in ((PRIVATE, ("a",)), (PRIVATE, ("b",)), (PRIVATE_MEAN, SITES), (OVERALL, SITES)):
                found.append(StudyRow(case, seed, method, AUC.name, protocol, own, value, 0.5, 0.9, True, 30, 9))
    return found


def test_the_share_over_seeds_is_fiellers_and_only_where_there_is_a_gap(page):
    """Fieller's end solves a quadratic; here it is searched for."""
    compared = (Compared("fedavg", "oracle", ("nobody", "absent")),)
    rows = [*oracle_rows("some", (0, 1, 2), lambda s: 0.1 + 0.01 * s), *oracle_rows("once", (0,), lambda s: 0.1)]
    rows += oracle_rows("few", (0, 1, 2), lambda s: 0.2 * (s - 1))
    found = compute_worths(rows, {"some": compared, "once": compared, "few": compared})
    one = found["some", "nobody", AUC.name, POOLED]
    assert one.share.share == pytest.approx(0.06 / 0.11)
    gain, gap = np.array([0.05, 0.06, 0.07]), np.array([0.10, 0.11, 0.12])
    inside = [s for s in np.arange(0, 2, 1e-3) if abs((m := compute_spread(gain - s * gap)).mean) <= m.half]
    assert one.share[1:] == pytest.approx((inside[0], inside[-1]), abs=2e-3)
    for case in ("once", "few"):
        unknown = found[case, "nobody", AUC.name, POOLED]
        assert math.isnan(unknown.share.share) and unknown.gain.n > 0
    cases = tuple(replace(case, compared=compared, methods=("fedavg", "oracle", "nobody")) for case in page.cases)
    whole = replace(page, cases=cases, rows=tuple(rows))
    told = words(section(render_study_page(whole), "case-some"))
    assert "what harmonization is worth" in told and f"0.55 {one.share.low:.2f} – {one.share.high:.2f}" in told
    assert "not known" in words(section(render_study_page(whole), "case-few"))
    lines = csv.DictReader(io.StringIO(summary_csv(rows, compute_gap_shares(whole))))
    shares = {line["share"] for line in lines if line["method"] == "nobody" and line["case"] == "some"}
    assert {f"{float(share):.6f}" for share in shares} == {f"{one.share.share:.6f}"}


def test_gains_outside_are_told_over_seeds(page):
    rows = [
        StudyRow("some", seed, line, AUC.name, protocol, own, 0.7, 0.6, 0.8, True, 30, 9, gain)
        for seed in (0, 1, 2)
        for line, gain in (("as_trained", 0.0), ("nobody", 0.01 * seed))
        for protocol, own in ((OUTSIDE, ("west",)), (OUTSIDE_MEAN, ("west", "east")))
    ]
    (lines,) = outside_gains(rows).values()
    assert lines == {
        "nobody": {"west": compute_spread([0, 0.01, 0.02]), f"/{OUTSIDE_MEAN}": compute_spread([0, 0.01, 0.02])}
    }
    told = words(section(render_study_page(replace(page, rows=(*page.rows, *rows))), "case-some"))
    assert "gain of hospitals outside" in told and "nobody +0.010 ± 0.025" in told


def test_test_patients_are_told_where_the_first_method_was_not_scored(page):
    """Its budget may be spent at a hospital, at which the others have scores."""
    first = page.cases[0].methods[0]
    rows = tuple(row for row in page.rows if not (row.method == first and row.column == "a"))
    heads = re.findall(r'<th scope="col"[^>]*>a(<span.*?)</th>', render_study_page(replace(page, rows=rows)))
    assert heads and all("30 – 32 patients" in words(head) for head in heads[: len(MEASURES)])
