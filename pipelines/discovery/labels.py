"""Find possible labels: a table with a patient column and a column of 0 and 1, or a folder of masks."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.data.label_classes import shorten_number
from pipelines.data.nifti.bids import SESSION
from pipelines.data.tables.csv_file import read_csv
from pipelines.discovery.images import Nifti
from pipelines.discovery.safe import split_words

ENOUGH = 0.5  # share of a site's patients that labels must cover
SLICE = ("slice", "slice_index", "slice_number", "position")
LABEL = ("label", "cancer", "cspca", "cs", "clinsig", "target", "malignant", "positive", "lesion", "class", "outcome")
GLAND = frozenset({"gland", "glands", "prostate", "prostata", "organ", "wg", "whole", "gl", "pz", "tz", "zones"})
LESION = frozenset({"lesion", "lesions", "tumour", "tumor", "cancer", "label", "labels", "roi"})


@dataclass(frozen=True)
class TableFound:
    """A table of labels. labels: columns of 0 and 1, likely ones first. covered: the number of its patients."""

    file: Path
    patient: str
    labels: tuple[str, ...]
    slice: str | None
    covered: int

    @property
    def certain(self) -> bool:
        """Whether it is clear which column is the label."""
        return len(self.labels) == 1 or (self.labels[0].lower() in LABEL and self.labels[1].lower() not in LABEL)


@dataclass(frozen=True)
class MasksFound:
    """A folder of masks that are named by patient. pattern: as in `MaskLabels`. names: a mapping of names."""

    folder: Path
    pattern: str
    names: Path | None
    covered: int
    gland: bool
    lesion: bool


def find_tables(paths: Iterable[Path], patients: Collection[str]) -> list[TableFound]:
    """Tables that cover enough of these patients, best first."""
    matching_tables = [
        table for path in paths if path.suffix.lower() in (".csv", ".tsv") and (table := _match_table(path, patients))
    ]
    return sorted(
        matching_tables, key=lambda table: (-table.covered, not table.certain, table.slice is None, str(table.file))
    )


def find_masks(files: Iterable[Nifti], paths: Iterable[Path], patients: Collection[str]) -> list[MasksFound]:
    """Folders of masks that cover enough of these patients, best first. paths: files that may map names."""
    groups: dict[tuple[Path, str], list[Nifti]] = defaultdict(list)
    for file in files:
        if file.what == "mask":
            groups[file.path.parent, file.word].append(file)
    mappings = [(path, names) for path in paths if path.suffix.lower() == ".json" and (names := _read_names(path))]
    matching_masks = [each for group in groups.values() if (each := _match_masks(group, mappings, patients))]
    return sorted(matching_masks, key=lambda each: (not each.lesion, each.gland, -each.covered, str(each.folder)))


def _match_table(path: Path, patients: Collection[str]) -> TableFound | None:
    """A table as labels, if enough of its lines name patients."""
    try:
        header, lines = read_csv(path)
    except (OSError, ValueError, csv.Error):
        return None
    known = set(patients)
    counts = {column: len({line[column] for line in lines} & known) for column in header}
    patient = max(header, key=lambda column: (counts[column], "patient" in column.lower()))
    if not counts[patient] or counts[patient] < ENOUGH * len(known):
        return None
    mine = [line for line in lines if line[patient] in known]
    binary = [
        column
        for column in header
        if column != patient and {shorten_number(line[column]) for line in mine} == {"0", "1"}
    ]
    numbered = next((c for c in header if c.lower() in SLICE and all(line[c].isdigit() for line in mine)), None)
    columns = sorted((c for c in binary if c != numbered), key=lambda c: c.lower() not in LABEL)
    return TableFound(path, patient, tuple(columns), numbered, counts[patient]) if columns else None


def _match_masks(
    group: Sequence[Nifti], mappings: Sequence[tuple[Path, Mapping[str, str]]], patients: Collection[str]
) -> MasksFound | None:
    """A folder as masks, if its files or a file of names cover enough patients."""
    stems = {file.patient for file in group}
    covered, names = len(stems & set(patients)), None
    for path, pairs in mappings:
        mapped = sum(1 for patient in patients if _map_name(pairs, patient) in stems)
        covered, names = (mapped, path) if mapped > covered else (covered, names)
    if not covered or covered < ENOUGH * len(set(patients)):
        return None
    first = group[0]
    ends = first.path.name[len(first.patient) :]
    ends = SESSION.sub("_{session}_", ends, count=1) if first.bids else ends
    folder_words = {*split_words(first.path.parent.name), *split_words(first.word)}
    return MasksFound(
        first.path.parent, f"{{patient}}{ends}", names, covered, bool(folder_words & GLAND), bool(folder_words & LESION)
    )


def _map_name(names: Mapping[str, str], patient: str) -> str | None:
    """The name to which a patient's images are mapped, if there is exactly one."""
    values = {value for key, value in names.items() if key == patient or key.startswith(f"{patient}_")}
    return values.pop() if len(values) == 1 else None


def _read_names(path: Path) -> Mapping[str, str]:
    """The names in a JSON file that maps names; empty if it is none."""
    try:
        names_by_file = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    flat = isinstance(names_by_file, dict) and all(isinstance(value, str) for value in names_by_file.values())
    return {str(key): str(value) for key, value in names_by_file.items()} if flat else {}
