"""A copy of those series of an archive that match a query, in the hospital's own folder, with a limit of its size.

Each query has a folder: `images/SERIES/INSTANCE.dcm`, complete series only; `series.json`, the number of images of each
series; and `odd.json`, what could not be used, with reasons. A file's time is computed from its content, so `survey`
sees a series that is copied again as unchanged. After an interruption at any point the next refresh continues.
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
from privacy.durable import flush_files, flush_folder, write_whole

IMAGES, SERIES, ODD, ARRIVING = "images", "series.json", "odd.json", ".arriving"
OF_ONE_ANSWER = ("bad_uid", "long_text", "not_asked_for")
"""Reasons that concern one answer of a query. Any other reason means that unknown series may be missing."""


class Arbitrary(Exception):
    """The archive's answers do not determine a cohort: some may be missing, or the cache is too small for them."""


@dataclass(frozen=True)
class Copied:
    """folder: of the images. series: the number of copied series. left_out: reason -> number without a copy."""

    folder: Path
    series: int
    left_out: dict[str, int]


def is_copied(folder: Path) -> bool:
    """Whether a refresh of this query's folder has ever completed."""
    return (folder / ODD).is_file()


def load_cached_series(folder: Path) -> Copied:
    """The content of a query's folder; the archive is not asked."""
    left_out: dict[str, int] = {}
    for _, reason, _ in json.loads((folder / ODD).read_text()):
        left_out[reason] = left_out.get(reason, 0) + 1
    return Copied(folder / IMAGES, len(_load_series_counts(folder)), left_out)


def refresh_cache(source: ArchiveSource, folder: Path) -> Copied:
    """Ask the archive; copy series that are new or have another number of images; remove those that no longer match.

    folder: of this query. Its siblings are caches of other queries, which are removed, oldest first, to make room.

    Raises:
        Unreachable, Denied, Arbitrary, Missing, SettingsError, OSError.
    """
    (folder / IMAGES).mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / ".lock"):
        os.utime(folder)  # in use: the last to be removed
        shutil.rmtree(folder / ARRIVING, ignore_errors=True)
        with open_archive(source) as archive:
            entries, odd = find_matching_series(archive, source)
            known = _load_series_counts(folder)
            for series in sorted({path.name for path in (folder / IMAGES).iterdir()} - set(entries)):
                _remove_series(folder, known, series)
            used = _folder_size(folder.parent)
            for series, entry in sorted(entries.items()):
                if series in known and known[series] == entry.instances and (folder / IMAGES / series).is_dir():
                    continue
                used -= _remove_series(folder, known, series)
                fetched = archive.fetch(entry, folder / ARRIVING)
                if fetched.odd:
                    shutil.rmtree(folder / ARRIVING)
                    odd.append(fetched.odd[0]._replace(what=series))
                    continue
                used += _folder_size(folder / ARRIVING)
                used -= _free_space(folder, used - source.cache_gib * GIB)
                _store_series(folder, known, entry, fetched.files)
        _write_json(folder / ODD, [list(oddity) for oddity in odd])
    return load_cached_series(folder)


def find_matching_series(archive: Archive, source: ArchiveSource) -> tuple[dict[str, Entry], list[Odd]]:
    """The series that match, by their UIDs; and answers that could not be used.

    Raises:
        Arbitrary: other series may be missing.
        Unreachable, Denied.
    """
    answers = list(archive.find(source.query.query))
    odd = [answer for answer in answers if isinstance(answer, Odd)]
    for answer in odd:
        if answer.reason not in OF_ONE_ANSWER:
            raise Arbitrary(f"{answer.what}: {answer.detail}")
    return {answer.series: answer for answer in answers if isinstance(answer, Entry)}, odd


def _store_series(folder: Path, known: dict[str, int | None], entry: Entry, files: Sequence[Path]) -> None:
    """Set the files' times from their content, and move the complete series into the cache, durably."""
    for path in files:
        with path.open("rb") as file:
            time = int(hashlib.file_digest(file, "sha256").hexdigest()[:15], 16)
        os.utime(path, ns=(time, time))
    flush_files(files)
    (folder / ARRIVING).rename(folder / IMAGES / entry.series)
    flush_folder(folder / IMAGES)
    known[entry.series] = entry.instances
    _write_json(folder / SERIES, known)


def _remove_series(folder: Path, known: dict[str, int | None], series: str) -> int:
    """Remove a series if it exists; returns the number of freed bytes."""
    place = folder / IMAGES / series
    if series in known:
        known.pop(series)
        _write_json(folder / SERIES, known)
    size = _folder_size(place)
    shutil.rmtree(place, ignore_errors=True)
    return size


def _free_space(folder: Path, missing: float) -> int:
    """Remove caches of other queries until `missing` bytes are free; returns the freed bytes. Raises: Arbitrary."""
    other_caches = [cache for cache in folder.parent.iterdir() if cache.is_dir() and cache != folder]
    freed = 0
    for cache in sorted(other_caches, key=lambda cache: cache.stat().st_mtime):
        if freed >= missing:
            break
        freed += _folder_size(cache)
        shutil.rmtree(cache)
    if freed < missing:
        raise Arbitrary("what matches is larger than cache_gib; raise it, or narrow the query")
    return freed


def _folder_size(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _load_series_counts(folder: Path) -> dict[str, int | None]:
    """Series UID -> its number of images by the archive; empty if there is no readable record yet."""
    try:
        return dict(json.loads((folder / SERIES).read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def _write_json(path: Path, content: object) -> None:
    """Write a JSON file in one step: after an interruption the old file or the new one is there."""
    write_whole(path, json.dumps(content, indent=1).encode())
