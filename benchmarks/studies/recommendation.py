"""How good recommendations are: hospitals of HAM10000, rules that choose a model by validation patients.

    CONSILIUM_DATA=... python -m benchmarks.studies.recommendation [--splits 20]

Every figure is kept in measured/recommendation.json;
`python -m benchmarks.tables.derived --write recommendation` writes the tables.

Features, hospitals and lesions as in one_message.py, but 60 % of a hospital's lesions train, 15 % validate,
25 % test. A model is tested on the test pictures of all hospitals dealt out of the same source, which nobody trained
on: four times as many as its own where there are twelve hospitals. Hospitals with fewer than 15 test pictures of a
class there are left out. No privacy. Splits 0 to 19 are reported; the rule was chosen on splits 100 to 115.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.shared.intervals import format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import make_table, read_measured, write_measured
from benchmarks.shared.skin import column, cut_lesions, deal_hospitals
from benchmarks.studies import one_message
from benchmarks.studies.one_message import margins
from evaluation.recommendation import (
    COPIES,
    Measured,
    OtherGains,
    Validated,
    mean_auc,
    measure_gains,
    recommend_model,
    sum_other_gains,
)
from federation.alone import Alone, fit_machine
from federation.models.mlp import Mlp
from federation.task import Task

SCALE = {"components": 90, "softness": 1.0}
OWN = ("local_ridge", "local_svm")
OTHERS = ("fedavg", "fedavg, fine-tuned", "moments", "moments, Fourier")
SETTINGS = {"twelve": (4, None), "three": (1, None), "sixty": (4, 60)}
"""Table -> how many hospitals each source is dealt out to, and how many of a hospital's lesions train at most."""
Log: TypeAlias = Callable[[np.ndarray], np.ndarray]


class Case(NamedTuple):
    """One hospital on one split: gains measured at home; AUC on test pictures, loss and AUC on validation pictures by
    model; the model that a nested bootstrap chooses.
    """

    at_home: Measured
    test: Mapping[str, float]
    auc: Mapping[str, float]
    loss: Mapping[str, float]
    nested: str


def descended(w: np.ndarray, x: np.ndarray, y: np.ndarray, steps: int, lr: float) -> np.ndarray:
    """Logistic regression by full-batch gradient descent."""
    for _ in range(steps):
        w = w - lr * (x.T @ (1 / (1 + np.exp(-(x @ w))) - y) / len(y) + 1e-3 * w)
    return w


def averaged(x: np.ndarray, y: np.ndarray, train: Mapping[str, np.ndarray]) -> np.ndarray:
    """FedAvg of a linear head: 15 rounds of 10 steps."""
    w, whole = np.zeros(x.shape[1]), sum(map(len, train.values()))
    for _ in range(15):
        w = sum(len(rows) / whole * descended(w, x[rows], y[rows], 10, 0.5) for rows in train.values())
    return w


def networks(scaled: np.ndarray, found: Mapping[str, torch.nn.Module], name: str) -> Log:
    return lambda rows: margins(found[name], scaled[rows]).astype(float)


def alone(label: str, x: np.ndarray, y: np.ndarray, patient: np.ndarray, rows: np.ndarray) -> torch.nn.Module:
    module = Alone(name=label).network(Task(Mlp(), (x.shape[1],), 2))
    part = (torch.from_numpy(one[rows]) for one in (x, y, patient))
    fit_machine(module, *part, 2)
    return module


def nested(v: Validated, at_home: Measured, seed: int) -> str:
    """The best on validation patients if choosing so helps: chosen on drawn patients, scored on the others."""
    known, number = np.unique(v.patient, return_inverse=True)
    drawn = np.random.default_rng(seed).multinomial(len(known), np.full(len(known), 1 / len(known)), COPIES).T[number]
    labels = list(v.probabilities)
    inside = np.stack([mean_auc(v.y, v.probabilities[one], drawn.astype(float)) for one in labels])
    beside = np.stack([mean_auc(v.y, v.probabilities[one], (drawn == 0).astype(float)) for one in labels])
    good = np.isfinite(inside).all(axis=0) & np.isfinite(beside).all(axis=0)
    own = [k for k, one in enumerate(labels) if one in OWN]
    best, ours = inside.argmax(axis=0), np.array(own)[inside[own].argmax(axis=0)]
    copies = np.arange(COPIES)[good]
    gain = (beside[best[good], copies] - beside[ours[good], copies]).mean() if good.any() else -1.0
    whole = [float(mean_auc(v.y, v.probabilities[one], np.ones((len(v.y), 1)))[0]) for one in labels]
    return labels[int(np.argmax(whole))] if gain > 0 else at_home.own


def cases(split: int, parts: int, most: int | None, data: tuple) -> list[Case]:
    """All hospitals of one split."""
    found, public, lines = data
    y, lesion = column(lines, "label"), column(lines, "patient")
    patient = np.unique(lesion, return_inverse=True)[1]
    site = deal_hospitals(lines, parts, split)
    source, place = np.array([name.rpartition("_")[0] for name in site]), cut_lesions(site, lesion, split, rest=0.75)
    train = {name: np.flatnonzero((site == name) & (place == 0)) for name in np.unique(site)}
    if most is not None:
        random = np.random.default_rng(split)
        kept = {name: random.permutation(np.unique(patient[rows]))[:most] for name, rows in train.items()}
        train = {name: rows[np.isin(patient[rows], kept[name])] for name, rows in train.items()}
    x = one_message.scaled(found, public, SCALE).astype(np.float32)
    with_one = np.concatenate([x, np.ones((len(x), 1))], axis=1).astype(np.float64)
    linear, kernel = (one_message.scaled(found, public, how) for how in (one_message.LINEAR, one_message.KERNEL))
    w = averaged(with_one, y, train)
    by_moments = one_message.models(linear, y, lesion, train, None)(one_message.TOGETHER)
    by_kernel = one_message.models(kernel, y, lesion, train, None)(one_message.FIRMER)
    out = []
    for name, rows in train.items():
        checked = np.flatnonzero((site == name) & (place == 1))
        tested = np.flatnonzero((source == name.rpartition("_")[0]) & (place == 2))
        if min(np.bincount(y[tested], minlength=2)) < 15 or len(np.unique(y[rows])) < 2:
            continue
        tuned = descended(w, with_one[rows], y[rows], 40, 0.3)
        scores: dict[str, Log] = {
            **{one: networks(x, {name: alone(one, x, y, patient, rows)}, name) for one in OWN},
            "fedavg": lambda of: with_one[of] @ w,
            "fedavg, fine-tuned": lambda of, tuned=tuned: with_one[of] @ tuned,
            "moments": networks(linear, by_moments, name),
            "moments, Fourier": networks(kernel, by_kernel, name),
        }
        p = {one: 1 / (1 + np.exp(-score(checked))) for one, score in scores.items()}
        validated = Validated(y[checked], patient[checked], {one: np.stack([1 - q, q], 1) for one, q in p.items()})
        at_home, both = measure_gains(validated, OWN, seed=split), len(np.unique(y[checked])) == 2
        out.append(
            Case(
                at_home,
                {one: float(roc_auc_score(y[tested], score(tested))) for one, score in scores.items()},
                {one: float(roc_auc_score(y[checked], q)) if both else math.nan for one, q in p.items()},
                {one: float(log_loss(y[checked], q, labels=[0, 1])) for one, q in p.items()},
                nested(validated, at_home, split) if both else at_home.own,
            )
        )
    return out


def judged(split: list[Case]) -> list[dict[str, object]]:
    """For each hospital of a split: rule -> (gain on test pictures, whether it left its own model)."""
    found = []
    for one in split:
        told = {str(number): other.at_home.gains for number, other in enumerate(split) if other is not one}
        loud = recommend_model("", one.at_home, sum_other_gains(told, [""])[""])
        silent = recommend_model("", one.at_home, OtherGains())
        own = one.at_home.own
        picks = {
            "always its own": own,
            **{f"always {label}": label for label in OTHERS},
            "highest validation AUC": max(one.auc, key=lambda label: np.nan_to_num(one.auc[label])),
            "lowest validation loss": min(one.loss, key=one.loss.__getitem__),
            "nested bootstrap": one.nested,
            "recommended, without others' gains": silent.method,
            "recommended": loud.method,
            "the best on test pictures": max(one.test, key=one.test.__getitem__),
        }
        gains = {rule: [round(one.test[label] - one.test[own], 5), label != own] for rule, label in picks.items()}
        truth = one.test[loud.best] - one.test[own]
        lucky = max(one.auc, key=lambda label: np.nan_to_num(one.auc[label]))
        held = loud.low <= truth <= loud.high
        claim = [round(loud.gain, 5), round(truth, 5), held, round(one.auc[lucky] - one.auc[own], 5)]
        found.append({"rules": gains, "claim": claim, "patients": one.at_home.patients, "rarest": one.at_home.rarest})
    return found


def table(splits: Mapping[str, list[dict]]) -> dict[str, object]:
    every = [one for split in splits.values() for one in split]
    rows = []
    for rule in every[0]["rules"]:
        gains = np.array([one["rules"][rule][0] for one in every])
        left = np.mean([one["rules"][rule][1] for one in every])
        means = [float(np.mean([one["rules"][rule][0] for one in split])) for split in splits.values()]
        cells = [f"{100 * left:.0f} %", format_interval(means, sign="+"), f"{100 * np.mean(gains >= -0.01):.1f} %"]
        rows.append([rule, *cells, f"{np.quantile(gains, 0.05):+.3f}"])
    columns = ["rule", "leaves its own", "gain in test AUC", "not worse by more than .01", "worst 5 % below"]
    return make_table(columns, rows)


def claims(kept: Mapping[str, Mapping[str, list[dict]]]) -> dict[str, object]:
    rows = []
    for name, splits in kept.items():
        every = [one for split in splits.values() for one in split]
        said = np.array([[float(value) for value in one["claim"]] for one in every])
        counts = [str(int(np.median([one[key] for one in every]))) for key in ("patients", "rarest")]
        rows.append([name, str(len(every)), *counts, f"{np.nanmean(said[:, 3]):+.3f}", f"{said[:, 0].mean():+.3f}",
                     f"{said[:, 1].mean():+.3f}", f"{100 * said[:, 2].mean():.0f} %"])  # fmt: skip
    columns = ["hospitals", "cases", "validation lesions", "of the rarer class", "validation gain of the winner",
               "expected gain of the best other", "its true gain", "interval holds it"]  # fmt: skip
    return make_table(columns, rows)


def collect_cases(options: argparse.Namespace, measure: Callable[[int, int, int | None], object]) -> None:
    """Measure each split and setting that is not yet kept. measure: (split, parts, most lesions) -> what is kept."""
    torch.set_num_threads(1)
    kept = read_measured(options.out)
    for split in range(options.first, options.first + options.splits):
        for name, (parts, most) in SETTINGS.items():
            if str(split) not in kept.setdefault(name, {}):
                kept[name][str(split)] = measure(split, parts, most)
        write_measured(options.out, kept, indent=None)
        print(split, "done", flush=True)


def main() -> None:
    options = ask_splits(__doc__, "recommendation", splits=20)
    data = one_message.computed()
    collect_cases(options, lambda split, parts, most: judged(cases(split, parts, most, data)))


if __name__ == "__main__":
    main()
