"""A patient's labels: lesion and gland masks in files, or a table of labels.

`open_masks` and `open_table` check the settings and read small files (name mappings, tables) once; missing or
contradictory labels of one patient later reject only that study.
"""

from __future__ import annotations

import csv
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pipelines.data.folder import resolve_path
from pipelines.data.index import folder_problems
from pipelines.data.label_classes import class_number, shorten_number, value_problems
from pipelines.data.label_findings import FindingNames, has_known
from pipelines.data.label_numbers import Meaning
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.sources import CASE, PATIENT, SESSION, GlandMask, MaskLabels, TableLabels, VolumeMasks
from pipelines.data.study import Unusable
from pipelines.data.tables.csv_file import Line, describe_missing_columns, read_lines
from privacy.settings_error import refuse
from privacy.system_errors import of_machine


@dataclass(frozen=True)
class Masks:
    """A checked folder of masks.

    names: identifier in the images -> names in the masks' files, exactly one of which is allowed; None = the same.
    dated: what stands before an underscore in such an identifier -> the names of all of them, for a mapping that adds a
    date to each. unreadable: numbers of the mapping's lines, or pairs, that cannot be read. segment: see `MaskLabels`.
    """

    folder: Path
    pattern: str
    names: Mapping[str, frozenset[str]] | None
    unreadable: tuple[int, ...] = ()
    segment: str | None = None
    dated: Mapping[str, AbstractSet[str]] = field(default_factory=dict)


class Row(NamedTuple):
    """One line of a label table, as text. labels: one, or of each finding one. study, slice: None where the table has
    no such column.
    """

    labels: tuple[str, ...]
    study: str | None
    slice: str | None


@dataclass(frozen=True)
class Table:
    """A table of labels. rows: patient -> lines. unreadable: numbers of lines that cannot be read, 1 = first.
    classes, values: as in `class_number`.
    """

    rows: Mapping[str, tuple[Row, ...]]
    by_study: bool
    by_slice: bool
    unreadable: tuple[int, ...] = ()
    classes: Meaning = ()
    values: Mapping[str, str] = field(default_factory=dict)


def open_masks(settings: MaskLabels | GlandMask | VolumeMasks, where: str) -> Masks:
    """Check a folder of masks and read its mapping of names.

    where: the settings' name in messages, as in "labels". An error in one patient's name rejects that patient later.

    Raises:
        ValueError: the folder is missing, or the mapping cannot be read or fits no patient; all problems at once.
    """
    problems, names = folder_problems(f"{where}.folder", settings.folder), None
    broken: tuple[int, ...] = ()
    if settings.names is not None:
        try:
            names, broken = _read_names(Path(settings.names))
        except (OSError, ValueError, csv.Error) as error:
            if of_machine(error):
                raise
            problems.append(f"{where}.names: {settings.names!r} is not a mapping of names ({error})")
    if problems:
        raise ValueError("; ".join(problems))
    dated = _names_before_dates(names or {})
    segment = None if isinstance(settings, VolumeMasks) else settings.segment
    return Masks(resolve_path(Path(settings.folder)), settings.pattern, names, broken, segment, dated)


def find_mask(masks: Masks, patient: str, *, missing: str, session: str = "", visits: int = 1, case: str = "") -> Path:
    """The file of a patient's mask.

    missing: the reason code if there is no mask. session: of the study, for a pattern with {session}. visits: the
    number of the patient's sessions. case: of the image, for a pattern with {case}.

    Raises:
        Unusable: `missing`, `ambiguous_name` if several names fit the patient, or `ambiguous_mask` if one mask
            would be used for several visits.
    """
    if visits > 1 and SESSION not in masks.pattern and CASE not in masks.pattern:
        raise Unusable(
            "ambiguous_mask",
            f"the patient has {visits} visits, and one mask cannot fit them all. Put {SESSION}, which stands for the "
            "StudyInstanceUID (of NIfTI files: ses-02 of a BIDS name), into the pattern of the masks.",
        )
    name = patient if masks.names is None else _map_patient(masks, masks.names, patient, missing)
    file = masks.pattern.replace(PATIENT, name).replace(SESSION, session).replace(CASE, case)
    for form in ("NFC", "NFD"):  # file systems differ in how they encode an umlaut
        path = resolve_path(masks.folder / unicodedata.normalize(form, file))
        if path.is_relative_to(masks.folder) and path.is_file():
            return path
    raise Unusable(missing, f"there is no mask {file!r} for this patient. Add it.")


def open_table(settings: TableLabels, classes: Meaning = ()) -> Table:
    """Read a table of labels. Unreadable lines are skipped, since their patient is unknown. classes: as in
    `class_number`.

    Raises:
        ValueError: the file cannot be read, or lacks a column; or a value stands for no class.
    """
    refuse(value_problems(settings.values, classes, "labels"))
    of_labels = classes.list_columns(settings.findings) if isinstance(classes, FindingNames) else (settings.label,)
    columns = [column for column in (settings.patient, *of_labels, settings.study, settings.slice) if column]
    try:
        header, lines = read_lines(Path(settings.file))
    except (OSError, ValueError, csv.Error) as error:
        if of_machine(error):
            raise
        raise ValueError(f"labels.file: {settings.file!r} cannot be read ({error})") from error
    missing = [column for column in columns if column not in header]
    if missing:
        raise ValueError(f"labels.file: {settings.file!r} has {describe_missing_columns(missing, header)}")
    rows: dict[str, list[Row]] = {}
    for line in lines:
        if isinstance(line, Unusable):
            continue
        study, number = (line[name] if name else None for name in (settings.study, settings.slice))
        rows.setdefault(normalize_identifier(line[settings.patient]), []).append(
            Row(tuple(line[column] for column in of_labels), study, number)
        )
    patient_rows = {patient: tuple(row_list) for patient, row_list in rows.items()}
    by = settings.study is not None, settings.slice is not None
    return Table(patient_rows, *by, _unreadable_lines(lines), classes, settings.values)


def table_labels(table: Table, patient: str, study: str, slices: Sequence[int], *, alone: bool) -> list[int]:
    """The class of each of a study's `slices`; a label per patient or study holds for all of them.

    alone: whether the patient has one study only.

    Raises:
        Unusable: `no_label`, `bad_label` (of no class, or contradictory), or `ambiguous_label` (labels per slice,
            several studies, and no study column).
    """
    rows = [row for row in table.rows.get(patient, ()) if row.study is None or row.study in _study_names(study)]
    if not rows:
        what = "study" if table.by_study else "patient"
        raise Unusable(
            "no_label",
            f"the table has no line for this {what}. Add it.{_similar_names_note(patient, table.rows)}"
            f"{_unreadable_note(table.unreadable)}",
        )
    if not table.by_slice:
        return [_agreed_class(rows, "the table", table)] * len(slices)
    if not alone and not table.by_study:
        raise Unusable(
            "ambiguous_label", "labels are per slice and the patient has several studies. Add a study column."
        )
    by_slice: dict[str, list[Row]] = {}
    for row in rows:
        by_slice.setdefault(_parse_slice_number(row.slice), []).append(row)
    numbers = [_agreed_class(by_slice.get(str(number), ()), f"slice {number}", table) for number in slices]
    if isinstance(table.classes, FindingNames) and numbers and not has_known(numbers, len(table.classes.names)):
        raise Unusable("no_label", "no finding is known in any slice. Fill one in, or take the study away.")
    return numbers


def _similar_names_note(patient: str, known: Iterable[str]) -> str:
    """A sentence on identifiers that a spreadsheet or a person may have made of this one; "" if there are none."""

    def strip_marks(text: str) -> str:
        return re.sub(r"[\W_]", "", text).casefold().lstrip("0")

    near = sorted(text for text in known if text != patient and strip_marks(text) == strip_marks(patient))
    if not near:
        return ""
    zeros = all(text.lstrip("0") == patient.lstrip("0") for text in near)
    how = "leading zeros, which spreadsheets remove" if zeros else "zeros, case, spaces or punctuation"
    return f" It has {', '.join(map(repr, near[:4]))}, which differs from {patient!r} only in {how}: write it alike."


def _unreadable_lines(lines: Sequence[Line]) -> tuple[int, ...]:
    """The numbers of the lines that cannot be read, 1 = first."""
    return tuple(number for number, line in enumerate(lines, start=1) if isinstance(line, Unusable))


def _unreadable_note(unreadable: Sequence[int]) -> str:
    """A sentence on unreadable lines, one of which may be the missing one; "" if there are none."""
    if not unreadable:
        return ""
    which = ", ".join(map(str, unreadable[:8]))
    return f" Its line{'s' * (len(unreadable) > 1)} {which} cannot be read, and may be meant: correct that first."


def _read_names(path: Path) -> tuple[dict[str, frozenset[str]], tuple[int, ...]]:
    """The names of each patient, and the numbers of the lines or pairs that are not two names."""
    if path.suffix.lower() == ".json":
        pairs = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=list)
        return _collect_names(pairs if isinstance(pairs, list) else [None])
    header, lines = read_lines(path)
    return _collect_names(
        [None if isinstance(line, Unusable) else [line[name] for name in header[:2]] for line in lines]
    )


def _collect_names(pairs: Sequence[object]) -> tuple[dict[str, frozenset[str]], tuple[int, ...]]:
    """Patient -> names, and the numbers of bad pairs. A bad pair makes an empty entry, so no dated key replaces it.

    Raises:
        ValueError: there are pairs, and no patient has one name.
    """
    names: dict[str, frozenset[str]] = {}
    broken, second = [], []
    for place, pair in enumerate(pairs, start=1):
        parts = pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        key, value = (text.strip() if isinstance(text, str) else None for text in parts)
        known = names.get(normalize_identifier(key), frozenset()) if key is not None else frozenset()
        if key is not None:
            names[normalize_identifier(key)] = known | ({value} if value is not None else set())
        if key is None or value is None:
            broken.append(place)
        elif known - {value}:
            second.append(place)
    if pairs and not any(len(mask_names) == 1 for mask_names in names.values()):
        second_text = f"{second[0]} gives a second name to a patient who has one already" if second else ""
        raise ValueError(f"pair {second_text or f'{broken[0]} is not two names'}, and no patient has one name")
    return names, tuple(broken)


def _names_before_dates(names: Mapping[str, frozenset[str]]) -> dict[str, set[str]]:
    """The part of each identifier before any underscore -> the mask names of all such identifiers."""
    dated_names: dict[str, set[str]] = {}
    for key, mask_names in names.items():
        for cut in (place for place, letter in enumerate(key) if letter == "_"):
            dated_names.setdefault(key[:cut], set()).update(mask_names)
    return dated_names


def _map_patient(masks: Masks, names: Mapping[str, frozenset[str]], patient: str, missing: str) -> str:
    """The one name that the mapping gives a patient. Raises: Unusable: `ambiguous_name`, `missing`."""
    mask_names = sorted(names.get(patient, masks.dated.get(patient, ())))
    if len(mask_names) > 1:
        raise Unusable(
            "ambiguous_name", f"{len(mask_names)} names fit this patient: {', '.join(mask_names[:4])}. Leave one."
        )
    if not mask_names:
        note = f"{_similar_names_note(patient, names)}{_unreadable_note(masks.unreadable)}"
        raise Unusable(missing, f"the mapping of names does not have this patient. Add it.{note}")
    return mask_names[0]


def _study_names(study: str) -> set[str]:
    """The names by which a table may refer to a study: its whole path, a leading part of it, or any single part."""
    parts = study.split("/")
    leading = {"/".join(parts[: count + 1]) for count in range(len(parts))}
    return leading | set(parts) | {parts[-1].removesuffix(".gz").removesuffix(".nii")}


def _parse_slice_number(text: str | None) -> str:
    """A slice's number without leading zeros, as text. Raises: Unusable: `bad_label`."""
    try:
        return str(int(text or ""))
    except ValueError as error:
        raise Unusable("bad_label", f"the slice {text!r} is not a whole number. Correct the table.") from error


def _agreed_class(rows: Iterable[Row], what: str, table: Table) -> int:
    """The class of which all these lines have the label, or the findings that they tell together. Raises: Unusable:
    `bad_label`, `no_label`.
    """
    rows = [*rows]
    if isinstance(table.classes, FindingNames):
        if not rows:
            raise Unusable(
                "no_label", f"the table has no line for {what}. Add it, with empty cells if nothing is known."
            )
        lines = [row.labels for row in rows]
        return table.classes.find_code(lines, what, table.values, needed=not table.by_slice)
    texts = sorted({shorten_number(row.labels[0]) for row in rows})
    distinct_texts = [text for text in texts if text] or [""]
    numbers = {
        class_number(text, what, table.classes, table.values, mend="Correct the table.") for text in distinct_texts
    }
    if len(numbers) > 1 or "" in texts[:-1]:
        raise Unusable("bad_label", f"{what} has the labels {' and '.join(map(repr, texts))}. Leave one of them.")
    return numbers.pop()
