"""Norms with a hospital's own statistics, frozen while it trains, beside what a patient's own image can give.

    python -m benchmarks.studies.own_norms [--populations 6]
    python -m benchmarks.tables.derived --write own-norms

Batch norm with AdaBN gives each hospital its own statistics, and private training has no batch norm: its statistics mix
patients. Statistics that are measured once and then frozen leave every gradient a patient's own. Would that be worth
its noise? Here they are measured exactly, so that what is found is the most that any noise could leave.

Two phantom hospitals (P and L) with grey exports, drawn as `benchmarks.studies.matched` draws them: 48 patients that
train and 48 others that test at each, slices of 32 x 32. FedAvg of a cnn of 16, 24 and 32 channels. AUC of all test
slices of both hospitals together (`overall`: one threshold for both), and the mean of each hospital's own AUC.

    as they are   images as exported
    patient       `z_score` of `harmonize.intensity`, as a run takes it: each patient's images get mean and deviation
                  of the prior's pictures; a patient's image follows from that patient alone and costs nothing
    hospital      the same by mean and deviation of all training images of the hospital, exact: two numbers
    group         group norm
    frozen        a norm's mean and deviation are those of the hospital's own training images, norm after norm as AdaBN
                  measures them, under the first weights; then constants, another set at each hospital
    public        the same of the prior's pictures: the same constants at both hospitals
    folded        like `public`, but the constants are the running ones of training on the prior, and are folded with
                  scale and shift into one scale and one shift, which train; added after two populations were scored
    refreshed     `frozen`, measured anew before every round
    at home       after training the statistics are measured again at each hospital, exactly: they never leave
    batch         batch norm; `AdaBN` after training

Without noise: begun at random, 12 rounds of 40 steps of Adam 2e-3, batches of 24, classes equally often, flips and
small affine maps. With it: begun on 1,200 pictures of the prior, 10 rounds of 2 epochs, a fourth of the patients in a
step, four slices of each, clip 1, Adam 3e-3, (8, 1e-5) for training alone, through `privacy.dp.private_access`.

Primary comparisons, written down before a population of the tables was drawn, in overall AUC, with Student's 95 %
interval over populations: without noise `frozen, as they are` less `group, patient`; at epsilon = 8 `frozen, patient`
less `group, patient`. All others are secondary. Seeds are 71000 + 2 k (P) and 71001 + 2 k (L), k = 0, 1, ... Lines
were chosen on one population (70100 and 70101) with other code; there the first difference was -.008, the second -.035.
Another (70102 and 70103) was run for one round of each line, to see that this code ends; there the second was +.060.

Figures go into benchmarks/measured/own_norms.json as they come; what stands there is not run again.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import make_parser
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.shared.rounds import Finished, find_noise, run_rounds
from benchmarks.studies.matched import draw_hospital
from federation.augmentation import AUGMENTATIONS
from federation.calibration import adapt_batch_norms
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.models.cnn import Cnn, CnnModule, Norm
from federation.parameters import loaded, read_parameters
from federation.pretraining import Pretrained, pretrain_network, start_task_with
from federation.randomness import derive_seed
from federation.rehearsal import initial_parameters
from federation.task import Output, Task, cross_entropy
from harmonize.intensity import ZScore
from harmonize.own import SiteImages
from harmonize.prior import PRIORS, draw_pictures
from harmonize.translation import translate_each_patient
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection
from privacy.message import Params

COMMAND = "python -m benchmarks.studies.own_norms"
INPUTS, WIDTHS, FIRST_SEED = (1, 32, 32), (16, 24, 32), 71000
EPSILON, DELTA, SAMPLING, PUBLIC = 8.0, 1e-5, 0.25, 1200
ROUNDS = {False: 12, True: 10}
"""With privacy or without."""
METHOD = FedAvg(weights="uniform")
Score = list[float]
"""Overall AUC, and the mean of the hospitals' own."""
Book = dict[str, dict[str, Score]]
"""Population -> line -> score."""


class FrozenNorm(nn.Module):
    """A norm by constants: no buffer, so nothing of them is sent, averaged or written by training."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.mean, self.variance = torch.zeros(channels), torch.ones(channels)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.variance + 1e-5).rsqrt()
        shape = (1, -1, 1, 1)
        return (x - self.mean.view(shape)) * scale.view(shape) + self.bias.view(shape)


class ChannelScale(nn.Module):
    """A scale and a shift for each channel: what is left of a norm whose constants were folded into them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, -1, 1, 1)
        return x * self.weight.view(shape) + self.bias.view(shape)


class FrozenModule(CnnModule):
    """A cnn of batch norm with another layer in the place of each: a holder of `federation.task`."""

    def __init__(self, layer: Callable[[int], nn.Module]) -> None:
        super().__init__(INPUTS, 2, WIDTHS, "batch")
        for norms, width in zip([self.stem[0].adn, *(block[0].adn for block in self.blocks)], WIDTHS, strict=True):
            norms.N = layer(width)

    def hold(self, frozen: Params) -> None:
        """Take these statistics, named as batch norm's buffers are."""
        for name, part in self.named_modules():
            if isinstance(part, FrozenNorm):
                part.mean, part.variance = frozen[f"{name}.running_mean"], frozen[f"{name}.running_var"]


@dataclass(frozen=True)
class Frozen:
    """Settings of `FrozenModule`. folded: with `ChannelScale` in the place of `FrozenNorm`."""

    name: ClassVar[str] = "frozen"
    folded: bool = False

    def build(self, *, inputs: tuple[int, ...], classes: int) -> nn.Module:
        """A new network."""
        return FrozenModule(ChannelScale if self.folded else FrozenNorm)

    def losses(self, output: Output, y: Tensor) -> Tensor:
        """Cross-entropy, per example."""
        return cross_entropy(output, y)


class World(NamedTuple):
    """Both hospitals' training and test rows by name, with the seed of what is drawn."""

    train: Mapping[str, Rows]
    test: Mapping[str, Rows]
    seed: int


class Start(NamedTuple):
    """What training begins with. frozen: statistics by hospital; None = the norm has none of its own."""

    task: Task
    initial: Params
    frozen: Mapping[str, Params] | None = None


@cache
def draw_public() -> tuple[Tensor, Tensor]:
    """Pictures of the prior in [-1, 1], and their classes."""
    y = torch.arange(PUBLIC) % 2
    return draw_pictures(PRIORS["prostate_adc"], y, INPUTS, 0), y


@cache
def learn_public(norm: Norm) -> Params:
    """Parameters, and statistics of batch norm, that were trained on the prior's pictures."""
    task = Task(Cnn(widths=WIDTHS, norm=norm), INPUTS, 2)
    how = Pretrained(on="the prior", lr=3e-3, strength=0.0)
    return pretrain_network(task, how, *draw_public(), low=-1.0, high=1.0)


def fold_norms(params: Params) -> Params:
    """Parameters with scale w / sqrt(v + e) and shift b - m w / sqrt(v + e) in the place of each batch norm."""
    folded = {name: tensor for name, tensor in params.items() if "running" not in name}
    for norm in (name.removesuffix(".running_mean") for name in params if name.endswith(".running_mean")):
        weight, bias, mean = (params[norm + part].double() for part in (".weight", ".bias", ".running_mean"))
        scale = weight / (params[f"{norm}.running_var"].double() + 1e-5).sqrt()
        folded |= {f"{norm}.weight": scale.float(), f"{norm}.bias": (bias - mean * scale).float()}
    return folded


def draw_worlds(seed: int) -> dict[str, World]:
    """A population's hospitals, by how their images are seen."""
    drawn = {f"h{k}": draw_hospital("P" if k == 0 else "L", seed + k) for k in range(2)}
    return {way: _see_world(drawn, way, seed) for way in ("as they are", "patient", "hospital")}


def _see_world(drawn: Mapping[str, tuple[Rows, Rows]], way: str, seed: int) -> World:
    """Both hospitals, seen in one way."""
    seen = {name: [_see_rows(rows, train, way) for rows in (train, test)] for name, (train, test) in drawn.items()}
    return World({name: rows[0] for name, rows in seen.items()}, {name: rows[1] for name, rows in seen.items()}, seed)


def _see_rows(rows: Rows, train: Rows, way: str) -> Rows:
    """Rows of a hospital, seen in one way; images are in [-1, 1], -1 is background."""
    x = rows.x.clamp(-1.0, 1.0)
    if way == "as they are":
        return replace(rows, x=x)
    translator, everybody = ZScore(), train.x.clamp(-1.0, 1.0)
    if way == "patient":
        fitted = translator.fit(SiteImages(everybody, train.y, train.patient), draw_public()[0], seed=0)
        return replace(rows, x=translate_each_patient(translator, fitted, x, rows.patient))
    wanted, here = (pictures[pictures > -1] for pictures in (draw_public()[0], everybody))
    moved = (x - here.mean()) * (wanted.std() / here.std()) + wanted.mean()
    return replace(rows, x=torch.where(x > -1, moved.clamp(-1.0, 1.0), x))


def measure_norms(params: Params, x: Tensor) -> Params:
    """Statistics of the norms over images x, norm after norm, as AdaBN has them."""
    adapted = read_parameters(adapt_batch_norms(_with_batch_norm(params), x, batch=1024))
    return {name: tensor for name, tensor in adapted.items() if "running" in name}


def _with_batch_norm(params: Params) -> nn.Module:
    """A network of batch norm with these weights."""
    module = Cnn(widths=WIDTHS, norm="batch").build(inputs=INPUTS, classes=2)
    return loaded(module, {**module.state_dict(), **params})


def begin_training(world: World, norm: str, *, private: bool) -> Start:
    """The first parameters of a kind of norm: at random, or with privacy from the prior's pictures."""
    held = norm in ("frozen", "public", "folded")
    task = Task(Frozen(norm == "folded") if held else Cnn(widths=WIDTHS, norm=norm), INPUTS, 2)  # type: ignore[arg-type]
    if not private:
        initial = initial_parameters(METHOD, task, seed=world.seed)
    else:
        learnt = learn_public("group" if norm == "group" else "batch")
        learnt = fold_norms(learnt) if norm == "folded" else learnt
        initial = {name: learnt[name] for name in task.network().state_dict()}
        task = start_task_with(task, initial)
    if norm == "frozen":
        return Start(task, initial, {name: measure_norms(initial, rows.x) for name, rows in world.train.items()})
    if norm == "public":
        return Start(task, initial, dict.fromkeys(world.train, measure_norms(initial, draw_public()[0])))
    return Start(task, initial)


def train_together(world: World, start: Start, *, private: bool, refresh: bool = False) -> Params:
    """FedAvg's parameters after the last round. refresh: frozen statistics are measured anew before each."""
    rounds, newest = ROUNDS[private], [start.initial]
    work = (
        Work(lr=3e-3, epochs=2, augment="flip")
        if private
        else Work(lr=2e-3, epochs=None, steps=40, balance=True, augment="affine")
    )
    augment = AUGMENTATIONS[work.augment]
    noise = find_noise(EPSILON, DELTA, rounds * 2 * round(1 / SAMPLING), SAMPLING) if private else 0.0

    def seed_of(name: str, round_: int) -> int:
        return derive_seed(world.seed, int(name[1:]), round_)

    def open_site(name: str, round_: int) -> Site:
        task, rows = start.task, world.train[name]
        if start.frozen is not None:
            task = replace(task, frozen=measure_norms(newest[0], rows.x) if refresh else start.frozen[name])
        splits: dict[Any, Rows] = {"train": rows, "validation": rows}
        if private:
            protection = Protection(noise=noise, clip=1.0, sampling=SAMPLING, views=4)
            return Site(name, task, work, open_private(splits, protection, augment=augment))
        access = open_access(splits, batch=work.batch, seed=seed_of(name, round_), balance=True, augment=augment)
        return Site(name, task, work, access)

    def keep_newest(finished: Finished) -> None:
        newest[0] = read_parameters(finished.network("h0"))

    run_rounds(
        METHOD,
        start.task,
        open_site,
        world.train,
        run="own norms",
        rounds=rounds,
        initial=start.initial,
        seed_of=seed_of,
        watch=keep_newest,
    )
    return newest[0]


def score_networks(world: World, network_of: Callable[[str], nn.Module]) -> Score:
    """Overall AUC, and the mean of the hospitals' own, of each hospital's network."""
    task = Task(Cnn(), INPUTS, 2)
    scores = [task.probabilities(network_of(name), rows.x)[:, 1].numpy() for name, rows in world.test.items()]
    truths = [rows.y.numpy() for rows in world.test.values()]
    alone = [float(roc_auc_score(y, p)) for y, p in zip(truths, scores, strict=True)]
    return [float(roc_auc_score(np.concatenate(truths), np.concatenate(scores))), float(np.mean(alone))]


def score_ways(world: World, start: Start, params: Params, norm: str) -> dict[str, Score]:
    """Scores of trained parameters, by what is done at home afterwards: nothing, or statistics measured there."""
    frozen = start.frozen

    def trained(name: str) -> nn.Module:
        task = start.task if frozen is None else replace(start.task, frozen=frozen[name])
        return loaded(task.network(), params)

    made = {"": score_networks(world, trained)}
    if norm not in ("group", "folded"):
        made[", AdaBN" if norm == "batch" else ", at home"] = score_networks(
            world, lambda name: adapt_batch_norms(_with_batch_norm(params), world.train[name].x)
        )
    return made


def score_line(world: World, norm: str, *, private: bool) -> dict[str, Score]:
    """Scores of one kind of norm; with privacy those of its start, too. norm: `refreshed` is `frozen` at that."""
    kind = "frozen" if norm == "refreshed" else norm
    start = begin_training(world, kind, private=private)
    params = train_together(world, start, private=private, refresh=norm == "refreshed")
    made = {f"{norm}{way}": score for way, score in score_ways(world, start, params, kind).items()}
    if norm == "refreshed":  # its last statistics are those of the last round's beginning; at home there are newer ones
        del made["refreshed"]
    if private:
        begun = score_ways(world, start, start.initial, kind)
        made |= {f"{norm}{way}, start alone": score for way, score in begun.items()}
    return made


Line = tuple[str, str]
"""A kind of norm, and how images are seen."""
FIRST: Mapping[bool, tuple[Line, ...]] = {
    True: (("group", "patient"), ("frozen", "patient"), ("public", "patient"), ("folded", "patient")),
    False: (("group", "patient"), ("frozen", "as they are"), ("batch", "as they are")),
}
"""With privacy or without: what every population is scored by before any is scored by more."""
SECOND: Mapping[bool, tuple[Line, ...]] = {
    True: (("group", "as they are"), ("group", "hospital"), ("frozen", "as they are")),
    False: (
        ("group", "as they are"),
        ("group", "hospital"),
        ("frozen", "patient"),
        ("batch", "patient"),
        ("refreshed", "as they are"),
    ),
}
WORDS = {False: "no noise", True: "eps = 8"}


def score_population(seed: int, asked: tuple[Line, ...], book: Book, private: bool, keep: bool) -> None:
    """Lines of one population, with privacy or without, written down as they come."""
    lines = book.setdefault(str(seed), {})
    missing = [line for line in asked if not is_scored(lines, private, line)]
    worlds = draw_worlds(seed) if missing else {}
    for norm, way in missing:
        made = score_line(worlds[way], norm, private=private)
        told = {f"{WORDS[private]} | {label} | {way}": score for label, score in made.items()}
        lines |= {line: [round(part, 4) for part in score] for line, score in told.items()}
        print(seed, {line: lines[line] for line in told}, flush=True)
        if keep:
            write_measured("own_norms", book)


def tables(book: Book) -> dict[str, dict[str, Any]]:
    """The tables of docs/results/own-norms.md, without noise and with it."""
    return {name: _make_table(book, private) for name, private in (("exact", False), ("private", True))}


def _make_table(book: Book, private: bool) -> dict[str, Any]:
    """Lines beside group norm of images that each patient standardized, over the populations that have both."""
    word, floor = WORDS[private], f"{WORDS[private]} | group | patient"
    columns = [word, "populations", "overall AUC", "each alone", "overall, minus group by patient", "above"]
    every = dict.fromkeys(line for lines in book.values() for line in lines if line.startswith(word))
    rows = []
    for line in sorted(every, key=lambda name: (name.rpartition(" | ")[2], name)):
        both = [lines for lines in book.values() if {line, floor} <= lines.keys()]
        away = [lines[line][0] - lines[floor][0] for lines in both]
        change = "" if line == floor else format_interval(away, sign="+").replace("-", "−")
        above = "" if line == floor else f"{sum(value > 0 for value in away)} of {len(away)}"
        means = [format_interval([lines[line][part] for lines in both]) for part in range(2)]
        label, way = line.removeprefix(f"{word} | ").split(" | ")
        label += ", images as they are" if way == "as they are" else f", images by {way}"
        rows.append([label, str(len(both)), *means, change, above])
    return make_table(columns, rows, COMMAND)


def is_scored(lines: Mapping[str, Score], private: bool, line: Line) -> bool:
    """Whether a kind of norm was scored on images seen in this way."""
    norm, way = line
    return any(label.startswith(f"{WORDS[private]} | {norm}") and label.endswith(way) for label in lines)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--populations", type=int, default=6)
    parser.add_argument("--try-on", type=int, nargs="*", help="seeds below 71000, whose figures are not kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept: Book = {} if options.try_on else read_measured("own_norms")
    seeds = options.try_on or range(FIRST_SEED, FIRST_SEED + 2 * options.populations, 2)
    for asked in (FIRST, SECOND):
        for private in (True, False):
            for seed in seeds:
                score_population(seed, asked[private], kept, private, keep=not options.try_on)


if __name__ == "__main__":
    main()
