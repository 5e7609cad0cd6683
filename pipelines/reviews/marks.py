"""Marks of a hospital's cases, in `review.json` beside its page, and their summary on that page.

The summary stands between two comments. What the coordinator gets of a page is a keyed digest; it is computed without
that summary, so nobody outside learns that a person marked anything.
"""

from __future__ import annotations

import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from evaluation.csv_text import csv_text
from privacy.durable import write_whole

MARKS, PAGE = "review.json", "report.html"
OPINIONS = ("agree", "disagree", "unsure")
LONGEST_NOTE, LONGEST_NAME = 4000, 100
BEGIN, END = b"<!--marks-->", b"<!--end of marks-->"
COLUMNS = ("patient", "label", "predicted", "opinion", "note", "reviewer", "time", "run")


class ReviewError(Exception):
    """A page or its marks cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Mark:
    """What a reviewer thinks of a case. cases: the digest of the cases among which it was shown. case: the pseudonym.
    time: ISO, UTC.
    """

    cases: str
    run: str
    case: str
    reviewer: str
    opinion: str
    note: str
    time: str


class ShownCase(NamedTuple):
    """A case as the page has it."""

    code: str
    label: str
    predicted: str


class ShownCases(NamedTuple):
    """The cases of a page. digest: of what is said of them."""

    digest: str
    run: str
    cases: tuple[ShownCase, ...]


def read_cases(page: str) -> ShownCases:
    """The cases of a hospital's page.

    Raises:
        ReviewError: it has none.
    """
    parser = _CaseParser()
    parser.feed(page)
    if not parser.digest or not parser.cases:
        raise ReviewError(
            "it shows no cases: it is an external site's, or of many simulated hospitals, or of a run that scored no "
            "model there, or one that is right and sure of everybody, or of an earlier version; of the last, "
            "`python -m pipelines.run CONFIG --from report` writes it anew"
        )
    return ShownCases(parser.digest, parser.run, tuple(parser.cases))


def read_marks(folder: Path) -> tuple[Mark, ...]:
    """All marks in a hospital's folder, of all its pages; none without a file.

    Raises:
        ReviewError: the file holds no marks.
        OSError: it cannot be read.
    """
    path = folder / MARKS
    if not path.exists():
        return ()
    try:
        entries = json.loads(path.read_bytes())["marks"]
        return tuple(_parse_mark(entry) for entry in entries)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{path} holds no marks ({type(error).__name__}); put a backup in its place, or move it away"
        raise ReviewError(text) from error


def write_marks(folder: Path, marks: Sequence[Mark]) -> None:
    """Replace the file of marks. Raises: OSError: the disk."""
    text = json.dumps({"marks": [asdict(mark) for mark in marks]}, indent=1, ensure_ascii=False)
    write_whole(folder / MARKS, text.encode(), mode=0o600)


def replace_mark(marks: Iterable[Mark], mark: Mark) -> tuple[Mark, ...]:
    """The marks with this one in the place of the same reviewer's mark of the same case; without it, if its opinion is
    empty.
    """
    place = mark.cases, mark.case, mark.reviewer
    rest = [old for old in marks if (old.cases, old.case, old.reviewer) != place]
    return (*rest, mark) if mark.opinion else tuple(rest)


def summarize_marks(marks: Iterable[Mark], shown: ShownCases) -> tuple[str, ...]:
    """A sentence for each reviewer of these cases, in the order of their first marks."""
    codes, opinions = {case.code for case in shown.cases}, dict[str, list[str]]()
    for mark in marks:
        if mark.cases == shown.digest and mark.case in codes:
            opinions.setdefault(mark.reviewer, []).append(mark.opinion)
    return tuple(
        f"{reviewer}: {len(marked)} of {len(shown.cases)} seen: "
        f"{', '.join(f'{number} {name}' for name in OPINIONS if (number := Counter(marked)[name]))}."
        for reviewer, marked in opinions.items()
    )


def write_csv(marks: Iterable[Mark], shown: ShownCases) -> str:
    """The marks of a page's cases as CSV, in the order of its cases."""
    rows = [
        (case.code, case.label, case.predicted, mark.opinion, mark.note, mark.reviewer, mark.time, mark.run)
        for case in shown.cases
        for mark in marks
        if mark.cases == shown.digest and mark.case == case.code
    ]
    return csv_text(COLUMNS, rows)


def write_summary(page: bytes, sentences: Sequence[str]) -> bytes:
    """The page with these sentences between the two comments; as it is, if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    words = html.escape(" ".join(sentences)).encode()
    return before + begin + words + end + after if begin and end else page


def remove_summary(page: bytes) -> bytes:
    """The page as the run wrote it."""
    return write_summary(page, ())


def digest_page(path: Path) -> str | None:
    """SHA-256 of a page as the run wrote it; None if there is none. Raises: OSError: it cannot be read."""
    return hashlib.sha256(remove_summary(path.read_bytes())).hexdigest() if path.exists() else None


def show_marks(page: str, folder: Path) -> str:
    """A new page with the summary of earlier marks of the same cases; without it, where marks cannot be read."""
    try:
        marks = read_marks(folder)
        if not marks:  # to read a page of megabytes takes long
            return page
        return write_summary(page.encode(), summarize_marks(marks, read_cases(page))).decode()
    except (ReviewError, OSError):
        return page


def _parse_mark(entry: Any) -> Mark:
    """A mark of a file. Raises: TypeError, ValueError: it is none."""
    mark = Mark(**entry)
    if not all(isinstance(getattr(mark, field.name), str) for field in fields(Mark)) or mark.opinion not in OPINIONS:
        raise ValueError("a mark has a opinion and texts")
    return mark


class _CaseParser(HTMLParser):
    """Collects the cases of a page. digest, run: empty while none is known."""

    def __init__(self) -> None:
        super().__init__()
        self.digest, self.run, self.cases = "", "", list[ShownCase]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Read what the summary of marks and articles say of themselves."""
        values = {name: value or "" for name, value in attrs}
        if "data-cases" in values:
            self.digest, self.run = values["data-cases"], values.get("data-run", "")
        elif tag == "article" and "data-case" in values:
            names = ("data-case", "data-label", "data-predicted")
            self.cases.append(ShownCase(*(values.get(name, "") for name in names)))
