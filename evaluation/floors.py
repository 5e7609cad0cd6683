"""The floor under every table: what is scored by who knows the hospital and does not look at the patient.

Each hospital's images all get one score, the share of positive ones in its own test set, and the class that most of
them have. Accuracy is then that of always guessing the majority; AUC and balanced accuracy are 0.5 at each hospital;
and overall, where hospitals are one sample, AUC is what telling the hospitals apart is worth. It is a generous floor:
the share is that of the test set itself, not of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from evaluation.histograms import Counts
from evaluation.protocols import Table
from evaluation.rows import home

MAJORITY = "majority guess"
"""Its line in the tables; no method can be called so, because of the space."""


def majority(counts: Counts) -> Counts:
    """The same images, all with the sample's share of each class as score and its most common class as prediction.

    The bootstrap copies keep the sample's shares: what is guessed does not change with who is drawn.
    """
    truth = counts.confusion.sum(axis=-1)  # (1 + B, C)
    confusion = np.zeros_like(counts.confusion)
    confusion[..., int(truth[0].argmax())] = truth
    scores = np.zeros_like(counts.scores)
    bins, held = scores.shape[-1], counts.scores.sum(axis=-1)  # (1 + B, K, 2)
    for row, (other, this) in enumerate(held[0]):
        share = this / max(other + this, 1)
        scores[:, row, :, min(int(max(share, 0) * bins), bins - 1)] = held[:, row]
    return replace(counts, scores=scores, confusion=confusion)


def with_floor(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables of all methods, and the floor at every site where some method was scored at home."""
    own: dict[tuple[str, str], Counts] = {}
    for table in tables.values():
        own.update({pair: majority(counts) for pair, counts in home(table).items() if pair[0] == pair[1]})
    return {**tables, MAJORITY: own} if own else dict(tables)
