"""The JSON beside a hospital's own page holds every number that the page's tables show, typed; it stays there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from small_run import smallest

from evaluation.drawing import Picture
from evaluation.records import SitePage, SplitCount
from evaluation.report import write_site_json
from evaluation.wording import format_size

NUMBER = re.compile(r"[+−]?\d+(?:\u202f\d{3})*(?:\.\d+)?(?:e[+-]\d+)?(?:\u202f[kMG]?B)?")
SMALLEST = smallest(name="json")
MASKS = smallest(
    name="masks",
    task={"kind": "segmentation", "target": "gland"},
    model={"name": "unet", "width": 4, "levels": 2},
    images={"kind": "slices", "size": 16, "spacing_mm": 4.0, "centre": "image"},
    audit={"membership": False},
)


class Cells(HTMLParser):
    """The words of all cells of a page's tables that are no head."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self.inside = True
            self.cells.append("")
        elif self.inside:
            self.cells[-1] += " "

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "td"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.cells[-1] += data


def list_values(content: Any) -> Iterator[Any]:
    """All numbers and texts of a JSON, how long its lists are, and the sums of a name over a list's objects."""
    if isinstance(content, dict):
        for each in content.values():
            yield from list_values(each)
    elif isinstance(content, list):
        yield len(content)
        for name in {name for each in content if isinstance(each, dict) for name in each}:
            numbers = [each.get(name) for each in content]
            if all(type(number) in (int, float) for number in numbers):
                yield sum(numbers)
        for each in content:
            yield from list_values(each)
    else:
        yield content


def list_texts(content: Any) -> set[str]:
    """Each number of a JSON as a page may show it, and all that its texts say."""
    texts: set[str] = set()
    for value in list_values(content):
        if isinstance(value, str):
            texts |= {*NUMBER.findall(value.replace("-", "−")), *NUMBER.findall(value)}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            shown = [f"{value:{form}}" for form in (".3f", ".2f", ".4g", ".3g", "g", "+.3f", ",")]
            texts |= {text.replace(",", "\u202f").replace("-", "−") for text in shown} | {*shown, f"{100 * value:g}"}
            texts |= {format_size(value)} if isinstance(value, int) and value >= 0 else set()
    return texts


@pytest.mark.parametrize("settings", [SMALLEST, MASKS], ids=["classes", "masks"])
def test_every_number_of_a_table_is_in_the_json_beside_the_page(finished_run, settings):
    folder: Path = finished_run(settings, figures=True) / "runs" / settings["name"] / "sites" / "a"
    content, cells = json.loads((folder / "report.json").read_text()), Cells((folder / "report.html").read_text()).cells
    numbers = [number for cell in cells for number in NUMBER.findall(cell)]
    known = list_texts(content)
    assert len(numbers) > 30 and not sorted({number for number in numbers if number not in known})
    scores = {number for cell in cells for number in NUMBER.findall(cell)} - list_texts({**content, "scores": []})
    assert scores, "scores are in no other place"


def test_numbers_are_typed_and_pictures_are_their_words():
    split = SplitCount("test", 9, 18, 3)
    page = SitePage("t", "west", "r", "2026", True, "", (split,), (), (), (), images=(Picture("i", "c", "<svg>"),))
    content = json.loads(write_site_json(page))
    assert content["splits"] == [{"split": "test", "patients": 9, "images": 18, "positives": 3, "classes": []}]
    assert content["images"] == [{"title": "i", "caption": "c"}] and content["sizes"]["words"]["unit"] == "pixels"
    assert "outside" not in content
