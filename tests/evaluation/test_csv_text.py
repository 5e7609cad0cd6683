"""No cell of any table is a formula, numbers are numbers, and what was written is read back as it was."""

from __future__ import annotations

import ast
import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layers.test_layers import FILES, ROOT

from evaluation.csv_text import csv_text, read_csv_text

CELLS = st.text(st.sampled_from("=+-@\t\r\n;,'\" a1.eE\uff1d\uff20é\udc80"), max_size=8) | st.text(max_size=6)


def split(text: str) -> list[str]:
    """A cell as any spreadsheet may see it: whole, or cut at semicolons, tabs and line breaks."""
    return [text, *re.split(r"[;\t\r\n]", text)]


@given(st.lists(CELLS, min_size=2, max_size=2))
def test_no_cell_is_a_formula_and_all_are_read_back(cells: list[str]) -> None:
    text = csv_text(("a", "b"), [cells])
    _, found = csv.reader(io.StringIO(text, newline=""))
    for cell in found:
        if not is_number(cell):
            assert not [part for part in split(cell) if part.strip()[:1] and part.strip()[:1] in "=+-@\uff1d\uff20"]
            assert cell[:1] not in ("\t", "\r", "\n")
    assert read_csv_text(text) == [dict(zip("ab", cells, strict=True))]


def is_number(text: str) -> bool:
    try:
        return text.strip() == text and "_" not in text and float(text) is not None
    except ValueError:
        return False


@given(st.floats(allow_nan=False) | st.integers())
def test_numbers_stay_numbers(number: float) -> None:
    for cell in (number, str(number), f"{number:+.6g}"):
        _, (found, _) = csv.reader(io.StringIO(csv_text("ab", [(cell, None)])))
        assert found == str(cell) and float(found) == float(cell)


@pytest.mark.parametrize(
    "cell", ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1"]
)
def test_known_attacks(cell: str) -> None:
    assert csv_text("a", [[cell]]).split("\n", 1)[1].lstrip('"').startswith("'")


def test_a_header_is_a_row_too_and_half_a_row_is_no_row() -> None:
    assert csv_text(["=a"], []) == "'=a\n"
    assert read_csv_text("a,b\n1,2\n3") == [{"a": "1", "b": "2"}] and read_csv_text("") == []


def test_one_file_writes_tables() -> None:
    """Whoever writes a table by other means would write formulas."""
    found = set()
    for path in [*FILES, *sorted((ROOT / "benchmarks").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            writes = isinstance(node, ast.Attribute) and node.attr in {"writer", "DictWriter", "to_csv", "savetxt"}
            named = isinstance(node, ast.ImportFrom) and node.module == "csv"
            joined = (
                isinstance(node, ast.Attribute)
                and node.attr == "join"
                and isinstance(node.value, ast.Constant)
                and node.value.value in {",", ";", "\t"}
            )
            if writes or named or joined:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == {"evaluation/csv_text.py"}
