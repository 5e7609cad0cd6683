"""What quantized uploads (`train.upload: {name: int8}`) cost in score, and what they save, split by split.

    CONSILIUM_DATA=... python -m benchmarks.studies.uploads [--splits 5] [--groups phantom skin]
    python -m benchmarks.tables.derived --write uploads

Every figure is kept in benchmarks/measured/uploads.json. Nothing was chosen: settings are those of other studies, and
splits are numbers that no other table reports. Lines of one split begin with the same parameters, and draw the same
images and, where they are private, the same noise, so that nothing differs but the way of replies:

    as it is            the coordinator gets each reply
    int8                `federation.upload`, to and fro
    int8, feedback      each hospital adds what rounding lost of its last reply to the next one (Seide, Fu, Droppo, Li
                        and Yu: 1-bit stochastic gradient descent, Interspeech 2014; Karimireddy, Rebjock, Stich and
                        Jaggi: Error feedback fixes SignSGD, ICML 2019); only here, no run does it
    last bit            each number is the next larger one of float32: how far trainings come apart by almost nothing

`phantom`: scanners P and L as in benchmarks/studies/recipe.py (48 x 48 pixels, the CAM classifier with batch norm, Adam
1e-3, batches of 24), 18 patients to train and 90 to test each, 10 rounds of an epoch; populations 8100, 8102, ... AUC
and cross-entropy of test slices after the last round, mean of both hospitals.

`skin`: HAM10000 dealt out to twenty hospitals as in benchmarks/studies/buffering.py, 64 components of colour and
`lite0`; FedAvg of one hidden layer, 20 rounds of an epoch, and FedAvg of a linear layer at (3, 1e-5), add or remove, a
lesion as the unit, 10 rounds of two steps on samples of half of the lesions. AUC of all pairs of a malignant and a
benign test picture of one hospital; splits 200, 201, ...

Bytes are of one hospital's reply in the last round, as it crosses.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.rounds import find_noise, run_rounds
from benchmarks.studies import buffering, cusfl_low
from benchmarks.studies.lite0 import HIDDEN, compute_features
from benchmarks.studies.one_message import margins
from benchmarks.studies.shared_noise import list_scored, number_lesions, within_auc
from federation.algorithm import Algorithm
from federation.augmentation import apply_affine
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.mlp import Mlp
from federation.parameters import subtract_parameters
from federation.randomness import derive_seed
from federation.rehearsal import initial_parameters
from federation.task import Task
from federation.upload import pack_reply, unpack_replies
from personalize.cusfl import CusFL
from personalize.fenda import Fenda
from personalize.iopfl import IopFL
from privacy.dp.access import Rows, open_access
from privacy.dp.events import NOTHING
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Message, to_bytes

COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.uploads"
AS_IT_IS, INT8, FEEDBACK, LAST_BIT = "as it is", "int8", "int8, feedback", "last bit"
WAYS = (AS_IT_IS, INT8, FEEDBACK, LAST_BIT)
METHODS: Mapping[str, Algorithm] = {"fedavg": FedAvg(), "fenda": Fenda(), "iopfl": IopFL(), "cusfl": CusFL()}
PHANTOM_WORK, PHANTOM_ROUNDS, FIRST_POPULATION = Work(lr=1e-3, batch=24, epochs=1, balance=True), 10, 8100
SKIN_ROUNDS, PRIVATE_ROUNDS, FIRST_SPLIT = 20, 10, 200
EPSILON, DELTA, STEPS, SAMPLING = 3.0, 1e-5, 2, 0.5
MEASURES = ("AUC", "cross-entropy", "bytes")


@dataclass
class Way:
    """The way of replies of one method. lost: what rounding lost of each hospital's last reply. size: of the last."""

    method: Algorithm
    name: str
    lost: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    size: int = 0

    def __call__(self, name: str, reply: Message, received: Message, memory: Message) -> tuple[Message, Message]:
        """As `benchmarks.shared.rounds.Cross`."""
        said, asked = (Message(each.tensors, {"algorithm": dict(each.facts)}) for each in (reply, received))
        if self.name in (AS_IT_IS, LAST_BIT):
            self.size = len(to_bytes(said))
            return (reply if self.name == AS_IT_IS else Message(move_up(reply.tensors), reply.facts)), memory
        if self.name == FEEDBACK and name in self.lost:
            carried = {n: value + self.lost[name].get(n, 0) for n, value in said.tensors.items()}
            said = Message(carried, said.facts)
        packed, memory = pack_reply(self.method, said, asked, memory)
        self.size = len(to_bytes(packed))
        read = unpack_replies({name: packed}, {name: asked}, said)[0][name].tensors
        self.lost[name] = {
            n: value for n, value in subtract_parameters(said.tensors, read).items() if value.is_floating_point()
        }
        return Message(read, reply.facts), memory


def move_up(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each floating-point number as the next larger one."""
    return {
        name: torch.nextafter(value, torch.full_like(value, torch.inf)) if value.is_floating_point() else value
        for name, value in tensors.items()
    }


def measure_phantom(number: int) -> Iterator[tuple[str, float | None, float]]:
    """(line and measure, no epsilon, value) of one population."""
    seed = FIRST_POPULATION + 2 * number
    for label, method in METHODS.items():
        for way in WAYS if label == "fedavg" else (AS_IT_IS, INT8):
            for measure, value in train_phantom(method, way, seed).items():
                yield f"{label} | {way} | {measure}", None, value


def train_phantom(method: Algorithm, way: str, seed: int) -> dict[str, float]:
    """The measures of one line on one population."""
    hospitals = {name: cusfl_low.draw_hospital(name, seed + k) for k, name in enumerate(cusfl_low.SCANNERS)}
    number, crossing = {name: k for k, name in enumerate(hospitals)}, Way(method, way)

    def seed_of(name: str, round_: int) -> int:
        return derive_seed(seed, number[name], round_)

    def open_site(name: str, round_: int) -> Site:
        rows = {"train": hospitals[name]["train"], "validation": hospitals[name]["validation"]}
        drawn = seed_of(name, round_)
        access = open_access(rows, batch=PHANTOM_WORK.batch, seed=drawn, balance=True, augment=apply_affine)
        return Site(name, cusfl_low.TASK, PHANTOM_WORK, access)

    initial = initial_parameters(method, cusfl_low.TASK, seed=seed)
    run = {"run": str(seed), "rounds": PHANTOM_ROUNDS, "initial": initial, "seed_of": seed_of, "cross": crossing}
    networks = run_rounds(method, cusfl_low.TASK, open_site, hospitals, **run).networks()
    tests = [(networks[name], rows["test"]) for name, rows in hospitals.items()]
    return {
        "AUC": float(np.mean([roc_auc_score(rows.y, cusfl_low.predict(module, rows)) for module, rows in tests])),
        "cross-entropy": float(np.mean([cusfl_low.measure_loss(module, rows) for module, rows in tests])),
        "bytes": crossing.size,
    }


@cache
def read_features() -> np.ndarray:
    """Colour and `lite0` of all pictures."""
    return compute_features()[0]["colour and lite0"]


def measure_skin(number: int) -> Iterator[tuple[str, float | None, float]]:
    """(line and measure, epsilon, value) of one split."""
    made = buffering.deal(read_features(), FIRST_SPLIT + number)
    for epsilon in (None, EPSILON):
        for way in WAYS if epsilon is None else WAYS[:3]:
            for measure, value in train_skin(made, way, FIRST_SPLIT + number, private=epsilon is not None).items():
                yield f"fedavg | {way} | {measure}", epsilon, value


def train_skin(made: buffering.Federation, way: str, seed: int, *, private: bool) -> dict[str, float]:
    """The measures of one line on one split."""
    method = FedAvg(weights="uniform" if private else "size")
    task = Task(Mlp(hidden=() if private else HIDDEN), (made.x.shape[1],), 2)
    sgd = Work(optimizer="sgd", lr=buffering.RATE, epochs=None, steps=STEPS)
    work, crossing = sgd if private else buffering.EPOCH, Way(method, way)
    rounds = PRIVATE_ROUNDS if private else SKIN_ROUNDS
    noise = find_noise(EPSILON, DELTA, STEPS * rounds, SAMPLING) if private else 0.0
    names = sorted(made.split.train)
    rows_of = {name: {"train": (own := read_rows(made, name)), "validation": take_none(own)} for name in names}

    def open_site(name: str, round_: int) -> Site:
        drawn = derive_seed(seed, name, round_)
        if not private:
            return Site(name, task, work, open_access(rows_of[name], batch=work.batch, seed=drawn, balance=False))
        protection = Protection(noise=noise, clip=1.0, sampling=SAMPLING)
        source = random.Random(drawn).randbytes  # noqa: S311 - the same noise for all ways
        access = open_private(rows_of[name], protection, counts=NOTHING, source=source)
        return Site(name, task, work, access)

    run = {"run": str(seed), "rounds": rounds, "initial": initial_parameters(method, task, seed=seed)}
    seeded = {"seed_of": lambda name, round_: derive_seed(seed, name, round_, "torch"), "cross": crossing}
    network = run_rounds(method, task, open_site, rows_of, **run, **seeded).network(names[0], memory=Message())
    scores = {name: margins(network, made.x[made.split.test[name]]) for name in list_scored(made.split)}
    return {"AUC": within_auc(made.split, scores), "bytes": crossing.size}


def read_rows(made: buffering.Federation, name: str) -> Rows:
    """A hospital's training pictures."""
    rows = made.split.train[name]
    x, y = torch.from_numpy(made.x[rows]).float(), torch.from_numpy(made.split.y[rows])
    return Rows(x, y, number_lesions(made.split.lesion[rows]))


def take_none(rows: Rows) -> Rows:
    """None of the rows."""
    return Rows(rows.x[:0], rows.y[:0], rows.patient[:0])


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """The tables of this study: scores and their paired differences to replies as they are, and bytes."""
    names = {
        ("phantom", "inf"): "two phantom hospitals, {}",
        ("skin", "inf"): "twenty hospitals of skin lesions, {}",
        ("skin", "3"): "the same at ε = 3, {}",
    }
    scores, sizes = list[list[str]](), list[list[str]]()
    for (group, epsilon), words in names.items():
        methods = [label for label in METHODS if f"{group} | {label} | {AS_IT_IS} | AUC | {epsilon}" in kept]
        for label in methods:

            def read(way: str, measure: str, group: str = group, label: str = label, epsilon: str = epsilon) -> dict:
                return dict(kept.get(f"{group} | {label} | {way} | {measure} | {epsilon}", {}))

            whole, packed = (next(iter(read(way, "bytes").values())) for way in (AS_IT_IS, INT8))
            sizes.append([words.format(label), f"{whole:,.0f}", f"{packed:,.0f}", f"{whole / packed:.2f}"])
            for way in (way for way in WAYS if read(way, "AUC")):
                auc, loss = read(way, "AUC"), read(way, "cross-entropy")
                same = way == AS_IT_IS
                change = "" if same else format_change(auc, read(AS_IT_IS, "AUC"))
                more = "" if same or not loss else format_change(loss, read(AS_IT_IS, "cross-entropy"))
                between = "" if same else f"{max(abs(auc[s] - read(AS_IT_IS, 'AUC')[s]) for s in auc):.4f}"
                scores.append(
                    [words.format(label), way, str(len(auc)), format_interval([*auc.values()]), change, between, more]
                )
    first = "line"
    return {
        "scores": make_table(
            [first, "replies", "splits", "AUC", "minus as it is", "largest difference", "cross-entropy minus as it is"],
            scores,
            COMMAND,
        ),
        "bytes": make_table([first, "bytes as it is", "bytes as int8", "times smaller"], sizes, COMMAND),
    }


def main() -> None:
    options = ask_splits(__doc__, "uploads", splits=5, groups=["phantom", "skin"])
    groups = {"phantom": measure_phantom, "skin": measure_skin}
    collect_splits(options, {name: groups[name] for name in options.groups or groups})


if __name__ == "__main__":
    main()
