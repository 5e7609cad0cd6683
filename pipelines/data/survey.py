"""Has anything changed in a hospital's folders? Told from names, sizes and times, without opening an image."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipelines.data.examples import Files, Labels
from pipelines.data.folder import walk
from pipelines.data.labels import GlandMask, MaskLabels, TableLabels
from pipelines.data.pictures.label_maps import map_name
from pipelines.data.pictures.reader import PictureSource, picture_names
from pipelines.data.tables.features import TableSource
from privacy.message import Json


class Needed(NamedTuple):
    """A folder or a file that a hospital's settings name. key: where they name it. code: the hospital's answer when
    it is not there.
    """

    key: str
    code: str
    path: str
    folder: bool

    @property
    def there(self) -> bool:
        """Whether it is there, and is what it must be."""
        return Path(self.path).is_dir() if self.folder else Path(self.path).is_file()

    @property
    def complaint(self) -> str:
        """What is wrong with it, beginning with its key; only where it is not `there`."""
        what = "folder" if self.folder else "file"
        found = f"is no {what}" if Path(self.path).exists() else "does not exist"
        return f"{self.key}: {self.path!r} {found}; give a {what} that is there"


def needed(source: Files, labels: Labels | None, gland: GlandMask | None) -> Iterator[Needed]:
    """Every folder and file without which a hospital's patients cannot be read."""
    if isinstance(source, TableSource):
        yield Needed("source.file", "no_folder", source.file, False)
    else:
        yield Needed("source.folder", "no_folder", source.folder, True)
    if isinstance(source, PictureSource):
        if source.table is not None:
            yield Needed("source.table", "no_labels", source.table, False)
        if source.masks is not None:
            yield Needed("source.masks.folder", "no_labels", source.masks.folder, True)
    if isinstance(labels, TableLabels):
        yield Needed("labels.file", "no_labels", labels.file, False)
    for key, code, masks in (("labels", "no_labels", labels), ("gland", "no_gland", gland)):
        if isinstance(masks, MaskLabels | GlandMask):
            yield Needed(f"{key}.folder", code, masks.folder, True)
            if masks.names is not None:
                yield Needed(f"{key}.names", code, masks.names, False)


def survey(source: Files, labels: Labels | None, gland: GlandMask | None = None) -> dict[str, Json]:
    """Count the files that a cohort is made of, and digest what would change if one of them did.

    Returns:
        `files`, `bytes`, and `digest`: SHA-256 over each file's role, path below its folder, size and modification time
        in ns. A missing folder counts as empty.
    """
    digest, files, size = hashlib.sha256(), 0, 0
    for role, name, path in _inputs(source, labels, gland):
        try:
            found = path.stat()
        except OSError:  # gone since the folder was listed; when it is read, it is not there
            continue
        digest.update(f"{role}\0{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        files, size = files + 1, size + found.st_size
    return {"files": files, "bytes": size, "digest": digest.hexdigest()}


def _inputs(source: Files, labels: Labels | None, gland: GlandMask | None) -> Iterator[tuple[str, str, Path]]:
    if isinstance(source, TableSource):
        yield from _file("source", source.file)
    elif isinstance(source, PictureSource):
        yield from _file("source table", source.table)
        yield from _folder("source", source.folder) if source.table is None else _pictures(source)
        if source.table is None and source.masks is not None:
            yield from _folder("source masks", source.masks.folder)
    else:
        yield from _folder("source", source.folder)
    if isinstance(labels, TableLabels):
        yield from _file("labels", labels.file)
    for role, masks in (("labels", labels), ("gland", gland)):
        if isinstance(masks, MaskLabels | GlandMask):
            yield from _folder(role, masks.folder)
            yield from _file(f"{role} names", masks.names)


def _folder(role: str, folder: str) -> Iterator[tuple[str, str, Path]]:
    root = Path(folder).resolve()
    for path in walk(root):
        yield role, path.relative_to(root).as_posix(), path


def _pictures(source: PictureSource) -> Iterator[tuple[str, str, Path]]:
    """The pictures that the table names, and their masks; the folder may hold those of other hospitals."""
    with suppress(OSError, ValueError, csv.Error):  # a bad table is told when it is opened
        for name in picture_names(source):
            path = Path(source.folder, source.pattern.replace("{image}", name))
            if path.is_file():
                yield "source", name, path
            mask = None if source.masks is None else Path(source.masks.folder, map_name(source.masks.pattern, name))
            if mask is not None and mask.is_file():
                yield "source masks", name, mask


def _file(role: str, name: str | None) -> Iterator[tuple[str, str, Path]]:
    if name is not None and Path(name).is_file():
        yield role, Path(name).name, Path(name)
