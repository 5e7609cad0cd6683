"""How far scores from a noised histogram can be trusted: python benchmarks/noised_scores.py

Simulated hospitals release one noised histogram of a model's scores (evaluation/noised.py). Scores of class 0 follow
Beta(a, b), of class 1 Beta(b, a) with a + b = 4, so that the AUC is the wanted one; 35 % of patients have the disease.
A patient has 1 to 8 images, and about half of a diseased patient's show it; `--single` gives each patient one image.
`--squeezed` shrinks all scores to 0.35 .. 0.55, as of a model that is never sure: bins that are too wide cannot tell
them apart. The threshold of 1/2 is then no longer a good one: only the AUC is of interest there.

Printed are bias and root mean squared error against the value in the population, and how often the 95 % interval holds
it; share: noise x sqrt(bins) over the patients of the smaller class, by which evaluation judges what is assessable.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from evaluation import noised
from evaluation.histograms import NOISE_SHARE
from evaluation.intervals import percentile_interval
from evaluation.metrics import AUC, BALANCED_ACCURACY, auc, recalls

Floats = NDArray[np.float64]

AUCS, PATIENTS, NOISES = (0.65, 0.8, 0.9), (40, 100, 400), (1.0, 2.3, 5.0)
BINS = (4, 8, 10, 16, 32)
DISEASED, MOST_IMAGES, CONCENTRATION = 0.35, 8, 4.0
COPIES = 200
SQUEEZED = (0.35, 0.2)  # least score, range


class Hospital(NamedTuple):
    """labels, scores, patients: (n,)."""

    labels: NDArray[np.int64]
    scores: Floats
    patients: NDArray[np.int64]


class Trial(NamedTuple):
    """Errors of AUC and balanced accuracy (2,) by three ways of reading, and whether intervals hold the truth (2,)."""

    ours: Floats
    held: Floats
    clipped: Floats
    clipped_held: Floats
    simplex: Floats
    share: float


def shape(area: float) -> tuple[float, float]:
    """a, b of Beta(a, b) against Beta(b, a) with this AUC."""
    middles = (np.arange(4000) + 0.5) / 4000

    def missing(half: float) -> float:
        a, b = CONCENTRATION / 2 - half, CONCENTRATION / 2 + half
        return float(stats.beta.cdf(stats.beta.ppf(middles, b, a), a, b).mean()) - area

    half = float(optimize.brentq(missing, 0, CONCENTRATION / 2 - 1e-3))
    return CONCENTRATION / 2 - half, CONCENTRATION / 2 + half


def draw(generator: np.random.Generator, ab: tuple[float, float], patients: int, single: bool) -> Hospital:
    """A hospital with patients of both classes."""
    a, b = ab
    while True:
        diseased = generator.random(patients) < DISEASED
        images = np.ones(patients, int) if single else generator.integers(1, MOST_IMAGES + 1, patients)
        who = np.repeat(np.arange(patients), images)
        labels = (diseased[who] & (single | (generator.random(len(who)) < 0.5))).astype(np.int64)
        if 0 < labels.sum() < len(labels):
            scores = np.where(labels == 1, generator.beta(b, a, len(who)), generator.beta(a, b, len(who)))
            return Hospital(labels, scores, who)


def values(histogram: Floats) -> Floats:
    """AUC and balanced accuracy, (2, ...), of histograms (..., 2, bins) that need not be whole."""
    halves = histogram.reshape(*histogram.shape[:-1], 2, -1).sum(axis=-1)
    return np.array([auc(histogram), recalls(halves).mean(axis=-1)])


def held(copies: Floats, truth: Floats) -> Floats:
    """1 where the interval of (2, 1 + B) holds the truth (2,), else 0."""
    intervals = [percentile_interval(each) for each in copies]
    return np.array([float(i.low <= true <= i.high) for i, true in zip(intervals, truth, strict=True)])


def clipped(generator: np.random.Generator, released: Floats, noise: float, patients: int) -> Floats:
    """(1 + B, 2, bins): the release with negative cells at 0, and copies made like ours, but clipped."""
    sample = np.maximum(released, 0)
    drawn = generator.multinomial(patients, (sample / sample.sum()).ravel(), size=COPIES).reshape(-1, *released.shape)
    return np.concatenate([sample[None], np.maximum(drawn + noise * generator.standard_normal(drawn.shape), 0)])


def trial(
    generator: np.random.Generator, hospital: Hospital, truth: Floats, noise: float, bins: int, squeezed: bool
) -> Trial:
    """One release, read in three ways."""
    labels, scores, who = hospital
    p = SQUEEZED[0] + SQUEEZED[1] * scores if squeezed else scores
    votes = noised.votes(labels, np.c_[1 - p, p], who, bins=bins)
    exact = (votes / votes.sum(axis=1, keepdims=True)).sum(axis=0).reshape(2, bins)
    released = exact + noise * generator.standard_normal(exact.shape)
    patients, of_class = len(votes), [len(np.unique(who[labels == c])) for c in (0, 1)]
    counts = noised.from_noised(
        released,
        noise=noise,
        patients=patients,
        images=len(labels),
        class_patients=(of_class[0], of_class[1]),
        copies=COPIES,
        seed=0,
    )
    ours = np.array([measure.of(counts) for measure in (AUC, BALANCED_ACCURACY)])
    cut = values(clipped(generator, released, noise, patients))
    free = values(noised.projected(released, patients, np.array(0), np.array(patients)))
    share = noise * math.sqrt(bins) / min(of_class)
    return Trial(ours[:, 0] - truth, held(ours, truth), cut[:, 0] - truth, held(cut, truth), free - truth, share)


class Cell(NamedTuple):
    """One setting and its trials."""

    area: float
    patients: int
    noise: float
    bins: int
    trials: Sequence[Trial]

    def of(self, what: str) -> Floats:
        """(trials, 2), without trials in which a class is gone."""
        found = np.array([getattr(one, what) for one in self.trials])
        return np.asarray(found[np.isfinite(found).all(axis=1)])

    @property
    def share(self) -> float:
        return float(np.mean([one.share for one in self.trials]))


def study(
    repeats: int, single: bool, squeezed: bool, bins: Sequence[int], patients: Sequence[int], noises: Sequence[float]
) -> Iterator[Cell]:
    """Every setting; all bins and noises see the same hospitals."""
    for area, number in itertools.product(AUCS, patients):
        ab = shape(area)
        truth = np.array([area, stats.beta.cdf(0.5, *ab)])
        for noise, cells in itertools.product(noises, bins):
            people, chance = (np.random.default_rng([s, number, int(100 * area)]) for s in (0, 1))
            trials = [
                trial(chance, draw(people, ab, number, single), truth, noise, cells, squeezed) for _ in range(repeats)
            ]
            yield Cell(area, number, noise, cells, trials)


def error(trials: Floats) -> str:
    """Bias and root mean squared error."""
    return f"{trials.mean():+.3f} ({math.sqrt((trials**2).mean()):.3f})"


def by_setting(cells: Sequence[Cell]) -> str:
    """A line a setting."""
    head = "AUC, patients, noise, bins | share | AUC: bias (RMSE) | interval | balanced accuracy | interval"
    lines = [f"| {head} |", "|---" * 6 + "|"]
    for cell in cells:
        ours, sure = cell.of("ours"), cell.of("held").mean(axis=0)
        first = f"{cell.area}, {cell.patients}, {cell.noise:g}, {cell.bins}"
        rest = [f"{cell.share:.2f}", error(ours[:, 0]), f"{sure[0]:.2f}", error(ours[:, 1]), f"{sure[1]:.2f}"]
        lines.append(f"| {first} | " + " | ".join(rest) + " |")
    return "\n".join(lines)


def summary(cells: Sequence[Cell], name: str, key: Callable[[Cell], object]) -> str:
    """A line a value of `key`: mean absolute bias and RMSE over its settings; coverage, its mean and its worst."""
    head = "settings | AUC | interval | clipped | its interval | simplex only | balanced accuracy | interval"
    lines = [f"| {name} | {head} |", "|---" * 9 + "|"]
    for value in dict.fromkeys(map(key, cells)):
        group = [cell for cell in cells if key(cell) == value]

        def wrong(way: str, j: int, group: Sequence[Cell] = group) -> str:
            errors = [cell.of(way)[:, j] for cell in group]
            bias, rmse = np.mean([[abs(e.mean()), math.sqrt((e**2).mean())] for e in errors], axis=0)
            return f"{bias:.3f}, {rmse:.3f}"

        def sure(way: str, j: int, group: Sequence[Cell] = group) -> str:
            each = [cell.of(way)[:, j].mean() for cell in group]
            return f"{np.mean(each):.2f}, {min(each):.2f}"

        by_auc = [wrong("ours", 0), sure("held", 0), wrong("clipped", 0), sure("clipped_held", 0), wrong("simplex", 0)]
        lines.append(f"| {value} | {len(group)} | " + " | ".join([*by_auc, wrong("ours", 1), sure("held", 1)]) + " |")
    return "\n".join(lines)


def band(cell: Cell) -> str:
    """Where the share of noise lies."""
    edges = (NOISE_SHARE / 2, NOISE_SHARE, 2 * NOISE_SHARE, 4 * NOISE_SHARE)
    return next((f"up to {edge:g}" for edge in edges if cell.share <= edge), "more")


if __name__ == "__main__":
    line = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    line.add_argument("--repeats", type=int, default=200)
    line.add_argument("--single", action="store_true", help="one image a patient")
    line.add_argument("--squeezed", action="store_true", help="scores of 0.35 to 0.55")
    line.add_argument("--bins", type=int, nargs="+", default=BINS)
    line.add_argument("--patients", type=int, nargs="+", default=PATIENTS)
    line.add_argument("--noises", type=float, nargs="+", default=NOISES)
    line.add_argument("--all", action="store_true", help="every setting, too")
    asked = line.parse_args()
    found = list(study(asked.repeats, asked.single, asked.squeezed, asked.bins, asked.patients, asked.noises))
    if asked.all:
        print(by_setting(found))
    print("\n" + summary(found, "bins", lambda cell: cell.bins))
    default = sorted((cell for cell in found if cell.bins == noised.NOISED_BINS), key=lambda cell: cell.share)
    if default:
        print(f"\nWith {noised.NOISED_BINS} bins, by share of noise:\n\n" + summary(default, "share", band))
