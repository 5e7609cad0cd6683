"""Partition one source over several simulated hospitals, by patient; for simulations only.

Each of these hospitals reads the whole source and keeps its part. The partition depends on the settings, the labels and
the patients' identifiers, and on no hospital's key, so that all hospitals compute the same one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pipelines.data.split import Fold, drop_test_share, find_share, hash_patient, round_shares, split_patients
from privacy.message import Json
from privacy.settings_error import Problem, out_of_range, refuse, unmet

ATTEMPTS = 1000
MOST = 256
"""Classes at most."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One hospital's part of a source that is partitioned over `of` hospitals by patient. In simulations only.

    kind: `even` = at random, independent of the labels, equal sizes (CusFL IV.D, VAFL III.H). `dirichlet` = the
    shares of each class are drawn from a Dirichlet distribution with `alpha` (PGFed's experiments; small = uneven).
    `practical` = of each class one hospital has 80 %, one 10 %, and the others have equal parts of the last 10 %
    (FedSLD and APPLE with 12 hospitals: ten times 1 %). `pathological` = each hospital has `classes` of the classes, in
    random shares (FedSLD and APPLE; theirs could draw a class twice). number: of this part, 1 = first; null = the
    site represents all parts, <name>-1, <name>-2 and so on. seed: of the partition, not the run's, so that runs with
    other seeds have the same hospitals. least: the smallest allowed number of patients per part; uneven shares are
    redrawn until it holds. tests: `own` = the whole source is partitioned and each part is then split (VAFL); `source`
    = the source is split first, every part gets its test patients, and only the others are partitioned (CusFL).
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    kind: Literal["even", "dirichlet", "practical", "pathological"]
    of: int
    number: int | None = None
    seed: int = 0
    alpha: float | None = None
    classes: int | None = None
    least: int = 1
    tests: Literal["own", "source"] = "own"

    def __post_init__(self) -> None:
        fewest = 3 if self.kind == "practical" else 2
        problems = out_of_range(self, of=(fewest, 1000))
        if self.number is not None and not 1 <= self.number <= self.of:
            text = f"must be in [1, {self.of}], the first part is 1, found {self.number}"
            problems.append(Problem(("number",), text))
        problems += unmet(self, seed=(self.seed >= 0, ">= 0"), least=(self.least >= 0, ">= 0"))
        for name, value, kind, instance in (
            ("alpha", self.alpha, "dirichlet", "0.3"),
            ("classes", self.classes, "pathological", "1"),
        ):
            if value is None and self.kind == kind:
                problems.append(Problem((name,), f"missing; {kind} needs it, for instance {instance}"))
            if value is not None and self.kind != kind:
                problems.append(Problem((name,), f"it goes with kind: {kind}, found kind: {self.kind}; remove it"))
        if self.alpha is not None and not 1e-3 <= self.alpha <= 1e6:
            problems.append(Problem(("alpha",), f"must be in [0.001, 1e6], found {self.alpha}"))
        refuse(problems + out_of_range(self, classes=(1, MOST)))


class Divided(NamedTuple):
    """splits: patient -> split, of this hospital's patients. places: patient -> number of their part, for all
    partitioned patients of the source; empty without a part.
    """

    splits: dict[str, str]
    places: dict[str, int]


def divide_patients(
    labels: Mapping[str, int],
    part: Part | None,
    *,
    classes: int = 2,
    fractions: Mapping[str, float],
    seed: int,
    test: Collection[str] = (),
    independent: bool = False,
    key: bytes = b"",
    fold: Fold | None = None,
) -> Divided:
    """Partition a source's patients, keep one part, and split it; arguments as in `split_patients`. classes: of
    `labels`, which are 0 to classes - 1.

    Raises:
        ValueError: the part has no number, or a part gets fewer patients than `part.least`.
    """
    if part is None:
        source_splits = split_patients(
            labels, fractions=fractions, seed=seed, test=test, independent=independent, key=key, fold=fold
        )
        return Divided(source_splits, {})
    if part.number is None:
        raise ValueError("part.number: missing; say which part this hospital has")
    shared_test: dict[str, str] = {}
    if part.tests == "source":  # without the key, which differs between hospitals
        source_splits = split_patients(
            labels, fractions=fractions, seed=seed, test=test, independent=independent, fold=fold
        )
        shared_test = {patient: split for patient, split in source_splits.items() if split == "test"}
        test, fold, fractions = (), None, drop_test_share(fractions)
    elif test:
        fractions = drop_test_share(fractions)  # a part without test patients draws no others
    free = {patient: label for patient, label in labels.items() if patient not in shared_test}
    places = partition_patients(free, part, kinds=range(classes), independent=independent)
    part_labels = {patient: label for patient, label in free.items() if places[patient] == part.number}
    splits = split_patients(
        part_labels, fractions=fractions, seed=seed, test=test, independent=independent, key=key, fold=fold
    )
    return Divided(dict(sorted({**splits, **shared_test}.items())), places)


def partition_patients(
    labels: Mapping[str, int], part: Part, *, kinds: Sequence[int] = (0, 1), independent: bool = False
) -> dict[str, int]:
    """Partition patients: patient -> number of their part, 1 to `part.of`, sorted by patient.

    labels: patient -> class, one of `kinds`. Within a class patients are ordered by a hash of seed and identifier, and
    counts are the shares rounded by the largest remainder. independent: a patient's part depends only on the settings
    and that patient's label and identifier, as patient-level differential privacy requires (see `split_patients`);
    sizes then match the shares on average only, and `part.least` is ignored.

    Raises:
        ValueError: a label is not in `kinds`, `part.classes` is larger than their number, or no partition gives each
        part `part.least` patients.
    """
    if part.classes is not None and part.classes > len(kinds):
        raise ValueError(f"part.classes is {part.classes}, and the task has {len(kinds)} classes; say fewer")
    if strange := sorted(set(labels.values()) - set(kinds)):
        raise ValueError(f"labels must be among {list(kinds)}, found {strange[:5]}")
    if independent:
        edges = {
            kind: list(accumulate(map(Fraction, class_shares)))
            for kind, class_shares in _class_shares(part, kinds, 0).items()
        }
        return {
            patient: find_share(_hash_for_part(part, patient), edges[label]) + 1
            for patient, label in sorted(labels.items())
        }
    groups = _group_patients(labels, part, kinds)
    fewest = 0
    for attempt in range(1 if part.kind == "even" else ATTEMPTS):
        shares = _class_shares(part, kinds, attempt)
        counts = {kind: round_shares(len(group), shares[kind]) for kind, group in groups.items()}
        smallest = min(map(sum, zip(*counts.values(), strict=True)))
        if smallest >= part.least:
            numbers = {
                p: n for kind, group in groups.items() for p, n in zip(group, _part_numbers(counts[kind]), strict=True)
            }
            return {patient: numbers[patient] for patient in sorted(numbers)}
        fewest = max(fewest, smallest)
    raise ValueError(
        f"part: of {len(labels)} patients in {part.of} parts the smallest part gets {fewest} at best, and least is "
        f"{part.least}; deal out to fewer hospitals, lower least, or take shares that are less uneven"
    )


def _class_shares(part: Part, kinds: Sequence[int], attempt: int) -> dict[int, list[float]]:
    """Class -> each part's share of it; depends on the settings only."""
    if part.kind == "even":
        return {kind: [1 / part.of] * part.of for kind in kinds}
    # A generator for each class, so that classes do not affect each other.
    chances = {kind: np.random.default_rng([part.seed, attempt, kind]) for kind in kinds}
    if part.kind == "dirichlet":
        return {kind: chance.dirichlet([part.alpha or 0.0] * part.of).tolist() for kind, chance in chances.items()}
    if part.kind == "practical":
        rest = [0.1 / (part.of - 2)] * (part.of - 2)
        return {kind: chance.permutation([0.8, 0.1, *rest]).tolist() for kind, chance in chances.items()}
    return _draw_few_classes(part, kinds, attempt, chances)


def _draw_few_classes(
    part: Part, kinds: Sequence[int], attempt: int, chances: Mapping[int, np.random.Generator]
) -> dict[int, list[float]]:
    """Each part in turn gets `classes` different classes, in random orders of classes and parts, with a share of each
    class proportional to a uniform random number.
    """
    common = np.random.default_rng([part.seed, attempt])
    order, first = common.permutation(list(kinds)).tolist(), common.permutation(part.of)
    count = part.classes or 1
    owned = [{order[(start * count + step) % len(order)] for step in range(count)} for start in first.tolist()]
    if orphans := set(kinds) - set().union(*owned):
        raise ValueError(f"part: {part.of} parts of {count} classes leave out the classes {sorted(orphans)}; raise one")
    drawn = {
        kind: np.where([kind in has for has in owned], chance.uniform(1e-3, 1, part.of), 0.0)
        for kind, chance in chances.items()
    }
    return {kind: (weights / weights.sum()).tolist() for kind, weights in drawn.items()}


def _group_patients(labels: Mapping[str, int], part: Part, kinds: Sequence[int]) -> dict[int, list[str]]:
    """Patients of each class in the order of their hashes; `even` treats all as one class."""
    ordered = sorted(labels, key=lambda name: (_hash_for_part(part, name), name))
    if part.kind == "even":
        return {kinds[0]: ordered}
    return {kind: [patient for patient in ordered if labels[patient] == kind] for kind in kinds}


def _part_numbers(counts: Sequence[int]) -> list[int]:
    """Each part's number, 1 = first, as often as it gets patients."""
    return [number for number, count in enumerate(counts, start=1) for _ in range(count)]


def _hash_for_part(part: Part, patient: str) -> bytes:
    """The patient's hash; it differs from that of the split, so that split and part are independent."""
    return hash_patient(part.seed, f"part\0{patient}")


def partition_record(
    part: Part, division: Divided, labels: Mapping[str, int], names: Mapping[str, str], *, classes: int = 2
) -> dict[str, Json]:
    """The record of a partition, which stays at the hospital. names: patient -> pseudonym.

    Returns:
        `part`, the settings; `patients`, the pseudonyms of this hospital's patients; `shared_test`, of the test
        patients that all parts share; and `sizes`, the number of patients of each class in each part.
    """
    sizes = [
        [sum(labels[p] == kind for p, place in division.places.items() if place == number) for kind in range(classes)]
        for number in range(1, part.of + 1)
    ]
    shared = [patient for patient in division.splits if patient not in division.places]
    return {
        "part": asdict(part),
        "patients": [*sorted(names[p] for p, place in division.places.items() if place == part.number)],
        "shared_test": [*sorted(names[p] for p in shared)],
        "sizes": [[*row] for row in sizes],
    }


def dealing_code(part: Part, division: Divided) -> str:
    """A digest of a whole source's partition, 12 hexadecimal digits: equal at hospitals whose parts are disjoint.

    It depends on every patient of the source, so a hospital with real patients must not release it.
    """
    common_settings = {**asdict(part), "number": None}
    shared = sorted(patient for patient in division.splits if patient not in division.places)
    text = json.dumps([common_settings, sorted(division.places.items()), shared], sort_keys=True)
    return hashlib.sha256(f"dealing {text}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
