"""What all hospitals' studies are together, from what each said of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from pipelines.requests.fingerprint import Measured, MeasuredWithNoise
from privacy.release.form import Absent

Reply: TypeAlias = Measured | MeasuredWithNoise
UNSURE = 0.25
"""With so much noise, as a share of the patients, a median may be any quartile."""
BEYOND_MEDIAN = 1.25
"""How much longer than the median the extents are that a grid covers, where no larger percentile is known."""
COVERED = "p95"


@dataclass(frozen=True, kw_only=True)
class Common:
    """All hospitals' studies together, by axis. studies: how many, with noise where that is all that is known.
    spacing, voxels, extent: medians, mm and mm. fine: the spacing that 10 % of studies do not exceed. cover: the
    extent that a grid shall cover. intensity: inside masks, empty where nobody said. volumes: of each class, the median
    of hospitals' medians. modality: the most frequent. box_share: the median of hospitals' shares of voxels in the
    bounding box of those that are not 0; None where nobody said. sites: hospitals that count; unsure_sites: those that
    do not, because their noise is too large.
    """

    studies: float
    spacing: tuple[float, ...]
    fine: tuple[float, ...]
    voxels: tuple[float, ...]
    extent: tuple[float, ...]
    cover: tuple[float, ...]
    intensity: Mapping[str, float]
    volumes: Mapping[str, float]
    modality: str
    box_share: float | None
    sites: tuple[str, ...]
    unsure_sites: tuple[str, ...] = ()


def merge_fingerprints(replies: Mapping[str, Reply]) -> Common:
    """Merge hospitals' figures; the order of hospitals changes nothing.

    Of hospitals' medians the median counts, of their 10th percentiles the 10th percentile, each hospital weighing as
    many studies as it told. A grid covers what the hospital with the largest studies needs. Hospitals with more noise
    than `UNSURE` count only where all are like that.

    Raises:
        ValueError: nobody answered, or hospitals differ in their axes.
    """
    if not replies:
        raise ValueError("no hospital answered, so there is nothing to plan by")
    if len(axes := {len(reply.spacing["p50"]) for reply in replies.values()}) > 1:
        raise ValueError(f"hospitals must have images of as many axes, found {sorted(axes)}")
    unsure = tuple(sorted(site for site, reply in replies.items() if share_of_noise(reply) > UNSURE))
    unsure = () if len(unsure) == len(replies) else unsure
    sure = {site: replies[site] for site in sorted(replies) if site not in unsure}
    counted, weights = [*sure.values()], [weight_of(reply) for reply in sure.values()]
    exact = [reply for reply in counted if isinstance(reply, Measured)]
    return Common(
        studies=sum(weights),
        spacing=_by_axis([reply.spacing["p50"] for reply in counted], weights, 0.5),
        fine=_by_axis([reply.spacing.get("p10") or reply.spacing["p25"] for reply in counted], weights, 0.1),
        voxels=_by_axis([_voxels_of(reply) for reply in counted], weights, 0.5),
        extent=_by_axis([reply.extent["p50"] for reply in counted], weights, 0.5),
        cover=tuple(max(each) for each in zip(*map(_cover_of, counted), strict=True)),
        intensity=_merge_intensities(exact),
        volumes=_merge_volumes(exact),
        modality=_most_frequent_modality(exact),
        box_share=_merge_box_shares(exact),
        sites=tuple(sure),
        unsure_sites=unsure,
    )


def weight_of(reply: Reply) -> float:
    """How many studies, or patients where that was told with noise, a hospital weighs; at least one."""
    return max(1.0, float(reply.studies) if isinstance(reply, Measured) else reply.noised_patients)


def share_of_noise(reply: Reply) -> float:
    """Twice the noise of a comparison about a median, as a share of the patients: so far from the middle, to either
    side, what is taken for the median may lie; 0 where there is no noise. A median changes by half a patient.
    """
    return 0.0 if isinstance(reply, Measured) else reply.noise / weight_of(reply)


def _by_axis(rows: Sequence[Sequence[float]], weights: Sequence[float], share: float) -> tuple[float, ...]:
    """The weighted quantile of each column; of two values that divide the weight evenly, the lower."""
    return tuple(_weighted_quantile(column, weights, share) for column in zip(*rows, strict=True))


def _weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The least value up to which at least this share of the weight lies."""
    ordered = sorted(zip(values, weights, strict=True))
    chosen = np.quantile(
        [value for value, _ in ordered], share, weights=[weight for _, weight in ordered], method="inverted_cdf"
    )
    return float(chosen)


def _voxels_of(reply: Reply) -> list[float]:
    """The median shape."""
    if isinstance(reply, Measured):
        return reply.voxels["p50"]
    return [extent / step for extent, step in zip(reply.extent["p50"], reply.spacing["p50"], strict=True)]


def _cover_of(reply: Reply) -> list[float]:
    """The extent that a grid shall cover for this hospital."""
    if isinstance(reply, Measured):
        return reply.extent[COVERED]
    return [BEYOND_MEDIAN * extent for extent in reply.extent["p50"]]


def _merge_intensities(replies: Sequence[Measured]) -> dict[str, float]:
    """Mean and sd of all foregrounds together, and the mean of hospitals' percentiles, weighted by studies."""
    known = sorted(
        (reply.studies, sorted(reply.intensity.items())) for reply in replies if reply.intensity and reply.studies
    )
    if not known:
        return {}
    weights, figures = np.array([studies for studies, _ in known], np.float64), [dict(each) for _, each in known]
    merged = {
        name: float(np.average([each[name] for each in figures], weights=weights))
        for name in figures[0]
        if name != "sd"
    }
    squares = np.average([each["sd"] ** 2 + each["mean"] ** 2 for each in figures], weights=weights)
    return {**merged, "sd": float(np.sqrt(max(0.0, float(squares) - merged["mean"] ** 2)))}


def _merge_volumes(replies: Sequence[Measured]) -> dict[str, float]:
    """Class -> the weighted median of hospitals' median volumes."""
    names = sorted({name for reply in replies for name in reply.volumes})
    shown = {name: [reply for reply in replies if name in reply.volumes] for name in names}
    return {
        name: _weighted_quantile([r.volumes[name]["p50"] for r in having], [weight_of(r) for r in having], 0.5)
        for name, having in shown.items()
    }


def _merge_box_shares(replies: Sequence[Measured]) -> float | None:
    """The weighted median of those that were said."""
    known = [(reply.box_share, weight_of(reply)) for reply in replies if not isinstance(reply.box_share, Absent)]
    return _weighted_quantile([share for share, _ in known], [weight for _, weight in known], 0.5) if known else None


def _most_frequent_modality(replies: Sequence[Measured]) -> str:
    """The modality of most studies that name one; the first by name of equals; "unknown" if none does."""
    counts: dict[str, int] = {}
    for reply in replies:
        for name, count in reply.modalities.items():
            counts[name] = counts.get(name, 0) + count
    named = {name: count for name, count in counts.items() if name != "unknown"}
    return min(named, key=lambda name: (-named[name], name)) if named else "unknown"
