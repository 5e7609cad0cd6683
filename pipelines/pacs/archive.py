"""What an archive is to us: it says which series it has, hands one over, and takes results.

Two kinds exist, `pipelines.pacs.dicomweb` and `pipelines.pacs.node`; who uses one does not know which. What an archive
answers is not trusted: UIDs are checked before they become part of a path, counts and sizes are bounded, and an answer
that cannot be used is an `Odd` with a reason, never an exception's trace and never silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from privacy.settings_error import Problem, refuse

UID = re.compile(r"(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))+")
LONGEST_UID = LONGEST_TEXT = 64
NOT_WHOLE = ("too_many", "same_page", "no_json", "no_list", "too_large")
"""Reasons of an `Odd` of `Archive.find` after which there may be series that were not named."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """Which series are wanted; all of it at once. since, until: days of the study, both included.

    modality: as in MR. description: of the series, with * and ?; upper and lower case are alike where the archive
    offers that. more: DICOM keyword -> text that an answer must have, as in StudyDescription: "*prostate*".
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    modality: str = ""
    description: str = ""
    since: date | None = None
    until: date | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from pydicom.datadict import tag_for_keyword  # slow to import

        problems = [
            Problem(("more", keyword), "no such DICOM keyword; use one of PS3.6, as in StudyDescription")
            for keyword in self.more
            if tag_for_keyword(keyword) is None
        ]
        texts = {"modality": self.modality, "description": self.description}
        problems += [
            Problem((name,), "must be text without backslashes and control characters, at most 64 characters")
            for name, text in texts.items()
            if not _is_plain(text)
        ]
        problems += [
            Problem(("more", name), "must be text without backslashes and control characters, at most 64 characters")
            for name, text in self.more.items()
            if not _is_plain(text)
        ]
        if self.since is not None and self.until is not None and self.since > self.until:
            problems.append(Problem(("until",), f"must not be before {self.since}, found {self.until}"))
        refuse(problems)


class Entry(NamedTuple):
    """A series as the archive's answer describes it; texts are as they came, and may be empty. study, series: checked
    UIDs. day: of the study. instances: how many images it has; None if the archive does not say.
    """

    study: str
    series: str
    modality: str = ""
    description: str = ""
    day: date | None = None
    accession: str = ""
    instances: int | None = None


class Odd(NamedTuple):
    """Something that could not be used. what: a UID or a count, never a patient's name. reason: a code."""

    what: str
    reason: str
    detail: str


class Fetched(NamedTuple):
    """What was handed over of a series. files: whole files, one an instance, each once. odd: what was not usable."""

    files: tuple[Path, ...]
    odd: tuple[Odd, ...]


class Unreachable(Exception):
    """The archive does not answer, or not in time, after all retries. The same command may succeed later."""


class Denied(Exception):
    """The archive refuses us: credentials, certificate, AE title or permission. A person must correct it."""


class Archive(Protocol):
    """An open connection. All methods raise `Unreachable` and `Denied`."""

    def find(self, query: Query) -> Iterator[Entry | Odd]:
        """Series that match, each once, in no order; answers are read page by page."""
        ...

    def fetch(self, entry: Entry, folder: Path) -> Fetched:
        """Write each image of a series into an empty folder, whole or not at all.

        Raises:
            OSError: the disk.
        """
        ...

    def store(self, files: Sequence[Path]) -> Sequence[Odd]:
        """Hand files over; returns those that were refused. What is already there stays, and counts as taken."""
        ...


def _is_plain(text: str) -> bool:
    return len(text) <= LONGEST_TEXT and "\\" not in text and (not text or text.isprintable())


def is_uid(text: str) -> bool:
    """Whether a text is a DICOM UID, and so safe as part of a path or an address (PS3.5, 9.1)."""
    return len(text) <= LONGEST_UID and UID.fullmatch(text) is not None
