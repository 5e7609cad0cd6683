"""Quality of a translation of a hospital's own images: figures that the hospital computes itself, without ground truth.

A translated image may look right and be wrong: lesions removed, lesions invented, all patients made the same. A
distance to the shared images shows none of that, so it is never the only figure. The figures were chosen on simulated
pairs of scanners, where an image of the same patient by the target's scanner shows a good translation
(docs/results.md).

Values. Images are in [-1, 1]; means and contrasts are computed on (x + 1) / 2, the share of the scale's range above
its low end. Where that end is 0, as with ADC, a relative contrast is that of the ADC itself. Colours are averaged.
Images whose shorter side is 96 pixels or more are averaged down to 48..95 first: lesions need no finer grid.

Places. Figures are computed inside the gland; where a hospital has no gland masks, in the middle third of the image,
which separates good from bad less well (`veto.Limits` has limits of its own for it).

All figures are computed from patients and reveal something about them: they stay at the hospital unless its policy
releases them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from harmonize.distances import sliced_wasserstein
from harmonize.drift import LEAST_REGION, measure_drift, smooth_in_region

Floats: TypeAlias = NDArray[np.floating[Any]]
Bools: TypeAlias = NDArray[np.bool_]

SIDE = 48  # sufficient pixels per side
LEAST_SURROUNDINGS, LEAST_LESION = 20, 4  # pixels
LEAST_COUNT = 5  # patients or images for a correlation
FAINT = 0.02  # relative contrast below which lesions are not visible in the raw images either
SPOT = 0.2  # of the gland's median; significant lesions of the phantom are 0.33 darker than the gland around them
EPS = 1e-6


@dataclass(frozen=True)
class Quality:
    """NaN = not computable, for the reason given with each figure.

    sw_before, sw_after: sliced Wasserstein distance to the shared images, in units of [-1, 1].
    cycle_mae: mean |F(T(x)) - x|; NaN without an inverse F. 0 proves nothing: the identity has it.
    gradient_correlation: of smoothed gradients before and after, inside the region, mean over images; 1 = all edges
    unchanged. NaN where no image has a region of 40 pixels.
    contrast_ratio: mean relative contrast of lesions (surroundings - lesion) / surroundings, after over before.
    cnr_before, cnr_after: mean of (surroundings - lesion) / deviation of the surroundings.
    lesion_correlation: rank correlation of the lesions' means before and after, over images. These four are NaN without
    lesion masks, or with fewer than 5 lesion images; the ratio also where raw lesions are not visible.
    gland_correlation: Pearson's correlation of the patients' mean values before and after; NaN below 5 patients, or
    where they are all equal before.
    auc_before, auc_after, drift, shift: see `harmonize.drift`; NaN where a class has fewer than two patients;
    drift also where auc_before is below 0.7.
    hallucinated: share of the images of label 0 with a new dark spot, see `new_spot_share`; NaN where no
    image of label 0 has a region.
    masked: 1 = inside gland masks, 0 = in the middle of the image.
    """

    sw_before: float
    sw_after: float
    cycle_mae: float = math.nan
    gradient_correlation: float = math.nan
    contrast_ratio: float = math.nan
    cnr_before: float = math.nan
    cnr_after: float = math.nan
    lesion_correlation: float = math.nan
    gland_correlation: float = math.nan
    auc_before: float = math.nan
    auc_after: float = math.nan
    drift: float = math.nan
    shift: float = math.nan
    hallucinated: float = math.nan
    masked: float = 0.0


class Places(NamedTuple):
    """Where figures are computed, on the grid of `coarsen_images`. Each (n, h, w)."""

    region: Bools
    lesion: Bools
    masked: bool


def measure_quality(
    raw: Tensor,
    translated: Tensor,
    labels: Tensor,
    patient: Tensor,
    lesion: Tensor,
    gland: Tensor,
    shared: Tensor,
    *,
    cycled: Tensor | None = None,
    seed: int,
) -> Quality:
    """Measure a translation of a hospital's own images.

    Args:
        raw, translated, cycled: (n, C, H, W) in [-1, 1]: x, T(x) and F(T(x)).
        labels, patient: (n,) int64; classes 0 and 1.
        lesion, gland: masks (n, H, W), or (n, 0) where the hospital has none.
        shared: (m, C, H, W) in [-1, 1].
        seed: of the directions of the sliced Wasserstein distance, and of the folds.

    Raises:
        ValueError: naming everything that is wrong with the arguments.
    """
    wrong = _argument_problems(
        raw,
        {"translated": translated, "cycled": raw if cycled is None else cycled},
        {"labels": labels, "patient": patient},
        {"lesion": lesion, "gland": gland},
        shared,
    )
    if wrong:
        raise ValueError("measured: " + "; ".join(wrong))
    before, after = coarsen_images(raw), coarsen_images(translated)
    y, who = labels.cpu().numpy(), patient.cpu().numpy()
    places = _find_places(lesion, gland, before.shape)
    drifted = measure_drift(before, after, y, who, places.region, seed=seed)
    return Quality(
        sw_before=sliced_wasserstein(raw, shared, seed=seed),
        sw_after=sliced_wasserstein(translated, shared, seed=seed),
        cycle_mae=math.nan if cycled is None else float((cycled - raw).abs().mean()),
        gradient_correlation=gradient_correlation(before, after, places.region),
        gland_correlation=gland_correlation(before, after, places.region, who),
        hallucinated=new_spot_share(before, after, places.region, y),
        masked=float(places.masked),
        **({} if drifted is None else drifted._asdict()),
        **_lesion_figures(before, after, places),
    )


def coarsen_images(x: Tensor) -> Floats:
    """Images (n, C, H, W) in [-1, 1] as (n, h, w) in [0, 1]: colours averaged, at most 95 pixels on the shorter side.

    Masks (n, 1, H, W) keep their values, as shares.
    """
    factor = max(1, min(x.shape[-2:]) // SIDE)
    size = (x.shape[-2] // factor, x.shape[-1] // factor)
    mean = x.float().mean(dim=1, keepdim=True)
    pooled = mean if factor == 1 else functional.adaptive_avg_pool2d(mean, size)
    values: Floats = ((pooled[:, 0].cpu().double() + 1) / 2).numpy()
    return values


def gradient_correlation(before: Floats, after: Floats, region: Bools) -> float:
    """Mean over images of the correlation of gradients in the region, after a Gaussian of 1/48 of the side.

    Unsmoothed gradients are mostly noise; a translation to a scanner with less noise would score badly for removing it.
    """
    from scipy import ndimage

    sigma = (0, *(side / SIDE for side in before.shape[1:]))
    pair = [
        [ndimage.gaussian_filter(x, sigma, order=order) for order in ((0, 1, 0), (0, 0, 1))] for x in (before, after)
    ]
    correlations = []
    for i in _large_regions(region):
        a, b = (np.concatenate([part[i][region[i]] for part in x]) for x in pair)
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        if np.linalg.norm(a) > EPS:
            correlations.append(float(a @ b) / norm if norm > EPS**2 else 0.0)
    return float(np.mean(correlations)) if correlations else math.nan


def gland_correlation(before: Floats, after: Floats, region: Bools, patient: NDArray[np.int64]) -> float:
    """Correlation over patients of the mean value in the region: whether patients with high values keep them.

    Pearson's: with 16 patients, noise alone swaps neighbours in rank, and ranks separated a good translation
    (0.83 to 0.97) from one that erases levels (0.11 to 0.82) worse than values did (0.93 to 0.99, 0.13 to 0.78).
    """
    large = np.zeros(len(region), bool)
    large[_large_regions(region)] = True
    of = [(patient == p) & large for p in sorted(set(patient[large].tolist()))]
    means = [np.array([x[rows][region[rows]].mean() for rows in of]) for x in (before, after)]
    return _correlate(*means, ranks=False)


def new_spot_share(before: Floats, after: Floats, region: Bools, labels: NDArray[np.int64]) -> float:
    """Share of the images of label 0 in which a spot became darker than any tone map explains, by 0.2 of the median.

    Values in the region are smoothed with a Gaussian of 1/24 of the side, about the size of a small lesion. The
    best-fitting increasing tone map (isotonic regression over all images) is subtracted, then each image's median.
    A remaining dark spot is new. Classifiers' mean probabilities do not show it: a harmless tone map moves them more.
    """
    a, b = smooth_in_region(before, region, 1 / 24), smooth_in_region(after, region, 1 / 24)
    rows = _large_regions(region)
    if not len(rows[labels[rows] == 0]):
        return math.nan
    from sklearn.isotonic import IsotonicRegression  # takes a second

    inside = region[rows]
    tone = IsotonicRegression(out_of_bounds="clip").fit(a[rows][inside], b[rows][inside])
    spots = []
    for i in rows[labels[rows] == 0]:
        m = region[i]
        left = b[i][m] - tone.predict(a[i][m])
        spots.append((np.median(left) - left.min()) / max(float(np.median(after[i][m])), EPS) > SPOT)
    return float(np.mean(spots))


def _lesion_figures(before: Floats, after: Floats, places: Places) -> dict[str, float]:
    """The figures that need lesion masks, by name; none if there are too few lesions."""
    around = places.region & ~places.lesion
    sizes = places.lesion.sum(axis=(1, 2)), around.sum(axis=(1, 2))
    rows = np.flatnonzero((sizes[0] >= LEAST_LESION) & (sizes[1] >= LEAST_SURROUNDINGS))
    if len(rows) < LEAST_COUNT:
        return {}
    contrast, cnr, level = [], [], []
    for x in (before, after):
        inner = np.array([x[i][places.lesion[i]].mean() for i in rows])
        outer = np.array([x[i][around[i]].mean() for i in rows])
        spread = np.array([x[i][around[i]].std() for i in rows])
        contrast.append(float(((outer - inner) / np.maximum(outer, EPS)).mean()))
        cnr.append(float(((outer - inner) / np.maximum(spread, EPS)).mean()))
        level.append(inner)
    return {
        "contrast_ratio": contrast[1] / contrast[0] if abs(contrast[0]) >= FAINT else math.nan,
        "cnr_before": cnr[0],
        "cnr_after": cnr[1],
        "lesion_correlation": _correlate(*level, ranks=True),
    }


def _correlate(a: Floats, b: Floats, *, ranks: bool) -> float:
    """NaN for few values or where the first do not vary; 0 where only the second do not: the order was lost."""
    if len(a) < LEAST_COUNT or np.ptp(a) < EPS:
        return math.nan
    if np.ptp(b) < EPS:
        return 0.0
    from scipy import stats

    return float((stats.spearmanr if ranks else stats.pearsonr)(a, b)[0])


def _large_regions(region: Bools) -> NDArray[np.intp]:
    """Indices of the images whose region is large enough."""
    return np.flatnonzero(region.sum(axis=(1, 2)) >= LEAST_REGION)


def _find_places(lesion: Tensor, gland: Tensor, shape: tuple[int, ...]) -> Places:
    """The gland and lesion masks on the coarse grid; without glands the middle third of the image."""
    lesions, glands = (_coarse_mask(mask, shape) for mask in (lesion, gland))
    if bool(glands.any()):
        return Places(glands, lesions, masked=True)
    (h, w), middle = shape[1:], np.zeros(shape, bool)
    middle[:, h // 3 : h - h // 3, w // 3 : w - w // 3] = True
    return Places(middle, lesions, masked=False)


def _coarse_mask(mask: Tensor, shape: tuple[int, ...]) -> Bools:
    """A mask (n, H, W) on the coarse grid: where at least half of a pixel is inside; all False without a mask."""
    if not mask.numel():
        return np.zeros(shape, bool)
    share: Floats = coarsen_images(mask.bool().float()[:, None]) * 2 - 1
    inside: Bools = share >= 0.5
    return inside


def _argument_problems(
    raw: Tensor, like: Mapping[str, Tensor], rows: Mapping[str, Tensor], masks: Mapping[str, Tensor], shared: Tensor
) -> list[str]:
    """Everything that is wrong with the arguments of `measure_quality`, by name. like: images of the shape of raw.
    rows: one value for each image.
    """
    if raw.ndim != 4 or not len(raw):
        return [f"raw has shape {tuple(raw.shape)}, needed is (n, C, H, W) with n >= 1"]
    n, sides = len(raw), tuple(raw.shape[2:])
    wrong = [
        f"{name} has shape {tuple(x.shape)}, needed is {tuple(raw.shape)}, as raw has"
        for name, x in like.items()
        if x.shape != raw.shape
    ]
    if shared.shape[1:] != raw.shape[1:] or not len(shared):
        wrong.append(f"shared has shape {tuple(shared.shape)}, needed is (m, {', '.join(map(str, raw.shape[1:]))})")
    for name, x in rows.items():
        if tuple(x.shape) != (n,):
            wrong.append(f"{name} has shape {tuple(x.shape)}, needed is ({n},)")
    for name, x in masks.items():
        if tuple(x.shape) not in ((n, *sides), (n, 0)):
            wrong.append(f"{name} has shape {tuple(x.shape)}, needed is {(n, *sides)}, or ({n}, 0) without masks")
    for name, x in (("raw", raw), ("translated", like["translated"]), ("shared", shared)):
        if not bool(x.isfinite().all()):
            wrong.append(f"{name} is not finite somewhere")
    if other_labels := sorted(set(rows["labels"].flatten().tolist()) - {0, 1})[:5]:
        wrong.append(f"labels hold {other_labels}, allowed are 0 and 1")
    return wrong
