"""Addresses of cells in committed tables, arithmetic with them, and what may hold of their intervals.

An address is `page.table[cell; cell; column]`: the row that begins with these cells, and a column, of
docs/results/data/page.json; the page's own name may be left out. `#2` behind it is the second figure of the cell, `#2±`
what stands behind that one after ± or in brackets, `#2±2` the second there (`#±` of the first). `page.json[key; key]`
is a place in measured/page.json. `*` stands for every row, column, key or figure, `a & b` for both, so such an
address is of several figures. In place of an address there may be arithmetic with `mean`, `min`, `max`, `abs` and
`interval` (mean and half of the 95 % t interval), figure by figure: `mean(t[a & b; AUC]) - t[c; AUC]`. What may hold of
two figures, of which the second may be a number:

    above, below       the intervals do not touch (of a figure by seeds: in every seed)
    level              they do
    holds, excludes    the first one's interval has the second in it, or not
    more, less         by the figures alone
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import accumulate, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/results"
NUMBER = r"[+−-]?\d*\.?\d+(?:e[−-]?\d+)?"
IN_CELL = re.compile(rf"(?<![\w.]){NUMBER}(?: ± \d*\.?\d+| \({NUMBER}(?: {NUMBER})*\))?")
ADDRESS = re.compile(r"(?:([\w-]+)\.)?([\w-]+)\[([^\]]+)\](?:#(\d*±\d*|\d+|\*))?")
CLAIM = re.compile(r"(.*[\])](?:#\d+)?) (above|below|level|holds|excludes|more|less) (.+)")


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
    """The committed tables of a page; as `json`, what benchmarks/measured/page.json holds."""
    places = {"": PAGES / "data" / f"{page}.json", "json": ROOT / "benchmarks/measured" / f"{page}.json"}
    there = {key: json.loads(path.read_text(encoding="utf-8")) for key, path in places.items() if path.exists()}
    return {**there.pop("", {}), **there}


def figures_in(address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> list[str]:
    """The texts of all figures of the cell at an address. Raises: ValueError: as `cell`."""
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
    return [str(one) for one in IN_CELL.findall(rows[0][table["columns"].index(column)].replace("*", ""))]


def cell(address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> str:
    """The text of the figure at an address. page: that an address without a page is of.

    Raises:
        ValueError: the address is malformed, or names no cell, several, or one without that figure.
    """
    figures = figures_in(address, page, known)
    place = int(address.rpartition("]")[2].lstrip("#") or 1)
    if place > len(figures):
        raise ValueError(f"{address}: the cell holds {len(figures)} figures")
    return figures[place - 1]


def bare(text: str) -> str:
    """A cell without marks."""
    return re.sub(r"[*`]", "", text).strip()


def select(words: str, among: Sequence[str]) -> list[str]:
    """What `*`, `a & b` or one word takes among others."""
    return list(among) if words == "*" else words.split(" & ")


def numbers_at(kept: Any, keys: Sequence[str]) -> list[float]:
    """The numbers at a place in what a file of measurements holds. Raises: KeyError, IndexError: there is none."""
    if isinstance(kept, list):
        kept = {f"{k}": one for k, one in enumerate(kept)}
        keys = keys or ["*"]
    if isinstance(kept, dict) and keys:
        return [number for one in select(keys[0], list(kept)) for number in numbers_at(kept[one], keys[1:])]
    if keys or isinstance(kept, dict):
        raise KeyError(f"{keys} in {kept!r}")
    return [float(kept)]


def values(address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> list[float]:
    """The figures at an address of one or several, by row, then by column. Raises: ValueError: as `cell`."""
    if is_cell(address):
        return [numbers(cell(address, page, known))[0]]
    found = ADDRESS.fullmatch(address)
    table = known(found[1] or page).get(found[2]) if found else None
    if found is None or table is None:
        raise ValueError(f"{address}: there is no such table")
    *rows, column = found[3].split("; ")
    if found[2] == "json":
        try:
            return numbers_at(table, [*rows, column])
        except (KeyError, IndexError, TypeError, ValueError) as none:
            raise ValueError(f"{address}: {none}") from none
    firsts = [[bare(row[min(k, len(row) - 1)]) for row in table["rows"]] for k in range(len(rows))]
    taken = [select(words, list(dict.fromkeys(first))) for words, first in zip(rows, firsts, strict=True)]
    starts = [one for one in product(*taken) if "*" not in rows or one in zip(*firsts, strict=True)]
    which, within, behind = (found[4] or "1").partition("±")
    texts = []
    for start, name in product(starts, select(column, table["columns"][len(rows) :])):
        figures = figures_in(f"{found[1] or page}.{found[2]}[{'; '.join([*start, name])}]", page, known)
        if figures or column != "*":
            texts += figures if which == "*" else [figures[int(which or 1) - 1]]
    return [numbers(text)[int(behind or 1) if within else 0] for text in texts]


def interval(seeds: Any) -> Any:
    """Mean of figures by seed, and half of its 95 % t interval."""
    return np.array([np.mean(seeds), stats.t.ppf(0.975, len(seeds) - 1) * np.std(seeds, ddof=1) / len(seeds) ** 0.5])


KNOWN = {"mean": np.mean, "min": np.min, "max": np.max, "abs": np.abs, "interval": interval}


def compute(words: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> list[float]:
    """The figures of arithmetic with addresses. Raises: ValueError: as `cell`, or it is no arithmetic."""
    names: dict[str, Any] = {}

    def named(found: re.Match[str]) -> str:
        names[f"_{len(names)}"] = np.array(values(found[0], page, known))
        return f"_{len(names) - 1}"

    text = ADDRESS.sub(named, words)
    if not re.fullmatch(r"(?:_\d+|\d*\.?\d+|mean|min|max|abs|interval|[-+*/(), ])+", text):
        raise ValueError(f"{words!r} is neither an address nor arithmetic with addresses")
    result = eval(text, {"__builtins__": {}}, {**KNOWN, **names})  # noqa: S307 -- our own words, and checked
    return [float(one) for one in np.ravel(result)]


def at(address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> Figure:
    """The figure at an address, of arithmetic, or a number. Raises: ValueError: as `cell`, or there are several."""
    if re.fullmatch(NUMBER, address.strip()):
        (value,) = numbers(address)
        return Figure(value, value, value)
    if is_cell(address):
        return figure(cell(address, page, known))
    found = compute(address, page, known)
    if len(found) != 1:
        raise ValueError(f"{address}: {len(found)} figures")
    return Figure(found[0])


def is_cell(address: str) -> bool:
    """Whether an address is of one figure of a table."""
    found = ADDRESS.fullmatch(address.strip())
    if found is None or found[2] == "json" or {*"*±"} & {*(found[4] or "")}:
        return False
    return " & " not in found[3] and "*" not in found[3].split("; ")


def agrees(said: str, address: str, page: str, known: Callable[[str], Mapping[str, Any]] = tables) -> bool:
    """Whether figures on a page are those at an address, rounded as they are written."""
    texts = re.findall(NUMBER, said)
    there = numbers(cell(address, page, known)) if is_cell(address) else compute(address, page, known)
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
