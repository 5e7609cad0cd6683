"""The cases on a hospital's page: the patients on whom its model is wrong most, whatever it predicts."""

from __future__ import annotations

import html
import json
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_run import smallest

from federation.findings import UNKNOWN, encode_findings
from pipelines.data.cohort import Cohort
from pipelines.hospital.page.cases import (
    SURE,
    Answers,
    _describe_features,
    _find_worst,
    _measure_errors,
    _select_cases,
)
from pipelines.hospital.page.slices import MOST_VIEWS, count_views, select_around
from pipelines.hospital.segmentation import read_patient_scores
from pipelines.reviews.marks import ShownCases, read_cases
from privacy.message import from_bytes

NAMES = ("effusion", "oedema", "nodule")
MASKS = smallest(
    name="masks",
    task={"kind": "segmentation", "target": "gland"},
    model={"name": "unet", "width": 4, "levels": 2},
    images={"kind": "slices", "size": 16, "spacing_mm": 4.0, "centre": "image"},
    audit={"membership": False},
)
NUMBERS = smallest(name="numbers", task={"kind": "regression", "what": "area", "unit": "cm2", "range": [0.0, 20.0]})
VOLUMES = {"kind": "volumes", "size": 16, "spacing_mm": 3.0, "depth": 8, "depth_mm": 3.0}
for source in (site["source"] for site in NUMBERS["sites"].values()):
    source["labels"] = "gland_area"


def read_page(done: Path, name: str) -> tuple[str, ShownCases]:
    """The page of hospital a, and its cases."""
    page = (done / "runs" / name / "sites" / "a" / "report.html").read_text()
    return page, read_cases(page)


def test_of_masks_those_with_the_lowest_dice_come_first_with_both_outlines(finished_run):
    done = finished_run(MASKS, figures=True)
    page, shown = read_page(done, "masks")
    (scores,) = (done / "runs" / "masks" / "sites" / "a" / "scores").glob("*.safetensors")
    values = read_patient_scores(from_bytes(scores.read_bytes()).tensors)
    assert values is not None
    dice = [float(re.findall(r"Dice ([\d.]+)", case.predicted)[0]) for case in shown.cases]
    assert dice == sorted(dice) == pytest.approx(sorted(np.nanmean(values.scores[:, :, 0], axis=1)), abs=6e-4)
    articles = re.findall(r"<article.*?</article>", page, re.DOTALL)
    assert len(articles) == len(dice) and all("given mask outlined" in article for article in articles)
    assert {case.label for case in shown.cases} == {"its mask"} and "the model's mask" in page


def test_the_command_on_the_page_says_who_a_code_is_and_the_page_does_not(finished_run, monkeypatch):
    done = finished_run(smallest(), figures=True)
    page, shown = read_page(done, "tiny")
    monkeypatch.chdir(done)
    linkage = json.loads(Path("runs/tiny/sites/a/linkage.json").read_text())
    commands = [html.unescape(each) for each in re.findall(r">(grep [^<]*)<", page)]
    assert len(commands) == 2 and len({*commands}) == 1, "beside the cases, and beside the quarantine"
    studies = {code: entry["study"] for code, entry in linkage["studies"].items() if code in page}
    patients = {case.code[:8]: linkage["patients"][case.code] for case in shown.cases}
    assert studies and patients
    for code, meaning in {**studies, **patients}.items():
        asked = shlex.split(commands[0].replace("CODE", code))
        assert meaning in subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert meaning not in page and meaning not in Path("runs/tiny/report.html").read_text()


def test_of_numbers_those_that_are_farthest_off_come_first(finished_run):
    _, shown = read_page(finished_run(NUMBERS, figures=True), "numbers")
    pairs = [(float(case.label.split()[0]), float(case.predicted.split()[0])) for case in shown.cases]
    off = [abs(given - predicted) for given, predicted in pairs]
    assert len(off) > 1 and all(case.predicted.endswith(" cm2") for case in shown.cases)
    assert all(after <= before + 0.02 for before, after in pairwise(off)), "as far as is printed"


@pytest.mark.parametrize(
    "settings",
    [
        smallest(name="whole", images=VOLUMES, model={"name": "cnn", "widths": [8, 8], "norm": "group"}),
        smallest(
            name="whole",
            images={**VOLUMES, "centre": "image"},
            task={"kind": "segmentation", "target": "gland"},
            model={"name": "unet", "width": 4, "levels": 2},
            audit={"membership": False},
        ),
    ],
    ids=["classes", "masks"],
)
def test_a_case_of_a_volume_shows_its_slices_and_begins_where_most_of_the_mask_is(finished_run, settings):
    done = finished_run(settings, figures=True)
    page, shown = read_page(done, "whole")
    articles = re.findall(r"<article.*?</article>", page, re.DOTALL)
    assert len(articles) == len(shown.cases) > 1
    for article in articles:
        names = re.findall(r'data-slice="(\d+)" data-name="slice (\d+)"', article)
        assert sorted(names) == [(str(place), str(place + 1)) for place in range(8)], "all slices, each once, from 1"
        assert "7 other slices of 8" in article.partition("data-slice")[2]
        captions = re.findall(r"<figcaption>\w+, slice (\d+)", article)
        assert captions == [name for _, name in names], "each slice is what it is called"


def test_the_digest_tells_other_cases_and_other_runs(finished_run):
    _, masks = read_page(finished_run(MASKS, figures=True), "masks")
    _, numbers = read_page(finished_run(NUMBERS, figures=True), "numbers")
    assert (
        len(masks.digest) == 64 and masks.digest != numbers.digest and (masks.run, numbers.run) == ("masks", "numbers")
    )


def cohort_of(**recipe: object) -> Cohort:
    empty = torch.zeros(1, 0)
    return Cohort(empty, torch.zeros(1), torch.zeros(1), empty, empty, empty, torch.zeros(1), ("p",), recipe=recipe)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), min_size=3, max_size=3).filter(
    lambda each: any(state != UNKNOWN for state, _ in each)))  # fmt: skip
def test_of_findings_only_the_known_ones_count(each):
    states, p = torch.tensor([[state for state, _ in each]]), torch.tensor([[p for _, p in each]], dtype=torch.float64)
    errors, wrong, _, say, _, judge = _measure_errors(cohort_of(findings=list(NAMES)), encode_findings(states), p)
    off = {
        name: abs(value - (state == 1)) for name, (state, value) in zip(NAMES, each, strict=True) if state != UNKNOWN
    }
    assert float(errors[0]) == pytest.approx(max(off.values()))
    assert wrong is not None and bool(wrong[0]) == any(value > 0.5 for value in off.values())
    names = [part.rsplit(" ", 1)[0] for part in say(0).split(", ")]
    assert sorted(names) == sorted(off) and [off[name] for name in names] == sorted(off.values(), reverse=True)
    _, outcome = judge(0)
    missed = [name for name, (state, value) in zip(NAMES, each, strict=True) if state == 1 and value < 0.5]
    alarms = [name for name, (state, value) in zip(NAMES, each, strict=True) if state == 0 and value > 0.5]
    said = {"Missed": missed, "False alarm": alarms}
    assert outcome == ". ".join(f"{word}: {', '.join(which)}" for word, which in said.items() if which)


@given(st.integers(0, 3), st.lists(st.floats(0.01, 1), min_size=4, max_size=4, unique=True), st.booleans())
def test_a_wrong_class_is_named_as_the_field_names_it(true, chances, has_two):
    """Of two classes the second is the positive one: what it is not found in is missed."""
    names = ["benign", "cyst", "melanoma", "nevus"][: 2 if has_two else 4]
    true, p = true % len(names), torch.tensor([chances[: len(names)]], dtype=torch.float64)
    answers = _measure_errors(cohort_of(labels=names), torch.tensor([true]), p / p.sum())
    group, outcome = answers.judge(0)
    top = chances.index(max(chances[: len(names)]))
    assert answers.wrong is not None and bool(answers.wrong[0]) == (top != true) and group in answers.groups
    if top != true:
        two = "Missed" if true else "False alarm"
        assert outcome == (two if has_two else f"Taken for {names[top]}")


ROWS = st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1), st.booleans()), min_size=1, max_size=120)


def answers_of(rows, *, known=True):
    errors, wrong = torch.tensor([by for _, by, _ in rows], dtype=torch.float64), torch.tensor([w for *_, w in rows])
    return Answers(errors, wrong if known else None, "", str), torch.tensor([who for who, *_ in rows])


@given(ROWS)
def test_each_patient_is_shown_once_by_the_worst_example_and_wrong_ones_before_right_ones(rows):
    answers, patients = answers_of(rows)
    worst = _find_worst(answers, torch.arange(len(rows)) + 100, patients)
    own = {who: [(wrong, by) for other, by, wrong in rows if other == who] for who, *_ in rows}
    slow = sorted((max(each) for each in own.values()), reverse=True)
    assert [(example.is_wrong, example.by) for example in worst] == slow, "wrong first, then how far it is off"
    assert all(rows[example.place][1:] == (example.by, example.is_wrong) for example in worst)
    assert all(example.row == example.place + 100 for example in worst)
    assert len({rows[example.place][0] for example in worst}) == len(worst) == len(own)


@given(ROWS)
def test_wrong_cases_are_shown_and_of_right_ones_those_that_are_unsure_alone(rows):
    worst = _find_worst(answers_of(rows)[0], torch.arange(len(rows)), answers_of(rows)[1])
    shown = _select_cases(worst)
    wrong, right = ([example for example in shown if example.is_wrong is which] for which in (True, False))
    assert shown == [*wrong, *right] and len(wrong) <= 20 and len(right) <= 10
    assert all(1 - example.by < SURE for example in right)
    assert wrong == [example for example in worst if example.is_wrong][:20]
    assert len(wrong) + len(right) == len({example.row for example in shown})


@given(ROWS)
def test_where_nothing_is_right_or_wrong_the_worst_are_shown(rows):
    answers, patients = answers_of(rows, known=False)
    shown = _select_cases(_find_worst(answers, torch.arange(len(rows)), patients))
    slow = {who: max(by for other, by, _ in rows if other == who) for who, *_ in rows}
    assert [example.by for example in shown] == sorted(slow.values(), reverse=True)[:20]


def slices_of(sizes, *, depth=0, side=4):
    """A cohort with so many slices of each patient, the last ones first, or of volumes."""
    rows = [(who, place) for who, size in enumerate(sizes) for place in reversed(range(size))]
    patient, position = (torch.tensor(each) for each in zip(*rows, strict=True))
    shape, none = (1, depth, side, side) if depth else (1, side, side), torch.zeros(len(rows), 0)
    return Cohort(
        torch.zeros(len(rows), *shape), torch.zeros(len(rows)), patient, position.float(), none, none,
        (patient % 2).to(torch.int8), tuple(map(str, range(len(sizes)))), recipe={"images": {"kind": "slices"}},
    )  # fmt: skip


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 15), st.data())
def test_a_case_shows_its_patients_slices_in_their_order_and_the_worst_is_one_of_them(sizes, most, data):
    cohort = slices_of(sizes)
    row = data.draw(st.integers(0, sum(sizes) - 1))
    around = select_around(cohort, row, None, most)
    who, places = int(cohort.patient[row]), cohort.position[torch.tensor(around.rows)].int().tolist()
    assert around.rows[around.worst] == row and {int(cohort.patient[one]) for one in around.rows} == {who}
    assert len(places) == min(most, sizes[who]) and places == [*range(places[0], places[0] + len(places))]
    assert around.examples == sizes[who]
    to_ends = int(cohort.position[row]), sizes[who] - 1 - int(cohort.position[row])
    around_ends = around.worst, len(places) - 1 - around.worst
    assert all(near >= min(far, (most - 1) // 2) for near, far in zip(around_ends, to_ends, strict=True))


@given(st.integers(1, 40), st.integers(1, 15), st.data())
def test_of_a_volume_its_slices_are_shown(depth, most, data):
    plane = data.draw(st.integers(0, depth - 1))
    around = select_around(slices_of([1, 1], depth=depth), 1, plane, most)
    assert {*around.rows} == {1} and around.planes[around.worst] == plane and around.examples == depth
    assert [*around.planes] == [*range(around.planes[0], around.planes[0] + min(most, depth))]


@pytest.mark.parametrize(("side", "cases", "views"), [(48, 30, 12), (168, 30, 4), (512, 30, 4), (168, 900, 1)])
def test_of_large_images_a_case_shows_fewer(side, cases, views):
    assert count_views(slices_of([1], side=side), cases) == views <= MOST_VIEWS


def test_a_line_of_a_table_is_told_by_its_values_and_categories():
    features = {"age": np.array([61.5]), "sex = male": np.array([1.0]), "sex = female": np.array([0.0])}
    assert _describe_features(features, 0) == "age 61.5 · sex = male"
    many = {f"f{number}": np.array([float(number)]) for number in range(15)}
    assert _describe_features(many, 0).endswith(" and 3 more")
