"""Detect sites in a folder of pictures and the table that describes them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from federation.findings import MOST_FINDINGS
from pipelines.data.tables.csv_file import read_csv
from pipelines.discovery.found import Discovery, Group, Site
from pipelines.discovery.images import PICTURES
from pipelines.discovery.labels import LABEL
from pipelines.discovery.places import site_names
from pipelines.discovery.safe import Secrets, secrets_of
from pipelines.loader.names import is_name

SITE = ("site", "hospital", "center", "centre", "source", "dataset")
PATIENT = ("patient", "patient_id", "patientid", "lesion_id", "subject", "subject_id", "case")
KIND = ("dx", "diagnosis", "grade", "isup", "grade_group", "gleason", "birads", "pirads", "stage", "type", *LABEL)
MOST_SITES, MOST_KINDS = 50, 20
UNCERTAIN = "-1"
"""How some tables of findings say that a report is not sure."""


class Kinds(NamedTuple):
    """A column of several classes, or columns of several findings: settings of the source and of the task."""

    source: Group
    task: Group


def discover_pictures(root: Path, files: Sequence[Path]) -> Discovery | None:
    """Sites of a folder of pictures; None if in no table most lines name an existing picture."""
    picture_paths = {path.relative_to(root).as_posix() for path in files if path.name.lower().endswith(PICTURES)}
    for path in files:
        if path.suffix.lower() in (".csv", ".tsv"):
            try:
                header, lines = read_csv(path)
            except (OSError, ValueError, csv.Error):
                continue
            named = _image_column(header, lines, picture_paths)
            if named is not None:
                return _build_discovery(root, path, header, lines, named)
    return None


def _image_column(
    header: Sequence[str], lines: Sequence[Mapping[str, str]], picture_paths: set[str]
) -> tuple[str, str] | None:
    """The column with the pictures' names, and the pattern that turns its values into file names."""
    endings = ["", *sorted({Path(name).suffix for name in picture_paths})]
    for column in header:
        for ending in endings:
            hits = sum(f"{line[column]}{ending}" in picture_paths for line in lines)
            if lines and hits >= 0.5 * len(lines):
                return column, f"{{image}}{ending}"
    return None


def _find_class_column(
    header: Sequence[str], lines: Sequence[Mapping[str, str]], skip: Sequence[str | None], secrets: Secrets
) -> Kinds | None:
    """The first column called as a diagnosis or a grade with 3 to 20 values, none of which tells who a patient is."""
    for column in (c for name in KIND for c in header if c.lower() == name and c not in skip):
        texts = sorted({line[column] for line in lines if line[column]}, key=_order_key)
        names = {text: _class_name(text) for text in texts}
        if not 3 <= len(texts) <= min(MOST_KINDS, len(lines) // 2) or any(secrets.tells(text) for text in texts):
            continue
        if len(set(names.values())) < len(texts) or not all(map(is_name, names.values())):
            continue
        value_settings = {} if all(text.casefold() == name for text, name in names.items()) else {"values": names}
        task = {"kind": "classification", "classes": list(names.values())}
        return Kinds({"label": column, **value_settings}, task)
    return None


def _find_finding_columns(
    header: Sequence[str], lines: Sequence[Mapping[str, str]], skip: Sequence[str | None]
) -> Kinds | None:
    """All columns of 0 and 1, where some cells may be empty or -1, if there are at least two; each a finding of its
    own.

    An empty cell, and -1, stand for a finding that nobody knows.
    """
    texts = {column: {line[column].removesuffix(".0") for line in lines} for column in header if column not in skip}
    columns = [column for column, cells in texts.items() if {"0", "1"} <= cells <= {"0", "1", "", UNCERTAIN}]
    names = {_class_name(column): column for column in columns}
    if not 2 <= len(columns) == len(names) <= MOST_FINDINGS or not all(map(is_name, names)):
        return None
    renamed: Group = {name: column for name, column in names.items() if name != column}
    source: dict[str, object] = {"findings": renamed} if renamed else {}
    source |= {"values": {UNCERTAIN: "unknown"}} if any(UNCERTAIN in texts[column] for column in columns) else {}
    return Kinds(source, {"kind": "findings", "findings": [*names]})


def _order_key(text: str) -> tuple[int, str]:
    """Numbers by their value, other texts by their letters."""
    return (int(text), "") if text.isdecimal() else (0, text.casefold())


def _class_name(text: str) -> str:
    """A text as the name of a class in settings."""
    return re.sub("[^a-z0-9]+", "_", text.casefold()).strip("_")


def _build_discovery(
    root: Path, table: Path, header: Sequence[str], lines: Sequence[Mapping[str, str]], named: tuple[str, str]
) -> Discovery:
    """Sites of a table of pictures, with their labels and doubts."""
    image, pattern = named
    patient = next((column for column in header if column.lower() in PATIENT), None)
    binary = [c for c in header if c not in (image, patient) and {line[c] for line in lines} == {"0", "1"}]
    likely = [c for c in binary if c.lower() in LABEL] if len(binary) > 1 else binary
    secrets = secrets_of(line[patient] for line in lines) if patient else secrets_of(())
    missing = [] if patient else ["no column of the table is called patient"]
    kinds = None if len(likely) == 1 else _find_class_column(header, lines, (image, patient), secrets)
    if kinds is None and not any(c.lower() in LABEL for c in likely):
        kinds = _find_finding_columns(header, lines, (image, patient))
        likely = likely if kinds is None else []
    if len(likely) != 1 and kinds is None:
        missing.append("no column of the table is clearly the label: 0 and 1, called label, or a few classes")
    source: dict[str, object] = {"kind": "picture", "folder": str(root), "table": str(table), "image": image}
    source |= {"pattern": pattern} if pattern != "{image}" else {}
    source |= {"patient": patient} if patient else {}
    source |= {"label": likely[0]} if len(likely) == 1 else {}
    source |= {} if kinds is None else kinds.source
    column = next((c for c in header if c.lower() in SITE and 1 < len({x[c] for x in lines}) <= MOST_SITES), None)
    values = sorted({line[column] for line in lines}) if column else [""]
    sites = []
    called = site_names([value or root.resolve().name for value in values], secrets)
    for value, (name, _) in zip(values, called, strict=True):
        mine = [line for line in lines if column is None or line[column] == value]
        site_source: Group = source | ({"where": {column: [value]}} if column else {})
        people = len({line[patient] for line in mine}) if patient else 0
        sites.append(
            Site(name, root, site_source, None, None, (), people, len(mine), len(mine), missing=tuple(missing))
        )
    rows = (("pictures of a table", "", "picture", "", f"{len(values)}", f"{len(lines):,}"),)
    doubts = [*filter(None, (doubt for _, doubt in called)), *_list_doubts(lines, image, patient, column)]
    if kinds is not None and kinds.task["kind"] == "findings":
        doubts.append("every column of 0 and 1 is taken for a finding; leave out of task.findings what is none")
    return Discovery("pictures", tuple(sites), tuple(doubts), rows, None if kinds is None else kinds.task)


def _list_doubts(lines: Sequence[Mapping[str, str]], image: str, patient: str | None, column: str | None) -> list[str]:
    """What a person should check in a table of pictures."""
    doubled = len(lines) - len({line[image] for line in lines})
    doubts = [f"{doubled:,} lines of the table name a picture that another line names too"] if doubled else []
    if patient and column:
        folders_by_patient: dict[str, set[str]] = {}
        for line in lines:
            folders_by_patient.setdefault(line[patient], set()).add(line[column])
        shared = sum(len(where) > 1 for where in folders_by_patient.values())
        doubts += [f"{shared:,} patients are in several hospitals; hospitals must not share patients"] if shared else []
    return doubts
