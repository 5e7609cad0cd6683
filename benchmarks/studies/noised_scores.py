"""What a coordinator is told of a model's AUC through noise: python -m benchmarks.studies.noised_scores

Simulated hospitals release noised histograms of a model's scores (evaluation/votes.py). A latent value is N(0, 1) in
patients without the disease and N(m, 1) with it, with the m of the wanted AUC; a patient has 1 to 3 images with values
of their own. Probabilities are a rising function of the value: `calibrated`, or all in a narrow range, as of a model
that learnt little or of a rare disease (`SHAPES`). So the AUC of the population is known, whatever the shape.

`--choose` compares ways of releasing (`WAYS`), on seeds that the other tables do not use: bias and root mean squared
error of the AUC told, against the exact AUC of the same patients. Without it, of the way that was chosen and of the
one before: the same, and how often the 95 % interval holds the AUC of the population; by shape, epsilon, patients, and
share: noise x sqrt(bins) over the patients of the smaller class, by which evaluation judges what is assessable.
`--classes` does so for the macro AUC of several classes, and `--grades` for the mean AUC of cuts, the quadratic kappa
and the error in grades of ordered ones; `--findings` for the mean AUC of several findings.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser

os.environ.setdefault("OMP_NUM_THREADS", "1")

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from evaluation import noised, scale, votes
from evaluation.findings import (
    MEAN_AUC,
    UNKNOWN,
    count_finding_numbers,
    count_findings,
    find_mean_findings,
    from_noised_tensors,
    release_findings,
)
from evaluation.histograms import count_scores
from evaluation.intervals import percentile_interval
from evaluation.metrics import AUC, GRADE_ERROR, KAPPA, NOISE_SHARE, auc, compute_support
from evaluation.scale import CELLS, cell_of
from privacy.dp.accounting import mu_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DELTA, COPIES, MOST_IMAGES = 1e-5, 200, 3
AUCS, SHARES, PATIENTS = (0.5, 0.65, 0.8, 0.95), (0.02, 0.1, 0.35, 0.5), (20, 60, 200, 600, 2000)
EPSILONS = (1.0, 3.0, 8.0)
FEWEST = 3  # patients of a class that are expected, for a setting to be tried
CHOOSING, REPORTED = 1, 2  # seeds
EIGHTHS = cell_of(np.arange(1, 8) / 8)[None]
LEAN = 0.7  # standard deviation of a class's own logit, of several classes


class Hospital(NamedTuple):
    """labels, patients: (n,); p: (n, C)."""

    labels: Ints
    p: Floats
    patients: Ints


def logistic(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=np.float64)


SHAPES: dict[str, Callable[[Floats, float, float], Floats]] = {
    "calibrated": lambda x, m, share: logistic((m or 0.3) * (x - m / 2) + math.log(share / (1 - share))),
    ".45 to .55": lambda x, m, share: 0.45 + 0.1 * logistic(1.5 * (x - m / 2)),
    "below .03": lambda x, m, share: 0.0001 + 0.03 * logistic(1.5 * (x - m / 2)),
    "sure": lambda x, m, share: logistic(6 * (x - m / 2)),
}


class Setting(NamedTuple):
    shape: str
    area: float
    share: float
    patients: int
    epsilon: float

    @property
    def noise(self) -> float:
        return 1.002 / mu_of(self.epsilon, DELTA)


def settings() -> Iterator[Setting]:
    for setting in itertools.starmap(Setting, itertools.product(SHAPES, AUCS, SHARES, PATIENTS, EPSILONS)):
        if setting.patients * setting.share >= FEWEST:
            yield setting


def draw(generator: np.random.Generator, setting: Setting) -> Hospital:
    """A hospital with at least two patients of each class."""
    m = math.sqrt(2) * float(stats.norm.ppf(setting.area))
    while True:
        diseased = generator.random(setting.patients) < setting.share
        if 2 <= diseased.sum() <= setting.patients - 2:
            break
    who = np.repeat(np.arange(setting.patients), generator.integers(1, MOST_IMAGES + 1, setting.patients))
    y = diseased[who].astype(np.int64)
    p = SHAPES[setting.shape](generator.standard_normal(len(y)) + m * y, m, setting.share)
    return Hospital(y, np.c_[1 - p, p], who)


def held_of(hospital: Hospital) -> list[int]:
    return [len(np.unique(hospital.patients[hospital.labels == c])) for c in range(hospital.p.shape[1])]


def weighted_auc(hospital: Hospital, label: int = 1) -> float:
    """The exact AUC, every patient weighing the same."""
    from sklearn.metrics import roc_auc_score

    weight = 1 / np.bincount(hospital.patients)[hospital.patients]
    return float(roc_auc_score(hospital.labels == label, hospital.p[:, label], sample_weight=weight))


class Way(NamedTuple):
    """A way to release: learn the scale with a share of the budget, then count in bins."""

    name: str
    share: float = 0.1
    bins: int = 8
    tilt: bool = True
    oracle: bool = False
    equal: bool = False
    ranks: bool = False


WAYS = (
    Way("8 bins of width 1/8 (before)", equal=True, share=0.0),
    Way("bins that follow the true scores, at no cost", oracle=True, share=0.0),
    *(Way(f"learnt, share {share}, {bins} bins", share, bins) for share in (0.05, 0.1, 0.2) for bins in (4, 6, 8, 12)),
    Way("learnt, share 0.1, 8 bins of equal number", tilt=False),
    *(Way(f"ranks on a learnt scale, share {share}", share, ranks=True) for share in (0.2, 0.4)),
)


def told_by(way: Way, hospital: Hospital, noise: float, generator: np.random.Generator) -> float:
    """The AUC that one release tells."""
    held, cells = held_of(hospital), cell_of(hospital.p[:, 1])
    number, rest = len(np.unique(hospital.patients)), noise / math.sqrt(1 - way.share)
    weight = 1 / np.bincount(hospital.patients)[hospital.patients]
    if way.oracle:
        where = np.bincount(cells, weight, minlength=CELLS)
    elif not way.equal:
        where = learnt(cells, hospital.patients, noise / math.sqrt(way.share), number, generator)
    if way.ranks:
        u = ((np.cumsum(where) - where / 2) / number)[cells] - 0.5
        sums = [
            float((weight * u)[hospital.labels == c].sum()) + rest / 2 * generator.standard_normal() for c in (0, 1)
        ]
        return min(max(0.5 + sums[1] / held[1] - sums[0] / held[0], 0.0), 1.0)
    if way.equal:
        bounds = EIGHTHS[0]
    else:
        share = held[1] / sum(held) if way.tilt else 0.5
        bounds = scale.compute_edges(where, way.bins, share=share, half=True)
    bin_ = (cells[:, None] >= bounds).sum(axis=1) + way.bins * hospital.labels
    exact = np.bincount(bin_, weight, minlength=2 * way.bins).reshape(2, way.bins)
    released = exact + rest * generator.standard_normal(exact.shape)
    least, most = np.array(number - held[0]), np.array(held[1])
    return float(auc(noised.project_histogram(released, number, least, most)))


def learnt(cells: Ints, patients: Ints, noise: float, number: int, generator: np.random.Generator) -> Floats:
    """The density on the scale, from noised levels."""
    each = noise * math.sqrt(scale.LEVELS)
    levels = []
    for level in range(1, scale.LEVELS + 1):
        found = votes.tree_votes(cells, patients, level)
        exact = (found / found.sum(axis=1, keepdims=True)).sum(axis=0)
        levels.append(exact + each * generator.standard_normal(exact.shape))
    return scale.compute_density(levels, number)


def mean(values: Sequence[float]) -> str:
    return f"{float(np.mean(values)):.3f}"


def choose(repeats: int) -> None:
    """A line a way."""
    errors: dict[str, list[tuple[Setting, Floats]]] = {}
    for setting in settings():
        people, chance = (np.random.default_rng([CHOOSING, part, hash_of(setting)]) for part in (0, 1))
        hospitals = [draw(people, setting) for _ in range(repeats)]
        exact = np.array([weighted_auc(h) for h in hospitals])
        for way in WAYS:
            told = np.array([told_by(way, h, setting.noise, chance) for h in hospitals])
            errors.setdefault(way.name, []).append((setting, told - exact))
    print(f"| way | bias | RMSE | {' | '.join(f'ε = {e:g}' for e in EPSILONS)} | {' | '.join(SHAPES)} |")
    for name, found in errors.items():
        rmse = [(setting, math.sqrt((e**2).mean())) for setting, e in found]
        by = [mean([r for s, r in rmse if s.epsilon == e]) for e in EPSILONS]
        by += [mean([r for s, r in rmse if s.shape == shape]) for shape in SHAPES]
        bias = mean([abs(float(e.mean())) for _, e in found])
        print(f"| {name} | {bias} | {mean([r for _, r in rmse])} | {' | '.join(by)} |")


class Trial(NamedTuple):
    """told - exact, and whether the interval holds the population's value, of the way before and of ours."""

    share: float
    before: float
    ours: float
    before_held: bool
    ours_held: bool


def adding(generator: np.random.Generator) -> votes.AddNoise:
    """As the hospital adds noise, with a generator of ours."""

    def told(found: Ints, deviation: float) -> Floats:
        exact = np.asarray((found / found.sum(axis=1, keepdims=True)).sum(axis=0), dtype=np.float64)
        return exact + deviation * generator.standard_normal(exact.shape)

    return told


def trial(generator: np.random.Generator, hospital: Hospital, noise: float, truth: float) -> Trial:
    """One release in each way."""
    held, told, exact = held_of(hospital), adding(generator), weighted_auc(hospital)
    number, images = len(np.unique(hospital.patients)), len(hospital.labels)
    release = votes.release_histograms(*hospital, noise=noise, class_patients=held, number=number, add_noise=told)
    facts = {"patients": number, "images": images, "class_patients": tuple(held), "copies": COPIES, "seed": 0}
    ours = noised.from_noised(release, noise=noise, **facts)  # type: ignore[arg-type]
    cells = told(votes.class_votes(hospital.labels, hospital.p, hospital.patients, EIGHTHS), noise).reshape(2, -1)
    values = [before(cells, noise, number, held, generator), np.asarray(AUC.of(ours))]
    intervals = [percentile_interval(one) for one in values]
    right = [one.low <= truth <= one.high for one in intervals]
    few = compute_support(ours)
    share = few.class_noise / max(1, min(few.positives, few.negatives))
    return Trial(share, float(values[0][0] - exact), float(values[1][0] - exact), right[0], right[1])


def before(cells: Floats, noise: float, number: int, held: Sequence[int], generator: np.random.Generator) -> Floats:
    """The AUC of (2, bins) noised cells and of its copies, (1 + B,), as they were read before."""
    least, most = number - held[0], held[1]
    sample = noised.project_histogram(cells, number, np.array(least), np.array(most))
    flat = sample.ravel() / sample.sum()
    drawn = generator.multinomial(number, flat, size=COPIES).astype(np.float64).reshape(COPIES, *cells.shape)
    shift = drawn[:, 1].sum(axis=-1) - sample[1].sum()
    low, high = (np.clip(bound + shift, 0, number) for bound in (least, most))
    copies = noised.project_histogram(drawn + noise * generator.standard_normal(drawn.shape), number, low, high)
    return auc(np.concatenate([sample[None], copies]))


def report(repeats: int) -> None:
    """Tables by shape, epsilon, number of patients and share of noise."""
    found: list[tuple[Setting, list[Trial]]] = []
    for setting in settings():
        people, chance = (np.random.default_rng([REPORTED, part, hash_of(setting)]) for part in (0, 1))
        found.append(
            (setting, [trial(chance, draw(people, setting), setting.noise, setting.area) for _ in range(repeats)])
        )
    table("scores", found, lambda s, t: s.shape)
    table("ε", found, lambda s, t: f"{s.epsilon:g}")
    table("patients", found, lambda s, t: str(s.patients))
    table("share of noise", sorted(found, key=lambda one: one[1][0].share), lambda s, t: band(t))


def table(name: str, found: Sequence[tuple[Setting, list[Trial]]], key: Callable[[Setting, list[Trial]], str]) -> None:
    """A line a value of `key`: mean |bias| and RMSE over its settings; coverage, mean and the lowest tenth."""
    print(f"\n| {name} | settings | before: bias, RMSE | interval | now: bias, RMSE | interval |")
    for value in dict.fromkeys(key(*one) for one in found):
        group = [trials for setting, trials in found if key(setting, trials) == value]
        cells = []
        for way in ("before", "ours"):
            errors = [np.array([getattr(t, way) for t in trials]) for trials in group]
            bias, rmse = (
                np.mean([f(e) for e in errors]) for f in (lambda e: abs(e.mean()), lambda e: ((e**2).mean()) ** 0.5)
            )
            held = [float(np.mean([getattr(t, f"{way}_held") for t in trials])) for trials in group]
            cells += [f"{bias:.3f}, {rmse:.3f}", f"{np.mean(held):.2f}, {np.quantile(held, 0.1):.2f}"]
        print(f"| {value} | {len(group)} | {' | '.join(cells)} |")


def band(trials: Sequence[Trial]) -> str:
    """Where the share of noise lies."""
    edges = (NOISE_SHARE / 2, NOISE_SHARE, 2 * NOISE_SHARE, 4 * NOISE_SHARE)
    share = float(np.mean([one.share for one in trials]))
    return next((f"up to {edge:g}" for edge in edges if share <= edge), "more")


def several(repeats: int) -> None:
    """Macro AUC of several classes, of which the first has half of the patients."""
    print("| classes | patients | ε | macro AUC: bias, RMSE | interval | single classes: RMSE |")
    for classes, patients, epsilon in itertools.product((3, 7), (200, 600, 2000), EPSILONS):
        noise, errors, held, single = 1.002 / mu_of(epsilon, DELTA), [], [], []
        generator = np.random.default_rng([REPORTED, classes, patients, int(epsilon)])
        large = labelled(generator, classes, 40_000)
        truth = float(np.mean(auc(count_scores(*large, copies=0, seed=0).scores[0])))
        for _ in range(repeats):
            hospital = labelled(generator, classes, patients)
            of_class = held_of(hospital)
            release = votes.release_histograms(
                *hospital, noise=noise, class_patients=of_class, number=patients, add_noise=adding(generator)
            )
            counts = noised.from_noised(
                release, noise=noise, patients=patients, images=patients, class_patients=tuple(of_class),
                copies=COPIES, seed=0,
            )  # fmt: skip
            each = auc(counts.scores)
            exact = np.array([weighted_auc(hospital, c) for c in range(classes)])
            errors.append(float(each[0].mean() - exact.mean()))
            single.append(float(np.sqrt(((each[0] - exact) ** 2).mean())))
            interval = percentile_interval(np.asarray(each.mean(axis=-1)))
            held.append(interval.low <= truth <= interval.high)
        bias, rmse = np.mean(errors), math.sqrt(np.mean(np.square(errors)))
        print(
            f"| {classes} | {patients} | {epsilon:g} | {bias:+.3f}, {rmse:.3f} | {np.mean(held):.2f} | {mean(single)} |"
        )


def grades(repeats: int) -> None:
    """Scores of ordered classes, of which the lowest has half of the patients; a score and its interval by measure."""
    measures = (AUC, KAPPA, GRADE_ERROR)
    print(
        f"| grades | patients | ε | {' | '.join(f'{m.name}: bias, RMSE | interval' for m in measures)} | assessable |"
    )
    for classes, patients, epsilon in itertools.product((3, 5), (200, 600, 2000), EPSILONS):
        noise, generator = 1.002 / mu_of(epsilon, DELTA), np.random.default_rng([REPORTED, classes, patients])
        large = count_scores(*graded(generator, classes, 40_000), copies=0, seed=0, ordered=True)
        errors, held, assessable = np.zeros((repeats, 3)), np.zeros((repeats, 3)), 0
        for turn in range(repeats):
            hospital = graded(generator, classes, patients)
            of_class = held_of(hospital)
            declared = {"class_patients": of_class, "number": patients, "ordered": True}
            release = votes.release_histograms(*hospital, noise=noise, add_noise=adding(generator), **declared)
            told = {"patients": patients, "images": patients, "class_patients": tuple(of_class)}
            counts = noised.from_noised(release, noise=noise, copies=COPIES, seed=0, **told)
            exact = count_scores(*hospital, copies=0, seed=0, ordered=True)
            assessable += compute_support(counts).assessable()
            for place, measure in enumerate(measures):
                values, interval = measure.of(counts), percentile_interval(measure.of(counts))
                errors[turn, place] = values[0] - measure.of(exact)[0]
                held[turn, place] = interval.low <= measure.of(large)[0] <= interval.high
        cells = [
            f"{error.mean():+.3f}, {math.sqrt((error**2).mean()):.3f} | {inside.mean():.2f}"
            for error, inside in zip(errors.T, held.T, strict=True)
        ]
        print(f"| {classes} | {patients} | {epsilon:g} | {' | '.join(cells)} | {assessable / repeats:.2f} |")


def findings(repeats: int) -> None:
    """Mean AUC of several findings, over those that declared numbers of patients let be judged."""
    print("| findings | patients | ε | mean AUC: bias, RMSE | interval | findings assessable |")
    for number, patients, epsilon in itertools.product((4, 14), (200, 600, 2000), EPSILONS):
        noise, generator = 1.002 / mu_of(epsilon, DELTA), np.random.default_rng([REPORTED, number, patients])
        large = count_findings(*examined(generator, number, 40_000), copies=0, seed=0)
        errors, held, assessable = [], [], []
        for _ in range(repeats):
            hospital = examined(generator, number, patients)
            numbers = count_finding_numbers(hospital[0], hospital[2])
            tensors = release_findings(*hospital, noise=noise, numbers=numbers, add_noise=adding(generator))
            facts = {"noise": noise, "patients": patients, "images": patients, "finding_patients": numbers}
            told = from_noised_tensors(tensors, facts, copies=COPIES, seed=0)
            chosen = np.flatnonzero(find_mean_findings(told))
            exact, truth = (
                float(np.mean([AUC.of(counted.each[k])[0] for k in chosen]))
                for counted in (count_findings(*hospital, copies=0, seed=0), large)
            )
            values = MEAN_AUC.of(told)
            interval = percentile_interval(values)
            errors.append(float(values[0]) - exact)
            held.append(interval.low <= truth <= interval.high)
            assessable.append(sum(compute_support(counts).assessable() for counts in told.each))
        bias, rmse = np.mean(errors), math.sqrt(np.mean(np.square(errors)))
        share = np.mean(assessable)
        print(
            f"| {number} | {patients} | {epsilon:g} | {bias:+.3f}, {rmse:.3f} | {np.mean(held):.2f} | {share:.1f} |",
            flush=True,
        )


def examined(generator: np.random.Generator, number: int, patients: int) -> tuple[Ints, Floats, Ints]:
    """States (n, K), probabilities (n, K) and patients, one image each. Of one patient findings go together, from half
    of the patients down to a tenth have one, and a fifth of all is unknown; a model tells each with an AUC of about
    0.8.
    """
    shares = np.linspace(0.5, 0.1, number)
    own, common = generator.standard_normal((patients, number)), generator.standard_normal((patients, 1))
    y = ((own + common) / math.sqrt(2) > stats.norm.isf(shares)).astype(np.int64)
    p = logistic(np.log(shares / (1 - shares)) + 1.2 * (y - shares) + generator.standard_normal((patients, number)))
    y[generator.random((patients, number)) < 0.2] = UNKNOWN
    return y, p, np.arange(patients)


def graded(generator: np.random.Generator, classes: int, patients: int) -> Hospital:
    """A hospital with patients of every grade, one image each; a model sees the grade with a deviation of 1.2."""
    shares = np.full(classes, 0.5 / (classes - 1))
    shares[0] = 0.5
    y = np.concatenate([np.arange(classes), generator.choice(classes, patients - classes, p=shares)])
    seen = y + 1.2 * generator.standard_normal(patients)
    p = shares * np.exp(-(((seen[:, None] - np.arange(classes)) / 1.2) ** 2) / 2)
    return Hospital(y, p / p.sum(axis=1, keepdims=True), np.arange(patients))


def labelled(generator: np.random.Generator, classes: int, patients: int) -> Hospital:
    """A hospital with patients of every class, one image each; a class's own logit is 1.5 higher."""
    shares = np.full(classes, 0.5 / (classes - 1))
    shares[0] = 0.5
    y = np.concatenate([np.arange(classes), generator.choice(classes, patients - classes, p=shares)])
    logits = np.log(shares) + LEAN * generator.standard_normal((patients, classes))
    logits[np.arange(patients), y] += 1.2 * LEAN
    p = np.exp(logits)
    return Hospital(y, p / p.sum(axis=1, keepdims=True), np.arange(patients))


def hash_of(setting: Setting) -> int:
    """A number of the setting: the same hospitals at every epsilon."""
    return int.from_bytes(f"{setting[:-1]}".encode(), "little")


if __name__ == "__main__":
    line = make_parser(__doc__)
    line.add_argument("--repeats", type=int, default=24)
    line.add_argument("--choose", action="store_true", help="compare ways of releasing, on other seeds")
    line.add_argument("--classes", action="store_true", help="several classes")
    line.add_argument("--grades", action="store_true", help="ordered classes")
    line.add_argument("--findings", action="store_true", help="several findings")
    asked = line.parse_args()
    ways = {"choose": choose, "classes": several, "grades": grades, "findings": findings}
    next((way for name, way in ways.items() if getattr(asked, name)), report)(asked.repeats)
