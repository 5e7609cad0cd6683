"""What buffered merging is worth where one of twenty hospitals is thirty times slower: time to the same score.

    CONSILIUM_DATA=... python -m benchmarks.studies.buffering [--splits 4]

Every figure is kept in benchmarks/measured/buffering.json;
`python -m benchmarks.tables.derived --write many-hospitals` writes the tables.

HAM10000: two archives are dealt out to twenty hospitals by lesion, the third archive's pictures are public here and
scale the features (`colour` and `lite0` joined), as in benchmarks/studies/shared_noise.py. A round of work takes each
of nineteen hospitals between 1 and 2 (drawn by split), and one of them, another on each split, 30. The clock is
simulated and sending takes no time. AUC: of all pairs of a malignant and a benign test picture of one hospital the
share that is ordered right, over all twenty.

Without privacy: FedAvg of one hidden layer, an epoch a round. `rounds`: 40 rounds of all twenty, which wait for the
slow one. `without the slow one`: rounds of the other nineteen, as a deadline would leave them; its patients are tested
all the same. `buffer K`: merges of K or more, until the clock says 62, when the slow one has answered twice. The score
to reach is that of `rounds` after its last round.

At (3, 1e-5), add or remove, a lesion as the unit: a linear layer, two steps a round on samples of half of the lesions,
each lesion's gradient clipped to norm 1. `rounds` and `without the slow one`: 20 rounds. `buffer 5`, `buffer 15`:
until the clock says 62; `buffer 15, half`: until it says 31.
Each hospital's noise is calibrated to its own number of updates, so that each spends the whole epsilon. `one noise for
all`: what the same updates cost a patient of each hospital if all add the noise of the most frequent one.

Splits 0 to 3 are reported. The learning rate with privacy was chosen among `RATES` by the mean of `rounds` on splits
100 and 101 (`--first 100 --splits 2 --rates` prints them), buffers were not chosen.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.places import MEASURED
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.rounds import find_noise
from benchmarks.shared.skin import Split, merge_archives, number_lesions, read_lines, split_hospitals
from benchmarks.studies.lite0 import HIDDEN, compute_features
from benchmarks.studies.lite0 import WORK as EPOCH
from benchmarks.studies.one_message import margins, scaled
from benchmarks.studies.shared_noise import PUBLIC, list_scored, within_auc
from consilium.testing import testbed
from federation.descent import Work
from federation.engine import InProcess
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.outcome import Outcome
from federation.parameters import loaded, section
from federation.rounds import Schedule
from federation.task import Task
from privacy.dp.access import Rows
from privacy.dp.accounting import compute_cost
from privacy.dp.events import Gaussian, PoissonSampled, SelfComposed
from privacy.dp.protection import Protection

PARTS, ROUNDS, PRIVATE_ROUNDS, SLOWEST, BUFFERS = 10, 40, 20, 30.0, (1, 5, 10)
CLOCK = 62.0
"""Until when buffered merging goes on."""
PRIVATE_BUFFERS = {"buffer 5": (5, CLOCK), "buffer 15": (15, CLOCK), "buffer 15, half": (15, CLOCK / 2)}
EPSILON, DELTA, SAMPLING, STEPS = 3.0, 1e-5, 0.5, 2
RATES = (0.125, 0.25, 0.5, 1.0, 2.0)
RATE = 1.0
SCALE = {"components": 64, "softness": 1.0}
PLAIN, PRIVATE = "without privacy", "private"
WITHOUT = "without the slow one"
COUNTS = "updates: of the most frequent, of the slow one"
COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.buffering"


class Federation(NamedTuple):
    """Twenty hospitals of one split. x: features of all pictures. durations: of a round of work. slow: the slowest."""

    x: np.ndarray
    split: Split
    durations: Mapping[str, float]
    slow: str


class Curve(NamedTuple):
    """A training. clocks, scores: after each merge. updates: of each hospital."""

    clocks: list[float]
    scores: list[float]
    updates: Mapping[str, int]

    def find_time(self, score: float) -> float:
        """When this score was reached first; infinite, if never."""
        return next((clock for clock, each in zip(self.clocks, self.scores, strict=True) if each >= score), math.inf)

    def score_at(self, clock: float) -> float:
        """The score of the last model by this time; of a training that has not merged by then, nan."""
        known = [each for at, each in zip(self.clocks, self.scores, strict=True) if at <= clock]
        return known[-1] if known else math.nan


def deal(real: np.ndarray, number: int) -> Federation:
    """The hospitals of one split, and how long each takes."""
    lines = read_lines()
    is_public = merge_archives(lines) == PUBLIC
    split = split_hospitals([each for each, public in zip(lines, is_public, strict=True) if not public], PARTS, number)
    x, names = scaled(real[~is_public], real[is_public], SCALE), sorted(split.train)
    random, slow = np.random.default_rng([number, 20]), names[number % len(names)]
    durations = {name: float(np.round(random.uniform(1, 2), 3)) for name in names} | {slow: SLOWEST}
    return Federation(x, split, durations, slow)


def train(
    made: Federation, schedule: Schedule, sites: list[str], *, hidden: tuple[int, ...], work: Work, private: bool
) -> Curve:
    """Train with these hospitals, and score each merged model on all hospitals' test pictures."""
    method = FedAvg(weights="uniform" if private else "size")
    task = Task(Mlp(hidden=hidden), (made.x.shape[1],), 2)
    updates, hospitals = schedule.count_updates(sites), {}
    for name in sites:
        rows, protection = made.split.train[name], None
        if private:
            noise = find_noise(EPSILON, DELTA, STEPS * updates[name], SAMPLING)
            protection = Protection(noise=noise, clip=1.0, sampling=SAMPLING)
        own = Rows(
            torch.from_numpy(made.x[rows]).float(),
            torch.from_numpy(made.split.y[rows]),
            number_lesions(made.split.lesion[rows]),
        )
        nobody = Rows(own.x[:0], own.y[:0], own.patient[:0])
        splits = {"train": own, "validation": nobody}
        hospitals[name] = testbed.Hospital(name, splits, method, task, work, protection=protection, averaged=False)
    scores = list[float]()

    def score(outcome: Outcome) -> None:
        network = loaded(task.network(), section(outcome.state.tensors, "model")).eval()
        tested = list_scored(made.split)
        scores.append(
            within_auc(made.split, {name: margins(network, made.x[made.split.test[name]]) for name in tested})
        )

    testbed.train(
        method, hospitals, task=task, work=work, schedule=schedule, engine=InProcess(hospitals), between=score
    )
    merges = schedule.plan(sites)
    each = max(made.durations[name] for name in sites)
    clocks = [each * k for k in range(1, schedule.rounds + 1)] if merges is None else [m.clock for m in merges]
    return Curve(clocks, scores[1 : schedule.rounds + 1], updates)


def plan_until(made: Federation, buffer: int, clock: float) -> Schedule:
    """Buffered merging that goes on until the clock says so."""
    rounds = 1 << 14
    merges = Schedule(rounds=rounds, buffer=buffer, durations=made.durations).plan([*made.durations]) or ()
    return Schedule(rounds=sum(m.clock <= clock for m in merges), buffer=buffer, durations=made.durations)


def measure_plain(number: int, real: np.ndarray) -> Iterator[tuple[str, float | None, float]]:
    """(line and measure, no epsilon, value) on one split."""
    made = deal(real, number)
    everybody = sorted(made.durations)
    others = [name for name in everybody if name != made.slow]
    run = partial(train, made, hidden=HIDDEN, work=EPOCH, private=False)
    usual = run(Schedule(rounds=ROUNDS), everybody)
    target = usual.scores[-1]
    curves = {
        "rounds": usual,
        WITHOUT: run(Schedule(rounds=ROUNDS), others),
        **{f"buffer {buffer}": run(plan_until(made, buffer, CLOCK), everybody) for buffer in BUFFERS},
    }
    for label, curve in curves.items():
        if math.isfinite(time := curve.find_time(target)):
            yield f"{label} | time", None, time
        yield f"{label} | AUC at 30", None, curve.score_at(SLOWEST)
        yield f"{label} | AUC at 62", None, curve.score_at(CLOCK)
        yield f"{label} | AUC at the end", None, curve.scores[-1]
        yield f"{label} | end", None, curve.clocks[-1]
        yield f"{label} | merges", None, len(curve.clocks)
        yield f"{label} | most updates", None, max(curve.updates.values())
        yield f"{label} | updates of the slow one", None, curve.updates.get(made.slow, 0)


def price(updates: int, noise: float) -> float:
    """Epsilon of so many updates."""
    return compute_cost([SelfComposed(PoissonSampled(SAMPLING, Gaussian(noise)), STEPS * updates)], DELTA).epsilon


def measure_private(number: int, real: np.ndarray, rate: float = RATE) -> Iterator[tuple[str, float | None, float]]:
    """(line and measure, epsilon, value) on one split."""
    made, work = deal(real, number), Work(optimizer="sgd", lr=rate, epochs=None, steps=STEPS)
    run = partial(train, made, hidden=(), work=work, private=True)
    everybody = sorted(made.durations)
    usual = run(Schedule(rounds=PRIVATE_ROUNDS), everybody)
    curves = {"rounds": usual}
    if number < 100:
        others = [name for name in everybody if name != made.slow]
        curves[WITHOUT] = run(Schedule(rounds=PRIVATE_ROUNDS), others)
        for label, (buffer, clock) in PRIVATE_BUFFERS.items():
            curves[label] = run(plan_until(made, buffer, clock), everybody)
    for label, curve in curves.items():
        most, slow = max(curve.updates.values()), curve.updates.get(made.slow, 0)
        noise = find_noise(EPSILON, DELTA, STEPS * most, SAMPLING)
        if math.isfinite(time := curve.find_time(usual.scores[-1])):
            yield f"{label} | time", EPSILON, time
        yield f"{label} | AUC at 62", EPSILON, curve.score_at(CLOCK)
        yield f"{label} | end", EPSILON, curve.clocks[-1]
        yield f"{label} | AUC at the end", EPSILON, curve.scores[-1]
        yield f"{label} | merges", EPSILON, len(curve.clocks)
        yield f"{label} | most updates", EPSILON, most
        yield f"{label} | updates of the slow one", EPSILON, slow
        yield f"{label} | epsilon of the most frequent", EPSILON, price(most, noise)
        if not slow:
            continue
        own_noise = find_noise(EPSILON, DELTA, STEPS * slow, SAMPLING)
        yield f"{label} | epsilon of the slow one", EPSILON, price(slow, own_noise)
        yield f"{label} | epsilon of the slow one, one noise for all", EPSILON, price(slow, noise)
        yield f"{label} | noise of the most frequent", EPSILON, noise
        yield f"{label} | noise of the slow one", EPSILON, own_noise


def read_lines_of(
    kept: Mapping[str, Mapping[str, float]], group: str, epsilon: str
) -> dict[str, dict[str, dict[str, float]]]:
    """Line -> measure -> split -> value."""
    lines = dict[str, dict[str, dict[str, float]]]()
    for key, values in kept.items():
        of, label, measure, of_epsilon = key.split(" | ")
        if (of, of_epsilon) == (group, epsilon):
            lines.setdefault(label, {})[measure] = dict(values)
    return lines


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """The tables of this study."""
    plain, private = read_lines_of(kept, PLAIN, "inf"), read_lines_of(kept, PRIVATE, "3")

    def mean(values: Mapping[str, float], digits: int = 0) -> str:
        return f"{np.mean([*values.values()]):,.{digits}f}"

    late, paid = list[list[str]](), list[list[str]]()
    splits = len(plain["rounds"]["AUC at the end"])
    for label in ("rounds", WITHOUT, *(f"buffer {buffer}" for buffer in BUFFERS)):
        each = plain[label]
        times = each.get("time", {})
        late.append([
            label,
            f"{mean(times, 1)} ({min(times.values()):.1f} to {max(times.values()):.1f})" if times else "–",
            f"{len(times)} of {splits}",
            format_interval([*each["AUC at 30"].values()]),
            format_interval([*each["AUC at 62"].values()]),
            "" if label == WITHOUT else format_change(each["AUC at 62"], plain[WITHOUT]["AUC at 62"]),
            format_interval([*each["AUC at the end"].values()]),
            mean(each["end"]),
            mean(each["merges"]),
            f"{mean(each['most updates'])}, {mean(each['updates of the slow one'])}",
        ])  # fmt: skip
    for label in ("rounds", WITHOUT, *PRIVATE_BUFFERS):
        each = private[label]
        slow = "noise of the slow one" in each
        paid.append([
            label,
            mean(each["end"]),
            format_interval([*each["AUC at 62"].values()]),
            "" if label == WITHOUT else format_change(each["AUC at 62"], private[WITHOUT]["AUC at 62"]),
            format_interval([*each["AUC at the end"].values()]),
            f"{mean(each['most updates'])}, {mean(each['updates of the slow one'])}",
            mean((each if slow else private["rounds"])["noise of the most frequent"], 2)  # of as many updates
            + (f", {mean(each['noise of the slow one'], 2)}" if slow else ""),
            f"{mean(each['epsilon of the most frequent'], 2)}, "
            + (mean(each["epsilon of the slow one"], 2) if slow else "0"),
            mean(each["epsilon of the slow one, one noise for all"], 2) if slow else "0",
        ])  # fmt: skip
    return {
        "late": make_table(
            [
                "FedAvg, 20 hospitals",
                "time to the score of 40 rounds",
                "reached",
                "AUC at 30",
                "AUC at 62",
                "minus without the slow one",
                "AUC at the end",
                "the end",
                "merges",
                COUNTS,
            ],
            late,
            COMMAND,
        ),
        "late-private": make_table(
            [
                "at ε = 3",
                "the end",
                "AUC at 62",
                "minus without the slow one",
                "AUC at the end",
                COUNTS,
                "noise: of the most frequent, of the slow one",
                "ε: of the most frequent, of the slow one",
                "ε of the slow one, if all added the noise of the most frequent",
            ],
            paid,
            COMMAND,
        ),
    }


def main() -> None:
    line = make_parser(__doc__)
    line.add_argument("--splits", type=int, default=4)
    line.add_argument("--first", type=int, default=0)
    line.add_argument("--out", type=Path, default=MEASURED / "buffering.json")
    line.add_argument("--rates", action="store_true", help="print the AUC of private rounds for each learning rate")
    options = line.parse_args()
    real = compute_features()[0]["colour and lite0"]
    if options.rates:
        torch.set_num_threads(1)
        for rate in RATES:
            values = [
                value
                for number in range(options.first, options.first + options.splits)
                for label, _, value in measure_private(number, real, rate)
                if label == "rounds | AUC at the end"
            ]
            print(rate, f"{np.mean(values):.4f}", flush=True)
        return
    collect_splits(options, {PLAIN: partial(measure_plain, real=real), PRIVATE: partial(measure_private, real=real)})


if __name__ == "__main__":
    main()
