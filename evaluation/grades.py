"""Ordered classes: how probable it is that a grade reaches a cut, and the grade that follows from it.

C grades 0 .. C-1 have C - 1 cuts, between grade k - 1 and grade k. What a model says of a cut is P(grade >= k), the sum
of its probabilities from k on, so it falls from cut to cut whatever the network. The predicted grade is the median: the
highest whose cut the grade reaches with a probability of at least 0.5. No other grade has a smaller expected distance
from the true one; of two classes it is the one whose probability is at least 0.5.
"""

from __future__ import annotations

import numpy as np

from evaluation.scale import Floats, Ints


def reach_cuts(probabilities: Floats) -> Floats:
    """(n, C - 1): P(grade >= k) for k = 1 .. C - 1. probabilities: (n, C)."""
    p = np.asarray(probabilities, np.float64)
    from_above = np.cumsum(p[:, :0:-1], axis=1)[:, ::-1]
    return from_above if p.shape[1] == 2 else np.clip(from_above, 0.0, 1.0)  # sums can leave [0, 1] by rounding


def predict_grades(probabilities: Floats) -> Ints:
    """(n,): the median grade of each row. probabilities: (n, C)."""
    return np.asarray((reach_cuts(probabilities) >= 0.5).sum(axis=1), dtype=np.int64)


def list_rows(y: Ints, probabilities: Floats, *, ordered: bool) -> tuple[Floats, Ints]:
    """The scores (n, K) by which a model is judged, and whether each holds of the image (n, K), 0 or 1.

    Of two classes that of class 1; of more that of each class against the rest, K = C, or if they are ordered of each
    cut, K = C - 1. y: (n,) true classes. probabilities: (n, C).
    """
    classes = probabilities.shape[1]
    if ordered or classes == 2:
        return reach_cuts(probabilities), (y[:, None] >= np.arange(1, classes)).astype(np.int64)
    return probabilities, (y[:, None] == np.arange(classes)).astype(np.int64)


def predict_labels(probabilities: Floats, *, ordered: bool) -> Ints:
    """(n,): the likeliest class of each row; of two the one with at least 0.5, of ordered ones the median."""
    if ordered or probabilities.shape[1] == 2:
        return predict_grades(probabilities)
    return np.asarray(probabilities.argmax(axis=1), dtype=np.int64)
