"""What features of EfficientNet-Lite0 are worth on real pictures: HAM10000, alone and in a federation, private and not.

    CONSILIUM_DATA=... python -m benchmarks.studies.lite0 [--splits 5] [--groups '3 hospitals']

Every figure is kept in benchmarks/measured/lite0.json; `python -m benchmarks.tables.derived --write encoder` writes the
tables.

Pictures, hospitals, splits by lesion, private heads and guarantees are those of benchmarks/studies/one_message.py, with
three hospitals, and with twelve, by two classes and by the seven diagnoses. The features are `colour`, `lite0` and both
joined, scaled by the drawn pictures of the prior `skin_lesion`; for two floors also by each hospital's own training
pictures. Splits 0 to 4 are reported. Components and softness of the scale were chosen among `CHOICES`, by floors and
moments of three hospitals with two classes on splits 100 and 101 (`--first 100 --splits 2` prints them); nothing else
was tried, and nothing for the seven diagnoses, whose measure and hospitals are those of
benchmarks/studies/many_classes.py. `dp_head` takes much longer, and is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.places import ROOT
from benchmarks.shared.records import collect_splits, make_table
from benchmarks.shared.rounds import run_rounds
from benchmarks.shared.skin import Line, Split, number_lesions, open_picture, read_lines, split_hospitals
from benchmarks.studies.many_classes import CLASSES, judged, macro
from benchmarks.studies.one_message import (
    ALONE,
    CACHE,
    PICTURES,
    SIDE,
    TOGETHER,
    computed,
    models,
    scaled,
)
from federation.alone import Alone, fit_machine
from federation.descent import Site, Work
from federation.features.lite0 import Lite0, load_lite0
from federation.features.lite0_file import read_lite0_weights
from federation.fedavg import FedAvg
from federation.local import Local
from federation.models.mlp import Mlp
from federation.rehearsal import initial_parameters
from federation.task import Task
from harmonize.prior import PRIORS, draw_pictures
from personalize.fenda import Fenda
from privacy.dp.access import Rows, open_access

FEATURES = ("colour", "lite0", "colour and lite0")
FLOORS = {"ridge alone": Alone(name="local_ridge"), "SVM alone": Alone(name="local_svm")}
NETWORKS = {"network alone": Local(), "network, FedAvg": FedAvg(), "network, FENDA": Fenda()}
WORK, ROUNDS, HIDDEN = Work(optimizer="adam", lr=1e-3, batch=32, epochs=1), 20, (32,)
CHOICES = (
    (24, 1.0),
    (64, 1.0),
    *((components, softness) for components in (256, 600) for softness in (1.0, 10.0, 100.0)),
)
"""Components and softness of the scale; those of lines without privacy, and of those with it:"""
PLAIN = {"colour": (90, 1.0), "lite0": (600, 100.0), "colour and lite0": (600, 100.0)}
PRIVATE = {"colour": (24, 1.0), "lite0": (64, 1.0), "colour and lite0": (64, 1.0)}
AT_HOME = "{}, scaled at home, {}"
STRENGTHS = np.logspace(0, 6, 13)
EPSILONS = (1.0, 3.0, 8.0, None)
FIRST_TRIAL = 100
GROUPS = {
    "3 hospitals": (1, 2),
    "12 hospitals": (4, 2),
    "3 hospitals of 7 classes": (1, 7),
    "12 hospitals of 7 classes": (4, 7),
}
"""Name -> into how many hospitals each of the three archives is dealt, and the number of classes."""
COMMAND = "CONSILIUM_DATA=… python -m benchmarks.studies.lite0"
Networks = Mapping[str, torch.nn.Module]
Scale = tuple[int, float]


def compute_features() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Features of all pictures, and of the prior's; kept in build/."""
    colour, public_colour, _ = computed()
    source = (ROOT / "federation/features/lite0.py").read_bytes()
    kept = CACHE / f"lite0-{hashlib.sha256(source).hexdigest()[:16]}.npz"
    if not kept.exists():
        extractor = load_lite0(Lite0(), read_lite0_weights())
        drawn = draw_pictures(PRIORS["skin_lesion"], torch.arange(PICTURES) % 2, (3, SIDE, SIDE), 0).double().numpy()
        real = (np.asarray(open_picture(line)).transpose(2, 0, 1) / 127.5 - 1 for line in read_lines())
        found = np.concatenate([extractor.extract(picture[None]) for picture in real])
        np.savez(kept, found=found, public=np.concatenate([extractor.extract(picture[None]) for picture in drawn]))
    with np.load(kept) as arrays:
        lite0, public_lite0 = arrays["found"], arrays["public"]
    joined, public_joined = np.concatenate([colour, lite0], 1), np.concatenate([public_colour, public_lite0], 1)
    return dict(zip(FEATURES, (colour, lite0, joined), strict=True)), dict(
        zip(FEATURES, (public_colour, public_lite0, public_joined), strict=True)
    )


def rows_of(x: np.ndarray, split: Split, name: str) -> Rows:
    """A hospital's training rows."""
    rows = split.train[name]
    return Rows(torch.from_numpy(x[rows]).float(), torch.from_numpy(split.y[rows]), number_lesions(split.lesion[rows]))


class Question(NamedTuple):
    """A split with the classes that are asked for. assessed: hospital -> classes whose AUC counts there."""

    split: Split
    classes: int
    assessed: Mapping[str, Sequence[int]]

    def mean_auc(self, scores: Callable[[str], np.ndarray]) -> float:
        """Mean over hospitals of the mean AUC of their classes. scores: hospital -> (n, classes) of its test rows."""
        rows = {name: self.split.test[name] for name in self.assessed}
        return float(np.mean([macro(self.split.y[of], scores(name), self.assessed[name]) for name, of in rows.items()]))


def pose_question(number: int, parts: int, classes: int) -> Question:
    """A split by two classes, with hospitals of 20 pictures and 5 lesions of each, or by diagnosis."""
    lines: list[Line] = read_lines()
    split = split_hospitals(lines, parts, number)
    if classes == 2:
        return Question(split, 2, dict.fromkeys(split.judged, (1,)))
    split = split._replace(y=np.array([CLASSES.index(line["dx"]) for line in lines]))
    assessed = {name: judged(split.y[rows], split.lesion[rows]) for name, rows in split.test.items()}
    return Question(split, classes, {name: own for name, own in assessed.items() if len(own) >= 3})


def class_scores(network: torch.nn.Module, x: np.ndarray) -> np.ndarray:
    """(n, classes) Logarithms of probabilities."""
    logits = network(torch.from_numpy(x).float()).logits.detach().double()
    return logits.log_softmax(dim=1).numpy()


def fit_floor(floor: Alone, x: np.ndarray, question: Question) -> Networks:
    """The machine of each hospital whose classes count."""
    networks = {}
    for name in question.assessed:
        module = floor.network(Task(Mlp(hidden=()), (x.shape[1],), question.classes))
        rows = rows_of(x, question.split, name)
        fit_machine(module, rows.x, rows.y, rows.patient, question.classes)
        networks[name] = module.eval()
    return networks


def train_network(method: Local | FedAvg | Fenda, x: np.ndarray, question: Question) -> Networks:
    """Each hospital's network with one hidden layer on the features."""
    task, split = Task(Mlp(hidden=HIDDEN), (x.shape[1],), question.classes), question.split
    sites = {
        name: Site(name, task, WORK, open_access({"train": rows_of(x, split, name)}, batch=WORK.batch, seed=0))
        for name in split.train
    }
    initial = initial_parameters(method, task, seed=0)
    trained = run_rounds(method, task, lambda name, _: sites[name], sites, run="lite0", rounds=ROUNDS, initial=initial)
    return trained.networks()


def lines_of(
    number: int,
    parts: int,
    classes: int,
    real: Mapping[str, np.ndarray],
    public: Mapping[str, np.ndarray],
    *,
    plain: Mapping[str, Scale] = PLAIN,
    private: Mapping[str, Scale] = PRIVATE,
    with_networks: bool = True,
) -> Iterator[tuple[str, float | None, float]]:
    """(line of the table, epsilon, mean AUC) on one split."""
    question = pose_question(number, parts, classes)
    split = question.split

    def mean_auc(x: np.ndarray, networks: Networks) -> float:
        return question.mean_auc(lambda name: class_scores(networks[name], x[split.test[name]]))

    def scale(features: str, how: Scale) -> np.ndarray:
        components, softness = how
        count = min(components, real[features].shape[1])
        return scaled(real[features], public[features], {"components": count, "softness": softness})

    for features in FEATURES:
        x = scale(features, plain[features])
        for label, floor in FLOORS.items():
            yield f"{features}, {label}", None, mean_auc(x, fit_floor(floor, x, question))
        for label, value in score_at_home(real[features], question).items() if with_networks else ():
            yield AT_HOME.format(features, label), None, value
        for label, method in NETWORKS.items() if with_networks else ():
            yield f"{features}, {label}", None, mean_auc(x, train_network(method, x, question))
        for epsilon in EPSILONS:
            x = scale(features, (plain if epsilon is None else private)[features])
            solve = models(x, split.y, split.lesion, split.train, epsilon)
            yield f"{features}, moments alone", epsilon, mean_auc(x, solve(ALONE))
            yield f"{features}, moments together", epsilon, mean_auc(x, solve(TOGETHER))


def score_at_home(x: np.ndarray, question: Question) -> dict[str, float]:
    """Mean AUC of two machines of scikit-learn on features that each hospital standardizes by its own, one class
    against the rest.
    """
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    split = question.split

    def decide(machine: RidgeClassifierCV | SVC, name: str) -> np.ndarray:
        train, test = split.train[name], split.test[name]
        decisions = np.zeros((len(test), question.classes))
        for c in question.assessed[name]:
            fitted = make_pipeline(StandardScaler(), machine).fit(x[train], split.y[train] == c)
            decisions[:, c] = fitted.decision_function(x[test])
        return decisions

    machines = {"ridge alone": RidgeClassifierCV(alphas=STRENGTHS), "SVM alone": SVC(C=1.0)}
    return {label: question.mean_auc(partial(decide, machine)) for label, machine in machines.items()}


def try_components(splits: range, real: Mapping[str, np.ndarray], public: Mapping[str, np.ndarray]) -> None:
    """Print each line's mean AUC for each scale."""
    torch.set_num_threads(1)
    for how in CHOICES:
        scales = dict.fromkeys(FEATURES, how)
        values: dict[tuple[str, float | None], list[float]] = {}
        for number in splits:
            lines = lines_of(number, 1, 2, real, public, plain=scales, private=scales, with_networks=False)
            for label, epsilon, value in lines:
                values.setdefault((label, epsilon), []).append(value)
        for (label, epsilon), each in values.items():
            print(how, f"{label}, ε {epsilon}: {np.mean(each):.4f}", flush=True)


def tables(kept: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, object]]:
    """For each number of hospitals the AUC of each line, and what it is more than each hospital's own SVM on colour."""
    made = {}
    for group in dict.fromkeys(name.split(" | ")[0] for name in kept):
        mine = {tuple(name.split(" | ")[1:]): values for name, values in kept.items() if name.startswith(f"{group} |")}
        base, rows = mine["colour, SVM alone", "inf"], []
        order = [f"{features}, " for features in FEATURES]
        for label in sorted({label for label, _ in mine}, key=lambda label: _place(label, order)):
            by_epsilon = {
                epsilon: mine[label, epsilon] for epsilon in ("1", "3", "8", "inf") if (label, epsilon) in mine
            }
            cells = [
                format_interval([*by_epsilon[epsilon].values()]) if epsilon in by_epsilon else ""
                for epsilon in ("1", "3", "8", "inf")
            ]
            gains = [f"{'∞' if e == 'inf' else e}: {format_change(v, base)}" for e, v in by_epsilon.items()]
            rows.append([label, *cells, "; ".join(gains)])
        columns = ["features and model", "ε = 1", "ε = 3", "ε = 8", "ε = ∞", "more than an SVM on colour alone, by ε"]
        made[group.replace(" ", "-")] = make_table(columns, rows, COMMAND)
    return made


def _place(label: str, order: Sequence[str]) -> tuple[int, str]:
    """A line's place in the table: by features, then by name."""
    return max(place for place, start in enumerate(order) if label.startswith(start)), label


def main() -> None:
    options = ask_splits(__doc__, "lite0", splits=5, groups=[*GROUPS])
    real, public = compute_features()
    if options.first >= FIRST_TRIAL:
        try_components(range(options.first, options.first + options.splits), real, public)
        return
    lines = partial(lines_of, real=real, public=public)
    groups = {name: partial(lines, parts=parts, classes=classes) for name, (parts, classes) in GROUPS.items()}
    collect_splits(options, {name: groups[name] for name in options.groups or GROUPS})


if __name__ == "__main__":
    main()
