"""A study's page: the same methods in several cases, each run with several seeds; where they gain and where they
lose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from evaluation.drawing import Picture
from evaluation.gap_rows import Compared
from evaluation.metrics import AUC, BALANCED_ACCURACY
from evaluation.oracle_gap import Share
from evaluation.panels import parts
from evaluation.records import Command
from evaluation.rendering import rendered
from evaluation.rows import FLOORS, OVERALL, PRIVATE_MEAN
from evaluation.study_figures import Gain, Gains, by_share, by_site
from evaluation.study_numbers import EVERY, Cell, Key, Spread, StudyRow, cells, doubt, spread
from evaluation.study_worth import Worths, outside_gains, worths

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
    oracle gap can be told.
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


def balances(cases: Sequence[StudyCase], found: Mapping[Key, Cell], measure: str) -> list[Balance]:
    """For every case and method the hospitals that gain over the reference and those that lose."""
    result = []
    for case in cases:
        for method in (name for name in case.methods if name != case.reference):
            own = {site: found[key].gain for site in case.sites if (key := (case.name, method, measure, site)) in found}
            own = {site: gain for site, gain in own.items() if gain.n}
            if not own:
                continue
            worst = min(own, key=lambda site: own[site].mean)
            pooled = found.get((case.name, method, measure, POOLED))
            result.append(
                Balance(
                    case.name,
                    method,
                    pooled.gain if pooled else spread(()),
                    (sum(gain.mean > 0 for gain in own.values()), len(own)),
                    (sum(gain.better for gain in own.values()), sum(gain.n for gain in own.values())),
                    worst,
                    own[worst],
                )
            )
    return result


def shares_of(page: StudyPage) -> dict[Key, Share]:
    """The share of the oracle gap that each line of each case closes, over its seeds."""
    return {key: one.share for key, one in _worths(page).items()}


def _worths(page: StudyPage) -> Worths:
    return worths(page.rows, {case.name: case.compared for case in page.cases})


def study_page(page: StudyPage) -> str:
    """The study in one page: scores, gains and losses, every case, every run."""
    found, worth = cells(page.rows), _worths(page)
    order = list(dict.fromkeys(method for case in page.cases for method in case.methods))
    floors = [name for name in FLOORS if any(row.method == name for row in page.rows)]
    seeds = sorted({cell.value.n for cell in found.values()})
    return rendered(
        "study.html",
        page=page,
        cells=found,
        measures=page.measures,
        methods=[*order, *floors],
        floors=tuple(floors),
        pooled=POOLED,
        mean=MEAN,
        every=ALL,
        balances={measure: balances(page.cases, found, measure) for measure in page.measures},
        shares=_shares(page, found, order),
        pictures={case.name: _pictures(case, found, order, page.measures) for case in page.cases},
        weak=_weak(page.cases, found),
        held=_held(found),
        worth=worth,
        closed={case.name: _closed(case, worth, page.measures) for case in page.cases},
        beyond=outside_gains(page.rows),
        fewest=seeds[0] if seeds else 0,
        most=seeds[-1] if seeds else 0,
        doubts={n: doubt(n) for n in {seeds[0], seeds[-1]} if n > 1} if seeds else {},
        done=sum(bool(run.page) for case in page.cases for run in case.runs),
        planned=sum(len(case.runs) for case in page.cases),
    )


def _closed(case: StudyCase, worth: Worths, measures: Sequence[str]) -> dict[str, list[str]]:
    """Measure -> lines of a case that are compared with an oracle."""
    lines = [line for one in case.compared for line in one.others]
    held = {(key[1], key[2]) for key in worth if key[0] == case.name}
    found = {measure: [line for line in lines if (line, measure) in held] for measure in measures}
    return {measure: own for measure, own in found.items() if own}


def _weak(cases: Sequence[StudyCase], found: Mapping[Key, Cell]) -> set[tuple[str, str, str]]:
    """(case, measure, column) in which no score of any method is assessable with any seed."""
    known: dict[tuple[str, str, str], list[int]] = {}
    for (case, _, measure, column), cell in found.items():
        known.setdefault((case, measure, column), []).append(cell.assessable)
    shown = {case.name for case in cases}
    return {key for key, assessable in known.items() if key[0] in shown and not any(assessable)}


class _Held(NamedTuple):
    """Test patients, and positives among them, of a column: fewest and most over seeds and methods."""

    patients: tuple[int, int]
    positives: tuple[int, int]


def _held(found: Mapping[Key, Cell]) -> dict[tuple[str, str, str], _Held]:
    """(case, measure, column) -> its test patients, whichever methods were scored there."""
    held: dict[tuple[str, str, str], _Held] = {}
    for (case, _, measure, column), cell in found.items():
        so_far = held.get((case, measure, column), _Held(cell.patients, cell.positives))
        held[case, measure, column] = _Held(
            _wider(so_far.patients, cell.patients), _wider(so_far.positives, cell.positives)
        )
    return held


def _wider(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return min(one[0], other[0]), max(one[1], other[1])


def _columns(case: StudyCase) -> dict[str, str]:
    """Column -> its name, for a case with its hospitals."""
    return {POOLED: "overall", MEAN: "mean", **{site: site for site in case.sites}}


def _shares(page: StudyPage, found: Mapping[Key, Cell], order: Sequence[str]) -> list[Picture]:
    """Gains against the share of patients in training, for hospitals that occur with several shares."""
    groups: dict[tuple[tuple[str, ...], str], list[StudyCase]] = {}
    for case in page.cases:
        groups.setdefault((case.sites, case.reference), []).append(case)
    pictures = []
    for (sites, reference), own in groups.items():
        own = sorted(own, key=lambda case: case.share)
        if not reference or len({case.share for case in own}) < max(2, len(own)):
            continue  # one share, or two cases with the same one: a line would join cases that differ in something else
        for measure in page.measures:
            points: Gains = {}
            for case in own:
                for column, name in _columns(case).items():
                    for method in (m for m in case.methods if m != reference):
                        cell = found.get((case.name, method, measure, column))
                        if cell and cell.gain.n:
                            points.setdefault(name, {}).setdefault(method, {})[case.share] = _gain(cell)
            for part, names in parts([name for name in order if any(name in own for own in points.values())]):
                shown = {panel: {m: own[m] for m in names if m in own} for panel, own in points.items()}
                about = {"measure": measure, "reference": reference, "part": part}
                pictures.append(by_share(shown, **about, order=order, sites=sites))
    return pictures


def _pictures(
    case: StudyCase, found: Mapping[Key, Cell], order: Sequence[str], measures: Sequence[str]
) -> dict[str, Picture]:
    """Measure -> gains of one case, by hospital."""
    pictures = {}
    for measure in measures:
        gains = {
            name: {
                method: _gain(found[key])
                for method in case.methods
                if method != case.reference and (key := (case.name, method, measure, column)) in found
            }
            for column, name in _columns(case).items()
        }
        shown = {name: own for name, own in gains.items() if any(gain.values for gain in own.values())}
        if case.reference and shown:
            picture = by_site(shown, case=case.name, measure=measure, reference=case.reference, order=order)
            pictures[measure] = picture
    return pictures


def _gain(cell: Cell) -> Gain:
    return Gain(cell.gain.values, cell.assessable == cell.value.n)
