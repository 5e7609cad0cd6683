"""Vetoes: limits on the quality of a translation, and the sentence for each limit that is exceeded.

The limits were set on simulated pairs of scanners: images of the same patients by the target's scanner must be within
them, and translations known to do harm must not. A hospital may set its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

from harmonize.quality import Quality
from privacy.settings_error import Problem, refuse

WORDS: Mapping[str, str] = {
    "no_effect": "Images hardly came closer to the shared ones: the distance fell by the share {value}",
    "contrast": "Lesions stand out differently than before: their contrast is {value} of what it was",
    "cnr": "Lesions are harder to tell from noise: their contrast-to-noise ratio is {value} of what it was",
    "lesion_order": "Lesions that were dark are not those that are dark now: the rank correlation is {value}",
    "gland_order": "Patients who had low values are not those who have them: their means correlate by {value}",
    "edges": "Edges moved, went or came: gradients before and after correlate by {value}",
    "cycle": "Translating there and back does not lead back: the mean error is {value}",
    "class_drift": "A local classifier tells the classes apart less well than before: its AUC changed by {value}",
    "prevalence": "Dark spots appeared in negative images: in the share {value} of them",
}
"""Name of a veto -> what it means."""

HARMLESS = frozenset({"no_effect"})
"""Vetoes of a translation that neither helps nor harms."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for a translation; null = no limit.

    gain: least share by which the distance to the shared images falls. contrast_low, contrast_high: of the contrast
    ratio. cnr: least contrast-to-noise ratio, after over before. lesion_order, gland_order, edges: least correlations.
    cycle: most mean absolute cycle error, in units of [-1, 1]. drift: most that the AUC may fall. prevalence: most
    images of label 0 with a new dark spot, as a share. Without gland masks the three `..._centre` replace gland_order,
    edges and prevalence: the middle of an image separates good from bad less well.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    gain: float | None = 0.1
    contrast_low: float | None = 0.8
    contrast_high: float | None = 1.3
    cnr: float | None = 0.9
    lesion_order: float | None = 0.6
    gland_order: float | None = 0.85
    edges: float | None = 0.83
    cycle: float | None = 0.15
    drift: float | None = 0.05
    prevalence: float | None = 0.1
    gland_order_centre: float | None = 0.6
    edges_centre: float | None = 0.7
    prevalence_centre: float | None = 0.2

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        problems = [
            Problem((name,), f"must be finite, or null for no limit; found {value}")
            for name, value in values.items()
            if value is not None and not math.isfinite(value)
        ]
        problems += [
            Problem((name,), f"must be >= 0, found {values[name]}")
            for name in ("cycle", "drift", "prevalence", "prevalence_centre")
            if values[name] is not None and values[name] < 0
        ]
        low, high = self.contrast_low, self.contrast_high
        if low is not None and high is not None and not low < high:
            text = f"must be less than veto.contrast_high, found {low} and {high}"
            problems.append(Problem(("contrast_low",), text))
        refuse(problems)


class Check(NamedTuple):
    """One figure with its limits; None = no limit on that side. A value equal to a limit is allowed."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is a figure."""
        return not math.isnan(self.value)

    @property
    def has_limit(self) -> bool:
        """Whether there is a limit."""
        return self.low is not None or self.high is not None

    @property
    def is_within_limits(self) -> bool:
        """Whether the figure is within its limits; NaN counts as within."""
        below = self.low is not None and self.value < self.low
        above = self.high is not None and self.value > self.high
        return not (below or above)


def list_checks(quality: Quality, limits: Limits) -> tuple[Check, ...]:
    """Every figure with its limits, in the order of `WORDS`."""
    inside = quality.masked > 0
    return (
        Check("no_effect", _distance_gain(quality), limits.gain),
        Check("contrast", quality.contrast_ratio, limits.contrast_low, limits.contrast_high),
        Check("cnr", _cnr_ratio(quality.cnr_after, quality.cnr_before), limits.cnr),
        Check("lesion_order", quality.lesion_correlation, limits.lesion_order),
        Check("gland_order", quality.gland_correlation, limits.gland_order if inside else limits.gland_order_centre),
        Check("edges", quality.gradient_correlation, limits.edges if inside else limits.edges_centre),
        Check("cycle", quality.cycle_mae, None, limits.cycle),
        Check("class_drift", quality.drift, None if limits.drift is None else -limits.drift),
        Check("prevalence", quality.hallucinated, None, limits.prevalence if inside else limits.prevalence_centre),
    )


def list_vetoes(quality: Quality, limits: Limits) -> tuple[str, ...]:
    """Names of the limits that a translation exceeds, in the order of `WORDS`; empty = it may be used.

    A figure that is NaN vetoes nothing; `list_unknown_figures` names it.
    """
    return tuple(check.name for check in list_checks(quality, limits) if not check.is_within_limits)


def list_unknown_figures(quality: Quality, limits: Limits) -> tuple[str, ...]:
    """Names of the limits that are set but could not be checked, because their figure is NaN."""
    return tuple(check.name for check in list_checks(quality, limits) if check.has_limit and not check.is_known)


def describe_vetoes(quality: Quality, limits: Limits) -> tuple[str, ...]:
    """A sentence for each veto, with the value found and the allowed range."""
    return tuple(
        f"{WORDS[check.name].format(value=f'{check.value:.3g}')} (allowed is {_format_range(check)})."
        for check in list_checks(quality, limits)
        if not check.is_within_limits
    )


def _format_range(check: Check) -> str:
    """The allowed range of a check in words."""
    if check.low is None or check.high is None:
        return f"{check.low:g} or more" if check.low is not None else f"{check.high:g} or less"
    return f"{check.low:g} to {check.high:g}"


def _distance_gain(quality: Quality) -> float:
    """Share by which the distance fell. A distance of 0 cannot fall."""
    before, after = quality.sw_before, quality.sw_after
    if before == 0:
        return 0.0 if after == 0 else -math.inf
    return (before - after) / before


def _cnr_ratio(after: float, before: float) -> float:
    """NaN where lesions are not visible in the raw images either."""
    return after / before if abs(before) > 1e-6 else math.nan
