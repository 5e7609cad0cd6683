"""More than two classes: their names, and the scores of each of them against the rest, or of each cut between grades.

Two classes keep their one score row (class 1 against class 0). Of C > 2 classes the AUC and the balanced accuracy are
means over the classes that can be assessed (`evaluation.metrics.find_mean_classes`). Each class also has an AUC, a
sensitivity and a specificity of its own, from this class's images and patients. If classes are ordered, each cut
between two of them has these scores instead, of the images from the cut on against those below, and the AUC is the mean
over cuts (`evaluation.metrics.find_mean_cuts`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evaluation.histograms import Counts, Floats
from evaluation.metrics import (
    AUC,
    SENSITIVITY,
    SPECIFICITY,
    Measure,
    auc,
    compute_class_support,
    compute_cut_support,
    ratio,
)
from evaluation.rows import AT_ONE, ScoreRow, group_by

KINDS = (AUC.name, SENSITIVITY.name, SPECIFICITY.name)
"""What each class is scored by."""


@dataclass(frozen=True)
class Classes:
    """The classes of a run. names: of the labels 0 .. C-1. ordered: whether a later class is more of the same, as
    grades are; then scores are by cut, and the quadratic kappa and the error in grades are reported.
    """

    names: tuple[str, ...] = ("negative", "positive")
    ordered: bool = False

    @property
    def several(self) -> tuple[str, ...]:
        """The names of more than two classes; empty for two, which pages do not name."""
        return self.names if len(self.names) > 2 else ()

    @property
    def scored_parts(self) -> tuple[str, ...]:
        """The names of what has scores of its own: each of more than two classes, or each cut between ordered ones."""
        return name_cuts(self.several) if self.ordered else self.several


def name_cuts(names: Sequence[str]) -> tuple[str, ...]:
    """Names of the cuts between ordered classes."""
    return tuple(f"≥ {name}" for name in names[1:])


TWO = Classes()


def list_class_names(classes: Classes, number: int) -> tuple[str, ...]:
    """The names of this number of classes; "class 0", ... where there are names for another number."""
    return classes.names if len(classes.names) == number else tuple(f"class {c}" for c in range(number))


def compare_classes(counts_by_site: Mapping[str, Sequence[int]], names: Sequence[str]) -> str:
    """What is odd about the classes that hospitals have, of C > 2 named ones; empty if nothing is.

    A class that no hospital has is odd. So are {0, 1} at one hospital and {1, 2} at another: one hospital probably
    counts from 0 and the other from 1, so that no hospital has both the first and the last class. counts_by_site:
    hospital -> its examples of each class.
    """
    if len(names) < 3 or not counts_by_site:
        return ""
    if gone := [name for c, name in enumerate(names) if not any(counts[c] for counts in counts_by_site.values())]:
        return f"no hospital has an example of {', '.join(gone)}; leave it out of the classes, or correct the labels"
    if any(counts[0] and counts[-1] for counts in counts_by_site.values()):
        return ""
    each = "; ".join(
        f"{site} has {', '.join(name for name, times in zip(names, counts, strict=True) if times) or 'none'}"
        for site, counts in counts_by_site.items()
    )
    return (
        f"no hospital has both the first class, {names[0]}, and the last, {names[-1]}: {each}; if hospitals count "
        "classes from different numbers, one finding has two classes, and two findings have one"
    )


def describe_strange_counting(
    counts_by_site: Mapping[str, Sequence[int]], names: Sequence[str], strange: Mapping[str, int]
) -> str:
    """Hospitals that probably count classes from another number, by their labels alone; empty if none does.

    There the first class, or the last, is missing, and some labels are no class at all: counted from 1, the classes
    0, 1, 2 are 1, 2, 3. counts_by_site: as in `compare_classes`, of two classes too. strange: hospital -> its studies
    whose labels are no class.
    """
    descriptions = [
        f"{site} has no example of {', '.join(gone)}, and {strange[site]} of its studies have labels that are no class"
        for site, counts in counts_by_site.items()
        if strange.get(site)
        and (gone := [name for name, times in ((names[0], counts[0]), (names[-1], counts[-1])) if not times])
    ]
    text = "it may count classes from another number, so that one finding has two classes; correct its labels"
    return "; ".join(f"{description}: {text}" for description in descriptions)


def describe_single_class(splits: Mapping[str, Sequence[int]], names: Sequence[str]) -> str:
    """The problem that a hospital has examples, or test examples, of one class only, in words; empty if it has more.
    splits: examples of each class by split.
    """
    every = [name for c, name in enumerate(names) if any(counts[c] for counts in splits.values())]
    tested = [name for name, times in zip(names, splits.get("test", ()), strict=False) if times]
    if len(every) != 1 and len(tested) != 1:
        return ""
    whose, only = ("has", every[0]) if len(every) == 1 else ("has test patients of", tested[0])
    return f"{whose} one class only, {only}: nothing can be assessed there, and no model is recommended there"


def class_measure_name(kind: str, name: str) -> str:
    """The name of a measure of one class."""
    return f"{kind} {name}"


def part_measures(names: Sequence[str], *, ordered: bool) -> tuple[Measure, ...]:
    """AUC, sensitivity and specificity of each class against the rest, or of each cut between ordered ones: all of a
    kind, then the next kind.
    """
    find_support = compute_cut_support if ordered else compute_class_support
    return tuple(
        Measure(
            class_measure_name(kind, name),
            partial(_part_score, kind=kind, place=place, ordered=ordered),
            rests=partial(find_support, place=place),
        )
        for kind in KINDS
        for place, name in enumerate(names)
    )


def list_mean_classes(
    rows: Iterable[ScoreRow], names: Sequence[str], *, ordered: bool = False
) -> Mapping[str, tuple[str, ...]]:
    """Test site -> the classes over which its mean AUC and balanced accuracy are taken, by the rule of
    `metrics.find_mean_classes`; or the cuts over which its mean AUC is, by that of `metrics.find_mean_cuts`. names: of
    `Classes.scored_parts`.
    """
    class_by_measure = {class_measure_name(AUC.name, name): name for name in names}
    at_one = (row for row in rows if row.protocol in AT_ONE and row.measure in class_by_measure)
    classes_by_site: dict[str, tuple[str, ...]] = {}
    for site, scored in group_by(at_one, lambda row: row.sites[0]).items():
        rows_by_class = {class_by_measure[r.measure]: r for r in scored if r.method == scored[0].method and r.positives}
        enough = tuple(name for name, row in rows_by_class.items() if row.assessable)
        classes_by_site[site] = enough if len(enough) > (0 if ordered else 1) else tuple(rows_by_class)
    return classes_by_site


def _part_score(counts: Counts, *, kind: str, place: int, ordered: bool) -> Floats:
    """(1 + B,): the score of a class, or of a cut, of the sample and of its copies."""
    if kind == AUC.name:
        return np.asarray(auc(counts.scores[:, place]))
    numbers = np.arange(counts.classes)
    is_this = numbers > place if ordered else numbers == place
    side = is_this if kind == SENSITIVITY.name else ~is_this
    shown = counts.confusion[:, side]
    return ratio(shown[..., side].sum(axis=(-2, -1)), shown.sum(axis=(-2, -1)))
