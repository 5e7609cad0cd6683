"""Detect changes in a hospital's folders from names, sizes and times, without opening an image."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipelines.data.folder import list_files, resolve_path
from pipelines.data.sources import (
    Files,
    GlandMask,
    Labels,
    MaskLabels,
    PictureSource,
    TableLabels,
    TableSource,
    TensorSource,
)
from privacy.message import Json


def survey(source: Files, labels: Labels | None, gland: GlandMask | None = None) -> dict[str, Json]:
    """Count a cohort's input files, and compute a digest that changes if one of them does.

    Returns:
        `files`, `bytes`, and `digest`: SHA-256 over each file's role, path below its folder, size and modification time
        in ns; and which of them this user may not read, for permission that is given changes none of these. A missing
        folder counts as empty.
    """
    digest, files, size = hashlib.sha256(), 0, 0
    for role, name, path in _list_inputs(source, labels, gland):
        try:
            status = path.stat()
        except OSError:  # removed since the folder was listed
            continue
        closed = "" if os.access(path, os.R_OK) else "\0closed"
        line = f"{role}\0{name}\0{status.st_size}\0{status.st_mtime_ns}{closed}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
        files, size = files + 1, size + status.st_size
    return {"files": files, "bytes": size, "digest": digest.hexdigest()}


def _list_inputs(source: Files, labels: Labels | None, gland: GlandMask | None) -> Iterator[tuple[str, str, Path]]:
    """Role, name and path of each file that the cohort depends on."""
    if isinstance(source, TableSource | TensorSource):
        yield from _list_file("source", source.file)
    elif isinstance(source, PictureSource):
        yield from _list_file("source table", source.table)
        yield from _list_folder("source", source.folder) if source.table is None else _list_pictures(source)
        if source.table is None and source.masks is not None:
            yield from _list_folder("source masks", source.masks.folder)
    else:
        yield from _list_folder("source", source.folder)
        if source.masks is not None:
            yield from _list_folder("source masks", source.masks.folder)
            yield from _list_file("source masks names", source.masks.names)
    if isinstance(labels, TableLabels):
        yield from _list_file("labels", labels.file)
    for role, masks in (("labels", labels), ("gland", gland)):
        if isinstance(masks, MaskLabels | GlandMask):
            yield from _list_folder(role, masks.folder)
            yield from _list_file(f"{role} names", masks.names)


def _list_folder(role: str, folder: str) -> Iterator[tuple[str, str, Path]]:
    """Role, relative path and path of each file below a folder."""
    root = resolve_path(Path(folder))
    for path in list_files(root):
        yield role, path.relative_to(root).as_posix(), path


def _list_pictures(source: PictureSource) -> Iterator[tuple[str, str, Path]]:
    """The pictures that the table names, and their masks; the folder may hold those of other hospitals."""
    from pipelines.data.pictures.label_maps import map_name  # readers are slow to import
    from pipelines.data.pictures.reader import picture_names

    with suppress(OSError, ValueError, csv.Error):  # a bad table is reported when it is opened
        for name in picture_names(source):
            path = Path(source.folder, source.pattern.replace("{image}", name))
            if path.is_file():
                yield "source", name, path
            mask = None if source.masks is None else Path(source.masks.folder, map_name(source.masks.pattern, name))
            if mask is not None and mask.is_file():
                yield "source masks", name, mask


def _list_file(role: str, name: str | None) -> Iterator[tuple[str, str, Path]]:
    """Role, name and path of one file, if it exists."""
    if name is not None and Path(name).is_file():
        yield role, Path(name).name, Path(name)
