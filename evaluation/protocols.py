"""Protocols: which model is tested on which patients.

All protocols read one table of evidence by (model site, test site): counts, overlaps of masks, errors of numbers, or
counts of several findings. The terms, and what the papers call the same thing:

private: each site's model on its own test patients (VAFL and CusFL: private testing; FENDA for local models: siloed).
public: each site's model on the union of all test sets, then the mean over models (CusFL V).
overall: each site tested with its own model, then all sites' scores pooled into one sample (VAFL III.D). This mixes the
    offset between hospitals' scores into the result: it can lie below, or above, every single site.
matrix: every site's model on every site's patients (FENDA, figure 4: cross-site generalization). The mean of a row is
    what FENDA calls the score of a local model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from evaluation import findings, numbers
from evaluation.findings import Findings, pool_findings
from evaluation.histograms import Counts, Floats, pool_counts
from evaluation.histograms import from_tensors as from_counts
from evaluation.intervals import Estimate, percentile_interval
from evaluation.metrics import Measure, Support
from evaluation.noised import from_tensors as from_noised
from evaluation.numbers import Errors, pool_errors
from evaluation.overlap import Overlaps, pool_overlaps
from evaluation.overlap import from_tensors as from_overlaps

Evidence: TypeAlias = Counts | Overlaps | Errors | Findings
"""A hospital's scores of a model that predicts classes, masks, numbers, or several findings."""
Table: TypeAlias = Mapping[tuple[str, str], Evidence]
"""Evidence by (model site, test site)."""


@dataclass(frozen=True)
class Score:
    """A value for a set of sites, with its support.

    copies: (1 + B,), the sample's value and its copies', for paired comparisons. assessable: False =
    too few images or patients, or too much noise, to judge by. mixes_sites: scores of different models were pooled, so
    the offset between hospitals is in the value.
    """

    estimate: Estimate
    support: Support
    sites: tuple[str, ...]
    assessable: bool
    copies: Floats
    mixes_sites: bool = False


def score_evidence(evidence: Evidence, measure: Measure, *, sites: tuple[str, ...]) -> Score:
    """The score of one sample."""
    support = measure.rests(evidence)
    return summarise_copies(measure.of(evidence), support, sites=sites, assessable=support.assessable())


POOLS: Mapping[type[Evidence], Callable[[Any], Evidence]] = {
    Counts: pool_counts,
    Overlaps: pool_overlaps,
    Errors: pool_errors,
    Findings: pool_findings,
}


def pool_evidence(sites: Sequence[Evidence]) -> Evidence:
    """The evidence of several sites as one sample.

    Raises:
        ValueError: there is nothing to pool, or what does not fit together.
    """
    kinds = {type(evidence) for evidence in sites} or {Counts}
    if len(kinds) > 1:
        each = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"{each} do not mix: score one task at a time")
    return POOLS[kinds.pop()](sites)


NOISED: Mapping[str, Callable[..., Evidence]] = {
    "finding_noised": findings.from_noised_tensors,
    "error_bins": numbers.from_noised_tensors,
    "noised": from_noised,
    "cuts": from_noised,
}
COUNTED: Mapping[str, Callable[[Mapping[str, Tensor]], Evidence]] = {
    "finding_scores": findings.from_tensors,
    "errors": numbers.from_tensors,
    "totals": from_overlaps,
}
"""A tensor by which evidence is known, and how it is parsed."""


def parse_evidence(tensors: Mapping[str, Tensor], facts: Mapping[str, object], *, copies: int, seed: int) -> Evidence:
    """The evidence about a model in a reply. copies, seed: of the parametric bootstrap of noised counts; other evidence
    contains its copies.

    Raises:
        ValueError: the tensors are none of these.
    """
    for name, parse_noised in NOISED.items():
        if name in tensors:
            return parse_noised(tensors, facts, copies=copies, seed=seed)
    parse = next((parse for name, parse in COUNTED.items() if name in tensors), from_counts)
    return parse(tensors)


def summarise_copies(copies: Floats, support: Support, *, sites: tuple[str, ...], assessable: bool) -> Score:
    """A score from its copies. An undefined value is not assessable."""
    estimate = percentile_interval(copies)
    return Score(estimate, support, sites, assessable and bool(np.isfinite(estimate.value)), copies)


def score_private(table: Table, measure: Measure) -> dict[str, Score]:
    """Each site's model on its own test patients, by site.

    Raises:
        ValueError: no site has its own model's counts.
    """
    return {site: score_evidence(counts, measure, sites=(site,)) for site, counts in _own_evidence(table).items()}


def mean_score(scores: Mapping[str, Score]) -> Score:
    """Mean over sites with equal weights. Its copies are means over sites of independent draws.

    Sites that are not assessable are left out, because one of them could swing the mean; if none is assessable, all
    sites with a defined value enter, and the mean is not assessable either. `sites` names those that entered.

    Raises:
        ValueError: there are no scores.
    """
    if not scores:
        raise ValueError("there is no score to take the mean of; give at least one site's")
    assessable_scores = {site: s for site, s in sorted(scores.items()) if s.assessable}
    defined = {site: s for site, s in sorted(scores.items()) if np.isfinite(s.estimate.value)}
    chosen = assessable_scores or defined or dict(scores)
    copies = np.mean([s.copies for s in chosen.values()], axis=0)
    support = _sum_supports([s.support for s in chosen.values()])
    return summarise_copies(copies, support, sites=tuple(chosen), assessable=bool(assessable_scores))


def score_overall(table: Table, measure: Measure, *, sample: Evidence | None = None) -> Score:
    """Each site's own model on its own patients, all pooled into one sample. sample: the pooled sample, if it exists
    already.

    Raises:
        ValueError: no site has its own model's counts.
    """
    own_evidence = _own_evidence(table)
    pooled_sample = pool_evidence(list(own_evidence.values())) if sample is None else sample
    return replace(score_evidence(pooled_sample, measure, sites=tuple(own_evidence)), mixes_sites=len(own_evidence) > 1)


def pool_test_sets(table: Table) -> dict[str, Evidence]:
    """Each model's evidence on all test sets, pooled into one sample, by the model's site. Sites of which the table has
    the same evidence, because they have the same model, share a sample.

    Raises:
        ValueError: naming every (model, test site) that is missing.
    """
    models, tests = _table_axes(table)
    if missing := [(m, t) for m in models for t in tests if (m, t) not in table]:
        named = ", ".join(f"{m} on {t}" for m, t in missing)
        raise ValueError(f"public testing needs every model on every site; missing: {named}")
    pooled: dict[tuple[int, ...], Evidence] = {}
    evidence = {m: [table[m, t] for t in tests] for m in models}
    keys = {m: tuple(map(id, each)) for m, each in evidence.items()}
    for m, key in keys.items():
        if key not in pooled:
            pooled[key] = pool_evidence(evidence[m])
    return {m: pooled[key] for m, key in keys.items()}


def score_public(table: Table, measure: Measure, *, samples: Mapping[str, Evidence] | None = None) -> Score:
    """Mean over models of each one's score on the union of all test sets. samples: those of `pool_test_sets`, if they
    exist already.

    Raises:
        ValueError: naming every (model, test site) that is missing.
    """
    tests = _table_axes(table)[1]
    each = pool_test_sets(table) if samples is None else samples
    once = {id(sample): score_evidence(sample, measure, sites=tests) for sample in _distinct(each)}
    by_model = [once[id(sample)] for sample in each.values()]
    copies = np.mean([s.copies for s in by_model], axis=0)
    first = by_model[0]
    return summarise_copies(copies, first.support, sites=first.sites, assessable=first.assessable)


def score_matrix(table: Table, measure: Measure) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """Model sites (M), test sites (T) and the score of each model on each site, (M, T); NaN where it was not tested."""
    models, tests = _table_axes(table)
    once = {id(evidence): measure.of(evidence)[0] for evidence in _distinct(table)}
    values = [[once[id(table[m, t])] if (m, t) in table else np.nan for t in tests] for m in models]
    return models, tests, np.asarray(values, dtype=np.float64)


def _distinct(evidence: Mapping[Any, Evidence]) -> list[Evidence]:
    """Each object once: sites that have the same model share their evidence, and what is computed of it."""
    return list({id(each): each for each in evidence.values()}.values())


def _own_evidence(table: Table) -> dict[str, Evidence]:
    """The evidence of each site's own model on its own patients. Raises ValueError if there is none."""
    by_site = {
        test: counts for (model, test), counts in sorted(table.items(), key=lambda item: item[0]) if model == test
    }
    if not by_site:
        raise ValueError(f"no site's own model was tested at home; there are {sorted(table)}")
    return by_site


def _table_axes(table: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The model sites and the test sites of a table, sorted."""
    return tuple(sorted({m for m, _ in table})), tuple(sorted({t for _, t in table}))


def _sum_supports(supports: list[Support]) -> Support:
    """The support of several sites together."""
    return Support(
        patients=sum(s.patients for s in supports),
        images=sum(s.images for s in supports),
        positives=sum(s.positives for s in supports),
        negatives=sum(s.negatives for s in supports),
        positive_patients=sum(s.positive_patients for s in supports),
        noise=math.hypot(*(s.noise for s in supports)),
        class_noise=math.hypot(*(s.class_noise for s in supports)),
        defined=None if (known := [s.defined for s in supports if s.defined is not None]) == [] else sum(known),
    )


class Spread(NamedTuple):
    """Mean over n sites with the *population* standard deviation (ddof = 0), as PGFed prints it."""

    mean: float
    std: float
    n: int
    improved: int  # sites with a gain above 0


def compute_gain(method: Score, reference: Score, measure: Measure) -> Score:
    """Method minus reference, positive where the method is better; its interval is that of the paired copies.

    Raises:
        ValueError: the scores are not of the same patients, or not of the same copies.
    """
    if method.support != reference.support or len(method.copies) != len(reference.copies):
        raise ValueError(
            f"a gain needs both scores on the same patients and copies; found {method.support} with "
            f"{len(method.copies) - 1} copies and {reference.support} with {len(reference.copies) - 1}"
        )
    difference = (method.copies - reference.copies) * (1 if measure.higher_is_better else -1)
    both = method.assessable and reference.assessable
    return summarise_copies(difference, method.support, sites=method.sites, assessable=both)


def compute_gains(method: Table, reference: Table, measure: Measure) -> dict[str, Score]:
    """Each site's gain in private testing, by site.

    Raises:
        ValueError: the two were tested at different sites, or on different patients.
    """
    ours, theirs = score_private(method, measure), score_private(reference, measure)
    if set(ours) != set(theirs):
        raise ValueError(f"a gain needs the same sites; found {sorted(ours)} and {sorted(theirs)}")
    return {site: compute_gain(ours[site], theirs[site], measure) for site in ours}


def mean_individual_gain(by_site: Mapping[str, Score]) -> Spread:
    """Mean gain over sites ± population standard deviation (PGFed); sites follow the rule of `protocols.mean_score`.

    The deviation describes how unevenly sites gain, not the uncertainty of the mean.
    """
    assessable_values = [s.estimate.value for s in by_site.values() if s.assessable]
    values = np.array(
        assessable_values or [s.estimate.value for s in by_site.values() if math.isfinite(s.estimate.value)]
    )
    if not len(values):
        return Spread(math.nan, math.nan, 0, 0)
    return Spread(float(values.mean()), float(values.std()), len(values), int((values > 0).sum()))


def own_model_table(table: Table) -> Table:
    """The table itself, or, if its one model is no test site's own, that model as every site's own."""
    models, tests = {m for m, _ in table}, {t for _, t in table}
    if len(models) == 1 and not models & tests:
        return {(test, test): evidence for (_, test), evidence in table.items()}
    return table
