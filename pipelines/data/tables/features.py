"""Read lines of a table as examples: numbers, and categories whose vocabulary is in the settings.

Vocabularies come from the YAML and never from the data: if sites pooled them, each would learn which values the others'
patients have. The scaling of features changes results (docs/results.md): by each site's own training patients, by those
of all sites, which is a separate release (`moments`), or by ranges in the settings. Only the last is independent of the
other patients, so that under differential privacy one patient cannot change another's numbers.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.data.images import Features
from pipelines.data.intake import Examples, Intake, ReadStudy, WaitingStudy, empty_masks
from pipelines.data.label_classes import class_number, value_problems
from pipelines.data.label_findings import FindingNames
from pipelines.data.label_numbers import LabelRange, Meaning
from pipelines.data.pseudonym import normalize_identifier
from pipelines.data.sources import TableSource
from pipelines.data.study import Unusable
from pipelines.data.tables.csv_file import (
    describe_missing_columns,
    line_items,
    read_lines,
    reject_unreadable_lines,
    select_lines,
)
from privacy.message import Json, number_of
from privacy.settings_error import refuse
from privacy.system_errors import of_machine

Floats = NDArray[np.float64]
UNITS = {
    "site": "site's standard deviations",
    "pooled": "pooled standard deviations",
    "declared": "share of the declared range",
    "none": "as in the table",
}
COMPONENTS = "along the site's own principal axes"
LARGEST = float(np.finfo(np.float32).max)
NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def open_lines(source: TableSource, images: Features, *, labelled: bool = True, classes: Meaning = ()) -> Intake:
    """Read the table; each line becomes a waiting study. labelled: if False, every label is 0. classes: as in
    `class_number`.

    Raises:
        ValueError: settings are wrong (no such file or column, no line fits, ...); all problems at once.
    """
    try:
        header, everything = read_lines(Path(source.file), source.columns, source.separator)
        lines = select_lines(everything, source.where)
    except (OSError, ValueError, csv.Error) as error:
        if of_machine(error):
            raise
        raise ValueError(f"source.file: {source.file!r} cannot be read ({error})") from error
    refuse(value_problems(source.values, classes, "source"))
    if isinstance(classes, LabelRange) and source.positive_above is not None:
        raise ValueError("source.positive_above: it makes two classes of a number, and the task learns the number")
    findings = classes.list_columns(source.findings) if labelled and isinstance(classes, FindingNames) else ()
    if labelled and isinstance(classes, FindingNames) != bool(source.findings):
        raise ValueError(_describe_wrong_columns(classes))
    label = [source.label] if labelled and source.label is not None else []
    value_columns = (*images.numbers, *images.categories, *label)
    needed = [*value_columns, *findings, *([source.patient] if source.patient else [])]
    if missing := [name for name in needed if name not in header]:
        raise ValueError(f"source.file: {describe_missing_columns(missing, header)}")
    waiting = [
        WaitingStudy(
            _line_patient(source, number, line),
            f"line {number}",
            partial(_read_line, number, line, source, images, value_columns, classes if labelled else ()),
        )
        for number, line in lines
    ]
    broken = reject_unreadable_lines(everything)
    unselected = len(everything) - len(broken) - len(lines)
    unit = UNITS[images.normalize] if images.components is None else COMPONENTS
    items = line_items(everything, [number for number, _ in lines], source.where)
    return Intake(tuple(waiting), tuple(broken), items, unselected, unit, of="lines")


def _line_patient(source: TableSource, number: int, line: Mapping[str, str]) -> str:
    """The patient of a line: its number, or the text in the patient column."""
    return str(number) if source.patient is None else normalize_identifier(line[source.patient])


def _read_line(
    number: int,
    line: Mapping[str, str],
    source: TableSource,
    images: Features,
    value_columns: tuple[str, ...],
    classes: Meaning = (),
) -> ReadStudy:
    """One line as an example with its label. Raises: Unusable."""
    patient = _line_patient(source, number, line)
    if not patient:
        raise Unusable("no_patient", f"the column {source.patient} is empty. Every line must name its patient.")
    if absent := [name for name in value_columns if line[name] in source.missing]:
        raise Unusable("missing_value", f"no value in {', '.join(absent)}. Fill them in; lines are not imputed.")
    graded = source.positive_above is not None and not classes
    named = {*images.categories, *([] if graded else [source.label])} - {*images.numbers}
    numbers = {name: _parse_number(name, line[name]) for name in value_columns if name not in named}
    columns = [numbers[name] for name in images.numbers]
    for name, values in images.categories.items():
        columns += _encode_category(name, line[name], values)
    row = scale_to_ranges(np.array(columns, np.float64), images).astype(np.float32)
    examples = Examples(row[None], empty_masks(1), empty_masks(1), np.zeros(1, np.float32))
    if isinstance(classes, FindingNames):
        cells = [
            "" if line[column] in source.missing else line[column] for column in classes.list_columns(source.findings)
        ]
        label = classes.find_code([cells], "the line", source.values)
    elif source.label is None or source.label not in value_columns:
        label = 0
    elif source.positive_above is not None and not classes:
        label = int(numbers[source.label] > source.positive_above)
    else:
        what = f"the column {source.label}"
        label = class_number(line[source.label], what, classes, source.values, mend=_label_advice(source, classes))
    return ReadStudy(patient, f"line {number}", examples, [label], "unknown")


def _describe_wrong_columns(classes: Meaning) -> str:
    """What is wrong with a table that names a column of labels where findings are learnt, or the other way round."""
    if isinstance(classes, FindingNames):
        return "source.findings: missing; the task learns several findings: say finding: column for each, and no label"
    return "source.findings: the task learns one label; name its column as label, and remove findings"


def _label_advice(source: TableSource, classes: Meaning) -> str:
    """What to do about a label that stands for no class."""
    if classes or source.values:  # a range is true as well
        return "Correct the table."
    return (
        "Say positive_above, the number above which labels are positive (1 where 1 is no and 2 is yes), "
        "or values: {<text>: negative, <text>: positive}, or correct the table."
    )


def _parse_number(name: str, text: str) -> float:
    """A number of a line. Raises: Unusable: `not_a_number`."""
    if not NUMBER.fullmatch(text) or not abs(float(text)) <= LARGEST:
        comma = ", with a point and not a comma" if "," in text else ""
        raise Unusable(
            "not_a_number", f"{name} holds {text!r}; a number up to 3e38 is needed{comma}. Correct the table."
        )
    return float(text)


def _encode_category(name: str, text: str, values: tuple[str, ...]) -> list[float]:
    """One-hot without the first value; "3.0" is the same category as "3"."""
    short = f"{float(text):.15g}" if NUMBER.fullmatch(text) else text
    category = next((place for place, value in enumerate(values) if value in (text, short)), None)
    if category is None:
        raise Unusable(
            "unknown_category",
            f"{name} holds {text!r}; its vocabulary is {', '.join(values)}. Correct the table, or add it everywhere.",
        )
    return [float(place == category) for place in range(1, len(values))]


def scale_to_ranges(row: Floats, images: Features) -> Floats:
    """A line's features (F,), with numbers clipped to the declared ranges and scaled to [0, 1], independent of others.

    Unchanged if `normalize` is not `declared`.
    """
    if images.normalize != "declared":
        return row
    low, high = np.array([images.ranges[name] for name in images.numbers], np.float64).reshape(-1, 2).T
    count = len(images.numbers)
    return np.concatenate([(np.clip(row[:count], low, high) - low) / (high - low), row[count:]])


@dataclass(frozen=True)
class Moments:
    """Number, sums and sums of squares of training examples, for pooled standardization. (F,) float64."""

    count: float
    total: Tensor
    squares: Tensor


def moments(x: Tensor) -> Moments:
    """Moments of examples (n, F)."""
    wide = x.double()
    return Moments(float(len(x)), wide.sum(dim=0), (wide**2).sum(dim=0))


def standardize_features(x: Tensor, known: Moments) -> Tensor:
    """Examples (n, F) minus the mean, divided by the (n-1) standard deviation where that is not 0."""
    mean, spread = _mean_and_spread(known)
    return ((x.double() - mean) / spread).float()


def restore_table_values(x: Tensor, images: Features, known: Moments | None) -> Tensor:
    """Examples (n, F) in the table's own numbers, float64, to the six digits of float32.

    The inverse of `standardize_features`, or of `scale_to_ranges`, apart from clipped values.
    """
    if images.normalize == "declared":
        ends = [images.ranges[name] for name in images.numbers]
        ends += [(0.0, 1.0)] * (x.shape[1] - len(ends))  # categories
        low, high = torch.tensor(ends, dtype=torch.float64).T
        return _unscale_values(x, low, high - low)
    return x.double() if known is None else _unscale_values(x, *_mean_and_spread(known))


def _unscale_values(x: Tensor, offset: Tensor, factor: Tensor) -> Tensor:
    """x * factor + offset, rounded to the six digits that float32 holds."""
    grain = 10.0 ** (torch.log10((offset.abs() + factor).clamp(min=1e-30)).floor() - 5)
    return ((x.double() * factor + offset) / grain).round() * grain


def _mean_and_spread(known: Moments) -> tuple[Tensor, Tensor]:
    """The mean to subtract and the divisor, (F,) each."""
    mean = known.total / max(known.count, 1.0)
    variance = (known.squares - known.count * mean**2) / max(known.count - 1, 1.0)
    spread = variance.clamp(min=0).sqrt()
    # Squares of large numbers cancel: a spread below this share of the mean is a rounding error.
    constant = spread <= 1e-6 * mean.abs().clamp(min=1e-6)
    return mean, spread.masked_fill(constant, 1.0)


def to_json(known: Moments) -> Json:
    """Moments as a cohort and a ready model keep them."""
    return {"count": known.count, "total": known.total.tolist(), "squares": known.squares.tolist()}


def from_json(value: Json) -> Moments | None:
    """The inverse of `to_json`; None for null."""
    if not isinstance(value, dict):
        return None
    total, squares = (torch.tensor(value[name], dtype=torch.float64) for name in ("total", "squares"))
    return Moments(number_of(value, "count"), total, squares)
