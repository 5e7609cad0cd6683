"""Pages as records: what stands in a record stands on the page, as words and never as markup, whatever it is."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluation import page as records
from evaluation.drawing import Picture
from evaluation.page import (
    Block,
    Cell,
    Code,
    Column,
    Drawing,
    Fact,
    Facts,
    Fold,
    Group,
    Heading,
    ImageSlider,
    Items,
    MarkedCase,
    MarkSummary,
    Options,
    Page,
    Paragraph,
    Pictures,
    Row,
    Section,
    SideBySide,
    SilenceNotice,
    Span,
    Table,
    Text,
    ZoomImage,
    ZoomImages,
    compose_text,
    make_table,
    number_column,
)
from evaluation.rendering import render_page, write_text

EVIL = "<b>north & 'south'</b> *a* `b` [c](#d) {e}"


def samples(text: str) -> dict[str, Block]:
    """A block of each kind that says a text."""
    table = make_table(text, text, [text], [(text, str), (number_column(text), lambda row: Cell(row, "weak"))])
    return {
        "Paragraph": Paragraph(text),
        "Heading": Heading(text),
        "Table": table,
        "Drawing": Drawing(Picture(text, text, "")),
        "Picture": Picture(text, text, ""),
        "Pictures": Pictures([Picture(text, text, "")]),
        "ZoomImages": ZoomImages([ZoomImage(text, "data:,", text, 4, 4, [(0, 0, 1, 1)], 2)]),
        "Items": Items([text]),
        "Facts": Facts([Fact(text, text, text)], text),
        "Code": Code(text, text),
        "Fold": Fold(text, [Paragraph(text)]),
        "Group": Group([Paragraph(text)], "after"),
        "SilenceNotice": SilenceNotice(text),
        "Options": Options(text, "o", [(text, text), ("b", text)]),
        "ImageSlider": ImageSlider(text, [(text, Picture("", "", "")), (text, Picture("", "", ""))], 1, text),
        "MarkSummary": MarkSummary(text, text),
        "MarkedCase": MarkedCase(text, "case-1", 3, [Paragraph(text)], text, text, text),
    }


class Words(HTMLParser):
    """What is read between tags, and all tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words += data


def render(*blocks: Block) -> str:
    """The sections of a page of blocks."""
    text = render_page(Page("t", "h", "f", [Section("s", blocks, "s", "link")]))
    return text[text.index("<main>") : text.index("</main>")]


def kinds() -> list[str]:
    """The names of all kinds of block."""
    alias = records.Block
    named = re.findall(r"\w+", alias) if isinstance(alias, str) else [kind.__name__ for kind in get_args(alias)]
    return sorted(named)


def test_every_kind_of_block_has_a_sample_here() -> None:
    assert sorted(samples("x")) == kinds()


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_block_is_rendered_and_what_it_says_is_no_markup(kind: str) -> None:
    page, plain = render(samples(EVIL)[kind]), render(samples("plain")[kind])
    assert "<b>" not in page and [tag for tag, _ in Words(page).tags] == [tag for tag, _ in Words(plain).tags]
    attributes = [value for _, attrs in Words(page).tags for value in attrs.values()]
    assert EVIL in Words(page).words or EVIL in attributes


@given(st.recursive(st.text(), lambda inner: st.lists(inner, max_size=3).map(tuple)))
def test_a_text_is_read_as_it_was_written_whatever_it_holds(text: Text) -> None:
    def flatten(part: Text) -> str:
        return part if isinstance(part, str) else "".join(map(flatten, part))  # type: ignore[arg-type]

    written = f"<i>{write_text(Span(text, 'em'))}</i>"
    assert Words(written).words == flatten(text)
    assert [tag for tag, _ in Words(written).tags] == ["i", "em"]


@given(st.text("*`^[](){}#<>&xe", max_size=12))
@example("**x** [x](#x)")
def test_signs_have_a_meaning_in_the_pattern_and_none_in_a_value(value: str) -> None:
    text = compose_text("a **{value}** *b* `c` ^d^ [e {value}](#f) {value}", value=value)
    written = Words(str(write_text(text)))
    assert written.words == f"a {value} b c d e {value} {value}"
    assert [tag for tag, _ in written.tags] == ["strong", "em", "code", "sup", "a"]
    assert written.tags[-1][1] == {"href": "#f"}


def test_a_pattern_without_its_value_is_refused() -> None:
    with pytest.raises(KeyError, match="absent"):
        compose_text("{absent}", value="x")


def test_a_cell_is_what_its_column_is_also_behind_a_wide_one() -> None:
    columns = [Column("a"), number_column("b"), number_column("c"), Column("d", look="told", method="m")]
    page = render(Table("t", "", columns, [Row(["x", Cell("y", width=2), "z"], "m")]))
    cells = [(tag, attrs) for tag, attrs in Words(page).tags if tag in ("th", "td")][len(columns) :]
    assert [tag for tag, _ in cells] == ["th", "td", "td"]
    assert cells[1][1] == {"class": "num", "colspan": "2"}
    assert cells[2][1] == {"class": "told", "data-method": "m"}
    assert 'data-method="m"' in page


def test_the_list_of_sections_has_those_that_have_a_name_there_in_their_order() -> None:
    sections = [SideBySide([Section("a", [], "a", "A"), Section("b", [], "b")]), Section("c", [], "c", "C")]
    text = render_page(Page("t", "h", "f", sections))
    assert re.findall(r'<a href="#(\w+)">(\w)</a>', text) == [("a", "A"), ("c", "C")]
    assert re.findall(r'<section[^>]* aria-labelledby="(\w+)">\s*<h2 id="(\w+)"', text) == [(x, x) for x in "abc"]
    assert "<nav" not in render_page(Page("t", "h", "f", [Section("b", [], "b")]))
