"""Whom to leave out of one's sums: rules that use what left anyway, on hospitals of HAM10000 with one that is spoilt.

    CONSILIUM_DATA=... python -m benchmarks.studies.leaving_out [--first 0] [--splits 10]

As one_message.py, 24 components, two classes. For hospitals i and j with differences of class means b_i and
b_j, from what they sent, D = sum_k (u_k'(b_i - b_j))^2 / v_k over the axes u_k of the scatter of all, where v_k
is the variance that sampling and the noise in both class sums explain. Of d axes, D is about chi-square with d degrees
of freedom where both hospitals have one difference. Then j's class sums count for i

    always               by the fixed weight of `moments`
    unless unlike        unless D is above the 99 % quantile
    less if unlike       times s / (s + t), t = max(0, D - d) of the variance between hospitals, s of what is known of j
                         (DerSimonian and Laird, Control Clin Trials 1986, for one pair)
    unless opposed       unless b_i and b_j point apart by more than two standard deviations
    if alike             only if they point the same way by more than two

The second moments of all count as ever. Spoilt: at one hospital, which is not scored, labels of training are exchanged,
or drawn at random among its patients.
"""

from __future__ import annotations

import math
from itertools import product
from unittest import mock

import numpy as np
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score

from benchmarks.shared.intervals import format_change, format_interval
from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import make_table, read_measured, say_epsilon, write_measured
from benchmarks.shared.skin import split_hospitals
from benchmarks.studies import one_message as data
from federation.parameters import section
from personalize import moments
from privacy.dp import moments as released

RULES = ("always", "unless unlike", "less if unlike", "unless opposed", "if alike")
HOW = {"together": data.TOGETHER, "firmer": data.FIRMER}


def weights(sums: dict[str, dict[str, torch.Tensor]], rule: str) -> dict[tuple[str, str], float]:
    """The factor of j's class sums for i, by (i, j)."""
    width = len(next(iter(sums.values()))["gram"])
    n = sum(float(one["sizes"].sum()) for one in sums.values())
    noise = math.sqrt(max(0.0, float(sum(one["variance"] for one in sums.values()))))
    gram = sum(one["gram"] for one in sums.values()) + 2 * noise * math.sqrt(width / 2) * torch.eye(width).double()
    values, axes = torch.linalg.eigh((gram + gram.T) / 2 / n)
    values = values.clamp(min=1e-3 * float(values.max()))
    seen = {name: (axes.T @ (one["products"][1] / one["labels"][1, 1]), one) for name, one in sums.items()}
    known = {name: _variance(one, values, width) for name, (_, one) in seen.items()}
    return {
        (i, j): _factor(rule, seen[i][0], seen[j][0], known[i], known[j], values) for i in sums for j in sums if i != j
    }


def _variance(sent: dict[str, torch.Tensor], values: torch.Tensor, width: int) -> torch.Tensor:
    """Of a hospital's difference of class means along each axis: of sampling, and of noise (radius 1)."""
    h = float(sent["labels"][1, 1])
    return values / h + float(sent["variance"]) * released.GRAM / released.SUMS / width / h**2


def _factor(rule: str, bi, bj, vi, vj, values) -> float:
    d, distance = len(bi), float(((bi - bj) ** 2 / (vi + vj)).sum())
    if rule == "unless unlike":
        return float(distance < stats.chi2.ppf(0.99, d))
    if rule == "less if unlike":
        between, known = max(0.0, distance - d) / float((values / (vi + vj)).sum()), float((vj / values).mean())
        return known / (known + between)
    same = float((bi / vi * bj).sum() / ((bi / vi) ** 2 * vj).sum().sqrt())
    return float({"always": True, "unless opposed": same > -2, "if alike": same > 2}[rule])


def of_split(split: int, parts: int, spoilt: str, found, public, lines):
    """(epsilon, weights, rule) -> mean AUC of the hospitals that can be assessed and are not spoilt."""
    x = data.scaled(found, public, data.LINEAR)
    truth, lesion, _, train, test, judged = split_hospitals(lines, parts, split)
    y = truth.copy()
    bad = judged[split % len(judged)] if spoilt != "nobody" else ""
    if spoilt == "exchanged":
        y[train[bad]] = 1 - y[train[bad]]
    if spoilt == "random":
        y[train[bad]] = np.random.default_rng(split).permutation(y[train[bad]])
    for epsilon in (1.0, 3.0, None):
        sums, centres = sent(x, y, lesion, train, epsilon)
        for rule in RULES:
            factors = weights(sums, rule)
            for label, how in HOW.items():
                scores = []
                for name in (one for one in judged if one != bad):
                    others = {part: _others(sums, name, part, factors) for part in moments.SUMS}
                    weight, _ = moments.solve_head(how, sums[name], others, centres[name])
                    score = x[test[name]] @ (weight[1] - weight[0]).numpy()
                    scores.append(roc_auc_score(truth[test[name]], score))
                yield epsilon, label, rule, float(np.mean(scores))


def _others(sums, name: str, part: str, factors) -> torch.Tensor:
    shared = part in ("labels", "products")
    return sum(one[part] * (factors[name, j] if shared else 1.0) for j, one in sums.items() if j != name)


def sent(x, y, lesion, train, epsilon):
    """What hospitals sent, centred, and the mean that each keeps."""
    kept, merge, train_one = {}, moments.Moments.merge, moments.Moments.train

    def merging(self, state, replies):
        kept["state"] = merge(self, state, replies)
        return kept["state"]

    def training(self, site, received, memory, call):
        reply, own = train_one(self, site, received, memory, call)
        kept[site.name] = own.tensors["centre"]
        return reply, own

    with mock.patch.multiple(moments.Moments, merge=merging, train=training):
        data.models(x, y, lesion, train, epsilon)
    found = {name: moments.centre_moments(section(kept["state"].tensors, f"site/{name}"), 1.0) for name in train}
    return found, {name: kept[name] for name in train}


def tables(kept: dict[str, dict[str, float]]) -> dict[str, object]:
    """The table `leaving-out`: what each rule changes, in pairs of splits."""
    rows = []
    for name in kept:
        case, _, rule = name.rpartition(" | ")
        if rule == RULES[0]:
            changes = [format_change(kept[f"{case} | {one}"], kept[name]) for one in RULES[1:]]
            rows.append([*case.split(" | "), format_interval([*kept[name].values()]), *changes])
    columns = ["hospitals", "labels spoilt", "ε", "weights", "always", *RULES[1:]]
    return {"leaving-out": make_table(columns, rows)}


def main() -> None:
    options = ask_splits(__doc__, "leaving_out", splits=10)
    torch.set_num_threads(1)
    kept: dict[str, dict[str, float]] = read_measured(options.out)
    given = data.computed()
    for split in range(options.first, options.first + options.splits):
        for parts, spoilt in product((1, 4), ("nobody", "exchanged", "random")):
            for epsilon, label, rule, value in of_split(split, parts, spoilt, *given):
                said = say_epsilon(epsilon).replace("inf", "∞")
                kept.setdefault(f"{3 * parts} | {spoilt} | {said} | {label} | {rule}", {})[str(split)] = round(value, 5)
        write_measured(options.out, kept)
        print(split, flush=True)


if __name__ == "__main__":
    main()
