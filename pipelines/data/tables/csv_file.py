"""Tables in text files: comma, semicolon or tab, with a header line or with names from the settings.

Messages never quote a line: in a file without a header line, the first one is a patient.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

from pipelines.data.folder import check_unchanged, stamp_file
from pipelines.data.sources import Separator
from pipelines.data.study import Item, Rejected, Unusable

Line: TypeAlias = dict[str, str] | Unusable
SEPARATORS: Mapping[Separator, str] = {"comma": ",", "semicolon": ";", "tab": "\t"}
MARK = b"\xef\xbb\xbf"  # the byte-order mark with which some programs begin a UTF-8 file
LINE_ENDS = re.compile(rb"\r\n|\r|\n")
REMOVE = "remove all lines above the names of the columns"
SAYS_SEPARATOR = re.compile(r'"?sep=([,;\t])"?[,;\s]*', re.IGNORECASE)
"""A line that spreadsheets write above the header, or above the first patient."""


def read_lines(
    path: Path, names: Sequence[str] = (), separator: Separator | None = None
) -> tuple[list[str], list[Line]]:
    """Column names and lines of a table of patients: each line is read separately, so that none can change another.

    So a quoted text must end on its line: otherwise a quote that is not closed would include the lines of other
    patients, up to the next quote. Empty lines are skipped, and so is a first line `sep=;`, which gives the separator.

    names: of the columns, if the file has no header line. separator: None = the most frequent one in the header line,
    or a comma if there is no header line, since the first line is then a patient.

    Returns:
        The names; and each line as column -> text, "" for missing fields, or the reason why it cannot be read
        (`unreadable`): it is not UTF-8, a quote is not closed, or it has more fields than there are names.

    Raises:
        OSError, ValueError, csv.Error: the file or its header line cannot be read, or is empty, or no line can be read;
            or a title or comment stands above the header line.
    """
    stated, raw = _split_separator_line(
        [line for line in LINE_ENDS.split(_read_unchanged(path).removeprefix(MARK)) if line.strip()]
    )
    sign = SEPARATORS[separator] if separator else stated or SEPARATORS["comma"]
    if names:
        header = _check_names(names)
    else:
        first = _decode_utf8(raw[0]) if raw else ""
        sign = sign if separator or stated else _guess_delimiter(first)
        header = _check_names(next(csv.reader([first], delimiter=sign, strict=True), []))
        _check_title(first, header)
        raw = raw[1:]
    parsed_lines = [_parse_line(line, sign, header, alone=bool(names)) for line in raw if line.strip()]
    lines = [line for line in parsed_lines if isinstance(line, Unusable) or any(line.values())]
    if (bad := [line for line in lines if isinstance(line, Unusable)]) and len(bad) == len(lines):
        title = "" if names else f" If the first line of the file is a title, {REMOVE}."
        raise ValueError(f"none of its {len(lines)} lines can be read; the first: {bad[0].detail}{title}")
    return header, lines


def _split_separator_line(raw: Sequence[bytes]) -> tuple[str | None, Sequence[bytes]]:
    """The separator that a first line `sep=;` gives, and the lines after it; None and all lines without such a line."""
    match = SAYS_SEPARATOR.fullmatch(raw[0].decode(errors="replace")) if raw else None
    return (match[1], raw[1:]) if match else (None, raw)


def describe_missing_columns(missing: Sequence[str], header: Sequence[str]) -> str:
    """The sentence that a table lacks columns; a single name may be a title."""
    title = f"; if that is a title, {REMOVE}" if len(header) == 1 else ""
    return f"no column {', '.join(missing)}; see the names in its first line{title}"


def _check_title(first: str, header: Sequence[str]) -> None:
    """Refuse a first line that is no header: a comment, or one text above several columns.

    Raises:
        ValueError: it is no header.
    """
    if first.startswith("# ") or sum(map(bool, header)) == 1 < len(header):
        raise ValueError(f"its first line is a title or a comment; {REMOVE}")


def _read_unchanged(path: Path) -> bytes:
    """A file's bytes. Raises: OSError; Unusable, a ValueError: it changed while it was read, or is not a file."""
    before = {path: stamp_file(path)} if path.exists() else {}
    data = path.read_bytes()
    check_unchanged(before)
    return data


def _parse_line(raw: bytes, sign: str, header: Sequence[str], *, alone: bool) -> Line:
    """One line. alone: there is no header line, which would show a wrong separator."""
    try:
        fields = next(csv.reader([_decode_utf8(raw)], delimiter=sign, strict=True), [])
    except csv.Error as error:
        return Unusable(
            "unreadable", f"it is no line of a table ({error}). Close each quote on the line where it opens."
        )
    except ValueError as error:
        return Unusable("unreadable", f"{error}.")
    if len(fields) > len(header):
        return Unusable("unreadable", f"it has {len(fields)} fields of {len(header)}. Quote separators in texts.")
    if alone and len(fields) == 1 < len(header):
        return Unusable("unreadable", f"it has 1 field of {len(header)}. Say the `separator` in the settings.")
    return {name: text.strip() for name, text in zip_longest(header, fields, fillvalue="")}


def _decode_utf8(raw: bytes) -> str:
    """A line as text. Raises: ValueError: it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from error


def _check_names(names: Sequence[str]) -> list[str]:
    """The stripped column names. Raises: ValueError: there are none, or one occurs twice."""
    header = [name.strip() for name in names]
    if not header:
        raise ValueError("it is empty; a header line is needed")
    if twice := [number for number, name in enumerate(header, start=1) if name and name in header[: number - 1]]:
        raise ValueError(f"column {twice[0]} has the name of an earlier one; give each its own")
    return header


def _guess_delimiter(text: str) -> str:
    """The most frequent separator in the first line, outside quotes."""
    first = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").splitlines()[0]) if text.strip() else ""
    return max(SEPARATORS.values(), key=first.count)


def read_csv(path: Path, names: Sequence[str] = ()) -> tuple[list[str], list[dict[str, str]]]:
    """Column names and lines of a valid table, in which a quoted text may contain line breaks.

    For the detection of tables in an unknown folder; patients are read by `read_lines`. names: as there.

    Raises:
        OSError, ValueError, csv.Error: the file cannot be read, is empty, or a line has more fields than the header.
    """
    text = _decode_utf8(path.read_bytes().removeprefix(MARK))
    top, _, rest = text.partition("\n")
    match = SAYS_SEPARATOR.fullmatch(top.rstrip("\r"))
    text, sign = (rest, match[1]) if match else (text, _guess_delimiter(text))
    reader = csv.DictReader(io.StringIO(text, newline=""), list(names) or None, delimiter=sign, restval="", strict=True)
    header = _check_names(reader.fieldnames or [])
    if not names:
        _check_title(text.lstrip("\r\n"), header)
    reader.fieldnames = header
    lines = list(reader)
    long = [number for number, line in enumerate(lines, start=1) if None in line]
    if long:
        raise ValueError(f"line {long[0]} after the header has more than {len(header)} fields; quote commas in texts")
    stripped = [{key: value.strip() for key, value in line.items()} for line in lines]
    return header, [line for line in stripped if any(line.values())]


def select_lines(
    lines: Sequence[Mapping[str, str] | Unusable], where: Mapping[str, Sequence[str]]
) -> list[tuple[int, dict[str, str]]]:
    """Lines whose columns have one of the values in `where`, each with its number, 1 = first after the header.

    Unreadable lines are not among them, but are counted.

    Raises:
        ValueError: a column is missing, or no line is left.
    """
    read = [(number, line) for number, line in enumerate(lines, start=1) if not isinstance(line, Unusable)]
    if missing := sorted(set(where) - set(read[0][1] if read else where)):
        raise ValueError(f"where: no column {', '.join(missing)}; see the names in its first line")
    selected = [
        (number, dict(line)) for number, line in read if all(line[column] in values for column, values in where.items())
    ]
    if not selected:
        raise ValueError(f"none of {len(lines)} lines has the values of where ({', '.join(where)}); change it")
    return selected


def reject_unreadable_lines(lines: Sequence[Mapping[str, str] | Unusable]) -> list[Rejected]:
    """The unreadable lines. Their patients are unknown, and so is whether `where` selects them."""
    unreadable = [(number, line) for number, line in enumerate(lines, start=1) if isinstance(line, Unusable)]
    return [Rejected(f"line {number}", error.reason, error.detail) for number, error in unreadable]


def line_items(
    lines: Sequence[Line], selected_numbers: Sequence[int], where: Mapping[str, Sequence[str]]
) -> tuple[Item, ...]:
    """An item for each line of a table: a study, or not selected by `where`. selected_numbers: of the chosen lines."""
    study_numbers = {
        *selected_numbers,
        *(number for number, line in enumerate(lines, start=1) if isinstance(line, Unusable)),
    }
    detail = f"where asks for other values of {', '.join(where)}."
    names = [(number, f"line {number}") for number in range(1, len(lines) + 1)]
    return tuple(
        Item(name, "part", (name,))
        if number in study_numbers
        else Item(name, "not_selected", reason="line_not_selected", detail=detail)
        for number, name in names
    )
