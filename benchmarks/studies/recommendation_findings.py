"""How good recommendations of models of several findings are: hospitals of HAM10000, five diagnoses as findings.

    CONSILIUM_DATA=... python -m benchmarks.studies.recommendation_findings [--splits 8]

Every figure is kept in measured/recommendation_findings.json;
`python -m benchmarks.tables.derived --write recommendation_findings` writes the tables.

Each of five diagnoses is a finding, which a picture has or lacks; a tenth of the cells is made unknown at random. As in
recommendation.py: features, hospitals, lesions, shares of the splits, and which test pictures count. A finding counts
in a test where 15 pictures have it and 15 lack it. No privacy, and the rule as it is for one label: nothing was chosen
by these hospitals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from benchmarks.shared.options import ask_splits
from benchmarks.shared.skin import column, cut_lesions, deal_hospitals
from benchmarks.studies import one_message
from benchmarks.studies.recommendation import SCALE, averaged, collect_cases, descended
from evaluation.recommendation import (
    Measured,
    OtherGains,
    Validated,
    measure_gains,
    recommend_model,
    score_models,
    sum_other_gains,
)
from federation.alone import Alone, fit_machine
from federation.findings import UNKNOWN, encode_findings
from federation.models.mlp import Mlp
from federation.task import Task

FINDINGS = ("nv", "mel", "bkl", "bcc", "akiec")
OWN = ("local_ridge", "local_svm")
OTHERS = ("fedavg", "fedavg, fine-tuned", "fedavg, Fourier")
FEWEST = 15
Log: TypeAlias = Callable[[np.ndarray], np.ndarray]


class Case(NamedTuple):
    """One hospital on one split: gains measured at home; mean AUC on test pictures, loss and mean AUC on validation
    pictures by model.
    """

    at_home: Measured
    test: Mapping[str, float]
    auc: Mapping[str, float]
    loss: Mapping[str, float]


def averaged_findings(x: np.ndarray, states: np.ndarray, train: Mapping[str, np.ndarray]) -> np.ndarray:
    """FedAvg of a linear head (d, K): each finding from the pictures where it is known."""
    heads = []
    for column_of_finding in states.T:
        known = {name: rows[column_of_finding[rows] != UNKNOWN] for name, rows in train.items()}
        heads.append(averaged(x, column_of_finding, {name: rows for name, rows in known.items() if len(rows)}))
    return np.stack(heads, axis=1)


def tuned_findings(heads: np.ndarray, x: np.ndarray, states: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The heads (d, K), each trained on for 40 steps at one hospital."""
    tuned = []
    for k, column_of_finding in enumerate(states.T):
        known = rows[column_of_finding[rows] != UNKNOWN]
        tuned.append(descended(heads[:, k], x[known], column_of_finding[known], 40, 0.3))
    return np.stack(tuned, axis=1)


def learn_alone(label: str, x: np.ndarray, states: np.ndarray, patient: np.ndarray, rows: np.ndarray) -> Log:
    """One hospital's own ridge regression or SVM, one for each finding."""
    module = Alone(name=label).network(Task(Mlp(), (x.shape[1],), len(FINDINGS), "findings"))
    codes = encode_findings(torch.from_numpy(states[rows]))
    own, whose = torch.from_numpy(x[rows]), torch.from_numpy(patient[rows])
    fit_machine(module, own, codes, whose, len(FINDINGS), "findings")

    def compute_logits(chosen: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = module(torch.from_numpy(x[chosen])).logits.double().numpy()
        return logits

    return compute_logits


def mean_test_auc(states: np.ndarray, logits: np.ndarray) -> float:
    """Over the findings with `FEWEST` pictures on both sides; NaN without any."""
    each = [
        roc_auc_score(truth[truth != UNKNOWN], scores[truth != UNKNOWN])
        for truth, scores in zip(states.T, logits.T, strict=True)
        if min(np.bincount(truth[truth != UNKNOWN], minlength=2)) >= FEWEST
    ]
    return float(np.mean(each)) if each else math.nan


def known_loss(states: np.ndarray, logits: np.ndarray) -> float:
    """The mean binary cross-entropy over known findings."""
    known = states != UNKNOWN
    losses = np.logaddexp(0, logits) - logits * (states == 1)
    return float(losses[known].mean())


def cases(split: int, parts: int, most: int | None, data: tuple) -> list[Case]:
    """All hospitals of one split."""
    found, public, lines = data
    diagnosis, lesion = column(lines, "dx"), column(lines, "patient")
    states = np.stack([(diagnosis == name).astype(np.int64) for name in FINDINGS], axis=1)
    states[np.random.default_rng(500 + split).random(states.shape) < 0.1] = UNKNOWN
    patient = np.unique(lesion, return_inverse=True)[1]
    site = deal_hospitals(lines, parts, split)
    source, place = np.array([name.rpartition("_")[0] for name in site]), cut_lesions(site, lesion, split, rest=0.75)
    train = {name: np.flatnonzero((site == name) & (place == 0)) for name in np.unique(site)}
    if most is not None:
        random = np.random.default_rng(split)
        kept = {name: random.permutation(np.unique(patient[rows]))[:most] for name, rows in train.items()}
        train = {name: rows[np.isin(patient[rows], kept[name])] for name, rows in train.items()}
    x = one_message.scaled(found, public, SCALE).astype(np.float32)
    ones = np.ones((len(x), 1))
    with_one = np.concatenate([x, ones], axis=1).astype(np.float64)
    fourier = np.concatenate([one_message.scaled(found, public, one_message.KERNEL), ones], axis=1).astype(np.float64)
    heads, by_fourier = averaged_findings(with_one, states, train), averaged_findings(fourier, states, train)
    out = []
    for name, rows in train.items():
        checked = np.flatnonzero((site == name) & (place == 1))
        tested = np.flatnonzero((source == name.rpartition("_")[0]) & (place == 2))
        tuned = tuned_findings(heads, with_one, states, rows)
        scores: dict[str, Log] = {
            **{one: learn_alone(one, x, states, patient, rows) for one in OWN},
            "fedavg": lambda of: with_one[of] @ heads,
            "fedavg, fine-tuned": lambda of, tuned=tuned: with_one[of] @ tuned,
            "fedavg, Fourier": lambda of: fourier[of] @ by_fourier,
        }
        logits = {one: score(checked) for one, score in scores.items()}
        p = {one: 1 / (1 + np.exp(-values)) for one, values in logits.items()}
        validated = Validated(states[checked], patient[checked], p)
        test = {one: mean_test_auc(states[tested], score(tested)) for one, score in scores.items()}
        if not all(map(math.isfinite, test.values())):
            continue
        loss = {one: known_loss(states[checked], values) for one, values in logits.items()}
        out.append(Case(measure_gains(validated, OWN, seed=split), test, score_models(validated), loss))
    return out


def judged(split: list[Case]) -> list[dict[str, object]]:
    """For each hospital of a split: rule -> (gain on test pictures, whether it left its own model)."""
    found = []
    for one in split:
        told = {str(number): other.at_home.gains for number, other in enumerate(split) if other is not one}
        loud = recommend_model("", one.at_home, sum_other_gains(told, [""])[""])
        silent = recommend_model("", one.at_home, OtherGains())
        own = one.at_home.own
        lucky = max(one.auc, key=one.auc.__getitem__, default=own)
        picks = {
            "always its own": own,
            **{f"always {label}": label for label in OTHERS},
            "highest validation AUC": lucky,
            "lowest validation loss": min(one.loss, key=one.loss.__getitem__),
            "recommended, without others' gains": silent.method,
            "recommended": loud.method,
            "the best on test pictures": max(one.test, key=one.test.__getitem__),
        }
        gains = {rule: [round(one.test[label] - one.test[own], 5), label != own] for rule, label in picks.items()}
        truth = one.test[loud.best] - one.test[own]
        claim = [
            round(loud.gain, 5),
            round(truth, 5),
            loud.low <= truth <= loud.high,
            round(one.auc[lucky] - one.auc[own], 5) if one.auc else math.nan,
        ]
        found.append({"rules": gains, "claim": claim, "patients": one.at_home.patients, "rarest": one.at_home.rarest})
    return found


def main() -> None:
    options = ask_splits(__doc__, "recommendation_findings", splits=8)
    data = one_message.computed()
    collect_cases(options, lambda split, parts, most: judged(cases(split, parts, most, data)))


if __name__ == "__main__":
    main()
