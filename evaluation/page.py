"""A page as records: sections of tables, words, facts and figures, without any markup.

Every page is a `Page`, and `templates/page.html` renders all of them. So a new section is one function that makes a
`Section`, and no template. What a reader or a file says (a hospital's name, a note) is a plain text in a record, and
is escaped where it is rendered; words that look other than those around them are a `Span`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from evaluation.drawing import Picture


@dataclass(frozen=True)
class Span:
    """Words with a look of their own. look: strong, b, em, code or sup, or a class of `style.css`. href: where they
    lead; empty = nowhere.
    """

    text: Text
    look: str = ""
    href: str = ""


@dataclass(frozen=True)
class Bar:
    """A share with its interval, as a bar. None = nothing is known. is_bad: whether a reader should be warned."""

    share: tuple[float, float, float] | None
    label: str
    is_bad: bool = False


@dataclass(frozen=True)
class Curve:
    """A line of a text's height. points: as SVG writes them, within 120 x 20."""

    points: str
    label: str


Text: TypeAlias = "str | Span | Bar | Curve | tuple[Text, ...]"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. look: a class of `style.css`, as note, lead or banner."""

    text: Text
    look: str = ""


@dataclass(frozen=True)
class Heading:
    """A heading within a section. anchor: empty = none leads here."""

    text: Text
    level: int = 3
    anchor: str = ""


@dataclass(frozen=True)
class Column:
    """A column. method, run: the one that it is of, whose switch hides it."""

    title: Text
    is_number: bool = False
    look: str = ""
    method: str = ""
    run: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell that looks other than its column. width: of how many columns."""

    text: Text
    look: str = ""
    width: int = 1


@dataclass(frozen=True)
class Row:
    """A row; its first cell is its head. method: the one that it is of, whose switch hides it. look: of the row."""

    cells: Sequence[Text | Cell]
    method: str = ""
    look: str = ""


@dataclass(frozen=True)
class Table:
    """A table. label: its name for who does not see it. groups: further rows, each group below its title. empty: what
    it says without rows. is_tall: whether it scrolls, because it has a row for each of many.
    """

    label: str
    caption: Text
    columns: Sequence[Column]
    rows: Sequence[Row] = ()
    foot: Sequence[Row] = ()
    groups: Sequence[tuple[Text, Sequence[Row]]] = ()
    empty: Text = ""
    look: str = ""
    is_tall: bool = False


@dataclass(frozen=True)
class Drawing:
    """A figure without its title, where a heading above says what it is."""

    picture: Picture
    look: str = ""


@dataclass(frozen=True)
class Pictures:
    """Figures side by side."""

    pictures: Sequence[Picture]


@dataclass(frozen=True)
class ZoomImage:
    """An image that a click enlarges. uri: its pixels. boxes: (left, top, right, bottom). step: of a grid of lines over
    it, in pixels; 0 = none.
    """

    caption: Text
    uri: str
    alt: str
    rows: int
    columns: int
    boxes: Sequence[tuple[int, int, int, int]] = ()
    step: int = 0


@dataclass(frozen=True)
class ZoomImages:
    """Such images, three beside each other, or one alone."""

    images: Sequence[ZoomImage]


@dataclass(frozen=True)
class Items:
    """A list. is_numbered: whether its order matters."""

    items: Sequence[Text]
    look: str = "plain"
    is_numbered: bool = False


@dataclass(frozen=True)
class Fact:
    """What is so, under a name. more: what it rests on, which is folded. beside: what a reader must not miss."""

    name: Text
    lead: Text = ""
    more: Text = ""
    beside: Text = ""


@dataclass(frozen=True)
class Facts:
    """Facts below each other. more: the title of what is folded."""

    facts: Sequence[Fact]
    more: str


@dataclass(frozen=True)
class Code:
    """Lines to be copied, or settings."""

    text: str
    label: str = ""
    look: str = ""


@dataclass(frozen=True)
class Fold:
    """What opens at a click. is_part: whether its title is a heading. method: that all of it is of."""

    title: Text
    blocks: Blocks
    is_open: bool = False
    is_part: bool = True
    method: str = ""


@dataclass(frozen=True)
class Group:
    """Blocks that belong together."""

    blocks: Blocks
    look: str


@dataclass(frozen=True)
class SilenceNotice:
    """Where the page of a run at work says that nothing has been written for long. written: when it was, ISO."""

    written: str


@dataclass(frozen=True)
class Options:
    """One choice of several, the first at the beginning. name: of the choice. options: (value, label)."""

    legend: str
    name: str
    options: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class ImageSlider:
    """Named images, one of which is shown: a slider leads through them. of: whose they are. first: the place of the one
    that is shown at the beginning. rest: where the others are folded without scripts.
    """

    of: str
    images: Sequence[tuple[str, Picture]]
    first: int
    rest: str


@dataclass(frozen=True)
class MarkSummary:
    """Where marks of the cases in its section are summed up, see `pipelines/reviews`. cases: their digest. run: whose
    they are.
    """

    cases: str
    run: str


@dataclass(frozen=True)
class MarkedCase:
    """A case that a person marks. code, label, predicted: as its mark has them."""

    title: Text
    anchor: str
    level: int
    blocks: Blocks
    code: str
    label: str
    predicted: str


Block: TypeAlias = (
    "Paragraph | Heading | Table | Drawing | Picture | Pictures | ZoomImages | Items | Facts | Code | Fold | Group"
    " | SilenceNotice | Options | ImageSlider | MarkSummary | MarkedCase"
)
Blocks: TypeAlias = Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A section. anchor: its address in the page. link: its name in the list of sections; empty = it is not there.
    width: where it stands beside another one: wide, half, larger, smaller. method: that all of it is of.
    """

    title: Text
    blocks: Blocks
    anchor: str = ""
    link: str = ""
    width: str = ""
    look: str = ""
    method: str = ""


@dataclass(frozen=True)
class SideBySide:
    """Sections that stand beside each other where there is room."""

    sections: Sequence[Section]
    look: str = ""


@dataclass(frozen=True)
class Page:
    """A page. title: of its window. facts: a line below its heading. head: further words before the sections. links:
    (anchor, name) of sections; none = there is no list of them. reload_s: after how many seconds a browser reads it
    again; None = it does not. mark: a comment below the head, where a line may be put in later.
    """

    title: str
    heading: Text
    facts: Text
    sections: Sequence[Section | SideBySide]
    head: Blocks = ()
    reload_s: int | None = None
    mark: str = ""

    @property
    def links(self) -> list[tuple[str, str]]:
        """Address and name of the sections that are listed above the page."""
        flat = [each for part in self.sections for each in (part.sections if isinstance(part, SideBySide) else (part,))]
        return [(section.anchor, section.link) for section in flat if section.link]


MARKED = re.compile(
    r"\*\*(?P<strong>.+?)\*\*|\*(?P<em>.+?)\*|`(?P<code>.+?)`|\^(?P<sup>.+?)\^"
    r"|\[(?P<link>[^]]+)\]\((?P<href>[^)]+)\)|\{(?P<value>\w+)\}",
    re.DOTALL,
)


def compose_text(pattern: str, **values: Text | int) -> Text:
    """Words of this program with values in them: **strong**, *em*, `code`, ^sup^, [link](#anchor) and {value}.

    pattern: a literal. Only in it signs have a meaning: a value is put in as it is, whatever it holds.

    Raises:
        KeyError: the pattern has a value that is not given.
    """
    parts: list[Text] = []
    end = 0
    for match in MARKED.finditer(pattern):
        parts.append(pattern[end : match.start()])
        end = match.end()
        name = match["value"]
        if name:
            value = values[name]
            parts.append(str(value) if isinstance(value, int) else value)
            continue
        look = match.lastgroup if match.lastgroup not in ("link", "href") else ""
        inner = match["link"] or match[look or "link"]
        parts.append(Span(compose_text(inner, **values), look or "", match["href"] or ""))
    parts.append(pattern[end:])
    return tuple(part for part in parts if part != "")


def join_texts(texts: Iterable[Text], separator: str = ", ") -> Text:
    """Texts with a separator between them."""
    parts: list[Text] = []
    for text in texts:
        parts += [separator, text] if parts else [text]
    return tuple(parts)


def make_subline(*parts: Text) -> Span:
    """A line in small letters below the words of a cell."""
    return Span(parts, "sub")


def number_column(title: Text) -> Column:
    """A column of numbers."""
    return Column(title, is_number=True)


Fields: TypeAlias = "list[tuple[Text | Column, Callable[[Any], Text | Cell]]]"
"""Columns, each with what it says of a record. A bare text is the title of a column of words."""


def make_table(
    label: str,
    caption: Text,
    records: Iterable[object],
    fields: Fields,
    *,
    groups: Iterable[tuple[Text, Iterable[object]]] = (),
    method: Callable[[Any], str] = lambda _: "",
    **more: Any,
) -> Table:
    """A table with a row for each record. method: whose row it is. more: further fields of `Table`."""

    def make_rows(group: Iterable[object]) -> list[Row]:
        return [Row([describe(record) for _, describe in fields], method(record)) for record in group]

    columns = [title if isinstance(title, Column) else Column(title) for title, _ in fields]
    grouped = [(title, make_rows(group)) for title, group in groups]
    return Table(label, caption, columns, make_rows(records), groups=grouped, **more)
