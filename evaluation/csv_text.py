"""Writes every CSV, so that no cell becomes a formula in a spreadsheet.

Names of files and patients, and texts of headers, come from outside. A spreadsheet takes a cell that begins with
= + - or @ for a formula, which can send other cells away or start a program. Such a cell gets an apostrophe before it
(OWASP, "CSV Injection"); so does such text after a semicolon, tab or line break within a cell, because a spreadsheet
may split there. Numbers stay numbers, -0.5 as well. `read_csv_text` removes the apostrophes.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

BREAK = r"(^|[;\t\r\n])"
SIGN = r"[=+\-@\uff1d\uff0b\uff0d\uff20]"  # and the same four in full width, which some spreadsheets read alike
FORMULA = re.compile(rf"{BREAK}(?=['\s]*{SIGN})|^(?='*[\t\r\n])")
MARKED = re.compile(rf"{BREAK}'(?=['\s]*{SIGN})|^'(?='*[\t\r\n])")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-](inf|nan)")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, comma-separated (RFC 4180) with a line feed behind each line; None is an empty cell."""
    lines: list[str] = []
    # With "\r\n" at the end of a line, a cell that holds either of the two is quoted.
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerows([_escape_cell(cell) for cell in row] for row in [header, *rows])
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def read_csv_text(text: str) -> list[dict[str, str]]:
    """The rows of a table of `csv_text` by the names of its columns, with the original cells; short rows are left out.

    Raises:
        csv.Error: it is no table.
    """
    lines = csv.reader(io.StringIO(text, newline=""))
    header, *rows = [[MARKED.sub(lambda match: match[1] or "", cell) for cell in line] for line in lines] or [[]]
    return [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]


def _escape_cell(cell: object) -> object:
    """The cell with an apostrophe wherever a spreadsheet could read a formula; of a zero without its sign."""
    if isinstance(cell, float) and cell == 0:
        return 0.0
    if not isinstance(cell, str) or NUMBER.fullmatch(cell):
        return cell
    return FORMULA.sub(lambda match: f"{match[1] or ''}'", cell)
