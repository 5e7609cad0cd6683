"""The switch of methods in a real browser: of one that is off no page shows anything, nor an empty box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from small_run import smallest

from browsing import needs_browser, open_browser, open_page
from made_up_pages import make_pages

pytestmark = needs_browser

METHODS = {
    "m_mixed": {"name": "heurfedamp"},  # heat maps between hospitals
    "m_kept": {"name": "ditto"},  # notes
    "m_shared": {"name": "fedavg"},
    "m_alone": {"name": "local"},
}
RUN = smallest(
    name="switched",
    train={"methods": METHODS, "schedule": {"rounds": 2}},
    audit={"inversion": {"images": 1, "steps": 1}},
)
for hospital in RUN["sites"].values():
    hospital["policy"] = {"pooling": True, "recipients": ["coordinator", "sites"]}

# Words of a page that name a method and are of the run: sentences, which stand whatever is shown, and the switch.
IS_SEEN = """const isSeen = (part) => part === null
  || (getComputedStyle(part).display !== "none" && isSeen(part.parentElement));"""
SEEN = """const method = arguments[0], seen = [];
const sentences = "p, .note, caption, figure > figcaption, .use, .look, .sub.why, pre, .methods, [data-key], header";
const names = new RegExp(`(?<![\\\\w-])${method.replace(/[.*+?^${}()|[\\]\\\\]/g, "\\\\$&")}(?![\\\\w-])`);
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const box = node.parentElement;
  if (!names.test(node.data) || !isSeen(box) || box.closest("script, style, title")) continue;
  if (box.closest(sentences) && !box.closest(".panel, .sheet figcaption")) continue;
  seen.push(`${box.closest("section")?.querySelector("h2")?.innerText}: ${box.parentElement.outerHTML.slice(0, 150)}`);
}
return seen"""
EMPTY = """const parts = (box, what) => [...box.querySelectorAll(what)];
return parts(document, "main :is(.panel, figure, .picture, .scroll, details, section)").filter((box) => isSeen(box)
  && parts(box, "[data-method]").length && !parts(box, "[data-method]").some(isSeen)
  && !parts(box, "td, pre, img, li:not([data-key]), p:not(.note, .panel > p, .keys)").some(isSeen)
  && !parts(box, "svg:not(:has([data-method]), .key-list *)").some(isSeen))
  .map((box) => box.outerHTML)"""
OPEN = "for (const fold of document.querySelectorAll('details')) fold.open = true"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


@pytest.fixture(scope="module")
def addresses(finished_run, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    folder: Path = tmp_path_factory.mktemp("kinds")
    run = finished_run(RUN, figures=True) / "runs" / "switched"
    paths = {"coordinator": run / "report.html", "site": run / "sites" / "a" / "report.html"}
    for kind, text in make_pages(folder).items():
        paths[kind] = folder / f"{kind}.html"
        paths[kind].write_text(text, encoding="utf-8")
    return {kind: path.as_uri() for kind, path in paths.items()}


KINDS = ("coordinator", "site", "study", "benchmark", "nights", "sheet", "harmonize", "outside", "runs", "progress")


def list_ticks(browser: Any) -> dict[str, Any]:
    ticks = browser.find_elements("css selector", ".methods input[value]")
    return {tick.get_attribute("value"): tick for tick in ticks}


SHOWN = """const count = (what) => [...document.querySelectorAll(what)].filter((part) => part.checkVisibility()).length;
return [count("article.case"), count("section[aria-labelledby=images] figure"), count("nav a[href='#cases']")]"""


def test_cases_go_with_the_method_whose_answers_they_are_and_pictures_that_others_share_stay(browser, addresses):
    open_page(browser, addresses["site"])
    browser.execute_script(OPEN)
    (whose, *_) = browser.find_elements("css selector", "section[aria-labelledby=cases] > p strong")
    method, (cases, images, link) = whose.text, browser.execute_script(SHOWN)
    ticks = list_ticks(browser)
    assert method in ticks and cases > 0 and images > 1 and link == 1
    for name, tick in ticks.items():
        browser.execute_script("arguments[0].click()", tick)
        seen = browser.execute_script(SHOWN)
        assert seen[::2] == ([0, 0] if name == method else [cases, 1]), name
        assert seen[1] > 1, "images that other methods have a part in"
        browser.execute_script("arguments[0].click()", tick)
    assert browser.execute_script(SHOWN) == [cases, images, link] and browser.get_log("browser") == []


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_method_that_is_off_nothing_is_seen_and_no_box_is_empty(browser, addresses, kind):
    open_page(browser, addresses[kind])
    browser.execute_script(OPEN)
    before = browser.execute_script("return document.body.innerText")
    ticks = list_ticks(browser)
    assert set(METHODS) <= {*ticks} or kind not in ("coordinator", "site")
    for method, tick in ticks.items():
        assert browser.execute_script(IS_SEEN + SEEN, method), f"{method} is on the page"
        browser.execute_script("arguments[0].click()", tick)
        assert browser.execute_script(IS_SEEN + SEEN, method) == [], method
        assert browser.execute_script(IS_SEEN + EMPTY) == []
    for tick in ticks.values():
        browser.execute_script("arguments[0].click()", tick)
    assert browser.execute_script("return document.body.innerText") == before, "all comes back"
    assert browser.get_log("browser") == []
