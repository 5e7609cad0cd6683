"""Attacks on what `moments` and `dp_head` release: an audit with canaries, planted faults, and who was in training.

    CONSILIUM_DATA=... python -m benchmarks.studies.release_attacks [--out benchmarks/measured/release_attacks.json]

The audit: synthetic patients (privacy/attacks/audit.py), each with seven rows and a feature of their own, one release
at a claim of (1, 1e-5). The lower bounds of three audits; one above 1 refutes the claim.

Membership: HAM10000's three sources dealt out to twelve hospitals as in one_message.py, splits 0 to 2. Of a
hospital's release the attacker takes the part of each training lesion and of each test lesion of the same hospital:
its moments, less those of other hospitals' lesions on average, times the released mean less the same, in units of
their covariance (Homer et al., PLoS Genetics 2008, in many dimensions). Of a finished model: the loss. AUC of training
lesions against test lesions, mean over hospitals. The control is the same attack on exact moments of 10 lesions.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import torch
from dp_accounting import get_sigma_gaussian

from benchmarks.shared.options import ask_splits
from benchmarks.shared.records import make_table, write_measured
from benchmarks.studies import one_message as data
from privacy.attacks.audit import audit_gradients, through_moments
from privacy.attacks.membership import attack
from privacy.dp import moments
from privacy.dp.protection import Protection

NOISE = float(get_sigma_gaussian(1.0, data.DELTA)) * 1.001
FEW, MANY = 300, 1000


def by_row(u, y):
    """The fault: each row counts as a patient."""
    return y.sum(dim=0), y.T @ u, u.T @ u


FAULTS = {
    "as it is": (MANY, NOISE, {}),
    "a quarter of the noise": (MANY, NOISE / 4, {}),
    "a slice counts as a patient": (FEW, NOISE, {"_patient_parts": by_row}),
    "second moments of rows that were not cut": (FEW, NOISE, {"cut_rows": lambda z: z}),
}


def audited() -> Iterator[tuple[str, list[float]]]:
    for name, (canaries, noise, changed) in FAULTS.items():
        with mock.patch.multiple(moments, **changed) if changed else mock.patch.object(moments, "UNIT", moments.UNIT):
            made = through_moments(Protection(noise=noise))
            how = {"claimed": 1.0, "delta": data.DELTA, "canaries": canaries, "steps": 1}
            yield f"{name} | {canaries}", [round(audit_gradients(made, **how).bound, 2) for _ in range(3)]


def vectors(x: np.ndarray, y: np.ndarray, lesion: np.ndarray, rows: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Each lesion's second moments and class sums about a centre, one row a lesion."""
    u, number = x[rows] - centre, np.unique(lesion[rows], return_inverse=True)[1]
    upper = np.triu_indices(x.shape[1])
    squares = (u[:, :, None] * u[:, None, :])[:, upper[0], upper[1]]
    sums = (np.eye(2)[y[rows]][:, :, None] * u[:, None, :]).reshape(len(rows), -1)
    found = np.zeros((number.max() + 1, squares.shape[1] + sums.shape[1]))
    np.add.at(found, number, np.c_[squares, sums])
    return found / np.bincount(number)[:, None]


def traced(released: np.ndarray, members: np.ndarray, others: np.ndarray, public: np.ndarray) -> list[np.ndarray]:
    """The scores of members and others against a released mean; public: vectors of lesions of other hospitals."""
    mean, covariance = public.mean(axis=0), np.cov(public.T)
    ridge = 0.1 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    direction = np.linalg.solve(covariance + ridge, released - mean)
    return [(one - mean) @ direction for one in (members, others)]


def main() -> None:
    options = ask_splits(__doc__, "release_attacks", splits=3)
    torch.set_num_threads(1)
    write_measured(options.out, {"audit": dict(audited()), "membership": dict(memberships(options.splits))})


def tables(result: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    """The tables `audit` and `membership` of docs/results/one-message.md."""
    audits = [[*name.split(" | "), ", ".join(f"{one:g}" for one in values)] for name, values in result["audit"].items()]
    attacked = dict.fromkeys(name.partition(" | ")[0] for name in result["membership"])
    members = []
    for what in attacked:
        of_each = [result["membership"][f"{what} | {epsilon}"] for epsilon in ("1", "3", "8", "∞")]
        members.append([what, *(f"{auc:.3f} ({found:.3f})" for auc, found, _ in of_each)])
    control = result["membership"]["released moments | ∞"][2]
    members.append(["control: exact moments of 10 lesions", "", "", "", f"{control:.3f}"])
    return {
        "audit": make_table(["code", "canaries", "lower bounds of ε, claim 1"], audits),
        "membership": make_table(["attacked", "ε = 1", "ε = 3", "ε = 8", "ε = ∞"], members),
    }


def memberships(splits: int) -> Iterator[tuple[str, list[float]]]:
    """(what is attacked, epsilon) -> AUC, share found at 1 % false alarms, and the control's AUC; means."""
    found, public, lines = data.computed()
    x = data.scaled(found, public, data.LINEAR)
    y, lesion = np.array([int(one["label"]) for one in lines]), np.array([one["patient"] for one in lines])
    told: dict[str, list[list[float]]] = {}
    for split in range(splits):
        site = data.hospitals(lines, 4, split)
        place = data.cut(site, lesion, split)
        train, test = (
            {name: np.flatnonzero((site == name) & (place == part)) for name in np.unique(site)} for part in (0, 2)
        )
        for epsilon in (1.0, 3.0, 8.0, None):
            for what, result in of_split(x, y, lesion, train, test, epsilon):
                said = "∞" if epsilon is None else f"{epsilon:g}"
                told.setdefault(f"{what} | {said}", []).append([result.auc, result.tpr_at_1, result.control_auc])
        print(split, flush=True)
    for key, values in told.items():
        yield key, [round(float(one), 3) for one in np.mean(values, axis=0)]


def of_split(x, y, lesion, train, test, epsilon):
    sent: dict[str, dict[str, torch.Tensor]] = {}
    original = data.TOGETHER.__class__.merge

    def kept(self, state, replies):
        sent.update({name: reply.tensors for name, reply in replies.items()})
        return original(self, state, replies)

    with mock.patch.object(data.TOGETHER.__class__, "merge", kept):
        solve = data.models(x, y, lesion, train, epsilon)
    networks = {"model of moments, together": solve(data.TOGETHER), "model of moments, alone": solve(data.ALONE)}
    solve = data.models(x, y, lesion, train, epsilon, data.DESCENT)
    networks["head of dp_head, alone"] = solve(data.DESCENT)
    for name in train:
        number = np.unique(lesion[train[name]], return_inverse=True)[1]
        own_rows = np.stack([x[train[name]][number == one].mean(axis=0) for one in range(number.max() + 1)])
        centre = own_rows.mean(axis=0)  # the attacker is given it
        outside = np.concatenate([rows for other, rows in train.items() if other != name])
        members, others, rest = (vectors(x, y, lesion, rows, centre) for rows in (train[name], test[name], outside))
        own = {key.partition("/")[0]: value.numpy() for key, value in sent[name].items()}
        upper = np.triu_indices(x.shape[1])
        released = np.concatenate([own["gram"][upper], own["sums"].reshape(-1)]) / len(members)
        few = traced(members[:10].mean(axis=0), members[:10], others, rest)
        yield "released moments", attack(*traced(released, members, others, rest), control=few)
        for what, network in networks.items():
            scores = [-losses(network[name], x, y, lesion, rows) for rows in (train[name], test[name])]
            yield what, attack(*scores, control=few)


def losses(network, x, y, lesion, rows) -> np.ndarray:
    """Mean loss of each lesion."""
    with torch.no_grad():
        logits = network(torch.from_numpy(x[rows]).float()).logits
    found = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y[rows]), reduction="none").numpy()
    number = np.unique(lesion[rows], return_inverse=True)[1]
    return np.bincount(number, weights=found) / np.bincount(number)


if __name__ == "__main__":
    main()
