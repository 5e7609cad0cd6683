"""Tables as hospitals save them."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pipelines.data.images import Features
from pipelines.data.sources import TableSource
from pipelines.data.study import Unusable
from pipelines.data.tables.csv_file import SEPARATORS, read_csv, read_lines, reject_unreadable_lines, select_lines
from pipelines.data.tables.features import open_lines

PLAIN = [{"a": "1", "b": "x"}, {"a": "2", "b": "y, z"}]


@pytest.mark.parametrize(
    "text",
    [
        'a,b\n1,x\n2,"y, z"\n',
        'a;b\r\n1;x\r\n2;"y, z"\r\n',
        "a\tb\r1\tx\r2\ty, z",
        '\ufeffa,b\n\n1,x\n2,"y, z"\n\n,\n',
        'a , b\n 1 , x\n 2 ,"y, z"\n',
    ],
)
def test_separators_line_ends_marks_and_blanks_do_not_matter(tmp_path, text):
    (tmp_path / "t.csv").write_bytes(text.encode())
    assert read_csv(tmp_path / "t.csv") == read_lines(tmp_path / "t.csv") == (["a", "b"], PLAIN)


@pytest.mark.parametrize("sign", SEPARATORS.values())
@pytest.mark.parametrize("line", ["sep={}", '"sep={}"', "SEP={}", "\ufeffsep={}", "sep={},,"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_first_line_that_says_the_separator_is_no_header_and_no_patient(tmp_path, sign, line, end):
    """Its separator holds, whatever is more frequent in the header; the settings go before it."""
    rows = [line.format(sign), f'"a, a; a"{sign}b', f"1{sign}x"]
    (tmp_path / "t.csv").write_bytes(end.join(rows).encode())
    found = (["a, a; a", "b"], [{"a, a; a": "1", "b": "x"}])
    assert read_lines(tmp_path / "t.csv") == read_csv(tmp_path / "t.csv") == found
    (tmp_path / "t.csv").write_bytes(end.join([rows[0], rows[2]]).encode())
    assert read_lines(tmp_path / "t.csv", ["a", "b"]) == (["a", "b"], [{"a": "1", "b": "x"}])


@pytest.mark.parametrize("title", ["# exported 2026", "Herzdaten;;", "# a;b", ";Herzdaten;", "Herzdaten", "Heart 2026"])
def test_a_title_above_the_header_is_refused_in_words(tmp_path, title):
    (tmp_path / "t.csv").write_text(f"{title}\nid;age;ill\np0;40;1\np1;41;0\n")
    with pytest.raises(ValueError, match=r"remove all lines above the names of the columns") as told:
        open_lines(TableSource(file=str(tmp_path / "t.csv"), label="ill"), Features(numbers=("age",)))
    assert "2026" not in str(told.value) and "p0" not in str(told.value)


@pytest.mark.parametrize("odd", ["\u2028", "\x85", "\x0c", "\x1c", "\x0b"])
def test_only_line_ends_end_lines(tmp_path, odd):
    (tmp_path / "t.csv").write_bytes(f'a,b\n1,foo{odd}bar\n2,"two\nlines"\n'.encode())
    assert [line["a"] for line in read_csv(tmp_path / "t.csv")[1]] == ["1", "2"]
    assert read_csv(tmp_path / "t.csv")[1][1]["b"] == "two\nlines"


def test_a_separator_in_quotes_does_not_count(tmp_path):
    (tmp_path / "t.csv").write_text('"Name, Vorname, Titel";label\n"A, B, C";1\n')
    assert read_csv(tmp_path / "t.csv")[1] == [{"Name, Vorname, Titel": "A, B, C", "label": "1"}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"patient,label,label\nA,1,0\n", "column 3 has the name of an earlier one"),
        (b"patient,label\nM\xfcller,1\n", "not UTF-8"),
        ("patient,label\nA,1\n".encode("utf-16"), "not UTF-8"),
        (b"patient,label\nA,1,2\n", "more than 2 fields"),
    ],
)
def test_what_cannot_be_read_is_said_without_a_line_of_it(tmp_path, data, said):
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(ValueError, match=said) as told:
        read_csv(tmp_path / "t.csv")
    assert "ller" not in str(told.value)
    with pytest.raises(
        ValueError, match="more than 2 fields|3 fields of 2" if said.startswith("more") else said
    ) as told:
        read_lines(tmp_path / "t.csv")
    assert "ller" not in str(told.value)


CELLS = st.text(st.sampled_from('ab ,;\t"\u2028\x0bü'), max_size=6)
RAW = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b""))
quiet = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])


def told(line):
    return (line.reason, line.detail) if isinstance(line, Unusable) else line


@quiet
@given(st.lists(RAW, max_size=6), RAW, st.integers(0, 6))
@example([b"1,x", b"2,y"], b'0,"', 0)
@example([b'1,"x', b"2,y"], b'3,"', 2)
def test_any_line_is_read_the_same_whatever_line_is_put_before_or_after_it(tmp_path, lines, other, place):
    """The last line can be read, for a table of which no line can be read is refused as a whole."""

    def found(raw):
        (tmp_path / "t.csv").write_bytes(b"\r\n".join([b"a,b,c", *raw, b"last,1,2"]))
        return [told(line) for line in read_lines(tmp_path / "t.csv")[1]]

    place = min(place, len(lines))
    before, after = found(lines[:place])[:-1], found(lines[place:])
    mine = found([other])[:-1]
    assert found([*lines[:place], other, *lines[place:]]) == before + mine + after


@quiet
@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=6), st.sampled_from(list(SEPARATORS)), st.booleans()
)
def test_what_the_csv_module_writes_is_read_back(tmp_path, cells, separator, named):
    """However much the cells look like separators and quotes."""
    out = io.StringIO(newline="")
    rows = cells if named else [("a", "b", "c"), *cells]
    csv.writer(out, delimiter=SEPARATORS[separator]).writerows(rows)
    (tmp_path / "t.csv").write_bytes(out.getvalue().encode())
    wanted = [{name: cell.strip() for name, cell in zip("abc", row, strict=True)} for row in cells]
    header, found = read_lines(tmp_path / "t.csv", ("a", "b", "c") if named else (), separator)
    assert header == ["a", "b", "c"]
    assert found == [line for line in wanted if any(line.values())]


def test_what_is_wrong_with_a_line_is_told_without_its_text(tmp_path):
    bad = [b'Miller,"x', b'Miller,"x"y', b"Miller,1,2", b"M\xfcller,1", b"Miller," + b"x" * 200_000]
    (tmp_path / "t.csv").write_bytes(b"\n".join([b"a,b", b"1,x", *bad, b"2,y"]))
    lines = read_lines(tmp_path / "t.csv")[1]
    assert [number for number, _ in select_lines(lines, {"a": ("1", "2")})] == [1, 7]
    rejected = reject_unreadable_lines(lines)
    assert [one.study for one in rejected] == [f"line {number}" for number in range(2, 7)]
    assert {one.reason for one in rejected} == {"unreadable"}
    assert all("ller" not in one.detail and one.detail.endswith(".") for one in rejected)


def test_lines_keep_their_numbers_and_a_miss_names_no_value():
    assert [number for number, _ in select_lines(PLAIN, {"a": ("2",)})] == [2]
    with pytest.raises(ValueError, match=r"none of 2 lines") as told:
        select_lines(PLAIN, {"a": ("Miller",)})
    assert "Miller" not in str(told.value)
