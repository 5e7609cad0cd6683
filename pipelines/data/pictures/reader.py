"""Read picture files (JPEG, PNG, ...): a table gives their patients and labels, or each has its own label map."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipelines.data.contents import left_out
from pipelines.data.folder import Stamp, Walk, read_steadily, relative_name, resolve_path, stamp_file, walk_folder
from pipelines.data.images import Pictures, Target
from pipelines.data.index import folder_problems
from pipelines.data.intake import Examples, Intake, ReadStudy, WaitingStudy, empty_masks, try_collecting
from pipelines.data.label_classes import class_number, value_problems
from pipelines.data.label_findings import FindingNames
from pipelines.data.label_maps import has_class
from pipelines.data.label_numbers import LabelRange, Meaning
from pipelines.data.measures import MeasuredStudy, measure_picture
from pipelines.data.pictures.label_maps import SUFFIXES, Maps, find_map, map_name, open_maps
from pipelines.data.pictures.pixels import read_full_pair, read_pair, read_whole_pair
from pipelines.data.pictures.pixels import read_picture as read_picture
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.sources import PictureSource
from pipelines.data.study import Item, Rejected, Unusable, WholePicture
from pipelines.data.tables.csv_file import (
    Line,
    describe_missing_columns,
    read_lines,
    reject_unreadable_lines,
    select_lines,
)
from privacy.system_errors import of_machine

UNNAMED = "No line of the table names it. Add a line, or take the picture away."
UNIT = "intensity, -1 to 1"


class Entry(NamedTuple):
    """A selected picture. name: in the table, or its path; also determines its mask. label: None = from its mask.
    stamp: of the file when it was listed; None = it did not exist.
    """

    study: str
    patient: str
    label: int | None
    name: str
    path: Path
    stamp: Stamp | None = None


class Listed(NamedTuple):
    """Selected pictures; counts as in `Intake`."""

    entries: list[Entry]
    rejected: list[Rejected]
    items: tuple[Item, ...]
    unselected: int


def picture_names(source: PictureSource) -> list[str]:
    """The names of the pictures in the table's chosen lines.

    Raises:
        OSError, ValueError, csv.Error: the table cannot be read, or lacks the column.
    """
    if source.table is None:
        raise ValueError("there is no table; the folder's pictures are taken as they are")
    header, lines = read_lines(Path(source.table))
    if source.image not in header:
        raise ValueError(f"no column {source.image}; see the names in its first line")
    return [line[source.image] for _, line in select_lines(lines, source.where)]


def open_pictures(
    source: PictureSource,
    images: Pictures,
    target: Target | None = None,
    classes: tuple[str, ...] = (),
    meaning: LabelRange | FindingNames | None = None,
) -> Intake:
    """Read the table, or the folder; each line, or picture, becomes a waiting study. target, classes: see
    `read_cohort`. meaning: of labels that are no classes.

    Raises:
        ValueError: settings are wrong (a folder or column is missing, no line fits, ...); all problems at once.
    """
    problems = folder_problems("source.folder", source.folder)
    root = resolve_path(Path(source.folder))
    masks, labels = source.masks, () if target else meaning or classes
    maps = None if masks is None else try_collecting(problems, lambda: open_maps(masks, classes if target else ()))
    problems += map(str, value_problems(source.values, labels, "source"))
    if isinstance(meaning, LabelRange) and (source.table is None or source.label is None):
        problems.append("source.label: missing; a number stands in a column of a table, not in masks")
    if isinstance(meaning, FindingNames) and source.table is None:
        problems.append("source.table: missing; findings stand in columns of a table, not in masks")
    if target == "masks" and not classes:
        problems.append("classes: missing; say in which order the label maps' classes are learnt, alike at all sites")
    listed = None
    if source.table is not None:
        listed = try_collecting(problems, lambda: _list_table_pictures(source, root, maps, labels))
    elif maps is not None and root.is_dir():
        listed = try_collecting(problems, lambda: _list_folder_pictures(root, maps))
    if listed is None or problems:
        raise ValueError("; ".join(problems))
    shared = Counter(map_name(maps.pattern, entry.name) for entry in listed.entries) if maps else Counter[str]()
    waiting = tuple(
        WaitingStudy(
            entry.patient,
            entry.study,
            partial(_read_picture_study, entry, root, images, maps, shared),
            partial(_foresee_picture, entry, root, maps, shared),
            partial(_measure_picture, entry, root, maps, shared),
            read_whole=partial(_read_whole_picture, entry, root, images, maps, shared),
        )
        for entry in listed.entries
    )
    seen = maps.classes if maps else ()
    return Intake(waiting, tuple(listed.rejected), listed.items, listed.unselected, UNIT, seen)


def open_loose_pictures(folder: str, images: Pictures) -> Intake:
    """Every picture file below a folder, without a table: its path is used as the patient, and every label is 0.

    Raises:
        ValueError: there is no such folder, or no picture in it; or `images` crops around masks.
    """
    problems = folder_problems("folder", folder)
    if images.fit == "around":
        problems.append("images.fit: around cuts about each picture's mask, and new pictures have none")
    if problems:
        raise ValueError("; ".join(problems))
    root = resolve_path(Path(folder))
    listed = _list_folder_pictures(root, None)
    waiting = [
        WaitingStudy(entry.patient, entry.study, partial(_read_picture_study, entry, root, images, None))
        for entry in listed.entries
    ]
    return Intake(tuple(waiting), tuple(listed.rejected), listed.items, 0, UNIT)


def check_table(source: PictureSource, classes: Meaning = ()) -> None:
    """Read a source's table, if it has one, and no folder. classes: what its labels mean.

    Raises:
        ValueError: it cannot be read, or lacks a column.
    """
    if source.table is not None:
        _select_lines(source, classes)


def _list_label_columns(source: PictureSource, classes: Meaning) -> tuple[str, ...]:
    """The columns of the labels."""
    if isinstance(classes, FindingNames):
        return classes.list_columns(source.findings)
    return () if source.label is None else (source.label,)


def _select_lines(source: PictureSource, classes: Meaning) -> tuple[list[Line], list[tuple[int, dict[str, str]]]]:
    """All lines of a source's table, and the chosen ones. Raises: as `check_table`."""
    try:
        header, everything = read_lines(Path(source.table or ""))
        lines = select_lines(everything, source.where)
    except (OSError, ValueError, csv.Error) as error:
        if of_machine(error):
            raise
        raise ValueError(f"source.table: {source.table!r} cannot be read ({error})") from error
    columns = [source.image, source.patient, *_list_label_columns(source, classes)]
    if missing := [name for name in columns if name not in header]:
        hint = "; with masks, label may be null" if source.masks and source.label in missing else ""
        raise ValueError(f"source.table: {describe_missing_columns(missing, header)}{hint}")
    return everything, lines


def _list_table_pictures(source: PictureSource, root: Path, maps: Maps | None, classes: Meaning) -> Listed:
    """The pictures that the chosen lines of the table name. Raises: as `check_table`."""
    everything, lines = _select_lines(source, classes)
    name_counts = Counter(line[source.image] for _, line in lines)
    entries: list[Entry] = []
    rejected = reject_unreadable_lines(everything)
    seen = len(lines) + len(rejected)
    for number, line in lines:
        study = f"line {number}: {line[source.image]}"
        try:
            patient, label = _parse_patient_and_label(source, line, name_counts, classes)
        except Unusable as error:
            rejected.append(Rejected(study, error.reason, error.detail))
            continue
        path = root / source.pattern.replace("{image}", line[source.image])
        entries.append(Entry(study, patient, label, line[source.image], path, _stamp_if_present(path)))
    walk = walk_folder(root) if root.is_dir() else Walk((), (), ())
    items = list_picture_items(root, walk, _describe_table_lines(source, everything, dict(lines)), maps)
    return Listed(entries, [*rejected, *walk.rejected], items, len(everything) - seen)


def _describe_table_lines(
    source: PictureSource, everything: Sequence[Line], chosen_lines: Mapping[int, Mapping[str, str]]
) -> list[Tabled]:
    """Every line of the table, chosen or not, with its picture."""
    rows = []
    for number, line in enumerate(everything, start=1):
        if isinstance(line, Unusable):
            rows.append(Tabled(f"line {number}", True, None, "", ""))
        else:
            name = line.get(source.image, "")
            patient = normalize_identifier(line.get(source.patient, ""))
            file = source.pattern.replace("{image}", name)
            rows.append(Tabled(f"line {number}: {name}", number in chosen_lines, file, name, patient))
    return rows


def _stamp_if_present(path: Path) -> Stamp | None:
    """The file's stamp; None if it cannot be read."""
    try:
        return stamp_file(path)
    except Unusable:
        return None


def _list_folder_pictures(root: Path, maps: Maps | None) -> Listed:
    """Every picture below a folder that is not a mask of another. Raises: ValueError: there is none."""
    walk = walk_folder(root)
    paths = {relative_name(root, path): path for path in walk.files if path.suffix.lower() in SUFFIXES}
    masks = {resolve_path(maps.folder / map_name(maps.pattern, name)) for name in paths} if maps else set()
    pictures = {name: path for name, path in paths.items() if resolve_path(path) not in masks}
    if not pictures and not walk.rejected:
        raise ValueError(f"folder: no picture ({', '.join(SUFFIXES)}) below {str(root)!r}; give another folder")
    label = None if maps else 0
    entries = [
        Entry(name, normalize_identifier(name) if maps else name, label, name, path, _stamp_if_present(path))
        for name, path in pictures.items()
    ]
    items = list_picture_items(
        root, walk, [Tabled(entry.study, True, entry.name, entry.name, entry.patient) for entry in entries], maps
    )
    return Listed(entries, list(walk.rejected), items, 0)


def _parse_patient_and_label(
    source: PictureSource, line: Mapping[str, str], name_counts: Mapping[str, int], classes: Meaning
) -> tuple[str, int | None]:
    """The patient and the label of one line. Raises: Unusable."""
    patient = normalize_identifier(line[source.patient])
    if not patient:
        raise Unusable("no_patient", f"the column {source.patient} is empty. Every picture must name its patient.")
    label = None
    if isinstance(classes, FindingNames):
        cells = [line[column] for column in classes.list_columns(source.findings)]
        label = classes.find_code([cells], "the line", source.values)
    elif source.label is not None:
        what = f"the column {source.label}"
        label = class_number(line[source.label], what, classes, source.values, mend="Correct the table.")
    if name_counts[line[source.image]] > 1:
        raise Unusable("duplicate_picture", f"{name_counts[line[source.image]]} lines name this picture; leave one.")
    return patient, label


def _foresee_picture(entry: Entry, root: Path, maps: Maps | None, shared: Mapping[str, int] | None) -> None:
    """Raise what `_read_picture_study` would for missing files and for masks of several pictures."""
    if entry.stamp is None or not resolve_path(entry.path).is_relative_to(root) or not entry.path.is_file():
        raise Unusable(
            "no_picture", f"there is no file {entry.path.name!r} for it below the folder. Add it, or drop its line."
        )
    if maps is None:
        return
    if (count := (shared or {}).get(map_name(maps.pattern, entry.name), 1)) > 1:
        raise Unusable("ambiguous_mask", f"{count} pictures would have one mask. Put {{image}} into its pattern.")
    find_map(maps, entry.name)


def _read_picture_study(
    entry: Entry, root: Path, images: Pictures, maps: Maps | None, shared: Mapping[str, int] | None = None
) -> ReadStudy:
    """The study of one entry, read while its file does not change."""

    def read_entry() -> ReadStudy:
        _foresee_picture(entry, root, maps, shared)
        return _read_entry(entry, images, maps)

    return read_entry() if entry.stamp is None else read_steadily({entry.path: entry.stamp}, read_entry)


def _measure_picture(
    entry: Entry, root: Path, maps: Maps | None, shared: Mapping[str, int] | None = None
) -> MeasuredStudy:
    """One picture as it is, and what its mask shows, read while its file does not change."""

    def measure_entry() -> MeasuredStudy:
        _foresee_picture(entry, root, maps, shared)
        if maps is None:
            raise Unusable("no_mask", "there is no mask for it, and a fingerprint is of what masks show. Add one.")
        grey, classes = read_full_pair(entry.path, maps, entry.name)
        return measure_picture(entry.patient, entry.study, grey, classes, len(maps.classes))

    return measure_entry() if entry.stamp is None else read_steadily({entry.path: entry.stamp}, measure_entry)


def _read_whole_picture(
    entry: Entry, root: Path, images: Pictures, maps: Maps | None, shared: Mapping[str, int] | None = None
) -> WholePicture:
    """One picture as it is, and its label map, read while its file does not change."""

    def read_entry() -> WholePicture:
        _foresee_picture(entry, root, maps, shared)
        if maps is None:
            raise Unusable("no_mask", "there is no mask for it, and pictures are written with masks. Add one.")
        return WholePicture(*read_whole_pair(entry.path, images, maps, entry.name))

    return read_entry() if entry.stamp is None else read_steadily({entry.path: entry.stamp}, read_entry)


def _read_entry(entry: Entry, images: Pictures, maps: Maps | None) -> ReadStudy:
    """The examples and the label of one picture, with its mask if there are masks."""
    none = empty_masks(1)
    if maps is None:
        picture, mask = read_picture(entry.path, images), none
    else:
        picture, labels = read_pair(entry.path, images, maps, entry.name)
        mask = labels[None]
    label = entry.label if entry.label is not None else int(has_class(mask))
    examples = Examples(picture[None], none, none, np.zeros(1, np.float32), mask)
    return ReadStudy(entry.patient, entry.study, examples, [label], "unknown")


class Tabled(NamedTuple):
    """A line of a table, or a picture without one. is_selected: whether the settings select it, or it cannot be read.
    file: below the folder, None = unknown. name: of the picture, which also determines its mask.
    """

    study: str
    is_selected: bool
    file: str | None
    name: str
    patient: str


def list_picture_items(root: Path, walk: Walk, lines: Sequence[Tabled], maps: Maps | None) -> tuple[Item, ...]:
    """Items for each file below the folder, and each line whose picture is missing; masks count as their picture."""
    owners: dict[Path, list[Tabled]] = {}
    for line in lines:
        for path in _line_paths(root, line, maps):
            owners.setdefault(path, []).append(line)
    items = [_file_item(root, path, owners.get(resolve_path(path), [])) for path in walk.files]
    present_paths = {resolve_path(path) for path in walk.files}
    lost = [line for line in lines if line.file is None or resolve_path(root / line.file) not in present_paths]
    return (*walk.left, *items, *(_lines_item(line.study, [line]) for line in lost))


def _line_paths(root: Path, line: Tabled, maps: Maps | None) -> list[Path]:
    """The paths of a line's picture and of its mask."""
    if line.file is None:
        return []
    masks = [resolve_path(maps.folder / map_name(maps.pattern, line.name))] if maps else []
    return [resolve_path(root / line.file), *masks]


def _file_item(root: Path, path: Path, owners: Sequence[Tabled]) -> Item:
    """The item of one file: of the lines that use it, or why none does."""
    name = relative_name(root, path)
    if owners:
        return _lines_item(name, owners)
    if path.suffix.lower() in SUFFIXES:
        return Item(name, "not_selected", reason="not_in_table", detail=UNNAMED)
    return left_out(name, path, "picture")


def _lines_item(name: str, owners: Sequence[Tabled]) -> Item:
    """The item of a file or a missing picture, by the lines that use it."""
    selected_studies = tuple(line.study for line in owners if line.is_selected)
    if selected_studies:
        return Item(name, "part", selected_studies, next(line.patient for line in owners if line.is_selected))
    detail = "where asks for lines with other values."
    return Item(name, "not_selected", (), "", "", "line_not_selected", detail)
