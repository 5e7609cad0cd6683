"""Every kind of page for people who read by ear, by keyboard, in the dark, on a telephone or on paper.

The rules are axe-core's, which is not part of this repository: `CONSILIUM_AXE` names its `axe.min.js` (see
CONTRIBUTING.md). Without it the tests of its rules are skipped; the others run.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from small_run import PRIVATE

from browsing import needs_browser, open_browser, open_page
from made_up_pages import make_pages
from pipelines.reviews.server import ReviewServer, open_review
from pipelines_settings import BASE

pytestmark = needs_browser
REAL = ("coordinator", "site", "private", "review")
MADE_UP = ("study", "benchmark", "nights", "sheet", "harmonize", "outside", "runs", "progress", "at work")
KINDS = (*REAL, *MADE_UP)
FOLLOWED = ("at work",)
"""Pages that read themselves again while a run works: axe forbids every `meta refresh`. What they say stays at its
place, and they stop by themselves.
"""
RUN = """const done = arguments[arguments.length - 1];
const describe = (rule) => `${rule.id}: ${rule.nodes.map((node) => node.html.slice(0, 120)).join(" ")}`;
axe.run(document, {rules: {"meta-refresh": {enabled: arguments[0]}}}).then(
  (result) => done(result.violations.map(describe)), (error) => done([String(error)]));"""
OPEN = "for (const fold of document.querySelectorAll('details')) fold.open = true"


def find_axe() -> Path | None:
    """The file of axe-core: that which the environment names, or that of an installed axe-playwright-python."""
    if named := os.environ.get("CONSILIUM_AXE"):
        return Path(named)
    spec = importlib.util.find_spec("axe_playwright_python")
    places = [] if spec is None else [Path(place) / "axe.min.js" for place in spec.submodule_search_locations or ()]
    return next((place for place in places if place.is_file()), None)


AXE = find_axe()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


@pytest.fixture(scope="module")
def addresses(finished_run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Kind -> address of a page."""
    folder = tmp_path_factory.mktemp("pages")
    run = finished_run({**BASE, "name": "reviewed"}, figures=True) / "runs" / "reviewed"
    private = finished_run({**PRIVATE, "name": "private"}, figures=True) / "runs" / "private"
    paths = {
        "coordinator": run / "report.html",
        "site": run / "sites" / "a" / "report.html",
        "private": private / "report.html",
    }
    for kind, text in make_pages(folder).items():
        paths[kind] = folder / f"{kind}.html"
        paths[kind].write_text(text, encoding="utf-8")
    (folder / "a").mkdir()
    (folder / "a" / "report.html").write_bytes(paths["site"].read_bytes())
    server = ReviewServer(open_review(folder / "a", "A. Berg"), 0)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield {kind: path.as_uri() for kind, path in paths.items()} | {"review": server.url}
    server.shutdown()
    server.server_close()


def emulate(browser: Any, *, media: str = "", scheme: str = "light") -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


@pytest.mark.skipif(AXE is None, reason="needs axe-core: set CONSILIUM_AXE to its axe.min.js")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(browser, addresses, kind, scheme):
    assert AXE is not None
    emulate(browser, scheme=scheme)
    open_page(browser, addresses[kind])
    browser.execute_script(OPEN)
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    assert browser.execute_async_script(RUN, kind not in FOLLOWED) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_names_its_language_and_itself_and_has_one_main_part_and_headings_in_order(browser, addresses, kind):
    emulate(browser)
    open_page(browser, addresses[kind])
    assert browser.title and browser.find_element("tag name", "html").get_attribute("lang") == "en"
    assert len(browser.find_elements("tag name", "main")) == 1 == len(browser.find_elements("tag name", "h1"))
    script = "return [...document.querySelectorAll('h1, h2, h3, h4')].map((head) => Number(head.tagName[1]))"
    levels = browser.execute_script(script)
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    unnamed = "return [...document.querySelectorAll('th:not([scope]), thead th:empty, img:not([alt])')].length"
    assert browser.execute_script(unnamed) == 0


WIDER = """return [...document.querySelectorAll("body *")].filter((part) => getComputedStyle(part).position !== "fixed"
  && !part.parentElement.closest(".scroll, pre, .sheet.rows, .methods")
  && part.getBoundingClientRect().right > innerWidth + 1).map((part) => part.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("width", [480, 1024, 1280])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_wider_than_the_window_but_what_scrolls_in_a_box(browser, addresses, kind, width):
    emulate(browser)
    browser.set_window_size(width, 900)
    try:
        open_page(browser, addresses[kind])
        browser.execute_script(OPEN)
        assert browser.execute_script(WIDER) == []
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.set_window_size(1280, 1000)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_can_be_operated_is_reached_by_keyboard_in_the_order_of_the_page_and_seen(browser, addresses, kind):
    from selenium.webdriver.common.keys import Keys

    emulate(browser)
    open_page(browser, addresses[kind])
    browser.execute_script(
        "document.querySelectorAll('[type=radio]').forEach((radio) => (radio.name += Math.random()))"
    )
    script = """window.reached = new Set();
    document.addEventListener("focusin", ({ target }) => {
      const seen = target.matches(".look input") ? target.nextElementSibling : target;
      const style = getComputedStyle(seen);
      if (style.outlineStyle !== "none" && style.outlineWidth !== "0px") reached.add(target);
    });
    return [...document.querySelectorAll("a[href], button, input, textarea, summary, [tabindex='0']")]
      .filter((one) => one.checkVisibility()).length"""
    number = browser.execute_script(script)
    body, presses = browser.find_element("tag name", "body"), min(number, 60)
    for press in range(presses):
        (browser.switch_to.active_element if press else body).send_keys(Keys.TAB)
    assert browser.execute_script("return reached.size") == presses


@pytest.mark.parametrize("kind", KINDS)
def test_a_print_is_whole_and_breaks_between_rows_and_pictures(browser, addresses, kind):
    emulate(browser, media="print")
    try:
        open_page(browser, addresses[kind])
        closed = """return [...document.querySelectorAll("details")].filter((fold) => !fold.open &&
          ![...fold.children].slice(1).some((part) => part.getBoundingClientRect().height > 0)).length"""
        assert browser.execute_script(closed) == 0
        broken = """return [...document.querySelectorAll("tr, figure")]
          .filter((part) => getComputedStyle(part).breakInside !== "avoid").length"""
        assert browser.execute_script(broken) == 0
        unrepeated = """return [...document.querySelectorAll("thead th, thead button")].filter((part) =>
          !["static", "relative"].includes(getComputedStyle(part).position) ||
          (part.tagName === "BUTTON" && getComputedStyle(part).display !== "contents")).length"""
        assert browser.execute_script(unrepeated) == 0, "heads of columns stand on each sheet"
        assert not any(part.is_displayed() for part in browser.find_elements("css selector", "nav, .tools, .opinion"))
    finally:
        emulate(browser)
