"""The pages of results show the committed figures, and the page of claims claims nothing that they do not show."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.tables.results_tables import PAGES, figures, with_tables

ROOT = Path(__file__).parents[2]
CLAIMS = ROOT / "docs/results.md"
EACH = sorted(PAGES.glob("*.md"))


def claims():
    """Figure and page of each claim."""
    lines = [line for line in CLAIMS.read_text().splitlines() if re.search(r"\]\(results/[\w-]+\.md\) \|$", line)]
    return [(line.split(" | ")[1], re.search(r"\((results/[\w-]+\.md)\)", line)[1]) for line in lines]


@pytest.mark.parametrize("page", EACH, ids=lambda page: page.stem)
def test_tables_are_those_of_the_figures(page):
    """Otherwise: python -m benchmarks.tables.results_tables."""
    assert with_tables(page.read_text(), figures(page)) == page.read_text()


def test_a_changed_figure_is_told():
    page = PAGES / "default-run.md"
    tables = figures(page)
    tables["auc"]["rows"][0][1] += "1"
    assert with_tables(page.read_text(), tables) != page.read_text()


def test_a_page_and_figures_that_name_other_tables_are_refused():
    page = PAGES / "default-run.md"
    with pytest.raises(KeyError, match="auc"):
        with_tables(page.read_text(), {})


def test_figures_belong_to_pages_and_say_where_they_are_from():
    assert {path.stem for path in (PAGES / "data").glob("*.json")} <= {page.stem for page in EACH}
    for path in (PAGES / "data").glob("*.json"):
        for key, table in json.loads(path.read_text()).items():
            assert re.fullmatch(r"[0-9a-f]{7,40}", table["commit"]), (path.name, key)
            assert re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"]), (path.name, key)
            assert {len(row) for row in table["rows"]} <= {len(table["columns"]), 2}, (path.name, key)
            assert table["command"] or {"command", "test"} & {*table["columns"]} or key == "commands", (path.name, key)


@pytest.mark.parametrize(("figure", "page"), claims(), ids=lambda value: value[:40])
def test_every_figure_of_a_claim_stands_in_the_page_that_it_links(figure, page):
    text = (CLAIMS.parent / page).read_text()
    numbers = re.findall(r"\d*[.,]?\d+(?:/\d+)?", figure)
    assert numbers
    there = set(re.findall(r"\d*[.,]?\d+(?:,\d{3})*(?:/\d+)?", text)) | set(re.findall(r"\d*[.,]?\d+", text))
    assert not [number for number in numbers if number not in there]


def test_every_page_of_results_is_linked_from_the_claims():
    linked = set(re.findall(r"\(results/([\w-]+)\.md\)", CLAIMS.read_text()))
    assert linked == {page.stem for page in EACH}


def test_the_families_that_the_page_of_laws_counts_are_its_rows():
    text = (PAGES / "laws.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert text.split("\n\n")[1].split()[0] == str(len(rows))
