"""The cases on a hospital's page: the patients on whom its model is wrong most, whatever it predicts."""

from __future__ import annotations

import re
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
from pipelines.hospital.page.cases import _describe_features, _measure_errors, _select_worst
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


def test_of_numbers_those_that_are_farthest_off_come_first(finished_run):
    _, shown = read_page(finished_run(NUMBERS, figures=True), "numbers")
    pairs = [(float(case.label.split()[0]), float(case.predicted.split()[0])) for case in shown.cases]
    off = [abs(given - predicted) for given, predicted in pairs]
    assert len(off) > 1 and all(case.predicted.endswith(" cm2") for case in shown.cases)
    assert all(after <= before + 0.02 for before, after in pairwise(off)), "as far as is printed"


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
    errors, _, say = _measure_errors(cohort_of(findings=list(NAMES)), encode_findings(states), p)
    off = {
        name: abs(value - (state == 1)) for name, (state, value) in zip(NAMES, each, strict=True) if state != UNKNOWN
    }
    assert float(errors[0]) == pytest.approx(max(off.values()))
    names = [part.rsplit(" ", 1)[0] for part in say(0).split(", ")]
    assert sorted(names) == sorted(off) and [off[name] for name in names] == sorted(off.values(), reverse=True)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 1)), min_size=1, max_size=80))
def test_each_patient_is_shown_once_by_the_worst_example_and_the_worst_first(rows):
    errors, patients = torch.tensor([by for _, by in rows], dtype=torch.float64), torch.tensor([who for who, _ in rows])
    worst = _select_worst(errors, torch.arange(len(rows)) + 100, patients)
    slow = {who: max(by for other, by in rows if other == who) for who, _ in rows}
    assert [example.by for example in worst] == sorted(slow.values(), reverse=True)[:20]
    assert all(rows[example.place][1] == example.by and example.row == example.place + 100 for example in worst)
    assert len({rows[example.place][0] for example in worst}) == len(worst)


def test_a_line_of_a_table_is_told_by_its_values_and_categories():
    features = {"age": np.array([61.5]), "sex = male": np.array([1.0]), "sex = female": np.array([0.0])}
    assert _describe_features(features, 0) == "age 61.5 · sex = male"
    many = {f"f{number}": np.array([float(number)]) for number in range(15)}
    assert _describe_features(many, 0).endswith(" and 3 more")
