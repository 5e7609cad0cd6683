"""Figures in the prose of results point to cells of committed tables, and the words of claims to their intervals.

    python benchmarks/pointers.py PAGE        # prints what points nowhere yet, and cells with that figure

`benchmarks/pointers/PAGE.yaml` belongs to docs/results/PAGE.md (`results.yaml` to docs/results.md):

    figures:   text of a figure, as on the page: where it is from, or a list where it stands for several
    claims:    words of the page: what must hold of cells, or a list of it
    elsewhere: figures that no table of ours holds: settings, other people's, what a program prints

An address is `page.table[cell; cell; column]`: the row that begins with these cells, and a column, of
docs/results/data/page.json; `#2` behind it is the second figure of the cell; the page's own name may be left out. A
figure may be a difference, `A - B`. What may hold of two figures, of which the second may be a number:

    above, below       the intervals do not touch (of a figure by seeds: in every seed)
    level              they do
    holds, excludes    the first one's interval has the second in it, or not
    more, less         by the figures alone

tests/laws/test_pointers.py holds all of it, so a sentence whose cell changed fails there.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[1]
PAGES, POINTERS = ROOT / "docs/results", ROOT / "benchmarks/pointers"
NUMBER = r"[+−-]?\d*\.?\d+(?:e[−-]?\d+)?"
IN_CELL = re.compile(rf"(?<![\w.]){NUMBER}(?: ± \d*\.?\d+| \({NUMBER}(?: {NUMBER})*\))?")
IN_PROSE = re.compile(r"(?<![\w.§])[+−-]?\d*\.\d+(?:e[−-]?\d+)?(?: ± \d*\.?\d+| \(\d*\.?\d+\))?(?!\d)")
ADDRESS = re.compile(r"(?:([\w-]+)\.)?([\w-]+)\[([^\]]+)\](?:#(\d+))?")
DIFFERENCE = re.compile(r"(.*?\](?:#\d+)?) - (.+)")
CLAIM = re.compile(r"(.*\](?:#\d+)?) (above|below|level|holds|excludes|more|less) (.+)")
HIDDEN = re.compile(r"<!-- table .*?<!-- end -->|```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->", re.DOTALL)


class Figure(NamedTuple):
    """A number with its interval, NaN if it has none."""

    value: float
    low: float = math.nan
    high: float = math.nan


HOLDS: Mapping[str, Callable[[Figure, Figure], bool]] = {
    "above": lambda one, other: one.low > other.high,
    "below": lambda one, other: one.high < other.low,
    "level": lambda one, other: one.low <= other.high and one.high >= other.low,
    "holds": lambda one, other: one.low <= other.value <= one.high,
    "excludes": lambda one, other: not one.low <= other.value <= one.high,
    "more": lambda one, other: one.value > other.value,
    "less": lambda one, other: one.value < other.value,
}
WITH_INTERVAL = ("above", "below", "level", "holds", "excludes")


def numbers(text: str) -> list[float]:
    """All numbers of a figure."""
    return [float(one.replace("−", "-")) for one in re.findall(NUMBER, text)]


def figure(text: str) -> Figure:
    """`.8 ± .1`, or a mean with the figures of all seeds, `.8 (.7 .9)`; a deviation, `.8 (.1)`, is no interval."""
    value, *others = numbers(text)
    if "±" in text:
        return Figure(value, value - others[0], value + others[0])
    return Figure(value, min(others), max(others)) if len(others) > 1 else Figure(value)


@cache
def tables(page: str) -> dict[str, Any]:
    """The committed tables of a page. Raises: OSError: it has none."""
    found: dict[str, Any] = json.loads((PAGES / "data" / f"{page}.json").read_text(encoding="utf-8"))
    return found


def cell(address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> str:
    """The text of the figure at an address. page: that an address without a page is of.

    Raises:
        ValueError: the address is malformed, or names no cell, several, or one without that figure.
    """
    found = ADDRESS.fullmatch(address.strip())
    if found is None:
        raise ValueError(f"{address!r} is no address; write page.table[cell; column]")
    table = known(found[1] or page).get(found[2])
    if table is None:
        raise ValueError(f"{address}: there is no such table")
    first, _, column = (part.strip() for part in found[3].rpartition(";"))
    rows = [row for row in table["rows"] if first in accumulate(map(bare, row), "{}; {}".format)]
    if len(rows) != 1 or table["columns"].count(column) != 1:
        raise ValueError(f"{address}: {len(rows)} rows begin so, and columns are {table['columns']}")
    figures = IN_CELL.findall(rows[0][table["columns"].index(column)].replace("*", ""))
    place = int(found[4] or 1)
    if place > len(figures):
        raise ValueError(f"{address}: the cell holds {len(figures)} figures")
    return str(figures[place - 1])


def bare(text: str) -> str:
    """A cell without marks."""
    return re.sub(r"[*`]", "", text).strip()


def at(address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> Figure:
    """The figure at an address, of a difference of two, or a number. Raises: ValueError: as `cell`."""
    if re.fullmatch(NUMBER, address.strip()):
        (value,) = numbers(address)
        return Figure(value, value, value)
    if found := DIFFERENCE.fullmatch(address):
        return Figure(at(found[1], page, known).value - at(found[2], page, known).value)
    return figure(cell(address, page, known))


def agrees(said: str, address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> bool:
    """Whether a figure on a page is the one at its address, rounded as it is written."""
    texts = re.findall(NUMBER, said)
    whole = DIFFERENCE.fullmatch(address) is None
    there = numbers(cell(address, page, known)) if whole else [at(address, page, known).value]
    return len(texts) <= len(there) and all(
        abs(value - own) <= 0.5000001 * 10.0 ** int(Decimal(text.replace("−", "-")).as_tuple().exponent)
        for text, value, own in zip(texts, numbers(said), there, strict=False)
    )


def holds(claim: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> bool:
    """Whether a claim holds of the cells that it names. Raises: ValueError: it is malformed, or lacks an interval."""
    found = CLAIM.fullmatch(claim)
    if found is None:
        raise ValueError(f"{claim!r} is no claim; write ADDRESS above ADDRESS, or another of {', '.join(HOLDS)}")
    one, other = at(found[1], page, known), at(found[3], page, known)
    if found[2] in WITH_INTERVAL and math.isnan(one.low):
        raise ValueError(f"{claim}: the first figure has no interval; say more or less")
    if found[2] in ("above", "below", "level") and math.isnan(other.low):
        raise ValueError(f"{claim}: the second figure has no interval; say more or less")
    return HOLDS[found[2]](one, other)


def page_of(name: str) -> Path:
    """The page of that name."""
    return ROOT / "docs/results.md" if name == "results" else PAGES / f"{name}.md"


def prose(name: str) -> str:
    """A page without its tables, code, addresses and comments, on one line. The claims' tables are prose."""
    text = HIDDEN.sub(" ", page_of(name).read_text(encoding="utf-8")).replace("**", "")
    return " ".join(text.split())


class Pointers(NamedTuple):
    """What is pointed to from a page."""

    figures: Mapping[str, Sequence[str]]
    claims: Mapping[str, Sequence[str]]
    elsewhere: Sequence[str]


def pointers(name: str) -> Pointers:
    """The pointers of a page; none without a file."""
    path = POINTERS / f"{name}.yaml"
    said = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    figures, claims = (
        {text: [one] if isinstance(one, str) else one for text, one in said.get(part, {}).items()}
        for part in ("figures", "claims")
    )
    return Pointers(figures, claims, [str(one) for one in said.get("elsewhere", [])])


def unpointed(name: str) -> list[str]:
    """The figures of a page's prose that point nowhere."""
    said = pointers(name)
    return [one for one in IN_PROSE.findall(prose(name)) if one not in said.figures and one not in said.elsewhere]


def candidates(said: str, pages: Sequence[str]) -> list[str]:
    """Addresses of all figures that agree with one on a page."""
    found = []
    for page in pages:
        for key, table in tables(page).items() if (PAGES / "data" / f"{page}.json").exists() else ():
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
    for one in dict.fromkeys(unpointed(sys.argv[1])):
        near = candidates(one, [sys.argv[1]])
        sys.stdout.write(f"{one!r}: {near if len(near) < 6 else f'{len(near)} cells'}\n")
