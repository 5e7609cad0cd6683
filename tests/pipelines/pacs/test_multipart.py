"""However a body is cut into chunks, its parts are the same; without its end it is no body."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.pacs.multipart import Malformed, Mark, Truncated, media_type, split_parts

PARTS = st.lists(st.binary(max_size=40).filter(lambda part: b"--b" not in part), max_size=4)


def whole(parts: list[bytes], before: bytes = b"") -> bytes:
    written = b"".join(b"\r\n--b\r\nContent-Type: application/dicom\r\n\r\n" + part for part in parts)
    return before + written + b"\r\n--b--\r\n"


def cut(body: bytes, sizes: list[int]) -> list[bytes]:
    ends = [0, *itertools.accumulate(sizes)]
    return [body[a:b] for a, b in itertools.pairwise([*(end for end in ends if end < len(body)), len(body)])]


def read(chunks: list[bytes]) -> list[bytes]:
    parts: list[bytes] = []
    for piece in split_parts(chunks, "b"):
        if piece is Mark.BEGIN:
            parts.append(b"")
        elif isinstance(piece, bytes):
            parts[-1] += piece
    return parts


@given(parts=PARTS, before=st.sampled_from([b"", b"preamble", b"\r\n-"]), sizes=st.lists(st.integers(1, 30)))
def test_chunks_do_not_matter(parts, before, sizes):
    assert read(cut(whole(parts, before), sizes)) == parts


@given(parts=PARTS.filter(bool), sizes=st.lists(st.integers(1, 30)), data=st.data())
def test_a_body_that_is_cut_off_is_noticed(parts, sizes, data):
    body = whole(parts)
    end = data.draw(st.integers(0, len(body) - len(b"--\r\n") - 1))
    with pytest.raises(Truncated):
        read(cut(body[:end], sizes))


def test_no_more_than_a_chunk_is_held():
    huge = itertools.chain([b"--b\r\n\r\n"], (bytes(1000) for _ in range(10_000)), [b"\r\n--b--"])
    longest = max(len(piece) for piece in split_parts(huge, "b") if isinstance(piece, bytes))
    assert longest <= 1010


def test_a_header_without_end_is_refused():
    with pytest.raises(Malformed):
        list(split_parts([b"--b\r\n", *[b"a" * 1000] * 20], "b"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('multipart/related; type="application/dicom"; boundary="a b"', ("multipart/related", "a b")),
        ("Multipart/Related;boundary=x", ("multipart/related", "x")),
        ("application/dicom", ("application/dicom", "")),
        ("text/html; charset=utf-8", ("text/html", "")),
    ],
)
def test_a_content_type_says_type_and_boundary(text, expected):
    assert media_type(text) == expected


@given(st.text())
def test_any_content_type_is_read(text):
    kind, boundary = media_type(text)
    assert isinstance(kind, str)
    assert isinstance(boundary, str)
