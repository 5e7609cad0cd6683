"""What pages show of image spaces: figures that exist, vetoes in words, pictures of both classes."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evaluation.harmony import COLUMNS, REASONS, Harmony, SpaceRow
from evaluation.leaving import Left
from evaluation.page import Page, Section
from evaluation.records import RunPage
from evaluation.rendering import render_page
from evaluation.report import render_coordinator_page
from evaluation.run_spaces import build_space_blocks
from harmonize.veto import WORDS
from harmonize.wgan import WganGp
from pipelines.coordinator.report.harmonization import describe_selection, describe_synthesis
from pipelines.data.cohort import Cohort
from pipelines.hospital.page.harmonization import PAIRS, _select_rows
from pipelines.hospital.statement import AS_THEY_ARE, FORGOTTEN, OUTSIDE, find_records
from pipelines.requests.leaving import left_in
from pipelines.requests.sample import SAMPLE
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Gaussian, PoissonSampled, SelfComposed

JUDGED = SpaceRow("north", "vafl", "cyclegan", ("cycle", "prevalence"), {"sw_before": 0.1, "cycle_mae": math.nan})


def drawn(rows, sites=True):
    blocks = build_space_blocks(Harmony("south", "public", "", "", rows=rows), is_run=sites)
    page = render_page(Page("", "", "", [Section("", blocks)]))
    return page[page.index("<main>") : page.index("</main>")]


def cohort(labels, patient):
    n, none = len(labels), torch.zeros(len(labels), 0)
    y, who = torch.tensor(labels), torch.tensor(patient)
    names = tuple(f"p{k}" for k in range(max(patient) + 1))
    return Cohort(torch.zeros(n, 1, 2, 2), y, who, torch.zeros(n), none, none, torch.zeros(n), names)


def page(*left: Left) -> str:
    """The coordinator's page of a run without a method, in one line of words."""
    none: dict[str, tuple] = dict.fromkeys(("sites", "scores", "gains", "methods", "missing", "stages", "commands"), ())
    text = render_coordinator_page(RunPage("t", "r", "d", "w", True, "", left=left, settings="", **none))
    return " ".join(re.sub(r"<[^>]+>", "", text).split())


def sent(site: str, request: str, content: str = "", messages: int = 1) -> Left:
    """What a hospital says of its replies to a request."""
    return left_in(site, request, content, find_records({request: content}, request), messages, 9)


NOTHING = "no patient's image, label or record is among them"


@pytest.mark.parametrize("text", [SAMPLE.says, OUTSIDE])
def test_the_page_says_that_no_image_left_where_shared_ones_were_made_up(text):
    assert NOTHING in page(sent("north", "sample", text), sent("north", "train"))


@pytest.mark.parametrize("more", [f"{SAMPLE.says} (r/1); {AS_THEY_ARE} (r/2)", AS_THEY_ARE])
def test_the_page_says_whose_images_left_as_they_are(more):
    """Whatever this run's own settings are: what left is counted over the life of the ledger."""
    said = page(sent("north", "sample", more), sent("south", "train"))
    assert NOTHING not in said and f"(sample) are {SAMPLE.records.replace('examples', 'images')}, of north" in said
    assert more in said, "and what left, by request"


def test_the_page_claims_nothing_of_images_of_which_nothing_is_remembered():
    said = page(sent("north", "sample", FORGOTTEN))
    assert NOTHING not in said and "training images of patients" not in said
    assert "cannot be told any more of north" in said


def test_the_page_tells_of_images_that_were_pooled_in_an_earlier_run_and_not_of_refused_ones():
    assert NOTHING not in page(sent("north", "pool"))
    assert NOTHING in page(sent("north", "pool", messages=0), sent("north", "sample", AS_THEY_ARE, 0))


def test_the_page_does_not_say_of_one_hospital_what_another_sent():
    both = sent("north", "sample", AS_THEY_ARE), sent("south", "sample", SAMPLE.says)
    for order in (both, both[::-1]):
        said = page(*order)
        assert f"north: {AS_THEY_ARE}" in said and f"south: {SAMPLE.says}" in said


def test_what_the_papers_noise_buys_is_told_beside_what_is_claimed_for_it():
    settings = WganGp(variant="paper", steps=40)
    noise = 24 * (2 * 0.5 * math.sqrt(5 * math.log(1e5)) / 10)  # equation 2, on a mean over 24 of 48
    truly = compute_cost([SelfComposed(PoissonSampled(0.5, Gaussian(noise)), 40)], 1e-5).epsilon
    assert f"claimed ε = 10; with 48 training patients it truly buys ε = {truly:.3g}" in describe_synthesis(
        settings, patients=48
    )
    assert "the ledger says" in describe_synthesis(settings)
    printed = WganGp(name="wgan_gp", variant="paper", steps=40)
    assert "claimed ε = 10, as printed; unclipped, it buys no finite ε" in describe_synthesis(printed, patients=48)
    assert "without noise: no guarantee" in describe_synthesis(replace(printed, epsilon=None))


def test_no_rule_is_named_for_images_that_none_chose():
    told = {"images": 24, "tried": 24}
    assert "rule" not in describe_selection("", told) and "by the rule surrogate" in describe_selection(
        "surrogate", told
    )


def test_every_veto_has_a_word_for_the_table():
    assert set(REASONS) == set(WORDS)


def test_a_figure_that_nobody_has_gets_no_column_but_is_named():
    harmony = Harmony("", "", "", "", rows=(JUDGED, replace(JUDGED, quality={"drift": 0.0})))
    assert list(harmony.columns) == ["sw_before", "drift"]
    assert {*harmony.columns.values(), *harmony.absent} == set(COLUMNS.values())
    page = drawn(harmony.rows)
    assert page.count('class="num"') == 2 + 2 * 2
    assert "Could not be computed at any hospital" in page and "cycle error" in page.split("Could not")[1]


def test_where_nothing_was_judged_no_figure_is_called_missing():
    assert "Could not be computed" not in drawn((replace(JUDGED, vetoed=(), quality={}),))


def test_vetoes_are_told_in_the_words_of_the_columns():
    for sites in (True, False):
        page = drawn((JUDGED,), sites)
        assert "cycle error, new dark spots" in page and "prevalence" not in page


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 14)), min_size=1, max_size=40))
def test_pictures_are_of_different_patients_and_of_both_classes_where_there_are_both(rows):
    labels, patient = ([row[k] for row in rows] for k in (0, 1))
    chosen = _select_rows(cohort(labels, patient))
    shown = [patient[row] for row in chosen]
    ill = {who for label, who in rows if label}
    well = set(patient) - ill
    assert len(set(shown)) == len(shown) == min(PAIRS, len(set(patient)))
    assert [labels[row] for row in chosen] == sorted((labels[row] for row in chosen), reverse=True)
    assert all(labels[row] == (patient[row] in ill) for row in chosen)
    assert len(set(shown) & ill) >= min(len(ill), PAIRS // 2) and len(set(shown) & well) >= min(len(well), PAIRS // 2)
