"""A person marks cases in a real browser; a page of another site cannot, though it knows the address."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from browsing import needs_browser, open_browser
from pipelines.reviews.marks import MARKS, read_marks
from pipelines.reviews.server import ReviewServer, open_review
from pipelines_settings import BASE

pytestmark = needs_browser
EVIL = "<img src=x onerror=document.title='run'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


@pytest.fixture
def hospital(finished_run, tmp_path: Path) -> Path:
    """A copy of a hospital's folder of a finished run."""
    done = finished_run({**BASE, "name": "reviewed"}, figures=True) / "runs" / "reviewed" / "sites" / "a"
    shutil.copytree(done, tmp_path / "a")
    return tmp_path / "a"


@pytest.fixture
def served(hospital: Path) -> Iterator[ReviewServer]:
    server = ReviewServer(open_review(hospital, "A. Berg"), 0)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def wait(browser: Any, condition: Callable[[Any], object]) -> None:
    """Wait until a condition of the page holds."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 20, 0.05).until(condition)


def open_page(browser: Any, url: str) -> None:
    """Open the page, and wait for its marks."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(url)
    wait(browser, lambda b: b.find_elements("css selector", "article.case fieldset"))
    browser.execute_async_script("setTimeout(arguments[0], 200)")  # marks are filled in


def read_outcome(browser: Any, place: int) -> str:
    return str(browser.find_elements("css selector", "article.case output")[place].text)


def choose(browser: Any, place: int, opinion: str) -> None:
    """Choose a opinion of a case, and wait until it is saved."""
    article = browser.find_elements("css selector", "article.case")[place]
    choice = article.find_element("css selector", f"[value={opinion}]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", choice)
    choice.click()
    wait(browser, lambda b: read_outcome(b, place) == "saved")


def test_marks_are_chosen_saved_counted_and_there_again_after_a_reload(browser, served, hospital):
    open_page(browser, served.url.replace("127.0.0.1", "localhost"))
    assert not browser.find_elements("css selector", "a[href^='../']"), "the server shows no other page"
    choose(browser, 0, "agree")
    choose(browser, 1, "unsure")
    note = browser.find_elements("css selector", "article.case textarea")[1]
    note.send_keys(f"a vessel? {EVIL}")
    wait(browser, lambda _: any(mark.note for mark in read_marks(hospital)))
    assert {m.case: (m.opinion, m.note) for m in read_marks(hospital)} == {
        served.review.shown.cases[0].code: ("agree", ""),
        served.review.shown.cases[1].code: ("unsure", f"a vessel? {EVIL}"),
    }
    summary = browser.find_element("id", "reviewed")
    assert summary.text == "A. Berg: 2 of 3 seen: 1 agree, 1 unsure."
    open_page(browser, served.url)
    chosen = browser.execute_script("return [...document.querySelectorAll('.case :checked')].map((c) => c.value)")
    assert chosen == ["agree", "unsure"]
    assert browser.find_elements("css selector", "article.case textarea")[1].get_attribute("value").endswith(EVIL)
    assert browser.find_element("id", "reviewed").text == "A. Berg: 2 of 3 seen: 1 agree, 1 unsure."
    browser.find_elements("css selector", "article.case button")[0].click()
    wait(browser, lambda b: read_outcome(b, 0) == "removed")
    assert [mark.opinion for mark in read_marks(hospital)] == ["unsure"]
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert all(url.startswith((served.url, "data:")) for url in requests)
    browser.get((hospital / "report.html").as_uri())
    assert browser.find_element("id", "reviewed").text == "A. Berg: 1 of 3 seen: 1 unsure."
    assert not browser.find_elements("css selector", "fieldset.opinion"), "without the command it is read only"


def test_a_note_is_saved_though_its_writer_leaves_at_once_and_the_browser_asks_if_it_would_be_lost(
    browser, served, hospital
):
    open_page(browser, served.url)
    choose(browser, 0, "agree")
    browser.find_elements("css selector", "article.case textarea")[0].send_keys("a vessel")
    asks = """const event = new Event("beforeunload", {cancelable: true});
    dispatchEvent(event); return event.defaultPrevented"""
    assert not browser.execute_script(asks)
    browser.get("about:blank")
    wait(browser, lambda _: [mark.note for mark in read_marks(hospital)] == ["a vessel"])
    open_page(browser, served.url)
    assert not browser.execute_script(asks)
    note = browser.find_elements("css selector", "article.case textarea")[1]
    note.send_keys("no opinion yet")
    assert browser.execute_script(asks), "a note without an opinion is not saved"
    choose(browser, 1, "unsure")
    assert not browser.execute_script(asks)


def test_an_address_without_its_last_slash_leads_to_the_page(browser, served):
    open_page(browser, served.url.rstrip("/"))
    assert browser.current_url == served.url
    choose(browser, 0, "agree")
    assert browser.get_log("browser") == []


def test_cases_are_marked_by_keyboard_and_others_words_are_text(browser, served, hospital):
    from selenium.webdriver.common.keys import Keys

    other = ReviewServer(open_review(hospital, EVIL), 0)
    case = served.review.shown.cases[0].code
    other.review.take_mark(json.dumps({"case": case, "opinion": "disagree", "note": EVIL}).encode())
    other.server_close()
    served.review = open_review(hospital, "A. Berg")
    open_page(browser, served.url)
    first = browser.find_element("css selector", "article.case [type=radio]")
    browser.execute_script("arguments[0].focus()", first)
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    wait(browser, lambda b: read_outcome(b, 0) == "saved")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    wait(
        browser,
        lambda _: any(mark.opinion == "disagree" and mark.reviewer == "A. Berg" for mark in read_marks(hospital)),
    )
    wait(browser, lambda b: EVIL in b.find_element("css selector", "article.case .others").text)
    assert browser.title.startswith("a ") and EVIL in browser.find_element("id", "reviewed").text


def test_a_mark_that_cannot_be_saved_says_so_on_the_page(browser, served, hospital):
    open_page(browser, served.url)
    page = hospital / "report.html"
    page.write_text(page.read_text().replace(served.review.shown.digest, "1" * 64))
    article = browser.find_element("css selector", "article.case [value=agree]")
    browser.execute_script("arguments[0].click()", article)
    wait(browser, lambda b: read_outcome(b, 0).startswith("not saved: a run has written this page anew"))
    assert not (hospital / MARKS).exists()


def test_a_page_of_another_site_can_neither_mark_nor_read_nor_frame_it(browser, served, hospital):
    body = json.dumps({"case": served.review.shown.cases[0].code, "opinion": "agree", "note": ""})
    attack = f"""<form id=f method=post enctype=text/plain action="{served.url}marks" target=t></form>
<iframe name=t></iframe><iframe id=framed src="{served.url}"></iframe><script>
const sent = {json.dumps(body)};
Promise.allSettled([
  fetch("{served.url}marks", {{method: "POST", mode: "no-cors", body: sent}}),
  fetch("{served.url}marks", {{method: "POST", headers: {{"Content-Type": "application/json"}}, body: sent}}),
  fetch("{served.url}marks"),
]).then((done) => {{ f.submit(); document.title = done.map((d) => d.status).join(); }});
</script>"""

    class Attack(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(attack.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Attack) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        browser.get(f"http://127.0.0.1:{other.server_port}/")
        wait(browser, lambda b: "rejected" in b.title)
        assert browser.title.split(",")[1:] == ["rejected", "rejected"]
        browser.switch_to.frame("framed")
        assert not browser.find_elements("css selector", "article.case")
        browser.switch_to.default_content()
        other.shutdown()
    assert not (hospital / MARKS).exists()
