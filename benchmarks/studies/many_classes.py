"""Seven diagnoses at hospitals of HAM10000: one message of moments against what each hospital can do alone.

    CONSILIUM_DATA=... python -m benchmarks.studies.many_classes [--splits 10]

Features, hospitals and splits are those of one_message.py, and so are the guarantees: (epsilon, 1e-5) for
each lesion, add or remove, the noise of each split its own. The measure is the mean AUC of one class against the rest,
over the classes of which a hospital has 5 lesions or more in its test split, and over the hospitals with three such
classes or more. Splits 0 to 9 are reported; settings were chosen on splits 100 to 105.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import collect_splits
from benchmarks.shared.skin import split_hospitals
from benchmarks.studies.one_message import (
    ALONE,
    BY_NOISE,
    DESCENT,
    DESCENT_TOGETHER,
    FIRMER,
    KERNEL,
    LINEAR,
    TOGETHER,
    computed,
    models,
    scaled,
)
from personalize.dp_head import DpHead
from personalize.moments import Moments

CLASSES = ("nv", "bkl", "df", "vasc", "akiec", "bcc", "mel")
LEAST = 5  # lesions of a class in a hospital's test split
EPSILONS = (1.0, 3.0, 8.0, None)
SVM = "SVM with a Gaussian kernel, one class against the rest, alone"
LOGISTIC = "logistic regression, alone"


def judged(y: np.ndarray, lesion: np.ndarray) -> list[int]:
    """The classes of which there are enough lesions, and enough of others."""
    lesions = [len(np.unique(lesion[y == c])) for c in range(len(CLASSES))]
    return [c for c, held in enumerate(lesions) if held >= LEAST and sum(lesions) - held >= LEAST]


def macro(y: np.ndarray, scores: np.ndarray, classes: list[int]) -> float:
    """scores: (n, 7). The mean over `classes` of the AUC of one against the rest."""
    return float(np.mean([roc_auc_score(y == c, scores[:, c]) for c in classes]))


def lines_of(split: int, parts: int, found, public, lines, tried) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, macro AUC) on one split. tried: name -> (features, method) of each line."""
    y = np.array([CLASSES.index(line["dx"]) for line in lines])
    _, lesion, _, train, test, _ = split_hospitals(lines, parts, split)
    classes = {name: judged(y[rows], lesion[rows]) for name, rows in test.items()}
    names = [name for name, held in classes.items() if len(held) >= 3]

    def mean(score: Callable[[str, np.ndarray], np.ndarray]) -> float:
        return float(np.mean([macro(y[test[name]], score(name, test[name]), classes[name]) for name in names]))

    for epsilon in EPSILONS:
        solved: dict[str, Callable[[Moments | DpHead], dict[str, torch.nn.Module]]] = {}
        for label, (how, method) in tried.items():
            if how.get("fourier") and epsilon is not None:
                continue
            x = scaled(found, public, how)
            key = f"{json.dumps(how)} {method.name}"  # what leaves is the same for all lines of a method
            if key not in solved:
                solved[key] = models(x, y, lesion, train, epsilon, method)
            solve = solved[key]
            networks = solve(method)

            def of_network(name: str, rows: np.ndarray, x=x, networks=networks) -> np.ndarray:
                logits = networks[name](torch.from_numpy(x[rows]).float()).logits.detach().numpy()
                return softmax(logits.astype(float), axis=1)

            yield label, epsilon, mean(of_network)

    def floor(make):
        def score(name: str, rows: np.ndarray) -> np.ndarray:
            own, told = train[name], np.full((len(rows), len(CLASSES)), -1e9)
            for c in classes[name]:
                if len(np.unique(y[own] == c)) == 2:
                    fitted = make_pipeline(StandardScaler(), make()).fit(found[own], y[own] == c)
                    told[:, c] = fitted.decision_function(found[rows])
            return told

        return mean(score)

    yield SVM, None, floor(lambda: SVC(C=1.0))
    yield LOGISTIC, None, floor(lambda: LogisticRegression(C=0.03, max_iter=2000))


REPORTED = {
    "moments, 24 components, alone": (LINEAR, ALONE),
    "moments, 24 components, together": (LINEAR, TOGETHER),
    "moments, 24 components, together, firmer": (LINEAR, FIRMER),
    "dp_head, 24 components, alone": (LINEAR, DESCENT),
    "dp_head, 24 components, together": (LINEAR, DESCENT_TOGETHER),
    "dp_head, 24 components, together by the noise": (LINEAR, BY_NOISE),
    "moments, 300 Fourier features, alone": (KERNEL, ALONE),
    "moments, 300 Fourier features, together": (KERNEL, TOGETHER),
    "moments, 300 Fourier features, together, firmer": (KERNEL, FIRMER),
}


def main() -> None:
    options = ask_splits(__doc__, "many_classes", splits=10)
    found, public, lines = computed()
    given = partial(lines_of, found=found, public=public, lines=lines, tried=REPORTED)
    collect_splits(options, {f"{3 * parts} hospitals": partial(given, parts=parts) for parts in (1, 4)})


if __name__ == "__main__":
    main()
