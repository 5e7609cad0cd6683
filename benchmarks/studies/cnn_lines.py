"""What networks that learn round after round are worth on the splits of one_message.py and many_classes.py.

    CONSILIUM_DATA=... python -m benchmarks.studies.cnn_lines [--splits 5 | --choose]

A small CNN with group norm on pictures of 32 x 32 pixels, and a linear head on the 24 whitened `colour` features, each
trained by the project's own `fedavg` and `local` through its own data access: 20 rounds of one epoch. With privacy, a
step takes a Poisson sample of lesions, one picture of each, and noise is found by the project's accountant for all
steps of all rounds: (epsilon, 1e-5) for each lesion, add or remove. Without it, batches of 24 pictures. Hospitals,
splits, and measures are those of the two scripts. Splits 0 to 4 are reported, settings were chosen on 100 and 101.

Every figure is kept in measured/cnn_lines.json, for two pages of results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import make_table, read_measured, say_epsilon, write_measured
from benchmarks.shared.rounds import find_noise, run_rounds
from benchmarks.shared.skin import is_assessable, number_lesions, shrink_pictures, split_hospitals
from benchmarks.studies import many_classes
from benchmarks.studies.one_message import DELTA, LINEAR, computed, scaled
from federation.augmentation import flip_images
from federation.descent import Site, Work
from federation.fedavg import FedAvg
from federation.finetuning import Tuning, fine_tuned
from federation.local import Local
from federation.models.cnn import Cnn
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters
from federation.task import Task
from privacy.dp.access import Rows, open_access
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

SIDE = 32
EPSILONS = (3.0, None, 1.0, 8.0)
AFTER = Tuning(epochs=5)
LEAST = 5  # splits of a cell of the tables


@dataclass(frozen=True)
class Line:
    """A network and how it is trained, without and with privacy. pixels: it learns from pictures. rounds: without
    privacy; private_rounds: with it.
    """

    model: Cnn | Mlp
    plain: Work
    private: Work
    protection: Protection
    pixels: bool
    rounds: int = 20
    private_rounds: int = 20


PIXELS = Line(
    Cnn(widths=(8, 16), norm="group"),
    Work(lr=3e-3, augment="flip"),
    Work(lr=1e-2, augment="flip"),
    Protection(clip=5.0, sampling=0.25, views=1),
    True,
    private_rounds=10,
)
FEATURES = Line(
    Mlp(hidden=()),
    Work(optimizer="sgd", lr=2.0, batch=256),
    Work(optimizer="sgd", lr=2.0),
    Protection(clip=1.0, sampling=0.25, views=1),
    False,
)
LINES = {"CNN on pixels": PIXELS, "linear head on the features": FEATURES}


class Pictures(NamedTuple):
    """pixels: (n, 3, 32, 32) in [-1, 1]. features: (n, 24). lines: of the table."""

    pixels: torch.Tensor
    features: torch.Tensor
    lines: list[dict[str, str]]


def pictures() -> Pictures:
    found, public, lines = computed()
    pixels = shrink_pictures(lines, SIDE)
    return Pictures(pixels, torch.from_numpy(scaled(found, public, LINEAR)).float(), lines)


def sites_of(line: Line, task: Task, train: Mapping[str, Rows], epsilon: float | None, seed: int) -> dict[str, Site]:
    work = line.plain if epsilon is None else line.private
    augment = flip_images if work.augment == "flip" else None
    found = {}
    for k, (name, rows) in enumerate(train.items()):
        if epsilon is None:
            access = open_access({"train": rows}, batch=work.batch, seed=1000 * seed + k, augment=augment)
        else:
            q = line.protection.sampling
            steps = line.private_rounds * (work.steps or (work.epochs or 0) * max(1, round(1 / q)))
            protection = replace(line.protection, noise=find_noise(epsilon, DELTA, steps, q))
            access = open_private({"train": rows}, protection, augment=augment)
        found[name] = Site(name, task, work, access)
    return found


def trained(
    method: FedAvg | Local, line: Line, task: Task, train: Mapping[str, Rows], epsilon: float | None, seed: int
) -> tuple[dict[str, Site], dict[str, torch.nn.Module]]:
    """Each hospital, and its network after all rounds."""
    sites = sites_of(line, task, train, epsilon, seed)
    rounds = line.rounds if epsilon is None else line.private_rounds
    initial = initial_parameters(method, task, seed=seed)
    found = run_rounds(
        method, task, lambda name, _: sites[name], sites, run="cnn_lines", rounds=rounds, initial=initial
    )
    return sites, found.networks()


def measures(classes: int, y: np.ndarray, lesion: np.ndarray, test: Mapping[str, np.ndarray]) -> Callable[..., float]:
    """From probabilities (n, classes) of each hospital's test pictures to the mean over hospitals, as in the tables."""
    if classes == 2:
        judged = [name for name, rows in test.items() if is_assessable(y[rows], lesion[rows])]
        return lambda of: float(np.mean([roc_auc_score(y[test[name]], of(name)[:, 1]) for name in judged]))
    held = {name: many_classes.judged(y[rows], lesion[rows]) for name, rows in test.items()}
    names = [name for name, own in held.items() if len(own) >= 3]
    return lambda of: float(np.mean([many_classes.macro(y[test[name]], of(name), held[name]) for name in names]))


def lines_of(
    split: int, parts: int, classes: int, given: Pictures, lines: Mapping[str, Line], epsilons=EPSILONS
) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) on one split."""
    labels = [int(one["label"]) if classes == 2 else many_classes.CLASSES.index(one["dx"]) for one in given.lines]
    y = np.array(labels)
    _, lesion, _, rows, test, _ = split_hospitals(given.lines, parts, split)
    mean = measures(classes, y, lesion, test)
    for label, line in lines.items():
        x = given.pixels if line.pixels else given.features
        task = Task(line.model, tuple(x.shape[1:]), classes)
        train = {}
        for name, own in rows.items():
            train[name] = Rows(x[own], torch.from_numpy(y[own]), number_lesions(lesion[own]))

        def of(networks, x=x, task=task):
            return mean(lambda one: task.probabilities(networks[one], x[test[one]]).double().numpy())

        for epsilon in epsilons:
            _, networks = trained(Local(), line, task, train, epsilon, split)
            yield f"{label}, alone", epsilon, of(networks)
            sites, networks = trained(FedAvg(), line, task, train, epsilon, split)
            yield f"{label}, FedAvg", epsilon, of(networks)
            if epsilon is None:
                tuned = {name: fine_tuned(own, networks[name], AFTER) for name, own in sites.items()}
                yield f"{label}, FedAvg, fine-tuned", epsilon, of(tuned)


MOMENTS = "moments, 24 components, together, firmer"  # with the method's own weights: nothing is chosen by epsilon


def tables(kept: Mapping[str, Mapping[str, float]], classes: int) -> dict[str, object]:
    """For each number of hospitals: AUC by epsilon, and the gain of moments in pairs of the same splits."""
    moments = read_measured("one_message" if classes == 2 else "many_classes")
    found = {}
    for group in ("3 hospitals", "12 hospitals"):
        rows = []
        for model in [f"{name}, {how}" for name in LINES for how in ("alone", "FedAvg", "FedAvg, fine-tuned")]:
            cells, gains = [], []
            for epsilon in ("1", "3", "8", "inf"):
                values = kept.get(f"{group}, {classes} classes | {model} | {epsilon}", {})
                enough = len(values) >= LEAST
                cells.append(format_interval([*values.values()]) if enough else "")
                if enough:
                    theirs = moments[f"{group} | {MOMENTS} | {epsilon}"]
                    gain = format_change({split: theirs[split] for split in values}, dict(values))
                    gains.append(f"{epsilon.replace('inf', '∞')}: {gain}")
            if gains:
                rows.append([model, *cells, "; ".join(gains)])
        heads = ["network", "ε = 1", "ε = 3", "ε = 8", "ε = ∞", "gain of moments (firmer) over it, by ε"]
        found[f"networks-{group.replace(' ', '-')}"] = make_table(heads, rows)
    return found


def tried() -> Iterator[tuple[str, Line, float | None]]:
    """Settings that were tried: name, line, epsilon."""
    small, larger = PIXELS.model, Cnn(widths=(8, 16, 32), norm="group")
    for lr in (3e-3, 1e-2, 3e-2):
        for clip in (1.0, 5.0):
            private, protection = replace(PIXELS.private, lr=lr), replace(PIXELS.protection, clip=clip)
            line = replace(PIXELS, private=private, protection=protection)
            yield f"CNN, private, lr {lr}, clip {clip}", line, 3.0
    for lr in (1e-3, 3e-3, 1e-2):
        for model in (small, larger):
            plain = replace(PIXELS.plain, lr=lr)
            yield f"CNN {model.widths}, plain, lr {lr}", replace(PIXELS, model=model, plain=plain), None
    for q in (0.25, 1.0):
        for optimizer, lr in (("adam", 1e-2), ("adam", 3e-2), ("sgd", 0.5), ("sgd", 2.0)):
            private = replace(FEATURES.private, optimizer=optimizer, lr=lr)
            line = replace(FEATURES, private=private, protection=replace(FEATURES.protection, sampling=q))
            yield f"features, private, {optimizer} {lr}, q {q}", line, 3.0
    adams = [("adam", lr, 24) for lr in (1e-3, 3e-3, 1e-2)]
    for optimizer, lr, batch in (*adams, ("sgd", 0.5, 256), ("sgd", 2.0, 256)):
        plain = Work(optimizer=optimizer, lr=lr, batch=batch)
        yield f"features, plain, {optimizer} {lr}, batch {batch}", replace(FEATURES, plain=plain), None


def choose(given: Pictures) -> None:
    """Print what each setting gives on splits 100 and 101, two classes: alone, FedAvg (and fine-tuned), of 3 hospitals;
    of features with 12 hospitals too.
    """
    for name, line, epsilon in tried():
        cells = []
        for parts in (1,) if line.pixels else (1, 4):
            runs = [dict_of(lines_of(split, parts, 2, given, {name: line}, (epsilon,))) for split in (100, 101)]
            cells += [f"{np.mean([run[key] for run in runs]):.3f}" for key in runs[0]]
        print(f"{name}: {', '.join(cells)}", flush=True)


def dict_of(lines: Iterator[tuple[str, float | None, float]]) -> dict[str, float]:
    return {label: value for label, _, value in lines}


def completed(options: argparse.Namespace, given: Pictures) -> dict[str, dict[str, float]]:
    """`group | line | epsilon` -> split -> value, as `collect_splits`; what is kept already is not run again."""
    torch.set_num_threads(1)
    kept: dict[str, dict[str, float]] = read_measured(options.out)
    splits = range(options.first, options.first + options.splits)
    for classes, (name, line), epsilon, split, parts in product((2, 7), LINES.items(), EPSILONS, splits, (1, 4)):
        group, said = f"{3 * parts} hospitals, {classes} classes", say_epsilon(epsilon)
        if str(split) in kept.get(f"{group} | {name}, FedAvg | {said}", {}):
            continue
        for label, _, value in lines_of(split, parts, classes, given, {name: line}, (epsilon,)):
            kept.setdefault(f"{group} | {label} | {said}", {})[str(split)] = round(value, 5)
        write_measured(options.out, kept, sort=True)
        print(group, name, said, split, flush=True)
    return kept


def main() -> None:
    if sys.argv[1:] == ["--choose"]:
        choose(pictures())
        return
    completed(ask_splits(__doc__, "cnn_lines", splits=5), pictures())


if __name__ == "__main__":
    main()
