"""FedSLD, APPLE, PGFed and the methods of their tables on ten classes that are dealt out unevenly to hospitals.

    python -m benchmarks.studies.partitions choose      # settings, on seed 100, which no table reports
    python -m benchmarks.studies.partitions measure     # seeds 0 to 2
    python -m benchmarks.studies.partitions bandwidth   # APPLE and FedFomo with M cores a round
    python -m benchmarks.studies.partitions toy         # explicit against implicit, PGFed's motivation
    python -m benchmarks.studies.partitions newcomers   # a global model fine-tuned at hospitals that were outside
    python -m benchmarks.studies.partitions speed       # images a second, in turns with FedAvg

Every cell goes into measured/partitions.json as soon as it is measured, and what stands there is not measured again;
`partitions_tables.py` writes the tables. Pictures: scikit-learn's 1,797 digits of 8 x 8 pixels, ten classes
of about 180, which it brings along: the only ten balanced classes that are at hand, as the papers' data sets have them.
A picture is a patient; 60 % train, 10 % validation, 30 % test within each hospital. A perceptron with hidden layers of
64 and 32: what is compared are methods, and it takes a third of a small CNN's time.

Equal work: every hospital that takes part in a round takes BATCHES gradients of batches of 16. A method that takes two
in a step (Per-FedAvg, APFL) gets half the steps; PGFed's gradient of all patients at the end of a round is not counted
(column `passes`). FT: a fifth of the gradients is left for tuning. The seed deals out, splits,
begins and draws; all methods of a seed share these. Accuracy is that of the last round, the mean over hospitals.
"""

from __future__ import annotations

import os

from benchmarks.shared.options import make_parser
from benchmarks.shared.records import read_measured, write_measured

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from sklearn.datasets import load_digits

from benchmarks.speed.methods import Counted, everyone
from benchmarks.speed.methods import Federation as Turns
from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.finetuning import Tuning, fine_tuned
from federation.models.mlp import Mlp
from federation.parameters import loaded
from federation.participant import NOTES
from federation.randomness import derive_seed, use_seed
from federation.rehearsal import initial_parameters
from federation.task import Task
from personalize.apple import Apple
from pipelines.data.partition import Part, partition_patients
from pipelines.data.split import split_patients
from privacy.dp.access import Access, Draw, Rows, Split, open_access
from privacy.message import Call, Message

BATCHES, BATCH = 10, 16
FRACTIONS = {"train": 0.6, "validation": 0.1, "test": 0.3}
TASK = Task(Mlp(hidden=(64, 32)), (64,), 10)
CHOICE, SEEDS = 100, [0, 1, 2]
RATES, HIGHER = (0.03, 0.1, 0.3), (1.0, 3.0)


@dataclass(frozen=True)
class Setting:
    """How pictures are dealt out, and how many rounds, of which each hospital takes part in `rate`."""

    part: Mapping[str, Any]
    rounds: int = 24
    rate: float = 1.0
    every: int = 1

    @property
    def gradients(self) -> int:
        """A hospital's, on average."""
        return round(self.rounds * self.rate * BATCHES)


SETTINGS = {
    "practical": Setting({"kind": "practical", "of": 12}),
    "pathological": Setting({"kind": "pathological", "of": 12, "classes": 2, "least": 20}),
    "dirichlet": Setting({"kind": "dirichlet", "of": 25, "alpha": 0.3, "least": 20}, rounds=48, rate=0.25, every=2),
}
SPLITS: dict[tuple[str, int], dict[str, dict[Split, Rows]]] = {}


@dataclass(frozen=True)
class Row:
    """A line of the tables. inner: gradients in a step. tuned: whether a fifth of the work is tuning at the end.
    key, values: the one setting of its own that is chosen, and what is tried beside `said` and the method's default.
    like: the row whose chosen rate and settings it takes."""

    name: str
    inner: int = 1
    tuned: bool = False
    like: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    values: tuple[float | str | bool, ...] = ()


ROWS = {
    "local": Row("local"),
    "FedAvg": Row("fedavg"),
    "FedAvg-local": Row("fedavg_local"),
    "FedAvg-FT": Row("fedavg", tuned=True),
    "FedProx": Row("fedprox", like="FedAvg", key="mu", values=(0.01, 0.1, 1.0)),
    "FedProx-FT": Row("fedprox", tuned=True, like="FedAvg-FT", key="mu", values=(0.01, 0.1, 1.0)),
    "FedSLD": Row("fedsld", key="normalize", values=(True,)),
    "FedDyn": Row("feddyn", key="alpha", values=(0.01, 1.0)),
    "FedFomo": Row("fedfomo"),
    "APFL": Row("apfl", inner=2, key="alpha", values=(0.25, 0.75)),
    "FedRep": Row("fedrep", said={"head_steps": BATCHES // 2, "body_steps": BATCHES // 2}),
    "LG-FedAvg": Row("lg_fedavg"),
    "FedPer": Row("fedper"),
    "Per-FedAvg": Row("perfedavg", inner=2, key="alpha", values=(0.1, 0.3)),
    "FedRoD": Row("fedrod"),
    "FedBABU": Row("fedbabu", tuned=True),
    "HeurFedAMP": Row("heurfedamp", key="sigma", values=(1.0, 100.0)),
    "APPLE, μ = 0": Row("apple", said={"mu": 0.0}, key="eta_2", values=(1e-2, 1e-1)),
    "APPLE": Row("apple", like="APPLE, μ = 0", key="mu", values=(0.01, 0.1, 1.0)),
    "PGFed": Row("pgfed", key="mu", values=(0.01, 0.03, 0.3)),
    "PGFedMo": Row("pgfedmo", like="PGFed"),
}


def dealt(setting: str, seed: int) -> dict[str, dict[Split, Rows]]:
    """Each hospital's pictures, (n, 64) in [-1, 1]."""
    if (setting, seed) not in SPLITS:
        pixels, label = load_digits(return_X_y=True)
        x, y = torch.from_numpy(pixels).float() / 8 - 1, torch.from_numpy(label).long()
        labels = {f"{k:04d}": int(one) for k, one in enumerate(y)}
        places = partition_patients(labels, Part(**SETTINGS[setting].part, seed=seed), kinds=range(10))
        found: dict[str, dict[Split, Rows]] = {}
        for number in sorted(set(places.values())):
            own = {name: labels[name] for name, place in places.items() if place == number}
            split = split_patients(own, fractions=FRACTIONS, seed=seed)
            rows = {kind: torch.tensor([int(n) for n in own if split[n] == kind]) for kind in FRACTIONS}
            found[f"h{number:02d}"] = {cast(Split, kind): Rows(x[n], y[n], n) for kind, n in rows.items()}
        SPLITS[setting, seed] = found
    return SPLITS[setting, seed]


def correct(module: torch.nn.Module, rows: Rows) -> float:
    return float((TASK.probabilities(module, rows.x).argmax(dim=1) == rows.y).double().mean())


class Run:
    """One method's federation in memory, `splits` its hospitals. kept: a site's memory and the round it was merged."""

    def __init__(
        self, algorithm: Algorithm, work: Work, splits: Mapping[str, Any], seed: int, task: Task = TASK
    ) -> None:
        self.algorithm, self.work, self.splits, self.seed, self.task = algorithm, work, splits, seed, task
        self.images, self.steps = 0, 0
        said = {name: algorithm.introduce(self.site(name, 0)[0]) for name in splits}
        self.state = algorithm.start(initial_parameters(algorithm, task, seed=seed), said)
        self.memories = {name: Message() for name in splits}
        self.notes: dict[str, Any] = {}
        self.merged = dict.fromkeys(splits, 0)

    def site(self, name: str, round_: int) -> tuple[Site, Counted]:
        access = open_access(self.splits[name], batch=self.work.batch, seed=derive_seed(self.seed, name, round_))
        counted = Counted(access)
        return Site(name, self.task, self.work, cast(Access, counted)), counted

    def round(self, number: int, names: list[str]) -> dict[str, Message]:
        call, replies = Call("partitions", number, "train", dict(self.merged)), dict[str, Message]()
        for name in names:
            site, access = self.site(name, number)
            with use_seed(derive_seed(self.seed, name, number)):
                message = self.algorithm.send(self.state, name, call)
                replies[name], memory = self.algorithm.train(site, message, self.memories[name], call)
            self.notes[name] = memory.facts.get(NOTES, {})
            facts = {key: fact for key, fact in memory.facts.items() if key != NOTES}
            self.memories[name] = Message(memory.tensors, facts)
            self.images += access.images
            self.steps += BATCHES * BATCH
        self.state = self.algorithm.merge(self.state, replies)
        self.merged |= dict.fromkeys(names, number)
        return replies

    def model(self, name: str, number: int) -> torch.nn.Module:
        call = Call("partitions", number, "finish", dict(self.merged))
        site, message = self.site(name, number)[0], self.algorithm.send(self.state, name, call)
        with use_seed(derive_seed(self.seed, name, "model")):
            return loaded(self.algorithm.network(self.task), self.algorithm.model(site, message, self.memories[name]))

    def scores(self, number: int, tuning: Tuning | None = None) -> list[float]:
        """Test accuracy of each hospital's model on its own pictures, after `tuning` if any."""
        found = []
        for name, rows in self.splits.items():
            module = self.model(name, number)
            if tuning is not None:
                with use_seed(derive_seed(self.seed, name, "tuning")):
                    module = fine_tuned(self.site(name, 1000)[0], module, tuning)
            found.append(correct(module, rows["test"]))
        return found


def asked(seed: int, names: list[str], number: int, rate: float) -> list[str]:
    """The hospitals of a round, the same for all methods."""
    chance = np.random.default_rng([seed, number])
    return sorted(chance.permutation(names)[: max(1, round(rate * len(names)))].tolist())


def fitted(row: Row, said: Mapping[str, Any], lr: float) -> tuple[Algorithm, Work]:
    kinds = everyone()
    algorithm = cast(Any, type(kinds[row.name]))(**{"name": row.name, **row.said, **said})
    work = Work(optimizer="sgd", lr=lr, batch=BATCH, epochs=None, steps=BATCHES // row.inner)
    if found := algorithm.complaints(algorithm.network(TASK), work, False):
        raise ValueError("; ".join(found))
    return algorithm, work


def run(label: str, setting: str, seed: int, said: Mapping[str, Any], lr: float, splits=None) -> dict[str, Any]:
    """One cell: the curve of mean test accuracy, each hospital's at the end, and what the method says of itself."""
    row, how = ROWS[label], SETTINGS[setting]
    algorithm, work = fitted(row, said, lr)
    found = Run(algorithm, work, splits or dealt(setting, seed), seed)
    rounds, curve = round(0.8 * how.rounds) if row.tuned else how.rounds, []
    for number in range(1, rounds + 1):
        found.round(number, asked(seed, list(found.splits), number, how.rate))
        if number % how.every == 0:
            curve.append(round(float(np.mean(found.scores(number))), 4))
    tuning = Tuning(steps=how.gradients - round(0.8 * how.gradients)) if row.tuned else None
    last = found.scores(rounds, tuning)
    cell: dict[str, Any] = {"curve": curve, "last": [round(one, 4) for one in last]}
    cell["passes"] = round(found.images / found.steps, 3)
    if isinstance(algorithm, Apple):
        cell["p"] = [[round(found.notes[a].get(f"p/{b}", 0.0), 4) for b in found.splits] for a in found.splits]
    return cell


def choose(kept: dict[str, Any]) -> None:
    """First the rate with the method's defaults, then its own setting with that rate; half as many rounds, seed 100. If
    the highest rate is best, a higher one is tried.
    Pathological hospitals take what was chosen on practical ones."""
    cells = kept["chosen"]
    for setting in ("practical", "dirichlet"):
        how = SETTINGS[setting]
        SETTINGS[setting] = replace(how, rounds=how.rounds // 2, every=how.rounds // 2)
        for label, row in ROWS.items():
            if row.like:
                said, lr = best(kept, setting, row.like)
                said = {key: value for key, value in said.items() if key != row.key}
            else:
                for lr in RATES:
                    once(cells, f"{setting} | {label} | {{}} | {lr}", label, setting, CHOICE, {}, lr)
                said, lr = best(kept, setting, label)
                for higher in HIGHER:  # while the highest that was tried is the best
                    if lr == max(
                        float(key.split(" | ")[3]) for key in cells if key.startswith(f"{setting} | {label} |")
                    ):
                        once(cells, f"{setting} | {label} | {{}} | {higher}", label, setting, CHOICE, {}, higher)
                        said, lr = best(kept, setting, label)
            for value in row.values:
                more = {**said, row.key: value}
                once(cells, f"{setting} | {label} | {json.dumps(more)} | {lr}", label, setting, CHOICE, more, lr)
        SETTINGS[setting] = how


def best(kept: Mapping[str, Any], setting: str, label: str) -> tuple[dict[str, Any], float]:
    """The setting and rate of the highest mean test accuracy of seed 100."""
    start = f"{'practical' if setting == 'pathological' else setting} | {label} | "
    found = {key: cell for key, cell in kept["chosen"].items() if key.startswith(start) and "last" in cell}
    if not found:
        return best(kept, setting, ROWS[label].like)
    key = max(found, key=lambda one: float(np.mean(found[one]["last"])))
    _, _, said, lr = key.split(" | ")
    return json.loads(said), float(lr)


def once(cells: dict[str, Any], key: str, *how: Any, **more: Any) -> None:
    if key in cells:
        return
    begun = time.process_time()
    try:
        cells[key] = run(*how, **more)
    except ValueError as refused:
        cells[key] = {"refused": str(refused)}
    print(f"{key}: {np.mean(cells[key].get('last', [0])):.3f}, {time.process_time() - begun:.0f} s", flush=True)
    save()


STORE: dict[str, Any] = {}


def save() -> None:
    write_measured("partitions", STORE, indent=0)


def measure(kept: dict[str, Any]) -> None:
    choose(kept)
    for seed in SEEDS:
        for setting in SETTINGS:
            for label in ROWS:
                said, lr = best(kept, setting, label)
                once(kept["measured"], f"{setting} | {label} | {seed}", label, setting, seed, said, lr)


def bandwidth(kept: dict[str, Any]) -> None:
    for seed in SEEDS:
        for setting in ("practical", "pathological"):
            for label in ("APPLE", "FedFomo"):
                said, lr = best(kept, setting, label)
                for m in (5, 1):
                    key = f"{setting} | {label}, M = {m} | {seed}"
                    once(kept["measured"], key, label, setting, seed, {**said, "M": m}, lr)


def newcomers(kept: dict[str, Any]) -> None:
    """FL on 20 of the 25 hospitals of `dirichlet`; their global model is tuned at the five others, and scored there."""
    how, tuned = SETTINGS["dirichlet"], Tuning(epochs=20)
    for seed in SEEDS:
        everybody = dealt("dirichlet", seed)
        inside, outside = list(everybody)[:20], list(everybody)[20:]
        for label in (
            "FedAvg",
            "FedProx",
            "FedSLD",
            "FedDyn",
            "Per-FedAvg",
            "PGFed",
            "PGFedMo",
            "alone",
        ):
            key = f"{label} | {seed}"
            if key in kept["newcomers"]:
                continue
            source = "local" if label == "alone" else label
            said, lr = best(kept, "dirichlet", source)
            algorithm, work = fitted(ROWS[source], said, lr)
            found = Run(algorithm, work, {name: everybody[name] for name in inside}, seed)
            for number in range(1, how.rounds + 1 if label != "alone" else 1):
                found.round(number, asked(seed, inside, number, how.rate))
            start = {n[6:]: value for n, value in found.state.tensors.items() if n.startswith("model/")}
            before, after = [], []
            plain = fitted(ROWS["FedAvg"], {}, best(kept, "dirichlet", "FedAvg")[1])[1]
            for name in outside:
                module = loaded(FedAvg().network(TASK), start) if start else TASK.network()
                if not start:
                    module = loaded(module, initial_parameters(FedAvg(), TASK, seed=seed))
                access = open_access(everybody[name], batch=BATCH, seed=derive_seed(seed, name))
                own = fine_tuned(Site(name, TASK, plain, access), module, tuned)
                before.append(correct(module, everybody[name]["test"]))
                after.append(correct(own, everybody[name]["test"]))
            kept["newcomers"][key] = {"before": before, "after": after}
            print(key, np.mean(before), np.mean(after), flush=True)
            save()


def toy(kept: dict[str, Any]) -> None:
    """PGFed's motivation: F_i = f_i(w) + mu / (N - 1) sum_j f_j(w), with others' own pictures, which only a simulation
    can do. The second term is that of BATCH pictures, each of a hospital drawn with equal chances. mu = 0: implicit."""
    how = SETTINGS["dirichlet"]
    lr = best(kept, "dirichlet", "FedAvg-local")[1]
    for seed in SEEDS:
        splits = dealt("dirichlet", seed)
        for mu in (0.0, 0.1, 0.3, 1.0):
            if (key := f"{mu} | {seed}") in kept["toy"]:
                continue
            work = Work(optimizer="sgd", lr=lr, batch=BATCH, epochs=None, steps=BATCHES)
            whole = initial_parameters(FedAvg(), TASK, seed=seed)
            own = dict.fromkeys(splits, whole)
            for number in range(1, how.rounds + 1):
                names, sizes = asked(seed, list(splits), number, how.rate), []
                for name in names:
                    module = loaded(TASK.network(), whole)
                    access = open_access(splits[name], batch=BATCH, seed=derive_seed(seed, name, number))
                    others = _others(
                        {n: rows for n, rows in splits.items() if n != name}, derive_seed(seed, name, number)
                    )

                    def pull(_, module=module, access=access, others=others, mu=mu):
                        slope = access.gradient(module, TASK.objective, others()).gradient if mu else {}
                        return {n: mu * value for n, value in slope.items()}

                    Site(name, TASK, work, access).descend(module, TASK.objective, correction=pull)
                    own[name] = {n: value.clone() for n, value in module.state_dict().items()}
                    sizes.append(len(splits[name]["train"].y))
                shares = torch.tensor(sizes, dtype=torch.float32) / sum(sizes)
                whole = {n: sum(s * own[name][n] for s, name in zip(shares, names, strict=True)) for n in whole}
            last = [correct(loaded(TASK.network(), own[name]), splits[name]["test"]) for name in splits]
            alike = [correct(loaded(TASK.network(), whole), splits[name]["test"]) for name in splits]
            kept["toy"][key] = {"own": float(np.mean(last)), "global": float(np.mean(alike))}
            print(key, kept["toy"][key], flush=True)
            save()


def _others(splits: Mapping[str, Any], seed: int):
    chance, names = np.random.default_rng(seed), sorted(splits)

    def drawn() -> Draw:
        rows = [splits[names[k]]["train"] for k in chance.integers(len(names), size=BATCH)]
        picked = [(one, int(chance.integers(len(one.y)))) for one in rows]
        x, y = (torch.stack([getattr(one, what)[k] for one, k in picked]) for what in ("x", "y"))
        return Draw(x, y, torch.arange(BATCH))

    return drawn


def speed(kept: dict[str, Any]) -> None:
    """Images a second of local training over FedAvg's, five epochs a round, in turns (see methods.py)."""
    splits, work = dealt("practical", CHOICE), Work(optimizer="sgd", lr=0.03, batch=BATCH, epochs=5)
    for label, row in ROWS.items():
        if row.tuned or label in kept["speed"]:
            continue
        algorithm = fitted(row, {}, work.lr)[0]
        ours, base = (Turns(one, TASK, work, splits) for one in (algorithm, FedAvg()))
        for _ in range(4):
            base.round()
            ours.round()
        kept["speed"][label] = round(base.told.train / ours.told.train, 3)
        print(label, kept["speed"][label], flush=True)
        save()


PARTS = {each.__name__: each for each in (choose, measure, bandwidth, toy, newcomers, speed)}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[*SEEDS])
    said = parser.parse_args()
    torch.set_num_threads(1)
    STORE.update(read_measured("partitions"))
    for name in ("chosen", "measured", "toy", "newcomers", "speed"):
        STORE.setdefault(name, {})
    SEEDS[:] = said.seeds
    PARTS[said.part](STORE)


if __name__ == "__main__":
    main()
