"""Every score of a run as one flat row, for tables, CSV and JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from evaluation.csv_text import csv_text

T = TypeVar("T")
K = TypeVar("K")
MAJORITY = "majority guess"
MEAN_MASK = "mean mask"
"""Names of the baselines' rows in the tables; no method can have such a name, because of the space."""
MEDIAN = "median guess"
FLOORS = (MAJORITY, MEAN_MASK, MEDIAN)
LOWER_IS_BETTER = frozenset(
    {"MAE", "RMSE", "MAE in grades", "Brier score", "ranked probability score", "calibration error"}
)
"""Measures that are better where they are lower; HD95 too, by which nothing is ranked."""


PRIVATE, PRIVATE_MEAN, OVERALL, PUBLIC = "private", "private mean", "overall", "public"
OUTSIDE, OUTSIDE_MEAN = "outside", "outside mean"
AT_ONE = (PRIVATE, OUTSIDE)
"""Protocols of a single test site."""


@dataclass(frozen=True)
class ScoreRow:
    """One number of the report.

    protocol: private or outside (one test site), private mean, overall, public or outside mean (several).
    sites: the test sites that entered.
    low, high: 95 % interval over `copies` bootstrap copies; `ignored` more had no value. gain: over the reference
    method, on the same patients, positive = better; NaN without one. Supports as in `metrics.Support`.
    noise: standard deviation of the noise in each bin, in patients, over all sites that entered; 0 = counted. defined:
    for masks, the patients for whom the measure has a value.
    trainings: how many trainings of the method, with other seeds on the same patients, value, gain and the intervals
    over patients are means of. trained_low, trained_high, gain_trained_low, gain_trained_high: Student's 95 % intervals
    over these trainings; NaN with one.
    """

    method: str
    protocol: str
    sites: tuple[str, ...]
    measure: str
    value: float
    low: float
    high: float
    copies: int
    ignored: int
    patients: int
    images: int
    positives: int
    negatives: int
    positive_patients: int
    assessable: bool
    mixes_sites: bool
    gain: float = math.nan
    gain_low: float = math.nan
    gain_high: float = math.nan
    noise: float = 0.0
    defined: int | None = None
    trainings: int = 1
    trained_low: float = math.nan
    trained_high: float = math.nan
    gain_trained_low: float = math.nan
    gain_trained_high: float = math.nan

    @property
    def widest(self) -> tuple[float, float]:
        """The wider of both intervals of the value: what may be said of it rests on this one."""
        return select_wider((self.low, self.high), (self.trained_low, self.trained_high))

    @property
    def widest_gain(self) -> tuple[float, float]:
        """The wider of both intervals of the gain."""
        return select_wider((self.gain_low, self.gain_high), (self.gain_trained_low, self.gain_trained_high))


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by what they have in common, in order of appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def rank_value(row: ScoreRow) -> float:
    """The value of a row, with a sign by which more is better."""
    return -row.value if row.measure in LOWER_IS_BETTER else row.value


def best_word(measure: str) -> str:
    """The best value of a measure, as an adjective."""
    return "lowest" if measure in LOWER_IS_BETTER else "highest"


def select_wider(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The wider of two intervals; the first where the second is not known."""
    return second if second[1] - second[0] > first[1] - first[0] else first


@dataclass(frozen=True)
class GainRow:
    """How a method's gain over the reference spreads over n sites: mean ± population standard deviation (ddof = 0).

    noise: the largest standard deviation of noise in a bin of any site's histogram of either method; 0 = counted.
    """

    method: str
    measure: str
    mean: float
    std: float
    n: int
    improved: int
    noise: float = 0.0


@dataclass(frozen=True)
class PairRow:
    """How much better `method` is than `other` on the same patients: gain, positive = better, with the wider of its
    intervals over patients and over trainings (95 %). protocol, sites, measure, assessable: as in `ScoreRow`, of both.
    """

    method: str
    other: str
    protocol: str
    sites: tuple[str, ...]
    measure: str
    gain: float
    low: float
    high: float
    assessable: bool


@dataclass(frozen=True)
class GapRow:
    """What a line is worth in comparison with untranslated images and the oracle, on the same patients.

    untranslated, oracle: the lines that it is compared with. protocol, sites, measure: as in `ScoreRow`. gap: oracle -
    untranslated; gain: line - untranslated; positive = better; each with its 95 % interval over patients. share: gain /
    gap, NaN where it is not known, for the reason `why`.
    """

    method: str
    untranslated: str
    oracle: str
    protocol: str
    sites: tuple[str, ...]
    measure: str
    gap: float
    gap_low: float
    gap_high: float
    gain: float
    gain_low: float
    gain_high: float
    share: float
    share_low: float
    share_high: float
    why: str = ""


def scores_csv(rows: Sequence[ScoreRow]) -> str:
    """One line per row, a header, comma-separated (RFC 4180); undefined values are empty."""
    names = [field.name for field in dataclasses.fields(ScoreRow)]
    return csv_text(names, ([_csv_cell(getattr(row, name)) for name in names] for row in rows))


def to_json(value: Any, replace: Callable[[Any], Any] = lambda value: value) -> str:
    """Strict JSON of any nesting of dataclasses, mappings and sequences; NaN is null, and what is infinite is
    "Infinity" or "-Infinity". replace: what stands in the place of a value.
    """
    return json.dumps(plain_json(value, replace), indent=1, allow_nan=False, ensure_ascii=False)


def from_json(kind: type[T], text: str | bytes) -> T:
    """Undo `to_json`; a number that is null is NaN where no null may be. Of a later version, what is unknown here is
    left out.

    Raises:
        ValueError: the text is no JSON, or not of this kind.
    """
    try:
        restored: T = _restore(json.loads(text), kind)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"not of the form of {getattr(kind, '__name__', kind)}: {error}") from error
    return restored


def _csv_cell(value: object) -> object:
    """A value as it stands in a CSV: names joined by spaces; empty for a number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return " ".join(value) if isinstance(value, tuple) else value


def _restore(value: Any, hint: Any) -> Any:
    """A value of plain JSON as the type that its place has."""
    if hint is float:
        return math.nan if value is None else float(value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return hint(**{name: _restore(value[name], kind) for name, kind in _hints_of(hint).items() if name in value})
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _restore(value, next(part for part in parts if part is not NoneType))
    if origin in (tuple, Sequence):
        kinds = parts if origin is tuple and parts[1:] != (...,) else parts[:1] * len(value)
        return tuple(_restore(item, kind) for item, kind in zip(value, kinds, strict=True))
    return {key: _restore(item, parts[1]) for key, item in value.items()} if origin is Mapping else value


_hints_of = functools.cache(get_type_hints)


def plain_json(value: Any, replace: Callable[[Any], Any] = lambda value: value) -> Any:
    """Dataclasses as objects, tuples as lists, null for NaN, and "Infinity" or
    "-Infinity" for what is infinite. replace: as in `to_json`.
    """
    value = replace(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_json(item, replace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, replace) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
