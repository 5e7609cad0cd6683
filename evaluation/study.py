"""A study: the same methods in several cases, each run with several seeds; where they gain and where they lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluation.drawing import Picture
from evaluation.gap_rows import Compared
from evaluation.metrics import AUC, BALANCED_ACCURACY
from evaluation.oracle_gap import Share
from evaluation.panels import split_names
from evaluation.records import Command
from evaluation.rows import OVERALL, PRIVATE_MEAN
from evaluation.study_figures import Gain, Gains, draw_gains_by_share, draw_gains_by_site
from evaluation.study_numbers import EVERY, Cell, Key, Spread, StudyRow, compute_spread
from evaluation.study_worth import Worths, compute_worths

MEASURES = (AUC.name, BALANCED_ACCURACY.name)
"""The default measures of a page; the table has all."""
POOLED, MEAN, ALL = f"/{OVERALL}", f"/{PRIVATE_MEAN}", f"/{EVERY}"


@dataclass(frozen=True)
class StudyRun:
    """One run. page: its page, relative to the study's; empty = not done, and `state` says why. target: the hospital
    whose images were imitated. unused: translations that a hospital did not use, with the reasons.
    """

    run: str
    seed: int
    state: str
    page: str = ""
    target: str = ""
    unused: tuple[str, ...] = ()


@dataclass(frozen=True)
class StudyCase:
    """One case. share: of the patients in training. sites, methods: of its runs. compared: lines whose share of the
    oracle gap can be computed.
    """

    name: str
    what: str
    share: float
    sites: tuple[str, ...]
    methods: tuple[str, ...]
    reference: str
    runs: tuple[StudyRun, ...]
    compared: tuple[Compared, ...] = ()


@dataclass(frozen=True)
class StudyPage:
    """The page. varies: what differs between seeds, in a sentence. settings: the study's YAML as plain text. measures:
    those on the page. masks: whether methods segment, so that no patient is positive or negative.
    """

    title: str
    name: str
    date: str
    base: str
    what: str
    varies: str
    cases: tuple[StudyCase, ...]
    rows: tuple[StudyRow, ...]
    commands: tuple[Command, ...]
    settings: str
    measures: tuple[str, ...] = MEASURES
    masks: bool = False


@dataclass(frozen=True)
class Balance:
    """Where a method gains in a case, and where it loses. sites: hospitals whose mean over seeds is a gain, of all that
    have one. times: the same for pairs of hospital and seed. worst: the hospital that gains least, and its gain.
    """

    case: str
    method: str
    pooled: Spread
    sites: tuple[int, int]
    times: tuple[int, int]
    worst: str
    least: Spread


def compute_balances(cases: Sequence[StudyCase], cell_by_key: Mapping[Key, Cell], measure: str) -> list[Balance]:
    """For every case and method the hospitals that gain over the reference and those that lose."""
    result = []
    for case in cases:
        for method in (name for name in case.methods if name != case.reference):
            gains = {
                site: cell_by_key[key].gain
                for site in case.sites
                if (key := (case.name, method, measure, site)) in cell_by_key
            }
            gains = {site: gain for site, gain in gains.items() if gain.n}
            if not gains:
                continue
            worst = min(gains, key=lambda site: gains[site].mean)
            pooled = cell_by_key.get((case.name, method, measure, POOLED))
            result.append(
                Balance(
                    case.name,
                    method,
                    pooled.gain if pooled else compute_spread(()),
                    (sum(gain.mean > 0 for gain in gains.values()), len(gains)),
                    (sum(gain.better for gain in gains.values()), sum(gain.n for gain in gains.values())),
                    worst,
                    gains[worst],
                )
            )
    return result


def compute_gap_shares(page: StudyPage) -> dict[Key, Share]:
    """The share of the oracle gap that each line of each case closes, over its seeds."""
    return {key: worth.share for key, worth in compute_page_worths(page).items()}


def compute_page_worths(page: StudyPage) -> Worths:
    """The worth of each compared line of the page's cases."""
    return compute_worths(page.rows, {case.name: case.compared for case in page.cases})


def list_compared_lines(case: StudyCase, worth: Worths, measures: Sequence[str]) -> dict[str, list[str]]:
    """Measure -> lines of a case that are compared with an oracle."""
    lines = [line for comparison in case.compared for line in comparison.others]
    known_pairs = {(key[1], key[2]) for key in worth if key[0] == case.name}
    lines_by_measure = {measure: [line for line in lines if (line, measure) in known_pairs] for measure in measures}
    return {measure: measure_lines for measure, measure_lines in lines_by_measure.items() if measure_lines}


def find_weak_columns(cases: Sequence[StudyCase], cell_by_key: Mapping[Key, Cell]) -> set[tuple[str, str, str]]:
    """(case, measure, column) in which no score of any method is assessable with any seed."""
    known: dict[tuple[str, str, str], list[int]] = {}
    for (case, _, measure, column), cell in cell_by_key.items():
        known.setdefault((case, measure, column), []).append(cell.assessable)
    shown = {case.name for case in cases}
    return {key for key, assessable in known.items() if key[0] in shown and not any(assessable)}


class ColumnRange(NamedTuple):
    """Test patients, and positives among them, of a column: fewest and most over seeds and methods."""

    patients: tuple[int, int]
    positives: tuple[int, int]


def compute_column_ranges(cell_by_key: Mapping[Key, Cell]) -> dict[tuple[str, str, str], ColumnRange]:
    """(case, measure, column) -> its test patients, whichever methods were scored there."""
    ranges: dict[tuple[str, str, str], ColumnRange] = {}
    for (case, _, measure, column), cell in cell_by_key.items():
        so_far = ranges.get((case, measure, column), ColumnRange(cell.patients, cell.positives))
        ranges[case, measure, column] = ColumnRange(
            _merge_ranges(so_far.patients, cell.patients), _merge_ranges(so_far.positives, cell.positives)
        )
    return ranges


def _merge_ranges(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    """The range that contains both ranges."""
    return min(first[0], second[0]), max(first[1], second[1])


def _column_titles(case: StudyCase) -> dict[str, str]:
    """Column -> its name, for a case with its hospitals."""
    return {POOLED: "overall", MEAN: "mean", **{site: site for site in case.sites}}


def draw_share_figures(page: StudyPage, cell_by_key: Mapping[Key, Cell], order: Sequence[str]) -> list[Picture]:
    """Gains against the share of patients in training, for hospitals that occur with several shares."""
    groups: dict[tuple[tuple[str, ...], str], list[StudyCase]] = {}
    for case in page.cases:
        groups.setdefault((case.sites, case.reference), []).append(case)
    pictures = []
    for (sites, reference), group_cases in groups.items():
        group_cases = sorted(group_cases, key=lambda case: case.share)
        if not reference or len({case.share for case in group_cases}) < max(2, len(group_cases)):
            continue  # one share, or two cases with the same one: a line would join cases that differ in something else
        for measure in page.measures:
            points: Gains = {}
            for case in group_cases:
                for column, name in _column_titles(case).items():
                    for method in (m for m in case.methods if m != reference):
                        cell = cell_by_key.get((case.name, method, measure, column))
                        if cell and cell.gain.n:
                            points.setdefault(name, {}).setdefault(method, {})[case.share] = _cell_gain(cell)
            for part, names in split_names(
                [name for name in order if any(name in method_points for method_points in points.values())]
            ):
                shown = {
                    panel: {m: method_points[m] for m in names if m in method_points}
                    for panel, method_points in points.items()
                }
                about = {"measure": measure, "reference": reference, "part": part}
                pictures.append(draw_gains_by_share(shown, **about, order=order, sites=sites))
    return pictures


def draw_site_figures(
    case: StudyCase, cell_by_key: Mapping[Key, Cell], order: Sequence[str], measures: Sequence[str]
) -> dict[str, Picture]:
    """Measure -> gains of one case, by hospital."""
    pictures = {}
    for measure in measures:
        gains = {
            name: {
                method: _cell_gain(cell_by_key[key])
                for method in case.methods
                if method != case.reference and (key := (case.name, method, measure, column)) in cell_by_key
            }
            for column, name in _column_titles(case).items()
        }
        shown = {
            name: method_gains
            for name, method_gains in gains.items()
            if any(gain.values for gain in method_gains.values())
        }
        if case.reference and shown:
            picture = draw_gains_by_site(shown, case=case.name, measure=measure, reference=case.reference, order=order)
            pictures[measure] = picture
    return pictures


def _cell_gain(cell: Cell) -> Gain:
    """The gains of a cell as a figure draws them."""
    return Gain(cell.gain.values, cell.assessable == cell.value.n)
