"""Tables in text files: comma, semicolon or tab, with a header line or with names from the settings.

Messages never quote a line: in a file without a header line, the first one is a patient.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

DELIMITERS = ",;\t"


def read_csv(path: Path, names: Sequence[str] = ()) -> tuple[list[str], list[dict[str, str]]]:
    """Column names and lines of a table. names: of the columns, where the file has no header line.

    Raises:
        OSError, ValueError, csv.Error: the file cannot be read, is empty, or a line has more fields than the header.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from error
    lines_of, columns = io.StringIO(text, newline=""), list(names) or None
    reader = csv.DictReader(lines_of, fieldnames=columns, delimiter=_delimiter(text), restval="", strict=True)
    header = [name.strip() for name in reader.fieldnames or []]
    if not header:
        raise ValueError("it is empty; a header line is needed")
    if twice := [number for number, name in enumerate(header, start=1) if name and name in header[: number - 1]]:
        raise ValueError(f"column {twice[0]} has the name of an earlier one; give each its own")
    reader.fieldnames = header
    lines = list(reader)
    long = [number for number, line in enumerate(lines, start=1) if None in line]
    if long:
        raise ValueError(f"line {long[0]} after the header has more than {len(header)} fields; quote commas in texts")
    stripped = [{key: value.strip() for key, value in line.items()} for line in lines]
    return header, [line for line in stripped if any(line.values())]


def _delimiter(text: str) -> str:
    """The one that stands most often in the first line, outside quotes."""
    first = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").splitlines()[0]) if text.strip() else ""
    return max(DELIMITERS, key=first.count)


def chosen(lines: Sequence[Mapping[str, str]], where: Mapping[str, Sequence[str]]) -> list[tuple[int, dict[str, str]]]:
    """Lines whose columns hold one of the values that `where` names, each with its number, 1 = first after the header.

    Raises:
        ValueError: a column is missing, or no line is left.
    """
    if missing := sorted(set(where) - set(lines[0] if lines else where)):
        raise ValueError(f"where: no column {', '.join(missing)}; see the names in its first line")
    found = [
        (number, dict(line))
        for number, line in enumerate(lines, start=1)
        if all(line[column] in values for column, values in where.items())
    ]
    if not found:
        raise ValueError(f"none of {len(lines)} lines has the values of where ({', '.join(where)}); change it")
    return found
