"""A copy of those series of an archive that match a query, in the hospital's own folder, with a limit of its size.

Each query has a folder: `images/SERIES/INSTANCE.dcm`, whole series only; `series.json`, what the archive said of each;
and `odd.json`, what could not be used, and why. A file's time follows from its content, so that a series that is copied
again is the same to `survey`. Killed at any point, the next refreshing goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from pipelines.data.archive_sources import ArchiveSource
from pipelines.pacs.archive import Archive, Entry, Odd
from pipelines.pacs.opening import open_archive
from pipelines.pacs.settings import GIB
from privacy.durable import flush, flush_folder, write_whole

IMAGES, SERIES, ODD, ARRIVING = "images", "series.json", "odd.json", ".arriving"
OF_ONE_ANSWER = ("bad_uid", "long_text", "not_asked_for")
"""Reasons that concern one answer of a query; after any other, series may be missing of which nothing is known."""


class Arbitrary(Exception):
    """What the archive answers makes no cohort: answers may be missing, or the cache is too small for all of them."""


@dataclass(frozen=True)
class Copied:
    """folder: of the images. series: how many are there. left_out: how many are not, and why, by reason."""

    folder: Path
    series: int
    left_out: dict[str, int]


def is_copied(folder: Path) -> bool:
    """Whether a query's folder was ever refreshed to its end."""
    return (folder / ODD).is_file()


def copied(folder: Path) -> Copied:
    """What lies in a query's folder, without asking the archive."""
    left_out: dict[str, int] = {}
    for _, reason, _ in json.loads((folder / ODD).read_text()):
        left_out[reason] = left_out.get(reason, 0) + 1
    return Copied(folder / IMAGES, len(_known(folder)), left_out)


def refreshed(source: ArchiveSource, folder: Path) -> Copied:
    """Ask the archive, copy series that are new or have another number of images, remove those that match no longer.

    folder: of this query. Its siblings are caches of other queries, which are removed, oldest first, to make room.

    Raises:
        Unreachable, Denied, Arbitrary, Missing, SettingsError, OSError.
    """
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / ".lock"):
        os.utime(folder)  # in use: the last to be removed
        shutil.rmtree(folder / ARRIVING, ignore_errors=True)
        with open_archive(source) as archive:
            entries, odd = matching(archive, source)
            known = _known(folder)
            for series in sorted({path.name for path in (folder / IMAGES).iterdir()} - set(entries)):
                _forget(folder, known, series)
            used = _size(folder.parent)
            for series, entry in sorted(entries.items()):
                if series in known and known[series] == entry.instances and (folder / IMAGES / series).is_dir():
                    continue
                used -= _forget(folder, known, series)
                fetched = archive.fetch(entry, folder / ARRIVING)
                if fetched.odd:
                    shutil.rmtree(folder / ARRIVING)
                    odd.append(fetched.odd[0]._replace(what=series))
                    continue
                used += _size(folder / ARRIVING)
                used -= _made_room(folder, used - source.cache_gib * GIB)
                _keep(folder, known, entry, fetched.files)
        _write(folder / ODD, [list(one) for one in odd])
    return copied(folder)


def matching(archive: Archive, source: ArchiveSource) -> tuple[dict[str, Entry], list[Odd]]:
    """The series that match, by their UIDs; and answers that could not be used.

    Raises:
        Arbitrary: others may be missing.
        Unreachable, Denied.
    """
    answers = list(archive.find(source.query.query))
    odd = [one for one in answers if isinstance(one, Odd)]
    for one in odd:
        if one.reason not in OF_ONE_ANSWER:
            raise Arbitrary(f"{one.what}: {one.detail}")
    return {one.series: one for one in answers if isinstance(one, Entry)}, odd


def _keep(folder: Path, known: dict[str, int | None], entry: Entry, files: Sequence[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            time = int(hashlib.file_digest(file, "sha256").hexdigest()[:15], 16)
        os.utime(path, ns=(time, time))
    flush(files)
    (folder / ARRIVING).rename(folder / IMAGES / entry.series)
    flush_folder(folder / IMAGES)
    known[entry.series] = entry.instances
    _write(folder / SERIES, known)


def _forget(folder: Path, known: dict[str, int | None], series: str) -> int:
    """Remove a series, if it is there; the number of bytes that are free then."""
    place = folder / IMAGES / series
    if series in known:
        known.pop(series)
        _write(folder / SERIES, known)
    size = _size(place)
    shutil.rmtree(place, ignore_errors=True)
    return size


def _made_room(folder: Path, missing: float) -> int:
    """Remove caches of other queries until so many bytes are free; how many became so. Raises: Arbitrary."""
    others = [one for one in folder.parent.iterdir() if one.is_dir() and one != folder]
    freed = 0
    for one in sorted(others, key=lambda one: one.stat().st_mtime):
        if freed >= missing:
            break
        freed += _size(one)
        shutil.rmtree(one)
    if freed < missing:
        raise Arbitrary("what matches is larger than cache_gib; raise it, or narrow the query")
    return freed


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _known(folder: Path) -> dict[str, int | None]:
    try:
        return dict(json.loads((folder / SERIES).read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _write(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=1).encode())
