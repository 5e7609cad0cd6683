"""Of too many hospitals figures show the lowest, the highest and those between; tables keep all."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from asking import trained_method
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation import histograms, records, report, scoring
from evaluation.figures import Curve, draw_learning_curves
from evaluation.grid import SHOWN, describe_figure_choice, rank_hospitals, select_figure_sites
from evaluation.leaving import Left
from evaluation.notices import run_notices
from evaluation.protocols import Evidence
from evaluation.rows import FLOORS, PRIVATE, PRIVATE_MEAN, ScoreRow
from evaluation.wording import READABLE
from pipelines.coordinator.report.figures import draw_figures
from pipelines.coordinator.summary import _build_table, _describe_missing


def row(site: str, value: float, *, sure: bool = True, method: str = "a") -> ScoreRow:
    return ScoreRow(method, PRIVATE, (site,), "AUC", value, 0.4, 0.6, 100, 0, 30, 30, 15, 15, 15, sure, False)


@settings(deadline=None)
@given(st.lists(st.tuples(st.one_of(st.floats(0, 1), st.just(math.nan)), st.booleans()), max_size=60))
def test_figures_show_ends_and_steps_between_whatever_the_order(scores: list[tuple[float, bool]]) -> None:
    rows = [row(f"h{number:02d}", value, sure=sure) for number, (value, sure) in enumerate(scores)]
    order, some = rank_hospitals(rows), select_figure_sites(rows)
    assert sorted(order) == sorted(f"h{number:02d}" for number in range(len(scores)))
    assert rank_hospitals(rows[::-1]) == order
    if len(order) <= READABLE:
        assert some == order and not describe_figure_choice(rows)
        return
    valued = [site for site in order if math.isfinite(next(one.value for one in rows if one.sites == (site,)))]
    kept = valued or list(order)
    assert some == tuple(site for site in kept if site in some) and len(some) == min(SHOWN, len(kept))
    assert {kept[0], kept[-1]} <= {*some}
    assert f"{len(some)} of {len(order)} hospitals with scores" in describe_figure_choice(rows)
    steps = np.diff([kept.index(site) for site in some])
    assert not len(steps) or steps.max() - steps.min() <= 1


def test_a_mean_over_hospitals_is_no_score_of_the_first_of_them() -> None:
    names = tuple(f"h{number:02d}" for number in range(READABLE + 2))
    own = [row(name, math.nan if name == names[0] else 0.5 + number / 40) for number, name in enumerate(names)]
    mean = replace(own[1], protocol=PRIVATE_MEAN, sites=names)
    assert select_figure_sites([*own, mean]) == select_figure_sites(own) and names[0] not in select_figure_sites(own)


def test_baselines_have_no_part_in_the_order() -> None:
    """Else a hospital with few positives, whose majority guess is good, would not be the lowest."""
    names = [f"h{number:02d}" for number in range(READABLE + 2)]
    methods = [row(name, 0.5 + number / 40) for number, name in enumerate(names)]
    for floor in FLOORS:
        guesses = [row(name, 0.99 - number / 15, method=floor) for number, name in enumerate(names)]
        assert rank_hospitals([*guesses, *methods]) == rank_hospitals(methods) == tuple(names)
        assert select_figure_sites([*guesses, *methods]) == select_figure_sites(methods)
        alone = [replace(one, value=math.nan) if one.sites == ("h03",) else one for one in methods]
        assert rank_hospitals([*guesses, *alone])[0] == "h03" and "h03" not in select_figure_sites([*guesses, *alone])
        assert {*rank_hospitals(guesses)} == {*names}, "of a hospital with baselines alone nobody knows more"


def counts_of(page: str, site: str) -> set[str]:
    """What the tables of scores say of a hospital's test patients, beside its name."""
    table = page[page.index('id="scores"') : page.index('id="figures"')]
    heads = re.findall(rf'<th scope="(?:row|col)"[^>]*>{site}(.*?)</th>', table)
    return {" ".join(re.sub(r"<[^>]+>", " ", head).split()) for head in heads}


@pytest.mark.parametrize("count", [3, READABLE + 2])
def test_test_patients_are_told_whichever_methods_were_scored_there(count: int) -> None:
    """The first method may have left a hospital (its budget was spent), or may have seen another cohort."""
    whole = page(count)[0]
    first = whole.scores[0].method
    here = [one for one in whole.scores if one.protocol != PRIVATE or one.sites[0] != "h001" or one.method != first]
    said = report.render_coordinator_page(replace(whole, scores=tuple(here)))
    assert counts_of(said, "h001") == counts_of(said, "h000") == {"40 patients 20 +, 20 −"}
    other = [
        replace(one, patients=38, positives=18) if one.method == first and one.sites[0] == "h002" else one
        for one in whole.scores
    ]
    said = report.render_coordinator_page(replace(whole, scores=tuple(other)))
    assert counts_of(said, "h002") == {"38 – 40 patients 18 – 20 +, 20 −"}


def evidence(seed: int) -> Evidence:
    random = np.random.default_rng(seed)
    labels = np.arange(40) % 2
    score = 1 / (1 + np.exp(-random.normal(size=40) - labels))
    p = np.stack([1 - score, score], 1)
    return histograms.count_scores(labels, p, np.arange(40), copies=20, seed=0, site=str(seed))


def words(text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


NAMES = [f"h{number:03d}" for number in range(READABLE + 2)]


def test_what_concerns_many_hospitals_in_the_same_way_is_said_once() -> None:
    """Else a page's first screen is full of it, and what concerns one hospital alone is not read."""
    lost = [records.Missing(site, "evaluate fedavg", "budget", 1) for site in NAMES]
    lost += [records.Missing("h003", "train fedavg", "busy", 2)]
    said = [one.text for one in run_notices(replace(page(3)[0], missing=tuple(lost))) if one.what == "Missing"]
    assert len(said) == 2 and "1 reply of each of h000, h001" in said[0] and "and 4 others" in said[0]
    assert said[1].startswith("3 replies of h003 did not come (evaluate fedavg: budget, train fedavg: busy)")
    apart = [records.Missing(site, "evaluate fedavg", "busy", n + 1) for n, site in enumerate(NAMES)]
    said = [one.text for one in run_notices(replace(page(3)[0], missing=tuple(apart))) if one.what == "Missing"]
    assert len(said) == 4 and said[-1] == f"So it is {len(NAMES) - 3} more times."


def test_what_left_has_a_row_for_each_of_many_hospitals_and_a_sum_for_each_request() -> None:
    left = tuple(
        Left(site, request, 2, 100 + n, "0", f"what {request} held")
        for n, site in enumerate(NAMES)
        for request in ("survey", "train")
    )
    text = report.render_coordinator_page(replace(page(len(NAMES))[0], left=left))
    table = text[text.index('id="left"') :].partition("</section>")[0]
    heads = [words(head) for head in re.findall(r"<thead>(.*?)</thead>", table, flags=re.S)]
    assert heads[:2] == ["request what it held bytes messages privacy loss ε", "hospital survey train"]
    assert f"what train held 100 B – {99 + len(NAMES)} B {2 * len(NAMES)} 0" in words(table)
    assert re.findall(r'<th scope="row">(h\d{3})', table) == NAMES


def test_a_figure_without_any_value_is_not_drawn() -> None:
    found, _ = page(3)
    lone = [replace(row, gain=math.nan, gain_low=math.nan, gain_high=math.nan) for row in found.scores]
    drawn = [one.title for one in draw_figures({}, lone, [], "local")]
    assert drawn and not any(title.startswith("Gain") for title in drawn)
    assert any(one.title.startswith("Gain") for one in found.pictures)


@pytest.mark.filterwarnings("error")
def test_a_scale_that_leaves_a_large_value_out_has_room_where_all_others_are_equal() -> None:
    lines = {name: Curve((1,), (value,)) for name, value in (("a", 0.5), ("b", 0.5), ("c", 90.0))}
    assert "c at north 90" in draw_learning_curves({"north": lines}).caption


def test_the_terminal_shows_methods_by_name_and_of_many_hospitals_some() -> None:
    scores = score(len(NAMES))[2]
    shown = select_figure_sites(scores)
    table = _build_table(scores, "AUC", shown)
    assert [column.header for column in table.columns] == ["hospital", "fedavg", "local"]
    assert [*table.columns[0].cells] == [*shown, PRIVATE_MEAN, "overall"] and table.title is not None
    assert f"{SHOWN} of {len(NAMES)} hospitals" in str(table.title)
    few = score(3)[2]
    assert [column.header for column in _build_table(few, "AUC", ()).columns][:2] == ["method", "h000"]
    lost = [records.Missing(site, "train", "busy", 1) for site in NAMES]
    assert [*_describe_missing(lost)] == [f"! {', '.join(NAMES[:9])} and 5 others did not answer train: busy"]


@functools.cache
def score(count: int) -> tuple[list[str], Mapping[str, Mapping[tuple[str, str], Evidence]], tuple[ScoreRow, ...]]:
    """Hospitals, what each method scored there, and the rows of it."""
    sites = [f"h{number:03d}" for number in range(count)]
    tables = {m: {(s, s): evidence(10 * n + k) for n, s in enumerate(sites)} for k, m in enumerate(("fedavg", "local"))}
    return sites, tables, tuple(scoring.score_rows(tables, reference="local"))


@functools.cache  # several tests read the page of as many hospitals
def page(count: int) -> tuple[records.RunPage, str]:
    sites, tables, rows = score(count)
    losses = {site: {"1": 0.7, "2": 0.6} for site in sites}
    between = {"r": {"sites": sites, "values": np.eye(count).tolist()}}
    trained = [trained_method(label=m, name=m, losses=losses, between=between) for m in tables]
    drawn = draw_figures(tables, rows, trained, "local")
    found = records.RunPage(
        title="Many", run="many", date="2026-11-23", what="", simulation=True, reference="local",
        sites=tuple(records.SiteCounts(site, (), {}) for site in sites), scores=rows,
        gains=scoring.gain_rows(tables, reference="local"), methods=(), left=(), missing=(), stages=(),
        settings="", commands=(), pictures=tuple(drawn), models=tuple(records.Model(s, "fedavg", 0.5) for s in sites),
    )  # fmt: skip
    return found, report.render_coordinator_page(found)


def test_a_page_of_many_hospitals_draws_as_much_as_one_of_few_and_its_tables_have_all() -> None:
    (few, of_few), (many, of_many) = page(SHOWN), page(len(NAMES))
    assert [one.title for one in few.pictures] == [one.title for one in many.pictures]
    assert all(f"9 of {len(NAMES)} hospitals" in one.caption for one in many.pictures)
    assert not any("hospitals, at equal steps" in one.caption for one in few.pictures)
    drawn = [sum(len(one.html) for one in of.pictures) for of in (few, many)]
    assert 0.7 < drawn[1] / drawn[0] < 1.3, drawn
    cells = [re.findall(r'<th scope="row">(h\d{3})', of) for of in (of_few, of_many)]
    assert {*cells[0]} == {f"h{n:03d}" for n in range(9)} and {*cells[1]} == {*NAMES}
    table = of_many[of_many.index('id="scores"') : of_many.index('id="figures"')]
    assert re.findall(r'<th scope="row">(h\d{3})', table)[: len(NAMES)] == [*rank_hospitals(many.scores)]
    assert len(of_many) < 3 * len(of_few)
    mean = next(one for one in many.scores if one.protocol == PRIVATE_MEAN)
    assert f"{mean.value:.3f}" in of_many
