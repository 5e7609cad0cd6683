"""What a site gains from a method over a reference, usually its own local model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.metrics import Measure
from evaluation.protocols import STANDARD, Limits, Score, Table, private, summarised


@dataclass(frozen=True)
class Spread:
    """Mean over n sites with the *population* standard deviation (ddof = 0), as PGFed prints it."""

    mean: float
    std: float
    n: int
    improved: int  # sites with a gain above 0


def gain(method: Score, reference: Score, measure: Measure, *, limits: Limits = STANDARD) -> Score:
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
    return summarised(difference, method.support, sites=method.sites, assessable=both, limits=limits)


def gains(method: Table, reference: Table, measure: Measure, *, limits: Limits = STANDARD) -> dict[str, Score]:
    """Each site's gain in private testing, by site.

    Raises:
        ValueError: the two were not tested at the same sites, or not on the same patients.
    """
    ours, theirs = private(method, measure, limits=limits), private(reference, measure, limits=limits)
    if set(ours) != set(theirs):
        raise ValueError(f"a gain needs the same sites; found {sorted(ours)} and {sorted(theirs)}")
    return {site: gain(ours[site], theirs[site], measure, limits=limits) for site in ours}


def mean_individual_gain(by_site: Mapping[str, Score]) -> Spread:
    """Mean gain over sites ± population standard deviation (PGFed); sites follow the rule of `protocols.mean_score`.

    The deviation tells how unevenly sites gain, not how sure the mean is.
    """
    kept = [s.estimate.value for s in by_site.values() if s.assessable]
    values = np.array(kept or [s.estimate.value for s in by_site.values() if math.isfinite(s.estimate.value)])
    if not len(values):
        return Spread(math.nan, math.nan, 0, 0)
    return Spread(float(values.mean()), float(values.std()), len(values), int((values > 0).sum()))


def rounds_to_reach(scores: Sequence[float], target: float) -> int | None:
    """The first round, counted from 1, whose score is at least the target; None when no round's is."""
    return next((round_ for round_, value in enumerate(scores, 1) if value >= target), None)
