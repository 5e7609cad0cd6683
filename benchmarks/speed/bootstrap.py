"""An AUC with a patient bootstrap: our counts against scikit-learn and SciPy, on the same scores.

    python -m benchmarks.speed.bootstrap

One hospital's scores of a model; `--copies` times its patients are drawn again. *Ours* is what a hospital does when it
evaluates (`evaluation.histograms.count_scores`: one histogram and one confusion matrix of each copy) and what the
coordinator makes of it (`evaluation.metrics.auc` of all copies). The others give an AUC of each copy, and no confusion:
scikit-learn's `roc_auc_score` in a loop over drawn patients, and `scipy.stats.bootstrap` with a rank statistic over
many copies at once, which draws images and not patients. Processor time, the least of three turns.
"""

import time
from collections.abc import Callable

import numpy as np
from scipy.stats import bootstrap, rankdata
from sklearn.metrics import roc_auc_score

from benchmarks.shared.options import make_parser
from evaluation.histograms import count_scores
from evaluation.metrics import auc

SHAPES = ((100, 6), (1_000, 6), (5_000, 1))
TURNS, SEED = 3, 0


def scores(patients: int, images: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label, probability of class 1, and patient of each image."""
    drawn = np.random.default_rng(SEED)
    who = np.repeat(np.arange(patients), images)
    y = drawn.random(len(who)) < 0.3
    return y.astype(np.int64), 1 / (1 + np.exp(-drawn.normal(1.2 * y - 0.6, 1.0))), who


def ours(y: np.ndarray, p: np.ndarray, who: np.ndarray, copies: int) -> np.ndarray:
    return auc(count_scores(y, np.stack([1 - p, p], axis=1), who, copies=copies, seed=SEED).scores[:, 0])


def by_loop(y: np.ndarray, p: np.ndarray, who: np.ndarray, copies: int) -> np.ndarray:
    drawn, images = np.random.default_rng(SEED), np.split(np.arange(len(who)), np.flatnonzero(np.diff(who)) + 1)
    found = [roc_auc_score(y, p)]
    for _ in range(copies):
        index = np.concatenate([images[one] for one in drawn.integers(len(images), size=len(images))])
        found.append(roc_auc_score(y[index], p[index]))
    return np.array(found)


def by_scipy(y: np.ndarray, p: np.ndarray, who: np.ndarray, copies: int) -> np.ndarray:
    def ranked(label: np.ndarray, score: np.ndarray, axis: int) -> np.ndarray:
        ranks, positives = rankdata(score, axis=axis), label.sum(axis=axis)
        wins = (ranks * label).sum(axis=axis) - positives * (positives + 1) / 2
        return wins / (positives * (label.shape[axis] - positives))

    done = bootstrap(
        (y, p), ranked, paired=True, vectorized=True, n_resamples=copies, batch=50, method="percentile", rng=SEED
    )
    return np.asarray(done.bootstrap_distribution)


def measured(work: Callable[..., np.ndarray], *args: object) -> tuple[float, np.ndarray]:
    """Least seconds of the processor, and the AUCs."""
    seconds = []
    for _ in range(TURNS):
        begun = time.process_time()
        found = work(*args)
        seconds.append(time.process_time() - begun)
    return min(seconds), found


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--copies", type=int, default=1000)
    copies = line.parse_args().copies
    print("| patients | images each | ours, s | scikit-learn in a loop / ours | SciPy / ours |")
    for patients, images in SHAPES:
        data = scores(patients, images)
        found = [measured(work, *data, copies) for work in (ours, by_loop, by_scipy)]
        times, aucs = zip(*found, strict=True)
        if abs(aucs[0][0] - aucs[1][0]) > 1e-3 or abs(np.std(aucs[0][1:]) / np.std(aucs[1][1:]) - 1) > 0.1:
            raise RuntimeError("the ways disagree about the AUC, or about how far its copies spread")
        ratios = " | ".join(f"{one / times[0]:.1f}" for one in times[1:])
        print(f"| {patients:,} | {images} | {times[0]:.2f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
