"""All scores and gains of a run as rows: every method by every protocol and measure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from evaluation.classes import TWO, Classes, list_class_names, name_cuts, part_measures
from evaluation.histograms import Counts
from evaluation.intervals import t_interval
from evaluation.metrics import (
    BRIER,
    CALIBRATION,
    GRADE_ERROR,
    KAPPA,
    MEASURES,
    RANKED_PROBABILITY,
    SENSITIVITY,
    SPECIFICITY,
    Measure,
)
from evaluation.protocols import (
    Evidence,
    Score,
    Table,
    compute_gain,
    compute_gains,
    mean_individual_gain,
    mean_score,
    own_model_table,
    pool_evidence,
    pool_test_sets,
    score_overall,
    score_private,
    score_public,
    summarise_copies,
)
from evaluation.rows import (
    OUTSIDE,
    OUTSIDE_MEAN,
    OVERALL,
    PRIVATE,
    PRIVATE_MEAN,
    PUBLIC,
    GainRow,
    PairRow,
    ScoreRow,
    select_wider,
)


def score_rows(
    tables: Mapping[str, Table],
    *,
    reference: str | None = None,
    measures: Sequence[Measure] = MEASURES,
    repeats: Mapping[str, Sequence[Table]] = MappingProxyType({}),
) -> tuple[ScoreRow, ...]:
    """All methods' scores by all protocols that their tables allow.

    A table with one model that is no test site's own (a central baseline) is read as that model being every site's own.
    Public testing needs every model on every site, and is left out if that was not requested.

    Args:
        tables: method -> evidence by (model site, test site).
        reference: the method over which gains are computed, or None.
        measures: which metrics.
        repeats: method -> evidence of its further trainings, on the same patients, in their order. Scores are then
            means over trainings, and have an interval over them too.

    Raises:
        ValueError: the reference is no method, or was scored on other patients.
    """
    if reference is not None and reference not in tables:
        raise ValueError(f"the reference method {reference!r} was not scored; there are {sorted(tables)}")
    trained = {method: (table, *repeats.get(method, ())) for method, table in tables.items()}
    samples = {method: [pool_samples(table) for table in each] for method, each in trained.items()}
    rows: list[ScoreRow] = []
    for measure in measures:
        scores = {m: _score_trainings(each, samples[m], measure) for m, each in trained.items()}
        theirs = scores[reference] if reference is not None and measure.ranked else {}
        rows += (
            _make_row(method, place[0], measure, ours, theirs.get(place))
            for method, by_place in scores.items()
            for place, ours in by_place.items()
        )
    return tuple(rows)


def pair_rows(
    tables: Mapping[str, Table],
    measure: Measure,
    *,
    repeats: Mapping[str, Sequence[Table]] = MappingProxyType({}),
    by_site: bool = True,
) -> tuple[PairRow, ...]:
    """The gain of every method over every other one: the mean over hospitals, and `by_site` at each hospital.

    Each pair stands once, the method that comes first in `tables` over the later one. A pair without the same patients
    at a place, as where a hospital refused one of them, is left out there.

    Args:
        tables, repeats: as in `score_rows`.
    """
    trained = {method: (table, *repeats.get(method, ())) for method, table in tables.items()}
    scores = {
        method: _score_trainings(each, [pool_samples(table) for table in each], measure)
        for method, each in trained.items()
    }
    several = any(place[0] == PRIVATE_MEAN for by_place in scores.values() for place in by_place)
    protocols = {PRIVATE_MEAN, PRIVATE} if by_site and several else {PRIVATE_MEAN if several else PRIVATE}
    return tuple(
        _make_pair(first, second, place, measure, ours, theirs)
        for (first, one_by_place), (second, other_by_place) in itertools.combinations(scores.items(), 2)
        for place, ours in one_by_place.items()
        if place[0] in protocols and (theirs := other_by_place.get(place)) and ours[0].support == theirs[0].support
    )


def _make_pair(
    method: str, other: str, place: Place, measure: Measure, ours: Sequence[Score], theirs: Sequence[Score]
) -> PairRow:
    gains = _pair_gains(ours, theirs, measure)
    over = _average_scores(gains)
    trained = _interval_over_trainings([gain.estimate.value for gain in gains])
    low, high = select_wider((over.estimate.low, over.estimate.high), trained)
    return PairRow(method, other, *place, measure.name, over.estimate.value, low, high, over.assessable)


SUPPORTED = ("patients", "images", "positives", "negatives", "positive_patients", "noise", "defined")
"""What a row says of the support of its score."""
Place: TypeAlias = tuple[str, tuple[str, ...]]
"""A protocol and the test sites that entered."""


def _score_trainings(
    trainings: Sequence[Table], samples: Sequence[Samples], measure: Measure
) -> dict[Place, tuple[Score, ...]]:
    """The scores of a method's trainings by place; places that one of them lacks are those of the first alone."""
    by_training = [
        {(protocol, score.sites): score for protocol, score in compute_scores(table, measure, samples=made)}
        for table, made in zip(trainings, samples, strict=True)
    ]
    complete = set.intersection(*(set(each) for each in by_training))
    return {
        place: tuple(each[place] for each in by_training) if place in complete else (score,)
        for place, score in by_training[0].items()
    }


def _average_scores(scores: Sequence[Score]) -> Score:
    """The mean score of trainings on the same patients: its copies are the means of theirs."""
    first = scores[0]
    if len(scores) == 1:
        return first
    copies = np.mean([score.copies for score in scores], axis=0)
    assessable = all(score.assessable for score in scores)
    mean = summarise_copies(copies, first.support, sites=first.sites, assessable=assessable)
    return replace(mean, mixes_sites=first.mixes_sites)


def _interval_over_trainings(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean; NaN with one training, or where the measure has no value."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.nan, math.nan
    estimate = t_interval(values)
    return estimate.low, estimate.high


def label_measures(tables: Mapping[str, Table], classes: Classes = TWO) -> tuple[Measure, ...]:
    """The measures for models that predict labels: of more than two classes those of each class too, or where they are
    ordered those of each cut, the quadratic kappa and the error in grades. From noised counts, whose few bins are wide,
    the Brier score and the calibration error would be too inexact.
    """
    counts = [evidence for table in tables.values() for evidence in table.values() if isinstance(evidence, Counts)]
    number, exact = max((each.classes for each in counts), default=2), not any(each.noise for each in counts)
    probabilities = (BRIER, CALIBRATION) if exact else ()
    if number == 2:
        return (*MEASURES, SENSITIVITY, SPECIFICITY, *probabilities)
    names = list_class_names(classes, number)
    if not classes.ordered or not any(site_counts.has_cuts for site_counts in counts):
        return (*MEASURES, *probabilities, *part_measures(names, ordered=False))
    ranked = (RANKED_PROBABILITY, CALIBRATION) if exact else ()
    return (*MEASURES, KAPPA, GRADE_ERROR, *ranked, *part_measures(name_cuts(names), ordered=True))


class Samples(NamedTuple):
    """Samples pooled over hospitals, made once for all measures. overall: of each site's own model at home; None: there
    is one site. public: of each model on all test sets; None: not every model was tested on every site.
    """

    overall: Evidence | None
    public: Mapping[str, Evidence] | None


def pool_samples(table: Table) -> Samples:
    """The pooled samples that a table allows.

    Raises:
        ValueError: no site's own model was tested at home.
    """
    models, tests, own_evidence = {m for m, _ in table}, {t for _, t in table}, own_model_table(table)
    at_home = [
        evidence for (model, test), evidence in sorted(own_evidence.items(), key=lambda item: item[0]) if model == test
    ]
    is_complete = len(tests) > 1 and len(table) == len(models) * len(tests)
    return Samples(pool_evidence(at_home) if len(at_home) > 1 else None, pool_test_sets(table) if is_complete else None)


def compute_scores(table: Table, measure: Measure, *, samples: Samples | None = None) -> Iterator[tuple[str, Score]]:
    """(protocol, score) of one method: each site's private one, their mean, overall, and public if it was requested.
    samples: those of `pool_samples`, if they exist already.
    """
    made, own_evidence = pool_samples(table) if samples is None else samples, own_model_table(table)
    by_site = score_private(own_evidence, measure)
    yield from ((PRIVATE, score) for score in by_site.values())
    if len(by_site) > 1:
        yield PRIVATE_MEAN, mean_score(by_site)
        overall_score = score_overall(own_evidence, measure, sample=made.overall)
        yield OVERALL, replace(overall_score, mixes_sites=own_evidence is table)
    if made.public is not None:
        yield PUBLIC, score_public(table, measure, samples=made.public)


def outside_rows(
    tables: Mapping[str, Table], measures: Sequence[Measure] = MEASURES, reference: str | None = None
) -> tuple[ScoreRow, ...]:
    """Scores at external sites, one by one and their mean.

    tables: line -> evidence by (site, site). reference: the line over which gains are computed.
    """
    named = {PRIVATE: OUTSIDE, PRIVATE_MEAN: OUTSIDE_MEAN}
    rows = score_rows(tables, reference=reference, measures=measures)
    return tuple(replace(row, protocol=named[row.protocol]) for row in rows if row.protocol in named)


def gain_rows(
    tables: Mapping[str, Table],
    *,
    reference: str,
    measures: Sequence[Measure] = MEASURES,
    repeats: Mapping[str, Sequence[Table]] = MappingProxyType({}),
) -> tuple[GainRow, ...]:
    """Mean individual gain ± std of every other method over the reference, over the sites at which both were tested.

    Raises:
        ValueError: a method was not tested on the same patients of a site as the reference.
    """
    result = []
    for measure in [measure for measure in measures if measure.ranked]:
        for method in [m for m in tables if m != reference]:
            ours, theirs = select_common_sites([own_model_table(tables[method]), own_model_table(tables[reference])])
            trainings = [ours, *map(own_model_table, repeats.get(method, ()))]
            over = [theirs, *map(own_model_table, repeats.get(reference, ()))]
            spread = mean_individual_gain(_average_gains(trainings, over, measure))
            noises = (counts.noise for table in (ours, theirs) for (m, t), counts in table.items() if m == t)
            result.append(GainRow(method, measure.name, *spread, max(noises, default=0.0)))
    return tuple(result)


def _average_gains(ours: Sequence[Table], theirs: Sequence[Table], measure: Measure) -> dict[str, Score]:
    """Each site's gain, the mean over trainings, of which the reference's may be one. The first tables say which sites.

    Raises:
        ValueError: as `compute_gains`.
    """
    paired = theirs if len(theirs) == len(ours) else [theirs[0]] * len(ours)
    sites = {test for _, test in ours[0]}
    gains = []
    for our, their in zip(ours, paired, strict=True):
        ours_there, theirs_there = (
            {pair: counts for pair, counts in table.items() if {*pair} <= sites} for table in (our, their)
        )
        gains.append(compute_gains(ours_there, theirs_there, measure))
    return {site: _average_scores([each[site] for each in gains]) for site in gains[0]}


def select_common_sites(tables: Sequence[Table]) -> list[Table]:
    """The tables at the sites where the own model of each was tested: a site may have refused one because of its
    privacy cost.
    """
    sites = set.intersection(*({test for model, test in table if model == test} for table in tables))
    return [{pair: counts for pair, counts in table.items() if {*pair} <= sites} for table in tables]


def _make_row(
    method: str, protocol: str, measure: Measure, trainings: Sequence[Score], theirs: Sequence[Score] | None
) -> ScoreRow:
    """The row of the scores of a method's trainings, with the gain over `theirs`, those of the reference, if there is
    one.
    """
    ours = _average_scores(trainings)
    gains = () if theirs is None else _pair_gains(trainings, theirs, measure)
    over = _average_scores(gains).estimate if gains else None
    support, estimate = ours.support, ours.estimate
    trained_low, trained_high = _interval_over_trainings([score.estimate.value for score in trainings])
    gain_trained_low, gain_trained_high = _interval_over_trainings([gain.estimate.value for gain in gains])
    return ScoreRow(
        method=method,
        protocol=protocol,
        sites=ours.sites,
        measure=measure.name,
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        copies=estimate.n,
        ignored=estimate.ignored,
        assessable=ours.assessable,
        mixes_sites=ours.mixes_sites,
        gain=over.value if over else math.nan,
        gain_low=over.low if over else math.nan,
        gain_high=over.high if over else math.nan,
        trainings=len(trainings),
        trained_low=trained_low,
        trained_high=trained_high,
        gain_trained_low=gain_trained_low,
        gain_trained_high=gain_trained_high,
        **{name: getattr(support, name) for name in SUPPORTED},
    )


def _pair_gains(ours: Sequence[Score], theirs: Sequence[Score], measure: Measure) -> tuple[Score, ...]:
    """The gain of each training over the reference's training of its number, or over the mean of the reference's."""
    paired = theirs if len(theirs) == len(ours) else [_average_scores(theirs)] * len(ours)
    return tuple(compute_gain(our, their, measure) for our, their in zip(ours, paired, strict=True))
