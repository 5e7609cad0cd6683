"""How many clicks and words five questions take on the pages of two runs, in a browser.

    python -m benchmarks.studies.page_tasks RUNS [RUNS ...] --write

RUNS: a folder with the runs `first` and `second` of one version, which differ in a setting, and their `index.html`. A
question is answered where its answer is displayed; the words are those of the block that holds it, after the clicks.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared.records import make_table, write_tables


class Task(NamedTuple):
    """A question. page: within RUNS. clicks: on what, in this order. answer: the block that holds the answer."""

    question: str
    page: str
    clicks: tuple[str, ...]
    answer: str


NORTH = "first/sites/north/report.html"
TASKS = (
    Task("which model south should use, and how sure", "first/report.html", (), ".use li:nth-of-type(2)"),
    Task("what left, and at which ε", "first/report.html", (), "section[aria-labelledby=went]"),
    Task("the worst missed case at north", NORTH, ("nav a[href='#cases']",), "article.case"),
    Task("why a study was refused", NORTH, ("nav a[href='#quarantine']",), "section[aria-labelledby=quarantine] table"),
    Task("which setting differs between two runs", "index.html", (), "section[aria-labelledby=differences]"),
)


def open_driver() -> Any:
    """A browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,1000"):
        options.add_argument(argument)
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))


def count_task(driver: Any, runs: Path, task: Task) -> str:
    """Clicks and words until the answer is read; in words, where a page does not have it."""
    driver.get((runs / task.page).resolve().as_uri())
    for selector in task.clicks:
        if not (links := driver.find_elements("css selector", selector)):
            return "not answered"
        links[0].click()
    blocks = [block for block in driver.find_elements("css selector", task.answer) if block.is_displayed()]
    if not blocks:
        return "not answered"
    clicks, words = len(task.clicks), len(blocks[0].text.split())
    return f"{clicks} {'click' if clicks == 1 else 'clicks'}, {words} words"


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, print, and write the cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--names", nargs="+", help="of the versions, one for each RUNS")
    parser.add_argument("--write", action="store_true", help="docs/results/data/pages.json")
    options = parser.parse_args(arguments)
    names = options.names or [str(runs) for runs in options.runs]
    driver = open_driver()
    try:
        rows = [[task.question, *(count_task(driver, runs, task) for runs in options.runs)] for task in TASKS]
    finally:
        driver.quit()
    print("\n".join(" | ".join(row) for row in rows))
    if options.write:
        command = "python -m benchmarks.studies.page_tasks BEFORE/runs NOW/runs --names ... --write"
        write_tables("pages", {"tasks": make_table(["question", *names], rows, command)})


if __name__ == "__main__":
    main()
