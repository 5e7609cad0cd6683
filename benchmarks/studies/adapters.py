"""Adapters of low rank in a frozen EfficientNet-Lite0, beside a new head alone and all weights: HAM10000.

    CONSILIUM_DATA=... python -m benchmarks.studies.adapters [--splits 3]

Every figure is kept in benchmarks/measured/adapters.json; `python -m benchmarks.tables.derived --write adapters` writes
the table.

Pictures of 112 x 112, as they lie on disk, three hospitals and splits by lesion are those of
benchmarks/studies/lite0.py, and so is the floor, each hospital's own SVM on colour, whose figures of the same splits
are read. There is one picture of a lesion. Networks are `{name: lite0, stages: 2}`: the first five stages are never
trained, so their output is computed once for each picture, which allows no augmentation; `check_cache` compares logits
with those of the whole network.

    head        a new head on the means of the last stage
    adapters    rank 4 (alpha 4) at the 1x1 convolutions of the last two stages, and a new head
    weights     all convolutions of the last two stages, and a new head

Without privacy a round is 10 steps of Adam at each hospital, batches of 32. With it there are ten rounds of 2 steps of
Adam on a tenth of the lesions, gradients cut at norm 1, (ε, 1e-5) for each lesion, add or remove, for training alone.
Learning rates and numbers of rounds were chosen among `RATES`, `ROUNDS` and `PRIVATE_RATES` by FedAvg on split 100
(`--first 100 --splits 1` prints them), the private ones at ε = 8; the lines alone take what was chosen for FedAvg of
their kind. Sizes of rounds and the number of stages follow from what two shared cores could compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import collect_splits, make_table, read_measured, say_epsilon
from benchmarks.shared.rounds import Finished, find_noise, run_rounds
from benchmarks.shared.skin import Split, number_lesions, read_lines, shrink_pictures, split_hospitals
from benchmarks.studies.one_message import CACHE, margins
from federation.algorithm import Algorithm
from federation.descent import Site, Work
from federation.features.lite0 import MIDDLE, SCALE, build_lite0
from federation.features.lite0_file import read_lite0_weights
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.adapted import adapted
from federation.models.lite0 import Lite0Classifier, PartlyTrained, adapt_stages, count_frozen_blocks
from federation.models.mlp import Mlp
from federation.parameters import count_values
from federation.rehearsal import initial_parameters, rehearse_reply
from federation.task import Output, Task, label_loss
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

SIDE, STEPS, LAST, FIRST_TRIAL = 112, 10, 2, 100
HEAD = "head"
MODELS = {
    "adapters": PartlyTrained(stages=LAST),
    "weights": PartlyTrained(stages=LAST, train="all"),
}
RATES = {HEAD: (1e-3, 3e-3, 1e-2), "adapters": (1e-3, 3e-3), "weights": (1e-4, 1e-3)}
ROUNDS = {HEAD: (5, 10, 20, 40), "adapters": (5, 10), "weights": (5, 10)}
PRIVATE_RATES = {HEAD: (1e-3, 1e-2, 3e-2), "adapters": (1e-3, 3e-3, 1e-2)}
CHOSEN = {HEAD: (3e-3, 10), "adapters": (1e-3, 10), "weights": (1e-4, 10)}
"""Rate and rounds."""
CHOSEN_PRIVATELY = {HEAD: 3e-2, "adapters": 1e-2}
PRIVATE_ROUNDS, PRIVATE_STEPS, SAMPLING, DELTA, CLIP = 10, 2, 0.1, 1e-5, 1.0
EPSILONS = (3.0, 8.0)
SENT = "numbers sent, "
FLOOR = "3 hospitals | colour, SVM alone | inf"
"""Of benchmarks/measured/lite0.json."""
COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.adapters"
METHODS: Mapping[str, Algorithm] = {"alone": Local(), "FedAvg": FedAvg()}
LINES = (*product((HEAD, *MODELS), METHODS),)


@dataclass(frozen=True)
class OnStages:
    """Settings of the last stages alone. Input (b, channels, H, W): what the stage before puts out."""

    name: ClassVar[str] = "tail"
    of: PartlyTrained

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """The last stages of the network of a run, with the same parts fixed."""
        network = adapt_stages(self.of, read_lite0_weights())
        blocks = network.blocks[count_frozen_blocks(self.of.stages) :]
        tail = Lite0Classifier(nn.Identity(), nn.ModuleList(blocks), classes)
        paths = [f"blocks.{k}" for k in range(len(tail.blocks))]
        module = adapted(tail, stem=(paths[0],), blocks=tuple(paths[1:]), head="head")
        module.is_ours = True
        return module

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy of each example."""
        return label_loss(output, y)


class Inputs(NamedTuple):
    """Of all pictures: what the fourth stage puts out, (n, channels, H, W), and the means of the last, (n, 320)."""

    stages: Tensor
    means: Tensor


@torch.no_grad()
def compute_inputs() -> Inputs:
    """What networks take, kept in build/."""
    source = (ROOT / "federation/features/lite0.py").read_bytes()
    kept = CACHE / f"adapters-{SIDE}-{hashlib.sha256(source).hexdigest()[:16]}.npz"
    if not kept.exists():
        network = build_lite0(read_lite0_weights())
        stages, means = [], []
        for part in shrink_pictures(read_lines(), SIDE).split(64):
            outputs = network((127.5 * (part + 1) - MIDDLE) / SCALE)
            stages.append(outputs[-1 - LAST])
            means.append(outputs[-1].mean((2, 3)))
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, stages=torch.cat(stages).numpy(), means=torch.cat(means).numpy())
    with np.load(kept) as arrays:
        return Inputs(torch.from_numpy(arrays["stages"]), torch.from_numpy(arrays["means"]))


@torch.no_grad()
def check_cache(inputs: Inputs) -> None:
    """Compare the tails with whole networks on 64 pictures. Raises: AssertionError: logits differ by 1e-4."""
    x = shrink_pictures(read_lines()[:64], SIDE)
    for settings in MODELS.values():
        torch.manual_seed(0)
        whole = settings.build(inputs=(3, SIDE, SIDE), classes=2).eval()
        torch.manual_seed(0)
        tail = OnStages(settings).build(inputs=(), classes=2).eval()
        difference = float((whole(x).logits - tail(inputs.stages[:64]).logits).abs().max())
        print(f"logits from kept stages differ by at most {difference:.1e}", flush=True)
        assert difference < 1e-4  # noqa: S101


def make_task(kind: str, inputs: Inputs) -> tuple[Task, Tensor]:
    """The task of a kind of network, and its examples."""
    if kind == HEAD:
        return Task(Mlp(hidden=()), (inputs.means.shape[1],), 2), inputs.means
    return Task(OnStages(MODELS[kind]), tuple(inputs.stages.shape[1:]), 2), inputs.stages


def score(finished: Finished, x: Tensor, split: Split) -> float:
    """The mean AUC of the hospitals' models over the judged hospitals."""
    from sklearn.metrics import roc_auc_score

    values = []
    for name in split.judged:
        network, rows = finished.network(name), split.test[name]
        with torch.no_grad():
            parts = [margins(network, x[part].numpy()) for part in np.array_split(rows, max(1, len(rows) // 256))]
        values.append(roc_auc_score(split.y[rows], np.concatenate(parts)))
    return float(np.mean(values))


def train(kind: str, method: str, split: Split, inputs: Inputs, *, rate: float, rounds: int) -> dict[int, float]:
    """Mean AUC after each number of `ROUNDS` up to `rounds`."""
    task, x = make_task(kind, inputs)
    work = Work(lr=rate, batch=32, epochs=None, steps=STEPS, channels_last=kind != HEAD)
    names = split.judged if method == "alone" else [*split.train]
    sites = {}
    for number, name in enumerate(names):
        rows = {"train": make_rows(x, split, name)}
        sites[name] = Site(name, task, work, open_access(rows, batch=work.batch, seed=number, balance=False))
    after: dict[int, float] = {}

    def watch(finished: Finished) -> None:
        done = finished.call.round - 1
        if done in ROUNDS[kind]:
            after[done] = score(finished, x, split)

    initial = initial_parameters(METHODS[method], task, seed=0)
    run_rounds(
        METHODS[method], task, lambda name, _: sites[name], sites, run="adapters", rounds=rounds, initial=initial,
        watch=watch,
    )  # fmt: skip
    return after


def train_privately(kind: str, split: Split, inputs: Inputs, epsilon: float, *, rate: float) -> float:
    """Mean AUC of FedAvg with noise."""
    task, x = make_task(kind, inputs)
    noise = find_noise(epsilon, DELTA, PRIVATE_ROUNDS * PRIVATE_STEPS, SAMPLING)
    protection = Protection(clip=CLIP, sampling=SAMPLING, views=1, noise=noise)
    work = Work(lr=rate, epochs=None, steps=PRIVATE_STEPS)
    rows = {name: make_rows(x, split, name) for name in split.train}

    def open_site(name: str, round_: int) -> Site:
        return Site(name, task, work, open_private({"train": rows[name]}, protection))

    initial = initial_parameters(FedAvg(), task, seed=0)
    finished = run_rounds(
        FedAvg(), task, open_site, rows, run="adapters", rounds=PRIVATE_ROUNDS, initial=initial
    )  # fmt: skip
    return score(finished, x, split)


def count_sent(kind: str, inputs: Inputs) -> int:
    """How many numbers a reply of FedAvg holds."""
    task, _ = make_task(kind, inputs)
    return count_values(rehearse_reply(FedAvg(), task, Work(), initial_parameters(FedAvg(), task, seed=0)).tensors)


def make_rows(x: Tensor, split: Split, name: str) -> Rows:
    """A hospital's training rows."""
    rows = split.train[name]
    return Rows(x[rows], torch.from_numpy(split.y[rows]), number_lesions(split.lesion[rows]))


def lines_of(number: int, inputs: Inputs) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) on one split, and of each kind of network what is sent."""
    split = split_hospitals(read_lines(), 1, number)
    for kind in (HEAD, *MODELS):
        yield f"{SENT}{kind}", None, count_sent(kind, inputs)
    for kind, method in LINES:
        rate, rounds = CHOSEN[kind]
        yield f"{kind}, {method}", None, train(kind, method, split, inputs, rate=rate, rounds=rounds)[rounds]
    for kind, rate in CHOSEN_PRIVATELY.items():
        for epsilon in EPSILONS:
            yield f"{kind}, FedAvg", epsilon, train_privately(kind, split, inputs, epsilon, rate=rate)


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """The AUC of each line, less that of the head trained alike, and less that of each hospital's own SVM."""
    measured = {tuple(name.split(" | ")[1:]): values for name, values in kept.items() if SENT not in name}
    sent = {name.split(SENT)[1].split(" | ")[0]: values for name, values in kept.items() if SENT in name}
    svm, rows = read_measured("lite0")[FLOOR], []
    for kind, method, epsilon in list_lines():
        values = measured[f"{kind}, {method}", epsilon]
        numbers = "none leaves" if method == "alone" else f"{int(next(iter(sent[kind].values()))):,}"
        base = measured[f"{HEAD}, {method}", epsilon]
        cells = [format_interval([*values.values()]), "" if kind == HEAD else format_change(values, base)]
        rows.append([kind, method, {"inf": "∞"}.get(epsilon, epsilon), numbers, *cells, format_change(values, svm)])
    mine = {split: svm[split] for split in next(iter(measured.values()))}
    rows.append(["SVM on colour", "alone", "∞", "none leaves", format_interval([*mine.values()]), "", ""])
    columns = ["trained", "by", "ε", "numbers sent", "AUC", "minus the head alone", "minus the SVM at home"]
    return {"skin": make_table(columns, rows, COMMAND)}


def list_lines() -> Iterator[tuple[str, str, str]]:
    """What is trained, by which method, at which ε, in the order of the table."""
    yield from ((kind, method, "inf") for kind, method in LINES)
    yield from ((kind, "FedAvg", say_epsilon(epsilon)) for epsilon in EPSILONS for kind in PRIVATE_RATES)


def try_choices(splits: range, inputs: Inputs) -> None:
    """Print the mean AUC of FedAvg for each rate and number of rounds."""
    torch.set_num_threads(1)
    for number in splits:
        split = split_hospitals(read_lines(), 1, number)
        for kind, rates in RATES.items():
            for rate in rates:
                print(
                    number,
                    kind,
                    rate,
                    train(kind, "FedAvg", split, inputs, rate=rate, rounds=max(ROUNDS[kind])),
                    flush=True,
                )
        for kind, rates in PRIVATE_RATES.items():
            for rate in rates:
                value = train_privately(kind, split, inputs, max(EPSILONS), rate=rate)
                print(number, kind, rate, f"ε = {max(EPSILONS):g}: {value:.4f}", flush=True)


def main() -> None:
    options = ask_splits(__doc__, "adapters", splits=3)
    inputs = compute_inputs()
    check_cache(inputs)
    if options.first >= FIRST_TRIAL:
        try_choices(range(options.first, options.first + options.splits), inputs)
        return
    collect_splits(options, {"3 hospitals": partial(lines_of, inputs=inputs)})


if __name__ == "__main__":
    main()
