"""The page of a run at work in a real browser: it follows the run by itself, and stays as it is when the run ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from browsing import needs_browser, open_browser, open_page
from evaluation import run_list
from evaluation.run_list import RunProgress, StageLine, TaskLine, Training, render_progress_page

pytestmark = needs_browser
EVIL = "<img src=x onerror=document.title='run'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


def build_progress(state: run_list.RunState, **changes: Any) -> RunProgress:
    """A run with hostile names."""
    values = {
        "title": EVIL, "run": "demo", "state": state, "start": "2026-11-29T10:00:00+00:00",
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "stages": [StageLine("ingest", "done", 12.0, EVIL), StageLine("train", "at work")],
        "tasks": [TaskLine(("demo", "train"), EVIL, 0.5, 61.0)],
        "trainings": [Training(EVIL, 2, ((1, 0.7), (2, 0.6)), 4)],
        "answered": [("north", True), (EVIL, False)],
    }  # fmt: skip
    return RunProgress(**{**values, **changes})


def test_it_reads_itself_again_until_the_run_has_ended(browser, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(run_list, "RELOAD_S", 1)
    path = tmp_path / "progress.html"
    path.write_text(render_progress_page(build_progress("at work")), encoding="utf-8")
    browser.get_log("browser")
    open_page(browser, path.as_uri())
    assert browser.title == "demo: at work" and EVIL in browser.find_element("tag name", "h1").text
    assert "61 s" in (text := browser.find_element("tag name", "main").text) or "1 min" in text
    path.write_text(render_progress_page(build_progress("done", report="report.html", tasks=())), encoding="utf-8")
    ends = time.monotonic() + 20
    while browser.title != "demo: done" and time.monotonic() < ends:
        time.sleep(0.1)
    assert browser.title == "demo: done"
    assert browser.find_element("link text", "The report").get_attribute("href").endswith("/report.html")
    path.write_text("", encoding="utf-8")
    time.sleep(1.5)
    assert browser.title == "demo: done", "it stays"
    assert browser.get_log("browser") == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, ""), (90, ""), (121, "2 min"), (119 * 60 + 30, "119 min"), (5 * 3600 + 60, "5 h"), (-600, "")],
)
def test_a_page_that_nobody_writes_any_more_says_how_long_and_how_to_go_on(browser, tmp_path: Path, seconds, text):
    """A run that is killed cannot say so: its page stays at work for ever."""
    written = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds")
    path = tmp_path / "progress.html"
    progress = build_progress("at work", written=written, command="python -m pipelines.run demo.yaml")
    path.write_text(render_progress_page(progress), encoding="utf-8")
    open_page(browser, path.as_uri())
    notice = browser.find_element("id", "silent")
    assert notice.is_displayed() == bool(text)
    assert text in notice.text
    assert browser.title == (f"demo: silent for {text}" if text else "demo: at work")
    assert "python -m pipelines.run demo.yaml" in browser.find_element("tag name", "header").text


def test_a_page_of_a_run_that_has_ended_is_never_silent(browser, tmp_path: Path):
    path = tmp_path / "progress.html"
    for state in ("done", "stopped", "failed"):
        path.write_text(render_progress_page(build_progress(state)), encoding="utf-8")
        open_page(browser, path.as_uri())
        assert browser.find_elements("id", "silent") == []
        assert browser.title == f"demo: {state}"
