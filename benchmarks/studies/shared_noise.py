"""What noise that hospitals share is worth on real pictures: HAM10000 dealt out to 12, 24 and 48 hospitals.

    CONSILIUM_DATA=... python -m benchmarks.studies.shared_noise [--splits 5]

Every figure is kept in benchmarks/measured/shared_noise.json;
`python -m benchmarks.tables.derived --write shared-noise` writes the tables.

Two archives are dealt out to hospitals by lesion. The third archive's pictures are public here: their labels are not
used, and they scale the features (`colour` and `lite0` joined). A lesion is a patient; splits by lesion as in
benchmarks/studies/one_message.py. `fedsgd` learns a linear head in 60 steps on everybody's patients, each patient's
gradient clipped to norm 1; (epsilon, 1e-5), add or remove. `own`: each hospital adds all of the noise, so that its
guarantee depends on nobody. `shared`: each adds the part by which all hospitals but one hide a patient in the sum.
`with the SVM`: the mean of two standardized scores, that of the common head and that of the hospital's own SVM on both
features, which stays at home; a rule, not a choice. Floors are each hospital's own: SVM on colour, SVM and ridge on
both features, standardized at home. The best of the three on a split is what gains are over, which favours the floors.
AUC: of all pairs of a malignant and a benign test picture of one hospital the share that is ordered right, over all
hospitals; most of them are too small to be judged alone.

Splits 0 to 4 are reported. Components, learning rate and number of steps were chosen among `CHOICES` by the mean over
`shared` lines at 12 hospitals on splits 100 and 101 (`--first 100 --splits 2` prints them); clip 1 was not tuned.

A step is computed for all patients at once. Before the first split the same steps without noise are taken by the
project's own private data access, and must lead to the same head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from dp_accounting import get_sigma_gaussian
from sklearn.linear_model import RidgeClassifierCV
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.rounds import run_rounds
from benchmarks.shared.skin import Line, Split, merge_archives, number_lesions, read_lines, split_hospitals
from benchmarks.studies.lite0 import FIRST_TRIAL, STRENGTHS, compute_features
from benchmarks.studies.one_message import DELTA, margins, scaled
from federation.descent import Site, Work
from federation.fedsgd import FedSGD
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters
from federation.task import Task
from privacy.dp.access import Rows
from privacy.dp.accounting import compute_cost
from privacy.dp.events import SelfComposed, SharedGaussian
from privacy.dp.private_access import open_private
from privacy.dp.protection import Protection

PUBLIC = "vidir_molemax"
PARTS = {12: 6, 24: 12, 48: 24}
"""Hospitals -> into how many each of two archives is dealt."""
EPSILONS = (1.0, 3.0)
CLIP, COLLUDING, FOLDS, DECISION = 1.0, 1, 4, "decision_function"
COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.shared_noise"


class Settings(NamedTuple):
    """components, softness: of the scale. lr, rounds: of `fedsgd`."""

    components: int
    softness: float
    lr: float
    rounds: int


CHOICES = tuple(
    Settings(components, softness, lr, rounds)
    for components, softness in ((64, 1.0), (110, 1.0), (110, 10.0), (200, 10.0))
    for lr in (1.0, 2.0, 4.0)
    for rounds in (30, 60)
)
CHOSEN = Settings(64, 1.0, 2.0, 60)


class Cohort(NamedTuple):
    """One hospital's training lesions. x: (n, d). y: (n,) 0 or 1. lesion: (n,) numbers from 0."""

    x: np.ndarray
    y: np.ndarray
    lesion: np.ndarray


def sum_gradients(weight: np.ndarray, bias: np.ndarray, cohort: Cohort) -> np.ndarray:
    """(2, d + 1) The sum of lesions' gradients of the cross entropy, each the mean over its pictures, clipped."""
    logits = cohort.x @ weight.T + bias
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    residual = share / share.sum(axis=1, keepdims=True) - np.eye(2)[cohort.y]
    wide = np.concatenate([cohort.x, np.ones((len(cohort.x), 1))], axis=1)
    per_picture = residual[:, :, None] * wide[:, None, :]
    count = np.bincount(cohort.lesion)
    per_lesion = np.zeros((len(count), *per_picture.shape[1:]))
    np.add.at(per_lesion, cohort.lesion, per_picture)
    per_lesion /= count[:, None, None]
    norm = np.sqrt((per_lesion**2).sum(axis=(1, 2), keepdims=True))
    return (per_lesion / np.maximum(1.0, norm / CLIP)).sum(axis=0)


def descend(cohorts: Mapping[str, Cohort], how: Settings, part: float, random: np.random.Generator) -> np.ndarray:
    """(2, d + 1) The head and its bias: the mean of iterates, as `fedsgd` takes it. part: noise of each hospital."""
    width = next(iter(cohorts.values())).x.shape[1] + 1
    patients = sum(int(cohort.lesion.max()) + 1 for cohort in cohorts.values())
    head, mean = np.zeros((2, width)), np.zeros((2, width))
    for t in range(1, how.rounds + 1):
        total = sum(sum_gradients(head[:, :-1], head[:, -1], cohort) for cohort in cohorts.values())
        noise = random.normal(size=head.shape) * part * CLIP * math.sqrt(len(cohorts))
        head = head - how.lr * (total + noise) / patients
        mean = mean + 2 / (t + 1) * (head - mean)
    return mean


def check_steps(cohorts: Mapping[str, Cohort], how: Settings) -> None:
    """Check these steps, without noise, against private data access and the method of the project.

    Raises:
        AssertionError: they lead elsewhere.
    """
    width = next(iter(cohorts.values())).x.shape[1]
    task, method = Task(Mlp(hidden=()), (width,), 2), FedSGD(rounds=3, lr=how.lr)
    sites = {}
    for name, cohort in cohorts.items():
        rows = Rows(torch.from_numpy(cohort.x).float(), torch.from_numpy(cohort.y), torch.from_numpy(cohort.lesion))
        sites[name] = Site(name, task, Work(), open_private({"train": rows}, Protection(noise=0.0, clip=CLIP)))
    initial = initial_parameters(method, task, seed=0)
    trained = run_rounds(method, task, lambda name, _: sites[name], sites, run="check", rounds=3, initial=initial)
    network = trained.network(next(iter(sites)))
    head = descend(cohorts, how._replace(rounds=3), 0.0, np.random.default_rng(0))
    x = next(iter(cohorts.values())).x
    difference = np.abs(margins(network, x) - x @ (head[1] - head[0])[:-1] - (head[1] - head[0])[-1]).max()
    assert difference < 1e-4, f"the steps of this script differ by {difference}"  # noqa: S101


def part_of(epsilon: float | None, rounds: int, hospitals: int, *, shared: bool) -> float:
    """The noise multiplier of one hospital in one step."""
    if epsilon is None:
        return 0.0
    sigma = float(get_sigma_gaussian(epsilon, DELTA)) * math.sqrt(rounds)
    return sigma / math.sqrt(hospitals - COLLUDING) if shared else sigma


def lines_of(
    number: int, hospitals: int, real: Mapping[str, np.ndarray], *, how: Settings = CHOSEN, only_shared: bool = False
) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, AUC) on one split."""
    lines: list[Line] = read_lines()
    is_public = merge_archives(lines) == PUBLIC
    private_lines = [line for line, public in zip(lines, is_public, strict=True) if not public]
    split = split_hospitals(private_lines, PARTS[hospitals], number)
    both = real["colour and lite0"]
    x = scaled(both[~is_public], both[is_public], {"components": how.components, "softness": how.softness})
    cohorts = {
        name: Cohort(x[rows], split.y[rows], number_lesions(split.lesion[rows]).numpy())
        for name, rows in split.train.items()
    }
    if number == 0:
        check_steps(cohorts, how)
    svm = {} if only_shared else dict(score_floors(split, real, is_public))
    for label, scores in svm.items():
        yield f"{label}, at home", None, within_auc(split, {name: test for name, (_, test) in scores.items()})
    for epsilon in (*EPSILONS, *([] if only_shared else [None])):
        for label, shared in {"shared": True, "own": False}.items():
            if (epsilon is None or only_shared) and not shared:
                continue
            random = np.random.default_rng([number, hospitals, int(shared), int(10 * (epsilon or 0))])
            head = descend(cohorts, how, part_of(epsilon, how.rounds, hospitals, shared=shared), random)
            slope, offset = (head[1] - head[0])[:-1], (head[1] - head[0])[-1]
            scores = {name: x[split.test[name]] @ slope + offset for name in list_scored(split)}
            title = "fedsgd" if epsilon is None else f"fedsgd, {label} noise"
            yield title, epsilon, within_auc(split, scores)
            if not only_shared:
                home = svm["SVM, colour and lite0"]
                mixed = {
                    name: standardize(scores[name], x[split.train[name]] @ slope + offset)
                    + standardize(home[name][1], home[name][0])
                    for name in list_scored(split)
                }
                yield f"{title}, with the SVM", epsilon, within_auc(split, mixed)


def standardize(scores: np.ndarray, training: np.ndarray) -> np.ndarray:
    """Scores by the mean and deviation of those of training pictures."""
    return (scores - training.mean()) / max(float(training.std()), 1e-12)


def score_floors(
    split: Split, real: Mapping[str, np.ndarray], is_public: np.ndarray
) -> Iterator[tuple[str, dict[str, tuple[np.ndarray, np.ndarray]]]]:
    """Floor -> hospital -> its scores of training and test pictures; those of training pictures are by four folds,
    where each class has as many lesions. A hospital with one class in training has no opinion.
    """
    machines = {
        "SVM, colour": ("colour", SVC(C=1.0)),
        "SVM, colour and lite0": ("colour and lite0", SVC(C=1.0)),
        "ridge, colour and lite0": ("colour and lite0", RidgeClassifierCV(alphas=STRENGTHS)),
    }
    for label, (features, machine) in machines.items():
        x, scores = real[features][~is_public], {}
        for name in list_scored(split):
            train, test = split.train[name], split.test[name]
            lesions = [len(np.unique(split.lesion[train][split.y[train] == label])) for label in (0, 1)]
            if min(lesions) == 0:
                scores[name] = np.zeros(len(train)), np.zeros(len(test))
                continue
            fitted = make_pipeline(StandardScaler(), machine).fit(x[train], split.y[train])
            training = fitted.decision_function(x[train])
            if min(lesions) >= FOLDS:
                folds = StratifiedGroupKFold(FOLDS).split(x[train], split.y[train], split.lesion[train])
                training = cross_val_predict(
                    make_pipeline(StandardScaler(), machine), x[train], split.y[train], cv=folds, method=DECISION
                )
            scores[name] = training, fitted.decision_function(x[test])
        yield label, scores


def within_auc(split: Split, scores: Mapping[str, np.ndarray]) -> float:
    """Of all pairs of a malignant and a benign test picture of one hospital the share that is ordered right."""
    right, pairs = 0.0, 0
    for name, each in scores.items():
        y = split.y[split.test[name]]
        count = int(y.sum()) * int((1 - y).sum())
        right, pairs = right + count * float(roc_auc_score(y, each)), pairs + count
    return right / pairs


def list_scored(split: Split) -> list[str]:
    """The hospitals whose test pictures are of both classes."""
    return [name for name, rows in split.test.items() if len(set(split.y[rows])) == 2]


def try_choices(splits: range, real: Mapping[str, np.ndarray]) -> None:
    """Print the AUC of shared noise at 12 hospitals for each choice."""
    torch.set_num_threads(1)
    for how in CHOICES:
        values = [value for number in splits for _, _, value in lines_of(number, 12, real, how=how, only_shared=True)]
        print(tuple(how), f"{np.mean(values):.4f}", flush=True)


def epsilon_alone(label: str, epsilon: str, hospitals: int) -> str:
    """What a line costs if all other hospitals tell the coordinator their parts of the noise; empty without noise."""
    if "noise" not in label:
        return ""
    part = part_of(float(epsilon), CHOSEN.rounds, hospitals, shared="shared" in label)
    return f"{compute_cost([SelfComposed(SharedGaussian(part, hospitals), CHOSEN.rounds)], DELTA).epsilon:.2g}"


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """For each number of hospitals the AUC of each line, and what it is more than the best floor at home."""
    made = {}
    for hospitals in PARTS:
        mine = {
            tuple(name.split(" | ")[1:]): values
            for name, values in kept.items()
            if name.startswith(f"{hospitals} hospitals |")
        }
        if not mine:
            continue
        floors = [values for (label, _), values in mine.items() if label.endswith("at home")]
        best = {split: max(values[split] for values in floors) for split in floors[0]}
        rows = [["best floor at home", "", "", format_interval([*best.values()]), "", ""]]
        for (label, epsilon), values in sorted(mine.items(), key=lambda item: (item[0][1], item[0][0])):
            above = sum(values[split] > best[split] for split in values)
            change = format_change(values, best)
            cells = [format_interval([*values.values()]), change, f"{above} of {len(values)}"]
            rows.append([label, {"inf": "∞"}.get(epsilon, epsilon), epsilon_alone(label, epsilon, hospitals), *cells])
        columns = ["line", "ε", "ε if all others collude", "AUC", "minus the best floor", "splits above it"]
        made[f"hospitals-{hospitals}"] = make_table(columns, rows, COMMAND)
    return made


def main() -> None:
    options = ask_splits(__doc__, "shared_noise", splits=5)
    real, _ = compute_features()
    if options.first >= FIRST_TRIAL:
        try_choices(range(options.first, options.first + options.splits), real)
        return
    groups = {f"{hospitals} hospitals": partial(lines_of, hospitals=hospitals, real=real) for hospitals in PARTS}
    collect_splits(options, groups)


if __name__ == "__main__":
    main()
