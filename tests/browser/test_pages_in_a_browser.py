"""Pages in a real browser: what a reader does with tables, and that nothing else runs and nothing is fetched."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browsing import needs_browser, open_browser, open_page
from evaluation import figures, records, report, rows, scoring
from evaluation.agreement import calibration_curves
from evaluation.attacks import MembershipRow
from evaluation.histograms import count_scores
from evaluation.leaving import Left
from evaluation.metrics import AUC
from evaluation.run_list import RunLine, flatten_settings, render_run_list
from evaluation.wording import READABLE, Words, format_duration, format_number, format_signed, format_size, format_whole
from privacy.release.meaning import format_loss

pytestmark = needs_browser

THIN = "\u202f"  # between thousands
EVIL = "<img src=x onerror=document.title='run'>"
SUM = '=SUM(1,"2")'
STRENGTHS = {f"method {k}": k / 3 for k in range(8)} | {SUM: 3.0, EVIL: 0.2}
SITES = ("north", "south")


HIDDEN = """return [...document.querySelectorAll('tr[data-method]')]
.filter((row) => row.dataset.method === arguments[0]).map((row) => getComputedStyle(row).display === 'none')"""


COUNTED = """return [...document.querySelectorAll('table')]
.map((table) => [table.tBodies[0].rows.length, table.tBodies.length > 1 || table.querySelector('.run') !== null,
table.querySelector('.sort') !== null])"""


POINTED = """const points = [];
for (const mark of document.querySelectorAll('.panel [data-points]')) {
  const panel = mark.closest('svg');
  for (const [x, y, text] of JSON.parse(mark.dataset.points)) {
    panel.scrollIntoView({block: 'center'});
    const place = new DOMPoint(x, y).matrixTransform(panel.getScreenCTM());
    const at = {clientX: place.x, clientY: place.y, bubbles: true};
    panel.dispatchEvent(new PointerEvent('pointermove', at));
    const box = document.querySelector('.tip'), edge = box.getBoundingClientRect();
    const inside = edge.left >= 0 && edge.right <= innerWidth && edge.top >= 0 && edge.bottom <= innerHeight;
    points.push([mark.dataset.lead + text, box.hidden, box.textContent, inside, mark.dataset.method]);
    panel.dispatchEvent(new PointerEvent('pointerleave', at));
    if (!box.hidden) points.push(['the box stays', true, '', false, '']);
  }
}
return points"""

SHOWN = """return [...document.querySelectorAll('svg [data-method]')]
.map((mark) => [mark.dataset.method, getComputedStyle(mark).display !== 'none'])"""


def draw_pictures(scores: tuple[rows.ScoreRow, ...], tables: Any) -> tuple[Any, ...]:
    """A figure of each kind, with one site more whose name would do harm."""
    methods, sites = list(STRENGTHS), (*SITES, EVIL)
    counts = {site: {m: tables[m]["north", "north"].scores for m in methods} for site in sites}
    curves = {s: {m: figures.Curve((1, 2, 5), (0.9, 0.5 + k / 90, 0.4)) for k, m in enumerate(methods)} for s in sites}
    return (
        figures.draw_score_dots(scores, "AUC"),
        figures.draw_gain_bars(scores, "AUC", "method 0"),
        figures.draw_roc_curves({s: {m: c[0, 0] for m, c in by.items()} for s, by in counts.items()}, order=methods),
        calibration_curves({s: {m: c[:, 0] for m, c in by.items()} for s, by in counts.items()}, order=methods),
        figures.draw_learning_curves(curves, order=methods),
    )


def build_page() -> records.RunPage:
    """Ten methods at two hospitals, with names that would do harm if they were not text."""
    rng = np.random.default_rng(0)
    labels, tables = {site: rng.integers(0, 2, 60) for site in SITES}, {}
    for method, strength in STRENGTHS.items():
        cells = {}
        for home in SITES:
            for site in SITES:
                y = labels[site]
                p = 1 / (1 + np.exp(-strength * (y - 0.5) + rng.normal(0, 1, 60)))
                patients = np.arange(60) // 2
                cells[home, site] = count_scores(y, np.c_[1 - p, p], patients, copies=10, seed=0, site=site)
        tables[method] = cells
    counts = tuple(records.SiteCounts(site, (records.SplitCount("test", 30, 60, 30),), {}) for site in SITES)
    scores = scoring.score_rows(tables, reference="method 0")
    return records.RunPage(
        title="A run", run="demo", date="2026-11-29", what="ten methods", simulation=True, reference="method 0",
        sites=counts, scores=scores,
        gains=scoring.gain_rows(tables, reference="method 0"), pairs=scoring.pair_rows(tables, AUC),
        methods=tuple(
            records.MethodCost(m, 10 ** (9 - k), 1000 * k, 0, 5 + k) for k, m in enumerate(STRENGTHS)
        ),
        left=(Left("north", "train", 12, 1_234_567), Left("south", "train", 2, 999, "2.10 at δ = 1e-5")),
        missing=(), stages=(records.StageState("train", "run", 75.0, ""),), settings="name: demo",
        commands=(), pictures=draw_pictures(scores, tables),
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


@pytest.fixture(scope="module")
def text() -> str:
    return report.render_coordinator_page(build_page())


@pytest.fixture
def page(browser: Any, text: str, tmp_path: Path) -> Any:
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what came before
    open_page(browser, path.as_uri())
    return browser


def find_table(page: Any, label: str) -> Any:
    return page.find_element("css selector", f'[aria-label="{label}"] table')


def read_column(table: Any, column: int = 0) -> list[str]:
    """The first line of a column's cells, in the rows that are shown."""
    rows = [row for row in table.find_elements("css selector", "tbody tr") if row.is_displayed()]
    return [row.find_elements("css selector", "th, td")[column].text.split("\n")[0] for row in rows]


def click(page: Any, element: Any) -> None:
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()


def test_a_page_runs_no_other_script_fetches_nothing_and_says_no_error(page, text):
    assert page.title.startswith("A run"), "names are text"
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    requests = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url.split(":")[0] for url in requests} <= {"file", "data"} and sum("file:" in url for url in requests) == 1
    assert page.get_log("browser") == []
    page.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", EVIL)
    image = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA="
    page.execute_script("document.body.insertAdjacentHTML('beforeend', arguments[0])", f"<img src={image}>")
    page.execute_script("const s = document.createElement('script'); s.textContent = 'document.title = 1'; "
                        "document.body.append(s)")  # fmt: skip
    refusals = " ".join(entry["message"] for entry in page.get_log("browser"))
    assert "script-src" in refusals and page.title.startswith("A run"), "what is put into a page does not run"


@pytest.mark.parametrize(("column", "numeric"), [(0, False), (1, True)])
def test_a_column_sorts_upwards_downwards_and_as_it_came(page, column, numeric):
    table = find_table(page, "Size of methods")
    before = read_column(table, column)
    button = table.find_elements("css selector", "thead .sort")[column]
    shown = []
    for state in ("ascending", "descending", "none"):
        click(page, button)
        head = table.find_elements("css selector", "thead th")[column]
        assert head.get_attribute("aria-sort") == state
        shown.append(read_column(table, column))

    def number(text: str) -> float:
        return float(text.replace(THIN, ""))

    ascending = sorted(before, key=number) if numeric else shown[0]
    assert shown[0] == ascending and shown[2] == before
    assert shown[1] == sorted(before, key=number, reverse=True) if numeric else sorted(shown[1]) == sorted(before)
    assert shown[0] != shown[1]


def test_a_heading_shows_before_a_click_that_its_column_can_be_sorted_and_a_print_does_not(page):
    table = find_table(page, "Size of methods")
    signs = """return [...arguments[0].querySelectorAll('thead th')].map((head) => {
      const button = head.querySelector('.sort');
      const signs = ['::before', '::after'].map((place) => getComputedStyle(button, place).content);
      return [signs.filter((sign) => sign !== 'none').join('').replaceAll('"', '').split(' ')[0], head.ariaSort];
    })"""
    assert {tuple(each) for each in page.execute_script(signs, table)} == {("↕", None)}
    click(page, table.find_elements("css selector", "thead .sort")[1])
    assert page.execute_script(signs, table)[:2] == [["↕", None], ["▲", "ascending"]]
    assert "↕" not in page.execute_script("return writeCsv(arguments[0])", table)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert {sign for sign, _ in page.execute_script(signs, table)} == {""}
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_every_way_in_which_pages_write_numbers_sorts_by_its_size(page):
    numbers = [-1234.5, -0.5, 0, 0.25, 12, 1000, 98765]
    bytes_, seconds = [0, 999, 1000, 123_456, 1_234_567, 98_765_432, 5_000_000_000], [0.2, 59.0, 61.0, 3000.0, 8000.0]
    for write, values in (
        (lambda v: format_signed(v), numbers),
        (lambda v: format_whole(round(v)), [0, 1000, 2_000_000]),
        (format_number, numbers),
        (format_size, bytes_),
        (format_duration, seconds),
        (format_loss, [0.1, 2.0, 30.0, math.inf]),
    ):
        read = [page.execute_script("return readNumber(arguments[0])", write(value)) for value in values]
        read = [math.inf if value is None else value for value in read]  # JSON has no infinity
        assert read == sorted(read) and len(set(read)) == len(values), [write(value) for value in values]
    for text in ("gap", "2026-11-29 10:39 UTC", "3d_volumes", "2x", "12-b"):
        assert page.execute_script("return Number.isNaN(readNumber(arguments[0]))", text), text
    for text, cell in (("-2+3+cmd|' /C calc'!A0", "'-2+3+cmd|' /C calc'!A0"), ("+.5*HYPERLINK(1)", "'+.5*HYPERLINK(1)"),
                       ("-0.5", "-0.5"), ("+1.2e-3", "+1.2e-3"), ("95 %", "95 %"), ("@A1", "'@A1")):  # fmt: skip
        assert page.execute_script("return guard(arguments[0])", text) == cell


def test_scores_sort_by_their_value_and_not_by_their_interval(page):
    table = find_table(page, "How good, by method")
    click(page, table.find_elements("css selector", "thead .sort")[1])
    values = [float(text.split()[0]) for text in read_column(table, 1)]
    assert values == sorted(values) and len(set(values)) > 3


def test_rows_are_filtered_and_the_csv_holds_what_is_shown(page):
    table = find_table(page, "Size of methods")
    tools = page.execute_script("return arguments[0].closest('.scroll').previousElementSibling", table)
    tools.find_element("css selector", "input").send_keys("METHOD 3")
    assert read_column(table) == ["method 3"]
    text = page.execute_script("return writeCsv(arguments[0])", table)
    head, row = csv.reader(io.StringIO(text))
    assert head[:2] == ["method", "parameters"] and row[:2] == ["method 3", "1000000"]
    tools.find_element("css selector", "input").send_keys("\b" * 8)
    rows = [*csv.reader(io.StringIO(page.execute_script("return writeCsv(arguments[0])", table)))]
    assert [row[0] for row in rows[1:]] == [f"'{m}" if m == SUM else m for m in STRENGTHS], "a formula stays text"


def test_a_method_that_is_left_out_is_gone_from_all_tables_and_comes_back(page):
    labels = ("How good, by method", "Size of methods")
    tick = next(
        box for box in page.find_elements("css selector", ".methods input") if box.get_attribute("value") == EVIL
    )
    for _ in range(2):
        shown = {label: EVIL in read_column(find_table(page, label)) for label in labels}
        hidden = page.execute_script(HIDDEN, EVIL)
        assert len({*shown.values()}) == len({*hidden}) == 1 and len(hidden) > 3
        assert all(shown.values()) is not hidden[0]
        csv_text = page.execute_script(
            "return writeCsv(arguments[0])", find_table(page, "any two methods, private mean")
        )
        rows = [*csv.reader(io.StringIO(csv_text))]
        assert all(len(row) == len(rows) for row in rows), "it is gone from rows and columns"
        assert len(rows) - 1 == len(STRENGTHS) - hidden[0] and (EVIL in rows[0]) is not hidden[0]
        click(page, tick)


def add_classes_and_attacks(page: records.RunPage) -> records.RunPage:
    """The page with scores of each of three classes, and membership attacks."""
    classes = ("benign", "malign", "other")
    scores = tuple(
        dataclasses.replace(row, measure=f"AUC {name}")
        for row in page.scores
        if row.measure == "AUC"
        for name in classes
    )
    attacks = tuple(MembershipRow(site, m, 0.5, 0.4, 0.6, 1.0, 20, 20) for m in STRENGTHS for site in SITES)
    return dataclasses.replace(page, classes=classes, scores=page.scores + scores, membership=attacks)


@pytest.mark.parametrize("many", [False, True])
def test_no_table_keeps_a_row_or_a_column_of_a_method_that_is_left_out(browser, tmp_path: Path, many: bool):
    """Methods are rows in some tables, and columns in those by class, by hospital of many, and of any two."""
    changed = add_classes_and_attacks(build_page())
    if many:
        more = [f"site {k}" for k in range(READABLE)]
        scores = [dataclasses.replace(r, sites=(s,)) for s in more for r in changed.scores if r.sites == ("north",)]
        sites = tuple(dataclasses.replace(changed.sites[0], site=site) for site in more)
        changed = dataclasses.replace(changed, scores=changed.scores + tuple(scores), sites=changed.sites + sites)
    path = tmp_path / "report.html"
    path.write_text(report.render_coordinator_page(changed), encoding="utf-8")
    open_page(browser, path.as_uri())
    shown = """for (const fold of document.querySelectorAll('details')) fold.open = true;
    return [...document.querySelectorAll('table th')].filter((cell) => cell.checkVisibility())
    .filter((cell) => cell.innerText.split('\\n')[0].trim() === arguments[0])
    .map((cell) => cell.closest('.scroll').ariaLabel)"""
    before = browser.execute_script(shown, "method 3")
    assert {"AUC by class", "Membership inference", "any two methods, private mean"} <= {*before}
    click(browser, browser.find_element("css selector", ".methods input[value='method 3']"))
    assert browser.execute_script(shown, "method 3") == []
    uneven = """return [...document.querySelectorAll('table')].filter((table) => {
      const wide = (row) => [...row.cells].filter(isShown).reduce((sum, cell) => sum + cell.colSpan, 0);
      return new Set([...table.querySelectorAll('thead tr:last-child, tbody tr')].map(wide)).size > 1;
    }).map((table) => table.closest('.scroll').ariaLabel)"""
    assert browser.execute_script(uneven) == []


def test_of_two_runs_that_are_ticked_only_their_own_differences_are_shown(browser, tmp_path: Path):
    settings = {"first": {"lr": 1, "rounds": 5}, "second": {"lr": 2, "rounds": 5}, EVIL: {"lr": 1, "rounds": 9}}
    lines = [
        RunLine(name=n, state="done", finished=1.0, seconds=1.0, size=1, settings=flatten_settings(own))
        for n, own in settings.items()
    ]
    path = tmp_path / "index.html"
    path.write_text(render_run_list(lines, "runs", "2026-11-29"), encoding="utf-8")
    browser.get_log("browser")
    open_page(browser, path.as_uri())
    table, ticks = find_table(browser, "Settings that differ"), browser.find_elements("css selector", ".methods input")
    assert [tick.find_element("xpath", "..").text for tick in ticks] == [*settings]
    assert read_column(table) == ["lr", "rounds"]
    for place, paths in ((2, ["lr"]), (1, ["rounds"]), (0, ["lr", "rounds"])):
        click(browser, ticks[place])
        assert read_column(table) == paths
        rows = [*csv.reader(io.StringIO(browser.execute_script("return writeCsv(arguments[0])", table)))]
        assert rows[0] == ["setting", *(name for k, name in enumerate(settings) if k != place)]
        click(browser, ticks[place])
    assert read_column(table) == ["lr", "rounds"] and browser.get_log("browser") == []


def test_tools_are_reached_by_keyboard_and_are_not_printed(page):
    from selenium.webdriver.common.keys import Keys

    table = find_table(page, "Size of methods")
    button = table.find_element("css selector", "thead .sort")
    page.execute_script("arguments[0].focus()", button)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert table.find_element("css selector", "thead th").get_attribute("aria-sort") == "ascending"
    for name in page.find_elements("css selector", ".tools button, .tools input"):
        assert name.get_attribute("aria-label")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not any(part.is_displayed() for part in page.find_elements("css selector", ".tools, .methods"))
        page.execute_script("arguments[0].rows[1].classList.add('unmatched')", table)
        assert table.find_elements("css selector", "tr")[1].is_displayed(), "a print is whole"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("width", [480, 1280])
def test_every_point_of_a_figure_says_what_it_is_in_a_box_inside_the_window(page, width):
    page.set_window_size(width, 900)
    try:
        points = page.execute_script(POINTED)
    finally:
        page.set_window_size(1280, 1000)
    assert len(points) > 500 and {method for *_, method in points} == set(STRENGTHS)
    assert all(is_inside and not is_hidden for _, is_hidden, _, is_inside, _ in points)
    texts = {text for text, *_ in points}
    assert {told for _, _, told, *_ in points} <= texts, "names are text"
    exact = sum(text == told for text, _, told, *_ in points)
    assert exact > len(points) / 2, "other points lie on the same place"
    assert page.title.startswith("A run") and not page.find_elements("css selector", ".tip *")
    said = " ".join(texts)
    assert f"{EVIL}, {EVIL}" in said and " patients" in said and " to " in said and "round 5: 0.400" in said


def test_a_method_that_is_left_out_is_gone_from_all_figures_and_its_name_in_a_key_brings_it_back(page):
    tick = next(
        box for box in page.find_elements("css selector", ".methods input") if box.get_attribute("value") == EVIL
    )
    assert all(is_shown for _, is_shown in page.execute_script(SHOWN))
    click(page, tick)
    shown = page.execute_script(SHOWN)
    assert {is_shown for method, is_shown in shown if method == EVIL} == {False}
    assert all(is_shown for method, is_shown in shown if method != EVIL)
    assert all(f", {EVIL}" not in told for _, _, told, *_ in page.execute_script(POINTED))
    (entry, *_) = [e for e in page.find_elements("css selector", ".key-list li") if e.get_attribute("data-key") == EVIL]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert all(is_shown for _, is_shown in page.execute_script(SHOWN)), "a print is whole"
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    click(page, entry)
    assert tick.is_selected() and all(is_shown for _, is_shown in page.execute_script(SHOWN))


@pytest.mark.parametrize("width", [480, 1280])
def test_letters_of_figures_are_large_enough_to_be_read_and_no_title_is_cut_off(page, width):
    page.set_window_size(width, 900)
    try:
        heights, cut = page.execute_script(
            """const panels = [...document.querySelectorAll('.panel')];
            const letters = panels.flatMap((p) => [...p.querySelectorAll('text')].map((t) =>
              parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b)));
            const cut = panels.flatMap((p) => [...p.querySelectorAll('text, p')].filter((t) => {
              const [own, all] = [t.getBoundingClientRect(), p.getBoundingClientRect()];
              return own.left < all.left - 2 || own.right > all.right + 2;
            }).map((t) => t.textContent));
            return [letters, cut]"""
        )
    finally:
        page.set_window_size(1280, 1000)
    assert min(heights) >= 8 and len(heights) > 100 and cut == []


def test_of_nine_methods_any_two_are_seen_at_once_and_their_intervals_do_not_wrap_in_print(browser, tmp_path: Path):
    names = {method: f"method_{k}" for k, method in enumerate(STRENGTHS)}
    page = dataclasses.replace(build_page(), pictures=(), reference="method_0")
    pairs = [
        dataclasses.replace(pair, method=names[pair.method], other=names[pair.other])
        for pair in page.pairs
        if EVIL not in (pair.method, pair.other)
    ]
    scores = [dataclasses.replace(row, method=names[row.method]) for row in page.scores if row.method != EVIL]
    changed = dataclasses.replace(page, pairs=tuple(pairs), scores=tuple(scores))
    (tmp_path / "pairs.html").write_text(report.render_coordinator_page(changed), encoding="utf-8")
    open_page(browser, (tmp_path / "pairs.html").as_uri())
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
    box = browser.find_element("css selector", '[aria-label="any two methods, private mean"]')
    assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", box)
    lines = """return [...document.querySelectorAll('table.lead td.num .sub')]
    .filter((line) => line.offsetHeight > 1.9 * parseFloat(getComputedStyle(line).fontSize)).length"""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.set_window_size(720, 900)
    try:
        assert browser.execute_script(lines) == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.set_window_size(1280, 1000)


@pytest.mark.parametrize("width", [480, 1280])
def test_the_page_is_no_wider_than_the_window(page, width):
    page.set_window_size(width, 900)
    try:
        assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        page.set_window_size(1280, 1000)


def test_long_words_below_a_columns_name_wrap_so_that_its_numbers_are_seen(browser, tmp_path):
    """A half of a page has no room for what four bands of a number are called, in one line."""
    names = tuple(f"{low} to {low + 5} cm2" for low in (0, 5, 10, 15))
    split = (records.SplitCount("test", 5, 20, 3, (0, 4, 15, 1)),)
    site = records.SitePage("t", "west", "r", "2026-11-29", True, "", split, (), (), (), words=Words(), classes=names)
    (tmp_path / "bands.html").write_text(report.render_site_page(site), encoding="utf-8")
    browser.set_window_size(1280, 1000)
    open_page(browser, (tmp_path / "bands.html").as_uri())
    box = browser.find_element("css selector", "[aria-label=Patients]")
    assert "15 to 20 cm2" in box.text
    assert browser.execute_script("return arguments[0].scrollWidth", box) <= box.size["width"]


def test_pages_of_a_real_run_say_no_error_and_each_table_can_be_sorted(browser, finished_run):
    from pipelines_settings import BASE

    run = finished_run({**BASE, "name": "browsed"}) / "runs" / "browsed"
    for path in (run / "report.html", run / "sites" / "a" / "report.html"):
        browser.get_log("browser")
        open_page(browser, path.as_uri())
        assert browser.get_log("browser") == []
        browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = true")
        rows = browser.execute_script(COUNTED)
        assert [has_buttons for *_, has_buttons in rows] == [number > 1 and not grouped for number, grouped, _ in rows]
        assert sum(has_buttons for *_, has_buttons in rows) > 2
        for button in browser.find_elements("css selector", ".sort"):
            browser.execute_script("arguments[0].click()", button)
        assert browser.get_log("browser") == []


def test_a_browser_whose_language_writes_commas_copies_them_for_a_spreadsheet(browser, text, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(text, encoding="utf-8")
    browser.execute_cdp_cmd("Emulation.setLocaleOverride", {"locale": "de-DE"})
    try:
        open_page(browser, path.as_uri())
        assert browser.find_elements("css selector", "[aria-label^='copy with 0,5: ']")
        for table in browser.find_elements("css selector", "table"):
            plain = browser.execute_script("return writeCsv(arguments[0])", table)
            commas = browser.execute_script("return writeWithCommas(arguments[0])", table)
            rows_of = [*csv.reader(io.StringIO(plain))], [*csv.reader(io.StringIO(commas), delimiter="\t")]
            for row, german in zip(*rows_of, strict=True):
                for cell, other in zip(row, german, strict=True):
                    assert re.sub(r"(?<=\d),(?=\d)", ".", other) == cell, "commas in the place of points"
                    assert not re.fullmatch(r"[+-]?\d+\.\d+", cell) or other == cell.replace(".", ",")
    finally:
        browser.execute_cdp_cmd("Emulation.setLocaleOverride", {})


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("0.877", "0,877"), ("-0.5", "-0,5"), ("0.5 to +1.25 (95 %)", "0,5 to +1,25 (95 %)"), ("1.5 MB", "1,5 MB"),
        ("1.2e-05", "1,2e-05"),
        ("version 1.2.3", "version 1.2.3"), ("torch2.1", "torch2.1"), ("0.877.", "0,877."), ("a.5, 3.", "a.5, 3."),
        ("0.1, 0.2", "0,1, 0,2"), (SUM, f"'{SUM}"),
    ],
)  # fmt: skip
def test_a_number_gets_a_comma_and_a_version_keeps_its_points(page, words, written):
    script = "return guard(arguments[0]).replace(DECIMAL, '$1,$2')"
    assert page.execute_script(script, words) == written


def test_a_browser_whose_language_writes_points_has_one_way_to_copy(page):
    assert not page.find_elements("css selector", "[aria-label^='copy with']")
