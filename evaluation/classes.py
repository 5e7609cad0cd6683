"""More than two classes: their names, and the scores of each of them against the rest.

Two classes keep their one score row (class 1 against class 0). Of C > 2 classes the AUC and the balanced accuracy are
means over the classes that can be assessed (`evaluation.support.judged`), and each class has an AUC, a sensitivity and
a specificity of its own, which rest on this class's images and patients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evaluation.histograms import Counts, Floats
from evaluation.metrics import AUC, SENSITIVITY, SPECIFICITY, Measure, auc, sensitivity, specificity
from evaluation.rows import AT_ONE, ScoreRow
from evaluation.support import support_of

KINDS = (AUC.name, SENSITIVITY.name, SPECIFICITY.name)
"""What each class is scored by."""


@dataclass(frozen=True)
class Classes:
    """The classes of a run. names: of the labels 0 .. C-1. ordered: whether a later class is more of the same, as
    grades are; then the quadratic kappa is reported.
    """

    names: tuple[str, ...] = ("negative", "positive")
    ordered: bool = False

    @property
    def several(self) -> tuple[str, ...]:
        """The names where there are more than two, else none: pages of two classes name none."""
        return self.names if len(self.names) > 2 else ()


TWO = Classes()


def named_classes(classes: Classes, number: int) -> tuple[str, ...]:
    """The names of `number` classes; "class 0", ... where the given names are of another number."""
    return classes.names if len(classes.names) == number else tuple(f"class {c}" for c in range(number))


def compare_classes(held: Mapping[str, Sequence[int]], names: Sequence[str]) -> str:
    """What is odd about the classes that hospitals have, of C > 2 named ones; empty if nothing is.

    A class that nobody has is odd. So are {0, 1} beside {1, 2}: one hospital probably counts from 0 and the other from
    1, so that no hospital has both the first and the last class. held: hospital -> its examples of each class.
    """
    if len(names) < 3 or not held:
        return ""
    if gone := [name for c, name in enumerate(names) if not any(own[c] for own in held.values())]:
        return f"no hospital has an example of {', '.join(gone)}; leave it out of the classes, or correct the labels"
    if any(own[0] and own[-1] for own in held.values()):
        return ""
    having = {site: [name for name, times in zip(names, own, strict=True) if times] for site, own in held.items()}
    each = "; ".join(f"{site} has {', '.join(some) or 'none'}" for site, some in having.items())
    return (
        f"no hospital has both the first class, {names[0]}, and the last, {names[-1]}: {each}; if hospitals count "
        "classes from different numbers, one finding has two classes, and two findings have one"
    )


def strange_counting(held: Mapping[str, Sequence[int]], names: Sequence[str], strange: Mapping[str, int]) -> str:
    """Hospitals that probably count classes from another number, by their labels alone; empty if none does.

    There the first class, or the last, is missing, and some labels are no class at all: counted from 1, the classes
    0, 1, 2 are 1, 2, 3. held: as in `compare_classes`, of two classes too. strange: hospital -> its studies whose
    labels are no class.
    """
    found = [
        f"{site} has no example of {', '.join(gone)}, and {strange[site]} of its studies have labels that are no class"
        for site, own in held.items()
        if strange.get(site)
        and (gone := [name for name, times in ((names[0], own[0]), (names[-1], own[-1])) if not times])
    ]
    text = "it may count classes from another number, so that one finding has two classes; correct its labels"
    return "; ".join(f"{one}: {text}" for one in found)


def one_class(splits: Mapping[str, Sequence[int]], names: Sequence[str]) -> str:
    """What nothing can be told apart from at a hospital: one class alone, of all or of the test; empty if there are
    more. splits: examples of each class by split.
    """
    every = [name for c, name in enumerate(names) if any(own[c] for own in splits.values())]
    tested = [name for name, times in zip(names, splits.get("test", ()), strict=False) if times]
    if len(every) != 1 and len(tested) != 1:
        return ""
    whose, only = ("has", every[0]) if len(every) == 1 else ("has test patients of", tested[0])
    return f"{whose} one class only, {only}: nothing can be assessed there, and no model is recommended there"


def of_class(kind: str, name: str) -> str:
    """The name of a measure of one class."""
    return f"{kind} {name}"


def class_measures(names: Sequence[str]) -> tuple[Measure, ...]:
    """AUC, sensitivity and specificity of each class against the rest: all classes of a kind, then the next kind."""
    return tuple(
        Measure(of_class(kind, name), partial(_value, kind=kind, label=c), rests=partial(support_of, label=c))
        for kind in KINDS
        for c, name in enumerate(names)
    )


def mean_over(rows: Iterable[ScoreRow], names: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Test site -> the classes over which its mean AUC and balanced accuracy are taken; as `support.judged` has it."""
    wanted = {of_class(AUC.name, name): name for name in names}
    own = dict[str, list[ScoreRow]]()
    for row in rows:
        if row.protocol in AT_ONE and row.measure in wanted:
            own.setdefault(row.sites[0], []).append(row)
    found: dict[str, tuple[str, ...]] = {}
    for site, scored in own.items():
        held = {wanted[r.measure]: r for r in scored if r.method == scored[0].method and r.positives}
        enough = tuple(name for name, row in held.items() if row.assessable)
        found[site] = enough if len(enough) > 1 else tuple(held)
    return found


def _value(counts: Counts, *, kind: str, label: int) -> Floats:
    """(1 + B,): one class's score, of the sample and of its copies."""
    if kind == AUC.name:
        return np.asarray(auc(counts.scores[:, label]))
    return (sensitivity if kind == SENSITIVITY.name else specificity)(counts.confusion, positive=label)
