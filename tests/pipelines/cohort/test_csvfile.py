"""Tables as hospitals save them."""

from __future__ import annotations

import pytest

from pipelines.cohort.csvfile import chosen, read_csv

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
    assert read_csv(tmp_path / "t.csv") == (["a", "b"], PLAIN)


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


def test_lines_keep_their_numbers_and_a_miss_names_no_value():
    assert [number for number, _ in chosen(PLAIN, {"a": ("2",)})] == [2]
    with pytest.raises(ValueError, match=r"none of 2 lines") as told:
        chosen(PLAIN, {"a": ("Miller",)})
    assert "Miller" not in str(told.value)
