"""What every reader keeps: it writes what is read here, whole, where it is told to, and the same each time."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from consilium.testing.held import hold
from pipelines.data.images import AnyImages
from pipelines.data.readers import Reader, resolve_source
from pipelines.data.sources import GlandMask, Labels
from pipelines.data.study import Rejected
from pipelines.loader.validation import to_plain

A, B = "/hospitals/a/read/0", "/hospitals/b/read/1"


@dataclass(frozen=True)
class Reading:
    """A reader whose files are there, and how a run would read what it writes: images, and the site's labels and gland,
    where the source that it describes needs them.
    """

    reader: Reader
    images: AnyImages
    labels: Labels | None = None
    gland: GlandMask | None = None


def it_describes_one_source_in_the_folder_that_it_is_told(case: Reading) -> None:
    """The same source wherever the folder lies; nothing is read or written for it."""
    in_first, in_second = (str(to_plain(resolve_source(case.reader, folder))) for folder in (A, B))
    hold(in_first.replace(A, B) == in_second, f"in {A} it describes {in_first}, in {B} {in_second}")
    hold(A in in_first, f"what it describes names nothing in its folder: {in_first}")
    with _temporary_folder() as folder:
        resolve_source(case.reader, str(folder / "later"))
        hold(not list(folder.iterdir()), "describing wrote something; only write may")


def it_writes_files_in_its_folder_and_nothing_beside(case: Reading) -> None:
    """Regular files, no links: what a link points to could change, or lie outside the hospital's folder."""
    with _temporary_folder() as parent:
        folder = _write_source(case, parent / "read")
        paths = list(folder.rglob("*"))
        hold(any(path.is_file() for path in paths), "it wrote no file")
        odd = [path.name for path in paths if path.is_symlink() or not (path.is_file() or path.is_dir())]
        hold(not odd, f"links, or no files: {odd[:5]}")
        hold([*parent.iterdir()] == [folder], "it wrote beside the folder that it was given")


def it_writes_the_same_wherever_and_in_place_of_what_lies_there(case: Reading) -> None:
    """A hospital that was stopped while it wrote, or whose files changed, has the new ones and nothing else."""
    with _temporary_folder() as parent:
        expected = _read_bytes(_write_source(case, parent / "a"))
        hold(_read_bytes(_write_source(case, parent / "b")) == expected, "another folder gets other bytes")
        folder = parent / "a"
        first = sorted(path for path in folder.rglob("*") if path.is_file())[0]
        first.with_name(f"left_over{first.suffix}").write_bytes(first.read_bytes())
        first.write_bytes(b"half")
        again = _read_bytes(_write_source(case, folder))
        odd = sorted(name for name in expected.keys() | again.keys() if expected.get(name) != again.get(name))
        hold(not odd, f"over what lay there it leaves something else: {odd[:5]}")


def all_that_it_writes_is_read(case: Reading) -> None:
    """Every study is accepted, with labels where it tells them, and is the same study when it is written anew."""
    with _temporary_folder() as parent:
        first, second = (_read_studies(case, _write_source(case, parent / name)) for name in "ab")
        hold(len(first) > 0, "nothing that it wrote is an image")
        hold(first == second, "the same images, written twice, are read as others")


LAWS = (
    it_describes_one_source_in_the_folder_that_it_is_told,
    it_writes_files_in_its_folder_and_nothing_beside,
    it_writes_the_same_wherever_and_in_place_of_what_lies_there,
    all_that_it_writes_is_read,
)
"""Of readers of images."""


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _write_source(case: Reading, folder: Path) -> Path:
    """The folder, into which the reader has written."""
    folder.mkdir(exist_ok=True)
    case.reader.write(folder)
    return folder


def _read_bytes(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, by its path in the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _read_studies(case: Reading, folder: Path) -> Mapping[tuple[str, str], str]:
    """Patient and study -> a digest of its images and labels. Raises: AssertionError: one is rejected."""
    from pipelines.data.examples import open_source  # readers are slow to import
    from pipelines.data.intake import read_study

    opened = open_source(resolve_source(case.reader, str(folder)), case.labels, case.images, case.gland)
    rejected, digests = list(opened.rejected), dict[tuple[str, str], str]()
    for waiting in opened.waiting:
        read = read_study(waiting)
        if isinstance(read, Rejected):
            rejected.append(read)
            continue
        data = read.examples.images.tobytes() + str(list(read.labels)).encode()
        digests[waiting.patient, waiting.study] = hashlib.sha256(data).hexdigest()
    refusals = "; ".join(f"{study.study}: {study.reason} ({study.detail})" for study in rejected[:5])
    hold(not rejected, f"{len(rejected)} of what it wrote cannot be used: {refusals}")
    return digests
