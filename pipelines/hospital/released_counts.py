"""The counts of patients that a hospital with a budget releases: counted once, then always the same numbers.

Counts of two cohorts that differ in one patient, for example after a withdrawal or with another list of test patients,
reveal that patient's split and label. So a hospital with a budget counts once, stores the numbers in `asked.json`
beside its ledger, and repeats them even if patients change. Everything the coordinator gets that depends
on a number of patients (weights, divisors of noised sums, test patients of a histogram) is made from these numbers.

The counts are a histogram of patients, to which each adds 1 in one of 9 cells: split x (examples of class 0 only, of
class 1 only, of both); of more than two classes, or bands of
a number's range, in one cell of split x highest class. Of several findings each has a histogram of its own besides, of
split x (examples without it only, with it only, both), to which a patient adds nothing where it is unknown. Counts are
exact if the policy declares them public; otherwise each cell gets Gaussian noise, which the budget pays for. K findings
make 1 + K histograms, each with noise times the square root of 1 + K, so together they cost what one costs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from pydantic import TypeAdapter

from federation.findings import NO, YES, decode_findings
from pipelines.data.cohort import Cohort
from pipelines.data.stored import class_numbers, finding_names, label_names
from pipelines.hospital.hospital import SPLITS, Hospital
from pipelines.phantom.patients import PhantomSource
from pipelines.runs.store import DiskFolder, digest_json
from privacy.dp.access import Split
from privacy.dp.events import NOTHING, Declared, Event, Gaussian
from privacy.dp.mechanisms import vote_histogram
from privacy.formats import check_format
from privacy.message import Call, Json
from privacy.release import ledger as ledgers
from privacy.release.gate import Refused, find_unaffordable
from privacy.release.policy import FLOOR, Budget, largest_delta
from privacy.settings_error import words_of

COUNTED_FILE = "asked.json"
SHARE = 0.05
"""The noised counts' largest share of the budget's squared mu."""
LEAST_NOISE = 1.0
"""Lowest standard deviation of the noise, in patients, however large the budget."""
KINDS = 3  # of patients, with two classes


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The released counts of a hospital's patients.

    cells: by split, patients with examples of class 0 only, of class 1 only, and of both; of more than two classes by
    the highest that each patient has. classes: their number. findings: by split, of each finding in turn, patients
    with examples without it only, with it only, and both. noise: standard deviation in
    each cell, before rounding; 0 = exact. since: number of ledger lines before. run, round: when they were counted.
    """

    cells: Mapping[str, tuple[int, ...]]
    noise: float
    date: str
    run: str
    round: int
    since: int
    classes: int = 2
    findings: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def finding_count(self) -> int:
        """K, the number of findings; 0 where an example has one label."""
        return len(self.findings.get("train", ())) // KINDS

    @property
    def histogram_cells(self) -> int:
        """The number of all cells."""
        return len(SPLITS) * (kinds_of(self.classes) + KINDS * self.finding_count)

    @property
    def multiplier(self) -> float:
        """The noise of one histogram that would cost what all of them cost."""
        return self.noise / math.sqrt(1 + self.finding_count)

    def patients(self, split: str) -> int:
        """Patients of a split."""
        return sum(self.cells[split])

    @property
    def total(self) -> int:
        """Patients of all splits."""
        return sum(map(self.patients, SPLITS))

    def sizes(self) -> dict[Split, int]:
        """Patients by split."""
        return {split: self.patients(split) for split in SPLITS}

    def of_classes(self, split: str) -> tuple[int, ...]:
        """Patients of a split with an example of each class; of more than two classes, of whom it is the highest."""
        if self.classes > 2:
            return self.cells[split]
        zero, first, both = self.cells[split]
        return zero + both, first + both

    def of_findings(self, splits: Sequence[str]) -> list[int]:
        """The numbers of each finding in these splits, as `evaluation.findings.NUMBERS` says. Examples are not counted:
        a patient counts as one without it, as one with it, or as both.
        """
        numbers = []
        for cell in range(0, KINDS * self.finding_count, KINDS):
            without, having, both = (
                sum(self.findings[split][cell + kind] for split in splits) for kind in range(KINDS)
            )
            numbers += [without + having + both, without + having + 2 * both, without + both, having + both]
        return numbers

    def facts(self) -> dict[str, Json]:
        """As facts of `ingest`. Examples are not counted: a patient counts as one example of each class they have."""
        parts: dict[str, dict[str, int]] = {}
        for split in SPLITS:
            each = self.of_classes(split)
            parts[split] = {"patients": self.patients(split), "images": sum(each), "positives": sum(each[1:])}
        sums = {name: sum(part[name] for part in parts.values()) for name in ("patients", "images", "positives")}
        released: dict[str, Json] = {"noise": self.noise, "date": self.date}
        facts_by_split: dict[str, Json] = {split: self._describe_split(split, part) for split, part in parts.items()}
        return {**sums, "splits": facts_by_split, "released": released}

    def _describe_split(self, split: str, part: Mapping[str, int]) -> dict[str, Json]:
        return {**part, **({"classes": [*self.of_classes(split)]} if self.classes > 2 else {})}


COUNTED: TypeAdapter[Counted] = TypeAdapter(Counted)


def check_same_cohort(hospital: Hospital, settings: Json) -> None:
    """Check that patients are read and split by the same settings as when they were counted.

    Raises:
        Refused: `another_cohort`: a person must consent, by removing `asked.json` beside the ledger.
    """
    if hospital.policy.promises and _read_file(hospital).get("digest", digest_json(settings)) != digest_json(settings):
        raise Refused("another_cohort")


def read_released_counts(hospital: Hospital) -> Counted | None:
    """The counts that this hospital released; None if it promises no privacy, or released none yet."""
    counted = _read_file(hospital).get("counted") if hospital.policy.promises else None
    return None if counted is None else COUNTED.validate_python(counted)


def count_once(hospital: Hospital, call: Call, cohort: Cohort, settings: Json) -> tuple[Counted, Event]:
    """The counts of this hospital's patients, and the event of releasing them; counted now if they never were.

    Raises:
        Refused: `another_cohort`: other findings were counted; `dependent_patients`: the split of one patient depends
            on others, so that one patient could move others between cells; `too_few_patients`, where counts are
            declared public; or the code of the gate.
    """
    known = read_released_counts(hospital)
    if known is not None and known.finding_count != len(finding_names(cohort)):
        raise Refused("another_cohort") from ValueError(
            f"{hospital.vault / COUNTED_FILE} counts {known.finding_count} findings, and the cohort has others"
        )
    if known is None:
        known = _count_patients(hospital, call, cohort)
        if known.noise == 0:
            _check_enough(hospital, known)
        content = {
            "digest": digest_json(settings),
            "counted": COUNTED.dump_python(known, mode="json", exclude_defaults=True),
        }
        DiskFolder(hospital.vault).write(COUNTED_FILE, json.dumps(content).encode())
    return known, _release_event(hospital, known)


def need_counts(hospital: Hospital, delta: float | None = None) -> Counted | None:
    """The released counts, if they are enough to train on; None if the hospital promises no privacy.

    The check uses released counts only, so it reveals nothing new. delta: of a synthesis or a score, besides the
    budget's.

    Raises:
        Refused: `no_counts`: none were released yet; `too_few_patients`: fewer than the policy's `min_patients` are for
        training; `delta_too_large`: a delta is above `privacy.release.policy.largest_delta`.
    """
    budget = hospital.policy.budget
    if not hospital.policy.promises:
        return None
    known = read_released_counts(hospital)
    if known is None:
        raise Refused("no_counts") from ValueError(
            f"{hospital.vault / COUNTED_FILE} tells no counts; ingest comes first"
        )
    _check_enough(hospital, known)
    largest = largest_delta(known.total)
    for limit in (hospital.policy.delta if budget is None else budget.delta, delta):
        if limit is not None and limit > largest:
            raise Refused("delta_too_large") from ValueError(
                f"delta {limit:g} is above {largest:.3g} = 1 / (10 x {known.total} patients); say a smaller one"
            )
    return known


def floor_of(hospital: Hospital) -> int:
    """The lowest number of training patients with which this hospital trains under a budget."""
    minimum = hospital.policy.min_patients
    simulated = hospital.settings is not None and isinstance(hospital.settings.source, PhantomSource)
    return minimum if minimum is not None else 1 if simulated else FLOOR


@lru_cache(maxsize=64)
def noise_of(budget: Budget) -> float:
    """Standard deviation of the counts' noise, in patients, for `SHARE` of a budget."""
    from privacy.dp.accounting import mu_of  # slow to import

    return max(LEAST_NOISE, 1 / (mu_of(budget.epsilon, budget.delta) * math.sqrt(SHARE)))


def cost_of_counts(hospital: Hospital) -> Sequence[Event]:
    """The events of counting that the budget has not paid yet."""
    policy = hospital.policy
    if policy.budget is None or policy.declares("counts") or read_released_counts(hospital) is not None:
        return ()
    return (Gaussian(noise_of(policy.budget)),)


def _check_enough(hospital: Hospital, known: Counted) -> None:
    floor, patients = floor_of(hospital), known.patients("train")
    if patients < floor:
        raise Refused("too_few_patients") from ValueError(
            f"{patients} training patients were told, and min_patients of the policy is {floor}"
        )


def _count_patients(hospital: Hospital, call: Call, cohort: Cohort) -> Counted:
    budget = hospital.policy.budget
    exact = hospital.policy.declares("counts")
    noise = 0.0 if exact or budget is None else noise_of(budget)
    lines = list(ledgers.read_lines(hospital.ledger)) if hospital.ledger.exists() else []
    if noise:
        if cohort.recipe.get("independent") is not True:
            raise Refused("dependent_patients")
        if refusal := find_unaffordable(hospital.policy, hospital.ledger, [Gaussian(noise)], call.run):
            raise Refused(refusal.code) from ValueError(refusal.why)
    findings = len(finding_names(cohort))
    deviation = noise * math.sqrt(1 + findings)
    classes = len(label_names(cohort))
    cells = _count_cells(_patient_cells(cohort), deviation)
    finding_cells = [_count_cells(votes, deviation) for votes in _finding_cells(cohort, findings)]
    known: dict[str, object] = {"cells": cells, "noise": deviation}
    if findings:
        known["findings"] = {split: [n for each in finding_cells for n in each[split]] for split in SPLITS}
    known |= {"classes": classes} if classes > 2 else {}
    known |= {"run": call.run, "round": call.round, "since": len(lines), "date": hospital.now()}
    return COUNTED.validate_python(known)


def _count_cells(votes: torch.Tensor, deviation: float) -> dict[str, list[int]]:
    """By split the noised numbers of patients in each of its cells, none below 0. votes: (N, splits x kinds)."""
    noised = vote_histogram(votes, noise_multiplier=deviation).value.round().clamp(min=0).int().view(len(SPLITS), -1)
    return dict(zip(SPLITS, noised.tolist(), strict=True))


def kinds_of(classes: int) -> int:
    """Cells in a split: with two classes a patient may have examples of both."""
    return KINDS if classes == 2 else classes


def _patient_cells(cohort: Cohort) -> torch.Tensor:
    """(N, 3 kinds): for each patient a 1 in their cell."""
    classes, class_labels = len(label_names(cohort)), class_numbers(cohort)
    kinds = kinds_of(classes)
    votes = torch.zeros(len(cohort.patients), len(SPLITS) * kinds, dtype=torch.float64)
    for number in range(len(votes)):
        patient_rows = cohort.patient == number
        labels = class_labels[patient_rows]
        if len(labels):
            both = classes == 2 and int(labels.min()) < int(labels.max())
            kind = 2 if both else int(labels.max())
            votes[number, int(cohort.split[patient_rows][0]) * kinds + kind] = 1.0
    return votes


def _finding_cells(cohort: Cohort, findings: int) -> Iterator[torch.Tensor]:
    """(N, 3 KINDS) for each finding: of each patient of whom it is known a 1 in their cell."""
    states = decode_findings(cohort.labels, findings) if findings else torch.zeros(len(cohort.labels), 0)
    for column in states.T:
        votes = torch.zeros(len(cohort.patients), len(SPLITS) * KINDS, dtype=torch.float64)
        for number in range(len(votes)):
            patient_rows = cohort.patient == number
            without, having = (bool((column[patient_rows] == state).any()) for state in (NO, YES))
            if without or having:
                kind = 2 if without and having else int(having)
                votes[number, int(cohort.split[patient_rows][0]) * KINDS + kind] = 1.0
        yield votes


def _release_event(hospital: Hospital, known: Counted) -> Event:
    """The event of releasing them; `NOTHING` if the ledger shows that they left before, since repeating is free."""
    if known.noise == 0:
        return Declared("counts")
    lines = list(ledgers.read_lines(hospital.ledger))[known.since :] if hospital.ledger.exists() else []
    first = {"run": known.run, "round": known.round, "request": "ingest", "refused": None}
    paid = any(all(line.get(key, "") == value for key, value in first.items()) for line in lines)
    return NOTHING if paid else Gaussian(known.multiplier)


def _read_file(hospital: Hospital) -> Mapping[str, Json]:
    folder = DiskFolder(hospital.vault)
    if not folder.has(COUNTED_FILE):
        return {}
    try:
        content = json.loads(folder.read(COUNTED_FILE))
        if not isinstance(content, dict):
            raise ValueError("it holds no mapping")
        check_format(content.get("format"), 1, "it")
        if content.get("counted") is not None:
            COUNTED.validate_python(content["counted"])
    except ValueError as error:
        raise Refused("damaged_counts") from ValueError(
            f"{hospital.vault / COUNTED_FILE} cannot be read: {words_of(error)}; restore it from its backup"
        )
    return content
