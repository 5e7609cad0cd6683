"""Figures in the prose of results point to cells of committed tables, and the words of claims to their intervals.

    python -m benchmarks.tables.pointers PAGE        # prints what points nowhere yet, and cells with that figure

`benchmarks/tables/pointers/PAGE.yaml` belongs to docs/results/PAGE.md (`results.yaml` to docs/results.md):

    sentences: a table: words of the page with a brace in place of each figure, which says where it is from; an
               address without a table is of this one, and several figures stand in a row
    figures:   text of a figure, wherever it is on the page: where it is from, or a list where it stands for several
    claims:    words of the page: what must hold of cells, or a list of it
    elsewhere: words around figures that nobody here measured: settings, and what other people print
    by_hand:   words around figures that were measured and whose cells nobody kept: why, and the command that tells
               them; ` … ` stands for whatever is between

Addresses and what holds of them: cells.py. tests/laws/test_pointers.py holds all of it, so a sentence whose
cell changed fails there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.shared.options import make_parser

ROOT = Path(__file__).parents[2]

from benchmarks.tables.cells import IN_CELL, NUMBER, PAGES, agrees, bare, compute, is_cell, tables  # noqa: E402

POINTERS = ROOT / "benchmarks/tables/pointers"
IN_PROSE = re.compile(r"(?<![\w.§])[+−-]?\d*\.\d+(?:e[−-]?\d+)?(?: ± \d*\.?\d+| \(\d*\.?\d+\))?(?!\d)")
BRACE = re.compile(r"\{([^{}]+)\}")
HIDDEN = re.compile(r"<!-- table .*?<!-- end -->|```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)


def page_of(name: str) -> Path:
    """The page of that name."""
    return ROOT / "docs/results.md" if name == "results" else PAGES / f"{name}.md"


def prose(name: str) -> str:
    """A page without its tables, code, addresses and comments, on one line. The claims' tables are prose."""
    text = HIDDEN.sub(" ", page_of(name).read_text(encoding="utf-8")).replace("**", "")
    return " ".join(text.split())


class Pointers(NamedTuple):
    """What is pointed to from a page. sentences: words with addresses that name their table."""

    figures: Mapping[str, Sequence[str]]
    claims: Mapping[str, Sequence[str]]
    sentences: Sequence[str]
    elsewhere: Sequence[str]
    by_hand: Mapping[str, str]


def pointers(name: str) -> Pointers:
    """The pointers of a page; none without a file."""
    path = POINTERS / f"{name}.yaml"
    said = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    figures, claims = (
        {text: [one] if isinstance(one, str) else one for text, one in said.get(part, {}).items()}
        for part in ("figures", "claims")
    )
    sentences = [
        BRACE.sub(lambda found, table=table: "{" + re.sub(r"(?<![\w-])\[", f"{table}[", found[1]) + "}", text)
        for table, texts in said.get("sentences", {}).items()
        for text in texts
    ]
    return Pointers(figures, claims, sentences, said.get("elsewhere", []), said.get("by_hand", {}))


class Place(NamedTuple):
    """Figures in a page's prose, from its letter `start` to `end`, and where they are from."""

    start: int
    end: int
    address: str


def places(sentence: str, text: str, name: str, known: Callable[[str], Mapping[str, Any]] = tables) -> list[Place]:
    """Where the figures of a sentence stand in a page's prose. Raises: ValueError: as `cell`."""
    addresses, pattern = [], ""
    for k, part in enumerate(BRACE.split(" ".join(sentence.split()))):
        if k % 2 == 0:
            pattern += re.escape(part)
            continue
        count = len(compute(part, name, known)) if not is_cell(part) else 1
        several = r"(?: ± |[^\d.+−-]{1,20}?)".join([NUMBER] * count)
        whole = rf"{NUMBER}(?: ± \d*\.?\d+| \({NUMBER}(?: {NUMBER})*\))?"
        pattern += rf"((?<![\w.]){whole if is_cell(part) else several}(?!\.?\d))"
        addresses.append(part)
    return [
        Place(*found.span(k + 1), address)
        for found in re.finditer(pattern, text)
        for k, address in enumerate(addresses)
    ]


def spans(words: str, text: str) -> list[tuple[int, int]]:
    """Where words stand in a page's prose; ` … ` among them is whatever stands between."""
    parts = [re.escape(part) for part in " ".join(words.split()).split(" … ")]
    return [found.span() for found in re.finditer(".*?".join(parts), text)]


def within(figures: Sequence[re.Match[str]], parts: Sequence[tuple[int, int]]) -> list[re.Match[str]]:
    """The figures that lie in parts of a text."""
    return [one for one in figures if any(start <= one.start() and one.end() <= end for start, end in parts)]


def by_hand(name: str) -> list[str]:
    """The figures of a page whose cells nobody kept."""
    text = prose(name)
    parts = [span for words in pointers(name).by_hand for span in spans(words, text)]
    return [one[0] for one in within([*IN_PROSE.finditer(text)], parts)]


def unpointed(name: str) -> list[str]:
    """The figures of a page's prose that point nowhere."""
    said, text = pointers(name), prose(name)
    parts = [place[:2] for sentence in said.sentences for place in places(sentence, text, name)]
    parts += [span for words in (*said.elsewhere, *said.by_hand) for span in spans(words, text)]
    figures = [one for one in IN_PROSE.finditer(text) if one[0] not in said.figures]
    pointed = within(figures, parts)
    return [one[0] for one in figures if one not in pointed]


def candidates(said: str, pages: Sequence[str]) -> list[str]:
    """Addresses of all figures that agree with one on a page."""
    found = []
    for page in pages:
        for key, table in tables(page).items():
            if key == "json":
                continue
            for row in table["rows"]:
                for column, text in zip(table["columns"][1:], row[1:], strict=False):
                    if table["columns"].count(column) > 1:
                        continue
                    for place in range(len(IN_CELL.findall(text.replace("*", "")))):
                        first = [bare(row[0])]
                        while sum([bare(one) for one in other[: len(first)]] == first for other in table["rows"]) > 1:
                            first.append(bare(row[len(first)]))
                        address = f"{page}.{key}[{'; '.join([*first, column])}]" + (f"#{place + 1}" if place else "")
                        with suppress(ValueError):  # a cell whose words no address can name
                            found += [address] if agrees(said, address, page) else []
    return found


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("page")
    asked = parser.parse_args().page
    for one in dict.fromkeys(unpointed(asked)):
        near = candidates(one, [asked])
        sys.stdout.write(f"{one!r}: {near if len(near) < 6 else f'{len(near)} cells'}\n")
