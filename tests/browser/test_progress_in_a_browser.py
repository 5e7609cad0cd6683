"""The page of a run at work in a real browser: it follows the run by itself, and stays as it is when the run ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import needs_browser, open_browser
from evaluation import progress_page
from evaluation.progress_page import RunProgress, StageLine, TaskLine, render_progress_page
from evaluation.run_list import Training

pytestmark = needs_browser
EVIL = "<img src=x onerror=document.title='run'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


def build_progress(state: progress_page.RunState, **changes: Any) -> RunProgress:
    """A run with hostile names."""
    values = {
        "title": EVIL, "run": "demo", "state": state, "start": "2026-11-29T10:00:00+00:00",
        "written": "2026-11-29T10:05:00+00:00",
        "stages": [StageLine("ingest", "done", 12.0, EVIL), StageLine("train", "at work")],
        "tasks": [TaskLine(("demo", "train"), EVIL, 0.5, 61.0)],
        "trainings": [Training(EVIL, 2, ((1, 0.7), (2, 0.6)), 4)],
        "answered": [("north", True), (EVIL, False)],
    }  # fmt: skip
    return RunProgress(**{**values, **changes})


def test_it_reads_itself_again_until_the_run_has_ended(browser, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(progress_page, "RELOAD_S", 1)
    path = tmp_path / "progress.html"
    path.write_text(render_progress_page(build_progress("at work")), encoding="utf-8")
    browser.get_log("browser")
    browser.get(path.as_uri())
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
