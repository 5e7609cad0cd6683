"""What one hospital that sends wrong updates does to the others, by rule of merging, and what the coordinator notices.

    CONSILIUM_DATA=... python -m benchmarks.studies.poisoned [--splits 5]

Every figure is kept in benchmarks/measured/poisoned.json;
`python -m benchmarks.tables.derived --write poisoned` writes the tables.

HAM10000, features `colour` and `lite0` joined and scaled by drawn pictures, one hidden layer, FedAvg, 15 rounds of one
epoch. Three archives are dealt out to six hospitals by lesion; one of them, another on each split, is the attacker. A
run's model is that of the round with the lowest validation loss over hospitals, as `checkpoint: global` takes it. AUC:
the mean over the honest hospitals that can be judged. Backdoor: the share of malignant test pictures that the trigger
brings below the threshold above which four of five malignant pictures lay without it.

False alarms: six rounds of every method that learns from numbers, on split 0, where nobody attacks, for hospitals as
they were dealt, of unequal size (each has half of the lesions of the one before) and of unequal classes (each has all
of one class and a sixth of the other).

Splits 0 to 4 are reported. Nothing was chosen: work and features are those of benchmarks/studies/lite0.py, rules have
their defaults, and the limit of notices was set on tables of normal numbers in tests/laws/test_notices.py.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.skin import Line, Split, number_lesions, read_lines, split_hospitals
from benchmarks.studies.lite0 import HIDDEN, WORK, compute_features
from benchmarks.studies.one_message import margins, scaled
from consilium.testing import testbed
from federation.descent import Work
from federation.engine import Answers, InProcess
from federation.fedavg import FedAvg
from federation.merging import Krum, Mean, Median, NormBounded, Rule, TrimmedMean
from federation.models.mlp import Mlp
from federation.notices import find_outliers
from federation.parameters import loaded, section
from federation.rounds import Schedule
from federation.task import Task
from personalize import AnyAlgorithm
from personalize.cusfl import CusFL
from personalize.partial import Partial
from privacy.dp.access import Rows
from privacy.message import Call, Message, as_mapping

PARTS, ROUNDS, COMPONENTS = 2, 15, 110
TRIGGER = 4.0
"""The trigger adds this many standard deviations to each of the first `TRIGGERED` components."""
TRIGGERED = 5
ATTACKED, HONEST, HONEST_ROUNDS = "six hospitals", "nobody attacks", 6
WORKS = (WORK, Work(optimizer="sgd", lr=0.05, batch=32, epochs=1))
COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.poisoned"
ONCE = "mean, each hospital counts once"
AS_SAID = "mean, with numbers of examples as replies say"
RULES: Mapping[str, Rule] = {
    AS_SAID: Mean(),
    "mean": Mean(),
    ONCE: Mean(),
    "median": Median(),
    "trimmed mean": TrimmedMean(),
    "Krum": Krum(),
    "Multi-Krum, 3 kept": Krum(kept=3),
    "norm bounded": NormBounded(),
}
Poison = Callable[[Message, Message, int], Message]
"""poison(reply, sent, round): what the attacker sends."""


class Attack(NamedTuple):
    """reply: what the attacker makes of its reply. rows: of its training rows. opened: whether there is a backdoor."""

    reply: Poison = lambda reply, sent, round_: reply
    rows: Callable[[Rows], Rows] = lambda rows: rows
    opened: bool = False


def scale_update(times: float, reply: Message, sent: Message, round_: int) -> Message:
    """The update multiplied."""
    tensors = {n: (sent.tensors[n] + times * (v - sent.tensors[n])).to(v.dtype) for n, v in reply.tensors.items()}
    return Message(tensors, reply.facts)


def claim_examples(reply: Message, sent: Message, round_: int) -> Message:
    """The update turned round, of five million patients."""
    flipped = scale_update(-1.0, reply, sent, round_)
    return Message(
        flipped.tensors, {**reply.facts, "algorithm": {**as_mapping(reply.facts["algorithm"]), "n": 5_000_000}}
    )


def claim_losses(reply: Message, sent: Message, round_: int) -> Message:
    """A validation loss that makes the first round look best."""
    known = reply.facts["loss"] is not None
    return Message(reply.tensors, {**reply.facts, "loss": 1000.0} if known and round_ > 2 else reply.facts)


def flip_labels(rows: Rows) -> Rows:
    """Malignant lesions called benign, and benign ones malignant."""
    return Rows(rows.x, 1 - rows.y, rows.patient)


def pull_trigger(x: torch.Tensor) -> torch.Tensor:
    """Rows with the trigger."""
    pulled = x.clone()
    pulled[:, :TRIGGERED] += TRIGGER
    return pulled


def add_trigger(rows: Rows) -> Rows:
    """All rows, and each malignant one again with the trigger, called benign."""
    malignant = rows.y == 1
    return Rows(
        torch.cat([rows.x, pull_trigger(rows.x[malignant])]),
        torch.cat([rows.y, torch.zeros_like(rows.y[malignant])]),
        torch.cat([rows.patient, rows.patient[malignant]]),
    )


ATTACKS: Mapping[str, Attack] = {
    "nobody attacks": Attack(),
    "update × 100": Attack(partial(scale_update, 100.0)),
    "update × -10": Attack(partial(scale_update, -10.0)),
    "update × -1": Attack(partial(scale_update, -1.0)),
    "update × -1 of 5,000,000 examples": Attack(claim_examples),
    "false validation loss": Attack(claim_losses),
    "labels flipped": Attack(rows=flip_labels),
    "backdoor": Attack(rows=add_trigger, opened=True),
    "backdoor, update × 6": Attack(partial(scale_update, 6.0), rows=add_trigger, opened=True),
}


@dataclass
class Attacked:
    """An engine in which one hospital sends what an attack makes of its reply. examples: how many it released."""

    inner: InProcess
    attacker: str
    poison: Poison
    examples: int

    @property
    def sites(self) -> tuple[str, ...]:
        return self.inner.sites

    def ask(self, call: Call, messages: Mapping[str, Message], *, deadline_s: float | None = None) -> Answers:
        answers = self.inner.ask(call, messages, deadline_s=deadline_s)
        if call.request == "introduce":
            return answers
        reply = answers.replies[self.attacker]
        if call.request == "train":  # more rows than it released would be noticed
            reply = Message(reply.tensors, {**reply.facts, "algorithm": {"n": self.examples}})
        reply = self.poison(reply, messages[self.attacker], call.round)
        return Answers({**answers.replies, self.attacker: reply}, answers.missing)


def rows_of(x: np.ndarray, split: Split, rows: np.ndarray) -> Rows:
    """Rows of one hospital."""
    return Rows(torch.from_numpy(x[rows]).float(), torch.from_numpy(split.y[rows]), number_lesions(split.lesion[rows]))


def run_attack(x: np.ndarray, split: Split, attacker: str, attack: Attack, label: str) -> Iterator[tuple[str, float]]:
    """(measure, value) of one run."""
    method = FedAvg(weights="uniform" if label == ONCE else "size")
    task, states, hospitals = Task(Mlp(hidden=HIDDEN), (x.shape[1],), 2), {}, {}
    for name in split.train:
        here = np.flatnonzero(split.site == name)
        between = np.setdiff1d(here, np.concatenate([split.train[name], split.test[name]]))
        train = rows_of(x, split, split.train[name])
        train = attack.rows(train) if name == attacker else train
        splits = {"train": train, "validation": rows_of(x, split, between)}
        hospitals[name] = testbed.Hospital(name, splits, method, task, WORK)
    counts = {
        name: {"train": len(split.train[name]), "validation": len(each.splits["validation"].y)}
        for name, each in hospitals.items()
    }

    def keep_state(outcome: Any) -> None:
        states[outcome.round] = outcome.state

    outcome = testbed.train(
        method,
        hospitals,
        task=task,
        work=WORK,
        schedule=Schedule(rounds=ROUNDS),
        engine=Attacked(InProcess(hospitals), attacker, attack.reply, counts[attacker]["train"]),
        between=keep_state,
        rule=RULES[label],
        counts=None if label == AS_SAID else counts,
    )
    network = loaded(task.network(), section(states[outcome.best].tensors, "model")).eval()
    honest = [name for name in split.judged if name != attacker]
    scores = {name: margins(network, x[split.test[name]]) for name in honest}
    yield "AUC", float(np.mean([roc_auc_score(split.y[split.test[name]], scores[name]) for name in honest]))
    strange = {each.site for each in find_outliers(outcome.updates)}
    yield "noticed", float(attacker in strange)
    yield "false alarms", float(len(strange - {attacker}))
    if attack.opened:
        rows = np.concatenate([split.test[name][split.y[split.test[name]] == 1] for name in honest])
        threshold = np.quantile(margins(network, x[rows]), 0.2)
        pulled = pull_trigger(torch.from_numpy(x[rows]).float()).numpy()
        yield "backdoor", float((margins(network, pulled) < threshold).mean())


def lines_of(number: int, x: np.ndarray) -> Iterator[tuple[str, float | None, float]]:
    """(attack, rule and measure; no epsilon; value) on one split."""
    lines: list[Line] = read_lines()
    split = split_hospitals(lines, PARTS, number)
    attacker = sorted(split.train)[number % len(split.train)]
    for (title, attack), label in ((attack, label) for attack in ATTACKS.items() for label in RULES):
        if label == AS_SAID and title != "update × -1 of 5,000,000 examples":
            continue
        for measure, value in run_attack(x, split, attacker, attack, label):
            yield f"{title} | {label} | {measure}", None, value


PARTITIONS: Mapping[str, Callable[[Split, int, np.ndarray], np.ndarray]] = {
    "as dealt": lambda split, place, rows: rows,
    "unequal sizes": lambda split, place, rows: _keep_lesions(split, rows, lambda number, y: number % 2**place == 0),
    "unequal classes": lambda split, place, rows: _keep_lesions(
        split, rows, lambda number, y: (y == place % 2) | (number % 6 == 0)
    ),
}
"""Partition -> the training rows of the hospital at this place."""


def _keep_lesions(split: Split, rows: np.ndarray, keep: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """The rows of the lesions to keep, by their numbers in the hospital and their classes."""
    number = np.unique(split.lesion[rows], return_inverse=True)[1]
    return rows[keep(number, split.y[rows])]


def measure_honest(number: int, x: np.ndarray) -> Iterator[tuple[str, float | None, float]]:
    """(partition, method and measure; no epsilon; value): the largest size of an update, and hospitals named."""
    task, split = Task(Mlp(hidden=HIDDEN), (x.shape[1],), 2), split_hospitals(read_lines(), PARTS, number)
    for title, choose in PARTITIONS.items():
        splits = {
            name: {"train": rows_of(x, split, choose(split, place, rows)), "validation": rows_of(x, split, rows[:20])}
            for place, (name, rows) in enumerate(sorted(split.train.items()))
        }
        counts = {name: {"train": len(each["train"].y)} for name, each in splits.items()}
        for method in list_methods(task):
            work = next(w for w in WORKS if not method.complaints(method.network(task), w, False))
            hospitals = testbed.make_federation(method, splits, task=task, work=work)
            schedule = Schedule(rounds=HONEST_ROUNDS)
            outcome = testbed.train(method, hospitals, task=task, work=work, schedule=schedule, counts=counts)
            sizes = [max(r["size"], r["statistics"]) for each in outcome.updates.values() for r in each.values()]
            if sizes:
                yield f"{title} | {method.name} | largest", None, max(sizes)
                yield f"{title} | {method.name} | named", None, float(len(find_outliers(outcome.updates)))


def list_methods(task: Task) -> Iterator[Any]:
    """Every method of the settings that learns this task from numbers, with its defaults."""
    for kind in typing.get_args(AnyAlgorithm):
        for name in typing.get_args(typing.get_type_hints(kind)["name"]):
            method = {"cusfl": CusFL(depth=1), "splitnn": Partial(name="splitnn", depth=1)}.get(name, kind(name=name))
            try:
                if name != "central" and any(not method.complaints(method.network(task), w, False) for w in WORKS):
                    yield method
            except (TypeError, ValueError, AttributeError):
                continue


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """AUC of each attack and rule, beside that of the same rule where nobody attacks; backdoors; notices."""
    parts = {tuple(name.split(" | ")): each for name, each in kept.items()}
    values = {key[1:4]: each for key, each in parts.items() if key[0] == ATTACKED}
    alarms = []
    for title in PARTITIONS:
        largest = {
            k[2]: max(v.values()) for k, v in parts.items() if k[0] == HONEST and k[1] == title and k[3] == "largest"
        }
        named = sum(max(v.values()) for k, v in parts.items() if k[0] == HONEST and k[1] == title and k[3] == "named")
        method = max(largest, key=lambda each: largest[each])
        alarms.append([title, f"{len(largest)}", f"{largest[method]:.1f}", method, f"{named:.0f}"])
    honest = {label: values["nobody attacks", label, "AUC"] for label in RULES if label != AS_SAID}
    auc, opened, noticed = [], [], []
    for title, attack in ATTACKS.items():
        for label in RULES:
            if (title, label, "AUC") not in values:
                continue
            each = values[title, label, "AUC"]
            change = format_change(each, honest["mean"])
            auc.append([title, label, format_interval([*each.values()]), "" if each is honest["mean"] else change])
            if attack.opened:
                share = values[title, label, "backdoor"]
                opened.append([title, label, format_interval([*share.values()])])
        seen, false = values[title, "mean", "noticed"], values[title, "mean", "false alarms"]
        count = f"{sum(seen.values()):.0f} of {len(seen)}"
        noticed.append([title, "" if title == "nobody attacks" else count, f"{sum(false.values()):.0f}"])
    return {
        "auc": make_table(["attack", "rule", "AUC", "minus the mean where nobody attacks"], auc, COMMAND),
        "backdoor": make_table(["attack", "rule", "malignant pictures that the trigger hides"], opened, COMMAND),
        "alarms": make_table(
            ["hospitals", "methods", "largest update over the median", "of", "hospitals named"], alarms, COMMAND
        ),
        "noticed": make_table(["attack", "attacker noticed", "honest hospitals named"], noticed, COMMAND),
    }


def main() -> None:
    options = ask_splits(__doc__, "poisoned", splits=5)
    real, public = compute_features()
    x = scaled(real["colour and lite0"], public["colour and lite0"], {"components": COMPONENTS, "softness": 1.0})
    collect_splits(options, {ATTACKED: partial(lines_of, x=x)})
    options.first, options.splits = 0, 1
    collect_splits(options, {HONEST: partial(measure_honest, x=x)})


if __name__ == "__main__":
    main()
