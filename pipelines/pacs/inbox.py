"""Files of one series as they arrive: each is checked before it gets its name, and is there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import itertools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pydicom
from pydicom.uid import DeflatedExplicitVRLittleEndian

from pipelines.pacs.archive import Entry, Fetched, Odd, is_uid
from pipelines.pacs.settings import GIB, Limits
from privacy.deidentify.quiet import silence_warnings
from privacy.pickled import reduce_error
from privacy.system_errors import of_machine

HEADERS = ["StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID"]
UNPACKED = 2**29  # bytes of a deflated file, which any reader unpacks as a whole
CHUNK = 2**20


class TooMuch(Exception):
    """The series is larger than the limits allow."""


class Unfit(Exception):
    """A file that cannot be used. reason: a code."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason

    __reduce__ = reduce_error


@dataclass
class Inbox:
    """What has arrived of a series.

    kept: SOP instance UID -> its file. odd: what was not usable, and why. received: bytes. expected: number of images,
    where the archive was asked for it just before. digests: SOP instance UID -> SHA-256 of the file that came first.
    unfit: number of files that came and cannot be used.
    """

    entry: Entry
    folder: Path
    limits: Limits
    kept: dict[str, Path] = field(default_factory=dict)
    odd: list[Odd] = field(default_factory=list)
    received: int = 0
    expected: int | None = None
    digests: dict[str, str] = field(default_factory=dict)
    unfit: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def empty(self) -> None:
        """Begin anew, as before the first file arrived."""
        for path in self.folder.iterdir():
            path.unlink()
        self.kept.clear()
        self.odd.clear()
        self.digests.clear()
        self.received, self.unfit, self.numbers = 0, 0, itertools.count(1)

    def grew(self, size: int) -> None:
        """Count bytes that arrived. Raises: TooMuch."""
        self.received += size
        if self.received > self.limits.largest_gib * GIB:
            raise TooMuch(f"more than {self.limits.largest_gib:g} GiB; raise largest_gib if it is meant")

    def place(self) -> Path:
        """Where the next file may be written. Raises: TooMuch: one file more than allowed."""
        number = next(self.numbers)
        if number > self.limits.most:
            raise TooMuch(f"more than {self.limits.most} files; raise most if it is meant")
        return self.folder / f".arriving-{number}"

    @contextmanager
    def arriving(self) -> Iterator[BinaryIO]:
        """A file to write into, which is checked and named at the block's end. An exception removes it.

        Raises:
            TooMuch: one file more than allowed.
            OSError: the disk.
        """
        path = self.place()
        try:
            with path.open("xb") as file:
                yield file
            self.keep(path)
        finally:
            path.unlink(missing_ok=True)

    def keep(self, path: Path, named: str = "") -> None:
        """Check a file that arrived, and give it its name or remove it.

        named: the SOP instance UID under which the archive sent it; empty = it said none.
        """
        what = f"file {path.name.removeprefix('.arriving-')}"
        try:
            instance = check_file(path, self.entry, named)
        except Unfit as error:
            path.unlink()
            self.odd.append(Odd(what, error.reason, str(error)))
            self.unfit += 1
            return
        digest = digest_file(path)
        if instance not in self.digests:
            self.digests[instance] = digest
            self.kept[instance] = path.rename(self.folder / f"{instance}.dcm")
            return
        path.unlink()
        if self.digests[instance] == digest:
            self.odd.append(Odd(instance, "sent_twice", "the same file came again; one is kept"))
        else:
            if instance in self.kept:
                self.kept.pop(instance).unlink()
            self.odd.append(Odd(instance, "contradictory", "different files have this SOP instance UID; none is used"))

    def fetched(self) -> Fetched:
        """All that arrived whole; files of which a part arrived are removed.

        Odd about the series: `incomplete`, where the archive had said that there is more; `gone`, where nothing came
        and nothing was said.
        """
        for path in self.folder.glob(".arriving-*"):
            path.unlink()
        expected = self.entry.instances if self.expected is None else max(self.expected, self.entry.instances or 0)
        if not self.digests and not self.odd and not expected:
            self.odd.append(Odd(self.entry.series, "gone", "the archive sent nothing"))
        came = len(self.digests) + self.unfit
        if expected is not None and came < expected:
            detail = f"the archive said {expected} images, and {came} came"
            self.odd.append(Odd(self.entry.series, "incomplete", detail))
        return Fetched(tuple(sorted(self.kept.values())), tuple(self.odd))


def check_file(path: Path, entry: Entry, named: str) -> str:
    """The SOP instance UID of a file that belongs to the series.

    Raises:
        Unfit: `not_dicom`, `unreadable`, `too_packed`, `bad_uid`, `other_series` or `other_instance`.
        OSError: the disk.
    """
    with path.open("rb") as file:
        if file.read(132)[128:] != b"DICM":
            raise Unfit("not_dicom", f"{path.stat().st_size} bytes without the mark DICM")
    try:
        with silence_warnings():
            _check_deflated(path)
            dataset = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=HEADERS)
            study, series, instance = (str(dataset.get(keyword, "")) for keyword in HEADERS)
    except Unfit:
        raise
    except Exception as error:  # parsers raise exceptions of many types on damaged files; texts may be a patient's
        if of_machine(error) or (isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)):
            raise  # our own disk or memory, which says nothing of the file; EINVAL is of a place in it
        raise Unfit("unreadable", f"its header cannot be read ({type(error).__name__})") from error
    if not (study and series and instance):
        raise Unfit("unreadable", "its header lacks the UID of its study, series or instance")
    if (study, series) != (entry.study, entry.series):
        raise Unfit("other_series", "its header names another study or series than the one asked for; it is not used")
    if not is_uid(instance):
        raise Unfit("bad_uid", f"SOPInstanceUID: {len(instance)} characters that are no UID")
    if named and named != instance:
        raise Unfit("other_instance", "its header names another SOP instance than the archive said; it is not used")
    return instance


def digest_file(path: Path) -> str:
    """A file's digest."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_deflated(path: Path) -> None:
    meta = pydicom.filereader.read_file_meta_info(path)
    if meta.get("TransferSyntaxUID") != DeflatedExplicitVRLittleEndian:
        return
    unpacking, size = zlib.decompressobj(-zlib.MAX_WBITS), 0
    with path.open("rb") as file:
        file.seek(132 + 12 + meta.FileMetaInformationGroupLength)
        while packed := unpacking.unconsumed_tail or file.read(CHUNK):
            size += len(unpacking.decompress(packed, CHUNK))
            if size > UNPACKED:
                raise Unfit("too_packed", f"a deflated file that unpacks to more than {UNPACKED >> 20} MiB")
