"""Links between the pages of a run: each leads to a file, and to a place in it, and the pages find each other."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from small_run import smallest

from evaluation.records import SitePage
from evaluation.report import render_site_page
from pipelines.coordinator.artifacts import PAGE, SITES
from pipelines.coordinator.summary import add_links
from pipelines.overview import main as list_runs
from pipelines.run import main
from pipelines.runs.holdings import OVERVIEW


class Links(HTMLParser):
    """Addresses that a page links, and the places in it that can be linked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses, self.places = list[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.places.add(values.get("id") or "")
        if tag == "a":
            self.addresses.append(values["href"] or "")


def list_links(path: Path) -> Links:
    return Links(path.read_text(encoding="utf-8"))


@pytest.fixture
def runs(finished_run, tmp_path: Path) -> Path:
    """A folder of runs with an overview, and a run whose report was written after it."""
    shutil.copytree(finished_run(smallest(name="linked")), tmp_path / "copy")
    folder = tmp_path / "copy"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert list_runs(["runs"]) == 0 and main(["tiny.yaml", "--from", "report"]) == 0
    return folder / "runs"


def test_all_links_of_all_pages_lead_to_files_and_to_places_in_them(runs: Path):
    pages = [path for path in runs.rglob("*.html") if not path.is_symlink()]
    assert len(pages) >= 6
    for page in pages:
        for address in list_links(page).addresses:
            place, _, part = address.partition("#")
            target = page.parent / unquote(place) if place else page
            assert ":" not in address and target.is_file(), f"{page}: {address}"
            assert not part or part in list_links(target).places, f"{page}: {address}"


def test_overview_coordinator_and_hospitals_find_each_other(runs: Path):
    run = runs / "linked"
    assert f"linked/{PAGE}" in list_links(runs / OVERVIEW).addresses
    assert {"sites/a/report.html", "sites/b/report.html", "../index.html"} <= {*list_links(run / PAGE).addresses}
    for site in "ab":
        assert "../../report.html" in list_links(run / "sites" / site / PAGE).addresses


def test_a_page_that_lies_elsewhere_links_no_page(runs: Path, tmp_path: Path):
    (artifact,) = (runs / "linked" / "report").iterdir()
    assert all(address.startswith("#") for address in list_links(artifact / PAGE).addresses)
    sites = json.loads((artifact / SITES).read_text())
    alone = tmp_path / "alone"
    alone.mkdir()
    page = (artifact / PAGE).read_bytes()
    assert [*sites] == ["a", "b"] and add_links(page, alone, sites) == page
    (alone / "sites" / "b").mkdir(parents=True)
    (alone / "sites" / "b" / PAGE).touch()
    assert [a for a in Links(add_links(page, alone, sites).decode()).addresses if a[0] != "#"] == [
        "sites/b/report.html"
    ]
    at_a_hospital = SitePage("t", "a", "r", "2026-11-30", False, "", (), (), (), ())
    assert all(address.startswith("#") for address in Links(render_site_page(at_a_hospital)).addresses)


def test_names_of_hospitals_are_text_and_addresses_in_links(tmp_path: Path):
    name = "<b>a & 'b' #1?"
    (tmp_path / "sites" / name).mkdir(parents=True)
    (tmp_path / "sites" / name / PAGE).touch()
    links = Links(add_links(b"<!-- tracking -->", tmp_path, [name]).decode())
    (address,) = links.addresses
    assert "#" not in address and (tmp_path / unquote(address)).is_file()
