"""Pages of runs that outline: what stands there, what does not, and that pictures show both masks."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from outlined import fill_path, read_paths

from evaluation import pictures, records, report
from evaluation.floors import add_floor
from evaluation.masks import score_masks
from evaluation.overlap import list_measures, sum_over_patients
from evaluation.rows import MEAN_MASK, scores_csv
from evaluation.scoring import gain_rows, score_rows
from evaluation.study import StudyCase, StudyPage, StudyRow, StudyRun, summary_csv, table_csv
from evaluation.study_page import render_study_page
from evaluation.wording import Words

STRUCTURES = ("disc", "cup")
SITES = {"a": 7, "b": 3}


def told(patients, miss, blind=0):
    truth, found = np.zeros((2, patients, 12, 12), np.int64)
    truth[:, 1:10, 1:10], truth[:, 4:7, 4:7] = 1, 2
    found[:, 1 + miss : 10, 1:10], found[:, 4:7, 4:7] = 1, 2
    found[:blind] = 0
    return sum_over_patients(
        score_masks(truth, found, np.arange(patients), spacing_mm=(1, 1), classes=3), copies=20, seed=0, site="s"
    )


@pytest.fixture(scope="module")
def scored():
    tables = {
        "local": {(s, s): told(n, 3) for s, n in SITES.items()},
        "fedavg": {(s, s): told(n, 1, blind=1) for s, n in SITES.items()},
    }
    low = {s: told(n, 5) for s, n in SITES.items()}
    rows = score_rows(add_floor(tables, low), reference="local", measures=list_measures(STRUCTURES))
    return rows, gain_rows(tables, reference="local", measures=list_measures(STRUCTURES))


def page(scored, **more):
    split = records.SplitCount("test", 7, 7, 0)
    run = records.RunPage(
        title="Outlines", run="seg", date="22 November 2026", what="2 methods", simulation=True, reference="local",
        sites=tuple(records.SiteCounts(site, (split,), {}) for site in SITES), scores=scored[0], gains=scored[1],
        methods=(), left=(), missing=(), stages=(), settings="{}", commands=(),
        words=Words("picture", "pictures", "picture", "pictures", length="pixels"), structures=STRUCTURES,
    )  # fmt: skip
    return report.render_coordinator_page(replace(run, **more))


def words(text):
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)).split())


def test_the_coordinators_page_tells_dice_and_distances_with_their_floor(scored):
    text = page(scored)
    lead = text[text.index('class="lead"') : text.index("</table>")]
    assert re.findall(r'class="num">(Dice|HD95|Dice cup)</th>', lead) == ["Dice", "HD95"]
    for name in ("HD95", "Dice disc", "HD95 cup"):
        assert f"<h3>{name}</h3>" in text
    said = words(text)
    assert text.count(f'<th scope="row">{MEAN_MASK}</th>') == 1 + 6
    assert "outlines in pixels" in said and "means over disc, cup" in said and "mean mask : one mask" in said
    assert "6 of 7 patients" in said  # fedavg found nothing in one
    assert "b (3 patients with the rarest of the structures)" in said


def test_nothing_is_positive_or_negative_where_there_are_no_labels(scored):
    own = tuple(row for row in scored[0] if row.protocol == "private" and row.sites == ("a",))
    site = records.SitePage(
        title="Outlines", site="a", run="seg", date="22 November 2026", simulation=False, reference="local",
        splits=(records.SplitCount("test", 7, 7, 0),), scores=own, left=(), quarantine=(), structures=STRUCTURES,
    )  # fmt: skip
    for text in (page(scored), report.render_site_page(site)):
        said = words(text)
        assert "positive " not in said.replace("a gain is positive", "") and "negative" not in said
        assert "ROC" not in said and "AUC" not in said
    assert "with the structure" in words(report.render_site_page(site)) and MEAN_MASK in words(
        report.render_site_page(site)
    )
    assert "with the structure" not in words(report.render_site_page(replace(site, structures=(), scores=())))


def test_the_table_of_scores_says_for_how_many_patients_a_measure_is_known(scored):
    found = {
        (r["method"], r["measure"], r["sites"], r["protocol"]): r
        for r in csv.DictReader(io.StringIO(scores_csv(scored[0])))
    }
    assert found["fedavg", "HD95", "a", "private"]["defined"] == "6"
    assert found["local", "HD95", "a", "private"]["defined"] == "7"


def test_a_studys_tables_and_page_have_both_measures_and_the_floor(scored):
    rows = tuple(
        StudyRow(
            "one", seed, r.method, r.measure, r.protocol, r.sites, r.value + seed / 100, r.low, r.high, r.assessable,
            r.patients, r.positive_patients, r.gain, r.gain_low, r.gain_high,
        )
        for seed in (0, 1)
        for r in scored[0]
    )  # fmt: skip
    case = StudyCase(
        "one", "", 0.5, ("a", "b"), ("local", "fedavg"), "local", tuple(StudyRun(f"r{s}", s, "done", "p") for s in "01")
    )
    text = render_study_page(
        StudyPage("S", "s", "", "base", "", "Seeds.", (case,), rows, (), "{}", measures=("Dice", "HD95"), masks=True)
    )
    said = words(text)
    assert "mean mask" in said and "7 with the structure" in said and " positive" not in said.replace("is positive", "")
    for measure in ("Dice", "HD95"):
        assert f"Gain in {measure} over local by hospital" in text
    summary = {(r["method"], r["measure"], r["column"]): r for r in csv.DictReader(io.StringIO(summary_csv(rows)))}
    assert float(summary["fedavg", "HD95", "a"]["gain"]) > 0 and ("mean mask", "Dice", "overall") in summary
    assert "Dice cup" in table_csv(rows)


def test_both_masks_are_drawn_where_they_are_and_the_key_tells_them_apart():
    grey, given, found = np.zeros((40, 40)), *np.zeros((2, 40, 40), int)
    given[5:15, 5:35], found[25:35, 5:35] = 1, 1
    tile = pictures.Tile(grey, "p", given_mask=given, predicted_mask=found)
    sheet = pictures.contact_sheet([tile], title="t", window=(0, 1))
    for mask, colour in ((given, pictures.GIVEN_COLOUR), (found, pictures.FOUND_COLOUR)):
        (path,) = read_paths(sheet.html, colour)
        assert (fill_path(path, mask.shape) == mask).all()
    assert "given mask" in sheet.html and "the model&#x27;s mask" in sheet.html.replace("'", "&#x27;")
    assert "given mask outlined, the model's mask outlined" in sheet.html.replace("&#x27;", "'")
    less = pictures.contact_sheet([replace(tile, predicted_mask=np.zeros((40, 40), int))], title="t", window=(0, 1))
    assert "the model found nothing" in less.html and not read_paths(less.html, pictures.FOUND_COLOUR)


def test_a_mask_that_fills_the_image_is_still_outlined():
    tile = pictures.Tile(np.zeros((30, 30)), "p", given_mask=np.ones((30, 30), int))
    (path,) = read_paths(pictures.contact_sheet([tile], title="t", window=(0, 1)).html, pictures.GIVEN_COLOUR)
    assert fill_path(path, (30, 30)).all()


def test_masks_of_another_shape_are_named():
    tile = pictures.Tile(np.zeros((5, 5)), "p", given_mask=np.zeros((4, 5), int), predicted_mask=np.zeros((5, 4), int))
    with pytest.raises(ValueError, match=r"given_mask 0 has shape \(4, 5\).*predicted_mask 0 has shape \(5, 4\)"):
        pictures.contact_sheet([tile], title="t")


@pytest.mark.parametrize(
    ("window", "text"),
    [((1.35e-17, 2.808), "0 to 2.808"), ((-1.264, 3.193), "−1.264 to 3.193"), ((0.0, 1e-9), "0 to 1e−09")],
)
def test_a_grey_window_is_written_without_what_resampling_leaves_of_zero(window, text):
    tile = pictures.Tile(np.zeros((8, 8), np.float32), "t")
    assert pictures.contact_sheet([tile], title="t", window=window).caption == f"Grey window {text}."
