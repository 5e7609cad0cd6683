"""The cases of a hospital's page in a real browser: which are shown, and a slider through a patient's slices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browsing import needs_browser, open_browser, open_page
from evaluation.cases import ALARM, MISSED, UNSURE, Case, Cases, View
from evaluation.pictures import contact_sheet
from evaluation.records import SitePage, SplitCount
from evaluation.report import render_site_page
from evaluation.tiles import Tile
from evaluation.wording import Words

pytestmark = needs_browser


ANSWERS = [MISSED] * 2 + [ALARM] + [UNSURE] * 2
SLICES, WORST = 5, 3
SHOWN = """return [...document.querySelectorAll("article.case")].map((case_) =>
  case_.checkVisibility() ? [...case_.querySelectorAll("[data-slice]")].filter((view) => view.checkVisibility())
    .map((view) => view.dataset.name) : null)"""


def make_views(number: int, start: int) -> list[View]:
    """Slices of a patient, from `start` on; the last case has one."""
    count = 1 if number == len(ANSWERS) - 1 else SLICES
    pictures = [contact_sheet([Tile(np.eye(8) * place, f"slice {place}")], title="") for place in range(count)]
    return [View(f"slice {start + place}", picture) for place, picture in enumerate(pictures)]


def make_page(groups: list[str], start: int = 10) -> str:
    cases = []
    for number, group in enumerate(groups):
        views = make_views(number, start)
        worst = min(WORST, len(views) - 1)
        cases.append(
            Case(f"patient{number}", "given", "answered", views, worst, len(views) + 7, "slices", "", group, group)
        )
    counts = {} if "" in groups else {MISSED: 4, ALARM: 1, UNSURE: 2}
    shown = Cases("r", "m", "by it", 9, cases, None, "review", counts, 0.75, "slice")
    split = (SplitCount("test", 9, 9, 3),)
    return render_site_page(
        SitePage("t", "west", "r", "2026-11-29", True, "", split, (), (), (), words=Words(), cases=shown)
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    path.write_text(make_page([*ANSWERS]), encoding="utf-8")
    browser.get_log("browser")
    open_page(browser, path.as_uri())
    return browser


def test_each_case_shows_its_worst_slice_and_keys_lead_through_them_in_their_order(page):
    from selenium.webdriver.common.keys import Keys

    first = [f"slice {10 + WORST}"]
    assert page.execute_script(SHOWN) == [*[first] * 4, ["slice 10"]]
    sliders = page.find_elements("css selector", "article.case [type=range]")
    assert [slider.get_attribute("aria-label") for slider in sliders] == [f"images of case {n}" for n in (1, 2, 3, 4)]
    assert sliders[0].get_attribute("aria-valuetext") == "slice 13, 4 of 5, the worst"
    page.execute_script("arguments[0].focus()", sliders[0])
    seen = []
    for key in (Keys.HOME, *[Keys.ARROW_RIGHT] * 5, Keys.ARROW_LEFT):
        page.switch_to.active_element.send_keys(key)
        seen += page.execute_script(SHOWN)[0]
        assert page.execute_script(SHOWN)[1] == first, "the others stay"
    assert seen == [f"slice {10 + place}" for place in (0, 1, 2, 3, 4, 4, 3)]
    assert sliders[0].get_attribute("aria-valuetext") == "slice 13, 4 of 5, the worst"
    assert page.get_log("browser") == []


def test_the_number_of_a_slice_is_said_once_where_all_slices_are_there(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(make_page([MISSED], start=1), encoding="utf-8")
    open_page(browser, path.as_uri())
    slider = browser.find_element("css selector", "article.case [type=range]")
    assert slider.get_attribute("aria-valuetext") == f"slice {1 + WORST} of {SLICES}, the worst"


def test_missed_cases_false_alarms_and_unsure_ones_are_shown_apart_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    def is_shown() -> list[bool]:
        return [views is not None for views in page.execute_script(SHOWN)]

    assert is_shown() == [True] * 5
    assert [h.text for h in page.find_elements("css selector", ".group > h3")] == [MISSED, ALARM, UNSURE]
    page.execute_script("arguments[0].focus()", page.find_element("css selector", ".pick [value=all]"))
    for wanted in (*([group == only for group in ANSWERS] for only in (MISSED, ALARM, UNSURE)), [True] * 5):
        page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        assert is_shown() == wanted
    words = page.find_element("css selector", ".pick").text.split("\n")
    assert [
        " ".join(words).count(text) for text in ("all 5", "missed: 2", "false alarms: 1", "right, but unsure: 2")
    ] == [1] * 4
    said = page.find_element("css selector", "section[aria-labelledby=cases]").text
    assert "missed: 4; false alarms: 1; right, but unsure: 2" in said and "Shown are 5 of these" in said
    assert "wrong" not in said.replace("which may be wrong itself", "").lower()


def test_where_nothing_is_right_or_wrong_there_is_one_list_and_no_choice(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(make_page([""] * 3), encoding="utf-8")
    open_page(browser, path.as_uri())
    assert [views is not None for views in browser.execute_script(SHOWN)] == [True] * 3
    assert not browser.find_elements("css selector", ".pick, .group > h3")
    assert "No limit says" in browser.find_element("css selector", "section[aria-labelledby=cases]").text


def test_without_scripts_the_worst_slice_is_shown_and_the_others_are_folded(browser, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(make_page([*ANSWERS]), encoding="utf-8")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(browser, path.as_uri())
        case = browser.find_element("css selector", "article.case")
        views = case.find_elements("css selector", "[data-slice]")
        assert [view.is_displayed() for view in views] == [True] + [False] * 4
        fold = case.find_element("css selector", "summary")
        assert fold.text == "4 other slices of 12" and not browser.find_elements("css selector", "[type=range]")
        fold.click()
        names = [view.get_attribute("data-name") for view in views if view.is_displayed()]
        assert names == ["slice 13", "slice 10", "slice 11", "slice 12", "slice 14"]
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_print_has_of_each_case_the_slice_that_is_shown(page):
    from selenium.webdriver.common.keys import Keys

    slider = page.find_element("css selector", "article.case [type=range]")
    page.execute_script("arguments[0].focus()", slider)
    page.switch_to.active_element.send_keys(Keys.HOME)
    page.execute_script("document.querySelector('.pick [value=g2]').checked = true")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert page.execute_script(SHOWN) == [["slice 10"], *[["slice 13"]] * 3, ["slice 10"]], "all cases"
        assert not any(part.is_displayed() for part in page.find_elements("css selector", ".slide, .pick"))
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_a_print_has_two_cases_beside_each_other_large_enough_to_be_read(page):
    page.set_window_size(720, 1000)  # a sheet of paper
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        places = page.execute_script(
            "return [...document.querySelectorAll('article.case')].map((each) => [each.getBoundingClientRect().top, "
            "each.querySelector('[data-slice]:not([hidden]) svg').getBoundingClientRect().width])"
        )
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        page.set_window_size(1280, 1000)
    assert places[0][0] == places[1][0] < places[2][0] and min(width for _, width in places) > 140


def test_every_slice_is_on_the_page_once(tmp_path):
    text = make_page([*ANSWERS])
    names = re.findall(r'data-name="(slice \d+)"', text)
    assert len(names) == 4 * SLICES + 1 and text.count("<svg viewBox") == len(names)
