"""Which files of a folder of pictures belong to which line of a table, and why the others belong to none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pipelines.data.contents import left_out
from pipelines.data.folder import Walk, below
from pipelines.data.pictures.label_maps import SUFFIXES, Maps, map_name
from pipelines.data.study import Item

UNNAMED = "No line of the table names it. Add a line, or take the picture away."


class Tabled(NamedTuple):
    """A line of a table, or a picture that needs none. asked: whether the settings ask for it, or it cannot be read.
    file: below the folder, None = not known. name: what names it, and its mask.
    """

    study: str
    asked: bool
    file: str | None
    name: str
    patient: str


def listed_items(root: Path, found: Walk, lines: Sequence[Tabled], maps: Maps | None) -> tuple[Item, ...]:
    """Each file below the folder, and each line whose picture is not among them; a mask belongs to its picture."""
    owners: dict[Path, list[Tabled]] = {}
    for line in lines:
        for path in _paths(root, line, maps):
            owners.setdefault(path, []).append(line)
    items = [_item(root, path, owners.get(path.resolve(), [])) for path in found.files]
    there = {path.resolve() for path in found.files}
    lost = [line for line in lines if line.file is None or (root / line.file).resolve() not in there]
    return (*found.left, *items, *(_of_lines(line.study, [line]) for line in lost))


def _paths(root: Path, line: Tabled, maps: Maps | None) -> list[Path]:
    if line.file is None:
        return []
    masks = [(maps.folder / map_name(maps.pattern, line.name)).resolve()] if maps else []
    return [(root / line.file).resolve(), *masks]


def _item(root: Path, path: Path, owners: Sequence[Tabled]) -> Item:
    name = below(root, path)
    if owners:
        return _of_lines(name, owners)
    if path.suffix.lower() in SUFFIXES:
        return Item(name, "not_selected", reason="not_in_table", detail=UNNAMED)
    return left_out(name, path, "picture")


def _of_lines(name: str, owners: Sequence[Tabled]) -> Item:
    asked = tuple(line.study for line in owners if line.asked)
    if asked:
        return Item(name, "part", asked, next(line.patient for line in owners if line.asked))
    detail = "where asks for lines with other values."
    return Item(name, "not_selected", (), "", "", "line_not_selected", detail)
