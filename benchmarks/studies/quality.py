"""What figures of quality and the veto say of good and bad translations: python -m benchmarks.studies.quality

Translations that are known to be right or wrong, made by hand of phantom pairs: scanner L or E is translated, the
oracle is the same patient by scanner P on the same pixels, and the shared images are equally many others of P. A set
is a scanner with a number of patients, L16; each is drawn for every seed. The table tells the smallest and the largest
value over all of them, in bold where it is beyond the default limits, and in how many of them a limit that stands for
harm vetoes. The limits were set on such sets (seeds 0 to 2), so they fit these by construction: only other seeds tell
how well.

Shift is the change of a local classifier's mean probability, for which there is no limit. --centre judges as for a
hospital without gland masks, in the middle of the image and by the limits for it.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage, special
from torch import Tensor

from benchmarks.studies.translators import SLICES, Paired, paired
from harmonize.quality import Quality, measure_quality
from harmonize.veto import HARMLESS, Check, Limits, list_checks

Values: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
COLUMNS = {
    "no_effect": "gain in distance",
    "contrast": "lesion contrast",
    "cnr": "CNR",
    "lesion_order": "lesion order",
    "gland_order": "patient order",
    "edges": "edges",
    "class_drift": "class drift",
    "prevalence": "new dark spots",
}


class Case(NamedTuple):
    """A set: slices (n, 48, 48) in [0, 1] and masks; random is a way's own."""

    raw: Values
    oracle: Values
    lesion: Bools
    gland: Bools
    labels: NDArray[np.int64]
    patient: NDArray[np.int64]
    shared: Values
    random: np.random.Generator


Way: TypeAlias = Callable[[Case], Values]


def tone_map(case: Case) -> Values:
    """One rising curve for all, which makes the pooled histogram the shared images'."""
    at = np.linspace(0, 1, 257)
    own, goal = (np.quantile(x, at) for x in (case.raw, case.shared))
    return np.interp(case.raw, own + 1e-9 * np.arange(257), goal)


def z_score(by: Callable[[Case], NDArray[np.int64]]) -> Way:
    """Mean and deviation of each group of slices become the shared images'."""

    def way(case: Case) -> Values:
        out, group = case.raw.copy(), by(case)
        for one in np.unique(group):
            x = case.raw[group == one]
            out[group == one] = (x - x.mean()) / x.std() * case.shared.std() + case.shared.mean()
        return out

    return way


def blurred(pixels: float) -> Way:
    return lambda case: ndimage.gaussian_filter(case.raw, (0, pixels, pixels))


def clamped(case: Case) -> Values:
    """Nothing stays darker than 0.9 of the gland's median."""
    return np.maximum(case.raw, 0.9 * np.median(case.raw[case.gland]))


def spots(share: float, depth: float = 0.4, radius: tuple[float, float] = (2.5, 4.0)) -> Way:
    """The oracle, with one soft dark spot inside the gland of this share of the negative slices."""

    def way(case: Case) -> Values:
        out = case.oracle.copy()
        rows, columns = np.mgrid[: out.shape[1], : out.shape[2]]
        negative = case.random.permutation(np.flatnonzero((case.labels == 0) & (case.gland.sum(axis=(1, 2)) > 60)))
        for i in negative[: int(share * len(negative))]:
            inside = np.argwhere(ndimage.binary_erosion(case.gland[i], iterations=3))
            if len(inside):
                y, x = inside[case.random.integers(len(inside))]
                away = np.hypot(rows - y, columns - x) - case.random.uniform(*radius)
                out[i] *= 1 - depth * special.expit(-2 * away)
        return out

    return way


def another(case: Case) -> Values:
    """The oracle of another patient."""
    patients = len(np.unique(case.patient))
    return np.roll(case.oracle, -SLICES * max(1, patients // 3), axis=0)


def erased(case: Case) -> Values:
    """The oracle, with lesions filled by the median of the gland around them."""
    out = case.oracle.copy()
    for i in np.flatnonzero(case.lesion.any(axis=(1, 2))):
        weight = np.clip(1.5 * ndimage.gaussian_filter(case.lesion[i].astype(float), 1), 0, 1)
        around = np.median(case.oracle[i][case.gland[i] & ~case.lesion[i]])
        out[i] = case.oracle[i] * (1 - weight) + around * weight
    return out


WAYS: dict[str, Way] = {
    "oracle": lambda case: case.oracle,
    "histogram tone map": tone_map,
    "stuck at identity": lambda case: case.raw + 5e-4,
    "z-score, per image": z_score(lambda case: np.arange(len(case.raw))),
    "z-score, per patient": z_score(lambda case: case.patient),
    "strong tone map (power 0.7)": lambda case: case.raw**0.7,
    "blur of 1.5 pixels": blurred(1.5),
    "blur of 2 pixels": blurred(2.0),
    "tone map that clamps lesions": clamped,
    "faint small spots in 30 % of the negatives": spots(0.3, 0.25, (2.0, 3.0)),
    "spots in 15 % of the negatives": spots(0.15),
    "spots in 30 % of the negatives": spots(0.3),
    "another patient's picture": another,
    "lesions erased": erased,
}


def of_scale(x: Tensor) -> Values:
    """(n, 1, 48, 48) in [-1, 1] as (n, 48, 48) in [0, 1]."""
    return ((x[:, 0].double() + 1) / 2).numpy()


def judged(name: str, seed: int, site: Paired, scanner: str, target: Paired, *, centre: bool) -> Quality:
    """The figures of one way on one set."""
    raw, oracle, shared = (of_scale(x) for x in (site.images[scanner], site.images["P"], target.images["P"]))
    lesion, gland = site.lesion.numpy(), site.gland.numpy()
    random = np.random.default_rng([seed, list(WAYS).index(name)])
    case = Case(raw, oracle, lesion, gland, site.labels.numpy(), site.patient.numpy(), shared, random)
    translated = torch.from_numpy(np.clip(WAYS[name](case), 0, 1).astype(np.float32) * 2 - 1)[:, None]
    seen = site.gland[:, :0, 0] if centre else site.gland
    mine, theirs = site.images[scanner], target.images["P"]
    return measure_quality(mine, translated, site.labels, site.patient, site.lesion, seen, theirs, seed=seed)


def cell(found: list[Check]) -> str:
    """Smallest and largest value of one figure, in bold where it is beyond the limits."""
    known = sorted((check for check in found if check.is_known), key=lambda check: check.value)
    if not known:
        return "–"
    ends = [f"{one.value:z.2f}" if one.is_within_limits else f"**{one.value:z.2f}**" for one in (known[0], known[-1])]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def line(name: str, found: list[Quality]) -> str:
    every = [{check.name: check for check in list_checks(one, Limits())} for one in found]
    cells = [cell([one[column] for one in every]) for column in COLUMNS]
    cells.append(cell([Check("shift", one.shift) for one in found]))
    beyond = [{key for key, check in one.items() if not check.is_within_limits} for one in every]
    harmful, useless = sum(bool(one - HARMLESS) for one in beyond), sum(bool(one) and one <= HARMLESS for one in beyond)
    more = f" (no effect: {useless})" if useless else ""
    return f"| {name} | {' | '.join(cells)} | {harmful}/{len(found)}{more} |"


if __name__ == "__main__":
    reader = make_parser(__doc__)
    reader.add_argument("--sets", nargs="+", default=["L16", "E16", "L48"])
    reader.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    reader.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    reader.add_argument("--centre", action="store_true")
    asked = reader.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Quality]] = {name: [] for name in asked.ways}
    for seed in asked.seeds:
        for one in asked.sets:
            scanner, n = one[0], int(one[1:])
            site, target = paired(seed, range(n), f"{scanner}P"), paired(seed + 100, range(n), "P")
            for name, each in found.items():
                each.append(judged(name, seed, site, scanner, target, centre=asked.centre))
    print(f"| translation | {' | '.join(COLUMNS.values())} | shift | vetoed for harm |\n|{'---|' * (len(COLUMNS) + 3)}")
    print("\n".join(line(name, each) for name, each in found.items()))
    of_first = next(iter(found.values()))
    unknown = sum(math.isnan(one.drift) for one in of_first)
    print(f"\nClass drift is not known in {unknown} of {len(of_first)} sets, because the raw classifier is poor.")
